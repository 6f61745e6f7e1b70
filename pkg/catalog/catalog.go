package catalog

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Settings decide which records are complete and which are refused.
type Settings struct {
	// KVEvents: workers need event endpoints, and their streams are attached.
	KVEvents bool
	// Queueing: workers need max_num_batched_tokens (decision D5).
	Queueing bool
	Limits   Limits
	// Endpoints are those that workers may name for events and replays.
	Endpoints EndpointPolicy
	// CheckScope, if set, may refuse a scope as a whole; the error becomes the
	// reason of its workers. It is called under the catalog's lock.
	CheckScope func(Scope) error
	// Now returns the time, for Left; nil: what has left is not remembered.
	Now func() time.Time
}

// Catalog is the set of registered workers. It is safe for concurrent use:
// updates run one after the other, readers see the last finished state and
// never wait.
type Catalog struct {
	settings   Settings
	reconciler Reconciler
	view       atomic.Pointer[view] // replaced under mu
	left       left

	// mu guards everything inside. It is held while the Reconciler works. Lock
	// order: mu before any lock that the Reconciler takes.
	mu struct {
		sync.Mutex
		closed  bool
		members map[uint64]*member     // registered through the selection contract
		tracked map[trackedKey]*member // registered through the slot tracker
		ordered []*member              // both, by model, tenant and id
		scopes  map[Scope]*scope
		// dirty has the scopes whose snapshot is out of date.
		dirty map[Scope]struct{}
		// changed: an attachment has changed, so a blocked worker may fit now.
		changed       bool
		reservedSlots int  // in all scopes
		slotsReleased bool // ReleaseReservedSlots has been called
	}
}

// view is what readers see.
type view struct {
	workers     []*Worker // by model, tenant and id
	schedulable int
	scopes      map[Scope]*Snapshot
	endpoints   endpointUsers
	aliases     map[Scope]Scope           // nil: none
	adapters    func() map[string][]Scope // of workers in any state; made when it is first asked for
}

func newView(workers []*Worker, scopes map[Scope]*Snapshot) *view {
	v := &view{workers: workers, scopes: scopes}
	v.adapters = sync.OnceValue(func() map[string][]Scope {
		all := make(map[string][]Scope)
		for _, w := range v.workers {
			for _, name := range w.Adapters {
				if !slices.Contains(all[name], w.Scope) {
					all[name] = append(all[name], w.Scope)
				}
			}
		}
		return all
	})
	return v
}

// member is a registered worker.
type member struct {
	worker     *Worker
	attachment *Attachment // nil: contributes nothing
	// blocked: the record is complete, but could not be attached.
	blocked bool
}

// scope is the state of one scope. It exists while the scope has an attached
// worker or a reserved slot, or while one of them changes.
type scope struct {
	members   []*member // attached, by id
	reserved  reservedSlots
	slots     slots
	blockSize uint32
	// eagleKnown: a worker that can be selected has been attached and has set eagle.
	eagleKnown, eagle bool
}

// New returns an empty catalog. reconciler is called with every change of
// attachments.
func New(settings Settings, reconciler Reconciler) *Catalog {
	c := &Catalog{settings: settings, reconciler: reconciler}
	c.mu.members = make(map[uint64]*member)
	c.mu.tracked = make(map[trackedKey]*member)
	c.mu.scopes = make(map[Scope]*scope)
	c.mu.dirty = make(map[Scope]struct{})
	c.view.Store(newView(nil, nil))
	return c
}

// Put registers a worker or replaces its whole record. A record with another
// scope moves the worker. Ranks, blocks, reservations and streams that the
// change does not concern are kept. A worker that cannot be attached is
// registered as incomplete. Errors are ErrShuttingDown, *InvalidError,
// *LimitError, *ManagedError if another source has the id (decision W1), and
// *ExistsError if the slot tracker has the id in that scope (decision S4).
func (c *Catalog) Put(r Record) (*Worker, error) { return c.PutIn(ScopeFilter{}, r) }

// PutIn is Put for a caller that may change workers only of the scopes that own
// selects. If the id belongs to a worker of another scope, the error is
// *ExistsError. The caller checks that own selects the record's scope.
func (c *Catalog) PutIn(own ScopeFilter, r Record) (*Worker, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, ErrShuttingDown
	}
	m := c.mu.members[r.ID]
	r = r.described(m)
	if err := r.check(); err != nil {
		return nil, err
	}
	if c.mu.tracked[trackedKey{r.Scope, r.ID}] != nil {
		return nil, &ExistsError{ID: r.ID, Scope: r.Scope}
	}
	if m != nil && !m.worker.Scope.Matches(own.Model, own.Tenant) {
		return nil, &ExistsError{ID: r.ID, Scope: r.Scope}
	}
	if err := r.Source.KindOrAPI().checkOwner(m); err != nil {
		return nil, err
	}
	if err := c.checkRoomForLocked(&r, m); err != nil {
		return nil, err
	}
	if m == nil {
		m = new(member)
		c.mu.members[r.ID] = m
	} else {
		if m.worker.Scope != r.Scope {
			c.releaseWorkerLocked(m.worker.Scope, r.ID)
		}
		r.Drain = m.worker.Drain
	}
	return c.updateLocked(m, r), nil
}

