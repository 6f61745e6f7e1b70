package pauses

import "github.com/select-service/select-service/pkg/catalog"

// Started is how many sessions those have started that have started any.
type Started struct{ Parents, Children float64 }

// lastParents is how many parents count: beyond it the earlier ones count half.
const lastParents = 64

// mostChildren bounds how many children a parent can have had on average.
const mostChildren = 1 << 32

// note notes a new session that another one has started. One whose parent was not counted does not count either.
func (s *Started) note(first bool) {
	if first {
		if s.Parents++; s.Parents > lastParents {
			s.Parents, s.Children = s.Parents/2, s.Children/2
		}
	}
	if s.Parents > 0 {
		s.Children++
	}
}

// possible reports whether a learner can have counted this. A number that is none is not.
func (s *Started) possible() bool {
	return s.Parents >= 0 && s.Parents <= lastParents && s.Children >= s.Parents && s.Children <= s.Parents*mostChildren
}

// Started notes a new session that another one has started; first says that it is the first of its parent.
func (l *Learner) Started(sc catalog.Scope, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(sc).started.note(first)
}

// Children returns how many sessions a session of the scope starts on average, of those that start any; 1 while that is unknown.
func (l *Learner) Children(sc catalog.Scope) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.scopes[sc]
	if all == nil || all.started.Parents == 0 {
		return 1
	}
	return max(1, all.started.Children/all.started.Parents)
}
