package packages

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// TestWheels proves that a fresh Python environment that has both wheels, from files,
// starts the service by its name, and that the client reaches it.
func TestWheels(t *testing.T) {
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	service, client := artefact(t, "select_service-*"+machine+".whl"), artefact(t, "select_service_client-*.whl")
	needs(t, "python3")
	venv := filepath.Join(t.TempDir(), "venv")
	run(t, "python3", "-m", "venv", venv)
	bin := filepath.Join(venv, "bin")
	run(t, filepath.Join(bin, "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", service, client)
	version := strings.Split(filepath.Base(service), "-")[1]
	for _, program := range []string{"select-service", "selectctl"} {
		got := run(t, filepath.Join(bin, program), "--version")
		if asPython := strings.ReplaceAll(got, "-rc.", "rc"); !strings.HasSuffix(asPython, " v"+version+"\n") {
			t.Errorf("%s says %q, the wheel is of %s", program, got, version)
		}
	}
	if got := run(t, filepath.Join(bin, "python"), "-m", "pip", "list", "--format=freeze"); !strings.Contains(got, "select-service=="+version+"\n") ||
		!strings.Contains(got, "select-service-client=="+version+"\n") {
		t.Errorf("installed is\n%s", got)
	}
	port := e2e.FreePort(t)
	cmd := exec.Command(filepath.Join(bin, "select-service"), "--listen", "127.0.0.1", "--port", strconv.Itoa(port))
	serves(t, port, cmd, func() error {
		out := run(t, filepath.Join(bin, "python"), "-c",
			"from select_service_client import Client; print(Client('http://127.0.0.1:"+strconv.Itoa(port)+"').list_workers())")
		if strings.TrimSpace(out) != "[]" {
			t.Errorf("the client got %s", out)
		}
		return cmd.Process.Signal(syscall.SIGTERM)
	})
	run(t, filepath.Join(bin, "python"), "-m", "pip", "uninstall", "-q", "-y", "select-service")
	if _, err := exec.LookPath(filepath.Join(bin, "select-service")); err == nil {
		t.Error("the program is still there")
	}
}
