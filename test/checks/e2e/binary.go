package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// BinaryEnv names a program to test instead of a fresh build.
const BinaryEnv = "SELECT_SERVICE_BIN"

var (
	// mu guards folder, and is held while something is built into it.
	mu     sync.Mutex
	folder string // of the builds, "" before the first
)

// Binary returns the path of the service, which it builds on the first call.
// TestMain has to call Clean at the end.
func Binary(tb testing.TB) string {
	tb.Helper()
	path, err := build()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

var build = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(BinaryEnv); path != "" {
		// go test keeps the result of a run until a file changes that it has looked at.
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s: %w", BinaryEnv, err)
		}
		return filepath.Abs(path)
	}
	return compile("select-service", buildFlags)
})

// compile builds a program of this module into the folder of the builds.
func compile(name string, flags []string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	mu.Lock()
	defer mu.Unlock()
	if folder == "" {
		if folder, err = os.MkdirTemp("", "select-service-"); err != nil {
			return "", fmt.Errorf("folder for the build: %w", err)
		}
	}
	path := filepath.Join(folder, name)
	cmd := exec.Command("go", slices.Concat([]string{"build"}, flags, []string{"-o", path, programs[name]})...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return path, nil
}

// programs are the packages of programs.
var programs = map[string]string{"select-service": "./cmd/select-service", "sim-engine": "./demo/engine"}

// Main runs the tests of a package, and then Clean. The status of the process is
// what package testing makes of the run.
func Main(m *testing.M) {
	defer Clean()
	m.Run()
}

// Clean removes what was built.
func Clean() {
	mu.Lock()
	defer mu.Unlock()
	if folder != "" {
		_ = os.RemoveAll(folder) // in the folder for temporary files anyway
	}
}

// Root is the folder of the module that the test runs in.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = parent
	}
}
