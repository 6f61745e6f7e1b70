package node

import (
	"context"
	"io"
	"maps"
	"slices"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/recovery"
)

// eventIndex has the use cases about the index that KV events fill.
type eventIndex struct {
	scopes  *scopes.Registry
	streams *kvevents.Subscribers // of the workers
}

// EventsBlockSize returns the block size of the KV events of a worker's engine if it is another one
// than the worker's, so that none of them can be used; else 0.
func (i *eventIndex) EventsBlockSize(w *catalog.Worker) uint32 {
	for n := range w.RankCount() {
		if st, ok := i.streams.Stream(catalog.Rank{Worker: w.ID, DP: w.FirstRank() + n}); ok && st.OtherBlockSize > 0 {
			return st.OtherBlockSize
		}
	}
	return 0
}

// Dump writes the whole index in the form of the given contract, see recovery.Writer, while the
// index goes on changing. It has all events received before the call, and the ranks whose
// workers are still awaited after a recovery, but not the ranks of hybrid models
// (indexer.Walk). A rank that comes or goes meanwhile may be in it in part.
func (i *eventIndex) Dump(ctx context.Context, w io.Writer, form contract.Version) error {
	return i.dump(ctx, recovery.NewWriter(w), form)
}

// DumpMsgpack is Dump in msgpack; see recovery.NewMsgpackWriter.
func (i *eventIndex) DumpMsgpack(ctx context.Context, w io.Writer, form contract.Version) error {
	return i.dump(ctx, recovery.NewMsgpackWriter(w), form)
}

func (i *eventIndex) dump(ctx context.Context, d *recovery.Writer, form contract.Version) error {
	if err := i.streams.Barrier(ctx); err != nil {
		return err
	}
	states := i.scopes.All()
	d.ResidencyDomain = form == contract.V16
	for _, sc := range slices.SortedFunc(maps.Keys(states), catalog.Scope.Compare) {
		if err := ctx.Err(); err != nil {
			return err
		}
		state := states[sc]
		// The walk must begin before the ranks are listed. Then each listed rank has had its
		// slot since the walk began. If it loses the slot, the index drops the slot's blocks,
		// also from the walk, before another rank gets it.
		walk := state.Space.Walk()
		err := d.Scope(ctx, recovery.Source{
			Scope:     sc,
			BlockSize: state.BlockSize,
			Ranks:     state.Gate.Ranks(),
			KeysShown: state.Space.KeysShown(),
			Runs:      walk.Runs,
		})
		if err != nil {
			return err
		}
	}
	return d.Close()
}
