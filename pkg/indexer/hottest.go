package indexer

import (
	"cmp"
	"math/bits"
	"slices"
)

// MaxHottestRuns bounds the runs that one call of Hottest looks at.
const MaxHottestRuns = 1 << 18

// MaxHottestShown bounds the runs that one call of Hottest returns.
const MaxHottestShown = 1 << 14

// maxNamedSlots bounds the holders that Hottest names of one run.
const maxNamedSlots = 16

// HotRun is a run of blocks with the same holders, in a tree of runs.
type HotRun struct {
	Parent  int    // position of the run before it in the list; -1: at the root
	Depth   uint32 // blocks before its first
	Blocks  uint32
	Holders uint32 // slots that hold it in any tier
	// SubtreeBlocks and SubtreeHeld are of the run and all runs below it: blocks, and blocks times
	// holders.
	SubtreeBlocks, SubtreeHeld uint64
	Place                      int // among the hottest, from 1; 0: it is only before one of them
	// The fields below are unset if the run has changed during the walk.
	Local uint64           // hash of its first block
	Seed  uint64           // of the block seed (hashing.LocalSeed)
	Tiers [NumTiers]uint32 // holders by tier
	Slots []uint32         // some of the holders
	Known bool             // Local, Seed, Tiers and Slots are known
}

// held returns blocks times holders.
func (r *HotRun) held() uint64 { return uint64(r.Blocks) * uint64(r.Holders) }

// hotCell is where a run began when the walk passed it.
type hotCell struct {
	run  HotRun
	cell uint32
}

// Hottest returns the k runs with the most blocks times holders, and the runs before these in
// their prompts; parents come first. walked is how many runs it has looked at, at most
// MaxHottestRuns. complete is false if there are more, of which nothing is known, or if some of the k
// are left out: there would be more than MaxHottestShown with those before them. The index goes on changing meanwhile:
// like Walk, it holds the lock for one piece at a time. A sequence Space has no runs.
func (s *Space) Hottest(k int) (hottest []HotRun, walked int, complete bool) {
	return s.hottest(k, MaxHottestRuns, MaxHottestShown, walkWork)
}

func (s *Space) hottest(k, most, shown, work int) (hottest []HotRun, walked int, complete bool) {
	if s.sequence {
		return nil, 0, true
	}
	w := &Walk{space: s, work: work} // without levels: its place in the tree is all that is used
	s.mu.Lock()
	if s.tree.live > 0 {
		w.next = s.tree.node(s.tree.node(root).first).off
	}
	s.tree.walks = append(s.tree.walks, w)
	s.mu.Unlock()
	defer w.end()

	var passed []hotCell
	var path []int // the positions in passed of the runs before the present one
	for more := true; more; {
		if complete = !w.passHot(&passed, &path, most); complete || len(passed) >= most {
			more = false
		}
	}
	sumUp(passed)
	chosen, all := choose(passed, k, shown)
	hottest = make([]HotRun, len(chosen))
	position := make(map[int]int, len(chosen))
	for i, at := range chosen {
		hottest[i] = passed[at].run
		position[at] = i
		if up := hottest[i].Parent; up >= 0 {
			hottest[i].Parent = position[up]
		}
	}
	for i := 0; i < len(chosen); {
		i = s.describeHot(hottest, passed, chosen, i, work)
	}
	return hottest, len(passed), complete && all
}

// passHot passes one piece of the index, and reports whether there is more of it. path has the
// positions in passed of the runs before the next one, and perhaps of others behind them.
func (w *Walk) passHot(passed *[]hotCell, path *[]int, most int) (more bool) {
	s := w.space
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := &s.tree
	for done := 0; w.next != 0 && done < w.work && len(*passed) < most; done += runWork + int(t.sets.words) {
		p := s.tree.positionAfter(w.next)
		nd := t.node(p.id)
		at := p.at - 1
		r := HotRun{Parent: -1, Depth: nd.depth + at, Blocks: nd.n - at}
		r.Holders, _ = t.countHolders(nd)
		up := *path
		for len(up) > 0 && (*passed)[up[len(up)-1]].run.Depth >= r.Depth {
			up = up[:len(up)-1] // a sibling, or below one
		}
		if len(up) > 0 {
			r.Parent = up[len(up)-1]
		}
		*path = append(up, len(*passed))
		*passed = append(*passed, hotCell{r, w.next})
		if nd.first != 0 {
			w.next = t.node(nd.first).off
		} else {
			w.next = t.afterSubtree(p.id)
		}
	}
	return w.next != 0
}

