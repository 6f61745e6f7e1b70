package client

import (
	"context"
	"slices"
	"sync"
)

// callOrder lets the calls about one reservation go one after the other, in the order
// in which they came. The zero value is ready.
type callOrder struct {
	// mu guards all fields.
	mu     sync.Mutex
	queues map[string][]chan struct{} // by id: whose turn it is, and who waits; closed when the turn comes

	// Ids that were freed through this client, the latest.
	freed map[string]int // places in order
	order []string       // a ring; "" is free
	next  int
}

// maxFreed is how many freed ids are remembered.
const maxFreed = 4096

// acquire waits for the turn of a call. give ends it; it must be called if there is
// no error, which is the context's.
func (t *callOrder) acquire(ctx context.Context, id string) (give func(), err error) {
	own := make(chan struct{})
	t.mu.Lock()
	if t.queues == nil {
		t.queues = make(map[string][]chan struct{})
	}
	line := append(t.queues[id], own)
	t.queues[id] = line
	t.mu.Unlock()
	give = func() { t.leave(id, own) }
	if len(line) == 1 {
		return give, nil
	}
	select {
	case <-own:
		return give, nil
	case <-ctx.Done():
		give()
		return nil, ctx.Err()
	}
}

// leave takes a call out of the line of its id.
func (t *callOrder) leave(id string, own chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := t.queues[id]
	at := slices.Index(line, own)
	line = slices.Delete(line, at, at+1)
	switch {
	case len(line) == 0:
		delete(t.queues, id)
		return
	case at == 0:
		close(line[0])
	}
	t.queues[id] = line
}

// markFreed notes that a reservation was freed here.
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

// markBooked forgets that an id was freed: it is in use again.
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
