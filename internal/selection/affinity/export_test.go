package affinity

import "context"

// LimitWaiting lowers the limits of those who wait. It comes before all use.
func (t *Table) LimitWaiting(all, each int) { t.maxWaiting, t.maxSessionWaiting = all, each }

// Arrivals is how many entries the list of sessions has, with those that have gone.
func (t *Table) Arrivals() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.arrivals.list)
}

// Acquire claims a session and waits for it.
func (t *Table) Acquire(ctx context.Context, k Key) (*Claim, error) {
	c, w := t.Claim(k)
	if w == nil {
		return c, nil
	}
	return w.Await(ctx)
}
