package reservations

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// TestPairAllOrNothing: whatever refuses a pair, at whatever step, both of its sides are booked or
// none, and once all have ended the loads, the ids and the account are as in the beginning. Faults
// are refusals of the choice, ranks that leave, ids in use, limits of number and of memory, lost
// calls, and time that passes.
func TestPairAllOrNothing(t *testing.T) {
	refused := errors.New("refused")
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		l, clock := withRanks(4, nil)
		account := memory.NewAccount("ledger", 10*entryBytes)
		l.SetLimits(Limits{Reservations: 14, Memory: account})
		sc := testScope
		booked := map[string]bool{} // whether a pair that was booked had two sides
		for step := range 400 {
			id := fmt.Sprint(rnd.IntN(12))
			switch rnd.IntN(14) {
			default:
				before := l.Sides(id)
				req := Request{ID: id, Hashes: make([]uint64, rnd.IntN(30)), Prompt: 480}
				for i := range req.Hashes {
					req.Hashes[i] = rnd.Uint64N(8) // blocks repeat within a prompt, and among prompts
				}
				if rnd.IntN(2) == 0 {
					req.Lease = time.Duration(1+rnd.IntN(60)) * time.Second
				}
				alone := rnd.IntN(4) == 0
				err := l.BookPair(sc, req, func(*View) (PairPlacement, error) {
					if rnd.IntN(5) == 0 {
						return PairPlacement{}, refused
					}
					place := func(slot uint32) Side {
						return Side{Placement: Placement{Slot: slot, Rank: catalog.Rank{Worker: uint64(slot)}, PrefillTokens: 480}, TrackPrefill: true}
					}
					p := PairPlacement{Decode: place(rnd.Uint32N(2))}
					if !alone {
						p.Prefill = new(place(2 + rnd.Uint32N(2)))
					}
					return p, nil
				})
				after := l.Sides(id)
				switch {
				case err != nil && after != before && after != (Sides{}): // a refused pair may have ended one that was overdue
					t.Fatalf("seed %d: refused (%v), but %+v became %+v", seed, err, before, after)
				case err == nil && (after.Decode == "" || (after.Prefill == "") != alone):
					t.Fatalf("seed %d: booked %+v, alone: %t", seed, after, alone)
				case err == nil:
					booked[id] = true
				}
			case 0: // a plain reservation of that id, or of a side's
				name := []string{id, PrefillID(id), DecodeID(id)}[rnd.IntN(3)]
				_, _ = l.Book(sc, Request{ID: name}, leastLoaded)
			case 1:
				_ = l.PrefillComplete(DecodeID(id))
				_ = l.Free(PrefillID(id))
			case 2, 3:
				_ = l.Free(DecodeID(id))
				_ = l.Free(PrefillID(id))
				_ = l.Free(id)
			case 4:
				slot := rnd.Uint32N(4)
				l.RemoveRank(sc, slot)
				if rnd.IntN(3) > 0 {
					l.PutRank(sc, slot, catalog.Rank{Worker: uint64(slot)})
				}
			case 12, 13:
				as := fmt.Sprint("taken ", seed, " ", step)
				was, before, loads := l.Sides(id), l.Sides(as), l.Loads(sc)
				answer, prefill, err := l.TakeOver(id, as, time.Minute)
				switch now := l.Sides(as); {
				case err != nil && (now != before || l.Sides(id) != was) && !overdue(loads, l.Loads(sc)):
					t.Fatalf("seed %d: not taken (%v), but %+v is %+v, and %+v is %+v", seed, err, was, l.Sides(id), before, now)
				case err == nil && id != as && l.Sides(id) != Sides{}:
					t.Fatalf("seed %d: taken, but %+v is left", seed, l.Sides(id))
				case err == nil && was.Decode != "" && (answer.ID != now.Decode || (prefill == nil) != (now.Prefill == "")):
					t.Fatalf("seed %d: taken were %+v and %+v, booked is %+v", seed, answer, prefill, now)
				case err == nil:
					booked[as] = true
				}
			case 5:
				clock.advance(time.Duration(rnd.IntN(40)) * time.Second)
			}
		}
		if len(booked) == 0 {
			t.Fatalf("seed %d: no pair was booked", seed)
		}
		ids := slices.Collect(maps.Keys(booked))
		for i := range 12 {
			ids = append(ids, fmt.Sprint(i))
		}
		for _, id := range ids {
			for _, name := range []string{id, PrefillID(id), DecodeID(id)} {
				_ = l.Free(name)
			}
		}
		for _, load := range l.Loads(sc) {
			if load.PrefillTokens != 0 || load.Blocks != 0 || load.Requests != 0 {
				t.Fatalf("seed %d: %+v at the end", seed, load)
			}
		}
		st := l.Stats()
		if st.Live != 0 || l.room.live.Load() != 0 {
			t.Fatalf("seed %d: %+v, room %d", seed, st, l.room.live.Load())
		}
		for i := range l.ids.shards {
			if n := len(l.ids.shards[i].live); n != 0 {
				t.Fatalf("seed %d: %d ids are left", seed, n)
			}
		}
		s := l.scope(sc)
		if s != nil {
			s.mu.Lock()
			s.settle(0)
			used := account.Used() - s.settled
			s.mu.Unlock()
			if used != 0 {
				t.Fatalf("seed %d: %d bytes are on the account", seed, used)
			}
		}
	}
}

