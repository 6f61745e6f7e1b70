package kvevents

import (
	"context"
	"sync"
	"sync/atomic"
)

const (
	// A turn handles at most turnItems items, or as many as have turnBytes bytes: some
	// milliseconds of work. Then other streams have their turns.
	turnItems = 64
	turnBytes = 256 << 10
)

// turns is the queue of subscriptions that have something in their inboxes. A
// subscription is in it at most once and not during its turn, so that its messages are
// applied in order, by any free worker. A worker that is busy with a huge message delays
// only that message's stream.
type turns struct {
	wake    chan struct{} // a token for each worker that may be asleep
	waiting atomic.Int64  // subscriptions in queue

	// mu guards what follows. It is the innermost lock.
	mu    sync.Mutex
	queue []*subscription
	head  int          // of queue
	free  []*Workspace // workspaces that nobody uses
	inUse int          // number of workspaces in use
}

// acquire returns a workspace for applying a message without a turn. It returns nil if streams
// wait for their turns, or if as many workspaces are in use as there are workers.
func (t *turns) acquire() *Workspace {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.head < len(t.queue) || t.inUse == cap(t.wake) {
		return nil
	}
	t.inUse++
	if n := len(t.free); n > 0 {
		w := t.free[n-1]
		t.free = t.free[:n-1]
		return w
	}
	return new(Workspace)
}

// release takes back what acquire has returned.
func (t *turns) release(w *Workspace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inUse--
	t.free = append(t.free, w)
}

// enqueue gives a subscription its next turn.
func (t *turns) enqueue(sub *subscription) {
	t.mu.Lock()
	t.queue = append(t.queue, sub)
	t.waiting.Add(1)
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default: // all have been woken
	}
}

// next removes and returns the subscription whose turn it is, nil if there is none.
func (t *turns) next() *subscription {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.head == len(t.queue) {
		t.queue, t.head = t.queue[:0], 0
		return nil
	}
	sub := t.queue[t.head]
	t.waiting.Add(-1)
	t.queue[t.head] = nil // so that a removed stream can be collected
	if t.head++; t.head == len(t.queue) {
		t.queue, t.head = t.queue[:0], 0
	} else if t.head > len(t.queue)/2 && t.head > turnItems {
		t.queue, t.head = t.queue[:copy(t.queue, t.queue[t.head:])], 0
	}
	return sub
}

// apply is a worker: it gives subscriptions their turns until ctx ends.
func (s *Subscribers) apply(ctx context.Context) {
	var work Workspace
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.turns.wake:
		}
		for sub := s.turns.next(); sub != nil && ctx.Err() == nil; sub = s.turns.next() {
			sub.turn(&work)
		}
	}
}

// count moves what a worker has counted into the common tally.
func (s *Subscribers) count(t *Tally) {
	s.tallying.Lock()
	t.moveTo(&s.tally)
	s.tallying.Unlock()
}
