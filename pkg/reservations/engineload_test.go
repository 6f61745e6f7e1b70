package reservations

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestEngineLoad: what an engine says is beside what is booked. It changes neither Load nor the
// rows of Loads, ends with its rank, and never makes a rank look emptier than its bookings.
func TestEngineLoad(t *testing.T) {
	l, _ := withRanks(2, nil)
	rank := catalog.Rank{Worker: 1}
	look := func(f func(v *View)) { l.Look(testScope, nil, f) }
	look(func(v *View) {
		if v.Engine(1) != nil || v.Total(1) != v.Load(1) || v.Greater(1) != v.Load(1) {
			t.Error("an engine that said nothing has a load")
		}
	})
	if _, err := l.Book(testScope, Request{ID: "a", Hashes: []uint64{1, 2}, TrackPrefill: true}, func(*View) (Placement, error) {
		return Placement{Slot: 1, Rank: rank, PrefillTokens: 32}, nil
	}); err != nil {
		t.Fatal(err)
	}
	booked := SlotLoad{PrefillTokens: 32, Blocks: 2, Requests: 1}
	said := EngineLoad{
		Foreign:  Foreign{Requests: math.MaxUint32, PrefillTokens: math.MaxUint64, Blocks: 7},
		Reported: SlotLoad{PrefillTokens: 40, Blocks: 1, Requests: 3},
	}
	l.SetEngineLoads(testScope, []RankEngineLoad{{9, rank, said}, {0, rank, said}, {1, rank, said}})
	look(func(v *View) {
		if v.Load(1) != booked || *v.Engine(1) != said {
			t.Errorf("booked %+v, said %+v", v.Load(1), v.Engine(1))
		}
		if got, want := v.Total(1), (SlotLoad{math.MaxUint64, 9, math.MaxUint32}); got != want {
			t.Errorf("total %+v, want %+v", got, want)
		}
		if got, want := v.Greater(1), (SlotLoad{40, 2, 3}); got != want {
			t.Errorf("greater %+v, want %+v", got, want)
		}
		if v.Total(0) != (SlotLoad{}) {
			t.Error("another rank has the load")
		}
	})
	if got := l.Loads(testScope)[1]; got != (Load{rank, 32, 2, 1}) {
		t.Errorf("the row is %+v", got)
	}
	l.RemoveRank(testScope, 1)
	l.PutRank(testScope, 1, catalog.Rank{Worker: 5})
	look(func(v *View) {
		if v.Total(1) != (SlotLoad{}) {
			t.Errorf("the next rank in the slot has %+v", v.Total(1))
		}
	})
}

// TestSettled compares Settled with a list of the reservations, over random histories of bookings,
// leases, completions, ends and time.
func TestSettled(t *testing.T) {
	type booking struct {
		at      time.Time
		tokens  uint64
		track   bool
		waiting bool
	}
	const age = 500 * time.Millisecond
	for seed := range uint64(50) {
		r, clock := rand.New(rand.NewPCG(seed, 9)), newFakeClock()
		l := New(1, clock.now, nil)
		rank := catalog.Rank{Worker: 3}
		l.PutRank(testScope, 2, rank)
		live := make(map[string]*booking)
		pick := func() string {
			for id := range live {
				return id
			}
			return ""
		}
		for step := range 200 {
			clock.advance(time.Duration(r.IntN(4)) * 100 * time.Millisecond)
			switch id := fmt.Sprint(step); r.IntN(4) {
			case 0, 1:
				b := &booking{clock.now(), r.Uint64N(1000), r.IntN(4) > 0, true}
				req := Request{ID: id, Hashes: []uint64{uint64(step)}, TrackPrefill: b.track, Lease: time.Duration(r.IntN(2)) * time.Hour}
				if _, err := l.Book(testScope, req, func(*View) (Placement, error) {
					return Placement{Slot: 2, Rank: rank, PrefillTokens: b.tokens}, nil
				}); err != nil {
					t.Fatal(err)
				}
				live[id] = b
			case 2:
				if id := pick(); id != "" {
					_, live[id].waiting = l.PrefillComplete(id), false
				}
			default:
				if id := pick(); id != "" {
					_ = l.Free(id)
					delete(live, id)
				}
			}
			want := Settled{Blocks: uint64(len(live))}
			for _, b := range live {
				if clock.now().Sub(b.at) <= age {
					continue
				}
				want.Requests++
				if b.track && b.waiting {
					want.Prefills++
					want.PrefillTokens += b.tokens
				}
			}
			if got, ok := l.Settled(testScope, 2, rank, age); !ok || got != want {
				t.Fatalf("seed %d, step %d: %+v, want %+v", seed, step, got, want)
			}
		}
		if _, ok := l.Settled(testScope, 2, catalog.Rank{Worker: 4}, age); ok {
			t.Error("another rank than that in the slot is known")
		}
	}
}
