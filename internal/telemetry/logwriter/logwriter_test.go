package logwriter_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/telemetry/logwriter"
)

// TestWriter: every line is written once, whole, and each writer's in order, before
// Close returns.
func TestWriter(t *testing.T) {
	const writers, lines = 4, 1000
	var out bytes.Buffer
	w := logwriter.New(&out)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for j := range lines {
				if n, err := fmt.Fprintf(w, "%d %d\n", i, j); err != nil || n == 0 {
					t.Errorf("%d, %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	w.Close()
	next := make([]int, writers)
	for line := range strings.Lines(out.String()) {
		var i, j int
		if _, err := fmt.Sscanf(line, "%d %d\n", &i, &j); err != nil || next[i] != j {
			t.Fatalf("line %q, want %d of that writer: %v", line, next[i], err)
		}
		next[i]++
	}
	for i, n := range next {
		if n != lines {
			t.Errorf("%d lines of writer %d, want %d", n, i, lines)
		}
	}
	if n := w.Dropped(); n != 0 {
		t.Errorf("%d dropped", n)
	}
}

// TestNobodyReads: with an output that blocks, Write returns, the queue is bounded,
// what is dropped is counted, and Close ends; a reader that comes back gets the lines
// that waited.
func TestNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, out := io.Pipe()
		w := logwriter.New(out)
		line := bytes.Repeat([]byte("x"), 1023)
		line = append(line, '\n')
		const lines = 4 * logwriter.QueueBytes / 1024
		for range lines {
			_, _ = w.Write(line)
		}
		dropped := w.Dropped()
		if least := uint64(lines - 2*logwriter.QueueBytes/len(line)); dropped < least || dropped == lines {
			t.Errorf("%d of %d lines were dropped, want at least %d", dropped, lines, least)
		}
		begin := time.Now()
		w.Close()
		if took := time.Since(begin); took > time.Second {
			t.Errorf("Close took %v", took)
		}
		_, _ = w.Write(line)
		if w.Dropped() != dropped+1 {
			t.Error("a line after Close is not counted")
		}
		got := make(chan int)
		go func() {
			text, _ := io.ReadAll(r)
			got <- len(text)
		}()
		synctest.Wait()
		_ = out.Close()
		if n := <-got; n != (lines-int(dropped))*len(line) {
			t.Errorf("%d bytes were read, want %d", n, (lines-int(dropped))*len(line))
		}
	})
}

// TestNoCredentials: a URL in a line has no credentials, whoever has made the line.
func TestNoCredentials(t *testing.T) {
	var out bytes.Buffer
	w := logwriter.New(&out)
	fmt.Fprintln(w, `{"level":"warn","error":"dial \"nats://user:SECRET@h:4222\": refused","message":"x"}`)
	fmt.Fprintln(w, `{"level":"info","who":"a@b","endpoint":"http://w:8000","message":"y"}`)
	w.Close()
	const want = `{"level":"warn","error":"dial \"nats://xxxxx@h:4222\": refused","message":"x"}` + "\n" +
		`{"level":"info","who":"a@b","endpoint":"http://w:8000","message":"y"}` + "\n"
	if got := out.String(); got != want {
		t.Errorf("%s", got)
	}
}
