package client

import (
	"context"
	"slices"
	"sync"
)

// callOrder sends the calls about one reservation one after the other, in the order in
// which they were made. The zero value is ready.
type callOrder struct {
	// mu guards all fields.
	mu     sync.Mutex
	queues map[string][]chan struct{} // by id: the call whose turn it is, then those that wait; a channel is closed when its turn comes

	// The latest ids that were freed through this client.
	freed map[string]int // index into order
	order []string       // a ring; "" is free
	next  int
}

// maxFreed is how many freed ids are remembered.
const maxFreed = 4096

// acquire waits for the turn of a call about id. release ends the turn and must be called.
// If ctx ends first, its error is returned, and release must not be called.
func (t *callOrder) acquire(ctx context.Context, id string) (release func(), err error) {
	own := make(chan struct{})
	t.mu.Lock()
	if t.queues == nil {
		t.queues = make(map[string][]chan struct{})
	}
	queue := append(t.queues[id], own)
	t.queues[id] = queue
	t.mu.Unlock()
	release = func() { t.leave(id, own) }
	if len(queue) == 1 {
		return release, nil
	}
	select {
	case <-own:
		return release, nil
	case <-ctx.Done():
		release()
		return nil, ctx.Err()
	}
}

// leave removes a call from the queue of its id.
func (t *callOrder) leave(id string, own chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	queue := t.queues[id]
	at := slices.Index(queue, own)
	queue = slices.Delete(queue, at, at+1)
	switch {
	case len(queue) == 0:
		delete(t.queues, id)
		return
	case at == 0:
		close(queue[0])
	}
	t.queues[id] = queue
}

// markFreed records that a reservation was freed through this client.
func (t *callOrder) markFreed(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.freed[id]; known {
		return
	}
	if t.freed == nil {
		t.freed = make(map[string]int)
		t.order = make([]string, maxFreed)
	}
	delete(t.freed, t.order[t.next])
	t.freed[id], t.order[t.next] = t.next, id
	t.next = (t.next + 1) % maxFreed
}

// markBooked removes an id from those that were freed: it is in use again.
func (t *callOrder) markBooked(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at, known := t.freed[id]; known {
		delete(t.freed, id)
		t.order[at] = ""
	}
}

func (t *callOrder) wasFreed(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.freed[id]
	return ok
}
