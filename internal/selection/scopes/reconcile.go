package scopes

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/kvevents"
)

// Loads follows what engines say of their load.
type Loads interface {
	// Follow changes a worker's load streams, which are in order of ranks, from was to wanted. On
	// an error nothing has changed.
	Follow(worker uint64, was, wanted []catalog.LoadStream) error
	// Read makes pages those that are read of a worker.
	Read(worker uint64, pages []catalog.LoadPage)
}

// Restored has blocks of ranks from before this process started.
type Restored interface {
	// Resume returns the position from which a stream that is about to be opened can continue,
	// nil if the blocks of its rank are not known.
	Resume(sc catalog.Scope, layout hashing.Layout, c *kvevents.StreamConfig) *kvevents.Resume
}

// Replica tells other replicas what a change of workers means for reservations.
type Replica interface {
	// RanksAdded says that there are new ranks that carry load.
	RanksAdded()
	// ReservationsDropped says that n reservations have gone with their ranks.
	ReservationsDropped(n int)
}

// attachedWorker is what an attached worker has. The catalog's lock guards it.
type attachedWorker struct {
	scope   *State
	layout  hashing.Layout
	slots   *slotTable
	streams []kvevents.StreamConfig // open streams, sorted by rank
	loads   []catalog.LoadStream    // open load streams, sorted by rank
	pages   []catalog.LoadPage      // that are read
}

// slotTable maps a worker's ranks to slots for its event streams, which read it while the
// worker is changed.
type slotTable struct {
	of atomic.Pointer[[]*catalog.Attachment]
}

// set makes the ranks of the given attachments known. A rank in two of them has the same slot
// in both.
func (t *slotTable) set(of ...*catalog.Attachment) { t.of.Store(&of) }

func (t *slotTable) slot(dp uint32) (uint32, bool) {
	for _, a := range *t.of.Load() {
		if r, ok := a.Rank(dp); ok {
			return r.Slot, true
		}
	}
	return 0, false
}

// Change makes a change of the catalog's workers. Afterwards requests that wait are dispatched,
// since removing a worker can let others be attached, and the replica learns of new ranks: once
// the catalog shows their scopes, and before Change returns.
func (r *Registry) Change(change func()) {
	r.changing.Add(1)
	defer r.changing.Add(-1)
	before := r.rankPuts.Load()
	change()
	r.workersChanged()
	if r.settings.Replica != nil && r.rankPuts.Load() != before {
		r.settings.Replica.RanksAdded() // perhaps also for ranks that another call added
	}
}

// Changing reports whether a call of Change is under way.
func (r *Registry) Changing() bool { return r.changing.Load() > 0 }

// Reconcile applies a change of a worker's attachment: it adds ranks to index and ledger, removes
// them, and opens and closes event streams. Parts that stay the same are not touched (decision
// D7). The catalog calls it, ReserveSlot and ReleaseSlot under its lock.
func (r *Registry) Reconcile(before, after *catalog.Attachment) error {
	switch {
	case before == nil:
		return r.attach(after)
	case after == nil:
		r.detach(before)
		return nil
	}
	return r.change(before, after)
}

// attach adds a worker.
func (r *Registry) attach(a *catalog.Attachment) error {
	state := r.open(a.Scope, a.BlockSize)
	w := &attachedWorker{
		scope:  state,
		layout: hashing.Layout{BlockSize: int(a.BlockSize), Eagle: a.Eagle},
		slots:  new(slotTable),
	}
	w.slots.set(a)
	state.workers[a.Worker] = w
	r.addRanks(a)
	if err := r.switchSources(w, a); err != nil {
		r.detach(a)
		return err
	}
	w.takeOver(a)
	r.markServed(a.Scope)
	return nil
}

// worker returns what an attached worker has.
func (r *Registry) worker(a *catalog.Attachment) *attachedWorker {
	return r.Of(a.Scope).workers[a.Worker]
}

// detach removes a worker, its blocks and its reservations.
func (r *Registry) detach(a *catalog.Attachment) {
	w := r.worker(a)
	_ = r.switchStreams(w, nil)                // closing streams cannot fail
	_ = r.loads.Follow(a.Worker, w.loads, nil) // nor can this
	r.readPages(w, a.Worker, nil)
	for _, rank := range a.Ranks() {
		r.dropRank(a, rank)
	}
	delete(w.scope.workers, a.Worker)
	r.closeIfEmpty(a.Scope)
}

