package statefile

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestDir: a snapshot takes the place of the one before when it is complete, and not
// otherwise.
func TestDir(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	d, err := OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.openLast(); !errors.Is(err, errNone) {
		t.Errorf("an empty directory: %v", err)
	}
	write := func(id uint64, fail error) error {
		_, err := d.Write(written, func(w *writer) error { return errors.Join(w.Worker(&catalog.Record{ID: id}), fail) })
		return err
	}
	workers := func() uint64 {
		t.Helper()
		f, err := d.openLast()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w, _, err := f.Workers()
		if err != nil || len(w) != 1 {
			t.Fatalf("%v %v", w, err)
		}
		return w[0].ID
	}
	if err := write(1, nil); err != nil || workers() != 1 {
		t.Fatal(err)
	}
	if err := write(2, os.ErrDeadlineExceeded); !errors.Is(err, os.ErrDeadlineExceeded) || workers() != 1 {
		t.Errorf("a failed snapshot: %v", err)
	}
	if err := write(3, nil); err != nil || workers() != 3 {
		t.Fatal(err)
	}
	for _, name := range []string{snapshotName, lockName} {
		if info, err := os.Stat(filepath.Join(path, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
}

// TestDirInUse: one process at a time; what it left half written is removed.
func TestDirInUse(t *testing.T) {
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, tempName), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(path, tempName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a temporary file is left: %v", err)
	}
	var used *InUseError
	if _, err := OpenDir(path); !errors.As(err, &used) || used.Process != os.Getpid() || !strings.Contains(err.Error(), path) {
		t.Errorf("a second process: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = OpenDir(path); err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	d.Close()
}

// TestRefused: a file that is not used is kept aside, and says why in a line.
func TestRefused(t *testing.T) {
	good := exampleFile(t)
	with := func(at int, v byte) []byte {
		b := append([]byte(nil), good...)
		b[at] = v
		return b
	}
	for name, tt := range map[string]struct {
		content []byte
		want    Reason
	}{
		"empty":               {nil, Foreign},
		"text":                {[]byte("name,age\nx,1\n"), Foreign},
		"long text":           {[]byte(strings.Repeat("name,age\nx,1\n", 100)), Foreign},
		"another version":     {with(8, 9), OtherVersion},
		"a damaged header":    {with(30, 1), Corrupt},
		"another hash seed":   {sealed(with(12, 1)), OtherHashes},
		"another hash":        {sealed(with(20, good[20]+1)), OtherHashes},
		"cut in the header":   {good[:20], Cut},
		"cut in a section":    {good[:len(good)/2], Cut},
		"cut before its end":  {good[:len(good)-headBytes-32], Cut},
		"a byte too much":     {append(append([]byte(nil), good...), 0), Corrupt},
		"a flipped bit":       {with(len(good)/2, good[len(good)/2]^1), Corrupt},
		"a length beyond all": {with(headerBytes+8+3, 0xff), Corrupt},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			d, err := OpenDir(path)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if err := os.WriteFile(filepath.Join(path, snapshotName), tt.content, 0o600); err != nil {
				t.Fatal(err)
			}
			var refused *RefusedError
			if _, err := d.openLast(); !errors.As(err, &refused) || refused.Reason != tt.want || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			if kept, err := os.ReadFile(filepath.Join(path, refusedName)); err != nil || string(kept) != string(tt.content) {
				t.Errorf("it was not kept: %v", err)
			}
			if _, err := d.openLast(); !errors.Is(err, errNone) {
				t.Errorf("the second time: %v", err)
			}
		})
	}
}

func sealed(b []byte) []byte {
	seal(b, true)
	return b
}

// TestRankHeaders: a snapshot keeps how a worker's engine is told ranks.
func TestRankHeaders(t *testing.T) {
	d, err := OpenDir(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	want := catalog.Record{ID: 1, RankHeader: new(catalog.RankNone), PrefillRankHeader: new(true)}
	if _, err := d.Write(written, func(w *writer) error { return w.Worker(&want) }); err != nil {
		t.Fatal(err)
	}
	f, err := d.openLast()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, _, err := f.Workers(); err != nil || len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}
