package fairness_test

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"github.com/select-service/select-service/internal/selection/fairness"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestEvenness: Jain's index of what was served over the fair share, by its definition: (x1+…+xn)² / (n·(x1²+…+xn²)).
func TestEvenness(t *testing.T) {
	weighted := rules
	weighted.Weights = map[string]float64{"gold": 3}
	class := fairness.NewService().NewClass(weighted)
	index := func() fairness.Evenness { return class.Evenness(0) }
	if e := index(); e.OfTenants != 1 || e.OfPrograms != 1 || e.Tenants != 0 {
		t.Errorf("of nobody: %+v", e)
	}
	serve := func(tenant, program string, seconds float64) {
		class.Once(class.Account(tenant, program, 0), catalog.Rank{}, fairness.Work{Prefill: seconds}, 0)
	}
	serve("gold", "a", 15)
	serve("gold", "b", 15)
	serve("b", "c", 10) // a third of gold's, as its weight says; each of gold's programs has half of its tenant's share
	if e := index(); e.OfTenants != 1 || e.OfPrograms != 1 || e.Tenants != 2 || e.Programs != 3 {
		t.Errorf("of the shares that they should have: %+v", e)
	}
	serve("b", "c", 20)
	// Tenants: 10 and 30; programs: 10, 10 and 30.
	if e := index(); math.Abs(e.OfTenants-1600.0/2000) > 1e-9 || math.Abs(e.OfPrograms-2500.0/3300) > 1e-9 {
		t.Errorf("with three times its share for one: %+v", e)
	}
	if e := class.Evenness(61); e.Tenants != 0 || e.Programs != 0 {
		t.Errorf("a half-life later: %+v", e)
	}
}

// TestUses: tenants, and programs of tenants, with what they were served.
func TestUses(t *testing.T) {
	class := fairness.NewService().NewClass(rules)
	a := class.Account("a", "p", 0)
	class.Once(a, catalog.Rank{}, fairness.Work{Prefill: 3}, 0)
	class.Once(class.Account("b", "", 0), catalog.Rank{}, fairness.Work{Prefill: 1}, 0)
	class.Note(a, fairness.Missed)
	byTenant := func(x, y fairness.Use) int { return cmp.Compare(x.Tenant, y.Tenant) }
	for _, programs := range []bool{false, true} {
		all := slices.SortedFunc(slices.Values(class.Uses(programs, 0)), byTenant)
		if len(all) != 2 || all[0].Share != 0.75 || all[0].Outcomes[fairness.Missed] != 1 || all[1].Seconds != 1 || (all[0].Program == "p") != programs {
			t.Errorf("programs %t: %+v", programs, all)
		}
	}
}
