package replicasync

import (
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/reservations/history"
)

const (
	// maxFreed bounds the names of one process in a freedLog.
	maxFreed = 1 << 16
	// maxAllFreed bounds the names of all processes: 12 MiB, and twice that while memory
	// grows. Names of the process with most of them make room.
	maxAllFreed = 1 << 18
	// freedFor is how long a name is kept: two lifetimes, for as long as messages about
	// a reservation may come.
	freedFor = 600 * time.Second
)

// freedLog has the names of the reservations that were recently freed by callers, by
// the process that reported the free, oldest first. A replica that missed such an event
// learns of the end by the name in a snapshot, because a snapshot is not believed about
// the numbers of another process. It is safe for concurrent use.
type freedLog struct {
	// mu guards the map and what it holds. It is an innermost lock.
	mu   sync.Mutex
	from map[uint64]*freedNames
	n    int // names of all processes
}

type freedNames struct {
	queue []freedName // queue[:head] is spent
	head  int
}

type freedName struct {
	name history.Name
	at   time.Time
}

func newFreedLog() *freedLog { return &freedLog{from: make(map[uint64]*freedNames)} }

// add records that a process has reported the free of a reservation.
func (f *freedLog) add(reporter uint64, name history.Name, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n >= maxAllFreed {
		f.makeRoom(now)
	}
	q := f.from[reporter]
	if q == nil {
		q = &freedNames{}
		f.from[reporter] = q
	}
	for q.len() > 0 && (q.len() >= maxFreed || now.Sub(q.queue[q.head].at) > freedFor) {
		f.drop(q)
	}
	q.queue = append(q.queue, freedName{name, now})
	f.n++
}

func (f *freedNames) len() int { return len(f.queue) - f.head }

// drop forgets the oldest name of a process. It needs f.mu.
func (f *freedLog) drop(q *freedNames) {
	f.n--
	if q.head++; 2*q.head > len(q.queue) {
		q.queue, q.head = append([]freedName(nil), q.queue[q.head:]...), 0
	}
}

// makeRoom forgets names that are too old and, if that is not enough, a quarter of those
// of the process with most names, so that it is seldom needed. It needs f.mu.
func (f *freedLog) makeRoom(now time.Time) {
	var most *freedNames
	for reporter, q := range f.from {
		for q.len() > 0 && now.Sub(q.queue[q.head].at) > freedFor {
			f.drop(q)
		}
		if q.len() == 0 {
			delete(f.from, reporter)
		} else if most == nil || q.len() > most.len() {
			most = q
		}
	}
	if f.n < maxAllFreed {
		return
	}
	for range most.len()/4 + 1 {
		f.drop(most)
	}
}

// names returns the names that were reported by processes for which fits is true, grouped
// by the process that had accepted the reservations.
func (f *freedLog) names(fits func(reporter uint64) bool, now time.Time) map[uint64][]history.Name {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[uint64][]history.Name)
	for reporter, q := range f.from {
		if !fits(reporter) {
			continue
		}
		for _, x := range q.queue[q.head:] {
			if now.Sub(x.at) <= freedFor {
				out[x.name.Origin.Process] = append(out[x.name.Origin.Process], x.name)
			}
		}
	}
	return out
}

// of returns the names of the reservations that a process had accepted, by the process
// that reported the free.
func (f *freedLog) of(process uint64) map[uint64][]history.Name {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[uint64][]history.Name)
	for reporter, q := range f.from {
		for _, x := range q.queue[q.head:] {
			if x.name.Origin.Process == process {
				out[reporter] = append(out[reporter], x.name)
			}
		}
	}
	return out
}
