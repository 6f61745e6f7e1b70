package reports

import "time"

// LookAtAll makes the next look at the reports one at all ranks.
func (rs *Reports) LookAtAll() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, s := range rs.scopes {
		s.allFresh = time.Time{}
	}
}

// Workers returns the number of workers of which the table knows something.
func (rs *Reports) Workers() int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return len(rs.of)
}
