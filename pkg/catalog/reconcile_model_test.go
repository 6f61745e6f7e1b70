package catalog_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"

	"github.com/select-service/select-service/pkg/catalog"
)

// reconcile puts a set: every worker is placed while what they lose is still there,
// then that is removed, then the workers that failed are retried.
func (n *naive) reconcile(records []catalog.Record, f catalog.ScopeFilter) (catalog.Difference, string) {
	d, refusal := n.difference(records, f)
	if refusal != "" {
		return catalog.Difference{}, refusal
	}
	before := maps.Clone(n.reserved)
	var again []uint64
	moved := map[uint64]catalog.Scope{}
	for _, r := range records {
		was, old := n.records[r.ID]
		if old && was.Scope != r.Scope {
			moved[r.ID] = was.Scope
		}
		if !old || slices.Contains(d.Changed, r.ID) || strings.HasPrefix(n.reason[r.ID], "reconciliation failed") {
			again = append(again, r.ID)
		}
		n.records[r.ID] = r
	}
	vacated := map[catalog.Scope]bool{}
	for _, h := range before {
		vacated[h.scope] = true
	}
	for w, h := range before {
		if !n.goes(w, h, d.Removed, again) {
			vacated[h.scope] = false
		}
	}
	n.together = true
	for _, id := range n.order() {
		if !slices.Contains(again, id) {
			continue
		}
		if sc, ok := moved[id]; ok {
			n.forget(sc, id)
		}
		h, r := n.reserved[who{id: id}], n.records[id]
		switch {
		case h == nil:
			n.place(id)
		case n.complete(&r) && (h.scope != r.Scope || h.block != *r.BlockSize || h.eagle != eagleOf(&r) && vacated[h.scope]):
			delete(n.reserved, who{id: id})
			n.reserved[who{id: id, was: true}] = h
			n.reason[id] = "reconciliation failed: not yet tried"
		default:
			n.place(id)
			n.reserved[who{id: id, was: true}] = h
			if _, known := n.fixed[h.scope]; !known {
				n.fixed[h.scope] = h.eagle // still inhabited
			}
		}
	}
	n.together = false
	maps.DeleteFunc(n.reserved, func(w who, _ *holding) bool { return w.was })
	for _, id := range d.Removed {
		n.forget(n.records[id].Scope, id)
		delete(n.records, id)
		delete(n.reason, id)
		delete(n.reserved, who{id: id})
	}
	n.settle()
	return d, ""
}

// goes: the worker leaves what it holds, or wants another block size or eagle
// flag in the same scope.
func (n *naive) goes(w who, h *holding, removed, again []uint64) bool {
	if w.tracked != (catalog.Scope{}) {
		return false
	}
	if slices.Contains(removed, w.id) {
		return true
	}
	if !slices.Contains(again, w.id) {
		return false
	}
	r := n.records[w.id]
	if n.complete(&r) {
		return h.scope != r.Scope || h.block != *r.BlockSize || h.eagle != eagleOf(&r)
	}
	if h.scope != r.Scope || r.BlockSize == nil || h.block != *r.BlockSize {
		return true
	}
	for dp := range h.ranks {
		if _, named := r.KVEventsEndpoints[dp]; named || r.HasRank(dp) {
			return false
		}
	}
	return true
}

// complete is what place finds out on its way.
func (*naive) complete(r *catalog.Record) bool {
	one := newNaive()
	one.records[r.ID] = *r
	one.place(r.ID)
	return one.reason[r.ID] == "" || strings.HasPrefix(one.reason[r.ID], "reconciliation failed")
}

func eagleOf(r *catalog.Record) bool { return r.IsEagle != nil && *r.IsEagle }