// change applies the differences between two attachments of a worker.
func (r *Registry) change(before, after *catalog.Attachment) error {
	w := r.worker(after)
	r.addRanks(after)
	w.slots.set(before, after)
	if err := r.switchSources(w, after); err != nil {
		r.shrink(w, after, before)
		return err
	}
	w.takeOver(after)
	r.shrink(w, before, after)
	return nil
}

// takeOver notes that ranks are attached in slots that were reserved for them.
func (w *attachedWorker) takeOver(a *catalog.Attachment) {
	for _, rank := range a.Ranks() {
		delete(w.scope.reserved, rank.Slot)
	}
}

// shrink removes the ranks that a worker has in one attachment and not in the other.
func (r *Registry) shrink(w *attachedWorker, from, to *catalog.Attachment) {
	w.slots.set(to)
	renewed := false
	for _, rank := range from.Ranks() {
		after, ok := to.Rank(rank.DP)
		switch {
		case !ok:
			if !renewed {
				r.renewAppliers(w) // afterwards no batch under way uses the slot
				renewed = true
			}
			r.dropRank(from, rank)
		case rank.Candidate && !after.Candidate:
			r.dropLoad(from.Scope, rank.Slot)
		}
	}
}

// addRanks adds the ranks to the index, and those that carry load to the ledger.
func (r *Registry) addRanks(a *catalog.Attachment) {
	state := r.Of(a.Scope)
	for _, rank := range a.Ranks() {
		of := catalog.Rank{Worker: a.Worker, DP: rank.DP}
		state.assignSlot(rank.Slot, of)
		if rank.Candidate {
			r.settings.Ledger.PutRank(a.Scope, rank.Slot, of)
			r.rankPuts.Add(1)
		}
	}
}

// dropRank removes a rank's load and blocks. A reserved slot, of a worker that could not be
// attached, keeps its blocks.
func (r *Registry) dropRank(a *catalog.Attachment, rank catalog.AttachedRank) {
	r.dropLoad(a.Scope, rank.Slot)
	if state := r.Of(a.Scope); !state.isReserved(rank.Slot) {
		state.emptySlot(rank.Slot)
	}
}

// dropLoad removes a rank's load. The reservations are not reported to other replicas one by
// one: those notice themselves that the rank has gone.
func (r *Registry) dropLoad(sc catalog.Scope, slot uint32) {
	if dropped := r.settings.Ledger.RemoveRank(sc, slot); dropped > 0 && r.settings.Replica != nil {
		r.settings.Replica.ReservationsDropped(dropped)
	}
}

// ReserveSlot reserves a slot for the blocks of a rank whose worker is not attached.
func (r *Registry) ReserveSlot(sc catalog.Scope, blockSize uint32, rank catalog.Rank, slot uint32) {
	state := r.open(sc, blockSize)
	state.reserved[slot] = rank
	state.assignSlot(slot, rank)
}

// ReleaseSlot drops the blocks of a rank whose worker was not attached after all.
func (r *Registry) ReleaseSlot(sc catalog.Scope, _ catalog.Rank, slot uint32) {
	state := r.Of(sc)
	state.emptySlot(slot)
	delete(state.reserved, slot)
	r.closeIfEmpty(sc)
}

// switchSources changes where a worker's events and loads come from to those of an attachment. On
// an error nothing has changed.
func (r *Registry) switchSources(w *attachedWorker, a *catalog.Attachment) error {
	if err := r.loads.Follow(a.Worker, w.loads, a.Loads); err != nil {
		return err
	}
	if err := r.switchStreams(w, a); err != nil {
		if err := r.loads.Follow(a.Worker, a.Loads, w.loads); err != nil {
			r.settings.Log.Error().Err(err).Uint64("worker_id", a.Worker).Msg("load stream could not be opened again")
		}
		return err
	}
	w.loads = a.Loads
	r.readPages(w, a.Worker, a.Pages)
	return nil
}

// readPages makes the given pages those of a worker.
func (r *Registry) readPages(w *attachedWorker, worker uint64, pages []catalog.LoadPage) {
	if len(w.pages) > 0 || len(pages) > 0 {
		r.loads.Read(worker, pages)
		w.pages = pages
	}
}

