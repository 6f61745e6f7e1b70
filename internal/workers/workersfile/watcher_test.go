package workersfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/pkg/catalog"
)

// sets remembers the ids of each set that was applied.
type sets struct {
	got []string
	err error
}

func (s *sets) replace(set catalog.Set) (catalog.Difference, error) {
	if s.err != nil {
		return catalog.Difference{}, s.err
	}
	ids := []uint64{}
	for _, r := range set.Records {
		ids = append(ids, r.ID)
	}
	s.got = append(s.got, fmt.Sprint(ids))
	return catalog.Difference{Added: ids}, nil
}

// followed is a watcher whose polls are made by the test.
type followed struct {
	*Watcher
	*sets
	t    *testing.T
	path string
	log  bytes.Buffer
}

func follow(t *testing.T, path string) *followed {
	t.Helper()
	first, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	f := &followed{sets: new(sets), t: t, path: path}
	f.Watcher = NewWatcher(path, first, zerolog.New(&f.log))
	f.apply = f.replace
	return f
}

// after polls n times and compares what was applied in them.
func (f *followed) after(n int, want ...string) {
	f.t.Helper()
	f.got = nil
	for range n {
		f.poll()
	}
	if fmt.Sprint(f.got) != fmt.Sprint(want) {
		f.t.Errorf("applied %v, want %v", f.got, want)
	}
}

func (f *followed) write(content string) {
	f.t.Helper()
	write(f.t, f.path, content)
}

func ids(of ...int) string {
	text := "workers:\n"
	for _, id := range of {
		text += fmt.Sprintf("- worker_id: %d\n", id)
	}
	return text
}

func startFile(t *testing.T) *followed {
	path := filepath.Join(t.TempDir(), "w.yaml")
	write(t, path, ids(1))
	earlier := time.Now().Add(-time.Hour) // than what is written next, whatever the resolution of file times is
	if err := os.Chtimes(path, earlier, earlier); err != nil {
		t.Fatal(err)
	}
	f := follow(t, path)
	f.after(5)
	return f
}

// TestHalfWritten: a file that is written piece by piece is applied once, as a
// whole: what only one read has seen is not.
func TestHalfWritten(t *testing.T) {
	f := startFile(t)
	for _, half := range []string{"", "workers:\n", ids(1), ids(1, 2), ids(1, 2, 3)} { // truncated, then longer and longer
		f.write(half)
		f.after(1)
	}
	f.after(1, "[1 2 3]")
	f.after(5)
	if f.log.Len() == 0 || strings.Contains(f.log.String(), "error") || f.Stats() != (Stats{Applied: 1}) {
		t.Errorf("%+v, log %s", f.Stats(), f.log.String())
	}
}

// TestReplaced: the file may be renamed over, or change its folder by a symbolic
// link as in volumes of Kubernetes.
func TestReplaced(t *testing.T) {
	f := startFile(t)
	next := f.path + ".tmp"
	write(t, next, ids(2))
	if err := os.Rename(next, f.path); err != nil {
		t.Fatal(err)
	}
	f.after(5, "[2]")

	dir := t.TempDir()
	swap := func(version, content string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version, "w.yaml"), content)
		link := filepath.Join(dir, "..data_tmp")
		if err := os.Symlink(version, link); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link, filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	swap("v1", ids(1))
	path := filepath.Join(dir, "w.yaml")
	if err := os.Symlink(filepath.Join("..data", "w.yaml"), path); err != nil {
		t.Fatal(err)
	}
	k := follow(t, path)
	k.after(5)
	swap("v2", ids(1, 2))
	k.after(5, "[1 2]")
	swap("v3", ids(3))
	if err := os.RemoveAll(filepath.Join(dir, "v2")); err != nil {
		t.Fatal(err)
	}
	k.after(5, "[3]")
}

