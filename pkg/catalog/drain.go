package catalog

import "time"

// Drain says that an operator drains a worker: it gets no new work, and what it has goes on.
type Drain struct {
	// Deadline is when a worker of the API is removed at the latest; zero: once it is empty.
	Deadline time.Time `json:"deadline,omitzero"`
	// Within is how long after the drain began the deadline is, 0: not known. A process whose clock may
	// differ from that of who drains counts it from when it learned of the drain.
	Within time.Duration `json:"within,omitempty"`
}

// equal reports whether both are the same drain; nil is none.
func (d *Drain) equal(o *Drain) bool {
	return d == nil && o == nil || d != nil && o != nil && d.Deadline.Equal(o.Deadline)
}

// drainAsked is the reason of a worker that an operator drains.
const drainAsked = "drained over the API"

// drainReasons returns why the record's worker may get no new work, none if it may. Its
// source's reason comes first.
func (r *Record) drainReasons() (why []string) {
	if r.Draining != "" {
		why = append(why, r.Draining)
	}
	if r.Drain != nil {
		why = append(why, drainAsked)
	}
	return why
}

// attachedWorkerOf returns the worker of a record that is attached: it is schedulable, unless it
// drains. A draining worker keeps its attachment: it is known, carries load and has its streams,
// but its ranks are no candidates.
func attachedWorkerOf(r Record) *Worker {
	if why := r.drainReasons(); why != nil {
		return &Worker{Record: r, Lifecycle: Draining, Reasons: why}
	}
	return &Worker{Record: r, Lifecycle: Schedulable}
}

// Drain makes a worker of the scopes that own selects drain, whatever its source, until Undrain
// or its removal. Its record may be replaced meanwhile. A second drain may bring the
// deadline forward, but not put it off. Errors are ErrNotFound and ErrShuttingDown.
func (c *Catalog) Drain(own ScopeFilter, id uint64, d Drain) (*Worker, error) {
	return c.changeDrain(own, id, func(was *Drain) *Drain {
		if was != nil && !was.Deadline.IsZero() && (d.Deadline.IsZero() || was.Deadline.Before(d.Deadline)) {
			return was
		}
		return &d
	})
}

// Undrain takes Drain back. The worker still drains if its source says so. Errors are
// ErrNotFound and ErrShuttingDown.
func (c *Catalog) Undrain(own ScopeFilter, id uint64) (*Worker, error) {
	return c.changeDrain(own, id, func(*Drain) *Drain { return nil })
}

func (c *Catalog) changeDrain(own ScopeFilter, id uint64, change func(was *Drain) *Drain) (*Worker, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, ErrShuttingDown
	}
	m := c.mu.members[id]
	if m == nil || !m.worker.Scope.Matches(own.Model, own.Tenant) {
		return nil, notFoundError(id)
	}
	r := m.worker.Record
	r.Drain = change(r.Drain)
	return c.updateLocked(m, r), nil
}

// Drained lists the workers of a source that operators drain, in the order of List.
func (c *Catalog) Drained(kind SourceKind) (drained []*Worker) {
	for _, w := range c.view.Load().workers {
		if w.Drain != nil && w.Source.KindOrAPI() == kind {
			drained = append(drained, w)
		}
	}
	return drained
}

// RemoveDrained removes a worker of the API that was, and still is, as given: drained by an
// operator and unchanged since. It works after Close, too. It reports whether it has removed it.
func (c *Catalog) RemoveDrained(w *Worker) (removed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.mu.members[w.ID]
	if m == nil || m.worker != w || w.Drain == nil || w.Source.KindOrAPI() != SourceAPI {
		return false
	}
	delete(c.mu.members, w.ID)
	c.removeLocked(m)
	return true
}
