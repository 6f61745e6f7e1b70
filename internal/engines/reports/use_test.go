package reports_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func blocksOf(n uint64) func(*catalog.Record) {
	return func(r *catalog.Record) { r.TotalKVBlocks = &n }
}

func (w *world) overloaded() bool {
	w.T.Helper()
	_, err := w.Select(context.Background(), &selection.SelectRequest{Scope: servicetest.Scope, Prompt: servicetest.Hashes(servicetest.Prompt(1, 8))}, false)
	e, is := errors.AsType[*contract.Error](err)
	if err != nil && (!is || e.Kind != contract.Overloaded) {
		w.T.Fatal(err)
	}
	return err != nil
}

// TestThresholds: busy thresholds compare with the greater of booked and reported, never with the
// sum, and use the number of blocks that the engine reports if the record has none.
func TestThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1)
		w.SetBusy(overload.Thresholds{PrefillTokens: new(uint64(50)), DecodeBlocks: new(0.5)})
		w.Burden("a", 0, 0, 5, 40)
		used := func(tokens, uncached uint64) {
			w.report(0, load.Report{
				Running: load.Known(1), KVTokensUsed: load.Known(tokens), KVTokensTotal: load.Known(40 * blockSize),
				WaitingUncachedTokens: load.Known(uncached), Source: load.Push, Interval: time.Second,
			})
			pass(100 * time.Millisecond)
		}
		for _, test := range []struct {
			tokens, uncached uint64
			want             bool
		}{
			{0, 0, false},
			{0, 50, false}, // young bookings do not count, so that 50 are foreign
			{0, 60, true},
			{20 * blockSize, 50, false},
			{20*blockSize + 1, 0, true},
		} {
			used(test.tokens, test.uncached)
			if got := w.overloaded(); got != test.want {
				t.Errorf("%d tokens, %d uncached: overloaded is %v", test.tokens, test.uncached, got)
			}
		}
		w.Put(servicetest.Record(0, 1, blocksOf(100))) // the record wins
		used(20*blockSize+1, 0)
		if w.overloaded() {
			t.Error("overloaded by the blocks that the engine says")
		}
		used(20*blockSize+1, 0)
		differs := 0
		for _, line := range w.Log.Take(t) {
			if strings.Contains(line, "another number of KV blocks") {
				differs++
			}
		}
		if differs != 1 {
			t.Errorf("%d warnings of the difference, want 1", differs)
		}
		used(51*blockSize, 0)
		if !w.overloaded() {
			t.Error("not overloaded by the blocks of the record")
		}
		pass(5 * time.Second)
		if w.overloaded() {
			t.Error("overloaded by a stale report")
		}
	})
}

// TestBusyAnswers: decode_busy and prefill_busy are true where what the engine reports is above the
// share, also where no foreign load counts, because too few ranks report, or where reservations have
// ended since; and where bookings and foreign load together are.
func TestBusyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 0, func(c *node.Config) { c.Selection.PrefillBusy, c.Selection.DecodeBusy = new(0.5), new(0.5) })
		for id := range uint64(3) {
			w.Put(servicetest.Record(id, 1, blocksOf(100), func(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(1000)) }))
		}
		want := func(when string, want bool) {
			t.Helper()
			pass(100 * time.Millisecond)
			sel, err := w.Select(context.Background(), &selection.SelectRequest{
				Scope: servicetest.Scope, Prompt: servicetest.Hashes(servicetest.Prompt(1, 8)), Constraints: selection.Constraints{Pinned: new(rank(0))}, Advisory: true,
			}, false)
			if err != nil {
				t.Fatal(err)
			}
			if *sel.DecodeBusy != want || *sel.WorkerLoad.PrefillBusy != want {
				t.Errorf("%s: decode busy %t, prefill busy %t", when, *sel.DecodeBusy, *sel.WorkerLoad.PrefillBusy)
			}
		}
		report := func(id, blocks, uncached uint64) {
			w.report(id, load.Report{
				Running: load.Known(1), Waiting: load.Known(1), KVTokensUsed: load.Known(blocks * blockSize),
				WaitingUncachedTokens: load.Known(uncached), Source: load.Push, Interval: time.Second,
			})
		}
		want("no report", false)
		report(0, 50, 501) // and the prompt's blocks
		want("one of three reports", true)
		report(0, 40, 400)
		want("less", false)
		w.Burden("a", 0, 0, 40, 400)
		pass(time.Second)
		report(0, 60, 600)
		report(1, 0, 0)
		if err := w.Free("a"); err != nil {
			t.Fatal(err)
		}
		want("a reservation has ended since", true)
		report(0, 30, 300)
		w.Burden("b", 0, 0, 30, 300)
		want("a reservation has begun since", true)
	})
}

