package reports_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const blockSize = servicetest.BlockSize

// world is a service of some workers with one rank each.
type world struct{ *servicetest.World }

func start(t *testing.T, workers uint64, change ...func(*node.Config)) *world {
	w := &world{servicetest.Start(t, append(change, servicetest.EventsOff)...)}
	for id := range workers {
		w.Put(servicetest.Record(id, 1))
	}
	return w
}

func rank(id uint64) catalog.Rank { return catalog.Rank{Worker: id} }

// report gives a report that has come just now.
func (w *world) report(id uint64, r load.Report) { w.Reports().Report(rank(id), r, time.Now()) }

// pass lets time pass, and waits until nothing happens any more.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// row returns the row of /loads of a rank.
func (w *world) row(id uint64) selection.RankLoad {
	rows := w.Loads(nil, nil)[0].Loads
	return rows[slices.IndexFunc(rows, func(l selection.RankLoad) bool { return l.Rank == rank(id) })]
}

// wantForeign checks the foreign load of a rank; none shown is none.
func (w *world) wantForeign(id uint64, want reservations.Foreign) {
	w.T.Helper()
	got := w.row(id).Foreign
	if got == nil {
		got = new(reservations.Foreign)
	}
	if *got != want {
		w.T.Errorf("worker %d has %+v, want %+v", id, *got, want)
	}
}

// all is a report that knows everything of a rank with so many running and waiting requests, each
// with a block, the waiting ones with 8 tokens to compute.
func all(running, waits uint64) load.Report {
	return load.Report{
		Running: load.Known(running), Waiting: load.Known(waits), KVTokensUsed: load.Known(blockSize * running),
		WaitingUncachedTokens: load.Known(8 * waits), Source: load.Push, Interval: time.Second,
	}
}

// TestForeign: what a report has beyond the bookings is computed when it comes, against the
// reservations that live then, and stays until the next one, whatever is booked and freed.
func TestForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1)
		w.Burden("a", 0, 0, 2, 20)
		w.Burden("b", 0, 0, 1, 8)
		if row := w.row(0); row.Foreign != nil || row.Reported != nil {
			t.Fatalf("without a source the row is %+v", row)
		}
		pass(600 * time.Millisecond)
		w.Burden("young", 0, 0, 1, 4) // may not have reached the engine yet
		w.report(0, load.Report{
			Running: load.Known(3), Waiting: load.Known(4), KVTokensUsed: load.Known(7*blockSize - 1),
			WaitingUncachedTokens: load.Known(100), Source: load.Push, Interval: time.Second,
		})
		pass(100 * time.Millisecond)
		want := reservations.Foreign{Requests: 5, Waiting: 2, PrefillTokens: 72, Blocks: 3}
		w.wantForeign(0, want)
		for _, id := range []string{"a", "b"} {
			if err := w.Free(id); err != nil {
				t.Fatal(err)
			}
		}
		pass(time.Second)
		w.wantForeign(0, want)
		if row := w.row(0); row.Requests != 1 || row.DecodeBlocks != 1 || row.PrefillTokens != 4 || row.Reported.Stale || row.Reported.Running != load.Known(3) {
			t.Errorf("the row is %+v with %+v", row, row.Reported)
		}
		w.Burden("more", 0, 0, 20, 4000)
		pass(600 * time.Millisecond)
		w.report(0, all(1, 0))
		pass(100 * time.Millisecond)
		w.wantForeign(0, reservations.Foreign{})
	})
}

