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

// TestObserved: the predictions are replaced by the time that the rank took for its prefills, shared by the predictions, and by the
// share of the time in which the rank only decodes. What all requests are charged is the time in which the rank was busy.
func TestObserved(t *testing.T) {
	class := fairness.NewService().NewClass(forgetsNothing())
	a, b := class.Account("a", "p", 0), class.Account("b", "q", 0)
	rank := catalog.Rank{Worker: 1}
	x, y := class.Begin(a, rank, fairness.Work{Prefill: 60}, 0), class.Begin(b, rank, fairness.Work{Prefill: 40}, 0)
	want(t, "predicted", class.Served(a, 0), 60)
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

// forgetsNothing are rules without forgetting, so that sums can be compared.
func forgetsNothing() fairness.Rules {
	r := rules
	r.HalfLife = 1e12
	return r
}

// TestSharedSteps: prompts that are computed in one step end at the same moment, though one of them takes three times as long.
// Each is charged its part, and all together the time of the rank, whatever the order in which their ends are reported. All
// predictions are five times too long.
func TestSharedSteps(t *testing.T) {
	class := fairness.NewService().NewClass(forgetsNothing())
	a, b := class.Account("a", "", 0), class.Account("b", "", 0)
	const steps, step = 300, 0.4
	for i := range steps {
		now := float64(i) * step
		x, y := class.Begin(a, catalog.Rank{}, fairness.Work{Prefill: 1.5}, now), class.Begin(b, catalog.Rank{}, fairness.Work{Prefill: 0.5}, now)
		if i%3 == 0 {
			x, y = y, x
		}
		x.PrefillEnded(now + step)
		y.PrefillEnded(now + step)
		x.End(now + step)
		y.End(now + step)
	}
	if x, y := class.Served(a, steps*step), class.Served(b, steps*step); math.Abs(x-90) > 0.9 || math.Abs(y-30) > 0.3 {
		t.Errorf("a %v s, b %v s, want 90 and 30", x, y)
	}
}

// TestLongPromptAmongShort: a prompt of b is computed in four steps, and in each of these steps one of a is computed, too. a's
// come and end meanwhile, so that b's end is seldom the next one. b also has an answer that gets a token in each step.
func TestLongPromptAmongShort(t *testing.T) {
	class := fairness.NewService().NewClass(forgetsNothing())
	a, b, c := class.Account("a", "", 0), class.Account("b", "", 0), class.Account("c", "", 0)
	answer := class.Begin(c, catalog.Rank{}, fairness.Work{Prefill: 1, Answer: 0.25}, 0)
	answer.PrefillEnded(0)
	const rounds, step = 200, 0.5
	now := 0.0
	for range rounds {
		long := class.Begin(b, catalog.Rank{}, fairness.Work{Prefill: 1.2}, now)
		for range 4 { // each 0.1 s of a, 0.3 s of b, and 0.1 s of c's answer
			short := class.Begin(a, catalog.Rank{}, fairness.Work{Prefill: 0.1}, now+0.2)
			now += step
			short.PrefillEnded(now)
			short.End(now)
		}
		long.PrefillEnded(now)
		long.End(now)
	}
	answer.End(now)
	for of, want := range map[*fairness.Account]float64{a: 80, b: 240, c: 80} {
		if got := class.Served(of, now); math.Abs(got-want) > 0.04*want {
			t.Errorf("%v s are charged instead of %v", got, want)
		}
	}
}

// TestPrefillsThatAreNeverReported: a request whose prefill nobody reports, and which ends hours later, makes those of others no
// dearer, on a rank that is idle most of the time.
func TestPrefillsThatAreNeverReported(t *testing.T) {
	class := fairness.NewService().NewClass(forgetsNothing())
	a, b := class.Account("a", "", 0), class.Account("b", "", 0)
	lost := class.Begin(b, catalog.Rank{}, fairness.Work{Prefill: 1}, 0)
	for i := range 100 {
		now := float64(100 * i)
		x := class.Begin(a, catalog.Rank{}, fairness.Work{Prefill: 1}, now)
		x.PrefillEnded(now + 1)
		x.End(now + 1)
	}
	lost.End(10_000)
	want(t, "a", class.Served(a, 10_000), 100)
	want(t, "b", class.Served(b, 10_000), 1)
}

// TestOnceIsScaled: what is never observed is charged as other prefills of its rank are corrected.
func TestOnceIsScaled(t *testing.T) {
	class := fairness.NewService().NewClass(forgetsNothing())
	a, b, slow := class.Account("a", "", 0), class.Account("b", "", 0), catalog.Rank{Worker: 1}
	for i := range 10 {
		now := float64(10 * i)
		x := class.Begin(a, slow, fairness.Work{Prefill: 1}, now)
		x.PrefillEnded(now + 3) // three times as long as predicted
		x.End(now + 3)
	}
	class.Once(b, slow, fairness.Work{Prefill: 2}, 100)
	want(t, "on the slow rank", class.Served(b, 100), 6)
	class.Once(b, catalog.Rank{Worker: 2}, fairness.Work{Prefill: 2}, 100)
	want(t, "with another one, of which nothing is known", class.Served(b, 100), 6+2)
}

// TestOthersOnTheRank: of a rank that works for others too, which its load shows, a request is charged its part: of prefills by their
// tokens, and of the time in which answers are generated by their number.
func TestOthersOnTheRank(t *testing.T) {
	class := fairness.NewService().NewClass(forgetsNothing())
	a := class.Account("a", "", 0)
	x := class.Begin(a, catalog.Rank{}, fairness.Work{Prefill: 1, Tokens: 100, Before: fairness.Load{Tokens: 300, Requests: 1}}, 0)
	x.PrefillEnded(4)
	want(t, "a quarter of 4 s", class.Served(a, 4), 1)
	x.Cancel(4)
	b := class.Account("b", "", 4)
	z := class.Begin(b, catalog.Rank{Worker: 1}, fairness.Work{Prefill: 1, Tokens: 100, Before: fairness.Load{Requests: 3}}, 4)
	z.PrefillEnded(5)
	z.End(13)
	want(t, "8 s of four answers", class.Served(b, 13), 1+8.0/4)
}

// TestReserve: a request for which a rank is kept takes no time of it before it has come, neither its own nor that of those that
// decode meanwhile.
func TestReserve(t *testing.T) {
	class := fairness.NewService().NewClass(forgetsNothing())
	a, b := class.Account("a", "", 0), class.Account("b", "", 0)
	x := class.Begin(b, catalog.Rank{}, fairness.Work{Prefill: 1}, 0)
	x.PrefillEnded(1)
	kept := class.Reserve(a, catalog.Rank{}, fairness.Work{Prefill: 1}, 1)
	want(t, "predicted", class.Served(a, 1), 1)
	x.End(9)
	want(t, "b", class.Served(b, 9), 1+8)
	kept.Arrived(10)
	kept.PrefillEnded(13)
	kept.Arrived(14) // has no effect
	kept.End(14)
	want(t, "a", class.Served(a, 14), 3+1)
	kept = class.Reserve(a, catalog.Rank{Worker: 1}, fairness.Work{Prefill: 1}, 20)
	kept.End(30) // nothing has come: the predictions stay, of the decode as the mean
	want(t, "with what was kept for nothing", class.Served(a, 30), 4+1+0.1*1+0.9*0.8)
}

// TestManyRanks: ranks that come and go are forgotten once they were idle for an hour.
func TestManyRanks(t *testing.T) {
	s := fairness.NewService()
	class := s.NewClass(rules)
	a := class.Account("a", "", 0)
	for i := range 100_000 {
		now := float64(i)
		x := class.Begin(a, catalog.Rank{Worker: uint64(i)}, fairness.Work{Prefill: 1}, now)
		x.PrefillEnded(now + 1)
		x.End(now + 1)
	}
	if n := s.Ranks(); n > 3*3600 {
		t.Errorf("%d ranks are remembered", n)
	}
}

// TestUnobserved: of a request whose prefill does not end, as far as is known, the prediction stays; one that was not placed
// costs nothing.
func TestUnobserved(t *testing.T) {
	class := fairness.NewService().NewClass(rules)
	a := class.Account("a", "", 0)
	class.Begin(a, catalog.Rank{}, fairness.Work{Prefill: 2}, 0).End(0)
	class.Begin(a, catalog.Rank{}, fairness.Work{Prefill: 5}, 0).Cancel(0)
	class.Once(a, catalog.Rank{}, fairness.Work{Prefill: 1}, 0)
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
			x := class.Begin(a, catalog.Rank{}, fairness.Work{Prefill: seconds}, now)
			x.PrefillEnded(-now)
			x.End(now * 2)
			got := class.Served(a, now)
			if key := class.Key(a, now, now); !(got >= 0 && got < math.MaxFloat64) || math.IsNaN(key) || math.IsInf(key, 0) {
				t.Errorf("%v s at %v: %v, key %v", seconds, now, got, key)
			}
		}
	}
}

