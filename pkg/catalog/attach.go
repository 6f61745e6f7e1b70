package catalog

import (
	"cmp"
	"fmt"
	"slices"
)

// setRecordLocked gives a member a new record and attaches the worker by it. If
// that is not possible, the worker becomes incomplete, with reasons, and keeps
// the part of its attachment that retained returns.
func (c *Catalog) setRecordLocked(m *member, r Record) {
	var err error
	m.blocked = false
	if len(r.missing(c.settings)) == 0 {
		if err = c.attachLocked(m, &r); err == nil {
			c.setWorkerLocked(m, attachedWorkerOf(r))
			return
		}
		m.blocked = true
	}
	c.setIncompleteLocked(m, c.incompleteWorker(r, err))
}

// reconcileFailed returns the reason of a worker whose record is complete but
// could not be attached.
func reconcileFailed(err error) string { return fmt.Sprintf("reconciliation failed: %v", err) }

// retryBlockedLocked tries to attach the blocked workers, in the order of the
// list, and repeats that until no attachment changes any more. It reports
// whether it tried any. The loop terminates: a retry can remove a worker's old
// attachment only once, and attaching a worker unblocks it.
func (c *Catalog) retryBlockedLocked() (tried bool) {
	for c.mu.changed {
		c.mu.changed = false
		for _, m := range c.mu.ordered {
			if m.blocked {
				c.setRecordLocked(m, m.worker.Record)
				tried = true
			}
		}
	}
	return tried
}

// attachLocked attaches a member by its complete record. The error is the
// member's reason. After an error the old attachment may still have ranks that
// the record no longer names: setIncompleteLocked removes them.
func (c *Catalog) attachLocked(m *member, r *Record) error {
	after, err := c.desiredLocked(m, r)
	if err != nil {
		return err
	}
	if m.attachment != nil && !m.attachment.compatible(after) {
		c.detachLocked(m) // it moves, or is alone in its scope and changes its block size
	}
	c.releaseUnfitLocked(after)
	if err := c.changeLocked(m, after); err != nil {
		return err
	}
	c.releaseWorkerLocked(r.Scope, r.ID) // the slots left are of ranks that the worker does not have
	return nil
}

