package retries_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// TestNoCgo proves that the client needs no C compiler and drags nothing along but
// a package for ids and those that write msgpack.
func TestNoCgo(t *testing.T) {
	t.Parallel()
	root, err := e2e.Root()
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	run("build", "./pkg/client", "./examples/lease")
	got := strings.Fields(run("list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./pkg/client"))
	const own = "github.com/select-service/select-service/"
	want := []string{"github.com/google/uuid", own + "internal/codec/msgpack", own + "internal/codec/bodyscan", own + "pkg/client"}
	if !slices.Equal(got, want) {
		t.Errorf("the client consists of %q, want %q", got, want)
	}
}
