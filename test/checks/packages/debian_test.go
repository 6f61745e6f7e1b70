package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

const (
	configFile = "/etc/select-service/select-service.yaml"
	unitFile   = "/usr/lib/systemd/system/select-service.service"
)

// TestDebianPackage proves that the package installs, that the service then runs with
// the packaged configuration as its own user, that an upgrade keeps changed
// configuration and data, that removal keeps them, and that the service is on, and a purge does not. It installs on
// this machine, so that the package must not be there before.
func TestDebianPackage(t *testing.T) {
	deb := artefact(t, "select-service_*_"+runtime.GOARCH+".deb")
	needs(t, "dpkg", "dpkg-deb", "setpriv")
	if os.Getuid() != 0 {
		t.Skip("it needs root")
	}
	if out, err := exec.Command("dpkg-query", "-W", "-f", "${db:Status-Status}", "select-service").Output(); err == nil && string(out) != "not-installed" {
		t.Skipf("select-service is %s on this machine", out)
	}
	t.Cleanup(func() {
		_ = exec.Command("dpkg", "--purge", "select-service").Run()
		_ = exec.Command("userdel", "select-service").Run()
	})
	run(t, "dpkg", "--install", deb)
	if got := run(t, "stat", "-c", "%U %G %a", "/etc/select-service"); got != "root select-service 750\n" {
		t.Errorf("the folder of the configuration is %s", got)
	}
	run(t, "select-service", "--config", configFile, "--check-config")

	// What systemd does, as far as it can be done without it.
	const state = "/var/lib/select-service"
	run(t, "install", "-d", "-o", "select-service", "-g", "select-service", "-m", "0700", state)
	start := func() {
		port := e2e.FreePort(t)
		cmd := exec.Command("setpriv", "--reuid=select-service", "--regid=select-service", "--clear-groups", "--no-new-privs",
			"select-service", "--config", configFile, "--port", strconv.Itoa(port))
		serves(t, port, cmd, func() error { return cmd.Process.Signal(syscall.SIGTERM) })
	}
	start()
	if entries, err := os.ReadDir(state); err != nil || len(entries) == 0 {
		t.Errorf("there is no state on disk: %v", err)
	}

	const changed = "# Changed by the operator.\nserver: {listen: 127.0.0.1}\ndata: {dir: /var/lib/select-service}\n"
	if err := os.WriteFile(configFile, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	later := newer(t, deb)
	run(t, "dpkg", "--force-confdef", "--install", later) // the default, which dpkg would ask for
	if got, err := os.ReadFile(configFile); err != nil || string(got) != changed {
		t.Errorf("the upgrade left %q, %v", got, err)
	}
	start()
	run(t, "dpkg", "--remove", "select-service")
	for _, kept := range []string{configFile, state} {
		if _, err := os.Stat(kept); err != nil {
			t.Errorf("after removal: %v", err)
		}
	}
	for _, gone := range []string{"/usr/bin/select-service", unitFile} {
		if _, err := os.Stat(gone); err == nil {
			t.Errorf("after removal there is %s", gone)
		}
	}
	wants := "/etc/systemd/system/multi-user.target.wants/select-service.service"
	if _, err := exec.LookPath("systemctl"); err == nil {
		run(t, "dpkg", "--force-confdef", "--install", later)
		if _, err := os.Lstat(wants); err != nil {
			t.Errorf("after removal and installation the service is off: %v", err)
		}
	}
	run(t, "dpkg", "--purge", "select-service")
	for _, gone := range []string{"/etc/select-service", state, wants} {
		if _, err := os.Lstat(gone); err == nil {
			t.Errorf("after the purge there is %s", gone)
		}
	}
}

// newer makes a later version of a package with another default configuration, so that
// dpkg has to choose between it and the operator's.
func newer(t *testing.T, deb string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tree")
	run(t, "dpkg-deb", "--raw-extract", deb, dir)
	edit := func(name string, change func(string) string) {
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(change(string(text))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	edit("DEBIAN/control", func(s string) string {
		return strings.Replace(s, "\nVersion: ", "\nVersion: 1:", 1)
	})
	edit(configFile, func(s string) string { return s + "\n# New in this version.\n" })
	out := filepath.Join(t.TempDir(), "newer.deb")
	run(t, "dpkg-deb", "--build", "-Zgzip", "--root-owner-group", dir, out)
	return out
}

// TestUnit proves that systemd takes the unit, and that it is closed: at most 2.0 of 10
// in systemd's own judgement.
func TestUnit(t *testing.T) {
	deb := artefact(t, "select-service_*_"+runtime.GOARCH+".deb")
	needs(t, "systemd-analyze", "dpkg-deb")
	root := t.TempDir()
	run(t, "dpkg-deb", "--extract", deb, root)
	// Names of files and of the user are the installed ones; here they are others.
	unit := filepath.Join(root, "select-service.service")
	text, err := os.ReadFile(filepath.Join(root, unitFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), "/usr/bin/select-service", filepath.Join(root, "usr/bin/select-service"))), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := run(t, "systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit); strings.Contains(out, "select-service.service:") {
		t.Errorf("systemd says:\n%s", out)
	}
	run(t, "systemd-analyze", "security", "--offline=true", "--threshold=20", unit)
}

// TestRPM proves that the package has the same files as the Debian one, the
// configuration as one that an upgrade keeps.
func TestRPM(t *testing.T) {
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	file := artefact(t, "select-service-*."+machine+".rpm")
	needs(t, "rpm")
	run(t, "rpm", "--checksig", file)
	listed := run(t, "rpm", "-qlp", file)
	for _, name := range []string{"/usr/bin/select-service", unitFile, configFile} {
		if !strings.Contains(listed, name+"\n") {
			t.Errorf("%s is missing:\n%s", name, listed)
		}
	}
	if got := run(t, "rpm", "-qp", "--qf", "[%{FILENAMES} %{FILEFLAGS:fflags}\n]", file); !strings.Contains(got, configFile+" cn\n") {
		t.Errorf("an upgrade does not keep the configuration:\n%s", got)
	}
	root := t.TempDir()
	run(t, "rpm", "--root", root, "--initdb")
	run(t, "rpm", "--root", root, "--install", "--nodeps", "--noscripts", file)
	if got := run(t, filepath.Join(root, "usr/bin/select-service"), "--version"); !strings.HasPrefix(got, "select-service v") {
		t.Errorf("it says %q", got)
	}
}
