package reports_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// excluded returns why a rank could not be chosen now, "" if it could.
func (w *world) excluded(id uint64) selection.Exclusion {
	w.T.Helper()
	x, err := w.Explain(context.Background(), &selection.SelectRequest{Scope: servicetest.Scope, Prompt: servicetest.Hashes(servicetest.Prompt(1, 8))})
	if err != nil {
		w.T.Fatal(err)
	}
	for _, e := range x.Excluded {
		if e.Rank == rank(id) {
			return e.Why
		}
	}
	return ""
}

// wantExcluded checks why a rank could not be chosen now.
func (w *world) wantExcluded(id uint64, want selection.Exclusion) {
	w.T.Helper()
	if got := w.excluded(id); got != want {
		w.T.Errorf("worker %d is excluded for %q, want %q", id, got, want)
	}
}

// chosen makes a choice and returns its worker.
func (w *world) chosen(change ...func(*selection.SelectRequest)) uint64 {
	w.T.Helper()
	req := selection.SelectRequest{Scope: servicetest.Scope, Prompt: servicetest.Hashes(servicetest.Prompt(1, 8))}
	for _, f := range change {
		f(&req)
	}
	sel, err := w.Select(context.Background(), &req, false)
	if err != nil {
		w.T.Fatal(err)
	}
	return sel.Rank.Worker
}

// speaks gives reports of some workers every second, each other than the last.
func (w *world) speaks(d time.Duration, workers ...uint64) {
	for range d / time.Second {
		for _, id := range workers {
			r := all(1, 0)
			r.PrefillTokens = load.Known(uint64(time.Now().UnixMilli()))
			w.report(id, r)
		}
		pass(time.Second)
	}
}

// TestStalled: a rank whose engine has unfinished work by its own word gets no new requests from
// 3 s after its last sign on, but one every 10 s and those that pin it; the next sign of any kind
// ends that.
func TestStalled(t *testing.T) {
	for name, sign := range map[string]func(w *world){
		"report":  func(w *world) { w.report(0, all(2, 0)) },
		"prefill": func(w *world) { _ = w.PrefillComplete("a") },
		"block":   func(w *world) { _ = w.OutputBlock("a", nil) },
		"answer":  func(w *world) { w.Answering(servicetest.Scope, rank(0)) },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := start(t, 2)
			w.Burden("a", 0, 0, 1, 1)
			w.Burden("b", 1, 0, 9, 90)
			w.Burden("c", 1, 0, 9, 90) // so that worker 0 would be chosen
			pass(600 * time.Millisecond)
			w.report(0, all(1, 0))
			w.report(1, all(1, 0))
			w.speaks(2*time.Second, 1)
			w.wantExcluded(0, "")
			w.speaks(2*time.Second, 1)
			w.wantExcluded(0, selection.Stalled)
			began := time.Now().Add(-900 * time.Millisecond) // when it was excluded
			var tried []time.Duration
			for range 25 {
				if w.chosen() == 0 {
					tried = append(tried, time.Since(began).Round(time.Second))
					if w.chosen() == 0 {
						t.Errorf("%s: two trials at a time", name)
					}
				}
				w.speaks(time.Second, 1)
			}
			if !slices.Equal(tried, []time.Duration{11 * time.Second, 21 * time.Second}) {
				t.Errorf("%s: trials after %v", name, tried)
			}
			if w.chosen(func(r *selection.SelectRequest) { r.Pinned = new(rank(0)) }) != 0 {
				t.Errorf("%s: a pinned request went elsewhere", name)
			}
			sign(w)
			pass(100 * time.Millisecond)
			w.wantExcluded(0, "")
		})
	}
}

// TestPlacedTrial: requests whose prompt is unknown go to a rank that gives no sign of life as seldom
// as others do, booked or not, and have no such rank as a fallback.
func TestPlacedTrial(t *testing.T) {
	for _, book := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := start(t, 2)
			w.Burden("b", 1, 0, 9, 90)
			w.Burden("c", 1, 0, 9, 90) // so that worker 0 would be chosen
			pass(600 * time.Millisecond)
			w.report(0, all(1, 0))
			w.speaks(4*time.Second, 1)
			w.wantExcluded(0, selection.Stalled)
			place := func() selection.Selection {
				sel, err := w.PlaceByLoad(&selection.LoadRequest{Scope: servicetest.Scope, Fallbacks: 1, Book: book})
				if err != nil {
					t.Fatal(err)
				}
				if book {
					_ = w.Free(*sel.ReservationID) // its caller gives up
				}
				return sel
			}
			tried := 0
			for range 21 {
				for range 3 {
					if place().Rank == rank(0) {
						tried++
					}
				}
				w.speaks(time.Second, 1)
			}
			if tried != 2 {
				t.Errorf("booked %t: %d requests in 21 s", book, tried)
			}
			w.speaks(11*time.Second, 1)
			for i := range 20 {
				w.Burden(fmt.Sprint("more", i), 0, 0, 1, 1)
			}
			if sel := place(); sel.Rank != rank(1) || len(sel.Fallbacks) != 0 {
				t.Errorf("booked %t: chosen %v, then %v", book, sel.Rank, sel.Fallbacks)
			}
		})
	}
}

