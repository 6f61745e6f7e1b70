package node

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/pkg/reservations"
)

// reconciler applies changes of the catalog: it adds ranks to index and ledger and removes
// them, and opens and closes event streams. The catalog calls it under its lock.
type reconciler struct {
	scopes   *scopes.Registry
	ledger   *reservations.Ledger
	streams  *kvevents.Subscribers
	loads    *loadSources
	replica  *replicasync.Replica // nil: reservations are not shared
	restored *restoredRanks       // nil: there is no state on disk
	// hybridExact: all attention groups of engines count, not just the main one.
	hybridExact bool
	log         zerolog.Logger

	attached map[workerKey]*attachedWorker // guarded by the catalog's lock
	// registering is the number of changes of workers under way.
	registering atomic.Int64
	// rankPuts counts the calls of ledger.PutRank.
	rankPuts atomic.Uint64
	// ranksAdded, if set, is called after ranks that carry load were added, once BlockSize
	// knows their scopes. The registration waits for it.
	ranksAdded func()
}

// attachedWorker is the state of an attached worker, guarded by the catalog's lock.
type attachedWorker struct {
	scope   *scopes.State
	layout  hashing.Layout
	slots   *slotTable
	streams []kvevents.StreamConfig // open streams, sorted by rank
	loads   []catalog.LoadStream    // open load streams, sorted by rank
	pages   []catalog.LoadPage      // that are read
}

// workerKey identifies a worker: ids of the slot tracker are unique within their scope only.
type workerKey struct {
	scope catalog.Scope
	id    uint64
}

func keyOf(a *catalog.Attachment) workerKey { return workerKey{a.Scope, a.Worker} }

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

// Reconcile applies a change of a worker's attachment. Parts that stay the same are not
// touched (decision D7).
func (r *reconciler) Reconcile(before, after *catalog.Attachment) error {
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
func (r *reconciler) attach(a *catalog.Attachment) error {
	w := &attachedWorker{
		scope:  r.scopes.AddWorker(a.Scope, a.BlockSize),
		layout: hashing.Layout{BlockSize: int(a.BlockSize), Eagle: a.Eagle},
		slots:  new(slotTable),
	}
	w.slots.set(a)
	r.attached[keyOf(a)] = w
	r.addRanks(a)
	if err := r.switchSources(w, a); err != nil {
		r.detach(a)
		return err
	}
	w.takeOver(a)
	r.scopes.MarkServed(a.Scope)
	return nil
}

// detach removes a worker, its blocks and its reservations.
func (r *reconciler) detach(a *catalog.Attachment) {
	w := r.attached[keyOf(a)]
	_ = r.switchStreams(w, nil) // closing streams cannot fail
	_ = r.loads.follow(w, a.Worker, nil)
	r.loads.read(w, a.Worker, nil)
	for _, rank := range a.Ranks() {
		r.dropRank(a, rank)
	}
	delete(r.attached, keyOf(a))
	r.scopes.RemoveWorker(a.Scope)
}

// change applies the differences between two attachments of a worker.
func (r *reconciler) change(before, after *catalog.Attachment) error {
	w := r.attached[keyOf(after)]
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

// takeOver ends the holds of ranks that are attached now.
func (w *attachedWorker) takeOver(a *catalog.Attachment) {
	for _, rank := range a.Ranks() {
		w.scope.EndHold(rank.Slot)
	}
}

// shrink removes the ranks that a worker has in one attachment and not in the other.
func (r *reconciler) shrink(w *attachedWorker, from, to *catalog.Attachment) {
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
func (r *reconciler) addRanks(a *catalog.Attachment) {
	state := r.attached[keyOf(a)].scope
	for _, rank := range a.Ranks() {
		of := catalog.Rank{Worker: a.Worker, DP: rank.DP}
		state.AssignSlot(rank.Slot, of)
		if rank.Candidate {
			r.ledger.PutRank(a.Scope, rank.Slot, of)
			r.rankPuts.Add(1)
		}
	}
}

// dropRank removes a rank's load and blocks. A rank that is held because its worker could not
// be attached keeps its blocks.
func (r *reconciler) dropRank(a *catalog.Attachment, rank catalog.AttachedRank) {
	r.dropLoad(a.Scope, rank.Slot)
	r.attached[keyOf(a)].scope.ReleaseSlot(rank.Slot)
}

// dropLoad removes a rank's load. The reservations are not reported to other replicas one by
// one: those notice themselves that the rank has gone.
func (r *reconciler) dropLoad(sc catalog.Scope, slot uint32) {
	if dropped := r.ledger.RemoveRank(sc, slot); dropped > 0 && r.replica != nil {
		r.replica.ReservationsDropped(dropped)
	}
}

// Hold reserves a slot for the blocks of a rank whose worker is not attached.
func (r *reconciler) Hold(sc catalog.Scope, blockSize uint32, rank catalog.Rank, slot uint32) {
	r.scopes.HoldRank(sc, blockSize, rank, slot)
}

// Unhold drops the blocks of a held rank whose worker was not attached after all.
func (r *reconciler) Unhold(sc catalog.Scope, _ catalog.Rank, slot uint32) {
	r.scopes.UnholdRank(sc, slot)
}

// switchSources changes where a worker's events and loads come from to those of an attachment. On
// an error nothing has changed.
func (r *reconciler) switchSources(w *attachedWorker, a *catalog.Attachment) error {
	before := w.loads
	if err := r.loads.follow(w, a.Worker, a.Loads); err != nil {
		return err
	}
	if err := r.switchStreams(w, a); err != nil {
		if err := r.loads.follow(w, a.Worker, before); err != nil {
			r.log.Error().Err(err).Uint64("worker_id", a.Worker).Msg("load stream could not be opened again")
		}
		return err
	}
	r.loads.read(w, a.Worker, a.Pages)
	return nil
}

// switchStreams changes a worker's open event streams to those of an attachment; nil: none. If
// one cannot be opened, the former streams are restored.
func (r *reconciler) switchStreams(w *attachedWorker, a *catalog.Attachment) error {
	var wanted []kvevents.StreamConfig
	if a != nil {
		wanted = make([]kvevents.StreamConfig, 0, len(a.Streams))
		replays := make(map[string]int) // number of ranks by replay endpoint
		for _, st := range a.Streams {
			replays[st.Replay]++
		}
		for _, st := range a.Streams {
			c := w.stream(a.Worker, st, r.hybridExact)
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
			r.streams.Remove(rank)
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
func (r *reconciler) follow(w *attachedWorker, sc catalog.Scope, c kvevents.StreamConfig) error {
	was := streamOf(w.streams, c.Rank.DP)
	switch {
	case was == nil:
		c.Resume = r.restored.resume(sc, w.layout, &c)
		return r.streams.Add(c)
	case *was == c:
		return nil
	}
	return r.streams.Update(c)
}

// unfollow undoes what follow did for the given streams.
func (r *reconciler) unfollow(w *attachedWorker, done []kvevents.StreamConfig) {
	for _, c := range done {
		was := streamOf(w.streams, c.Rank.DP)
		switch {
		case was == nil:
			r.streams.Remove(c.Rank)
		case *was != c:
			if err := r.streams.Update(*was); err != nil {
				r.log.Error().Err(err).Stringer("rank", c.Rank).Str("endpoint", was.Endpoint).
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
func (r *reconciler) renewAppliers(w *attachedWorker) {
	for i := range w.streams {
		c := &w.streams[i]
		applier := *c.Applier.(*kvevents.IndexApplier)
		c.Applier = &applier
		_ = r.streams.Update(*c) // fails only after all streams have ended
	}
}
