package pending

import "container/list"

// Claim is the right to book a selection. It ends with Done or Back; what is
// called behind the first of them does nothing. It is used by one goroutine at
// a time.
type Claim struct {
	store   *Store
	element *list.Element
	ended   bool
}

// Selection returns what was kept. Nobody may change its hashes.
func (c *Claim) Selection() Selection { return c.element.Value.(*entry).selection }

// Done ends the claim of a selection that was booked: it is forgotten. A newer
// one under its id stays.
func (c *Claim) Done() {
	c.end(func() { c.store.removeLocked(c.element) })
}

// Back ends the claim of a selection that could not be booked: it is kept as
// before, unless it has expired or been replaced.
func (c *Claim) Back() {
	c.end(func() {
		if e := c.element.Value.(*entry); c.store.expiredLocked(e, c.store.now()) {
			c.store.removeLocked(c.element)
		} else {
			e.claimed = false
		}
	})
}

// end does what is to be done with an entry that is in the store still.
func (c *Claim) end(do func()) {
	if c.ended {
		return
	}
	c.ended = true
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	if e := c.element.Value.(*entry); c.store.entries[e.key] == c.element {
		do()
	}
}
