package fleet

import (
	"slices"

	"github.com/select-service/select-service/pkg/catalog"
)

// Change changes a catalog. It may be called several times, each time with a catalog as if the times
// before had not been.
type Change func(c *catalog.Catalog) error

// shadow is a catalog on which changes are tried. Only the goroutine of Catalog.Run uses it.
type shadow struct {
	*catalog.Catalog
	outside []*catalog.Worker // of other sources, which this process's own catalog has
	of      *state
	known   map[*catalog.Worker]*entry
	refused []*entry // which this process cannot have, as a limit or another source of its own is in the way
	renewed map[uint64]struct{}
}

// newShadow returns a shadow of a state, beside the workers of other sources that local has. last may
// be used again; nil: there is none.
func newShadow(last *shadow, s *state, local *catalog.Catalog) *shadow {
	outside := local.Outside()
	sh := last
	if sh == nil || !slices.Equal(sh.outside, outside) {
		sh = &shadow{Catalog: local.Empty(), outside: outside}
		sh.Copy(outside)
	}
	if sh.of == nil || sh.of.shards != s.shards {
		sh.load(s)
	}
	sh.of = s
	return sh
}

// load makes the shadow that of a state.
func (sh *shadow) load(s *state) {
	entries := s.entries()
	records := make([]catalog.Record, len(entries))
	for i, e := range entries {
		records[i] = e.record
	}
	_, _ = sh.Reconcile(catalog.Set{Kind: catalog.SourceAPI, Records: records, Copied: true}) // only a closed catalog refuses such a set
	sh.settle(s)
}

// settle notes that the shadow now has the workers of a state.
func (sh *shadow) settle(s *state) {
	sh.of, sh.refused, sh.renewed = s, nil, make(map[uint64]struct{})
	sh.known = make(map[*catalog.Worker]*entry)
	has := make(map[uint64]struct{})
	for _, w := range sh.Registered() {
		if e := s.find(w.ID); e != nil {
			sh.known[w] = e
			has[w.ID] = struct{}{}
		}
	}
	for _, e := range s.entries() {
		if _, is := has[e.record.ID]; !is {
			sh.refused = append(sh.refused, e)
		}
	}
}

// try makes a change.
func (sh *shadow) try(change Change) error {
	before := sh.Registered()
	if err := change(sh.Catalog); err != nil {
		return err
	}
	after := make(map[uint64]*catalog.Worker, len(before))
	for _, w := range sh.Registered() {
		after[w.ID] = w
	}
	for _, w := range before {
		if after[w.ID] == nil {
			sh.renewed[w.ID] = struct{}{} // if it is registered again
		}
	}
	return nil
}

// next returns the state after the changes that were tried. Workers that this process cannot have stay.
func (sh *shadow) next() (*state, error) {
	next := sh.of.successor()
	var entries []*entry
	has := make(map[uint64]struct{})
	for _, w := range sh.Registered() {
		has[w.ID] = struct{}{}
		e := sh.known[w]
		if _, again := sh.renewed[w.ID]; e == nil || again {
			was := sh.of.find(w.ID)
			if again {
				was = nil
			}
			var err error
			if e, err = next.entryOf(w, was); err != nil {
				return nil, err
			}
		}
		entries = append(entries, e)
	}
	for _, e := range sh.refused {
		if _, is := has[e.record.ID]; !is {
			entries = append(entries, e)
		}
	}
	next.fill(entries, sh.of)
	return next, nil
}
