package selection

import (
	"iter"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/settings"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// ModelThresholds are the busy thresholds of one model, for all its tenants.
type ModelThresholds struct {
	Model string
	overload.Thresholds
}

// thresholds are the busy thresholds of all models.
type thresholds struct {
	busy     *overload.Table
	settings settings.Store // changes busy
	catalog  *catalog.Catalog
	log      zerolog.Logger
}

// BusyThresholds lists the thresholds of every model that has a registered worker, sorted by
// model.
func (t *thresholds) BusyThresholds() []ModelThresholds {
	all := []ModelThresholds{}
	for _, model := range t.catalog.Models() {
		all = append(all, ModelThresholds{model, *t.busy.Of(model)})
	}
	return all
}

// Thresholds returns the table of busy thresholds, for reading.
func (t *thresholds) Thresholds() *overload.Table { return t.busy }

// SetBusyThreshold changes the given thresholds of a model, for every selection that starts
// afterwards, and returns all three. If none is given, it only reads; a model without workers
// then has none. Errors are of kind BadRequest (out of range), NotFound (the model has no
// worker) and TooMany.
func (t *thresholds) SetBusyThreshold(model string, given overload.Thresholds) (ModelThresholds, error) {
	if !given.Any() {
		return t.set(t.busy, model, given)
	}
	return t.edit(func(busy *overload.Table) (ModelThresholds, error) { return t.set(busy, model, given) })
}

// edit makes a change of thresholds where the settings are kept.
func (t *thresholds) edit(change func(busy *overload.Table) (ModelThresholds, error)) (now ModelThresholds, err error) {
	_, err = t.settings.Edit(func(to *settings.Settings) (err error) {
		now, err = change(to.Thresholds)
		return err
	})
	return now, err
}

// set changes the given thresholds of a model in a table.
func (t *thresholds) set(busy *overload.Table, model string, given overload.Thresholds) (ModelThresholds, error) {
	if err := given.Check(); err != nil {
		return ModelThresholds{}, &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	known := t.catalog.HasModel(model)
	switch {
	case given.Any() && !known:
		return ModelThresholds{}, errModelNotFound(model)
	case given.Any():
		c, err := busy.Set(model, given)
		return t.changed(model, c, err)
	case known:
		return ModelThresholds{model, *busy.Of(model)}, nil
	}
	return ModelThresholds{Model: model}, nil
}

// ClearBusyThreshold unsets the named threshold of a model (nil: all three), and returns the
// remaining ones. The configured values do not come back (decision B1). Errors are of kind
// BadRequest (no such threshold), NotFound (the model has no worker) and TooMany.
func (t *thresholds) ClearBusyThreshold(model string, which *string) (ModelThresholds, error) {
	return t.edit(func(busy *overload.Table) (ModelThresholds, error) { return t.clear(busy, model, which) })
}

// clear unsets the named threshold of a model in a table.
func (t *thresholds) clear(busy *overload.Table, model string, which *string) (ModelThresholds, error) {
	var clear []overload.Threshold
	if which != nil {
		named, ok := overload.ParseThreshold(*which)
		if !ok {
			return ModelThresholds{}, contract.Errorf(contract.BadRequest, "threshold must be one of %s, %s, %s",
				overload.DecodeBlocks, overload.PrefillTokens, overload.PrefillFraction)
		}
		clear = append(clear, named)
	}
	if !t.catalog.HasModel(model) {
		return ModelThresholds{}, errModelNotFound(model)
	}
	c, err := busy.Clear(model, clear...)
	return t.changed(model, c, err)
}

// changed logs a change and returns the answer. err can only be overload.ErrTooMany: ranges
// were checked before.
func (t *thresholds) changed(model string, c overload.Change, err error) (ModelThresholds, error) {
	if err != nil {
		return ModelThresholds{}, &contract.Error{Kind: contract.TooMany, Text: err.Error(), Limit: contract.LimitThresholds, Err: err}
	}
	if c.Any() {
		t.log.Info().Str("model", catalog.Clip(model)).Object("was", LoggedThresholds(c.Was)).Object("now", LoggedThresholds(c.Now)).
			Msg("busy thresholds changed")
	}
	return ModelThresholds{model, c.Now}, nil
}

// LoggedThresholds writes busy thresholds to the log: all three, null for an unset one.
type LoggedThresholds overload.Thresholds

// MarshalZerologObject writes the fields.
func (t LoggedThresholds) MarshalZerologObject(e *zerolog.Event) {
	e.Interface(overload.DecodeBlocks.String(), t.DecodeBlocks).
		Interface(overload.PrefillTokens.String(), t.PrefillTokens).
		Interface(overload.PrefillFraction.String(), t.PrefillFraction)
}

func errModelNotFound(model string) *contract.Error {
	return contract.Errorf(contract.NotFound, "Model '%s' not found. Thresholds can only be set for discovered models.", catalog.ShortName(model))
}

// OverloadedWorkers yields the workers of a sorted list of ranks, and whether each is
// overloaded. The caller holds the ledger's lock (it has a View).
func OverloadedWorkers(limits *overload.Thresholds, ranks []catalog.Entry, v *reservations.View) iter.Seq2[*catalog.Worker, bool] {
	return func(yield func(*catalog.Worker, bool) bool) {
		for of := range byWorker(ranks) {
			if !yield(of[0].Worker, overloadOf(limits, of, v) != 0) {
				return
			}
		}
	}
}

// overloadOf returns the limits that the ranks of a worker exceed, by the greater of what is booked
// and what their engines have reported. It returns 0, not overloaded, if any of them exceeds none.
// A rank unknown to the ledger has no load.
func overloadOf(limits *overload.Thresholds, ranks []catalog.Entry, v *reservations.View) (causes overload.Causes) {
	of := CapacityOf(ranks[0].Worker)
	for _, e := range ranks {
		capacity := of
		var load overload.Load
		if v.Known(e.Slot, e.Rank) {
			carried := v.Greater(e.Slot)
			load = overload.Load{Blocks: carried.Blocks, Prefill: carried.PrefillTokens}
			if capacity.KVBlocks == 0 {
				capacity.KVBlocks = totalBlocks(v, e.Slot)
			}
		}
		why := limits.Exceeded(load, capacity)
		if why == 0 {
			return 0
		}
		causes |= why
	}
	return causes
}

// CapacityOf returns the capacity of each rank, from the worker's record, else from its engine.
func CapacityOf(w *catalog.Worker) (c overload.Capacity) {
	c.BatchedTokens, _ = w.BatchTokens()
	c.KVBlocks, _ = w.KVBlocks()
	return c
}

// totalBlocks returns the blocks that a rank's engine says it has room for, 0 if it does not.
func totalBlocks(v *reservations.View, slot uint32) uint64 {
	if of := v.Engine(slot); of != nil {
		return of.TotalBlocks
	}
	return 0
}

// byWorker splits a sorted list of ranks by worker.
func byWorker(ranks []catalog.Entry) iter.Seq[[]catalog.Entry] {
	return func(yield func([]catalog.Entry) bool) {
		for len(ranks) > 0 {
			n := 1
			for n < len(ranks) && ranks[n].Worker == ranks[0].Worker {
				n++
			}
			if !yield(ranks[:n]) {
				return
			}
			ranks = ranks[n:]
		}
	}
}
