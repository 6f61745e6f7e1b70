package reservations

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// overdueFor is how long a free of a reservation that has expired is told from
// one of a reservation that never was.
const overdueFor = time.Hour

// overdue remembers which own reservations have expired and were not freed by
// their callers since. Like recent it is bounded, and so may forget.
type overdue struct {
	seed maphash.Seed

	// mu guards expired. It is an innermost lock.
	mu      sync.Mutex
	expired recent
}

// overdueID is what callers free an own reservation by: its id, and the scope if
// the id is of one scope only.
type overdueID struct {
	scope    catalog.Scope
	perScope bool
	id       string
}

func newOverdue() *overdue {
	return &overdue{seed: maphash.MakeSeed(), expired: recent{keep: overdueFor}}
}

// add remembers r, which has expired.
func (o *overdue) add(r *entry, at time.Duration) {
	name := overdueID{id: r.id}
	if r.perScope {
		name = overdueID{r.scope.name, true, r.id}
	}
	key := maphash.Comparable(o.seed, name)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.expired.put(key, at)
}

// freed reports whether a reservation of that name has expired, once.
func (o *overdue) freed(name overdueID, at time.Duration) bool {
	key := maphash.Comparable(o.seed, name)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.expired.has(key, at) {
		return false
	}
	delete(o.expired.at, key)
	return true
}

// forget gives back what is too old.
func (o *overdue) forget(at time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.expired.shed(at)
}

// notFreed takes a free that met no live reservation.
func (l *Ledger) notFreed(name overdueID) {
	if l.overdue.freed(name, l.at()) {
		l.late.Add(1)
	}
}
