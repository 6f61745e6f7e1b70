package indexer

import (
	"fmt"
	"math/bits"
	"unsafe"
)

// check walks the whole structure and returns the first broken invariant: every
// cell knows its node, every node its parent and its place among its siblings,
// every name is in the table, no leaf is without owners, no two neighbours that
// could be one run are two, aliases have what they need, and all counters add up.
func (s *Space) check() error {
	t := &s.tree
	if t.live == 0 {
		if b := s.mem.Bytes(); b != s.rings() {
			return fmt.Errorf("empty tree holds %d bytes", b-s.rings())
		}
		return s.checkAliasIndex()
	}
	blocks, nodes, cells, claims := [NumTiers]int{}, 0, 0, 0
	var walk func(id uint32) error
	walk = func(id uint32) error {
		nd := t.node(id)
		if !nd.used {
			return fmt.Errorf("node %d is linked but free", id)
		}
		if id != root {
			nodes++
			cells += int(nd.n)
			if nd.unverified {
				claims++
			}
			if nd.n == 0 || nd.n > nd.cap || nd.cap > maxRun {
				return fmt.Errorf("node %d: n=%d cap=%d", id, nd.n, nd.cap)
			}
			for i := range nd.cap {
				if got := t.cells.nodeOf(nd.off + i); got != id {
					return fmt.Errorf("cell %d of node %d is labelled %d", nd.off+i, id, got)
				}
			}
			for i, name := range t.cells.names(nd.off, nd.n) {
				if s.tree.findByName(name, func(c uint32, _ *node) bool { return c == nd.off+uint32(i) }) == 0 {
					return fmt.Errorf("name %d of node %d is not in the table", name, id)
				}
			}
			if err := s.checkPlace(id); err != nil {
				return err
			}
			for tier, h := range nd.holders {
				blocks[tier] += t.sets.count(h) * int(nd.n)
			}
			if nd.first == 0 && nd.holders == [NumTiers]holderSet{} {
				return fmt.Errorf("leaf %d has no owners", id)
			}
		}
		prev := uint32(0)
		for c := nd.first; c != 0; c = t.node(c).next {
			if cn := t.node(c); cn.parent != id || cn.prev != prev {
				return fmt.Errorf("node %d: parent %d, prev %d; want %d, %d", c, cn.parent, cn.prev, id, prev)
			}
			if err := walk(c); err != nil {
				return err
			}
			prev = c
		}
		if before := t.live; id != root && nd.first != 0 {
			only := t.node(nd.first)
			same := only.next == 0 && nd.off+nd.cap == only.off && nd.cap == nd.n && nd.seed == only.seed
			same = same && nd.unverified == only.unverified && nd.depth+nd.n == only.depth
			for i := range nd.holders {
				same = same && t.sets.equal(nd.holders[i], only.holders[i])
			}
			if same && before == t.live {
				return fmt.Errorf("nodes %d and %d could be one", id, nd.first)
			}
		}
		return nil
	}
	if err := walk(root); err != nil {
		return err
	}
	for slot := range s.ranks {
		if err := s.ranks[slot].aliases.check(); err != nil {
			return fmt.Errorf("slot %d: %w", slot, err)
		}
		if err := s.checkCopies(uint32(slot)); err != nil {
			return fmt.Errorf("slot %d: %w", slot, err)
		}
	}
	if err := s.checkAliasIndex(); err != nil {
		return err
	}
	named := 0
	for i := range t.byName.shards {
		named += t.byName.shards[i].n
	}
	valued := 0
	if s.sequence {
		for i := range t.byValue.shards {
			valued += t.byValue.shards[i].n
		}
	}
	used := 0
	for i := range t.cells.segments {
		used += t.cells.segments[i].used
	}
	switch {
	case nodes != t.live:
		return fmt.Errorf("%d nodes linked, %d live", nodes, t.live)
	case !s.sequence && nodes != t.children.n:
		return fmt.Errorf("%d nodes linked, %d in the children table", nodes, t.children.n)
	case blocks != s.blocks:
		return fmt.Errorf("blocks %v, counted %v", blocks, s.blocks)
	case s.sequence && cells != valued:
		return fmt.Errorf("%d cells, %d values", cells, valued)
	case claims != t.unverifiedRuns:
		return fmt.Errorf("%d runs are unverified, counted %d", claims, t.unverifiedRuns)
	case cells != named:
		return fmt.Errorf("%d cells, %d names", cells, named)
	case cells > used:
		return fmt.Errorf("%d cells in runs, %d in use", cells, used)
	}
	return nil
}