// countHolders counts the slots that hold a run, in any tier and in each.
func (t *tree) countHolders(nd *node) (all uint32, tiers [NumTiers]uint32) {
	used := 0
	for tier, h := range nd.holders {
		if h != noHolder {
			tiers[tier] = t.sets.size(h)
			all = tiers[tier]
			used++
		}
	}
	if used < 2 {
		return all, tiers
	}
	all = 0
	for word := range t.sets.words {
		in := uint64(0)
		for _, h := range nd.holders {
			in |= t.sets.word(h, word)
		}
		all += uint32(bits.OnesCount64(in))
	}
	return all, tiers
}

// size returns the number of members.
func (s *holderSets) size(h holderSet) (n uint32) {
	for word := range s.words {
		n += uint32(bits.OnesCount64(s.word(h, word)))
	}
	return n
}

// word returns the members among 64 slots.
func (s *holderSets) word(h holderSet, word uint32) uint64 {
	switch {
	case h == noHolder:
		return 0
	case h&single == 0:
		return s.set(h)[word]
	}
	if slot := uint32(h &^ single); slot/64 == word {
		return 1 << (slot % 64)
	}
	return 0
}

// sumUp sets the sums of subtrees: children come after their parents.
func sumUp(passed []hotCell) {
	for i := len(passed) - 1; i >= 0; i-- {
		r := &passed[i].run
		r.SubtreeBlocks += uint64(r.Blocks)
		r.SubtreeHeld += r.held()
		if r.Parent >= 0 {
			up := &passed[r.Parent].run
			up.SubtreeBlocks += r.SubtreeBlocks
			up.SubtreeHeld += r.SubtreeHeld
		}
	}
}

// choose returns the positions of the k hottest runs and of all runs before them, in order, and
// sets the places of the hottest. Those with which there would be more than most are left out; all is
// false then.
func choose(passed []hotCell, k, most int) (chosen []int, all bool) {
	order := make([]int, 0, len(passed))
	for i := range passed {
		if passed[i].run.Holders > 0 {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(passed[b].run.held(), passed[a].run.held()), cmp.Compare(a, b))
	})
	wanted := make(map[int]bool)
	all = true
	for place, hot := range order[:min(k, len(order))] {
		var more []int // it and the runs before it that are not wanted yet
		for i := hot; i >= 0 && !wanted[i] && len(wanted)+len(more) <= most; i = passed[i].run.Parent {
			more = append(more, i)
		}
		if len(wanted)+len(more) > most {
			all = false
			continue
		}
		passed[hot].run.Place = place + 1
		for _, i := range more {
			wanted[i] = true
		}
	}
	chosen = make([]int, 0, len(wanted))
	for i := range passed {
		if wanted[i] {
			chosen = append(chosen, i)
		}
	}
	return chosen, all
}

// describeHot fills in the details of runs from the i-th on, as many as fit into one hold of the
// lock, and returns the next one.
func (s *Space) describeHot(hottest []HotRun, passed []hotCell, chosen []int, i, work int) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := &s.tree
	for done := 0; i < len(chosen) && done < work; i++ {
		r, cell := &hottest[i], passed[chosen[i]].cell
		done += runWork + int(t.sets.words)
		nd, ok := t.runAt(cell)
		if !ok || nd.depth+cell-nd.off != r.Depth {
			continue
		}
		r.Known = true
		r.Local, r.Seed = t.cells.local(cell), t.seeds.seed(nd.seed)
		_, r.Tiers = t.countHolders(nd)
		for word := range t.sets.words {
			in := uint64(0)
			for _, h := range nd.holders {
				in |= t.sets.word(h, word)
			}
			for ; in != 0 && len(r.Slots) < maxNamedSlots; in &= in - 1 {
				r.Slots = append(r.Slots, word*64+uint32(bits.TrailingZeros64(in)))
			}
		}
	}
	return i
}

// runAt returns the node whose run has a cell; false if the cell is free, which it may have become
// since it was seen.
func (t *tree) runAt(cell uint32) (*node, bool) {
	if int(cell>>segmentBits) >= len(t.cells.segments) {
		return nil, false
	}
	seg, i := t.cells.at(cell)
	if int(i) >= len(seg.node) || seg.node[i] == freeCell {
		return nil, false
	}
	id := seg.node[i] // perhaps of a run that has left the cell
	if page := int(id >> pageBits); page >= len(t.pages) || int(id&(pageNodes-1)) >= len(t.pages[page]) {
		return nil, false
	}
	nd := t.node(id)
	return nd, nd.used && cell-nd.off < nd.n
}
