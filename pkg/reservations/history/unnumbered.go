package history

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

const (
	// EarlyFor is how long a completed prefill or a free that came before its
	// reservation is remembered: dynamo-kv-router 1.3.1 publishes each event from a task
	// of its own, so that the reservation follows at once, if at all.
	EarlyFor = 10 * time.Second
	// maxRecent bounds the keys that each recentKeys remembers.
	maxRecent = 1 << 16
)

// Key names a reservation without sequence number.
type Key struct {
	Process uint64
	Scope   catalog.Scope
	ID      string
}

// Unnumbered remembers the latest steps of reservations without sequence numbers.
// It is bounded, so that it may forget; a reservation that comes back then ends by age.
type Unnumbered struct {
	seed maphash.Seed

	// mu guards the fields below. It is an innermost lock.
	mu        sync.Mutex
	completed recentKeys // prefill complete before they were booked
	freed     recentKeys // freed before they were booked
	left      recentKeys // no longer live
}

// NewUnnumbered returns an empty memory. lifetime is that of a reservation.
func NewUnnumbered(lifetime time.Duration) *Unnumbered {
	return &Unnumbered{
		seed:      maphash.MakeSeed(),
		completed: recentKeys{keep: EarlyFor},
		freed:     recentKeys{keep: EarlyFor},
		left:      recentKeys{keep: lifetime},
	}
}

// SetLifetime sets how long a reservation lives. It must be called before u is used.
func (u *Unnumbered) SetLifetime(d time.Duration) { u.left.keep = d }

// hash returns what is kept in place of a key, so that long ids take no memory. The
// probability that any two of 65,536 keys have the same hash is about 10^-10.
func (u *Unnumbered) hash(k Key) uint64 { return maphash.Comparable(u.seed, k) }

// CompletedEarly remembers the completed prefill of a reservation that is not live. If
// the reservation was live within the last 10 s, the event is merely late, and the next
// reservation with the id is another one: then nothing is remembered.
func (u *Unnumbered) CompletedEarly(k Key, at time.Duration) {
	key := u.hash(k)
	u.mu.Lock()
	defer u.mu.Unlock()
	if left, ok := u.left.at[key]; !ok || at-left >= EarlyFor {
		u.completed.put(key, at)
	}
}

// FreedEarly remembers a free of a reservation that is not live.
func (u *Unnumbered) FreedEarly(k Key, at time.Duration) {
	key := u.hash(k)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.freed.put(key, at)
}

// Before reports which steps of a reservation came before the reservation. In a
// snapshot, one that was live here within the last lifetime has ended, too.
func (u *Unnumbered) Before(k Key, snapshot bool, at time.Duration) (completed, ended bool) {
	key := u.hash(k)
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.completed.has(key, at), u.freed.has(key, at) || snapshot && u.left.has(key, at)
}

// Booked forgets the early steps of a reservation, because its own event has come: the
// next event is about another reservation with the id.
func (u *Unnumbered) Booked(k Key, at time.Duration) {
	key := u.hash(k)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.freed.has(key, at) {
		u.left.put(key, at) // it was freed before it could become live
	}
	delete(u.completed.at, key)
	delete(u.freed.at, key)
}

// Leave remembers that a reservation is no longer live.
func (u *Unnumbered) Leave(k Key, at time.Duration) {
	key := u.hash(k)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.left.put(key, at)
	delete(u.completed.at, key) // still there if the reservation came by a snapshot, without Booked
}

// Forget drops what is too old.
func (u *Unnumbered) Forget(at time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.completed.shed(at)
	u.freed.shed(at)
	u.left.shed(at)
}

// recentKeys remembers the keys that were put within the duration keep, at most maxRecent.
type recentKeys struct {
	keep  time.Duration
	at    map[uint64]time.Duration // of the latest put
	queue []recentKey              // in the order of put; queue[:head] is spent
	head  int
}

type recentKey struct {
	key uint64
	at  time.Duration
}

func (r *recentKeys) put(key uint64, at time.Duration) {
	if r.at == nil {
		r.at = make(map[uint64]time.Duration)
	}
	r.at[key] = at
	r.queue = append(r.queue, recentKey{key, at})
	r.shed(at)
}

func (r *recentKeys) has(key uint64, now time.Duration) bool {
	at, ok := r.at[key]
	return ok && now-at < r.keep
}

// shed forgets the keys that are too old or too many. A key that was put again is
// forgotten with its last place in the queue only.
func (r *recentKeys) shed(now time.Duration) {
	for r.head < len(r.queue) {
		old := r.queue[r.head]
		if len(r.queue)-r.head <= maxRecent && now-old.at < r.keep {
			break
		}
		if r.at[old.key] == old.at {
			delete(r.at, old.key)
		}
		r.head++
	}
	switch {
	case r.head == len(r.queue):
		r.at, r.queue, r.head = nil, nil, 0
	case r.head > maxRecent:
		r.queue, r.head = append([]recentKey(nil), r.queue[r.head:]...), 0
	}
}

// ExpiredFor is how long a free of an expired reservation is told from a free of one
// that never existed.
const ExpiredFor = time.Hour

// ExpiredIDs remembers which own reservations have expired and were not freed by
// their callers since. It is bounded, so that it may forget.
type ExpiredIDs struct {
	seed maphash.Seed

	// mu guards recent. It is an innermost lock.
	mu     sync.Mutex
	recent recentKeys
}

// ExpiredID is the name by which a caller frees an own reservation: its id and, for one
// with Request.PerScope, its scope.
type ExpiredID struct {
	Scope    catalog.Scope
	PerScope bool
	ID       string
}

// NewExpiredIDs returns an empty memory.
func NewExpiredIDs() *ExpiredIDs {
	return &ExpiredIDs{seed: maphash.MakeSeed(), recent: recentKeys{keep: ExpiredFor}}
}

// Add remembers that a reservation has expired.
func (e *ExpiredIDs) Add(id ExpiredID, at time.Duration) {
	key := maphash.Comparable(e.seed, id)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recent.put(key, at)
}

// Take forgets the id and reports whether it was there.
func (e *ExpiredIDs) Take(id ExpiredID, at time.Duration) bool {
	key := maphash.Comparable(e.seed, id)
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.recent.has(key, at) {
		return false
	}
	delete(e.recent.at, key)
	return true
}

// Forget drops what is too old.
func (e *ExpiredIDs) Forget(at time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recent.shed(at)
}
