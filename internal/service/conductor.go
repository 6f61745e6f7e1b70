package service

import (
	"errors"
	"fmt"
	"slices"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/conductor"
	"github.com/select-service/select-service/pkg/kvevents"
)

// The use cases of the Conductor API. Its publishers are registered one by one
// and have an index and streams of their own: their instances are never
// selected, while the selection service's workers are shown in its answers
// (decision C7).

// ConductorQuery is the body of /query, or of /query_by_hash with ByHash. Its
// slices are borrowed.
type ConductorQuery struct {
	Identity conductor.Identity
	Instance string   // "" is all
	Tokens   []uint32 // only complete blocks count
	Hashes   []uint64 // rolling, with ByHash
	ByHash   bool
}

// ConductorService is a row of Conductor's /services: a publisher in force.
type ConductorService struct {
	conductor.Registration
	Status  conductor.Status
	State   kvevents.StreamState
	Last    uint64 // number of the last message of the stream that was applied,
	HasLast bool   // if any
}

// Reasons of the Conductor API's errors.
const (
	reasonEndpoint     = "invalid_endpoint"
	reasonInvalidField = "invalid_field"
	reasonRegistered   = "already_registered"
	reasonSeed         = "hash_seed_mismatch"
	reasonFull         = "too_many"
	reasonNotFound     = "not_found"
	reasonShuttingDown = "shutting_down"
)

// ConductorRegister follows a publisher from now on. The same registration
// again is no error; with another replay endpoint or hash seed it is a Conflict
// (decisions C5 and C6). A publisher that is not there yet is no error.
func (s *Service) ConductorRegister(reg conductor.Registration) error {
	if err := checkLengths(&reg); err != nil {
		return err
	}
	if err := checkEndpoints(&reg); err != nil {
		return err
	}
	s.publishing.Lock()
	defer s.publishing.Unlock()
	if s.closing.Load() {
		return errClosing
	}
	p, fresh, err := s.conductor.Add(reg)
	if err != nil {
		return registrationError(err)
	}
	if !fresh {
		return nil
	}
	if err := s.followPublisher(p); err != nil {
		s.conductor.Drop(p)
		return err
	}
	return nil
}

// ConductorUnregister ends the publishers that match, and forgets their blocks.
// It returns "instance|tenant|rank" of each, sorted, none twice. It works after
// Close, too.
func (s *Service) ConductorUnregister(f conductor.Filter) ([]string, error) {
	gone := s.withdrawPublishers(f)
	if len(gone) == 0 {
		e := errorf(NotFound, "service not found: %s|%s", f.Instance, f.Tenant)
		if f.Rank != nil {
			e.Text = fmt.Sprintf("%s|%d", e.Text, *f.Rank)
		}
		e.Reason = reasonNotFound
		return nil, e
	}
	removed := make([]string, len(gone))
	for i, p := range gone {
		s.conductor.Drop(p)
		removed[i] = fmt.Sprintf("%s|%s|%d", p.Instance, p.Tenant, p.Rank)
	}
	slices.Sort(removed)
	return slices.Compact(removed), nil
}

// withdrawPublishers takes publishers out of all answers and closes their
// streams. Their blocks are still to be dropped, for which others need not wait:
// whoever registers the same meanwhile is another publisher.
func (s *Service) withdrawPublishers(f conductor.Filter) []*conductor.Publisher {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	gone := s.conductor.Withdraw(f)
	for _, p := range gone {
		s.unfollowPublisher(p)
	}
	return gone
}

// ConductorServices lists the publishers in force in the order of their
// registration.
func (s *Service) ConductorServices() []ConductorService {
	streams := make(map[catalog.Rank]kvevents.StreamStatus)
	for _, st := range s.conductorStreams.Streams() {
		streams[st.Rank] = st
	}
	publishers := s.conductor.Publishers()
	rows := make([]ConductorService, len(publishers))
	for i, p := range publishers {
		st := streams[streamKey(p)] // just registered: none yet, which is "connecting"
		rows[i] = ConductorService{Registration: p.Registration, Status: p.Status(), State: st.State, Last: st.Last, HasLast: st.HasLast}
	}
	return rows
}

// maxRegistered bounds each text of a registration, in bytes: it is kept, and
// names in answers are repeated again and again. Events are held to the same.
const maxRegistered = 4096

// checkLengths refuses texts that are too long.
func checkLengths(reg *conductor.Registration) error {
	for _, text := range []struct{ field, value string }{
		{"endpoint", reg.Endpoint}, {"replay_endpoint", reg.Replay}, {"modelname", reg.Model},
		{"lora_name", reg.LoRA}, {"tenant_id", reg.Tenant}, {"instance_id", reg.Instance}, {"additionalsalt", reg.Salt},
	} {
		if n := len(text.value); n > maxRegistered {
			e := errorf(BadRequest, "%s: %d bytes are too long, at most %d", text.field, n, maxRegistered)
			e.Reason, e.Field = reasonInvalidField, text.field
			return e
		}
	}
	return nil
}

// checkEndpoints refuses endpoints that can never work.
func checkEndpoints(reg *conductor.Registration) error {
	if _, err := catalog.ParseEndpoint(reg.Endpoint); err != nil {
		return &Error{Kind: BadRequest, Text: err.Error(), Reason: reasonEndpoint, Field: "endpoint", Err: err}
	}
	if reg.Replay == "" {
		return nil
	}
	e, err := catalog.ParseEndpoint(reg.Replay)
	if err == nil && e.Wildcard { // a request needs somebody to go to (decision K14)
		err = &catalog.EndpointError{Endpoint: reg.Replay, Why: "wildcard host"}
	}
	if err != nil {
		return &Error{Kind: BadRequest, Text: err.Error(), Reason: reasonEndpoint, Field: "replay_endpoint", Err: err}
	}
	return nil
}

// registrationError says why the registry refuses a registration.
func registrationError(err error) error {
	var conflict *conductor.ConflictError
	var seed *conductor.SeedMismatchError
	switch {
	case errors.As(err, &conflict):
		return &Error{Kind: Conflict, Text: err.Error(), Reason: reasonRegistered, Err: err}
	case errors.As(err, &seed):
		return &Error{Kind: Conflict, Text: err.Error(), Reason: reasonSeed, Field: "hash_seed", Err: err}
	case errors.Is(err, conductor.ErrFull):
		return &Error{Kind: Unavailable, Text: err.Error(), Reason: reasonFull, Err: err}
	}
	return &Error{Kind: Internal, Text: "internal error", Err: err}
}
