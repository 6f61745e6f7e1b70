package e2e

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"testing"

	"github.com/select-service/select-service/test/helpers/length"
)

// BinaryEnv names a program to test instead of a fresh build.
const BinaryEnv = "SELECT_SERVICE_BIN"

var (
	// mu guards folder and built, and is held while something is built.
	mu     sync.Mutex
	folder string                // of the builds, "" before the first
	built  = map[string]string{} // package of a program → its path
)

// Binary returns the path of the service, which it builds on the first call, with the race detector
// where the tests have it.
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
	var flags []string
	if length.Race {
		flags = []string{"-race"}
	}
	return compile("./cmd/select-service", flags...)
})

// Race tells whether the service has the race detector, with which it needs several times the memory.
func Race(tb testing.TB) bool {
	tb.Helper()
	info, err := buildinfo.ReadFile(Binary(tb))
	if err != nil {
		tb.Fatal(err)
	}
	return slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
}

// Program returns the path of a program of this module (./demo/engine), which it builds on the first
// call. TestMain has to call Clean at the end.
func Program(tb testing.TB, pkg string) string {
	tb.Helper()
	path, err := compile(pkg)
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// compile builds a program of this module into the folder of the builds, unless it is there.
func compile(pkg string, flags ...string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	mu.Lock()
	defer mu.Unlock()
	if path := built[pkg]; path != "" {
		return path, nil
	}
	if folder == "" {
		if folder, err = os.MkdirTemp("", "select-service-"); err != nil {
			return "", fmt.Errorf("folder for the build: %w", err)
		}
	}
	path := filepath.Join(folder, filepath.Base(pkg))
	cmd := exec.Command("go", slices.Concat([]string{"build"}, flags, []string{"-o", path, pkg})...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	built[pkg] = path
	return path, nil
}

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