// TestMeasuredRate: the rate that an engine measures is the prior of what predicted-ttft knows of
// its rank; a restart of the engine does not disturb it.
func TestMeasuredRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 2, servicetest.Policy(t, "predicted-ttft", ""))
		told := func(tokens, micros uint64) {
			r := all(0, 0)
			r.PrefillTokens, r.PrefillBusyMicros = load.Known(tokens), load.Known(micros)
			w.report(0, r)
		}
		speed := func() float64 {
			x, err := w.Explain(context.Background(), &selection.SelectRequest{Scope: servicetest.Scope, Prompt: servicetest.Hashes(servicetest.Prompt(1, 8))})
			if err != nil {
				t.Fatal(err)
			}
			return x.Candidates[0].Speed
		}
		told(1e9, 5e8) // before the service heard it
		told(1e9+3000, 5e8+999_999)
		if speed() != 1 {
			t.Errorf("a speed of %g after less than a second", speed())
		}
		told(1e9+4000, 5e8+1_000_000)
		if got := speed(); math.Abs(got-3) > 1e-9 {
			t.Errorf("a speed of %g at 4000 tokens per second, want 3", got)
		}
		told(10, 10)
		if got := speed(); math.Abs(got-3) > 1e-9 {
			t.Errorf("a speed of %g after a restart, want 3", got)
		}
	})
}

// TestSaturation: the gauges of a scope are what its ranks say of the least room that they have.
func TestSaturation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 0)
		w.Put(servicetest.Record(0, 1, blocksOf(100)))
		w.Put(servicetest.Record(1, 1))
		want := func(name string, value float64) {
			t.Helper()
			if got := servicetest.Sum(w.Metrics()["scope_"+name]); math.Abs(got-value) > 1e-9 {
				t.Errorf("%s is %g, want %g", name, got, value)
			}
		}
		want("saturation_ratio", 0)
		w.Burden("a", 0, 0, 20, 1)
		want("saturation_ratio", 0.2) // nothing is known of the other rank
		w.report(0, load.Report{Running: load.Known(6), Waiting: load.Known(6), MaxRunning: load.Known(10), Source: load.Told})
		w.report(1, load.Report{KVTokensUsed: load.Known(10 * blockSize), KVTokensTotal: load.Known(25 * blockSize), Source: load.Told})
		pass(100 * time.Millisecond)
		want("saturation_ratio", (1.2+0.4)/2)
		w.SetBusy(overload.Thresholds{PrefillTokens: new(uint64(10))})
		w.Burden("b", 0, 0, 0, 11)
		w.Burden("c", 1, 0, 0, 12000)
		want("saturation_ratio", (1.2+1200)/2)
		want("wait_seconds", 0.001) // 12 tokens
		if !w.overloaded() {
			t.Error("not refused")
		}
		want("refused_ratio", 1)
		w.ClearBusy()
		w.overloaded()
		w.overloaded()
		w.overloaded()
		want("refused_ratio", 0.25)
		pass(31 * time.Second)
		want("refused_ratio", 0)

		w.Remove(0)
		w.Remove(1)
		w.WantNoSeries("scope_saturation")
		_, err := w.Select(context.Background(), &selection.SelectRequest{Scope: servicetest.Scope, Prompt: servicetest.Hashes(servicetest.Prompt(1, 8))}, false)
		if err == nil {
			t.Fatal("a choice without workers")
		}
		want("saturation_ratio", 1)
		want("refused_ratio", 1)
		pass(32 * time.Second)
		w.WantNoSeries("scope_saturation")
	})
}

// TestSaturationByRole: a full prefill pool is not hidden by idle engines that decode, nor is its wait.
// The series of a scope without roles have no label for them.
func TestSaturationByRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		role := func(name string) func(*catalog.Record) { return func(r *catalog.Record) { r.Role = &name } }
		w := start(t, 0)
		w.Put(servicetest.Record(4, 1, blocksOf(100)))
		w.WantSeries(`scope_saturation_ratio{model_name="m",tenant_id="t"} 0`, `scope_wait_seconds{model_name="m",tenant_id="t"} 0`)
		w.WantNoSeries("scope_.*role")
		w.Put(servicetest.Record(0, 1, blocksOf(100), role("prefill")))
		for id := range uint64(3) {
			w.Put(servicetest.Record(id+1, 1, blocksOf(100), role("decode")))
		}
		w.Burden("a", 0, 0, 100, 12000)
		w.Burden("b", 1, 0, 75, 0)
		w.WantSeries(
			`scope_saturation_ratio{model_name="m",role="prefill",tenant_id="t"} 1`,
			`scope_saturation_ratio{model_name="m",role="decode",tenant_id="t"} 0.25`,
			`scope_saturation_ratio{model_name="m",role="both",tenant_id="t"} 0`,
			`scope_wait_seconds{model_name="m",role="prefill",tenant_id="t"} 1`,
			`scope_wait_seconds{model_name="m",role="decode",tenant_id="t"} 0`,
			`scope_refused_ratio{model_name="m",tenant_id="t"} 0`,
		)
		w.Remove(4)
		w.WantNoSeries(`scope_saturation_ratio{model_name="m",tenant_id`)
		w.WantNoSeries(`scope_saturation_ratio.*both`)
	})
}

