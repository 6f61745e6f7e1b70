package kvevents

import (
	"context"
	"sync"
	"sync/atomic"
)

// applyWorker applies the streams that were given to it, each in order, taking
// turns between those that have something in their inbox.
type applyWorker struct {
	subs *Subscribers
	wake chan struct{} // of capacity 1
	work Workspace     // of run's goroutine

	// mu guards queue. It is the innermost lock.
	mu    sync.Mutex
	queue []*subscription
}

func newApplyWorker(s *Subscribers) *applyWorker {
	return &applyWorker{subs: s, wake: make(chan struct{}, 1)}
}

// enqueue gives a subscription a turn.
func (w *applyWorker) enqueue(sub *subscription) {
	w.mu.Lock()
	w.queue = append(w.queue, sub)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // it has been woken
	}
}

func (w *applyWorker) take(queue []*subscription) []*subscription {
	w.mu.Lock()
	defer w.mu.Unlock()
	queue, w.queue = w.queue, queue
	return queue
}

func (w *applyWorker) run(ctx context.Context) {
	var queue []*subscription
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		for queue = w.take(queue[:0]); len(queue) > 0 && ctx.Err() == nil; queue = w.take(queue[:0]) {
			for _, sub := range queue {
				if sub.turn(&w.work) {
					w.subs.count(&w.work.Tally)
				}
			}
			clear(queue) // no removed stream is kept alive
		}
	}
}

// count takes over what a worker has counted.
func (s *Subscribers) count(t *Tally) {
	s.tallying.Lock()
	s.tally.Add(t)
	s.tallying.Unlock()
	*t = Tally{}
}

// barrier is passed when everyone who was counted in has arrived.
type barrier struct {
	left atomic.Int64
	done chan struct{}
}

func (b *barrier) arrive() {
	if b.left.Add(-1) == 0 {
		close(b.done)
	}
}

// replaySlots bound the replays that run at a time: each may fill memory with a
// whole ring.
type replaySlots struct {
	// mu guards what follows. It is never held while a subscription is called.
	mu      sync.Mutex
	free    int
	waiting []replayTurn
}

// replayTurn is a wish for a slot. A wish that is not current any more gives the
// slot back when it gets it.
type replayTurn struct {
	sub *subscription
	ask uint64
}

// acquire gives t a slot now or later: t.sub finds a granted item in its inbox.
func (r *replaySlots) acquire(t replayTurn) {
	r.mu.Lock()
	granted := r.free > 0
	if granted {
		r.free--
	} else {
		r.waiting = append(r.waiting, t)
	}
	r.mu.Unlock()
	if granted {
		t.sub.put(item{kind: grantedItem, ask: t.ask})
	}
}

// release gives a slot back.
func (r *replaySlots) release() {
	r.mu.Lock()
	if len(r.waiting) == 0 {
		r.free++
		r.mu.Unlock()
		return
	}
	t := r.waiting[0]
	r.waiting[0] = replayTurn{}
	r.waiting = r.waiting[1:]
	r.mu.Unlock()
	t.sub.put(item{kind: grantedItem, ask: t.ask})
}
