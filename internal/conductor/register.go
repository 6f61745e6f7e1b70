package conductor

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// Reasons of the Conductor API's errors.
const (
	reasonEndpoint     = "invalid_endpoint"
	reasonInvalidField = "invalid_field"
	reasonRegistered   = "already_registered"
	reasonSeed         = "hash_seed_mismatch"
	reasonFull         = "too_many"
	reasonNotFound     = "not_found"
)

// Register starts following a publisher. Repeating a registration is no error; with another
// replay endpoint or hash seed it is a Conflict (decisions C5 and C6). The
// publisher need not be running yet.
func (a *API) Register(reg Registration) error {
	fresh, err := a.registerPublisher(reg)
	switch {
	case err != nil:
		a.logNotRegistered(reg, err)
	case fresh:
		a.logRegistered(reg)
	}
	return err
}

// registerPublisher is Register; fresh is false if the registration is active already.
func (a *API) registerPublisher(reg Registration) (fresh bool, err error) {
	if err := checkLengths(textsOf(&reg)); err != nil {
		return false, err
	}
	if err := a.checkEndpoints(&reg); err != nil {
		return false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.selection.Closing() {
		return false, contract.ErrShuttingDown
	}
	p, fresh, err := a.registry.add(reg)
	if err != nil {
		return false, registrationError(&reg, err)
	}
	if !fresh {
		return false, nil
	}
	if err := a.followPublisher(p); err != nil {
		a.registry.drop(p)
		return false, err
	}
	return true, nil
}

// Unregister removes the matching publishers and their blocks. It returns
// "instance|tenant|rank" of each, sorted, without duplicates. It also works during shutdown.
func (a *API) Unregister(f Filter) ([]string, error) {
	withdrawn, err := a.withdrawPublishers(&f)
	if err != nil {
		a.logNotUnregistered(&f, err)
		return nil, err
	}
	removed := make([]string, len(withdrawn))
	for i, p := range withdrawn {
		a.registry.drop(p)
		removed[i] = fmt.Sprintf("%s|%s|%d", p.Instance, p.Tenant, p.Rank)
	}
	a.logUnregistered(withdrawn)
	slices.Sort(removed)
	return slices.Compact(removed), nil
}

// withdrawPublishers removes publishers from all answers and closes their streams. Dropping
// their blocks is left to the caller, so that other calls need not wait for it: a new
// registration with the same key is another publisher. It is an error if none matches.
func (a *API) withdrawPublishers(f *Filter) ([]*Publisher, error) {
	if err := checkLengths(filterTexts(f)); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	withdrawn := a.registry.withdrawAll(*f)
	if len(withdrawn) == 0 {
		return nil, &contract.Error{Kind: contract.NotFound, Text: unmatchedText(f), Reason: reasonNotFound}
	}
	for _, p := range withdrawn {
		a.unfollowPublisher(p)
	}
	return withdrawn, nil
}

// checkEndpoints refuses endpoints that cannot work.
func (a *API) checkEndpoints(reg *Registration) error {
	if _, err := a.endpoints.Check(reg.Endpoint); err != nil {
		return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Reason: reasonEndpoint, Field: "endpoint", Err: err}
	}
	if reg.Replay == "" {
		return nil
	}
	if err := a.endpoints.CheckReplay(reg.Replay); err != nil {
		return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Reason: reasonEndpoint, Field: "replay_endpoint", Err: err}
	}
	return nil
}

// registrationError converts the registry's error about a registration.
func registrationError(reg *Registration, err error) error {
	var conflict *conflictError
	var seed *seedMismatchError
	switch {
	case errors.As(err, &conflict):
		field := "hash_seed"
		if conflict.inForce.Replay != reg.Replay {
			field = "replay_endpoint"
		}
		return &contract.Error{Kind: contract.Conflict, Text: err.Error(), Reason: reasonRegistered, Field: field, Err: err}
	case errors.As(err, &seed):
		return &contract.Error{Kind: contract.Conflict, Text: err.Error(), Reason: reasonSeed, Field: "hash_seed", Err: err}
	case errors.Is(err, errFull):
		return &contract.Error{Kind: contract.Unavailable, Text: err.Error(), Reason: reasonFull, Limit: contract.LimitPublishers, Err: err}
	}
	return &contract.Error{Kind: contract.Internal, Text: "internal error", Err: err}
}

// sharedReplay has the publishers with streams that share one replay endpoint.
type sharedReplay struct {
	users []*Publisher
	// several: they have different live endpoints, so an answer is not for all of them.
	several bool
}