// Patch changes single fields of a worker's record for the API. Errors are
// ErrNotFound, ErrShuttingDown, *InvalidError, *LimitError and *ManagedError.
func (c *Catalog) Patch(id uint64, p Patch) (*Worker, error) { return c.PatchIn(ScopeFilter{}, id, p) }

// PatchIn is Patch for the workers of the scopes that own selects; other workers
// are not found.
func (c *Catalog) PatchIn(own ScopeFilter, id uint64, p Patch) (*Worker, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, ErrShuttingDown
	}
	m := c.mu.members[id]
	if m == nil || !m.worker.Scope.Matches(own.Model, own.Tenant) {
		return nil, notFoundError(id)
	}
	if err := SourceAPI.checkOwner(m); err != nil {
		return nil, err
	}
	r := p.apply(m.worker.asGiven()).describedAnew(m)
	if err := r.check(); err != nil {
		return nil, err
	}
	if err := c.checkRoomForLocked(&r, m); err != nil {
		return nil, err
	}
	return c.updateLocked(m, r), nil
}

func (c *Catalog) updateLocked(m *member, r Record) *Worker {
	r.normalize()
	c.setRecordLocked(m, r)
	c.retryBlockedLocked()
	c.publishLocked()
	return m.worker
}

// Delete removes a worker for the API and returns its last record, unschedulable.
// It works after Close, too. Errors are ErrNotFound and *ManagedError.
func (c *Catalog) Delete(id uint64) (*Worker, error) { return c.DeleteIn(ScopeFilter{}, id) }

// DeleteIn is Delete for the workers of the scopes that own selects; other
// workers are not found.
func (c *Catalog) DeleteIn(own ScopeFilter, id uint64) (*Worker, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.mu.members[id]
	if m == nil || !m.worker.Scope.Matches(own.Model, own.Tenant) {
		return nil, notFoundError(id)
	}
	if err := SourceAPI.checkOwner(m); err != nil {
		return nil, err
	}
	delete(c.mu.members, id)
	c.removeLocked(m)
	return m.worker.withLifecycle(Unschedulable), nil
}

// removeLocked removes a member from everything except the maps of members.
func (c *Catalog) removeLocked(m *member) {
	c.detachLocked(m)
	c.releaseWorkerLocked(m.worker.Scope, m.worker.ID)
	c.removeFromOrderLocked(m)
	c.retryBlockedLocked()
	c.publishLocked()
}

// Close makes Put, Patch, PutTracked and Reconcile return ErrShuttingDown from
// now on.
func (c *Catalog) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.closed = true
}

// List returns the workers of the matching scopes by model, tenant and id; nil
// matches all.
func (c *Catalog) List(model, tenant *string) []*Worker {
	out := []*Worker{}
	for _, w := range c.view.Load().workers {
		if w.Scope.Matches(model, tenant) {
			out = append(out, w)
		}
	}
	return out
}

// WorkerIn returns the worker with the id, unless there is none or its scope does not match own.
// It takes no lock.
func (c *Catalog) WorkerIn(own ScopeFilter, id uint64) *Worker {
	for _, w := range c.view.Load().workers {
		if w.ID == id && !w.Tracked && w.Scope.Matches(own.Model, own.Tenant) {
			return w
		}
	}
	return nil
}

// Latest returns the worker with the id, nil if there is none, as it is after the changes that are under
// way.
func (c *Catalog) Latest(id uint64) *Worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.mu.members[id]; m != nil {
		return m.worker
	}
	return nil
}

// CountSchedulable returns the number of schedulable workers in all scopes.
func (c *Catalog) CountSchedulable() (schedulable int) { return c.view.Load().schedulable }

// Snapshot returns the scope as of now, nil if no worker is attached to it.
func (c *Catalog) Snapshot(s Scope) *Snapshot { return c.view.Load().scopes[s] }

// BlockSize returns the block size, in tokens, of a scope that has workers. It takes no lock.
func (c *Catalog) BlockSize(s Scope) (blockSize uint32, known bool) {
	if snap := c.Snapshot(s); snap != nil {
		return snap.BlockSize, true
	}
	return 0, false
}

// Scopes lists the scopes with attached workers by model and tenant.
func (c *Catalog) Scopes() []Scope {
	return slices.SortedFunc(maps.Keys(c.view.Load().scopes), Scope.Compare)
}

// HasModel reports whether any worker is registered for the model, whatever its
// lifecycle.
func (c *Catalog) HasModel(model string) bool {
	_, ok := slices.BinarySearchFunc(c.view.Load().workers, model, func(w *Worker, model string) int {
		return strings.Compare(w.Scope.Model, model)
	})
	return ok
}

