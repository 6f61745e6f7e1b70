package node_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestLearnedSurvivesRestart: the coefficients are there again; a service whose policy
// does not predict ignores them.
func TestLearnedSurvivesRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := t.TempDir()
		learned := func(w *stateful) *selection.LearnedPrefills {
			all := w.Policies(catalog.ScopeFilter{})
			if len(all) != 1 {
				t.Fatalf("%d scopes", len(all))
			}
			return all[0].Learned
		}
		w := startAt(t, path, servicetest.EventsOff, servicetest.Policy(t, "predicted-ttft", ""))
		w.Put(servicetest.Record(1, 1))
		theta := ttft.Parameters{Base: 0.05, PerToken: 1e-3, PerContext: 1e-7}
		for i := range 250 {
			id, size := fmt.Sprint("r", i), 100+i%7*300
			w.Book(id, servicetest.Prompt(uint32(i)<<12, size))
			w.Serve(id, time.Duration(theta.Prefill(float64(size), float64(size))*float64(time.Second)))
		}
		time.Sleep(2 * time.Second)
		before := learned(w)
		w.save()

		w = startAt(t, path, servicetest.EventsOff, servicetest.Policy(t, "predicted-ttft", ""))
		after := learned(w)
		if after.Parameters != before.Parameters || after.Samples != 250 || !after.Mature {
			t.Errorf("after the restart %+v, before %+v", after, before)
		}
		if got, want := after.Prefill(1500, 1500), theta.Prefill(1500, 1500); math.Abs(got-want) > 0.05*want {
			t.Errorf("predicts %g s, not %g s", got, want)
		}
		w.save()

		w = startAt(t, path, servicetest.EventsOff)
		if got := learned(w); got != nil {
			t.Errorf("the built-in cost has learned %+v", got)
		}
	})
}

// TestLearnedLengths: the length of an answer is learned from what its caller knows of it, or else from the blocks of its output. Of one
// of which neither is known nothing is learned where no caller reports blocks.
func TestLearnedLengths(t *testing.T) {
	const size = servicetest.BlockSize
	for name, tt := range map[string]struct {
		blocks int
		of     selection.Answer
		want   float64
	}{
		"no report":                    {0, selection.Answer{}, 0},
		"tokens":                       {2, selection.Answer{Tokens: 40}, 40},
		"tokens, no blocks":            {0, selection.Answer{Tokens: 5}, 5},
		"blocks":                       {2, selection.Answer{}, 2.5 * size},
		"blocks and pieces":            {2, selection.Answer{Tokens: 9, Pieces: true}, 2.5 * size},
		"more pieces than blocks have": {2, selection.Answer{Tokens: 300, Pieces: true}, 300},
		"pieces alone":                 {0, selection.Answer{Tokens: 7, Pieces: true}, 7},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := servicetest.Start(t, servicetest.EventsOff, servicetest.Policy(t, "predicted-ttft", ""))
			w.Put(servicetest.Record(1, 1))
			w.Book("r", servicetest.Prompt(0, 100))
			err := w.PrefillComplete("r")
			for range tt.blocks {
				err = errors.Join(err, w.OutputBlock("r", nil))
			}
			if err = errors.Join(err, w.FreeAfter("r", tt.of)); err != nil {
				t.Fatal(err)
			}
			if got := w.Policies(catalog.ScopeFilter{})[0].Learned.Output; got != tt.want {
				t.Errorf("%s: %g tokens, not %g", name, got, tt.want)
			}
		})
	}
}

// TestServedScopes proves what decides where a port for requests to engines serves some scopes: predicted-ttft in
// these, Dynamo's cost in others, and what PUT /policies names goes before both until it is taken back. A section
// that only has shadows names nothing.
func TestServedScopes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, func(c *node.Config) {
			c.Scopes.Policies, _ = (*policies.Section)(nil).Resolve(policies.Settings{
				Weights: selector.DefaultWeights(), Served: policies.NewServed(func(sc catalog.Scope) bool { return sc.Tenant == catalog.DefaultName }),
			})
		})
		for id, tenant := range map[uint64]string{1: catalog.DefaultName, 2: "blue"} {
			w.Put(servicetest.Record(id, 1, func(r *catalog.Record) { r.Scope = catalog.Scope{Model: "m", Tenant: tenant} }))
		}
		want := func(served, other string) {
			t.Helper()
			all := w.Policies(catalog.ScopeFilter{})
			if len(all) != 2 {
				t.Fatalf("%d scopes", len(all))
			}
			for i, want := range []string{other, served} { // "blue" is first
				if got := all[i].Name + " " + string(all[i].DecidedBy); got != want {
					t.Errorf("tenant %s: %s, want %s", all[i].Scope.Tenant, got, want)
				}
			}
		}
		want("predicted-ttft front", "default contract")
		for _, step := range []struct{ section, served, other string }{
			{`{"shadow":["default"]}`, "predicted-ttft front", "default contract"},
			{`{"aggregated":"default"}`, "default section", "default section"},
			{`{"models":{"m":"p"},"instances":[{"name":"p","type":"random"}]}`, "p section", "p section"},
			{"", "predicted-ttft front", "default contract"},
		} {
			if err := w.ApplyPolicies([]byte(step.section)); err != nil {
				t.Fatal(err)
			}
			want(step.served, step.other)
		}
	})
}

// TestServedByFurtherName proves that a port that names a model by a further name of its engines serves that model's
// scope, as long as an engine has that name.
func TestServedByFurtherName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, func(c *node.Config) {
			c.Scopes.Policies, _ = (*policies.Section)(nil).Resolve(policies.Settings{
				Weights: selector.DefaultWeights(),
				Served: policies.NewServed(func(sc catalog.Scope) bool {
					return sc == catalog.Scope{Model: "gpt-4", Tenant: servicetest.Scope.Tenant}
				}),
			})
		})
		put := func(id uint64, further ...string) {
			w.Put(servicetest.Record(id, 1, func(r *catalog.Record) { r.Aliases = further }))
		}
		want := func(text string) {
			t.Helper()
			if all := w.Policies(catalog.ScopeFilter{}); len(all) != 1 || all[0].Name+" "+string(all[0].DecidedBy) != text {
				t.Errorf("%+v, want %s", all, text)
			}
		}
		put(1)
		want("default contract")
		put(1, "gpt-4")
		want("predicted-ttft front")
		put(2, "other", "gpt-4")
		put(1)
		want("predicted-ttft front")
		if err := w.ApplyPolicies([]byte(`{"aggregated":"default"}`)); err != nil {
			t.Fatal(err)
		}
		want("default section")
		if err := w.ApplyPolicies(nil); err != nil {
			t.Fatal(err)
		}
		want("predicted-ttft front")
		put(2, "other")
		want("default contract")
	})
}
