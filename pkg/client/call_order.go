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
func (c *callOrder) acquire(ctx context.Context, id string) (release func(), err error) {
	own := make(chan struct{})
	c.mu.Lock()
	if c.queues == nil {
		c.queues = make(map[string][]chan struct{})
	}
	queue := append(c.queues[id], own)
	c.queues[id] = queue
	c.mu.Unlock()
	release = func() { c.leave(id, own) }
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
func (c *callOrder) leave(id string, own chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	queue := c.queues[id]
	at := slices.Index(queue, own)
	queue = slices.Delete(queue, at, at+1)
	switch {
	case len(queue) == 0:
		delete(c.queues, id)
		return
	case at == 0:
		close(queue[0])
	}
	c.queues[id] = queue
}

// markFreed records that a reservation was freed through this client.
func (c *callOrder) markFreed(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.freed[id]; known {
		return
	}
	if c.freed == nil {
		c.freed = make(map[string]int)
		c.order = make([]string, maxFreed)
	}
	delete(c.freed, c.order[c.next])
	c.freed[id], c.order[c.next] = c.next, id
	c.next = (c.next + 1) % maxFreed
}

// markBooked removes an id from those that were freed: it is in use again.
func (c *callOrder) markBooked(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, known := c.freed[id]; known {
		delete(c.freed, id)
		c.order[at] = ""
	}
}

func (c *callOrder) wasFreed(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.freed[id]
	return ok
}
