package service

import "sync"

// claimedIDs are the ids of bookings on their way: dynamo-kv-router 1.6.1 refuses a
// second request for one at once, however long the first has to wait. The zero value
// has none.
type claimedIDs struct {
	mu  sync.Mutex     // innermost
	ids map[string]int // requests that have it
}

// claim takes an id until it is released; alone unless shared. It is false if
// another request has it.
func (a *claimedIDs) claim(id string, shared bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ids[id] > 0 && !shared {
		return false
	}
	if a.ids == nil {
		a.ids = make(map[string]int)
	}
	a.ids[id]++
	return true
}

func (a *claimedIDs) release(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ids[id]--; a.ids[id] == 0 {
		delete(a.ids, id)
	}
}
