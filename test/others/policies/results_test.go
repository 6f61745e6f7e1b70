package policies

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"

	"github.com/select-service/select-service/demo/sim/stats"
)

// cell is a play of the tables. Without a rule and a load it is the search for the capacity.
type cell struct {
	Workload string  `json:"workload"`
	Requests int     `json:"requests"`
	Seed     uint64  `json:"seed"`
	Fleet    string  `json:"fleet"`
	Rule     string  `json:"rule,omitempty"`
	Load     float64 `json:"load,omitempty"`
	Target   float64 `json:"target,omitempty"` // times the median time to first token without targets; 0: requests have none
}

// figures are what is kept of a play. Times are in seconds.
type figures struct {
	Rate    float64 `json:"rate,omitempty"` // of a search: the capacity, by the workload's own rate
	Counted int     `json:"counted,omitempty"`
	TTFT    float64 `json:"ttft,omitempty"`
	P99     float64 `json:"p99,omitempty"`
	TTLT    float64 `json:"ttlt,omitempty"`
	Session float64 `json:"session,omitempty"`
	HitRate float64 `json:"hit_rate,omitempty"`
	Work    float64 `json:"work,omitempty"`
	// Of plays with targets: the target, the first tokens within it in a second, and how many requests were refused, and of
	// these could have been served.
	Within   float64 `json:"within,omitempty"`
	Good     float64 `json:"good,omitempty"`
	Refused  int     `json:"refused,omitempty"`
	Servable int     `json:"servable,omitempty"`
}

func figuresOf(o *Outcome) figures {
	return figures{
		Counted: len(o.TTFT), TTFT: stats.Mean(o.TTFT), P99: tail(o.TTFT), TTLT: stats.Mean(o.TTLT), Session: stats.Mean(o.Session),
		HitRate: o.HitRate, Work: o.Work,
	}
}

// resultsFile has the figures of plays, in memory and, with a name, in a file with one play a line. Several processes may add
// to one file.
type resultsFile struct {
	mu    sync.Mutex // guards the fields below
	file  *os.File   // nil: nothing is kept
	cells map[cell]figures
}

type resultLine struct {
	cell
	figures
}

// openResults reads a file of results, which it makes if there is none. "" is no file.
func openResults(name string) (*resultsFile, error) {
	r := &resultsFile{cells: make(map[cell]figures)}
	if name == "" {
		return r, nil
	}
	data, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read results: %w", err)
	}
	for in := json.NewDecoder(bytes.NewReader(data)); ; {
		var l resultLine
		if err := in.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("%s: result %d: %w", name, len(r.cells)+1, err)
		}
		r.cells[l.cell] = l.figures
	}
	if r.file, err = os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err != nil {
		return nil, fmt.Errorf("open results: %w", err)
	}
	return r, nil
}

func (r *resultsFile) get(c cell) (figures, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok := r.cells[c]
	return f, ok
}

func (r *resultsFile) has(c cell) bool {
	_, ok := r.get(c)
	return ok
}

func (r *resultsFile) put(c cell, f figures) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cells[c] = f
	if r.file == nil {
		return nil
	}
	line, err := json.Marshal(resultLine{c, f})
	if err != nil {
		return fmt.Errorf("result: %w", err)
	}
	if _, err := r.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("keep result: %w", err)
	}
	return nil
}

// mean returns the mean figures of a cell over its seeds.
func (r *resultsFile) mean(c cell, first uint64, seeds int) (m figures) {
	for c.Seed = first; c.Seed < first+uint64(seeds); c.Seed++ {
		f, _ := r.get(c)
		m.Rate += f.Rate / float64(seeds)
		m.Counted += f.Counted
		m.TTFT += f.TTFT / float64(seeds)
		m.P99 += f.P99 / float64(seeds)
		m.TTLT += f.TTLT / float64(seeds)
		m.Session += f.Session / float64(seeds)
		m.HitRate += f.HitRate / float64(seeds)
		m.Work += f.Work / float64(seeds)
	}
	return m
}

func (r *resultsFile) close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// TestResults proves that what a file has is not played again, and that a line that is none is an error.
func TestResults(t *testing.T) {
	name := filepath.Join(t.TempDir(), "results")
	a, b := cell{Workload: "chats", Seed: 11, Fleet: "equal engines", Rule: "dynamo", Load: 0.6}, cell{Workload: "chats", Seed: 12}
	r, err := openResults(name)
	if err != nil || r.has(a) {
		t.Fatal(r, err)
	}
	for c, f := range map[cell]figures{a: {Counted: 7, TTFT: 0.25, HitRate: 0.5}, b: {Rate: 3}} {
		if err := r.put(c, f); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	again, err := openResults(name)
	if err != nil || !reflect.DeepEqual(again.cells, r.cells) {
		t.Errorf("%v, %v, not %v", again, err, r.cells)
	}
	if err := errors.Join(again.close(), os.WriteFile(name, []byte("{}\nno\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := openResults(name); err == nil {
		t.Error("a line that is no result")
	}
}
