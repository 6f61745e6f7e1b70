package conductorapi

import (
	"errors"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/catalog"
)

// maxLines bounds the lines that one request writes about single publishers; a
// further line counts the rest.
const maxLines = 20

// LoggedRegistration is a registration as the log shows it: without its salt.
type LoggedRegistration conductor.Registration

// MarshalZerologObject writes the fields.
func (r LoggedRegistration) MarshalZerologObject(e *zerolog.Event) {
	e.Stringer("type", r.Type).Str("model", catalog.Clip(r.Model)).Str("tenant", catalog.Clip(r.Tenant))
	if r.LoRA != "" {
		e.Str("lora", catalog.Clip(r.LoRA))
	}
	e.Str("instance", catalog.Clip(r.Instance)).Uint32("rank", r.Rank).Uint32("block_size", r.BlockSize).
		Str("endpoint", catalog.Clip(r.Endpoint))
}

func (a *API) logRegistered(reg conductor.Registration) {
	a.log.Info().EmbedObject(LoggedRegistration(reg)).Msg("publisher registered")
}

func (a *API) logNotRegistered(reg conductor.Registration, err error) {
	a.log.Warn().EmbedObject(LoggedRegistration(reg)).EmbedObject(refusal{err}).Msg("registration of a publisher refused")
}

func (a *API) logUnregistered(withdrawn []*conductor.Publisher) {
	for _, p := range withdrawn[:min(len(withdrawn), maxLines)] {
		a.log.Info().EmbedObject(LoggedRegistration(p.Registration)).Msg("publisher unregistered")
	}
	if more := len(withdrawn) - maxLines; more > 0 {
		a.log.Info().Int("more", more).Msg("more publishers unregistered")
	}
}

func (a *API) logNotUnregistered(f *conductor.Filter, err error) {
	a.log.Warn().Str("instance", catalog.Clip(f.Instance)).Str("tenant", catalog.Clip(f.Tenant)).EmbedObject(refusal{err}).
		Msg("unregistration of publishers refused")
}

// refusal is the error of a refused request as the log shows it.
type refusal struct{ err error }

// MarshalZerologObject writes the fields.
func (r refusal) MarshalZerologObject(e *zerolog.Event) {
	if known, ok := errors.AsType[*contract.Error](r.err); ok {
		e.Str("reason", known.Reason)
		if known.Field != "" {
			e.Str("field", known.Field)
		}
	}
	e.Str("error", catalog.Clip(r.err.Error()))
}