// TestStale: a report is used for its time to live, which is at least 2.5 intervals of its source,
// and then shown as stale. A report of another source that is fresh takes its place.
func TestStale(t *testing.T) {
	for _, test := range []struct {
		source   load.Source
		interval time.Duration
		lives    time.Duration
	}{
		{load.Push, time.Second, 5 * time.Second},
		{load.Scrape, 10 * time.Second, 25 * time.Second},
		{load.Told, 0, 5 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := start(t, 1)
			r := all(3, 1)
			r.Source, r.Interval = test.source, test.interval
			w.report(0, r)
			pass(test.lives - time.Millisecond)
			full := reservations.Foreign{Requests: 4, Waiting: 1, PrefillTokens: 8, Blocks: 3}
			w.wantForeign(0, full)
			pass(100 * time.Millisecond)
			w.wantForeign(0, reservations.Foreign{})
			if st := w.row(0).Reported; !st.Stale || st.Running != load.Known(3) || st.Age != test.lives+99*time.Millisecond {
				t.Errorf("%s: shown as %+v", test.source, st)
			}
			told := load.Report{Running: load.Known(9), Source: load.Told}
			w.report(0, told)
			pass(100 * time.Millisecond)
			w.wantForeign(0, reservations.Foreign{Requests: 9})
			w.Reports().Remove(rank(0), load.Told)
			w.Reports().Remove(rank(0), test.source)
			pass(100 * time.Millisecond)
			if row := w.row(0); row.Foreign != nil || row.Reported != nil {
				t.Errorf("%s: removed, the row is %+v", test.source, row)
			}
		})
	}
}

// TestHalf: a part of the foreign load counts if at least half of the ranks have it fresh; then the
// others have the median.
func TestHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 5)
		w.report(0, all(1, 0))
		w.report(1, all(7, 0))
		pass(100 * time.Millisecond)
		for id := range uint64(5) {
			w.wantForeign(id, reservations.Foreign{})
		}
		w.report(2, all(4, 2))
		pass(100 * time.Millisecond)
		w.wantForeign(1, reservations.Foreign{Requests: 7, Blocks: 7})
		w.wantForeign(3, reservations.Foreign{Requests: 6, Blocks: 4})
		w.wantForeign(4, reservations.Foreign{Requests: 6, Blocks: 4})
		w.Remove(0) // two of four
		pass(5 * time.Second)
		w.report(1, all(7, 0))
		w.report(2, load.Report{Running: load.Known(2), Source: load.Told})
		pass(100 * time.Millisecond)
		w.wantForeign(2, reservations.Foreign{Requests: 2}) // one of four knows blocks
		w.wantForeign(3, reservations.Foreign{Requests: 2})
	})
}

// TestHalfOfThoseWithPrompts: ranks of workers that only encode are not counted, whether they report or not.
func TestHalfOfThoseWithPrompts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 4)
		for id := range uint64(4) {
			w.Put(servicetest.Record(10+id, 1, encodes))
		}
		w.report(1, all(7, 0))
		w.report(10, all(1, 0))
		pass(100 * time.Millisecond)
		w.wantForeign(3, reservations.Foreign{}) // one of four
		w.report(0, all(5, 0))
		pass(100 * time.Millisecond)
		w.wantForeign(3, reservations.Foreign{Requests: 5, Blocks: 5}) // two of four
	})
}

// encodes gives a worker the role of those that only encode.
func encodes(r *catalog.Record) { r.Role = new(catalog.RoleEncode) }

// TestNoFavourite: a loaded rank whose reports stop is not taken for an empty one.
func TestNoFavourite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 4, func(c *node.Config) { c.Reports.StalledAfter = -1 })
		for n := range 8 {
			for id := range uint64(4) {
				if id > 0 || n == 0 {
					w.report(id, all(20+id%2, 0))
				}
			}
			pass(time.Second)
		}
		if st := w.row(0).Reported; !st.Stale {
			t.Fatalf("it still reports: %+v", st)
		}
		chosen := 0
		for range 300 {
			if w.chosen() == 0 {
				chosen++
			}
		}
		if chosen > 0 { // worker 2 has less than the median
			t.Errorf("chosen %d of 300 times", chosen)
		}
	})
}

// TestLeftRanks: reports of ranks that no worker has, or no longer has, have no effect.
func TestLeftRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 2)
		w.report(9, all(1, 1))
		w.Reports().Report(catalog.Rank{Worker: 1, DP: 3}, all(1, 1), time.Now())
		w.report(1, all(5, 0))
		pass(100 * time.Millisecond)
		w.Remove(1)
		w.report(1, all(6, 0))
		w.Put(servicetest.Record(1, 1))
		w.wantForeign(1, reservations.Foreign{})
		pass(100 * time.Millisecond)
		w.wantForeign(1, reservations.Foreign{Requests: 5, Blocks: 5}) // it was away for a moment only
	})
}

