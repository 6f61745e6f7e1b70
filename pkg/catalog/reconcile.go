package catalog

import (
	"cmp"
	"fmt"
	"slices"
)

// ScopeFilter selects scopes by name; nil matches any name.
type ScopeFilter struct{ Model, Tenant *string }

// check returns an error for a scope that the filter does not select.
func (f ScopeFilter) check(s Scope) error {
	for _, name := range [...]struct {
		field, text string
		want        *string
	}{{"model_name", s.Model, f.Model}, {"tenant_id", s.Tenant, f.Tenant}} {
		if name.want != nil && *name.want != name.text {
			return &InvalidError{fmt.Sprintf("%s %q is not that of the set, %q", name.field, name.text, ShortName(*name.want))}
		}
	}
	return nil
}

// Set is the full set of a source's workers.
type Set struct {
	// Kind is the kind of the source; SourceAPI and SourceFile share their workers. Each
	// record's Source is of a kind that shares workers with it.
	Kind    SourceKind
	Records []Record
	// Scope limits the set to the workers of scopes that it selects.
	Scope ScopeFilter
	// Copied: the set is what another catalog has. Records that cannot be used do not count, as in
	// the set of a discovered source, and each says itself whether an operator drains its worker.
	Copied bool
	// Keep selects workers of the source that stay although the set lacks them, because the
	// part of the source that would name them is not known now; nil: none.
	Keep func(*Worker) bool
}

// covers reports whether the set replaces the member's worker.
func (s *Set) covers(m *member) bool {
	w := m.worker
	return !w.Tracked && s.Kind.sharesWorkers(w.Source.KindOrAPI()) && s.Scope.check(w.Scope) == nil
}

// Difference says what a Reconcile has changed. The ids are sorted. The id of a discovered
// worker that has become another one is in Added and in Removed.
type Difference struct {
	Added, Changed, Removed []uint64
	Unchanged               int
	// Excluded has the records of a discovered or copied set that could not be used, in order.
	Excluded []EntryError
	// Behind is that of Worker.
	Behind []string
}

// EntryError names the record that made Reconcile refuse the whole set.
type EntryError struct {
	Index int // from 0
	Err   error
}

// Error names the entry, counted from 0.
func (e *EntryError) Error() string { return fmt.Sprintf("workers[%d]: %v", e.Index, e.Err) }

// Unwrap returns what is wrong with the record.
func (e *EntryError) Unwrap() error { return e.Err }

// Reconcile makes the records of a set all workers of its source in the selected
// scopes: it adds, changes and removes workers accordingly. Workers of the slot
// tracker and of other sources are not touched. An id whose scope changes counts as
// changed; as with Put, it keeps nothing of its old scope. A discovered worker with
// another UID is another worker, as is one of a copied set with another Registration: it
// keeps nothing. A worker that an operator drains goes on draining.
//
// Readers see the old set or the new one: new attachments are made first, then
// the new set is published, and lost attachments are removed last. There are two
// exceptions. A worker whose old attachment prevents its new one (it moves, is
// another one, or its scope changes its block size) is published without ranks, as
// draining, until the old one is gone. A worker that needs something that a removed
// worker still has, such as an address, is published as incomplete until then.
//
// The result equals that of a Delete of every worker that is not given and a Put
// of every other that differs, with one difference: where workers of one scope
// contradict each other, those that agree with the attached ones prevail. Like a
// Put, it also retries workers that could not be attached.
//
// Errors are ErrShuttingDown, *LimitError if the set exceeds a limit as a whole,
// and *EntryError; then nothing has changed. The latter wraps an *InvalidError, a
// *LimitError, a *ManagedError if the id is another source's, or an *ExistsError if
// it is taken in that scope by the slot tracker, or by a worker of a scope that is
// not selected. In the set of a discovered source such records, and new ones for
// which limits have no room, do not count: the Difference lists them. A worker whose
// record is not used leaves.
func (c *Catalog) Reconcile(set Set) (Difference, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, diff, err := c.differenceLocked(set)
	if err != nil || len(b.changes)+len(b.removed) == 0 {
		return diff, err
	}
	c.attachNewLocked(b)
	c.publishBatchLocked(b)
	c.removeLostLocked(b)
	if c.retryBlockedLocked() {
		c.publishLocked()
	}
	return diff, nil
}

