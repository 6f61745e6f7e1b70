package indexer

// Check exports the invariants to the tests of the package's users.
func (s *Space) Check() error { return s.check() }

// WalkBy is Walk with pieces of a given size: 1 makes every run a piece.
func (s *Space) WalkBy(work int) *Walk { return s.walk(work) }

// Pieces yields the runs that were copied at a time, where Runs yields one by
// one.
func (w *Walk) Pieces(yield func([]Run) bool) {
	defer w.end()
	for w.fillPiece() {
		if !yield(w.runs) {
			return
		}
	}
}

// Walks counts the walks under way.
func (s *Space) Walks() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.tree.walks)
}

// Hide makes the index look as while it clears a slot.
func (s *Space) Hide(slot uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clearing[slot/64] |= 1 << (slot % 64)
}

// LongestSearch returns the most places that a look-up of anything in the tables
// passes.
func (s *Space) LongestSearch() (longest int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	tables := []*handleTable{&s.tree.children}
	for i := range s.tree.byName.shards {
		tables = append(tables, &s.tree.byName.shards[i])
	}
	for _, t := range tables {
		for i, w := range t.slots {
			if w != 0 {
				longest = max(longest, t.distance(t.first(uint32(w>>32)), i))
			}
		}
	}
	return longest
}

// NextNode returns the number that the next node of the tree gets while none is free.
func (s *Space) NextNode() uint32 { return s.tree.next }

// HottestOf is Hottest with other bounds: of the runs, and of the work in one hold of the lock.
func (s *Space) HottestOf(k, most, work int) ([]HotRun, int, bool) {
	return s.hottest(k, most, MaxHottestShown, work)
}

// HottestShown is Hottest with another bound of what it returns.
func (s *Space) HottestShown(k, shown int) ([]HotRun, bool) {
	runs, _, complete := s.hottest(k, MaxHottestRuns, shown, walkWork)
	return runs, complete
}