// checkPlace checks that a node is found where it stands.
func (s *Space) checkPlace(id uint32) error {
	t := &s.tree
	nd := t.node(id)
	if !s.sequence {
		if p := t.node(nd.parent); nd.depth != p.depth+p.n || nd.unverified {
			return fmt.Errorf("node %d: depth %d below %d+%d, unverified %v", id, nd.depth, p.depth, p.n, nd.unverified)
		}
		if t.child(nd.parent, t.cells.local(nd.off)) != id {
			return fmt.Errorf("node %d is not found below %d", id, nd.parent)
		}
		return nil
	}
	if !nd.unverified && nd.depth >= unknownDepth {
		return fmt.Errorf("node %d: tokens lead to it, its depth is not known", id)
	}
	for i, value := range t.cells.locals(nd.off, nd.n) {
		if c := t.cellOf(value); c != nd.off+uint32(i) {
			return fmt.Errorf("value %d of node %d is found at cell %d, stands at %d", value, id, c, nd.off+uint32(i))
		}
	}
	return nil
}

// checkCopies checks that copies are counted of names that stand for blocks only, and
// are added up.
func (s *Space) checkCopies(slot uint32) error {
	c := &s.ranks[slot].copies
	var further [NumTiers]int
	for key, n := range c.counts {
		if n == 0 || s.findInTier(holderOf(slot, key.tier), key.name) == 0 {
			return fmt.Errorf("%d copies of name %d in tier %d, which stands for nothing", n, key.name, key.tier)
		}
		further[key.tier] += int(n) - 1
	}
	if further != c.further {
		return fmt.Errorf("%v further copies, counted %v", further, c.further)
	}
	return nil
}

// check counts the aliases of each block, and those that are linked.
func (a *aliases) check() error {
	counts := make(map[heldKey]uint32)
	for alias, cell := range a.cells {
		counts[heldIn(cell, alias.tier)]++
	}
	if len(counts) != len(a.states) {
		return fmt.Errorf("%d blocks have aliases, %d states", len(counts), len(a.states))
	}
	linked := 0
	for key, n := range counts {
		if st := a.states[key]; st.count != n {
			return fmt.Errorf("a block has %d aliases, its state counts %d", n, st.count)
		}
		if n > 1 {
			linked += int(n)
		}
	}
	if linked != len(a.links) {
		return fmt.Errorf("%d aliases are not their block's only one, %d are linked", linked, len(a.links))
	}
	return nil
}

// checkAliasIndex checks that a sequence Space has exactly its slots' aliases by
// name, each of a block that is held, and a local one none.
func (s *Space) checkAliasIndex() error {
	t := &s.tree
	want := make(map[uint64]map[uint32]uint32)
	for slot := range s.ranks {
		for alias, cell := range s.ranks[slot].aliases.cells {
			if !s.tree.holds(holderOf(uint32(slot), alias.tier), cell) {
				return fmt.Errorf("slot %d: alias %d of cell %d of node %d, which it does not hold", slot, alias.name, cell, t.cells.nodeOf(cell))
			}
			if want[alias.name] == nil {
				want[alias.name] = make(map[uint32]uint32)
			}
			if s.sequence {
				want[alias.name][cell]++
			}
		}
	}
	if !s.sequence {
		clear(want)
	}
	n := &s.byAlias
	if len(n.first) != len(want) || len(want) == 0 && n.first != nil {
		return fmt.Errorf("%d names are aliases, %d are in the index", len(want), len(n.first))
	}
	further := 0
	for name, cells := range want {
		found := append([]aliasedBlock{n.first[name]}, n.more[name]...)
		if len(found) != len(cells) {
			return fmt.Errorf("name %d is of %d blocks, in the index of %d", name, len(cells), len(found))
		}
		for _, nick := range found {
			if nick.count == 0 || cells[nick.cell] != nick.count {
				return fmt.Errorf("name %d is %d times cell %d's, counted %d", name, cells[nick.cell], nick.cell, nick.count)
			}
		}
		if len(cells) > 1 {
			further++
		}
	}
	if further != len(n.more) || further == 0 && n.more != nil {
		return fmt.Errorf("%d names are of several blocks, %d counted", further, len(n.more))
	}
	return nil
}

// rings is the size of what the ranks remember of removed blocks.
func (s *Space) rings() int64 {
	n := int64(0)
	for i := range s.ranks {
		r := &s.ranks[i].removed
		n += int64(len(r.rows))*int64(unsafe.Sizeof(removedRow{})) + int64(len(r.rest.rows))*int64(unsafe.Sizeof(removedRest{}))
	}
	return n + int64(len(s.removals.rows))*int64(unsafe.Sizeof(removal{}))
}

// count returns the number of members of a set.
func (s *holderSets) count(h holderSet) int {
	if h == noHolder {
		return 0
	}
	if h&single != 0 {
		return 1
	}
	n := 0
	for _, w := range s.set(h) {
		n += bits.OnesCount64(w)
	}
	return n
}
