package catalog

import (
	"container/list"
	"sync"
	"time"
)

// maxLeft bounds the names that Left remembers.
const maxLeft = 1024

// left remembers which names of models and adapters had a schedulable worker that has left, the
// longest ago first out. It is safe for concurrent use.
type left struct {
	mu    sync.Mutex // guards the fields below; innermost
	names map[leftName]*list.Element
	order list.List // of *leftEntry, the longest ago first
}

// leftName is the name of a scope's model (adapter is empty) or of one of its adapters.
type leftName struct {
	scope   Scope
	adapter string
}

type leftEntry struct {
	leftName
	of Scope // whose workers had the name: another scope than that of the name if it was a further one of its model
	at time.Time
}

func (l *left) add(n leftName, of Scope, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		l.names = make(map[leftName]*list.Element)
	}
	if e := l.names[n]; e != nil {
		l.order.Remove(e)
	}
	l.names[n] = l.order.PushBack(&leftEntry{n, of, at})
	if l.order.Len() > maxLeft {
		first := l.order.Front()
		delete(l.names, l.order.Remove(first).(*leftEntry).leftName)
	}
}

// note remembers what of a scope's former snapshot the present one has not any more. Either may be nil.
func (l *left) note(before, after *Snapshot, at time.Time) {
	if before == nil || len(before.Workers) == 0 {
		return
	}
	if after == nil || len(after.Workers) == 0 {
		for _, w := range before.Workers {
			for _, name := range w.Aliases {
				alias := Scope{name, before.Scope.Tenant}
				l.add(leftName{scope: alias}, before.Scope, at)
			}
		}
		l.add(leftName{scope: before.Scope}, before.Scope, at)
	}
	had, has := before.adapters(), after.adapters()
	for name := range had {
		if !has[name] {
			l.add(leftName{before.Scope, name}, before.Scope, at)
		}
	}
}

// adapters returns the adapters of the schedulable workers, nil if there are none.
func (s *Snapshot) adapters() (all map[string]bool) {
	if s == nil {
		return nil
	}
	for _, w := range s.Workers {
		for _, name := range w.Adapters {
			if all == nil {
				all = make(map[string]bool)
			}
			all[name] = true
		}
	}
	return all
}

// Left reports when the last schedulable worker of a scope that had an adapter left, or, with "", the
// last one of the scope; ok is false if there never was one, or if it was long ago: 1,024 names are
// remembered. It does not say whether another one has come since. The scope may have a further name of
// a model, see Alias.
func (c *Catalog) Left(sc Scope, adapter string) (at time.Time, ok bool) {
	c.left.mu.Lock()
	defer c.left.mu.Unlock()
	if e := c.left.names[leftName{sc, adapter}]; e != nil {
		return e.Value.(*leftEntry).at, true
	}
	return time.Time{}, false
}

// LeftAs returns the scope that a name stood for when Left says that its last worker left: another one if
// the name was a further one of a model.
func (c *Catalog) LeftAs(name Scope) Scope {
	c.left.mu.Lock()
	defer c.left.mu.Unlock()
	if e := c.left.names[leftName{scope: name}]; e != nil {
		return e.Value.(*leftEntry).of
	}
	return name
}

// LeftWith lists the scopes of which Left knows an adapter, the last first.
func (c *Catalog) LeftWith(adapter string) (of []Scope) {
	if adapter == "" {
		return nil
	}
	c.left.mu.Lock()
	defer c.left.mu.Unlock()
	for e := c.left.order.Back(); e != nil; e = e.Prev() {
		if n := e.Value.(*leftEntry); n.adapter == adapter {
			of = append(of, n.scope)
		}
	}
	return of
}
