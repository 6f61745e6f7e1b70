package selection

import (
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/settings"
	"github.com/select-service/select-service/pkg/catalog"
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
