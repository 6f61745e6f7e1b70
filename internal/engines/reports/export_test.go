package reports

import "time"

// LookAtAll makes the next look at the reports one at all ranks.
func (t *Table) LookAtAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.scopes {
		s.allFresh = time.Time{}
	}
}

// Workers returns the number of workers of which the table knows something.
func (t *Table) Workers() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.of)
}
