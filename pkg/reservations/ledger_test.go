package reservations

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/length"
)

var testScope = catalog.Scope{Model: "m", Tenant: "t"}

// withRanks returns a ledger whose slot n is worker n.
func withRanks(n int, obs Observer) (*Ledger, *fakeClock) {
	clock := newFakeClock()
	l := New(1, clock.now, obs)
	for slot := range uint32(n) {
		l.PutRank(testScope, slot, catalog.Rank{Worker: uint64(slot)})
	}
	return l, clock
}

// leastLoaded chooses the slot with the fewest requests, the first of equals.
func leastLoaded(v *View) (Placement, error) {
	best := 0
	for slot := range v.Slots() {
		if v.Load(uint32(slot)).Requests < v.Load(uint32(best)).Requests {
			best = slot
		}
	}
	return Placement{Slot: uint32(best), Rank: catalog.Rank{Worker: uint64(best)}, PrefillTokens: 10}, nil
}

// TestBookIsOneStep proves that no two of 200 parallel calls choose on the same
// loads: the ranks end exactly level.
func TestBookIsOneStep(t *testing.T) {
	l, _ := withRanks(8, nil)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			req := Request{ID: fmt.Sprint(i), Hashes: []uint64{uint64(i)}, TrackPrefill: true}
			if _, err := l.Book(testScope, req, leastLoaded); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, got := range l.Loads(testScope) {
		if want := (Load{got.Rank, 250, 25, 25}); got != want {
			t.Errorf("load %+v, want %+v", got, want)
		}
	}
}