// Compare returns what Reconcile would return, and changes nothing. Attaching the workers may
// still leave some incomplete.
func (c *Catalog) Compare(set Set) (Difference, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, diff, err := c.differenceLocked(set)
	return diff, err
}

// differenceLocked returns what a set would change.
func (c *Catalog) differenceLocked(set Set) (*batch, Difference, error) {
	if c.mu.closed {
		return nil, Difference{}, ErrShuttingDown
	}
	set.Records = c.describedLocked(set.Records)
	var excluded []EntryError
	check := NewSetCheck(set.Scope)
	if set.Kind.Discovered() || set.Copied {
		set.Records, excluded = c.usableLocked(&set, check)
	} else if err := c.checkSetLocked(&set, check); err != nil {
		return nil, Difference{}, err
	}
	b, diff := c.compareLocked(&set, check.given)
	diff.Excluded = excluded
	return b, diff, nil
}

// checkSetLocked returns the error of a set that is refused as a whole.
func (c *Catalog) checkSetLocked(set *Set, check *SetCheck) error {
	for i := range set.Records {
		if err := c.checkEntryLocked(&set.Records[i], set, check); err != nil {
			return &EntryError{Index: i, Err: err}
		}
	}
	room := c.roomLocked(func(m *member) bool { return !set.covers(m) })
	for i := range set.Records {
		room.add(&set.Records[i])
	}
	return room.exceeded()
}

// usableLocked returns the records of a discovered set that can be used. The limits count for
// the workers that are registered first, so that no new one takes the place of one that serves.
func (c *Catalog) usableLocked(set *Set, check *SetCheck) (usable []Record, excluded []EntryError) {
	bad := make(map[int]error)
	for i := range set.Records {
		if err := c.checkEntryLocked(&set.Records[i], set, check); err != nil {
			bad[i] = err
		}
	}
	room := c.roomLocked(func(m *member) bool { return !set.covers(m) || set.Keep != nil && set.Keep(m.worker) })
	for _, registered := range []bool{true, false} {
		for i := range set.Records {
			r := &set.Records[i]
			if bad[i] != nil || (c.mu.members[r.ID] != nil) != registered {
				continue
			}
			if err := room.take(r); err != nil {
				bad[i] = err
			}
		}
	}
	known := check.given
	check.given = make(map[uint64]bool, len(known))
	for i := range set.Records {
		if err := bad[i]; err != nil {
			excluded = append(excluded, EntryError{Index: i, Err: err})
		} else {
			usable = append(usable, set.Records[i])
			check.given[set.Records[i].ID] = known[set.Records[i].ID]
		}
	}
	return usable, excluded
}

// SetCheck finds the entries of a set that Reconcile refuses whatever workers the
// catalog has.
type SetCheck struct {
	scope ScopeFilter
	given map[uint64]bool // ids, and whether the catalog has the very record
}

// NewSetCheck returns the check of a set for the selected scopes.
func NewSetCheck(f ScopeFilter) *SetCheck {
	return &SetCheck{scope: f, given: make(map[uint64]bool)}
}

// Add checks the next entry against the limits, the scopes and the earlier
// entries. The error is an *InvalidError or a *LimitError.
func (s *SetCheck) Add(r *Record) error { return s.add(r, false) }

// add is Add, for a record that the catalog may have already: then it has been checked.
func (s *SetCheck) add(r *Record, known bool) error {
	if !known {
		if err := r.check(); err != nil {
			return err
		}
	}
	if err := s.scope.check(r.Scope); err != nil {
		return err
	}
	if _, twice := s.given[r.ID]; twice {
		return &InvalidError{fmt.Sprintf("worker_id %d is given twice", r.ID)}
	}
	s.given[r.ID] = known
	return nil
}

func (c *Catalog) checkEntryLocked(r *Record, set *Set, check *SetCheck) error {
	m := c.mu.members[r.ID]
	if err := check.add(r, m != nil && m.worker.equal(r)); err != nil {
		return err
	}
	if !set.Kind.sharesWorkers(r.Source.KindOrAPI()) {
		return &InvalidError{fmt.Sprintf("the worker is of %s, the set of %s", r.Source, Source{Kind: set.Kind})}
	}
	if c.mu.tracked[trackedKey{r.Scope, r.ID}] != nil {
		return &ExistsError{ID: r.ID, Scope: r.Scope}
	}
	if m != nil && set.Scope.check(m.worker.Scope) != nil {
		return &ExistsError{ID: r.ID, Scope: m.worker.Scope}
	}
	return set.Kind.checkOwner(m)
}

