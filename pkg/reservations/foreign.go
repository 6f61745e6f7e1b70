package reservations

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

const (
	// earlyFor is how long a completed prefill or a free that came before its
	// booking is remembered: dynamo-kv-router 1.3.1 hands each event to a task of
	// its own, so the booking follows at once if at all.
	earlyFor = 10 * time.Second
	// recentKeys bounds the keys that each recent remembers.
	recentKeys = 1 << 16
)

// foreign is what a ledger remembers of past bookings without sequence numbers.
// It is bounded, and so may forget; a booking that came back would go by age.
type foreign struct {
	seed maphash.Seed

	// mu guards the fields below. It is an innermost lock.
	mu        sync.Mutex
	completed recent // prefill complete before they were booked
	freed     recent // freed before they were booked
	left      recent // were live
}

func newForeign() *foreign {
	return &foreign{
		seed:      maphash.MakeSeed(),
		completed: recent{keep: earlyFor},
		freed:     recent{keep: earlyFor},
		left:      recent{keep: lifetime}, // see SetLifetime
	}
}

// key stands for a booking. It is a hash so that long ids take no memory; that
// two of 65,536 agree is as likely as 1 to 10^10.
func (f *foreign) key(process uint64, sc catalog.Scope, id string) uint64 {
	return maphash.Comparable(f.seed, struct {
		process uint64
		scope   catalog.Scope
		id      string
	}{process, sc, id})
}

// completedEarly remembers that the prefill is complete of a booking that is not
// there; unless it has just been: then the event is late, and a booking to come
// is another one with the same id.
func (f *foreign) completedEarly(process uint64, sc catalog.Scope, id string, at time.Duration) {
	key := f.key(process, sc, id)
	f.mu.Lock()
	defer f.mu.Unlock()
	if left, ok := f.left.at[key]; !ok || at-left >= earlyFor {
		f.completed.put(key, at)
	}
}

// freedEarly remembers a free of a booking that is not there.
func (f *foreign) freedEarly(process uint64, sc catalog.Scope, id string, at time.Duration) {
	key := f.key(process, sc, id)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.freed.put(key, at)
}

// past reports which steps of the booking came before it. A snapshot does not bring
// back what was live, either.
func (f *foreign) past(b *Reservation, snapshot bool, at time.Duration) (completed, ended bool) {
	key := f.key(b.Origin.Process, b.Scope, b.ID)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.completed.has(key, at), f.freed.has(key, at) || snapshot && f.left.has(key, at)
}

// came forgets these steps, once the event of the booking has come: the next one is
// about another booking with the id.
func (f *foreign) came(b *Reservation, at time.Duration) {
	key := f.key(b.Origin.Process, b.Scope, b.ID)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.freed.has(key, at) {
		f.left.put(key, at) // it came and went
	}
	delete(f.completed.at, key)
	delete(f.freed.at, key)
}

// leave remembers that the booking is live no more.
func (f *foreign) leave(process uint64, sc catalog.Scope, id string, at time.Duration) {
	key := f.key(process, sc, id)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left.put(key, at)
	delete(f.completed.at, key) // if a snapshot brought it: its event did not come
}

// forget gives back what is too old.
func (f *foreign) forget(at time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.completed.shed(at)
	f.freed.shed(at)
	f.left.shed(at)
}

// recent remembers the keys that were put in the last keep, recentKeys at most.
type recent struct {
	keep  time.Duration
	at    map[uint64]time.Duration
	queue []recentKey // in the order of put; queue[:head] is spent
	head  int
}

type recentKey struct {
	key uint64
	at  time.Duration
}

func (r *recent) put(key uint64, at time.Duration) {
	if r.at == nil {
		r.at = make(map[uint64]time.Duration)
	}
	r.at[key] = at
	r.queue = append(r.queue, recentKey{key, at})
	r.shed(at)
}

func (r *recent) has(key uint64, now time.Duration) bool {
	at, ok := r.at[key]
	return ok && now-at < r.keep
}

// shed forgets what is too old or too much. A key that was put again, or taken
// out, is forgotten with its last place in the queue only.
func (r *recent) shed(now time.Duration) {
	for r.head < len(r.queue) {
		old := r.queue[r.head]
		if len(r.queue)-r.head <= recentKeys && now-old.at < r.keep {
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
	case r.head > recentKeys:
		r.queue, r.head = append([]recentKey(nil), r.queue[r.head:]...), 0
	}
}