// TestUntoldTokens: requests of others that wait at an engine cost something for predicted-ttft although
// the engine does not say how long their prompts are, as vLLM does not, before and after it has learned.
func TestUntoldTokens(t *testing.T) {
	for _, learned := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := start(t, 2, servicetest.Policy(t, "predicted-ttft", ""))
			if learned {
				for i := range 20 {
					id := fmt.Sprint("x", i)
					w.Burden(id, uint64(i%2), 0, 4, 1000)
					pass(80 * time.Millisecond)
					if w.PrefillComplete(id) != nil {
						t.Fatal("not completed")
					}
					pass(time.Second)
					if w.Free(id) != nil {
						t.Fatal("not freed")
					}
				}
			}
			waits := func(n uint64) load.Report {
				return load.Report{Running: load.Known(0), Waiting: load.Known(n), Source: load.Told}
			}
			w.report(0, waits(50))
			w.report(1, waits(0))
			pass(100 * time.Millisecond)
			for range 40 {
				sel, err := w.Select(context.Background(), &selection.SelectRequest{Scope: servicetest.Scope, Prompt: servicetest.Hashes(servicetest.Prompt(1, 8))}, false)
				if err != nil {
					t.Fatal(err)
				}
				if sel.Rank.Worker == 0 {
					t.Fatalf("learned %t: the rank with 50 waiting requests is chosen: %+v", learned, sel)
				}
			}
		})
	}
}

// TestWaitOfTheLiving: the wait of a scope is that of its ranks that give signs of life, unless none
// does.
func TestWaitOfTheLiving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 2)
		w.Burden("a", 0, 0, 0, 12000)
		w.Burden("b", 1, 0, 0, 24000)
		want := func(seconds float64) {
			t.Helper()
			if got := servicetest.Sum(w.Metrics()["scope_wait_seconds"]); math.Abs(got-seconds) > 1e-9 {
				t.Errorf("a wait of %g s, want %g", got, seconds)
			}
		}
		w.report(0, all(0, 0))
		want(1)
		w.speaks(17*time.Second, 1)
		w.wantExcluded(0, selection.Silent)
		want(2)
		pass(17 * time.Second)
		want(1)
	})
}

// TestWarmup: of the requests that nobody has cached, the configured share goes to the ranks that
// are new or have lost their caches, never more than the median; it is said in explanations.
func TestWarmup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{servicetest.Start(t, func(c *node.Config) { c.Selection.WarmupShare, c.Selection.Warmup = 0.5, time.Minute })}
		for id := range uint64(3) {
			w.Put(servicetest.Record(id, 1, blocksOf(100)))
		}
		pass(2 * time.Minute)
		w.Put(servicetest.Record(3, 1, blocksOf(100)))
		for id := range uint64(4) {
			n := uint64(3)
			if id == 3 {
				n = 1
			}
			for i := range n {
				w.Burden(string(rune('a'+4*id+i)), id, 0, 1+90*(id/3), 1) // the new one is the fullest
			}
		}
		pass(2 * time.Second)
		warmed := 0
		ask := func(p selection.Prompt) bool {
			sel, err := w.Select(context.Background(), &selection.SelectRequest{Scope: servicetest.Scope, Prompt: p, Explain: true}, false)
			if err != nil {
				t.Fatal(err)
			}
			if sel.Explanation.Warmup != (sel.Rank.Worker == 3) {
				t.Fatalf("worker %d, and warmup is %v", sel.Rank.Worker, sel.Explanation.Warmup)
			}
			return sel.Explanation.Warmup
		}
		fresh := servicetest.Hashes(servicetest.Prompt(7, 8*blockSize))
		for range 400 {
			if ask(fresh) {
				warmed++
			}
		}
		if warmed < 140 || warmed > 260 {
			t.Errorf("%d of 400 requests, at a share of a half", warmed)
		}
		cached := servicetest.Prompt(8, 8*blockSize)
		e := w.Engine(0, 0)
		e.Publish(0, e.Stored(cached, blockSize, nil))
		w.Settle()
		for range 50 {
			if ask(servicetest.Hashes(cached)) {
				t.Fatal("a request that is cached was sent to a new rank")
			}
		}
		w.Burden("y", 3, 0, 1, 1)
		w.Burden("z", 3, 0, 1, 1) // as many as the others have
		for range 50 {
			if ask(fresh) {
				t.Fatal("a new rank got more requests than the median has")
			}
		}
		_ = w.Free("y")
		pass(2 * time.Minute) // old now; nor is it emptied: half of the ranks have nothing
		for range 50 {
			if ask(fresh) {
				t.Fatal("an old rank is taken for a new one")
			}
		}
	})
}