// desiredLocked returns the attachment of a complete record, without slots, or
// the reason why there can be none.
func (c *Catalog) desiredLocked(m *member, r *Record) (*Attachment, error) {
	if err := c.conflictLocked(m, r); err != nil {
		return nil, err
	}
	a := &Attachment{Scope: r.Scope, Worker: r.ID, BlockSize: r.blockSize(), Eagle: r.eagle()}
	streams := c.settings.KVEvents && r.Publishes()
	all := r.attachable(streams)
	ranks := make([]AttachedRank, 0, len(all))
	if streams {
		a.Streams = make([]Stream, 0, len(all))
	}
	for _, dp := range all {
		ranks = append(ranks, AttachedRank{DP: dp, Candidate: r.HasRank(dp)})
		if !streams {
			continue
		}
		stream, err := r.stream(dp, c.settings.Endpoints)
		if err != nil {
			return nil, err
		}
		a.Streams = append(a.Streams, stream)
	}
	a.setRanks(ranks)
	if err := a.setLoads(r, c.settings.Endpoints); err != nil {
		return nil, err
	}
	if c.settings.CheckScope != nil {
		if err := c.settings.CheckScope(r.Scope); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// conflictLocked compares a record with the block size and the eagle flag of
// its scope, which the other attached workers have fixed.
func (c *Catalog) conflictLocked(m *member, r *Record) error {
	s := c.mu.scopes[r.Scope]
	if s == nil {
		return nil
	}
	if !slices.ContainsFunc(s.members, func(o *member) bool { return o != m }) {
		return nil
	}
	return r.contradicts(s.blockSize, s.eagle, s.eagleKnown)
}

// contradicts returns an error if a scope has another block size or, if that is known, another eagle
// flag than the record.
func (r *Record) contradicts(blockSize uint32, eagle, eagleKnown bool) error {
	if blockSize != r.blockSize() {
		return &conflictError{ConflictBlockSize, fmt.Sprintf("block_size mismatch for model=%s tenant=%s: existing=%d requested=%d",
			r.Scope.Model, r.Scope.Tenant, blockSize, r.blockSize())}
	}
	if eagleKnown && eagle != r.eagle() {
		return fmt.Errorf("is_eagle mismatch for model=%s tenant=%s: existing=%t requested=%t",
			r.Scope.Model, r.Scope.Tenant, eagle, r.eagle())
	}
	return nil
}

// setIncompleteLocked gives the member the incomplete worker w and removes the
// ranks and streams that w may not keep; see retained.
func (c *Catalog) setIncompleteLocked(m *member, w *Worker) {
	target := m.attachment.retained(&w.Record, c.settings.KVEvents)
	if target == nil {
		c.detachLocked(m)
		c.setWorkerLocked(m, w)
		return
	}
	c.setWorkerLocked(m, w) // no longer a candidate while it loses ranks
	if !target.equal(m.attachment) {
		_ = c.changeLocked(m, target) // removing cannot fail
	}
}

// detachLocked removes everything that the member contributes.
func (c *Catalog) detachLocked(m *member) {
	if m.attachment != nil {
		_ = c.changeLocked(m, nil) // removing cannot fail
	}
}

// changeLocked changes the member's attachment to after, which gets its slots
// here. Either may be nil, not both; otherwise they are compatible. Lost ranks
// are hidden from readers before the Reconciler removes them, and new ones are
// shown after it has added them. On an error the old attachment stays in force.
func (c *Catalog) changeLocked(m *member, after *Attachment) error {
	before := m.attachment
	some := cmp.Or(before, after)
	s := c.scopeLocked(some.Scope, some.BlockSize)
	s.assignSlots(before, after)
	if before.equal(after) {
		return nil
	}
	if before != nil {
		if rest := before.intersect(after); !rest.equal(before) {
			c.hideLostLocked(s, m, rest)
		}
	}
	now, lost := after, before
	err := c.reconciler.Reconcile(before, after)
	if err != nil && adds(before, after) {
		now, lost = before, after
	} else {
		err = nil
		c.mu.changed = true
		c.attachReservedLocked(s, now)
	}
	s.releaseLost(lost, now)
	s.attach(m, now)
	c.mu.dirty[some.Scope] = struct{}{}
	c.dropIfEmptyLocked(some.Scope)
	return err
}

// scopeLocked returns the scope with that name, and adds it if there is none.
func (c *Catalog) scopeLocked(name Scope, blockSize uint32) *scope {
	s := c.mu.scopes[name]
	if s == nil {
		s = &scope{reserved: make(reservedSlots), blockSize: blockSize}
		c.mu.scopes[name] = s
	}
	return s
}

func (c *Catalog) dropIfEmptyLocked(name Scope) {
	if s := c.mu.scopes[name]; s != nil && len(s.members) == 0 && len(s.reserved) == 0 {
		delete(c.mu.scopes, name)
	}
}

// hideLostLocked publishes the member with rest, the part of its attachment
// that it will keep, so that readers no longer see the ranks it is about to lose.
func (c *Catalog) hideLostLocked(s *scope, m *member, rest *Attachment) {
	c.mu.dirty[m.attachment.Scope] = struct{}{}
	if rest == nil && m.worker.Lifecycle == Schedulable {
		c.setWorkerLocked(m, m.worker.withLifecycle(Draining))
	}
	s.attach(m, rest)
	c.publishLocked()
}

// attach sets the member's attachment; nil removes the member from the scope.
func (s *scope) attach(m *member, a *Attachment) {
	some := cmp.Or(a, m.attachment)
	if some == nil {
		return
	}
	i, in := slices.BinarySearchFunc(s.members, some.Worker, func(m *member, id uint64) int {
		return cmp.Compare(m.attachment.Worker, id)
	})
	switch {
	case in && a == nil:
		s.members = slices.Delete(s.members, i, i+1)
	case !in && a != nil:
		s.members = slices.Insert(s.members, i, m)
	}
	m.attachment = a
}

// assignSlots sets the slots of the ranks and streams of after: a rank that is
// also in before keeps its slot, a rank with a reserved one gets that, others get the
// lowest free ones. after may be nil.
func (s *scope) assignSlots(before, after *Attachment) {
	if after == nil {
		return
	}
	ranks := after.Ranks()
	for i := range ranks {
		r := &ranks[i]
		if old, ok := before.Rank(r.DP); ok {
			r.Slot = old.Slot
		} else if slot, reserved := s.reserved.slot(Rank{Worker: after.Worker, DP: r.DP}); reserved {
			r.Slot = slot
		} else {
			r.Slot = s.slots.take()
		}
	}
	after.setRanks(ranks)
	for i := range after.Streams {
		r, _ := after.Rank(after.Streams[i].DP)
		after.Streams[i].Slot = r.Slot
	}
}

// releaseLost frees the slots of a's ranks that are neither in b nor reserved. Both
// may be nil.
func (s *scope) releaseLost(a, b *Attachment) {
	if a == nil {
		return
	}
	for _, r := range a.Ranks() {
		_, kept := b.Rank(r.DP)
		if _, reserved := s.reserved.slot(Rank{Worker: a.Worker, DP: r.DP}); !kept && !reserved {
			s.slots.release(r.Slot)
		}
	}
}

// adds reports whether after has anything that before has not.
func adds(before, after *Attachment) bool {
	if before == nil || after == nil {
		return after != nil
	}
	for _, r := range after.Ranks() {
		if old, ok := before.Rank(r.DP); !ok || r.Candidate && !old.Candidate {
			return true
		}
	}
	return slices.ContainsFunc(after.Streams, func(st Stream) bool { return !slices.Contains(before.Streams, st) }) ||
		slices.ContainsFunc(after.Loads, func(st LoadStream) bool { return !slices.Contains(before.Loads, st) })
}
