package atomicfile_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/select-service/select-service/internal/transport/atomicfile"
)

// TestWrite: a file has its new content when that is complete and not before, for those who open
// it; who reads the old one goes on. What a killed process left, or another one has put in the
// place of the temporary file, is neither continued nor followed.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	content := func(path string) string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	write := func(text string, fail error) error {
		return atomicfile.Write(path, func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return errors.Join(err, fail)
		})
	}
	if err := write("first", nil); err != nil || content(path) != "first" {
		t.Fatal(err)
	}
	old, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := write("half", os.ErrDeadlineExceeded); !errors.Is(err, os.ErrDeadlineExceeded) || content(path) != "first" {
		t.Errorf("after a failure: %v", err)
	}
	foreign := filepath.Join(t.TempDir(), "foreign")
	if err := os.WriteFile(foreign, []byte("foreign"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(foreign, path+atomicfile.TempSuffix); err != nil {
		t.Fatal(err)
	}
	if err := write("second", nil); err != nil || content(path) != "second" {
		t.Fatal(err)
	}
	if got := content(foreign); got != "foreign" {
		t.Errorf("a link was followed: %q", got)
	}
	if b, err := io.ReadAll(old); err != nil || string(b) != "first" {
		t.Errorf("a reader of the old file got %q, %v", b, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode: %v, %v", info, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("files left: %v, %v", left, err)
	}
	if err := atomicfile.Write(filepath.Join(dir, "none", "file"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in no directory: %v", err)
	}
}
