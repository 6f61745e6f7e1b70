package fairness_test

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/select-service/select-service/internal/selection/fairness"
	"github.com/select-service/select-service/pkg/catalog"
)

// tell has b know what a has to tell at a time, as messages of a process.
func tell(a, b *fairness.Class, process uint64, version *uint64, now float64) (states []fairness.State) {
	states = a.Changed(1000, now)
	*version++
	for i := range states {
		b.ServedElsewhere(process, *version, &states[i], now)
	}
	return states
}

// TestServedElsewhere: a class knows what other processes have served, whichever messages are lost, repeated, or overtaken, and
// forgets it with its half-life.
func TestServedElsewhere(t *testing.T) {
	shared := func() *fairness.Class {
		c := fairness.NewService().NewClass(rules)
		c.Share()
		return c
	}
	a, b := shared(), shared()
	of := func(c *fairness.Class) *fairness.Account { return c.Account("t", "p", 0) }
	var version uint64
	a.Once(of(a), catalog.Rank{}, fairness.Work{Prefill: 8}, 0)
	first := tell(a, b, 1, &version, 0)
	want(t, "at the other", b.Served(of(b), 0), 8)
	want(t, "its tenant", b.Served(of(b).Tenant(), 0), 8)
	for i := range first { // the same message again
		b.ServedElsewhere(1, version, &first[i], 0)
	}
	want(t, "after a repetition", b.Served(of(b), 0), 8)
	want(t, "a half-life later", b.Served(of(b), 60), 4)
	a.Once(of(a), catalog.Rank{}, fairness.Work{Prefill: 2}, 60)
	a.Changed(1000, 60) // is lost
	b.Once(of(b), catalog.Rank{}, fairness.Work{Prefill: 1}, 60)
	tell(a, b, 1, &version, 60)
	want(t, "own and other's", b.Served(of(b), 60), 7)
	for i := range first { // an old message, late
		b.ServedElsewhere(1, 1, &first[i], 60)
	}
	want(t, "after an old message", b.Served(of(b), 60), 7)
	var back uint64
	tell(b, a, 2, &back, 60) // only what b has served itself
	want(t, "back at the first", a.Served(of(a), 60), 7)
	// The first process starts anew: what it had served fades, what it serves from now on counts too.
	again := shared()
	again.Once(of(again), catalog.Rank{}, fairness.Work{Prefill: 4}, 120)
	var version2 uint64
	tell(again, b, 3, &version2, 120)
	want(t, "with a new process", b.Served(of(b), 120), 3.5+4)
	// A correction takes back what was predicted.
	x := again.Begin(of(again), catalog.Rank{}, fairness.Work{Prefill: 10}, 120)
	tell(again, b, 3, &version2, 120)
	want(t, "predicted", b.Served(of(b), 120), 3.5+14)
	x.Cancel(120)
	tell(again, b, 3, &version2, 120)
	want(t, "cancelled", b.Served(of(b), 120), 3.5+4)
}

// TestServedElsewhereBounds: other processes, however many, and what they claim, are bounded.
func TestServedElsewhereBounds(t *testing.T) {
	c := fairness.NewService().NewClass(rules)
	for process := range uint64(1000) {
		for _, seconds := range []float64{math.NaN(), math.Inf(1), -5, 1e300, 1} {
			c.ServedElsewhere(process, 1, &fairness.State{Tenant: "t", Seconds: seconds}, float64(process))
		}
	}
	if got := c.Served(c.Account("t", "", 1000).Tenant(), 1000); !(got >= 0 && got <= 1e9) {
		t.Errorf("%v s", got)
	}
	for i := range 2 * fairness.MaxAccounts {
		c.ServedElsewhere(1, 1, &fairness.State{Tenant: fmt.Sprint(i), Seconds: 1}, 1000)
	}
	if n := c.Accounts(); n > fairness.MaxAccounts+1 {
		t.Errorf("%d accounts", n)
	}
	tenants := fairness.NewService().NewClass(fairness.Rules{By: fairness.Tenant, HalfLife: 60, HeadWait: 0.2})
	tenants.ServedElsewhere(1, 1, &fairness.State{Tenant: "t", Program: "p", OfProgram: true, Seconds: 5}, 0)
	if n := tenants.Accounts(); n != 0 {
		t.Errorf("a class without programs has %d accounts for one", n)
	}
}

// TestChangedIsBounded: with many changes at once each is told in turn, a number of times, and then no more.
func TestChangedIsBounded(t *testing.T) {
	c := fairness.NewService().NewClass(fairness.Rules{By: fairness.Tenant, HalfLife: 60, HeadWait: 0.2})
	c.Share()
	for i := range 100 {
		c.Once(c.Account(fmt.Sprint(i), "", 0), catalog.Rank{}, fairness.Work{Prefill: 1}, 0)
	}
	told := map[string]int{}
	for range 20 {
		states := c.Changed(30, 0)
		if len(states) > 30 {
			t.Fatalf("%d at once", len(states))
		}
		for _, s := range states {
			told[s.Tenant]++
		}
	}
	for i := range 100 {
		if n := told[fmt.Sprint(i)]; n != 3 {
			t.Errorf("%d is told %d times", i, n)
		}
	}
}

// TestMemory: what accounts take is counted as it is, within a fifth, and bounded for all services together.
func TestMemory(t *testing.T) {
	memory := fairness.NewMemory(8 << 20)
	service := fairness.NewService()
	service.LimitBytes(memory)
	class := service.NewClass(rules)
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range 2 * fairness.MaxAccounts {
		class.Account(fmt.Sprint("tenant", i%64), fmt.Sprint("a program with a name of an id ", i), 0)
	}
	took, counted := heap()-before, service.Bytes()
	if counted > 7<<20+64*400 || counted < 7<<20-1000 { // one more for each tenant, and an eighth is left to tenants
		t.Errorf("%d bytes are counted", counted)
	}
	if ratio := float64(took) / float64(counted); ratio < 0.8 || ratio > 1.2 {
		t.Errorf("%d bytes are counted, and %d taken", counted, took)
	}
	other := fairness.NewService()
	other.LimitBytes(memory)
	c := other.NewClass(rules)
	for i := range fairness.MaxAccounts {
		c.Account(fmt.Sprint("tenant", i), "", 0)
	}
	if c.Account("a", "p", 0).Tenant() != c.Account("b", "q", 0).Tenant() {
		t.Error("another scope has room of its own")
	}
	memory.Set(0) // the first service is gone
	if c.Account("c", "p", 0).Tenant() == c.Account("d", "q", 0).Tenant() {
		t.Error("there is no room again")
	}
	runtime.KeepAlive(class)
}