// TestIDRace proves that of parallel reservations of one id in many scopes exactly
// one succeeds, and that the others name the rank that has it.
func TestIDRace(t *testing.T) {
	l := New(1, newFakeClock().now, nil)
	scope := func(i int) catalog.Scope { return catalog.Scope{Model: fmt.Sprint("m", i)} }
	for i := range 8 {
		l.PutRank(scope(i), 0, catalog.Rank{Worker: uint64(i)})
	}
	for round := range 100 {
		var wins atomic.Int32
		var winner atomic.Uint64
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range 8 {
			wg.Go(func() {
				rank := catalog.Rank{Worker: uint64(i)}
				_, err := l.Book(scope(i), Request{ID: "x"}, func(*View) (Placement, error) {
					return Placement{Rank: rank}, nil
				})
				if errs[i] = err; err == nil {
					wins.Add(1)
					winner.Store(rank.Worker)
				}
			})
		}
		wg.Wait()
		if wins.Load() != 1 {
			t.Fatalf("round %d: %d reservations", round, wins.Load())
		}
		for _, err := range errs {
			if exists := new(ExistsError); err != nil && (!errors.As(err, &exists) || exists.Rank.Worker != winner.Load()) {
				t.Fatalf("round %d: %v, want the rank of worker %d", round, err, winner.Load())
			}
		}
		if err := l.Free("x"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChooseErrorFirst proves that the error of choose comes back as it is,
// before the id is looked at, and that nothing is booked.
func TestChooseErrorFirst(t *testing.T) {
	l, _ := withRanks(1, nil)
	if _, err := l.Book(testScope, Request{ID: "a"}, leastLoaded); err != nil {
		t.Fatal(err)
	}
	mine := errors.New("mine")
	refuse := func(*View) (Placement, error) { return Placement{}, mine }
	for _, sc := range []catalog.Scope{testScope, {Model: "unknown"}} {
		if _, err := l.Book(sc, Request{ID: "a"}, refuse); err != mine { //nolint:errorlint // must not be wrapped
			t.Errorf("%v: error %v, want the one of choose", sc, err)
		}
	}
	if st := l.Stats(); st.Live != 1 || st.Booked != 1 {
		t.Errorf("%+v, want one reservation", st)
	}
}

// TestReusedSlot proves that a choice made for a rank that has left its slot
// does not book the rank that came after it.
func TestReusedSlot(t *testing.T) {
	l, _ := withRanks(2, nil)
	old, young := catalog.Rank{Worker: 1}, catalog.Rank{Worker: 9}
	bookOn(t, l, testScope, "a", 1, []uint64{1, 2})
	l.PutRank(testScope, 1, old) // again: keeps everything
	if got := l.Loads(testScope)[1]; got.Requests != 1 {
		t.Fatalf("load %+v after a repeated PutRank, want the reservation", got)
	}
	if freed := l.RemoveRank(testScope, 1); freed != 1 {
		t.Fatalf("RemoveRank freed %d, want 1", freed)
	}
	if freed := l.RemoveRank(testScope, 1) + l.RemoveRank(testScope, 99); freed != 0 {
		t.Fatalf("RemoveRank of unknown slots freed %d", freed)
	}
	l.PutRank(testScope, 1, young)
	_, err := l.Book(testScope, Request{ID: "a"}, func(v *View) (Placement, error) {
		if v.Known(1, old) || !v.Known(1, young) || v.Known(2, young) {
			t.Error("the view knows the wrong rank")
		}
		return Placement{Slot: 1, Rank: old}, nil
	})
	if !errors.Is(err, ErrUnknownRank) {
		t.Errorf("error %v, want ErrUnknownRank", err)
	}
	want := []Load{{Rank: catalog.Rank{Worker: 0}}, {Rank: young}}
	if d := cmp.Diff(want, l.Loads(testScope)); d != "" {
		t.Errorf("loads -want +got\n%s", d)
	}
}

// TestUnknownScope proves that a scope without ranks reads as empty.
func TestUnknownScope(t *testing.T) {
	l := New(1, time.Now, nil)
	l.Look(testScope, []uint64{1}, func(v *View) {
		if v.Slots() != 0 || v.Load(0) != (SlotLoad{}) || v.Known(0, catalog.Rank{}) {
			t.Errorf("view %+v of an unknown scope", v)
		}
	})
	if rows := l.Loads(testScope); len(rows) != 0 {
		t.Errorf("loads %v of an unknown scope", rows)
	}
	unknownRank := func(*View) (Placement, error) { return Placement{}, nil }
	if _, err := l.Book(testScope, Request{ID: "a"}, unknownRank); !errors.Is(err, ErrUnknownRank) {
		t.Errorf("error %v, want ErrUnknownRank", err)
	}
}

// TestUntracked proves that prefill tokens count only when they are tracked, and
// that the observer gets the whole story.
func TestUntracked(t *testing.T) {
	var rec recorder
	l, _ := withRanks(1, &rec)
	output := uint32(7)
	for _, track := range []bool{false, true} {
		req := Request{ID: fmt.Sprint(track), Hashes: []uint64{1, 1}, TrackPrefill: track, ExpectedOutput: &output}
		if _, err := l.Book(testScope, req, leastLoaded); err != nil {
			t.Fatal(err)
		}
	}
	if got := l.Loads(testScope)[0]; got.PrefillTokens != 10 || got.Blocks != 1 {
		t.Errorf("load %+v, want the 10 tokens of one request and one block", got)
	}
	booked := func(id string, track bool) step {
		return step{"booked", Event{
			Scope: testScope, ID: id, Origin: Origin{Process: 1}, Hashes: []uint64{1, 1},
			PrefillTokens: 10, TrackPrefill: track, ExpectedOutput: &output,
		}}
	}
	if d := cmp.Diff([]step{booked("false", false), booked("true", true)}, rec.steps); d != "" {
		t.Errorf("events -want +got\n%s", d)
	}
}

// TestEventOrder proves that the events of an id arrive in the order of its
// life, however many goroutines book and free it, and that only what was
// announced as booked is announced as freed.
func TestEventOrder(t *testing.T) {
	var rec recorder // needs no lock: one scope
	l, _ := withRanks(2, &rec)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				_, _ = l.Book(testScope, Request{ID: "x", Hashes: []uint64{1, 2}}, leastLoaded)
				_ = l.PrefillComplete("x")
				_ = l.Free("x")
			}
		})
	}
	wg.Wait()
	live := false
	for i, s := range rec.steps {
		if (s.Kind == "booked") == live {
			t.Fatalf("event %d: %s while live is %v", i, s.Kind, live)
		}
		live = s.Kind != "freed"
	}
	if live || len(rec.steps) == 0 {
		t.Errorf("%d events, live at the end: %v", len(rec.steps), live)
	}
}

type step struct {
	Kind string
	Event
}

type recorder struct{ steps []step }

func (r *recorder) Booked(e Event) uint64 {
	r.steps = append(r.steps, step{"booked", e})
	return 0
}
func (r *recorder) PrefillCompleted(e Event) { r.steps = append(r.steps, step{"prefill", e}) }
func (r *recorder) Freed(e Event)            { r.steps = append(r.steps, step{"freed", e}) }
func (r *recorder) Renewed(e Event)          { r.steps = append(r.steps, step{"renewed", e}) }

// TestEverythingAtOnce runs all methods in parallel, for the race detector, and
// proves that nothing is left when the ranks are removed.
func TestEverythingAtOnce(t *testing.T) {
	l := New(1, time.Now, nil)
	scopes := []catalog.Scope{{Model: "a"}, {Model: "b"}}
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(g)))
			for range 1500 {
				anything(l, rnd, scopes[rnd.IntN(2)])
			}
		})
	}
	wg.Wait()
	for _, sc := range scopes {
		for slot := range uint32(80) {
			l.RemoveRank(sc, slot)
		}
	}
	if st := l.Stats(); st.Live != 0 || len(l.scopes) != 0 {
		t.Errorf("%+v and %d scopes left", st, len(l.scopes))
	}
}

