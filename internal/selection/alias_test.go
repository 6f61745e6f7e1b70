package selection_test

import (
	"context"
	"testing"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestAlias proves that requests which name a model by a further name of its engines are placed, booked
// and answered as by its own.
func TestAlias(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.Aliases = []string{"gpt-4"} }))
	alias := catalog.Scope{Model: "gpt-4", Tenant: servicetest.Scope.Tenant}
	prompt := servicetest.Prompt(1, 8)
	ask := func() *selection.SelectRequest {
		req := servicetest.Ask(prompt)
		req.Scope = alias
		return req
	}
	req := ask()
	req.ReservationID = new("a")
	sel, err := w.Select(context.Background(), req, true)
	if err != nil || sel.Scope != servicetest.Scope || sel.Rank.Worker != 1 {
		t.Errorf("select: %+v, %v", sel, err)
	}
	if x, err := w.Explain(context.Background(), ask()); err != nil || x.Scope != servicetest.Scope {
		t.Errorf("explain: %+v, %v", x, err)
	}
	if s, err := w.OverlapScores(&selection.ProjectRequest{Scope: alias, Prompt: ask().Prompt}); err != nil || len(s.Rows) != 1 {
		t.Errorf("overlap scores: %+v, %v", s, err)
	}
	loads, err := w.PotentialLoads(&selection.ProjectRequest{Scope: alias, Prompt: ask().Prompt})
	if err != nil || len(loads) != 1 || loads[0].Requests != 1 {
		t.Errorf("potential loads: %+v, %v", loads, err)
	}
	if r, err := w.Reserve(&selection.ReserveRequest{Scope: alias, ID: "b", Rank: catalog.Rank{Worker: 1}, Prompt: ask().Prompt}); err != nil || r.Scope != servicetest.Scope {
		t.Errorf("reserve: %+v, %v", r, err)
	}
	if placed, err := w.PlaceByLoad(&selection.LoadRequest{Scope: alias}); err != nil || placed.Scope != servicetest.Scope {
		t.Errorf("by load: %+v, %v", placed, err)
	}
}
