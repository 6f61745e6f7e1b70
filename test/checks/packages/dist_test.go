package packages

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

// patience is how long a step may take on a busy machine.
const patience = 2 * time.Minute

// artefact returns the path of the one file of a release that a pattern names.
func artefact(t *testing.T, pattern string) string {
	t.Helper()
	dist := os.Getenv("SELECT_SERVICE_DIST")
	if dist == "" {
		t.Skip("SELECT_SERVICE_DIST is not set: make test-packages")
	}
	if !filepath.IsAbs(dist) {
		root, err := e2e.Root()
		if err != nil {
			t.Fatal(err)
		}
		dist = filepath.Join(root, dist)
	}
	found, err := filepath.Glob(filepath.Join(dist, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

// needs skips the test where a program is missing.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is missing; make test-packages installs it", p)
		}
	}
}

// run runs a command to its end and returns what it printed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// serves starts a command that runs the service at a port, waits until it answers,
// stops it with the signal that stop sends and proves that it ends well.
func serves(t *testing.T, port int, cmd *exec.Cmd, stop func() error) {
	t.Helper()
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	deadline := time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !healthy(t.Context(), port) {
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v\n%s", err, log.String())
		case <-deadline:
			_ = cmd.Process.Kill()
			t.Fatalf("no answer at port %d: %v\n%s", port, <-ended, log.String())
		case <-tick.C:
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("after the signal: %v\n%s", err, log.String())
		}
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		t.Errorf("it did not stop: %v\n%s", <-ended, log.String())
	}
}

func healthy(ctx context.Context, port int) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/health", port), http.NoBody)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
