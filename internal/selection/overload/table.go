package overload

import (
	"errors"
	"maps"
	"sync"
	"sync/atomic"
)

// MaxModels bounds the models with limits other than the defaults.
const MaxModels = 4096

// ErrTooMany is the error if MaxModels models have limits of their own already.
var ErrTooMany = errors.New("too many models have thresholds of their own")

// Table has the limits of every model: the defaults, until they are changed. It
// is safe for concurrent use; readers never wait.
type Table struct {
	defaults Thresholds
	known    func(model string) bool
	shared   bool // own has also the models whose limits were set to the defaults

	// own has the models whose limits are not the defaults. Readers load the map;
	// writers copy it under mu.
	own atomic.Pointer[map[string]*Thresholds]
	mu  sync.Mutex
}

// NewTable returns a table in which every model has the defaults. When there is no room for
// another model, the models for which known returns false are dropped first. known is called
// under a lock and must not call the table.
func NewTable(defaults Thresholds, known func(model string) bool) *Table {
	t := &Table{defaults: defaults.clone(), known: known}
	t.own.Store(&map[string]*Thresholds{})
	return t
}

// Of returns the limits of a model, never nil. They must not be changed, and never change: Set
// and Clear replace them.
func (t *Table) Of(model string) *Thresholds {
	if own := (*t.own.Load())[model]; own != nil {
		return own
	}
	return &t.defaults
}

// Change has the limits of one model before and after a change, all three in both.
type Change struct{ Was, Now Thresholds }

// Any reports whether a limit has changed.
func (c *Change) Any() bool { return !c.Was.Equal(&c.Now) }

// Set changes the given limits of the model, for calls of Of that begin afterwards. Errors are
// those of [Thresholds.Check] and [ErrTooMany]; nothing has changed then.
func (t *Table) Set(model string, given Thresholds) (Change, error) {
	if err := given.Check(); err != nil {
		return Change{}, err
	}
	given = given.clone()
	return t.change(model, func(v *Thresholds) {
		if given.DecodeBlocks != nil {
			v.DecodeBlocks = given.DecodeBlocks
		}
		if given.PrefillTokens != nil {
			v.PrefillTokens = given.PrefillTokens
		}
		if given.PrefillFraction != nil {
			v.PrefillFraction = given.PrefillFraction
		}
	})
}

// Clear unsets the named limits of the model, all three if none is named. They do not return to
// the defaults (decision B1). The error is [ErrTooMany]; nothing has changed then.
func (t *Table) Clear(model string, which ...Threshold) (Change, error) {
	return t.change(model, func(v *Thresholds) {
		if len(which) == 0 {
			*v = Thresholds{}
		}
		for _, w := range which {
			switch w {
			case DecodeBlocks:
				v.DecodeBlocks = nil
			case PrefillTokens:
				v.PrefillTokens = nil
			case PrefillFraction:
				v.PrefillFraction = nil
			}
		}
	})
}

// Own returns the limits of the models that have not the defaults, those of a Copy also of models whose limits were
// set to them. They must not be changed.
func (t *Table) Own() map[string]*Thresholds { return *t.own.Load() }

// Replace makes these the limits of the models that have not the defaults, all of them.
func (t *Table) Replace(own map[string]*Thresholds) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own = maps.Clone(own)
	if own == nil {
		own = make(map[string]*Thresholds)
	}
	t.own.Store(&own)
}

// Copy returns a table with the same limits. A change there is kept although it leads to the defaults: the limits are
// for other processes, too, whose defaults may be others.
func (t *Table) Copy() *Table {
	c := NewTable(t.defaults, t.known)
	c.shared = true
	c.own.Store(t.own.Load()) // never changed
	return c
}

func (t *Table) change(model string, edit func(*Thresholds)) (Change, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := *t.Of(model)
	v := was
	edit(&v)
	own := maps.Clone(*t.own.Load())
	delete(own, model)
	if t.shared || !v.Equal(&t.defaults) { // a model with the defaults needs no room
		if len(own) >= MaxModels {
			maps.DeleteFunc(own, func(m string, _ *Thresholds) bool { return !t.known(m) })
		}
		if len(own) >= MaxModels {
			return Change{}, ErrTooMany
		}
		own[model] = &v
	}
	t.own.Store(&own)
	return Change{was, v}, nil
}

// clone returns a copy that shares no memory with t. It replaces -0, which would be shown, by 0.
func (t *Thresholds) clone() Thresholds {
	return Thresholds{copied(t.DecodeBlocks), copied(t.PrefillTokens), copied(t.PrefillFraction)}
}

func copied[T uint64 | float64](v *T) *T {
	switch {
	case v == nil:
		return nil
	case *v == 0:
		return new(T)
	}
	return new(*v)
}

// Equal reports whether both have the same limits.
func (t *Thresholds) Equal(o *Thresholds) bool {
	return same(t.DecodeBlocks, o.DecodeBlocks) && same(t.PrefillTokens, o.PrefillTokens) && same(t.PrefillFraction, o.PrefillFraction)
}

func same[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