// WithAdapter lists the scopes of which any registered worker has an adapter, whatever its lifecycle. The
// caller must not change the list.
func (c *Catalog) WithAdapter(name string) []Scope { return c.view.Load().adapters()[name] }

// Models lists the models for which any worker is registered, in order.
func (c *Catalog) Models() []string {
	var models []string
	for _, w := range c.view.Load().workers {
		if n := len(models); n == 0 || models[n-1] != w.Scope.Model {
			models = append(models, w.Scope.Model)
		}
	}
	return models
}

// publishLocked shows readers the current state.
func (c *Catalog) publishLocked() {
	old := c.view.Load()
	v := newView(make([]*Worker, len(c.mu.ordered)), old.scopes)
	for i, m := range c.mu.ordered {
		v.workers[i] = m.worker
		if m.worker.Lifecycle == Schedulable {
			v.schedulable++
		}
	}
	if len(c.mu.dirty) > 0 {
		v.scopes = make(map[Scope]*Snapshot, len(c.mu.scopes))
		maps.Copy(v.scopes, old.scopes)
		for sc := range c.mu.dirty {
			if s := c.mu.scopes[sc]; s != nil && len(s.members) > 0 {
				v.scopes[sc] = s.snapshot(sc)
			} else {
				delete(v.scopes, sc)
			}
			if c.settings.Now != nil {
				c.left.note(old.scopes[sc], v.scopes[sc], c.settings.Now())
			}
		}
		clear(c.mu.dirty)
	}
	v.aliases = aliasesOf(v.workers)
	c.view.Store(v)
}

// aliasesOf returns the scopes for which workers have further names. Where workers of several scopes
// have the same one, the first scope has it.
func aliasesOf(workers []*Worker) (aliases map[Scope]Scope) {
	for _, w := range workers {
		for _, name := range w.Aliases {
			alias := Scope{name, w.Scope.Tenant}
			if _, taken := aliases[alias]; taken {
				continue
			}
			if aliases == nil {
				aliases = make(map[Scope]Scope)
			}
			aliases[alias] = w.Scope
		}
	}
	if aliases != nil {
		for _, w := range workers {
			delete(aliases, w.Scope) // a model of that name comes first
		}
	}
	return aliases
}

// Alias returns the scope whose workers' engines serve its model under another scope's name, too, in
// the same tenant. There is none if that scope has workers itself.
func (c *Catalog) Alias(of Scope) (sc Scope, ok bool) {
	sc, ok = c.view.Load().aliases[of]
	return sc, ok
}

// Aliases returns the scopes of all further names, by these: see Alias. The map must not be changed.
func (c *Catalog) Aliases() map[Scope]Scope { return c.view.Load().aliases }

// Named returns the scope that a name stands for: see Alias.
func (c *Catalog) Named(of Scope) Scope {
	if sc, ok := c.Alias(of); ok {
		return sc
	}
	return of
}

func (s *scope) snapshot(sc Scope) *Snapshot {
	snap := &Snapshot{Scope: sc, BlockSize: s.blockSize}
	snap.members = make([]attachedWorker, 0, len(s.members))
	for _, m := range s.members {
		snap.members = append(snap.members, attachedWorker{m.worker, m.attachment})
		schedulable := m.worker.Lifecycle == Schedulable
		snap.Eagle = snap.Eagle || m.attachment.Eagle
		snap.Encoders = snap.Encoders || m.worker.OnlyEncodes()
		if schedulable {
			snap.Workers = append(snap.Workers, m.worker)
		}
		for _, r := range m.attachment.runs {
			snap.known += int(r.n)
			snap.Slots = max(snap.Slots, int(r.slot+r.n))
			switch {
			case !r.candidate:
			case schedulable:
				snap.NumRanks += int(r.n)
				if !m.worker.OnlyEncodes() {
					snap.NumPrompts += int(r.n)
				}
			case m.worker.Lifecycle == Draining:
				snap.NumDraining += int(r.n)
			}
		}
	}
	return snap
}

// setWorkerLocked makes w the member's worker and keeps the order of the list.
func (c *Catalog) setWorkerLocked(m *member, w *Worker) {
	if m.attachment != nil {
		c.mu.dirty[m.attachment.Scope] = struct{}{}
	}
	if m.worker != nil {
		if m.worker.Scope == w.Scope {
			m.worker = w
			return
		}
		c.removeFromOrderLocked(m)
	}
	m.worker = w
	i, _ := slices.BinarySearchFunc(c.mu.ordered, w, byScope)
	c.mu.ordered = slices.Insert(c.mu.ordered, i, m)
}

func (c *Catalog) removeFromOrderLocked(m *member) {
	if i, ok := slices.BinarySearchFunc(c.mu.ordered, m.worker, byScope); ok {
		c.mu.ordered = slices.Delete(c.mu.ordered, i, i+1)
	}
}

func byScope(m *member, w *Worker) int {
	return cmp.Or(m.worker.Scope.Compare(w.Scope), cmp.Compare(m.worker.ID, w.ID))
}
