package reservations

import (
	"errors"
	"fmt"
	"math/rand/v2"
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
		for range 400 {
			id := fmt.Sprint(rnd.IntN(12))
			switch rnd.IntN(12) {
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
			case 5:
				clock.advance(time.Duration(rnd.IntN(40)) * time.Second)
			}
		}
		if len(booked) == 0 {
			t.Fatalf("seed %d: no pair was booked", seed)
		}
		for i := range 12 {
			id := fmt.Sprint(i)
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
