package service

import (
	"errors"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/catalog"
)

// maxLines bounds the lines that one look at the streams, or one request, writes
// about single ones; a further line counts the rest.
const maxLines = 20

// loggedRegistration is a registration as the log shows it: without its salt.
type loggedRegistration conductor.Registration

// MarshalZerologObject writes the fields.
func (r loggedRegistration) MarshalZerologObject(e *zerolog.Event) {
	e.Stringer("type", r.Type).Str("model", catalog.Clip(r.Model)).Str("tenant", catalog.Clip(r.Tenant))
	if r.LoRA != "" {
		e.Str("lora", catalog.Clip(r.LoRA))
	}
	e.Str("instance", catalog.Clip(r.Instance)).Uint32("rank", r.Rank).Uint32("block_size", r.BlockSize).
		Str("endpoint", catalog.Clip(r.Endpoint))
}

func (s *Service) logRegistered(reg conductor.Registration) {
	s.log.Info().EmbedObject(loggedRegistration(reg)).Msg("publisher registered")
}

func (s *Service) logNotRegistered(reg conductor.Registration, err error) {
	s.log.Warn().EmbedObject(loggedRegistration(reg)).EmbedObject(refusal{err}).Msg("registration of a publisher refused")
}

func (s *Service) logUnregistered(gone []*conductor.Publisher) {
	for _, p := range gone[:min(len(gone), maxLines)] {
		s.log.Info().EmbedObject(loggedRegistration(p.Registration)).Msg("publisher unregistered")
	}
	if more := len(gone) - maxLines; more > 0 {
		s.log.Info().Int("more", more).Msg("more publishers unregistered")
	}
}

func (s *Service) logNotUnregistered(f *conductor.Filter, err error) {
	s.log.Warn().Str("instance", catalog.Clip(f.Instance)).Str("tenant", catalog.Clip(f.Tenant)).EmbedObject(refusal{err}).
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
