package selection_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestAffinityTarget: an eligible target leaves no other rank, another one has no effect,
// and the session is left alone.
func TestAffinityTarget(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, sessions)
	for id := range uint64(3) { // worker 3 carries least, and of each worker rank 1
		w.Put(servicetest.Record(id+1, 2))
	}
	for i, worker := range []uint64{1, 1, 2, 2, 3} {
		rank := catalog.Rank{Worker: worker, DP: uint32(i % 2)}
		req := selection.ReserveRequest{Scope: servicetest.Scope, ID: fmt.Sprint("load", i), Rank: rank, Prompt: servicetest.Ask(servicetest.Prompt(uint32(100*i), 80-10*i)).Prompt}
		if _, err := w.Reserve(&req); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := reserve(w, "bind", servicetest.Prompt(900, 8), of("s"), onWorkers(2)); err != nil {
		t.Fatal(err)
	}
	target := func(worker uint64, dp ...uint32) func(*selection.SelectRequest) {
		return func(r *selection.SelectRequest) {
			r.Target = &selection.AffinityTarget{Worker: worker}
			for _, n := range dp {
				r.Target.DP = &n
			}
		}
	}
	pinned := func(worker uint64, dp uint32) func(*selection.SelectRequest) {
		return func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: worker, DP: dp} }
	}
	type requests []func(*selection.SelectRequest)
	for name, tc := range map[string]struct {
		change requests
		want   string
	}{
		"none":                   {nil, "3 (dp_rank 1)"},
		"a rank":                 {requests{target(1, 0)}, "1 (dp_rank 0)"},
		"a worker":               {requests{target(1)}, "1 (dp_rank 1)"},
		"no such worker":         {requests{target(9)}, "3 (dp_rank 1)"},
		"no such rank":           {requests{target(1, 7)}, "3 (dp_rank 1)"},
		"not allowed":            {requests{target(1), onWorkers(2)}, "2 "},
		"a session":              {requests{target(1, 0), of("s")}, "1 (dp_rank 0)"},
		"a session, no worker":   {requests{target(9), of("s")}, "3 (dp_rank 1)"},
		"a long session":         {requests{target(1, 0), of(strings.Repeat("s", 300))}, "1 (dp_rank 0)"},
		"pinned to it":           {requests{target(1), pinned(1, 0)}, "1 (dp_rank 0)"},
		"pinned elsewhere":       {requests{target(1), pinned(2, 0)}, "pinned worker 2 is not in allowed worker set"},
		"pinned to another rank": {requests{target(1, 1), pinned(1, 0)}, "no endpoints available to route work"},
		"pinned, no such rank":   {requests{target(1, 7), pinned(2, 0)}, "2 (dp_rank 0)"},
		"pinned, not allowed":    {requests{target(1), pinned(2, 0), onWorkers(2, 3)}, "2 (dp_rank 0)"},
	} {
		req := servicetest.Ask(servicetest.Prompt(500, 8))
		for _, f := range tc.change {
			f(req)
		}
		got := ""
		if sel, err := w.Select(context.Background(), req, false); err != nil {
			got = err.Error()
		} else {
			got = fmt.Sprintf("%d (dp_rank %d)", sel.Rank.Worker, sel.Rank.DP)
		}
		if !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
	if _, err := reserve(w, "elsewhere", servicetest.Prompt(900, 8), of("s"), target(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := reserve(w, "new", servicetest.Prompt(900, 8), of("new"), target(1, 0)); err != nil {
		t.Fatal(err)
	}
	if got := where(w, of("s")); got != 2 {
		t.Errorf("the session has moved to %d", got)
	}
	if n := w.Remembered().Sessions; n != 1 {
		t.Errorf("%d sessions are bound", n)
	}
}