// TestFaultyFile: as long as the file is missing or faulty the old set stays, and
// the log has one line for each fault. A file that is right again is applied, also
// if it is the one in force.
func TestFaultyFile(t *testing.T) {
	f := startFile(t)
	fault := func(want string, stats Stats) {
		t.Helper()
		f.after(5)
		if got := strings.Count(f.log.String(), "\n"); got != 1 || !strings.Contains(f.log.String(), want) || f.Stats() != stats {
			t.Errorf("log is %s, want %s; %+v", f.log.String(), want, f.Stats())
		}
		f.log.Reset()
	}
	f.write("workers: [")
	fault("yaml: line 1", Stats{Failed: 1, Stale: true})
	f.write("workers: [{worker_id: 1, x: 1}]")
	fault("workers[0].x (line 1): unknown key", Stats{Failed: 2, Stale: true})
	f.write("")
	fault("the file is empty", Stats{Failed: 3, Stale: true})
	if err := os.Remove(f.path); err != nil {
		t.Fatal(err)
	}
	fault("no such file", Stats{Failed: 4, Stale: true})
	f.write(ids(1))
	f.after(5, "[1]")
	if f.Stats() != (Stats{Applied: 1, Failed: 4}) {
		t.Errorf("%+v", f.Stats())
	}
}

// TestGoneForAMoment: a file that is missing in one look only is no fault.
func TestGoneForAMoment(t *testing.T) {
	f := startFile(t)
	if err := os.Remove(f.path); err != nil {
		t.Fatal(err)
	}
	f.after(1)
	f.write(ids(1))
	f.after(5)
	if f.Stats() != (Stats{}) || f.log.Len() > 0 {
		t.Errorf("%+v, log %s", f.Stats(), f.log.String())
	}
}

// TestRefusedFile: a set that the service refuses is tried again until it takes it
// or the file changes; the error has the line.
func TestRefusedFile(t *testing.T) {
	f := startFile(t)
	f.err = &catalog.EntryError{Index: 1, Err: errors.New("taken")}
	f.write(ids(2, 3))
	f.after(20)
	if got := f.log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "workers[1] (line 3): taken") {
		t.Errorf("log is %s", got)
	}
	f.err = nil
	f.after(20, "[2 3]")
	if f.Stats() != (Stats{Applied: 1, Failed: 1}) {
		t.Errorf("%+v", f.Stats())
	}
}

// TestSameStatus: a second write that leaves size and time as they are, as one
// within the resolution of file times does, is seen while the first is fresh.
func TestSameStatus(t *testing.T) {
	f := startFile(t)
	f.write(ids(2))
	f.after(2, "[2]")
	info, err := os.Stat(f.path)
	if err != nil {
		t.Fatal(err)
	}
	f.write(ids(3))
	if err := os.Chtimes(f.path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	f.after(3, "[3]")
}

// TestUnchangedIsNotRead: a file that rests is not read.
func TestUnchangedIsNotRead(t *testing.T) {
	f := startFile(t)
	f.seen.fault = "not read since"
	f.after(10)
	if f.seen.fault == "" {
		t.Error("the file was read")
	}
}

// TestRun: Run registers the first content, looks every second and ends with its
// context.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "w.yaml")
		write(t, path, ids(1))
		f := follow(t, path)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx, f.replace) }()
		f.write(ids(2))
		time.Sleep(2*pollEvery + pollEvery/2)
		synctest.Wait()
		if fmt.Sprint(f.got) != "[[1] [2]]" {
			t.Errorf("applied %v", f.got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestRunRefused: a first content that is refused ends Run, by its file and line.
func TestRunRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.yaml")
	write(t, path, ids(1))
	f := follow(t, path)
	f.err = &catalog.EntryError{Index: 0, Err: errors.New("taken")}
	if err := f.Run(t.Context(), f.replace); err == nil || !strings.HasSuffix(err.Error(), "w.yaml: workers[0] (line 2): taken") {
		t.Errorf("Run = %v", err)
	}
}