// TestManyAccounts: beyond the bound a program counts as its tenant, and a tenant as the one without a name. A tenant that makes up
// programs leaves room for other tenants, which have their weights. Idle accounts make room.
func TestManyAccounts(t *testing.T) {
	rules := rules
	rules.Weights = map[string]float64{"gold": 3}
	class := fairness.NewService().NewClass(rules)
	for i := range 1_000_000 {
		class.Account("a", fmt.Sprint(i), 0)
	}
	if n := class.Accounts(); n > fairness.MaxAccounts+2 {
		t.Fatalf("%d accounts", n)
	}
	if class.Account("a", "one more", 0) != class.Account("a", "another one", 0) {
		t.Error("programs beyond the bound are told apart")
	}
	gold := class.Account("gold", "p", 0).Tenant()
	if gold == class.Account("silver", "p", 0).Tenant() || class.Account("gold", "p", 0) != class.Account("gold", "q", 0) {
		t.Error("no room is left for tenants, or their programs take it")
	}
	class.Once(gold, catalog.Rank{}, fairness.Work{Prefill: 3}, 0)
	if key := class.Key(gold, 0, 0); math.Abs(key-(1-rules.HeadWait)) > 1e-9 {
		t.Errorf("gold is served 3 s and has the key %v", key)
	}
	for i := range fairness.MaxAccounts {
		class.Account(fmt.Sprint(i), "", 0)
	}
	if n := class.Accounts(); n > fairness.MaxAccounts+3 { // a tenant without a name, and its requests without a program, and those of the last tenant
		t.Fatalf("%d accounts", n)
	}
	if class.Account("b", "p", 0).Tenant() != class.Account("c", "q", 0).Tenant() {
		t.Error("tenants beyond the bound are told apart")
	}
	if class.Account("a", "one more", 1000) == class.Account("a", "another one", 1000) || class.Accounts() > 10 {
		t.Errorf("%d accounts, idle ones included", class.Accounts())
	}
}
