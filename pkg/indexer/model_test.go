package indexer_test

import (
	"slices"

	"github.com/select-service/select-service/pkg/indexer"
)

// model is the dumbest index that can be right: sets of paths per rank and
// tier, walked block by block. It shares no code with the real one.
type model struct {
	paths map[step]int // (path of the parent, local hash) → path; 0 is the root
	up    []step       // by path
	ranks map[uint32]*modelRank
}

type step struct {
	parent int
	local  uint64
}

type modelRank struct {
	named [indexer.NumTiers]map[uint64]int // engine name → path
	// further copies of what is named, and whether their number is not known.
	further     [indexer.NumTiers]map[uint64]int
	provisional [indexer.NumTiers]map[uint64]bool
	// doubted: some named or waiting block may be provisional.
	doubted bool
	waiting []modelOrphan
	gone    map[uint64]int // removed blocks by name
}

type modelOrphan struct {
	name, parent, local uint64
	tiers               map[indexer.Tier]bool
	provisional         bool
}

func newModel() *model {
	return &model{paths: map[step]int{}, up: []step{{}}, ranks: map[uint32]*modelRank{}}
}

func (m *model) rank(slot uint32) *modelRank {
	r := m.ranks[slot]
	if r == nil {
		r = &modelRank{gone: map[uint64]int{}}
		for t := range r.named {
			r.named[t], r.further[t], r.provisional[t] = map[uint64]int{}, map[uint64]int{}, map[uint64]bool{}
		}
		m.ranks[slot] = r
	}
	return r
}

func (m *model) path(parent int, local uint64) int {
	s := step{parent, local}
	p, ok := m.paths[s]
	if !ok {
		p = len(m.up)
		m.up = append(m.up, s)
		m.paths[s] = p
	}
	return p
}

func (r *modelRank) find(name uint64) (int, bool) {
	for t := range r.named {
		if p, ok := r.named[t][name]; ok {
			return p, true
		}
	}
	return 0, false
}

// findFor prefers the tier.
func (r *modelRank) findFor(t indexer.Tier, name uint64) (int, bool) {
	if p, ok := r.named[t][name]; ok {
		return p, true
	}
	return r.find(name)
}

func (m *model) store(ev *indexer.Store) {
	r := m.rank(ev.Slot)
	at, ok := 0, true
	if ev.HasParent {
		if at, ok = r.findFor(ev.Tier, ev.Parent); !ok && ev.Parent == 0 {
			ok = true
		}
	}
	if !ok {
		parent := ev.Parent
		for i, name := range ev.EngineHashes {
			if p, held := r.find(name); held && m.up[p].local == ev.Local[i] {
				if i > 0 && ev.Provisional && !r.doubted {
					r.doubt()
				}
				r.hold(ev.Tier, name, p, ev.Counted, ev.Provisional)
				m.joinOrphans(r, ev.Tier, []uint64{name})
				if rest := i + 1; rest < len(ev.EngineHashes) {
					m.store(&indexer.Store{Slot: ev.Slot, Tier: ev.Tier, Parent: name, HasParent: true, EngineHashes: ev.EngineHashes[rest:], Local: ev.Local[rest:], Counted: ev.Counted, Provisional: ev.Provisional})
				}
				return
			}
			o := modelOrphan{name, parent, ev.Local[i], map[indexer.Tier]bool{ev.Tier: true}, ev.Provisional}
			for _, old := range r.waiting {
				if old.name == name && old.parent == parent && old.local == o.local {
					for t := range old.tiers {
						o.tiers[t] = true
					}
					o.provisional = o.provisional && old.provisional
				}
			}
			r.drop(name)
			r.waiting = append(r.waiting, o)
			parent = name
		}
		if ev.Provisional && !r.doubted {
			r.doubt()
		}
		return
	}
	for i, name := range ev.EngineHashes {
		at = m.path(at, ev.Local[i])
		r.hold(ev.Tier, name, at, ev.Counted, ev.Provisional)
	}
	m.joinOrphans(r, ev.Tier, ev.EngineHashes)
}

// hold takes a block that is announced under a name.
func (r *modelRank) hold(t indexer.Tier, name uint64, p int, counted, provisional bool) {
	switch old, held := r.named[t][name]; {
	case !held || old != p:
		r.forget(t, name)
		r.named[t][name] = p
		if provisional {
			if !r.doubted {
				r.doubt()
			}
			r.provisional[t][name] = true
		}
	case !counted || provisional:
	case r.provisional[t][name]:
		delete(r.provisional[t], name)
	default:
		r.further[t][name]++
	}
}

func (r *modelRank) forget(t indexer.Tier, name uint64) {
	delete(r.named[t], name)
	delete(r.further[t], name)
	delete(r.provisional[t], name)
}

// doubt makes all blocks provisional.
func (r *modelRank) doubt() {
	for t := range r.named {
		clear(r.further[t])
		for name := range r.named[t] {
			r.provisional[t][name] = true
			r.doubted = true
		}
	}
	for i := range r.waiting {
		r.waiting[i].provisional = true
		r.doubted = true
	}
}

