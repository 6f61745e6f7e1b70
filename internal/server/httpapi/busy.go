package httpapi

import (
	"net/http"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
)

// thresholder has the busy thresholds of workers, by model.
type thresholder interface {
	// BusyThresholds lists the models with at least one worker, by name.
	BusyThresholds() []selection.ModelThresholds
	// SetBusyThreshold sets the given thresholds, keeps the others and returns all of the
	// model. If none is given it only reads, also for an unknown model.
	SetBusyThreshold(model string, set overload.Thresholds) (selection.ModelThresholds, error)
	// ClearBusyThreshold unsets one threshold, or all three if which is nil, and returns the
	// remaining ones (decision B1).
	ClearBusyThreshold(model string, which *string) (selection.ModelThresholds, error)
}

const busyPath = "/busy_threshold"

type busyRoutes struct{ svc thresholder }

func (r busyRoutes) addTo(e router) {
	e.get(access.Read, busyPath, e.api.list(r.list))
	e.post(access.Operate, busyPath, withBody(e.api, newBody(busyShape, nil, nil), r.set))
	e.add(http.MethodDelete, access.Operate, busyPath, e.api.serve(r.clear))
}

func (r busyRoutes) list(_ request, out []byte) (int, []byte, error) {
	out = append(out, '{')
	out = appendList(appendKey(out, "thresholds"), r.svc.BusyThresholds(), appendThresholds)
	return http.StatusOK, append(out, '}'), nil
}

func (r busyRoutes) set(c request, b *busyBody, out []byte) (int, []byte, error) {
	c.about(*b)
	now, err := r.svc.SetBusyThreshold(b.model, b.set)
	return http.StatusOK, appendThresholds(out, now), err
}

var errNoModel = badRequest(queryPrefix + "missing field `model`")

// clear refuses unknown keys in the query: a misspelt threshold would unset all three.
func (r busyRoutes) clear(c request, out []byte) (int, []byte, error) {
	var model, which, unknown *string
	err := readQuery(c.Request, func(key string) **string {
		switch key {
		case "model":
			return &model
		case "threshold":
			return &which
		}
		if unknown == nil {
			unknown = &key
		}
		return nil
	})
	switch {
	case err != nil:
		return 0, nil, err
	case unknown != nil:
		return 0, nil, badRequest(queryPrefix + "unknown field `" + catalog.Clip(*unknown) + "`, expected `model` or `threshold`")
	case model == nil:
		return 0, nil, errNoModel
	}
	c.about(cleared{*model, which})
	left, err := r.svc.ClearBusyThreshold(*model, which)
	return http.StatusOK, appendThresholds(out, left), err
}

func appendThresholds(out []byte, t selection.ModelThresholds) []byte {
	out = append(out, '{')
	out = appendStringField(out, "model", t.Model)
	out = appendOptFloat(out, overload.DecodeBlocks.String(), t.DecodeBlocks)
	out = appendOptUint(out, overload.PrefillTokens.String(), t.PrefillTokens)
	out = appendOptFloat(out, overload.PrefillFraction.String(), t.PrefillFraction)
	return append(out, '}')
}

// busyBody is the body of POST /busy_threshold; null keeps a threshold.
type busyBody struct {
	model string
	set   overload.Thresholds
}

func (b busyBody) describe(e *zerolog.Event) {
	e.Str("model", catalog.Clip(b.model)).EmbedObject(selection.LoggedThresholds(b.set))
}

// cleared is an unset threshold in an audit line; which is nil for all three.
type cleared struct {
	model string
	which *string
}

func (c cleared) describe(e *zerolog.Event) {
	e.Str("model", catalog.Clip(c.model))
	if c.which != nil {
		e.Str("threshold", catalog.Clip(*c.which))
	}
}

var busyShape = bodyscan.NewObject(
	required("model", func(b *busyBody) *string { return &b.model }, readText),
	optional(overload.DecodeBlocks.String(), func(b *busyBody) **float64 { return &b.set.DecodeBlocks }, (*bodyscan.Scanner).Float64),
	optional(overload.PrefillTokens.String(), func(b *busyBody) **uint64 { return &b.set.PrefillTokens }, (*bodyscan.Scanner).Uint64),
	optional(overload.PrefillFraction.String(), func(b *busyBody) **float64 { return &b.set.PrefillFraction }, (*bodyscan.Scanner).Float64),
)
