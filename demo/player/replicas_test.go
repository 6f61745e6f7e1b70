package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/internal/simulation/workload"
)

// TestReplicas proves that replicas take turns, that one which does not answer
// is passed over, with what it has booked, and that it returns into turn once it
// answers and knows the engines.
func TestReplicas(t *testing.T) {
	down := filepath.Join(t.TempDir(), "down")
	svc := newFakeState(t)
	svc.again = true
	f := newReplicas([]string{svc.serve(""), svc.serve(down)}, selection{model: "m", tenant: "t", meanOutput: 1})
	var engines []engineClient
	var infos []simapi.Info
	for _, url := range startEngines(t, svc, 2, 1024) {
		e := engineClient{url}
		info, err := e.reset(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		engines, infos = append(engines, e), append(infos, info)
	}
	if err := f.join(t.Context(), engines, infos); err != nil {
		t.Fatal(err)
	}
	defer f.leave(t.Context())
	next := 0
	place := func() (*workload.Request, placement) {
		next++
		r := &workload.Request{ID: next, Prompt: []uint32{1, 2, 3}}
		at, err := f.place(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return r, at
	}
	turns := func() [2]bool {
		var seen [2]bool
		for range 4 {
			_, at := place()
			seen[at.replica] = true
		}
		return seen
	}
	if got := turns(); got != [2]bool{true, true} {
		t.Errorf("in turn: %v", got)
	}
	r, at := place()
	if at.replica == 0 {
		r, at = place()
	}
	if err := os.WriteFile(down, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := turns(); got != [2]bool{true, false} {
		t.Errorf("with one down: %v", got)
	}
	for _, event := range []string{simapi.EventFirstToken, simapi.EventDone} {
		if err := f.report(t.Context(), r, at, simapi.Step{Event: event}); err != nil {
			t.Error(err)
		}
	}
	if steps := svc.reservations[f.each[0].reservationID(r)]; !slices.Equal(steps, []string{"booked", "prefill_complete", "freed"}) {
		t.Errorf("the reservation of the replica that is down: %v", steps)
	}
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := f.checkEmpty(soon); err == nil {
		t.Error("a replica that is down passes as free of reservations")
	}
	if err := os.Remove(down); err != nil {
		t.Fatal(err)
	}
	if err := f.awaitUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := turns(); got != [2]bool{true, true} {
		t.Errorf("after its return: %v", got)
	}
	for i := range next {
		_ = f.each[0].free(t.Context(), &workload.Request{ID: i + 1})
	}
	if err := f.checkEmpty(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDisturbanceFails: a disturbance that cannot be made fails the play.
func TestDisturbanceFails(t *testing.T) {
	svc, target := newFakeService(t)
	urls := startEngines(t, svc, 2, 16384)
	_, out, err := playJSON(t, "--target", target, "--engines", strings.Join(urls, ","), "--policies", selectService,
		"--requests", "20", "--speedup", "200", "--disturb", "echo nonsense; exit 3")
	if err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestVerdict proves what a disturbed play may lose, from both sides of each bound.
func TestVerdict(t *testing.T) {
	type row = [2]placements // of two replicas
	known := func(hit, known int) placements {
		return placements{prompt: 100, cached: hit, known: known, ttft: []float64{1}}
	}
	tests := map[string]struct {
		before, after row
		want          string // part of the error; "": none
		late          bool
	}{
		"nothing lost":         {row{known(50, 50), known(50, 50)}, row{known(50, 50), known(50, 50)}, "", false},
		"a little":             {row{known(50, 50), known(50, 50)}, row{known(46, 46), known(46, 42)}, "", false},
		"hits":                 {row{known(50, 50), known(50, 50)}, row{known(44, 44), known(44, 44)}, "hit rate 44.0 %", false},
		"knowledge":            {row{known(50, 50), known(50, 50)}, row{known(50, 50), known(50, 44)}, "replica 2 knew of 88.0 %", false},
		"one never chose":      {row{known(50, 50), known(50, 50)}, row{known(50, 50), {}}, "1 of 2 replicas chose", false},
		"no replica knew much": {row{known(50, 20), known(50, 20)}, row{known(50, 20), known(50, 19)}, "", false},
		"late":                 {row{known(50, 50), known(50, 50)}, row{known(44, 44), known(44, 30)}, "", true},
		"late, one never":      {row{known(50, 50), known(50, 50)}, row{known(50, 50), {}}, "1 of 2 replicas chose", true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := &phases{}
			for phase, r := range map[int]row{0: tt.before, 2: tt.after} {
				for i, o := range r {
					if len(o.ttft) > 0 {
						p.record(phase, i, o)
					}
				}
			}
			err := p.verdict(p.results(2), 2, tt.late)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("verdict %v, want %q", err, tt.want)
			}
		})
	}
}