// TestAgainstModel compares the foreign load of all ranks with a naive model of L1 and L2, over
// random histories of bookings, reports and time.
func TestAgainstModel(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 8
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			h := &history{world: start(t, 1+seed%7), r: rand.New(rand.NewPCG(seed, 4)), live: make(map[string]*booking)}
			h.reports = make([]told, 1+seed%7)
			for range 150 {
				h.step()
				pass(100 * time.Millisecond)
				for id, want := range h.want() {
					// It is not applied again where only some tokens have changed.
					if f := h.row(uint64(id)).Foreign; f != nil && f.PrefillTokens > 0 && want.PrefillTokens > 0 &&
						max(f.PrefillTokens, want.PrefillTokens)-min(f.PrefillTokens, want.PrefillTokens) < blockSize {
						want.PrefillTokens = f.PrefillTokens
					}
					h.wantForeign(uint64(id), want)
				}
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

type history struct {
	*world
	r       *rand.Rand
	n       int
	live    map[string]*booking
	reports []told
}

type booking struct {
	worker         uint64
	at             time.Time
	blocks, tokens uint64
	waits          bool
}

type told struct {
	at      time.Time
	foreign [4]int // -1: unknown
}

func (h *history) step() {
	id := h.r.Uint64N(uint64(len(h.reports)))
	switch h.r.IntN(6) {
	case 0, 1:
		h.n++
		b := &booking{id, time.Now(), h.r.Uint64N(5), 1 + h.r.Uint64N(60), true}
		name := fmt.Sprint(h.n)
		h.Burden(name, id, 0, b.blocks, b.tokens)
		h.live[name] = b
	case 2:
		if len(h.live) == 0 {
			return
		}
		name := slices.Sorted(maps.Keys(h.live))[0]
		if b := h.live[name]; b.waits {
			_, b.waits = h.PrefillComplete(name), false
		} else {
			_ = h.Free(name)
			delete(h.live, name)
		}
	case 3:
		time.Sleep(time.Duration(h.r.IntN(30)) * 100 * time.Millisecond)
	default:
		h.tell(id)
	}
}

// tell gives a random report, and notes what is foreign of it.
func (h *history) tell(id uint64) {
	numbers := [4]int{-1, -1, -1, -1} // running, waiting, uncached, used
	for i, most := range []int{6, 6, 200, 40} {
		if h.r.IntN(5) > 0 {
			numbers[i] = h.r.IntN(most)
		}
	}
	amount := func(n int) (a load.Amount) {
		if n >= 0 {
			a = load.Known(uint64(n))
		}
		return a
	}
	h.report(id, load.Report{
		Running: amount(numbers[0]), Waiting: amount(numbers[1]), WaitingUncachedTokens: amount(numbers[2]),
		KVTokensUsed: amount(numbers[3]), Source: load.Push, Interval: time.Second,
	})
	requests, prefills, tokens, blocks := 0, 0, 0, 0
	for _, b := range h.live {
		if b.worker != id {
			continue
		}
		blocks += int(b.blocks)
		if time.Since(b.at) <= 500*time.Millisecond {
			continue
		}
		requests++
		if b.waits {
			prefills++
			tokens += int(b.tokens)
		}
	}
	x := told{time.Now(), [4]int{-1, -1, -1, -1}}
	if numbers[0] >= 0 || numbers[1] >= 0 {
		x.foreign[0] = max(0, max(0, numbers[0])+max(0, numbers[1])-requests)
	}
	if numbers[1] >= 0 {
		x.foreign[1] = max(0, numbers[1]-prefills)
	}
	if numbers[2] >= 0 {
		x.foreign[2] = max(0, numbers[2]-tokens)
	}
	if numbers[3] >= 0 {
		x.foreign[3] = max(0, (numbers[3]+blockSize-1)/blockSize-blocks)
	}
	h.reports[id] = x
}

// want is the foreign load of every rank.
func (h *history) want() []reservations.Foreign {
	parts := make([][4]int, len(h.reports))
	untold := false // nobody's tokens count
	for p := range 4 {
		var known []int
		for i, x := range h.reports {
			parts[i][p] = -1
			if !x.at.IsZero() && time.Since(x.at) < 5*time.Second && x.foreign[p] >= 0 {
				parts[i][p] = x.foreign[p]
				known = append(known, x.foreign[p])
			}
		}
		slices.Sort(known)
		for i := range parts {
			if 2*len(known) < len(parts) || len(known) == 0 {
				parts[i][p] = 0
				untold = untold || p == 2
			} else if parts[i][p] < 0 {
				parts[i][p] = known[(len(known)-1)/2]
			}
		}
	}
	all := make([]reservations.Foreign, len(parts))
	for i, p := range parts {
		all[i] = reservations.Foreign{Requests: uint32(p[0]), Waiting: uint32(min(p[0], p[1])), PrefillTokens: uint64(p[2]), Blocks: uint64(p[3])}
		all[i].Untold = untold && all[i].Waiting > 0
	}
	return all
}

// TestNews: the ledger is told the same whether only the ranks with new reports are looked at or
// all are, whatever ranks report, by which sources, how seldom and with what left out.
func TestNews(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			const workers = 4
			rnd := rand.New(rand.NewPCG(seed, 1))
			one, other := start(t, workers), start(t, workers)
			seldom := []int{0, 0, 0, 2}[rnd.IntN(4)]
			for step := range 200 {
				for id := range uint64(workers) {
					switch rnd.IntN(8 + seldom*40) {
					case 0, 1, 2:
						r := all(uint64(rnd.IntN(5)), uint64(rnd.IntN(3)))
						r.MaxRunning, r.KVTokensTotal = load.Known(64), load.Known(uint64(4000+rnd.IntN(2)))
						if r.Source = load.Source(rnd.IntN(3)); r.Source != load.Push {
							r.Interval = 4 * time.Second
						}
						if rnd.IntN(30) == 0 {
							r.WaitingUncachedTokens = load.Amount{}
						}
						one.report(id, r)
						other.report(id, r)
					case 3:
						if rnd.IntN(20) == 0 {
							source := load.Source(rnd.IntN(3))
							one.Reports().Remove(rank(id), source)
							other.Reports().Remove(rank(id), source)
						}
					}
				}
				if rnd.IntN(100) == 0 {
					for _, w := range []*world{one, other} {
						w.Put(servicetest.Record(workers+uint64(step), 1))
					}
				}
				other.Reports().(*reports.Reports).LookAtAll()
				pass(100 * time.Millisecond)
				a, b := one.Loads(nil, nil)[0].Loads, other.Loads(nil, nil)[0].Loads
				for i := range a {
					if fmt.Sprintf("%+v %+v", a[i].Foreign, a[i].Reported) != fmt.Sprintf("%+v %+v", b[i].Foreign, b[i].Reported) {
						t.Fatalf("seed %d, step %d: %+v %+v, want %+v %+v", seed, step, a[i].Foreign, a[i].Reported, b[i].Foreign, b[i].Reported)
					}
				}
			}
		})
	}
}

// TestWorkersGo: nothing is kept of workers that have left, while others stay: neither of one whose
// source was removed before, or after, nor of the last one of a scope.
func TestWorkersGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 1)
		table := w.Reports().(*reports.Reports)
		other := catalog.Scope{Model: "other", Tenant: servicetest.Scope.Tenant}
		for id := uint64(1); id < 9; id++ {
			w.Put(servicetest.Record(id, 2, func(r *catalog.Record) {
				if id%2 == 0 {
					r.Scope = other
				}
			}))
			for dp := range uint32(2) {
				table.Report(catalog.Rank{Worker: id, DP: dp}, all(1, 0), time.Now())
			}
			w.report(0, all(1, 0))
			pass(time.Second)
			if n := table.Workers(); n != 2 {
				t.Errorf("%d workers, want 2", n)
			}
			sourceGoes := func() {
				for dp := range uint32(2) {
					table.Remove(catalog.Rank{Worker: id, DP: dp}, load.Push)
				}
			}
			if id%4 < 2 {
				sourceGoes()
			}
			w.Remove(id)
			pass(time.Second)
			sourceGoes()
		}
		if n := table.Workers(); n != 1 {
			t.Errorf("%d workers, want 1", n)
		}
	})
}