// batch is the work of one Reconcile.
type batch struct {
	changes []change  // by model, tenant and id
	removed []*member // by model, tenant and id
	// vacated has the scopes whose attached workers all leave, or all change
	// their block size or eagle flag.
	vacated map[Scope]bool
	// losses are still in force, but are hidden from readers.
	losses []loss
}

// change is a worker that is new, differs, or has to be retried.
type change struct {
	member  *member // without a worker: new
	record  Record
	reasons []string // why the record is incomplete
	another bool     // the record is of another worker with the member's id
}

// loss is what a member loses: before is in force, and after, a part of it or
// nil, stays.
type loss struct {
	member        *member
	before, after *Attachment
}

// compareLocked returns the changes and removals that lead from the registered
// workers to those of the set. given has the ids of its records.
func (c *Catalog) compareLocked(set *Set, given map[uint64]bool) (*batch, Difference) {
	b, diff := new(batch), Difference{}
	var r Record // one for all: accessors make it escape to the heap
	for _, r = range set.Records {
		m, same := c.mu.members[r.ID], given[r.ID]
		if !same {
			r.normalize()
			same = m != nil && m.worker.equal(&r)
		}
		ch := change{member: m}
		switch {
		case m == nil:
			ch.member = new(member)
			diff.Added = append(diff.Added, r.ID)
		case r.Another(&m.worker.Record):
			ch.another = true
			diff.Removed = append(diff.Removed, r.ID)
			diff.Added = append(diff.Added, r.ID)
		case !same, set.Copied && (!m.worker.Drain.equal(r.Drain) || !m.worker.ToldSame(&r)):
			diff.Changed = append(diff.Changed, r.ID)
		default:
			diff.Unchanged++
			if !m.blocked && m.worker.Source == r.Source {
				continue
			}
		}
		if m != nil && !ch.another {
			if !set.Copied {
				r.Drain = m.worker.Drain
			}
			r.Registration = cmp.Or(r.Registration, m.worker.Registration)
		}
		ch.record, ch.reasons = r, r.missing(c.settings)
		b.changes = append(b.changes, ch)
	}
	for _, m := range c.mu.ordered {
		if _, stays := given[m.worker.ID]; stays || !set.covers(m) || set.Keep != nil && set.Keep(m.worker) {
			continue
		}
		b.removed = append(b.removed, m)
		diff.Removed = append(diff.Removed, m.worker.ID)
	}
	slices.SortFunc(b.changes, func(x, y change) int {
		return cmp.Or(x.record.Scope.Compare(y.record.Scope), cmp.Compare(x.record.ID, y.record.ID))
	})
	slices.Sort(diff.Added)
	slices.Sort(diff.Changed)
	slices.Sort(diff.Removed)
	c.findVacatedLocked(b)
	return b, diff
}

// findVacatedLocked sets b.vacated. It counts for each scope the attached
// workers that lose their attachment.
func (c *Catalog) findVacatedLocked(b *batch) {
	leaving := make(map[Scope]int)
	for _, m := range b.removed {
		if m.attachment != nil {
			leaving[m.attachment.Scope]++
		}
	}
	for i := range b.changes {
		ch := &b.changes[i]
		a := ch.member.attachment
		if a == nil {
			continue
		}
		if ch.another || len(ch.reasons) == 0 && ch.incompatible() || len(ch.reasons) > 0 && a.retained(&ch.record, c.settings.KVEvents) == nil {
			leaving[a.Scope]++
		}
	}
	b.vacated = make(map[Scope]bool, len(leaving))
	for sc, n := range leaving {
		b.vacated[sc] = n == len(c.mu.scopes[sc].members)
	}
}

// incompatible reports whether the member is attached and the record has another
// scope, block size or eagle flag than the attachment.
func (ch *change) incompatible() bool {
	a, r := ch.member.attachment, &ch.record
	return a != nil && (a.Scope != r.Scope || a.BlockSize != r.blockSize() || a.Eagle != r.eagle())
}