// TestWarmupOfTwo: a second worker is new beside the first one, and later emptied, and gets its share
// until it has as many requests as that. Workers that only encode have no requests and no blocks, and
// change nothing.
func TestWarmupOfTwo(t *testing.T) {
	t.Run("alone", func(t *testing.T) { testWarmupOfTwo(t, 0) })
	t.Run("beside encoders", func(t *testing.T) { testWarmupOfTwo(t, 3) })
}

func testWarmupOfTwo(t *testing.T, encoders uint64) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{servicetest.Start(t, func(c *node.Config) { c.Selection.WarmupShare, c.Selection.Warmup = 0.5, time.Minute })}
		for id := range encoders {
			w.Put(servicetest.Record(10+id, 1, blocksOf(100), encodes))
		}
		w.Put(servicetest.Record(0, 1, blocksOf(100)))
		pass(2 * time.Minute)
		w.Put(servicetest.Record(1, 1, blocksOf(100)))
		for i := range 3 {
			w.Burden(string(rune('a'+i)), 0, 0, 1, 1)
		}
		w.Burden("x", 1, 0, 90, 1) // so that it is chosen for no other reason
		want := func(when string, want bool) {
			t.Helper()
			warmed := 0
			for range 50 {
				sel, err := w.Select(context.Background(), &selection.SelectRequest{
					Scope: servicetest.Scope, Prompt: servicetest.Hashes(servicetest.Prompt(7, 8*blockSize)), Explain: true,
				}, false)
				if err != nil {
					t.Fatal(err)
				}
				if sel.Explanation.Warmup {
					warmed++
				}
			}
			if (warmed > 0) != want {
				t.Errorf("%s: %d of 50 requests", when, warmed)
			}
		}
		pass(2 * time.Second)
		want("new", true)
		cached := servicetest.Prompt(8, 8*blockSize)
		e := w.Engine(0, 0)
		e.Publish(0, e.Stored(cached, blockSize, nil))
		w.Settle()
		pass(2 * time.Minute)
		want("emptied", true)
		w.Burden("y", 1, 0, 1, 1)
		w.Burden("z", 1, 0, 1, 1)
		want("as many requests", false)
	})
}

// TestWarmupWithoutEvents: the caches of an engine that publishes no KV events are not known, so that it is not
// emptied because nothing is known of them. A rank of which events would say it is.
func TestWarmupWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, publishes := range []bool{true, false} {
			w := &world{servicetest.Start(t, func(c *node.Config) { c.Selection.WarmupShare, c.Selection.Warmup = 0.5, time.Minute })}
			w.Put(servicetest.Record(0, 1, blocksOf(100)))
			w.Put(servicetest.Record(1, 1, blocksOf(100), func(r *catalog.Record) { r.KVEvents = &publishes }))
			for i := range 3 {
				w.Burden(string(rune('a'+i)), 0, 0, 1, 1)
			}
			w.Burden("x", 1, 0, 90, 1) // so that it is chosen for no other reason
			cached := servicetest.Prompt(8, 8*blockSize)
			e := w.Engine(0, 0)
			e.Publish(0, e.Stored(cached, blockSize, nil))
			w.Settle()
			pass(2 * time.Minute)
			warmed := 0
			for range 50 {
				sel, err := w.Select(context.Background(), &selection.SelectRequest{
					Scope: servicetest.Scope, Prompt: servicetest.Hashes(servicetest.Prompt(7, 8*blockSize)), Explain: true,
				}, false)
				if err != nil {
					t.Fatal(err)
				}
				if sel.Explanation.Warmup {
					warmed++
				}
			}
			if (warmed > 0) != publishes {
				t.Errorf("kv_events is %v: %d of 50 requests", publishes, warmed)
			}
		}
	})
}
