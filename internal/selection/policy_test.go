package selection_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// herd books 200 prompts of one size at once on 8 equal idle workers, and returns how
// many each has got.
func herd(t *testing.T, change ...func(*node.Config)) []int {
	t.Helper()
	w := servicetest.Start(t, append(change, servicetest.EventsOff)...)
	for id := range uint64(8) {
		w.Put(servicetest.Record(id, 1))
	}
	var mu sync.Mutex
	counts := make([]int, 8)
	var wg sync.WaitGroup
	for i := range uint32(200) {
		wg.Go(func() {
			sel, err := w.Select(context.Background(), servicetest.Ask(servicetest.Prompt(i, 6)), true)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			counts[sel.Rank.Worker]++
		})
	}
	wg.Wait()
	return counts
}

// TestHerd: a herd of equal requests spreads evenly over equal workers, whatever the
// policy is: each sees what was booked before it.
func TestHerd(t *testing.T) {
	for _, name := range []string{
		"", "dynamo-default-cost-fn", "dynamo-two-tier-cost-fn", "lmetric", "round-robin", "least-loaded",
	} {
		t.Run(name, func(t *testing.T) {
			var change []func(*node.Config)
			if name != "" {
				change = append(change, servicetest.Policy(t, name, ""))
			}
			counts := herd(t, change...)
			if slices.Min(counts) != 25 || slices.Max(counts) != 25 {
				t.Errorf("the workers got %v", counts)
			}
		})
	}
}

// TestRandomHerd: policies that draw spread a herd as their distribution says. One run
// in a thousand may be outside; three in a row are not by chance.
func TestRandomHerd(t *testing.T) {
	for name, draw := range map[string]func(counts []int, rnd *rand.Rand) int{
		"random": func(counts []int, rnd *rand.Rand) int { return rnd.IntN(len(counts)) },
		"power-of-two-choices": func(counts []int, rnd *rand.Rand) int {
			i, j := rnd.IntN(len(counts)), rnd.IntN(len(counts)-1)
			if j >= i {
				j++
			}
			if counts[j] < counts[i] || counts[j] == counts[i] && rnd.IntN(2) == 0 {
				return j
			}
			return i
		},
	} {
		t.Run(name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(1, 2))
			var usual []int
			for range 4_000 {
				counts := make([]int, 8)
				for range 200 {
					counts[draw(counts, rnd)]++
				}
				usual = append(usual, unevenness(counts))
			}
			slices.Sort(usual)
			bound := usual[len(usual)*999/1000]
			var seen [][]int
			for range 3 {
				counts := herd(t, servicetest.Policy(t, name, ""))
				if unevenness(counts) <= bound {
					return
				}
				seen = append(seen, counts)
			}
			t.Errorf("the workers got %v, of which the unevenness is at most %d", seen, bound)
		})
	}
}

// unevenness is the sum of the squares of what the workers have beyond their share.
func unevenness(counts []int) (sum int) {
	for _, n := range counts {
		sum += (n - 25) * (n - 25)
	}
	return sum
}

// TestPolicyOfModel: a model has the instance that the file maps it to; the others have
// the one of the role.
func TestPolicyOfModel(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Policies(t, `
aggregated: turns
models: {least: least, builtin: default}
instances: [{name: turns, type: round-robin}, {name: least, type: least-loaded}]
`))
	where := func(model string, n int) string {
		sc := catalog.Scope{Model: model, Tenant: servicetest.Scope.Tenant}
		for id := range uint64(3) {
			r := servicetest.Record(id+uint64(len(model))*10, 1)
			r.Scope = sc
			w.Put(r)
		}
		got := ""
		for i := range n {
			req := servicetest.Ask(servicetest.Prompt(uint32(i), 4))
			req.Scope, req.AllowedWorkers, req.HasAllowedWorkers = sc, nil, false
			sel, err := w.Select(context.Background(), req, true)
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				_ = w.Free(*sel.ReservationID) // leaves its worker the least loaded
			}
			got += fmt.Sprint(sel.Rank.Worker % 10)
		}
		return got
	}
	if got := where("other", 6); got != "012012" {
		t.Errorf("in turn: %s", got)
	}
	for _, model := range []string{"least", "builtin"} {
		got := where(model, 4)
		if rest := []byte(got[1:]); got[1] == got[2] || got[2] == got[3] || rest[0] == rest[2] {
			t.Errorf("%s: %s, although the first was freed", model, got)
		}
	}
}

// TestTwoTierTarget: two-tier does not look at affinity targets unless it is told to.
func TestTwoTierTarget(t *testing.T) {
	for parameters, want := range map[string]uint64{"": 1, "respect_soft_affinity: true": 0} {
		w := servicetest.Start(t, servicetest.EventsOff, servicetest.Policy(t, "dynamo-two-tier-cost-fn", parameters))
		w.Put(servicetest.Record(0, 1))
		w.Put(servicetest.Record(1, 1))
		book := &selection.ReserveRequest{Scope: servicetest.Scope, ID: "load", Rank: catalog.Rank{Worker: 0}, Prompt: servicetest.Ask(servicetest.Prompt(1, 1)).Prompt}
		if _, err := w.Reserve(book); err != nil {
			t.Fatal(err)
		}
		req := servicetest.Ask(servicetest.Prompt(2, 4))
		req.Target = &selection.AffinityTarget{Worker: 0}
		sel, err := w.Select(context.Background(), req, false)
		if err != nil || sel.Rank.Worker != want {
			t.Errorf("%q: worker %d, %v, want %d", parameters, sel.Rank.Worker, err, want)
		}
	}
}
