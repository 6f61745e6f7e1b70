package catalog

// MaxReservedSlots bounds the slots that are reserved at a time, in all scopes together.
const MaxReservedSlots = 65_536

// reservedSlots has the slots reserved for ranks, by worker and data-parallel rank.
type reservedSlots map[uint64]map[uint32]uint32

func (rs reservedSlots) slot(r Rank) (slot uint32, reserved bool) {
	slot, reserved = rs[r.Worker][r.DP]
	return slot, reserved
}

func (rs reservedSlots) add(r Rank, slot uint32) {
	of := rs[r.Worker]
	if of == nil {
		of = make(map[uint32]uint32)
		rs[r.Worker] = of
	}
	of[r.DP] = slot
}

func (rs reservedSlots) remove(r Rank) {
	delete(rs[r.Worker], r.DP)
	if len(rs[r.Worker]) == 0 {
		delete(rs, r.Worker)
	}
}

// ReserveSlot gives a rank a slot of its scope before its worker is attached, so that blocks
// which another replica reported for it can be stored. A rank that has a slot already, because
// it is attached or has a reserved one, gets that one. Reserved slots are in no snapshot.
//
// When the worker is attached, its ranks get their reserved slots. In all other cases a
// reserved slot is released, with a call of the Reconciler's ReleaseSlot: when the worker is
// attached without that rank, is deleted, moves or is registered through the slot tracker; when
// the scope's first attached worker has another block size or eagle flag; and by
// ReleaseReservedSlots.
//
// ok is false if the scope has another block size (blockSize is in tokens), if the worker is
// attached without that rank, if the slot tracker has the worker (whose ranks have no blocks),
// if MaxReservedSlots are reserved or Limits.Scopes scopes exist already, and, after
// ReleaseReservedSlots, for a rank that is not attached.
func (c *Catalog) ReserveSlot(sc Scope, blockSize uint32, r Rank) (slot uint32, ok bool) {
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
		if slot, ok = s.reserved.slot(r); ok {
			return slot, true
		}
	}
	if c.mu.slotsReleased || c.mu.reservedSlots >= MaxReservedSlots || blockSize == 0 {
		return 0, false
	}
	if most := c.settings.Limits.Scopes; s == nil && most > 0 && len(c.mu.scopes) >= most {
		return 0, false
	}
	s = c.scopeLocked(sc, blockSize)
	slot = s.slots.take()
	s.reserved.add(r, slot)
	c.mu.reservedSlots++
	c.reconciler.ReserveSlot(sc, blockSize, r, slot)
	return slot, true
}

// ReleaseReservedSlots releases all reserved slots, and makes ReserveSlot return those of attached
// ranks only from now on. It returns the number of ranks that lost their slots.
func (c *Catalog) ReleaseReservedSlots() (released int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.slotsReleased = true
	released = c.mu.reservedSlots
	for sc := range c.mu.scopes {
		c.releaseReservedLocked(sc)
	}
	return released
}

// releaseReservedLocked releases the reserved slots of a scope, if it exists.
func (c *Catalog) releaseReservedLocked(sc Scope) {
	if s := c.mu.scopes[sc]; s != nil {
		for worker := range s.reserved {
			c.releaseWorkerLocked(sc, worker)
		}
	}
}

// releaseWorkerLocked releases the slots reserved for a worker in a scope.
func (c *Catalog) releaseWorkerLocked(sc Scope, worker uint64) {
	s := c.mu.scopes[sc]
	if s == nil {
		return
	}
	for dp, slot := range s.reserved[worker] {
		r := Rank{Worker: worker, DP: dp}
		s.reserved.remove(r)
		c.mu.reservedSlots--
		c.reconciler.ReleaseSlot(sc, r, slot)
		s.slots.release(slot)
	}
	c.dropIfEmptyLocked(sc)
}

// releaseUnfitLocked prepares a scope for its first attached worker: it releases the reserved slots
// if their blocks have another size or eagle flag, which makes them useless. It does so even if
// the Reconciler then refuses the worker.
func (c *Catalog) releaseUnfitLocked(a *Attachment) {
	s := c.mu.scopes[a.Scope]
	if s == nil || len(s.members) > 0 {
		return
	}
	if s.blockSize != a.BlockSize || !a.Tracked && s.eagleKnown && s.eagle != a.Eagle {
		c.releaseReservedLocked(a.Scope)
	}
}

// attachReservedLocked notes that ranks are attached in the slots that were reserved for them; a
// may be nil.
func (c *Catalog) attachReservedLocked(s *scope, a *Attachment) {
	if a == nil {
		return
	}
	if !a.Tracked {
		s.eagleKnown, s.eagle = true, a.Eagle
	}
	for _, r := range a.Ranks() {
		key := Rank{Worker: a.Worker, DP: r.DP}
		if _, reserved := s.reserved.slot(key); reserved {
			s.reserved.remove(key)
			c.mu.reservedSlots--
		}
	}
}
