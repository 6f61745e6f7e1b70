package gateway

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/pkg/memory"
)

const (
	// leastRate is what a request's body must bring on average, in bytes a second, beside PickTimeout.
	leastRate = 16 << 10
	// stalledAfter is how far a body must be behind before its place is given to another request.
	stalledAfter = 2 * time.Second
	// freedWithin is how long a request that has lost its place may take to give its memory back.
	freedWithin = 250 * time.Millisecond
)

// reading has the admitted requests whose bodies are still to come. When there is no place for a request, or no memory
// for its body, the one among them that is furthest behind gives its own up.
type reading struct {
	mu sync.Mutex // guards of and its reads' evicted, onCut and freed; only locks of connections are taken under it
	of map[*read]struct{}
}

// read is a request's body while it comes.
type read struct {
	began time.Time
	size  int64 // bytes that have come
	// last is when the last piece came, pace is when a body of leastRate would have brought as much: Unix
	// nanoseconds.
	last, pace atomic.Int64
	in         atomic.Pointer[memory.Account] // that has the body's memory; nil: none has
	cut        chan struct{}                  // closed when the request has lost its place
	evicted    bool
	onCut      func()        // called when cut is closed; nil: nothing
	freed      chan struct{} // closed when it has given its memory back; nil: nobody waits for that
}

// add begins to read a body.
func (r *reading) add() *read {
	now := time.Now()
	b := &read{began: now, cut: make(chan struct{})}
	b.last.Store(now.UnixNano())
	b.pace.Store(now.UnixNano())
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = make(map[*read]struct{})
	}
	r.of[b] = struct{}{}
	return b
}

// end ends the reading of a body, and reports whether its request has lost its place. Further calls report
// the same.
func (r *reading) end(b *read) (evicted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, b)
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
	return b.evicted
}

// evict takes the place of the request that is furthest behind, among those with memory of an account (nil: of all). It
// returns nil if none is far enough, else a channel that is closed once that request's memory is free.
func (r *reading) evict(in *memory.Account) (freed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var worst *read
	oldest := time.Now().Add(-stalledAfter).UnixNano()
	for b := range r.of {
		if in != nil && b.in.Load() != in {
			continue
		}
		if at := min(b.last.Load(), b.pace.Load()); at <= oldest {
			worst, oldest = b, at
		}
	}
	if worst == nil {
		return nil
	}
	delete(r.of, worst)
	worst.evicted, worst.freed = true, make(chan struct{})
	freed = worst.freed
	close(worst.cut)
	if worst.onCut != nil {
		worst.onCut()
	}
	return freed
}

// came notes a piece of the body.
func (r *read) came(n int) {
	r.size += int64(n)
	r.last.Store(time.Now().UnixNano())
	r.pace.Store(r.began.Add(paceOf(r.size)).UnixNano())
}

func paceOf(size int64) time.Duration {
	return time.Duration(float64(size) / leastRate * float64(time.Second))
}

// patience is how long the next piece is waited for: most since the last one, and most for the whole body
// beside the time that it takes at leastRate.
func (r *read) patience(most time.Duration) time.Duration {
	return min(most, time.Until(r.began.Add(most+paceOf(r.size))))
}