// switchStreams changes a worker's open event streams to those of an attachment; nil: none. If
// one cannot be opened, the former streams are restored.
func (r *Registry) switchStreams(w *attachedWorker, a *catalog.Attachment) error {
	var wanted []kvevents.StreamConfig
	if a != nil {
		wanted = make([]kvevents.StreamConfig, 0, len(a.Streams))
		replays := make(map[string]int) // number of ranks by replay endpoint
		for _, st := range a.Streams {
			replays[st.Replay]++
		}
		for _, st := range a.Streams {
			c := w.stream(a.Worker, st, r.settings.HybridExact)
			c.SharedReplay = replays[st.Replay] > 1
			if err := r.follow(w, a.Scope, c); err != nil {
				r.unfollow(w, wanted)
				return err
			}
			wanted = append(wanted, c)
		}
	}
	for i := range w.streams {
		if rank := w.streams[i].Rank; streamOf(wanted, rank.DP) == nil {
			r.settings.Streams.Remove(rank)
		}
	}
	w.streams = wanted
	return nil
}

// streamOf returns the stream of a rank, nil if it has none. The streams are in order.
func streamOf(streams []kvevents.StreamConfig, dp uint32) *kvevents.StreamConfig {
	i, ok := slices.BinarySearchFunc(streams, dp, func(c kvevents.StreamConfig, dp uint32) int { return cmp.Compare(c.Rank.DP, dp) })
	if !ok {
		return nil
	}
	return &streams[i]
}

// follow opens a stream, or changes the one that the rank has.
func (r *Registry) follow(w *attachedWorker, sc catalog.Scope, c kvevents.StreamConfig) error {
	was := streamOf(w.streams, c.Rank.DP)
	switch {
	case was == nil:
		if r.restored != nil {
			c.Resume = r.restored.Resume(sc, w.layout, &c)
		}
		return r.settings.Streams.Add(c)
	case *was == c:
		return nil
	}
	return r.settings.Streams.Update(c)
}

// unfollow undoes what follow did for the given streams.
func (r *Registry) unfollow(w *attachedWorker, done []kvevents.StreamConfig) {
	for _, c := range done {
		was := streamOf(w.streams, c.Rank.DP)
		switch {
		case was == nil:
			r.settings.Streams.Remove(c.Rank)
		case *was != c:
			if err := r.settings.Streams.Update(*was); err != nil {
				r.settings.Log.Error().Err(err).Stringer("rank", c.Rank).Str("endpoint", was.Endpoint).
					Msg("kv event stream could not be opened again")
			}
		}
	}
}

// stream returns the configuration of a stream. A stream of the same publisher as before keeps
// its applier, with what that has learned from its events.
func (w *attachedWorker) stream(worker uint64, st catalog.Stream, hybridExact bool) kvevents.StreamConfig {
	c := kvevents.StreamConfig{
		Rank:     catalog.Rank{Worker: worker, DP: st.DP},
		Endpoint: st.Endpoint,
		Replay:   st.Replay,
	}
	copies := kvevents.CopyRule{Counted: st.CountCopies, Limit: st.TotalKVBlocks}
	groups := kvevents.GroupRule{Exact: hybridExact, ChunkSize: st.AttentionChunkSize}
	if was := streamOf(w.streams, st.DP); was != nil && was.Endpoint == st.Endpoint {
		applier := was.Applier.(*kvevents.IndexApplier)
		if applier.Copies != copies || applier.Groups != groups || applier.OwnRank != st.OwnRank {
			renewed := *applier
			renewed.Copies, renewed.Groups, renewed.OwnRank = copies, groups, st.OwnRank
			applier = &renewed
		}
		c.Applier = applier
	} else {
		converter := kvevents.NewConverter(w.layout, st.DP, w.slots.slot)
		converter.Seeds = w.scope.Seeds
		c.Applier = &kvevents.IndexApplier{
			Converter: converter,
			Index:     w.scope.Events(),
			Slot:      st.Slot,
			Copies:    copies,
			Groups:    groups,
			OwnRank:   st.OwnRank,
		}
	}
	return c
}

// renewAppliers replaces the applier of every stream by one with the same knowledge. When it
// returns, no batch under way uses an old applier, which may have read an earlier slot table.
func (r *Registry) renewAppliers(w *attachedWorker) {
	for i := range w.streams {
		c := &w.streams[i]
		applier := *c.Applier.(*kvevents.IndexApplier)
		c.Applier = &applier
		_ = r.settings.Streams.Update(*c) // fails only after all streams have ended
	}
}
