package catalog

// MaxHolds bounds the ranks that are held at a time, in all scopes together.
const MaxHolds = 65_536

// holds has the slots of held ranks, by worker and data-parallel rank.
type holds map[uint64]map[uint32]uint32

func (h holds) slot(r Rank) (slot uint32, held bool) {
	slot, held = h[r.Worker][r.DP]
	return slot, held
}

func (h holds) add(r Rank, slot uint32) {
	of := h[r.Worker]
	if of == nil {
		of = make(map[uint32]uint32)
		h[r.Worker] = of
	}
	of[r.DP] = slot
}

func (h holds) remove(r Rank) {
	delete(h[r.Worker], r.DP)
	if len(h[r.Worker]) == 0 {
		delete(h, r.Worker)
	}
}

// Hold gives a rank a slot of its scope before its worker is attached, so that
// blocks which another replica reported for it can be kept. A rank that has a
// slot already, attached or held, gets that one. Held ranks are in no snapshot.
//
// When the worker is attached, its ranks keep their held slots. In all other
// cases a hold ends with a call of the Reconciler's Unhold: when the worker is
// attached without that rank, is deleted, moves or is registered through the
// slot tracker; when the scope's first attached worker has another block size
// or eagle flag; and by ReleaseHolds.
//
// ok is false if the scope has another block size (blockSize is in tokens), if
// the worker is attached without that rank, if the slot tracker has the worker
// (whose ranks have no blocks), if MaxHolds ranks are held or Limits.Scopes
// scopes exist already, and, after ReleaseHolds, for a rank that is not attached.
func (c *Catalog) Hold(sc Scope, blockSize uint32, r Rank) (slot uint32, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.mu.scopes[sc]
	if s != nil && s.blockSize != blockSize || c.mu.tracked[trackedKey{sc, r.Worker}] != nil {
		return 0, false
	}
	if m := c.mu.members[r.Worker]; m != nil && m.worker.Scope == sc {
		if m.attachment != nil {
			at, attached := m.attachment.Rank(r.DP)
			return at.Slot, attached
		}
	}
	if s != nil {
		if slot, ok = s.holds.slot(r); ok {
			return slot, true
		}
	}
	if c.mu.holdsReleased || c.mu.heldRanks >= MaxHolds || blockSize == 0 {
		return 0, false
	}
	if most := c.settings.Limits.Scopes; s == nil && most > 0 && len(c.mu.scopes) >= most {
		return 0, false
	}
	s = c.scopeLocked(sc, blockSize)
	slot = s.slots.take()
	s.holds.add(r, slot)
	c.mu.heldRanks++
	c.reconciler.Hold(sc, blockSize, r, slot)
	return slot, true
}

// ReleaseHolds ends all holds, and makes Hold return attached ranks only from
// now on. It returns the number of ranks that lost their slots.
func (c *Catalog) ReleaseHolds() (released int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.holdsReleased = true
	released = c.mu.heldRanks
	for sc := range c.mu.scopes {
		c.unholdAllLocked(sc)
	}
	return released
}

// unholdAllLocked ends the holds of a scope, if it exists.
func (c *Catalog) unholdAllLocked(sc Scope) {
	if s := c.mu.scopes[sc]; s != nil {
		for worker := range s.holds {
			c.unholdWorkerLocked(sc, worker)
		}
	}
}

// unholdWorkerLocked ends the holds of a worker in a scope.
func (c *Catalog) unholdWorkerLocked(sc Scope, worker uint64) {
	s := c.mu.scopes[sc]
	if s == nil {
		return
	}
	for dp, slot := range s.holds[worker] {
		r := Rank{Worker: worker, DP: dp}
		s.holds.remove(r)
		c.mu.heldRanks--
		c.reconciler.Unhold(sc, r, slot)
		s.slots.release(slot)
	}
	c.dropIfEmptyLocked(sc)
}

// dropUnfitHoldsLocked prepares a scope for its first attached worker: it ends
// the holds if their blocks have another size or eagle flag, which makes them
// useless. It does so even if the Reconciler then refuses the worker.
func (c *Catalog) dropUnfitHoldsLocked(a *Attachment) {
	s := c.mu.scopes[a.Scope]
	if s == nil || len(s.members) > 0 {
		return
	}
	if s.blockSize != a.BlockSize || !a.Tracked && s.eagleKnown && s.eagle != a.Eagle {
		c.unholdAllLocked(a.Scope)
	}
}

// convertHoldsLocked ends the holds of ranks that are now attached in the same
// slots; a may be nil.
func (c *Catalog) convertHoldsLocked(s *scope, a *Attachment) {
	if a == nil {
		return
	}
	if !a.Tracked {
		s.eagleKnown, s.eagle = true, a.Eagle
	}
	for _, r := range a.Ranks() {
		key := Rank{Worker: a.Worker, DP: r.DP}
		if _, held := s.holds.slot(key); held {
			s.holds.remove(key)
			c.mu.heldRanks--
		}
	}
}
