package selection_test

import (
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector/ttft"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestEncodersLeaveCosts: what a rank costs is the same beside workers that only encode, which prefill nothing.
func TestEncodersLeaveCosts(t *testing.T) {
	var alone []selection.ExplainedRank
	for _, encoders := range []uint64{0, 6} {
		synctest.Test(t, func(t *testing.T) {
			w := predicting(t, 2, func(c *node.Config) { c.Selection.Random = servicetest.Random(1, 1) })
			for id := range encoders {
				w.Put(servicetest.Record(10+id, 1, role(catalog.RoleEncode)))
			}
			for i := range 60 {
				run(w, t, fmt.Sprint("r", i), 100+i*17%4000, ttft.Parameters{Base: 0.03, PerToken: 1.0 / 4000, PerContext: 1e-8})
			}
			x, err := w.Explain(t.Context(), servicetest.Ask(servicetest.Prompt(1<<30, 2000)))
			switch {
			case err != nil:
				t.Fatal(err)
			case encoders == 0:
				if alone = x.Candidates; len(alone) != 2 || alone[0].Predicted.Delay == 0 {
					t.Fatalf("alone: %+v", alone)
				}
			case !reflect.DeepEqual(x.Candidates, alone):
				t.Errorf("beside encoders\n%+v, alone\n%+v", x.Candidates, alone)
			}
		})
	}
}

// TestEncodersAreNeverChosen: a worker that only encodes takes no prompt on any path, though it has all of it in its cache and no
// load, and however it is asked for. It is listed with its load, is told as excluded, and drains.
func TestEncodersAreNeverChosen(t *testing.T) {
	w := servicetest.Start(t)
	const encoder, other, prefiller = 1, 2, 3
	prompt := servicetest.Prompt(1, 16)
	w.Put(servicetest.Record(encoder, 1, role(catalog.RoleEncode)))
	e := w.Engine(encoder, 0)
	e.Publish(0, e.Stored(prompt, servicetest.BlockSize, nil))
	w.Settle()
	only := func(c *selection.Constraints) { c.HasAllowedWorkers, c.AllowedWorkers = true, []uint64{encoder} }
	pinned := func(c *selection.Constraints) { c.Pinned = &catalog.Rank{Worker: encoder} }
	refused := func(what string, err error) {
		t.Helper()
		if contract.KindOf(err) != contract.Unavailable {
			t.Errorf("%s: %v", what, err)
		}
	}
	choose := func(change ...func(*selection.SelectRequest)) (worker uint64, err error) {
		t.Helper()
		ask := servicetest.Ask(prompt)
		for _, f := range change {
			f(ask)
		}
		sel, err := w.Select(t.Context(), ask, true)
		if err == nil && sel.ReservationID != nil {
			if err := w.Free(*sel.ReservationID); err != nil {
				t.Error(err)
			}
		}
		return sel.Rank.Worker, err
	}
	load := func(only *catalog.Rank) (uint64, error) {
		sel, err := w.PlaceByLoad(&selection.LoadRequest{Scope: servicetest.Scope, Only: only})
		return sel.Rank.Worker, err
	}
	_, err := choose()
	refused("alone", err)
	_, err = load(nil)
	refused("alone, by load", err)
	_, err = w.SelectPair(t.Context(), askPair("", prompt))
	refused("a pair, alone", err)

	w.Put(servicetest.Record(other, 1))
	if _, err := w.Reserve(&selection.ReserveRequest{
		Scope: servicetest.Scope, ID: "load", Rank: catalog.Rank{Worker: other}, Prompt: servicetest.Ask(servicetest.Prompt(9, 400)).Prompt,
	}); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*selection.SelectRequest){
		"any":     func(*selection.SelectRequest) {},
		"by load": func(r *selection.SelectRequest) { r.ByLoad = true },
		"target":  func(r *selection.SelectRequest) { r.Target = &selection.AffinityTarget{Worker: encoder} },
		"session": func(r *selection.SelectRequest) { r.Session = "s" },
		"further": func(r *selection.SelectRequest) { r.Fallbacks = 3 },
	} {
		if worker, err := choose(change); err != nil || worker != other {
			t.Errorf("%s: worker %d, %v", what, worker, err)
		}
	}
	_, err = choose(func(r *selection.SelectRequest) { only(&r.Constraints) })
	refused("allowed alone", err)
	_, err = choose(func(r *selection.SelectRequest) { pinned(&r.Constraints) })
	refused("pinned", err)
	if worker, err := load(nil); err != nil || worker != other {
		t.Errorf("by load: worker %d, %v", worker, err)
	}
	_, err = load(&catalog.Rank{Worker: encoder})
	refused("by load, there alone", err)

	w.Put(servicetest.Record(prefiller, 1, role(catalog.RolePrefill)))
	pair, err := w.SelectPair(t.Context(), askPair("p", prompt))
	if err != nil || pair.Prefill == nil || pair.Prefill.Rank.Worker != prefiller || pair.Decode.Rank.Worker != other {
		t.Errorf("pair: %+v, %v", pair, err)
	}
	if err := w.Free("p"); err != nil {
		t.Error(err)
	}
	pair, err = w.SelectPair(t.Context(), askPair("p", prompt, func(r *selection.PairRequest) { only(&r.Prefill) }))
	if err != nil || pair.Prefill != nil {
		t.Errorf("prefill by the one that encodes: %+v, %v", pair, err)
	}
	if err := w.Free("p"); err != nil {
		t.Error(err)
	}
	_, err = w.SelectPair(t.Context(), askPair("p", prompt, func(r *selection.PairRequest) { only(&r.Constraints) }))
	refused("decode by the one that encodes", err)

	ask := servicetest.Ask(prompt)
	ask.Explain = true
	sel, err := w.Select(t.Context(), ask, false)
	if err != nil || len(sel.Explanation.Excluded) != 1 || sel.Explanation.Excluded[0] != (selection.ExcludedRank{Rank: catalog.Rank{Worker: encoder}, Why: selection.NotOfRole}) {
		t.Errorf("explained: %+v, %v", sel.Explanation, err)
	}
	w.WantLoad("1/0: 0 0 0, 2/0: 400 100 1, 3/0: 0 0 0")
	if worker, err := w.Catalog().Drain(catalog.ScopeFilter{}, encoder, catalog.Drain{}); err != nil || worker.Lifecycle != catalog.Draining {
		t.Errorf("drained: %+v, %v", worker, err)
	}
}
