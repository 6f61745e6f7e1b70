package fairness_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/select-service/select-service/internal/selection/fairness"
	"github.com/select-service/select-service/pkg/catalog"
)

var rules = fairness.Rules{By: fairness.Program, HalfLife: 60, HeadWait: 0.2}

func want(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-6 {
		t.Errorf("%s: %v s, want %v", what, got, want)
	}
}

// TestObserved: the predictions are replaced by the time since the prefill before, and by the share of the time in which the
// rank only decodes. What all requests are charged is the time in which the rank was busy.
func TestObserved(t *testing.T) {
	long := rules
	long.HalfLife = 1e12 // nothing is forgotten
	class := fairness.NewService().NewClass(long)
	a, b := class.Account("a", "p", 0), class.Account("b", "q", 0)
	rank := catalog.Rank{Worker: 1}
	x, y := class.Begin(a, rank, 100, 0), class.Begin(b, rank, 0.001, 0)
	want(t, "predicted", class.Served(a, 0), 100)
	x.PrefillEnded(3) // 3 s of a
	x.PrefillEnded(4) // has no effect
	y.PrefillEnded(5) // 2 s of b, while which a decodes on b's account
	want(t, "prefill of a", class.Served(a, 5), 3)
	want(t, "prefill of b", class.Served(b, 5), 2)
	x.End(9)  // 4 s by two
	y.End(10) // 1 s more alone
	x.End(11)
	y.Cancel(11)
	want(t, "a", class.Served(a, 10), 5)
	want(t, "b", class.Served(b, 10), 5)
	want(t, "the tenant of a", class.Served(a.Tenant(), 10), 5)
}

// TestUnobserved: of a request whose prefill does not end, as far as is known, the prediction stays; one that was not placed
// costs nothing.
func TestUnobserved(t *testing.T) {
	class := fairness.NewService().NewClass(rules)
	a := class.Account("a", "", 0)
	class.Begin(a, catalog.Rank{}, 2, 0).End(0)
	class.Begin(a, catalog.Rank{}, 5, 0).Cancel(0)
	class.Once(a, 1, 0)
	want(t, "served", class.Served(a, 0), 3)
	want(t, "after a half-life", class.Served(a, 60), 1.5)
	var nobody *fairness.Charge
	nobody.PrefillEnded(1)
	nobody.End(1)
}

// TestClockJumps: times that go back or far ahead, and predictions that are no numbers, leave sums finite and not negative.
func TestClockJumps(t *testing.T) {
	class := fairness.NewService().NewClass(rules)
	a := class.Account("a", "p", 1e9)
	for _, seconds := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -5, 1e300} {
		for _, now := range []float64{1e9, -1e9, 0, 1e15, 5} {
			x := class.Begin(a, catalog.Rank{}, seconds, now)
			x.PrefillEnded(-now)
			x.End(now * 2)
			got := class.Served(a, now)
			if key := class.Key(a, now, now); !(got >= 0 && got < math.MaxFloat64) || math.IsNaN(key) || math.IsInf(key, 0) {
				t.Errorf("%v s at %v: %v, key %v", seconds, now, got, key)
			}
		}
	}
}

// TestManyAccounts: beyond the bound a program counts as its tenant, and a tenant as the one without a name. Idle accounts
// make room.
func TestManyAccounts(t *testing.T) {
	class := fairness.NewService().NewClass(rules)
	for i := range 2 * fairness.MaxAccounts {
		class.Account("a", fmt.Sprint(i), 0)
	}
	if n := class.Accounts(); n > fairness.MaxAccounts+2 {
		t.Fatalf("%d accounts", n)
	}
	if class.Account("a", "one more", 0) != class.Account("a", "another one", 0) {
		t.Error("programs beyond the bound are told apart")
	}
	if class.Account("b", "p", 0).Tenant() != class.Account("c", "q", 0).Tenant() {
		t.Error("tenants beyond the bound are told apart")
	}
	if class.Account("a", "one more", 1000) == class.Account("a", "another one", 1000) || class.Accounts() > 10 {
		t.Errorf("%d accounts, idle ones included", class.Accounts())
	}
}