// TestSilent: a rank whose source has been quiet for 15 s, and of which nothing else is heard, is
// excluded until something is heard; reports that say the same are heard.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 3)
		w.report(2, load.Report{Running: load.Known(0), Source: load.Told}) // promises nothing
		w.Burden("a", 0, 0, 1, 1)
		idle := all(0, 0)
		for range 20 {
			w.report(0, idle)
			w.report(1, idle)
			pass(time.Second)
		}
		w.wantExcluded(0, "")
		w.speaks(13*time.Second, 1)
		w.wantExcluded(0, "")
		w.speaks(3*time.Second, 1)
		w.wantExcluded(0, selection.Silent)
		w.wantExcluded(2, "")
		_ = w.OutputBlock("a", nil)
		pass(100 * time.Millisecond)
		w.wantExcluded(0, "")
		w.speaks(16*time.Second, 1)
		w.wantExcluded(0, selection.Silent)
		w.report(0, idle)
		pass(100 * time.Millisecond)
		w.wantExcluded(0, "")
		w.Reports().Remove(rank(0), load.Push)
		w.speaks(30*time.Second, 1)
		w.wantExcluded(0, "")
	})
}

// TestPausedScrape: an engine whose metrics fail does not count as stalled by what it reported before,
// but as silent after 15 s, and is alive with the next report. One whose metrics do not come, perhaps
// because it hangs, is stalled.
func TestPausedScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 3)
		scraped := func(id, running uint64) {
			w.report(id, load.Report{Running: load.Known(running), Waiting: load.Known(0), Source: load.Scrape, Interval: 2 * time.Second})
		}
		scraped(0, 3)
		scraped(1, 3)
		w.speaks(2*time.Second, 2)
		w.Reports().Pause(rank(0), load.Scrape)
		w.speaks(4*time.Second, 2)
		w.wantExcluded(0, "")
		w.wantExcluded(1, selection.Stalled)
		scraped(0, 3) // the same, and then nothing comes any more
		w.speaks(6*time.Second, 2)
		w.wantExcluded(0, selection.Stalled)
		scraped(0, 4)
		scraped(1, 4)
		pass(100 * time.Millisecond)
		w.wantExcluded(0, "")
		w.wantExcluded(1, "")
		w.Reports().Pause(rank(0), load.Scrape)
		w.speaks(14*time.Second, 2)
		w.wantExcluded(0, "")
		w.speaks(2*time.Second, 2)
		w.wantExcluded(0, selection.Silent)
		scraped(0, 4)
		pass(100 * time.Millisecond)
		w.wantExcluded(0, "")
	})
}

// TestAwaited: an engine that says nothing of itself is stalled if the first byte of a streamed answer
// of it is awaited for too long, though not while other signs come, until the next sign; where it
// has none, no load is told of it.
func TestAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 2)
		await := func(id uint64) { w.Await(servicetest.Scope, rank(id)) }
		w.Burden("a", 1, 0, 1, 1)
		pass(time.Minute)
		await(0)
		await(0)
		await(1)
		for range 5 {
			pass(time.Second)
			_ = w.OutputBlock("a", nil)
		}
		w.wantExcluded(0, selection.Stalled)
		w.wantExcluded(1, "")
		if row := w.row(0); row.Reported != nil || row.Foreign != nil {
			t.Errorf("%+v", row)
		}
		w.Awaited(servicetest.Scope, rank(0), false) // its client gives up
		w.Awaited(servicetest.Scope, rank(0), false)
		pass(time.Second)
		w.wantExcluded(0, selection.Stalled)
		await(0)
		pass(time.Second)
		w.wantExcluded(0, selection.Stalled)
		w.Awaited(servicetest.Scope, rank(0), true)
		pass(time.Second)
		w.wantExcluded(0, "")
		pass(time.Minute) // nothing is awaited
		w.wantExcluded(0, "")
		w.Awaited(servicetest.Scope, rank(1), true)
		w.Awaited(servicetest.Scope, rank(1), true) // of an earlier registration
		await(1)
		w.Remove(1)
		pass(time.Second)
		w.Awaited(servicetest.Scope, rank(1), true)
		w.Put(servicetest.Record(1, 1))
		pass(5 * time.Second)
		w.wantExcluded(1, "")
	})
}

