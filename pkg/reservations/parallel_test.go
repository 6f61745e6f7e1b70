package reservations

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestReplicasInParallel books, frees, applies events and exchanges snapshots in
// parallel, for the race detector, and proves that the replicas agree afterwards
// and that nothing is live that has ended.
func TestReplicasInParallel(t *testing.T) {
	w := &fleet{T: t, clock: newFakeClock()}
	wires := make([]*wire, 3)
	for i := range wires {
		wires[i] = &wire{process: uint64(i + 1)}
		r := &replica{fleet: w, process: wires[i].process, led: New(wires[i].process, w.clock.now, wires[i])}
		for _, sc := range fleetScopes {
			for n := range uint32(3) {
				r.led.PutRank(sc, n, catalog.Rank{Worker: uint64(n)})
			}
		}
		w.replicas = append(w.replicas, r)
	}
	exchange := func(from, to *replica) {
		for process, ranges := range from.led.Ended() {
			to.led.MergeEnded(process, ranges)
		}
		for _, b := range from.reservations() {
			to.led.MergeReservation(b)
		}
	}
	var wg sync.WaitGroup
	for i, r := range w.replicas {
		for g := range uint64(2) {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(i), g))
				for range 400 {
					id, sc := fmt.Sprint(rnd.IntN(30)), fleetScopes[rnd.IntN(2)]
					switch rnd.IntN(8) {
					case 0, 1, 2:
						_, _ = r.led.Book(sc, Request{ID: id, Hashes: []uint64{1}, TrackPrefill: true}, leastLoaded)
					case 3:
						_ = r.led.Free(id)
					case 4:
						_ = r.led.PrefillComplete(id)
					case 5, 6:
						wires[rnd.IntN(3)].deliver(rnd, r.led)
					case 7:
						if rnd.IntN(10) == 0 {
							exchange(w.replicas[rnd.IntN(3)], r)
						}
					}
				}
			})
		}
	}
	wg.Wait()
	for range 2 {
		for _, from := range w.replicas {
			for _, to := range w.replicas {
				exchange(from, to)
			}
		}
	}
	w.same()
	for _, r := range w.replicas {
		ended := r.led.Ended()
		for _, b := range r.reservations() {
			if ended[b.Origin.Process].Has(b.Origin.Sequence, false) {
				t.Errorf("process %d: %v is live and has ended", r.process, b.Origin)
			}
		}
		if st := r.led.Stats(); st.Live != uint64(len(r.reservations())) {
			t.Errorf("process %d: %+v, %d listed", r.process, st, len(r.reservations()))
		}
	}
}

// wire is an observer that keeps all events, to be delivered later.
type wire struct {
	process uint64

	mu     sync.Mutex
	seq    uint64
	events []func(*Ledger)
}

func (w *wire) Booked(e Event) uint64 {
	b := Reservation{
		Scope: e.Scope, ID: e.ID, Rank: e.Rank, Hashes: e.Hashes,
		PrefillTokens: e.PrefillTokens, TrackPrefill: e.TrackPrefill, Lease: e.Lease,
	}
	return w.count(func(seq uint64) func(*Ledger) {
		b.Origin = Origin{Process: w.process, Sequence: seq}
		return func(l *Ledger) { l.ApplyBooked(b) }
	})
}

func (w *wire) PrefillCompleted(e Event) {
	w.count(func(seq uint64) func(*Ledger) {
		return func(l *Ledger) { l.ApplyPrefillCompleted(w.ref(e, seq)) }
	})
}

func (w *wire) Renewed(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, func(l *Ledger) { l.ApplyRenewed(Ref{Origin: e.Origin, Scope: e.Scope, ID: e.ID, Rank: e.Rank}) })
}

func (w *wire) Freed(e Event) {
	w.count(func(seq uint64) func(*Ledger) {
		return func(l *Ledger) { l.ApplyFreed(w.ref(e, seq)) }
	})
}

func (w *wire) ref(e Event, seq uint64) Ref {
	return Ref{Origin: e.Origin, Scope: e.Scope, ID: e.ID, Rank: e.Rank, Event: Origin{Process: w.process, Sequence: seq}}
}

func (w *wire) count(event func(seq uint64) func(*Ledger)) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	w.events = append(w.events, event(w.seq))
	return w.seq
}

// deliver applies a few of the latest events, any of them again and again.
func (w *wire) deliver(rnd *rand.Rand, l *Ledger) {
	w.mu.Lock()
	some := slices.Clone(w.events[max(0, len(w.events)-1-rnd.IntN(20)):])
	w.mu.Unlock()
	for _, apply := range some {
		apply(l)
	}
}
