package selecting

import (
	"iter"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/overload"
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
	busy    *overload.Table
	catalog *catalog.Catalog
	log     zerolog.Logger
}

// BusyThresholds lists the thresholds of every model for which a worker is
// registered, by model.
func (t *thresholds) BusyThresholds() []ModelThresholds {
	all := []ModelThresholds{}
	for _, model := range t.catalog.Models() {
		all = append(all, ModelThresholds{model, *t.busy.Of(model)})
	}
	return all
}

// Thresholds returns the busy thresholds of all models, to be read.
func (t *thresholds) Thresholds() *overload.Table { return t.busy }

// SetBusyThreshold changes those thresholds of a model that are given, for every
// selection that starts after it, and returns all three. Without any it only
// reads; then a model without workers has none. Errors are of kind
// BadRequest (out of range), NotFound (the model has no worker) and TooMany.
func (t *thresholds) SetBusyThreshold(model string, given overload.Thresholds) (ModelThresholds, error) {
	if err := given.Check(); err != nil {
		return ModelThresholds{}, &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	known := t.catalog.HasModel(model)
	switch {
	case given.Any() && !known:
		return ModelThresholds{}, errModelNotFound(model)
	case given.Any():
		c, err := t.busy.Set(model, given)
		return t.changed(model, c, err)
	case known:
		return ModelThresholds{model, *t.busy.Of(model)}, nil
	}
	return ModelThresholds{Model: model}, nil
}

// ClearBusyThreshold unsets the named threshold of a model, nil: all three, and
// returns what is left. The configured values do not come back (decision B1).
// Errors are of kind BadRequest (no such threshold), NotFound (the model has no
// worker) and TooMany.
func (t *thresholds) ClearBusyThreshold(model string, which *string) (ModelThresholds, error) {
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
	c, err := t.busy.Clear(model, clear...)
	return t.changed(model, c, err)
}

// changed answers a change and logs it. err can only be
// overload.ErrTooMany: ranges were checked before.
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

// LoggedThresholds are busy thresholds as the log shows them: all three, null
// where one is unset.
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

// thresholds are those of the request's model at this moment.
func (c *selection) thresholds() *overload.Thresholds {
	return c.api.busy.Of(c.request.Scope.Model)
}

// dropOverloaded returns the ranks to score: those of workers that are not
// overloaded. A rank that carries too much stays while another rank of its worker
// is free: the cost distinguishes them. It is an error if none is left.
func (c *selection) dropOverloaded(v *reservations.View) ([]catalog.Entry, error) {
	limits := c.thresholds()
	switch {
	case !limits.Any() || c.request.Advisory:
		return c.eligible, nil
	case c.request.Pinned != nil:
		return c.eligible, c.checkOverload(v, limits)
	}
	c.free = c.free[:0]
	var causes overload.Causes
	for ranks := range byWorker(c.eligible) {
		if why := overloadOf(limits, ranks, v); why != 0 {
			causes |= why
		} else {
			c.free = append(c.free, ranks...)
		}
	}
	if len(c.free) == 0 {
		return nil, contract.NewOverload(contract.OverloadError{Causes: causes})
	}
	return c.free, nil
}

// expireStale ends the reservations of the scope that are too old, so that no
// request is refused because of them. Every new reservation ends some, and a timer
// ends all; but while every request is refused there are no new ones, and the timer
// may be a second away.
func (c *selection) expireStale() {
	if c.thresholds().Any() {
		c.api.ledger.ExpireIn(c.request.Scope)
	}
}

// rejectIfOverloaded is the test of dropOverloaded before any work is done on the
// prompt, so that a refusal costs least when there is most to do. With a wait queue
// thresholds are read at dispatch only: then there is no early test.
func (c *selection) rejectIfOverloaded() (err error) {
	limits := c.thresholds()
	if !limits.Any() || c.scope.Queue.Enabled() || c.request.Advisory {
		return nil
	}
	c.api.ledger.Look(c.request.Scope, nil, func(v *reservations.View) { err = c.checkOverload(v, limits) })
	return err
}

// checkOverload fails if every worker that the request could use is overloaded. Of
// a pinned worker all ranks count, not only the one that the request names.
func (c *selection) checkOverload(v *reservations.View, limits *overload.Thresholds) error {
	ranks := c.eligible
	var refusal contract.OverloadError
	if pinned := c.request.Pinned; pinned != nil {
		ranks = c.snapshot.RanksOf(pinned.Worker)
		refusal.Pinned, refusal.Worker = true, pinned.Worker
	}
	for ranks := range byWorker(ranks) {
		why := overloadOf(limits, ranks, v)
		if why == 0 {
			return nil
		}
		refusal.Causes |= why
	}
	return contract.NewOverload(refusal)
}

// OverloadedWorkers yields the workers of a list of ranks, which is sorted, and
// whether each is overloaded. The ledger must be locked.
func OverloadedWorkers(limits *overload.Thresholds, ranks []catalog.Entry, v *reservations.View) iter.Seq2[*catalog.Worker, bool] {
	return func(yield func(*catalog.Worker, bool) bool) {
		for of := range byWorker(ranks) {
			if !yield(of[0].Worker, overloadOf(limits, of, v) != 0) {
				return
			}
		}
	}
}

// overloadOf returns the limits that the ranks of a worker exceed, 0 if one of them
// exceeds none: then the worker is not overloaded. A rank that the ledger does not
// know carries nothing.
func overloadOf(limits *overload.Thresholds, ranks []catalog.Entry, v *reservations.View) (causes overload.Causes) {
	capacity := CapacityOf(ranks[0].Worker)
	for _, e := range ranks {
		var load overload.Load
		if v.Known(e.Slot, e.Rank) {
			carried := v.Load(e.Slot)
			load = overload.Load{Blocks: carried.Blocks, Prefill: carried.PrefillTokens}
		}
		why := limits.Exceeded(load, capacity)
		if why == 0 {
			return 0
		}
		causes |= why
	}
	return causes
}

// CapacityOf is what the worker's record says each of its ranks can take.
func CapacityOf(w *catalog.Worker) overload.Capacity {
	capacity := overload.Capacity{BatchedTokens: batchLimit(w)}
	if n := w.TotalKVBlocks; n != nil {
		capacity.KVBlocks = *n
	}
	return capacity
}

// byWorker cuts a list of ranks, which is sorted, into those of each worker.
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