// believe ends the doubt when nothing is provisional.
func (r *modelRank) believe() {
	for t := range r.provisional {
		if len(r.provisional[t]) > 0 {
			return
		}
	}
	r.doubted = r.doubted && len(r.waiting) > 0
}

func (r *modelRank) drop(name uint64) {
	r.waiting = slices.DeleteFunc(r.waiting, func(o modelOrphan) bool { return o.name == name })
}

// joinOrphans follows a store of names in a tier.
func (m *model) joinOrphans(r *modelRank, tier indexer.Tier, names []uint64) {
	for _, o := range slices.Clone(r.waiting) {
		if !slices.Contains(names, o.name) {
			continue
		}
		r.drop(o.name)
		if p := r.named[tier][o.name]; m.up[p].local == o.local { // it came itself
			for t := range o.tiers {
				r.hold(t, o.name, p, false, o.provisional)
			}
		}
	}
	for work := slices.Clone(names); len(work) > 0; work = work[1:] {
		for _, o := range slices.Clone(r.waiting) {
			if o.parent != work[0] {
				continue
			}
			r.drop(o.name)
			for t := range indexer.Tier(indexer.NumTiers) {
				if at, ok := r.findFor(t, o.parent); ok && o.tiers[t] {
					r.hold(t, o.name, m.path(at, o.local), false, o.provisional)
					work = append(work, o.name)
				}
			}
		}
	}
}

func (m *model) storeNamed(slot uint32, t indexer.Tier, names []uint64) {
	r := m.rank(slot)
	for _, name := range names {
		if _, ok := r.named[t][name]; ok {
			continue
		}
		if p, ok := r.find(name); ok {
			r.hold(t, name, p, false, false)
			m.joinOrphans(r, t, []uint64{name})
			continue
		}
		waiting := false
		for _, o := range r.waiting {
			if o.name == name {
				o.tiers[t] = true
				waiting = true
			}
		}
		if p, ok := r.gone[name]; ok && !waiting {
			r.hold(t, name, p, false, false)
			m.joinOrphans(r, t, []uint64{name})
		}
	}
}

func (m *model) remove(slot uint32, t indexer.Tier, names []uint64) {
	r := m.rank(slot)
	for _, name := range names {
		if r.further[t][name] > 0 {
			r.further[t][name]--
			continue
		}
		if p, ok := r.named[t][name]; ok {
			r.forget(t, name)
			r.gone[name] = p
			continue
		}
		for _, o := range r.waiting {
			if o.name == name && o.tiers[t] {
				delete(o.tiers, t)
				if len(o.tiers) == 0 {
					r.drop(name)
				}
				break
			}
		}
	}
	r.believe()
}

// copies counts the further copies of all ranks.
func (m *model) copies() (n int) {
	for _, r := range m.ranks {
		for t := range r.further {
			for _, more := range r.further[t] {
				n += more
			}
		}
	}
	return n
}

func (m *model) clear(slot uint32) { delete(m.ranks, slot) }

// overlap follows a prompt for one rank, tier by tier.
func (m *model) overlap(slot uint32, local []uint64) (device, host, disk uint32) {
	r := m.ranks[slot]
	if r == nil {
		return 0, 0, 0
	}
	held := [indexer.NumTiers]map[int]bool{}
	for t := range held {
		held[t] = map[int]bool{}
		for _, p := range r.named[t] {
			held[t][p] = true
		}
	}
	var ends [indexer.NumTiers]int
	at, i := 0, 0
	for t := range held {
		for i < len(local) {
			p, ok := m.paths[step{at, local[i]}]
			if !ok || !held[t][p] {
				break
			}
			at = p
			i++
		}
		ends[t] = i
	}
	return uint32(ends[indexer.Device]), uint32(ends[indexer.Host] - ends[indexer.Device]), uint32(ends[indexer.External] - ends[indexer.Host])
}

// blocks counts the (rank, block) entries of a tier.
// hold reports whether a slot has the first blocks of a prompt under these names: so many on the device, the others on
// the host tier.
func (m *model) hold(slot uint32, local, names []uint64, device uint32) bool {
	at := 0
	for i, name := range names {
		tier := indexer.Device
		if i >= int(device) {
			tier = indexer.Host
		}
		at = m.path(at, local[i])
		if p, ok := m.ranks[slot].named[tier][name]; !ok || p != at {
			return false
		}
	}
	return true
}

func (m *model) blocks(t indexer.Tier) int {
	n := 0
	for _, r := range m.ranks {
		n += r.blocks(t)
	}
	return n
}

// blocks is nil-safe: a rank that never came holds none.
func (r *modelRank) blocks(t indexer.Tier) int {
	if r == nil {
		return 0
	}
	set := map[int]bool{}
	for _, p := range r.named[t] {
		set[p] = true
	}
	return len(set)
}