// mustLeave reports whether the member has to lose its attachment before it
// gets the one of its record. As with Put, another eagle flag alone is no
// reason while other workers of the scope keep theirs: the worker then becomes
// incomplete and keeps what it has.
func (b *batch) mustLeave(ch *change) bool {
	a, r := ch.member.attachment, &ch.record
	return a != nil && ch.another ||
		len(ch.reasons) == 0 && ch.incompatible() && (a.Scope != r.Scope || a.BlockSize != r.blockSize() || b.vacated[a.Scope])
}

// attachNewLocked gives the changed members their workers and attaches what is
// new. Readers do not see that yet, and nothing that they see is removed.
func (c *Catalog) attachNewLocked(b *batch) {
	for i := range b.changes {
		ch := &b.changes[i]
		m, r := ch.member, ch.record
		if m.worker != nil && (m.worker.Scope != r.Scope || ch.another) {
			c.releaseWorkerLocked(m.worker.Scope, r.ID)
		}
		c.mu.members[r.ID] = m
		m.blocked = false
		switch {
		case b.mustLeave(ch):
			m.worker = &Worker{Record: r, Lifecycle: Draining}
			m.blocked = true // to be attached when the old attachment is gone
			b.addLoss(m, nil)
		case len(ch.reasons) > 0:
			c.loseIncompleteLocked(b, m, r, nil)
		default:
			if err := c.extendLocked(b, m, &r); err != nil {
				m.blocked = true
				c.loseIncompleteLocked(b, m, r, err)
				break
			}
			m.worker = attachedWorkerOf(r)
		}
		if m.attachment != nil {
			c.mu.dirty[m.attachment.Scope] = struct{}{}
		}
	}
	for _, m := range b.removed {
		b.addLoss(m, nil)
	}
}

// extendLocked attaches what a complete record adds to its member. The error is
// the member's reason; then the attachment is unchanged.
func (c *Catalog) extendLocked(b *batch, m *member, r *Record) error {
	after, err := c.desiredLocked(m, r)
	if err != nil {
		return err
	}
	c.releaseUnfitLocked(after)
	if err := c.changeLocked(m, m.attachment.union(after)); err != nil {
		return err
	}
	c.releaseWorkerLocked(r.Scope, r.ID) // the slots left are of ranks that the worker does not have
	c.mu.scopes[r.Scope].assignSlots(m.attachment, after)
	b.addLoss(m, after)
	return nil
}

// loseIncompleteLocked makes the member incomplete, because of err as for
// incompleteWorker, and records the loss of what it may not keep; see retained.
func (c *Catalog) loseIncompleteLocked(b *batch, m *member, r Record, err error) {
	m.worker = c.incompleteWorker(r, err)
	b.addLoss(m, m.attachment.retained(&r, c.settings.KVEvents))
}

// addLoss records that the member keeps only after.
func (b *batch) addLoss(m *member, after *Attachment) {
	if !after.equal(m.attachment) {
		b.losses = append(b.losses, loss{m, m.attachment, after})
	}
}

// publishBatchLocked shows readers the new set, without what will be lost.
func (c *Catalog) publishBatchLocked(b *batch) {
	for _, l := range b.losses {
		l.member.attachment = l.after
		c.mu.dirty[l.before.Scope] = struct{}{}
	}
	for sc := range c.mu.dirty {
		if s := c.mu.scopes[sc]; s != nil {
			s.members = slices.DeleteFunc(s.members, func(m *member) bool { return m.attachment == nil })
		}
	}
	for _, m := range b.removed {
		delete(c.mu.members, m.worker.ID)
	}
	order := slices.DeleteFunc(c.mu.ordered, func(m *member) bool { return !m.worker.Tracked })
	for _, m := range c.mu.members {
		order = append(order, m)
	}
	slices.SortFunc(order, func(m, o *member) int { return byScope(m, o.worker) })
	c.mu.ordered = order
	c.publishLocked()
}

// removeLostLocked removes what readers no longer see.
func (c *Catalog) removeLostLocked(b *batch) {
	for _, l := range b.losses {
		_ = c.reconciler.Reconcile(l.before, l.after) // removing cannot fail
		c.mu.changed = true
		c.mu.scopes[l.before.Scope].releaseLost(l.before, l.after)
	}
	for _, l := range b.losses {
		c.dropIfEmptyLocked(l.before.Scope)
	}
	for _, m := range b.removed {
		c.releaseWorkerLocked(m.worker.Scope, m.worker.ID)
	}
}