// anything calls one method with random arguments. Errors are expected.
func anything(l *Ledger, rnd *rand.Rand, sc catalog.Scope) {
	id, slot := fmt.Sprint(rnd.IntN(50)), rnd.Uint32N(80)
	rank := catalog.Rank{Worker: uint64(slot)}
	hashes := chain(1+rnd.IntN(20), func(i int) uint64 { return uint64(i) })
	switch rnd.IntN(10) {
	case 0, 1, 2:
		_, _ = l.Book(sc, Request{ID: id, Hashes: hashes, TrackPrefill: true}, func(*View) (Placement, error) {
			return Placement{Slot: slot, Rank: rank, PrefillTokens: 5}, nil
		})
	case 3:
		_ = l.Free(id)
	case 4:
		_ = l.PrefillComplete(id)
	case 5:
		f := rnd.Float64()
		_ = l.OutputBlock(id, &f)
	case 6:
		l.Look(sc, hashes, func(v *View) {
			for slot := range v.Slots() {
				if n := v.Shared(uint32(slot)); uint64(n) > v.Load(uint32(slot)).Blocks+uint64(len(hashes)) {
					panic("shared out of range")
				}
			}
		})
	case 7:
		l.PutRank(sc, slot, rank)
	case 8:
		l.RemoveRank(sc, slot)
	case 9:
		l.Expire()
		l.Loads(sc)
		l.Stats()
	}
}

// TestMemoryComesBack proves that Expire gives the memory of a burst back while
// the ranks stay.
func TestMemoryComesBack(t *testing.T) {
	l, clock := withRanks(2, nil)
	each := 400
	if testing.Short() {
		each = 100
	}
	before := heapInUse()
	for i := range each {
		hashes := chain(2_000, func(at int) uint64 { return uint64(i)<<32 | uint64(at) })
		bookOn(t, l, testScope, fmt.Sprint("a", i), 0, hashes)
		bookOn(t, l, testScope, fmt.Sprint("b", i), 1, hashes)
	}
	full := heapInUse()
	clock.advance(lifetime + 1)
	if n, _ := l.Expire(); n != 2*each {
		t.Fatalf("%d expired, want %d", n, 2*each)
	}
	if after := heapInUse(); after-before > (full-before)/50 {
		t.Errorf("heap %d kB, full %d kB, afterwards %d kB", before>>10, full>>10, after>>10)
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // twice: what sync.Pool keeps goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestIDsShrink proves that the id maps follow the number of live ids down.
func TestIDsShrink(t *testing.T) {
	length.Sequential(t)
	x, all := newIDs(), make([]*entry, 200_000)
	for i := range all {
		all[i] = &entry{id: fmt.Sprint(i)}
		x.claim(all[i])
	}
	for _, r := range all[1_000:] {
		x.release(r)
	}
	for i := range x.shards {
		if sh := &x.shards[i]; sh.peak > shrinkAbove {
			t.Errorf("shard %d: room for %d ids, holds %d", i, sh.peak, len(sh.live))
		}
	}
	for _, r := range all[:1_000] {
		if x.find(r.id, nil, 1) != r {
			t.Fatalf("%s is lost", r.id)
		}
	}
}

// TestBookedCall: Booked runs once for a reservation that is made, also where an overdue one has had its id, and never for one that
// is refused after the choice.
func TestBookedCall(t *testing.T) {
	l, now := limited(Limits{Reservations: 3})
	var calls []string
	place := func(id string) Placement { return Placement{Booked: func() { calls = append(calls, id) }} }
	book := func(id string, lease time.Duration) {
		_, _ = l.Book(catalog.Scope{}, Request{ID: id, Lease: lease}, func(*View) (Placement, error) { return place(id), nil })
	}
	pair := func(id string) {
		_ = l.BookPair(catalog.Scope{}, Request{ID: id}, func(*View) (PairPlacement, error) {
			return PairPlacement{Decode: Side{Placement: place(id)}, Prefill: new(Side{Placement: place("never")})}, nil
		})
	}
	book("a", time.Second)
	book("a", 0) // in use
	*now = now.Add(2 * time.Second)
	book("a", 0) // overdue
	pair("p")
	pair("p") // in use
	pair("q") // no room
	book("b", 0)
	_, _ = l.Book(catalog.Scope{}, Request{ID: "c"}, func(*View) (Placement, error) {
		p := place("c")
		p.Rank.Worker = 9 // is not there
		return p, nil
	})
	if want := []string{"a", "a", "p"}; !slices.Equal(calls, want) {
		t.Errorf("called for %v, want %v", calls, want)
	}
}
