package service

import (
	"maps"
	"slices"
	"sync"
)

// waitedIDs are the ids of repeats that wait in a line. Such a request need not wait
// for an idle rank once its id is booked, which may be what keeps the rank busy.
// The zero value has none.
type waitedIDs struct {
	mu  sync.Mutex // innermost
	ids map[string]*waitedID
}

type waitedID struct {
	booked chan struct{} // closed then
	n      int           // requests that wait
}

// add returns a channel that is closed when somebody books the id. It has to be
// asked for before the last look whether the id is booked, and removed later.
func (a *waitedIDs) add(id string) (booked chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x := a.ids[id]
	if x == nil {
		if a.ids == nil {
			a.ids = make(map[string]*waitedID)
		}
		x = &waitedID{booked: make(chan struct{})}
		a.ids[id] = x
	}
	x.n++
	return x.booked
}

// remove undoes an add that returned booked.
func (a *waitedIDs) remove(id string, booked chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x := a.ids[id]
	if x == nil || x.booked != booked {
		return // it was closed
	}
	if x.n--; x.n == 0 {
		delete(a.ids, id)
	}
}

// wake tells all who wait for the id.
func (a *waitedIDs) wake(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.ids[id]; x != nil {
		close(x.booked)
		delete(a.ids, id)
	}
}

// all lists the ids, in no order.
func (a *waitedIDs) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.ids))
}

// wakeRepeats tells requests whose id was booked by another replica: nobody says
// so at the time.
func (s *Service) wakeRepeats() {
	for _, id := range s.waitedIDs.all() {
		if h, ok := s.ledger.Find(id); ok && everywhere(&h) {
			s.waitedIDs.wake(id)
		}
	}
}
