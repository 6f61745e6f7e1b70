package filewatch_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/transport/filewatch"
)

// TestWatcher: a content is used once two reads agree, or at once if asked for; a
// faulty one leaves the last in use and is one line in the log.
func TestWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "token")
		write := func(text string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("one")
		var mu sync.Mutex // guards used and log
		used, log := "", &bytes.Buffer{}
		w, err := filewatch.Load("token", []string{path}, func(contents [][]byte) error {
			if bytes.HasPrefix(contents[0], []byte("bad")) {
				return errors.New("bad content")
			}
			mu.Lock()
			defer mu.Unlock()
			used = string(contents[0])
			return nil
		})
		if err != nil || used != "one" {
			t.Fatalf("%q, %v", used, err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- w.Run(ctx, zerolog.New(writer(func(line []byte) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				return log.Write(line)
			})))
		}()
		time.Sleep(time.Second / 2) // between two reads
		steps := []struct {
			do    func()
			after time.Duration
			used  string
			lines int
		}{
			{func() {}, 3 * time.Second, "one", 0},
			{func() { write("two") }, time.Second, "one", 0},
			{func() {}, time.Second, "two", 1},
			{func() { write("half") }, time.Second, "two", 1},
			{func() { write("three") }, time.Second, "two", 1},
			{func() {}, time.Second, "three", 2},
			{func() { write("bad") }, 10 * time.Second, "three", 3},
			{func() { write("bad too"); w.Reload() }, 0, "three", 4},
			{func() { _ = os.Remove(path) }, 10 * time.Second, "three", 5},
			{func() { write("four"); w.Reload(); w.Reload() }, 0, "four", 6},
			{func() { w.Reload() }, 0, "four", 6},
		}
		for i, s := range steps {
			s.do()
			time.Sleep(s.after)
			synctest.Wait()
			mu.Lock()
			if n := strings.Count(log.String(), "\n"); used != s.used || n != s.lines {
				t.Errorf("step %d: %q is used, %d lines are logged, want %q and %d:\n%s", i, used, n, s.used, s.lines, log)
			}
			mu.Unlock()
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// TestNone: a watcher of nothing ends at once.
func TestNone(t *testing.T) {
	var w *filewatch.Watcher
	w.Reload()
	if err := w.Run(t.Context(), zerolog.Nop()); err != nil {
		t.Error(err)
	}
}

// TestTooLong: what cannot be a certificate or a token is not read into memory.
func TestTooLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(path, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := filewatch.Load("token", []string{path}, func([][]byte) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Error(err)
	}
}