// followPublisher opens the stream of a new publisher. The caller holds mu.
func (a *API) followPublisher(p *Publisher) error {
	others := a.replays[p.Replay]
	several := others.several || len(others.users) > 0 && others.users[0].Endpoint != p.Endpoint
	err := a.streams.Add(publisherStream(p, several))
	switch {
	case errors.Is(err, kvevents.ErrClosed):
		return contract.ErrShuttingDown
	case err != nil:
		if cause := errors.Unwrap(err); cause != nil {
			err = cause // without our internal name of the stream
		}
		return &contract.Error{
			Kind: contract.BadRequest, Text: fmt.Sprintf("cannot subscribe to `%s`: %v", p.Endpoint, err),
			Reason: reasonEndpoint, Field: "endpoint", Err: err,
		}
	}
	if p.Replay != "" {
		a.shareReplay(p.Replay, append(others.users, p))
	}
	return nil
}

// unfollowPublisher closes a publisher's stream. The caller holds mu.
func (a *API) unfollowPublisher(p *Publisher) {
	a.streams.Remove(StreamRank(p)) // false if all streams have ended already
	if p.Replay != "" {
		is := func(o *Publisher) bool { return o == p }
		a.shareReplay(p.Replay, slices.DeleteFunc(a.replays[p.Replay].users, is))
	}
}

// shareReplay records the current publishers of a replay endpoint. If several changes by that,
// it updates their streams.
func (a *API) shareReplay(replay string, users []*Publisher) {
	if len(users) == 0 {
		delete(a.replays, replay)
		return
	}
	several := slices.ContainsFunc(users, func(p *Publisher) bool { return p.Endpoint != users[0].Endpoint })
	changed := several != a.replays[replay].several
	a.replays[replay] = sharedReplay{users, several}
	if !changed {
		return
	}
	for _, p := range users {
		_ = a.streams.Update(publisherStream(p, several)) // fails only after all streams have ended
	}
}

// publisherStream returns the configuration of a publisher's stream. Several ranks of an engine
// can share a replay server, which has the messages of one of them, so each rank takes only its
// own. Events of a cache backend are not distinguished by the rank of their batch.
func publisherStream(p *Publisher, severalReplay bool) kvevents.StreamConfig {
	engine := p.Type == VLLM || p.Type == SGLang
	return kvevents.StreamConfig{
		Rank:         StreamRank(p),
		Endpoint:     p.Endpoint,
		Replay:       p.Replay,
		SharedReplay: engine && severalReplay,
		Applier:      p,
	}
}

// maxLines bounds the log lines of one request about single publishers; a further line counts
// the rest.
const maxLines = 20

// LoggedRegistration writes a registration to the log, without its salt.
type LoggedRegistration Registration

// MarshalZerologObject writes the fields.
func (r LoggedRegistration) MarshalZerologObject(e *zerolog.Event) {
	e.Stringer("type", r.Type).Str("model", catalog.Clip(r.Model)).Str("tenant", catalog.Clip(r.Tenant))
	if r.LoRA != "" {
		e.Str("lora", catalog.Clip(r.LoRA))
	}
	e.Str("instance", catalog.Clip(r.Instance)).Uint32("rank", r.Rank).Uint32("block_size", r.BlockSize).
		Str("endpoint", catalog.Clip(r.Endpoint))
}

func (a *API) logRegistered(reg Registration) {
	a.log.Info().EmbedObject(LoggedRegistration(reg)).Msg("publisher registered")
}

func (a *API) logNotRegistered(reg Registration, err error) {
	a.log.Warn().EmbedObject(LoggedRegistration(reg)).EmbedObject(refusal{err}).Msg("registration of a publisher refused")
}

func (a *API) logUnregistered(withdrawn []*Publisher) {
	for _, p := range withdrawn[:min(len(withdrawn), maxLines)] {
		a.log.Info().EmbedObject(LoggedRegistration(p.Registration)).Msg("publisher unregistered")
	}
	if more := len(withdrawn) - maxLines; more > 0 {
		a.log.Info().Int("more", more).Msg("more publishers unregistered")
	}
}

func (a *API) logNotUnregistered(f *Filter, err error) {
	a.log.Warn().Str("instance", catalog.Clip(f.Instance)).Str("tenant", catalog.Clip(f.Tenant)).EmbedObject(refusal{err}).
		Msg("unregistration of publishers refused")
}

// refusal writes the error of a refused request to the log.
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