// TestAllStalled: if no eligible rank gives a sign of life, none is excluded, which is counted for
// each choice that has an effect, however often it looks at the ranks.
func TestAllStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 2)
		w.SetBusy(overload.Thresholds{PrefillTokens: new(uint64(1000))})
		w.report(0, all(1, 0))
		pass(5 * time.Second)
		only := func(r *selection.SelectRequest) { r.HasAllowedWorkers, r.AllowedWorkers = true, []uint64{0} }
		if w.chosen(only) != 0 {
			t.Error("the only eligible rank was not chosen")
		}
		w.report(1, all(1, 0))
		pass(5 * time.Second)
		w.chosen()
		w.wantExcluded(0, "")
		w.wantExcluded(1, "")
		w.chosen(func(r *selection.SelectRequest) { r.Advisory = true })
		w.WantSeries("engines_all_excluded_total 2")
		if _, err := w.PlaceByLoad(&selection.LoadRequest{Scope: servicetest.Scope}); err != nil {
			t.Error(err)
		}
		w.WantSeries("engines_all_excluded_total 3")
	})
}

// TestStalledOff: with a limit that is not positive nothing is excluded.
func TestStalledOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 2, func(c *node.Config) { c.Reports.StalledAfter = -1 })
		w.report(0, all(1, 0))
		w.speaks(30*time.Second, 1)
		w.wantExcluded(0, "")
	})
}

// TestBookingsDoNotStall: unfinished reservations alone, without a source that shows unfinished
// work, exclude no rank.
func TestBookingsDoNotStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 2)
		w.Burden("leaked", 0, 0, 5, 50)
		for range 60 {
			w.report(0, all(0, 0))
			w.report(1, all(0, 0))
			pass(time.Second)
		}
		w.wantExcluded(0, "")
	})
}

// TestSlowIsAlive: an engine that is ten times slower than assumed, and gives a sign only when a
// prefill is complete, is not excluded, over random schedules of prompts; once it freezes, it is.
func TestSlowIsAlive(t *testing.T) {
	const rate = 1200 // tokens per second
	seeds := uint64(100)
	if testing.Short() {
		seeds = 15
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 8))
			w := start(t, 2)
			tokens, busy := uint64(0), time.Duration(0)
			report := func(running, waits, uncached uint64) {
				w.report(0, load.Report{
					Running: load.Known(running), Waiting: load.Known(waits), WaitingUncachedTokens: load.Known(uncached),
					PrefillTokens: load.Known(tokens), PrefillBusyMicros: load.Known(uint64(busy.Microseconds())),
					Source: load.Push, Interval: time.Second,
				})
			}
			report(0, 0, 0)
			pass(100 * time.Millisecond)
			for range 12 {
				size := uint64(1 + r.IntN(3000))
				if busy >= time.Second { // its rate has been measured
					size *= 4
				}
				w.Burden("x", 0, 0, 1, size)
				report(1, 0, 0)
				took := time.Duration(float64(size) / rate * float64(time.Second))
				for left := took; left > 0; left -= time.Second {
					pass(min(left, time.Second))
					w.wantExcluded(0, "")
				}
				tokens, busy = tokens+size, busy+took
				_ = w.PrefillComplete("x")
				_ = w.Free("x")
				report(0, 0, 0)
				pass(time.Duration(r.IntN(2000)) * time.Millisecond)
			}
			if seed > 0 {
				return
			}
			report(1, 1, 1)
			pass(10 * time.Second)
			w.wantExcluded(0, selection.Stalled)
		})
	}
}

// TestKVEventIsASign: a message of a rank's KV events is a sign of life.
func TestKVEventIsASign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{servicetest.Start(t)}
		for id := range uint64(2) {
			w.Put(servicetest.Record(id, 1))
			w.report(id, all(1, 0))
		}
		w.speaks(4*time.Second, 1)
		w.wantExcluded(0, selection.Stalled)
		w.Engine(0, 0).Publish(0, servicetest.Cleared())
		pass(200 * time.Millisecond)
		w.wantExcluded(0, "")
	})
}

// TestUnreachable: a rank that takes no connections gets no request, also none on trial, whatever late signs of its requests
// come, until it takes connections again. With signs of life turned off it stays as it was.
func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 2)
		w.Burden("a", 0, 0, 1, 1)
		w.Burden("b", 1, 0, 9, 90)
		w.Burden("c", 1, 0, 9, 90) // so that worker 0 would be chosen
		w.Unreachable(servicetest.Scope, rank(0))
		pass(100 * time.Millisecond)
		w.wantExcluded(0, selection.Silent)
		_ = w.PrefillComplete("a")
		w.Answering(servicetest.Scope, rank(0))
		for range 25 {
			pass(time.Second)
			if w.chosen() == 0 {
				t.Error("it gets a request")
			}
			w.Unreachable(servicetest.Scope, rank(0)) // whoever looks says it each time
		}
		w.Reachable(servicetest.Scope, rank(0))
		pass(200 * time.Millisecond)
		w.wantExcluded(0, "")
		w.Unreachable(servicetest.Scope, rank(9)) // of a worker that has left
	})
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 2, func(c *node.Config) { c.Reports.StalledAfter = -1 })
		w.Unreachable(servicetest.Scope, rank(0))
		pass(time.Second)
		w.wantExcluded(0, "")
	})
}
