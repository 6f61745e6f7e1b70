package selection_test

import (
	"fmt"
	"maps"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// fairQueue is a change of the configuration: a rank with more than no prefill makes requests wait, in a class that is fair.
func fairQueue(t testing.TB, by string) func(*node.Config) { return fairBeyond(t, by, 0) }

// fairBeyond is fairQueue for ranks with more than so many tokens of prefill.
func fairBeyond(t testing.TB, by string, tokens int) func(*node.Config) {
	file, err := admission.ParsePolicy([]byte(`
default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: c, policy_family: f, cache_bucket: all, quantum: 1, prefill_busy_threshold: ` + fmt.Sprint(tokens) + `, fairness: {by: ` + by + `}}
`))
	if err != nil {
		t.Fatal(err)
	}
	return func(c *node.Config) { c.Scopes.Admission = admission.Config{File: file} }
}

// TestFairTenants: beside a tenant with five agents, one with two requests at a time gets half of the engine's time; with
// fairness off, its turns by arrival. Engine time is what was observed: all prompts are alike, but those of A may take three
// times as long, and then B gets three turns for one of A.
func TestFairTenants(t *testing.T) {
	for _, tt := range []struct {
		by         string
		takesA     time.Duration
		least, max int // turns of B, of 120
	}{
		{"none", 3 * time.Second, 32, 37}, // two of seven
		{"tenant", 3 * time.Second, 58, 62},
		{"program", 3 * time.Second, 58, 62},
		{"program", 9 * time.Second, 82, 95}, // 90 would take as long as A's 30
	} {
		synctest.Test(t, func(t *testing.T) {
			w := servicetest.Start(t, servicetest.EventsOff, fairQueue(t, tt.by))
			w.Put(servicetest.Record(1, 1))
			n := 0
			ask := func(tenant, agent string) *call {
				n++
				return startCall(w, fmt.Sprint(tenant, n), servicetest.Prompt(uint32(n), 8), func(r *selection.SelectRequest) {
					r.FairTenant, r.FairnessID = tenant, agent
				})
			}
			type session struct {
				tenant, agent string
				call          *call
			}
			var all []*session
			for i := range 5 {
				all = append(all, &session{"A", fmt.Sprint(i), ask("A", fmt.Sprint(i))})
			}
			// Two requests of B: one alone could not wait while it is served.
			all = append(all, &session{"B", "0", ask("B", "0")}, &session{"B", "0", ask("B", "0")})
			turns := map[string]int{}
			for range 120 {
				for _, s := range all {
					if s.call.waits() {
						continue
					}
					id := *s.call.served(t).ReservationID
					turns[s.tenant]++
					took := 3 * time.Second
					if s.tenant == "A" {
						took = tt.takesA
					}
					time.Sleep(took)
					s.call = ask(s.tenant, s.agent) // waits
					if err := w.PrefillComplete(id); err != nil {
						t.Fatal(err)
					}
					if err := w.Free(id); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					break
				}
			}
			if b := turns["B"]; b < tt.least || b > tt.max {
				t.Errorf("by %s, A takes %v: %v turns", tt.by, tt.takesA, turns)
			}
		})
	}
}

// TestFairEnds: whoever pays for a request, its reservation ends as others do: freed, with its worker, without a report of its
// prefill, and when its id exists.
func TestFairEnds(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, fairQueue(t, "program"))
	w.Put(servicetest.Record(1, 1))
	w.Book("a", nil)
	req := servicetest.Ask(nil)
	req.ReservationID = new("a")
	if _, err := w.Select(t.Context(), req, true); err == nil {
		t.Error("an id was booked twice")
	}
	if err := w.Free("a"); err != nil {
		t.Error(err)
	}
	if _, err := w.Select(t.Context(), servicetest.Ask(nil), true); err != nil { // without an id
		t.Error(err)
	}
	w.Book("b", nil)
	w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.Endpoint = new("http://elsewhere:1") }))
	if _, err := w.Select(t.Context(), servicetest.Ask(nil), false); err != nil {
		t.Error(err)
	}
	w.Remove(1)
}

// TestFairPair: without predictions a pair is charged its uncached tokens, on the rank that computes them.
func TestFairPair(t *testing.T) {
	w := servicetest.Start(t, fairBeyond(t, "tenant", 1<<20))
	w.Put(servicetest.Record(1, 1, role(catalog.RolePrefill)))
	w.Put(servicetest.Record(3, 1, role(catalog.RoleDecode)))
	prompt := servicetest.Prompt(1, 24_000)
	for _, id := range []uint64{1, 3} {
		e := w.Engine(id, 0)
		e.Publish(0, e.Stored(prompt[:12_000], servicetest.BlockSize, nil))
	}
	w.Settle()
	for tenant, pair := range map[string]*selection.PairRequest{
		"cached": askPair("", prompt), "uncached": askPair("", servicetest.Prompt(1<<20, 24_000)),
		"alone": askPair("", prompt, func(r *selection.PairRequest) { r.Prefill.HasAllowedWorkers = true }),
	} {
		pair.FairTenant = tenant
		if _, err := w.SelectPair(t.Context(), pair); err != nil {
			t.Fatal(err)
		}
	}
	seconds := map[string]float64{}
	for _, c := range w.Fairness(&selection.FairnessQuery{Limit: 10}).Consumers {
		seconds[c.Tenant] = math.Round(c.Seconds)
	}
	if want := map[string]float64{"cached": 1, "uncached": 2, "alone": 1}; !maps.Equal(seconds, want) {
		t.Errorf("charged %v seconds, want %v", seconds, want)
	}
}
