package scopes

import "sync"

// Children learns how many sessions a session starts, of those that start any. The zero value knows nothing.
type Children struct {
	mu                sync.Mutex
	parents, children float64
}

// lastParents is how many parents count: beyond it the earlier ones count half.
const lastParents = 64

// Note notes a new session that another one has started; first says that it is the first of its parent.
func (c *Children) Note(first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first {
		if c.parents++; c.parents > lastParents {
			c.parents, c.children = c.parents/2, c.children/2
		}
	}
	c.children++
}

// Mean returns how many sessions a session starts on average, 1 while that is unknown.
func (c *Children) Mean() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parents == 0 {
		return 1
	}
	return max(1, c.children/c.parents)
}
