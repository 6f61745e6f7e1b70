package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

// patience is how long a whole session may take; it takes a few seconds, with LiteLLM beside other work a minute.
const patience = 5 * time.Minute

// played has the pages below docs whose session TestPages plays, with the ports that they name.
var played = map[string][]string{
	"start/callers.md":       {"8092"},
	"reference/conductor.md": {"13333", "8092", "5500"},
	"run/diagnose.md":        {"13333", "8092", "5500"},
	"run/disaggregation.md":  {"8092", "8093", "8080", "8101", "8102", "8201", "8202"},
	"run/draining.md":        {"8092"},
	"start/engines.md":       {"8092"},
	"run/kv-hints.md":        {"8094", "8101", "8102"},
	"run/overload.md":        {"8092"},
	"run/tls.md":             {"8092"},
}

// TestPages proves that the sessions of the documentation work as they are
// printed, on other ports: each answer has the values of the page.
func TestPages(t *testing.T) {
	for page, ports := range played {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath("python3"); err != nil && page == "start/callers.md" {
				t.Skip("the page's client needs python3")
			}
			play(t, "docs/"+page, ports...)
		})
	}
}

// TestPlayed proves that every page with commands that look played (sh blocks) is played somewhere, and that what is
// not says why. Blocks of the language console are for reading only.
func TestPlayed(t *testing.T) {
	players := map[string]string{
		"README.md":                  "TestReadme and TestTwoEngines",
		"docs/start/clients.md":      "TestFromGo",
		"docs/start/install.md":      "make test-newcomer",
		"docs/start/kubernetes.md":   "make test-kube-api and make test-istio play the objects; the commands need a cluster",
		"docs/start/ray.md":          "test/others/ray",
		"docs/figures/benchmarks.md": "they take minutes and other programs; TestBenchmarkNames checks the names",
	}
	root := rootOf(t)
	for _, page := range pages(t, root) {
		name, isDocs := strings.CutPrefix(page, "docs/")
		if !isDocs && page != "README.md" || strings.HasPrefix(page, "docs/start/tutorials/") { // the latter: TestTutorials
			continue
		}
		has := regexp.MustCompile("(?m)^ *```sh$").MatchString(read(t, root, page))
		if _, known := played[name]; has && !known && players[page] == "" {
			t.Errorf("%s has commands that no test plays", page)
		}
	}
}

// TestHeadings proves that an empty line is before each heading of the pages, as readers of Markdown expect.
func TestHeadings(t *testing.T) {
	root := rootOf(t)
	glued := regexp.MustCompile("(?m)^.+\n##+ .*$")
	fenced := regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	for _, page := range pages(t, root) {
		for _, heading := range glued.FindAllString(fenced.ReplaceAllString(read(t, root, page), ""), -1) {
			t.Errorf("%s: no empty line before the heading in %q", page, heading)
		}
	}
}

// play runs the session of a page, on free ports in place of those that it
// names.
func play(t *testing.T, page string, ports ...string) {
	t.Helper()
	root := rootOf(t)
	playText(t, root, page, read(t, root, page), ports...)
}

func rootOf(t *testing.T) string {
	t.Helper()
	root, err := e2e.Root()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// playText runs the session of a part of a page. It returns the folder with what
// the steps printed.
func playText(t *testing.T, root, page, text string, ports ...string) (dir string) {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("the sessions of the pages need curl: make setup")
	}
	steps, err := session(onFreePorts(t, text, ports...))
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	install(t, filepath.Join(dir, "bin"), text)
	reached := run(t, dir, page, steps)
	for i, s := range steps[:reached] {
		output := read(t, dir, fmt.Sprintf("output.%d", i))
		if diff, err := s.difference(output); err != nil || diff != "" {
			t.Errorf("%s, line %d: %v\n%s\nprinted, against the page (-page +printed):\n%s\n%s", page, s.line, err, s.script, diff, output)
		}
	}
	if log := read(t, dir, "service.log"); t.Failed() || strings.Contains(log, "WARNING: DATA RACE") {
		t.Errorf("log of the service:\n%s", log)
	}
	return dir
}

// onFreePorts replaces each of the ports in a page by a free one.
func onFreePorts(t *testing.T, page string, ports ...string) string {
	t.Helper()
	for _, port := range ports {
		if !strings.Contains(page, port) {
			t.Errorf("the page does not use port %s", port)
		}
		page = regexp.MustCompile(`\b`+port+`\b`).ReplaceAllString(page, strconv.Itoa(e2e.FreePort(t)))
	}
	return page
}

// install puts the programs that a page calls where it has them.
func install(t *testing.T, bin, text string) {
	t.Helper()
	programs := map[string]string{"select-service": e2e.Binary(t)}
	for name, source := range map[string]string{"kv-publish": "./test/checks/docs/kv-publish", "sim-engine": "./demo/engine"} {
		if strings.Contains(text, "bin/"+name) {
			programs[name] = e2e.Program(t, source)
		}
	}
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, at := range programs {
		if err := os.Symlink(at, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// run runs the steps of a page in one shell, as a reader does, and returns how
// many ended well. What step i printed is in the file output.i. env is added to the shell's.
func run(t *testing.T, dir, page string, steps []step, env ...string) (reached int) {
	t.Helper()
	var script strings.Builder
	for i, s := range steps {
		fmt.Fprintf(&script, "{\n%s} > output.%d\necho %d > reached\n", s.script, i, i+1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-eu", "-o", "pipefail", "-c", script.String())
	shell.Dir = dir
	shell.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "DYN_") || strings.HasPrefix(kv, "SELECT_SERVICE_")
	}), env...)
	stderr, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stderr.Close() }()
	shell.Stderr = stderr
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	end := func() error { return syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) } // with all that it has started
	shell.Cancel = end
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	err = shell.Wait()
	_ = end()                                                             // nothing is left of a session that went well
	reached, _ = strconv.Atoi(strings.TrimSpace(read(t, dir, "reached"))) // no file: 0
	switch {
	case err == nil:
	case reached < len(steps):
		t.Errorf("%s, line %d: %v\n%s\n%s", page, steps[reached].line, err, steps[reached].script, read(t, dir, "stderr"))
	default:
		t.Errorf("%s, after its last step: %v\n%s", page, err, read(t, dir, "stderr"))
	}
	return reached
}

// read returns the content of a file of the session, "" if it has not come to it.
func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}
