package policies

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// Learners has the learned model of prefill times of every scope with a policy that predicts
// them. It keeps the model of a scope that has no worker. It is safe for concurrent use.
type Learners struct {
	table   atomic.Pointer[Table]
	tracked bool

	mu      sync.Mutex // guards byScope
	byScope map[catalog.Scope]*ttft.Learner
}

// maxLearners is the number of learners above which those of scopes without workers are dropped.
const maxLearners = 1024

// NewLearners returns the learners for the scopes that have policies of t. tracked: prefills
// count as load; without it nothing is predicted.
func NewLearners(t *Table, tracked bool) *Learners {
	l := &Learners{tracked: tracked, byScope: make(map[catalog.Scope]*ttft.Learner)}
	l.SetTable(t)
	return l
}

// SetTable sets the policies of the scopes. The learned values of a scope are kept.
func (l *Learners) SetTable(t *Table) { l.table.Store(t) }

// Of returns the learner of a scope, nil if none of its policies predicts.
func (l *Learners) Of(sc catalog.Scope) *ttft.Learner {
	if !l.table.Load().predicts(sc) {
		return nil
	}
	return l.learner(sc)
}

// learner returns the learner of a scope.
func (l *Learners) learner(sc catalog.Scope) *ttft.Learner {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.byScope[sc]
	if x == nil {
		x = ttft.NewLearner()
		x.Track(l.tracked)
		l.byScope[sc] = x
	}
	return x
}

// All returns the learners of all scopes with a policy that predicts.
func (l *Learners) All() map[catalog.Scope]*ttft.Learner {
	t, all := l.table.Load(), l.Kept()
	maps.DeleteFunc(all, func(sc catalog.Scope, _ *ttft.Learner) bool { return !t.predicts(sc) })
	return all
}

// Kept returns the learners of all scopes, those included whose policies have predicted before and may
// do so again.
func (l *Learners) Kept() map[catalog.Scope]*ttft.Learner {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.byScope)
}

// Forget drops learners of scopes that are not open, if there are too many.
func (l *Learners) Forget(open func(catalog.Scope) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for sc := range l.byScope {
		if len(l.byScope) <= maxLearners {
			return
		}
		if !open(sc) {
			delete(l.byScope, sc)
		}
	}
}

// predicts reports whether a policy of a scope needs queues, the deciding one or a
// shadow.
func (t *Table) predicts(sc catalog.Scope) bool {
	if t == nil {
		return false
	}
	deciding, _ := t.Of(sc)
	needs := deciding.Policy.Needs()
	for _, shadow := range t.shadows {
		needs |= shadow.Policy.Needs()
	}
	return needs.Has(selector.NeedQueues)
}
