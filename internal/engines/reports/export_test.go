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
