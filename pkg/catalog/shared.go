package catalog

// Empty returns an empty catalog with the same settings, whose attachments nobody makes. It is for
// trying changes.
func (c *Catalog) Empty() *Catalog { return New(c.settings, noReconciler{}) }

type noReconciler struct{}

func (noReconciler) Reconcile(_, _ *Attachment) error        { return nil }
func (noReconciler) ReserveSlot(Scope, uint32, Rank, uint32) {}
func (noReconciler) ReleaseSlot(Scope, Rank, uint32)         {}

// Contradicted returns, for each record of a set, why its worker must not be attached; "" if it
// may be. A worker must not be attached if its block size or eagle flag is not that of the first
// complete record of its scope. The records are in the order in which they were created. So
// catalogs that have the same set attach the same workers, whatever they had before.
func (c *Catalog) Contradicted(records []Record) []string {
	c.mu.Lock()
	records = c.describedLocked(records)
	c.mu.Unlock()
	why := make([]string, len(records))
	first := make(map[Scope]*Record)
	for i := range records {
		r := &records[i]
		if len(r.missing(c.settings)) > 0 {
			continue
		}
		if f := first[r.Scope]; f == nil {
			first[r.Scope] = r
		} else if err := r.contradicts(f.blockSize(), f.eagle(), true); err != nil {
			why[i] = reconcileFailed(err)
		}
	}
	return why
}

// SameShape reports whether two records are of the same scope, block size and eagle flag: what
// workers of a scope can contradict each other in.
func (r *Record) SameShape(o *Record) bool {
	return r.Scope == o.Scope && r.blockSize() == o.blockSize() && r.eagle() == o.eagle()
}

// Untold returns the record without what its engine has said, so that a catalog that has asked the
// same engine keeps what it knows.
func (r Record) Untold() Record {
	if r.Describe == nil {
		return r
	}
	r = r.asGiven()
	r.Describe.Told, r.Describe.Fault = nil, ""
	return r
}

// ToldSame reports whether the engines of two records have said the same of themselves.
func (r *Record) ToldSame(o *Record) bool {
	if r.Describe == nil || o.Describe == nil {
		return r.Describe == o.Describe
	}
	return r.Describe.Fault == o.Describe.Fault && r.Describe.Told.equal(o.Describe.Told)
}

// Another reports whether the worker of a record with the same id is another one: a discovered one with another
// UID, or one that was registered again after its removal.
func (r *Record) Another(was *Record) bool {
	return r.Source.KindOrAPI().Discovered() && r.Source.UID != was.Source.UID ||
		r.Registration != 0 && r.Registration != was.Registration
}

// Outside lists the workers that are neither of the API nor of the workers file, by model, tenant
// and id.
func (c *Catalog) Outside() (list []*Worker) {
	for _, w := range c.view.Load().workers {
		if w.Tracked || w.Source.KindOrAPI().Discovered() {
			list = append(list, w)
		}
	}
	return list
}

// Registered lists the workers of the API and of the workers file, by model, tenant and id.
func (c *Catalog) Registered() (list []*Worker) {
	for _, w := range c.view.Load().workers {
		if !w.Tracked && !w.Source.KindOrAPI().Discovered() {
			list = append(list, w)
		}
	}
	return list
}

// Copy registers workers of another catalog, as they are there. A worker that contradicts others is
// left out.
func (c *Catalog) Copy(workers []*Worker) {
	sets := make(map[SourceKind][]Record)
	for _, w := range workers {
		if w.Tracked {
			_, _ = c.PutTracked(TrackedRecord{ID: w.ID, Scope: w.Scope, BlockSize: *w.BlockSize, StartRank: *w.StartRank, Size: *w.Size})
		} else {
			sets[w.Source.KindOrAPI()] = append(sets[w.Source.KindOrAPI()], w.Record)
		}
	}
	for kind, records := range sets {
		_, _ = c.Reconcile(Set{Kind: kind, Records: records, Copied: true}) // see Set.Copied
	}
}