// TestPairOverdue: the id of a pair whose time is over can be booked in another scope, where nothing has
// ended its sides yet, as a pair and as one reservation.
func TestPairOverdue(t *testing.T) {
	l, clock := withRanks(2, nil)
	other := catalog.Scope{Model: "other"}
	l.PutRank(other, 0, catalog.Rank{})
	l.PutRank(other, 1, catalog.Rank{Worker: 1})
	book := func(sc catalog.Scope) error {
		return l.BookPair(sc, Request{ID: "p", Lease: time.Second}, func(*View) (PairPlacement, error) {
			return PairPlacement{Decode: Side{Placement: Placement{Slot: 1, Rank: catalog.Rank{Worker: 1}}}, Prefill: new(Side)}, nil
		})
	}
	for range 2 {
		for _, sc := range []catalog.Scope{testScope, other} {
			if err := book(sc); err != nil {
				t.Fatal(err)
			}
			clock.advance(2 * time.Second)
		}
	}
	if _, err := l.Book(testScope, Request{ID: "p"}, leastLoaded); err != nil {
		t.Fatal(err)
	}
}

// overdue reports whether reservations have ended between the loads: those whose time was over.
func overdue(before, after []Load) bool {
	sum := func(loads []Load) (n uint64) {
		for _, l := range loads {
			n += uint64(l.Requests)
		}
		return n
	}
	return sum(after) < sum(before)
}

// counted is a caller's state that counts its end.
type counted int

func (c *counted) ReservationEnded() { *c++ }

func (c *counted) PrefillEnded(bool) {}

func (c *counted) ReservationFreed() {}

// TestTakeOver: what is taken over has the same load under another id and lease, and its caller's state, which ends once. The first call
// has it, and if there is no room everything is as before.
func TestTakeOver(t *testing.T) {
	l, clock := withRanks(2, nil)
	sc := testScope
	states := [2]counted{}
	book := func() {
		t.Helper()
		err := l.BookPair(sc, Request{ID: "r", Hashes: []uint64{1, 2, 3}, Prompt: 50, Lease: time.Second}, func(*View) (PairPlacement, error) {
			side := func(slot uint32, tokens uint64) Side {
				return Side{Placement{Slot: slot, Rank: catalog.Rank{Worker: uint64(slot)}, PrefillTokens: tokens}, tokens > 0, &states[slot]}
			}
			return PairPlacement{Decode: side(0, 0), Prefill: new(side(1, 50))}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	book()
	loads := l.Loads(sc)
	answer, prefill, err := l.TakeOver("r", "new", time.Minute)
	if err != nil || answer.ID != "new.decode" || answer.Rank.Worker != 0 || answer.PrefillTokens != 0 || answer.TrackPrefill ||
		prefill.ID != "new.prefill" || prefill.Rank.Worker != 1 || prefill.PrefillTokens != 50 || !prefill.TrackPrefill || !slices.Equal(prefill.Hashes, []uint64{1, 2, 3}) {
		t.Fatalf("%+v, %+v, %v", answer, prefill, err)
	}
	if _, _, err := l.TakeOver("r", "again", time.Minute); !errors.Is(err, ErrNotFound) {
		t.Errorf("taken twice: %v", err)
	}
	clock.advance(30 * time.Second) // beyond the lease of the first booking
	if got := l.Loads(sc); !slices.Equal(got, loads) || states != [2]counted{} {
		t.Errorf("loads %+v were %+v, ended %v", got, loads, states)
	}
	l.SetLimits(Limits{Reservations: 3})
	if _, _, err := l.TakeOver("new", "more", time.Minute); err == nil { // for a moment there would be four
		t.Error("there was room")
	}
	if got := l.Loads(sc); !slices.Equal(got, loads) || states != [2]counted{} {
		t.Errorf("refused: loads %+v were %+v, ended %v", got, loads, states)
	}
	if err := errors.Join(l.Free("new.decode"), l.Free("new.prefill")); err != nil || states != [2]counted{1, 1} {
		t.Errorf("freed: %v, ended %v", err, states)
	}
}