// difference checks a set and says what it changes.
func (n *naive) difference(records []catalog.Record, f catalog.ScopeFilter) (d catalog.Difference, refusal string) {
	for i, r := range records {
		refuse := func(format string, args ...any) (catalog.Difference, string) {
			return catalog.Difference{}, fmt.Sprintf("workers[%d]: ", i) + fmt.Sprintf(format, args...)
		}
		const taken = "worker %d already registered for model=%s tenant=%s"
		was, old := n.records[r.ID]
		_, tracked := n.tracked[key{r.Scope, r.ID}]
		switch {
		case f.Model != nil && *f.Model != r.Scope.Model:
			return refuse("model_name %q is not that of the set, %q", r.Scope.Model, *f.Model)
		case slices.ContainsFunc(records[:i], func(o catalog.Record) bool { return o.ID == r.ID }):
			return refuse("worker_id %d is given twice", r.ID)
		case tracked:
			return refuse(taken, r.ID, r.Scope.Model, r.Scope.Tenant)
		case old && f.Model != nil && *f.Model != was.Scope.Model:
			return refuse(taken, r.ID, was.Scope.Model, was.Scope.Tenant)
		case !old:
			d.Added = append(d.Added, r.ID)
		case !sameRecord(was, r):
			d.Changed = append(d.Changed, r.ID)
		default:
			d.Unchanged++
		}
	}
	for id, r := range n.records {
		if (f.Model == nil || *f.Model == r.Scope.Model) && !slices.ContainsFunc(records, func(o catalog.Record) bool { return o.ID == id }) {
			d.Removed = append(d.Removed, id)
		}
	}
	slices.Sort(d.Added)
	slices.Sort(d.Changed)
	slices.Sort(d.Removed)
	return d, ""
}

func sameRecord(a, b catalog.Record) bool {
	for _, r := range []*catalog.Record{&a, &b} {
		if len(r.Taints) == 0 {
			r.Taints = nil
		}
		for _, m := range []*map[uint32]string{&r.KVEventsEndpoints, &r.ReplayEndpoints} {
			if len(*m) == 0 {
				*m = nil
			}
		}
	}
	return reflect.DeepEqual(a, b)
}

// randomSet makes a set of workers, mostly near what is registered.
func randomSet(rnd *rand.Rand, model *naive) (records []catalog.Record, f catalog.ScopeFilter) {
	if rnd.IntN(2) == 0 {
		f.Model = new(pick(rnd, m1, m1, m2).Model)
	}
	block, isEagle := pick(rnd, uint32(4), 4, 8), rnd.IntN(4) == 0
	ids := []uint64{0, 1, 2, 7, 1<<64 - 1}
	rnd.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	if rnd.IntN(30) == 0 {
		ids = append(ids, ids[0])
	}
	for _, id := range ids {
		r, old := model.records[id]
		switch rnd.IntN(6) {
		case 0:
			continue // not in the set
		case 1, 2:
			if old {
				break // as it is
			}
			fallthrough
		default:
			r = catalog.Record{ID: id, Scope: pick(rnd, m1, m1, m2), Endpoint: new("http://w"), KVEventsEndpoint: new("tcp://h:9")}
			r = patched(r, catalog.Patch{BlockSize: new(block), IsEagle: new(isEagle)})
			if rnd.IntN(2) == 0 {
				r = patched(r, randomPatch(rnd))
			}
		}
		if f.Model != nil && rnd.IntN(20) > 0 && (!old || r.Scope.Model != *f.Model) {
			if old && model.records[id].Scope.Model != *f.Model && rnd.IntN(10) > 0 {
				continue // of another scope: refused
			}
			r.Scope.Model = *f.Model
		}
		records = append(records, r)
	}
	return records, f
}

func describeSet(records []catalog.Record, f catalog.ScopeFilter) string {
	var b strings.Builder
	if f.Model != nil {
		fmt.Fprintf(&b, "of %s:", *f.Model)
	}
	for _, r := range records {
		fmt.Fprintf(&b, " %d@%s", r.ID, r.Scope.Model)
		for _, n := range []*uint32{r.BlockSize, r.StartRank, r.Size} {
			if n == nil {
				b.WriteString(" -")
			} else {
				fmt.Fprintf(&b, " %d", *n)
			}
		}
		fmt.Fprintf(&b, " eagle=%t %v", eagleOf(&r), r.KVEventsEndpoints)
		if r.KVEventsEndpoint != nil {
			b.WriteString(" " + *r.KVEventsEndpoint)
		}
	}
	return b.String()
}
