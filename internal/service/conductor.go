package service

import (
	"errors"
	"fmt"
	"slices"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// The use cases of the Conductor API. Its publishers are registered one by one
// and have an index and streams of their own: their instances are never
// selected, while the selection service's workers are shown in its answers
// (decision C7).

// ConductorQuery is the body of /query, or of /query_by_hash with ByHash.
type ConductorQuery = conductor.Question

// ConductorService is a row of Conductor's /services: a publisher in force.
type ConductorService struct {
	conductor.Registration
	Status  conductor.Status
	State   kvevents.StreamState
	Last    uint64 // number of the last message of the stream that was applied,
	HasLast bool   // if any
	// Lost counts message numbers that never came, Restarts the engines that were
	// found to have started anew.
	Lost, Restarts uint64
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
	fresh, err := s.registerPublisher(reg)
	switch {
	case err != nil:
		s.logNotRegistered(reg, err)
	case fresh:
		s.logRegistered(reg)
	}
	return err
}

// registerPublisher is ConductorRegister; fresh is false if the registration is
// in force already.
func (s *Service) registerPublisher(reg conductor.Registration) (fresh bool, err error) {
	if err := checkLengths(textsOf(&reg)); err != nil {
		return false, err
	}
	if err := checkEndpoints(&reg); err != nil {
		return false, err
	}
	s.publishing.Lock()
	defer s.publishing.Unlock()
	if s.closing.Load() {
		return false, errClosing
	}
	p, fresh, err := s.conductor.Add(reg)
	if err != nil {
		return false, registrationError(&reg, err)
	}
	if !fresh {
		return false, nil
	}
	if err := s.followPublisher(p); err != nil {
		s.conductor.Drop(p)
		return false, err
	}
	return true, nil
}

// ConductorUnregister ends the publishers that match, and forgets their blocks.
// It returns "instance|tenant|rank" of each, sorted, none twice. It works after
// Close, too.
func (s *Service) ConductorUnregister(f conductor.Filter) ([]string, error) {
	gone, err := s.withdrawPublishers(&f)
	if err != nil {
		s.logNotUnregistered(&f, err)
		return nil, err
	}
	removed := make([]string, len(gone))
	for i, p := range gone {
		s.conductor.Drop(p)
		removed[i] = fmt.Sprintf("%s|%s|%d", p.Instance, p.Tenant, p.Rank)
	}
	s.logUnregistered(gone)
	slices.Sort(removed)
	return slices.Compact(removed), nil
}

// withdrawPublishers takes publishers out of all answers and closes their
// streams. Their blocks are still to be dropped, for which others need not wait:
// whoever registers the same meanwhile is another publisher. That none matches
// is an error.
func (s *Service) withdrawPublishers(f *conductor.Filter) ([]*conductor.Publisher, error) {
	if err := checkLengths(filterTexts(f)); err != nil {
		return nil, err
	}
	s.publishing.Lock()
	defer s.publishing.Unlock()
	gone := s.conductor.Withdraw(*f)
	if len(gone) == 0 {
		return nil, &contract.Error{Kind: contract.NotFound, Text: unmatchedText(f), Reason: reasonNotFound}
	}
	for _, p := range gone {
		s.unfollowPublisher(p)
	}
	return gone, nil
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
		rows[i] = ConductorService{
			Registration: p.Registration, Status: p.Status(), State: st.State,
			Last: st.Last, HasLast: st.HasLast, Lost: st.Lost, Restarts: st.Restarts,
		}
	}
	return rows
}

// checkEndpoints refuses endpoints that can never work.
func checkEndpoints(reg *conductor.Registration) error {
	if _, err := catalog.ParseEndpoint(reg.Endpoint); err != nil {
		return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Reason: reasonEndpoint, Field: "endpoint", Err: err}
	}
	if reg.Replay == "" {
		return nil
	}
	if err := catalog.CheckReplayEndpoint(reg.Replay); err != nil {
		return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Reason: reasonEndpoint, Field: "replay_endpoint", Err: err}
	}
	return nil
}

// registrationError says why the registry refuses a registration.
func registrationError(reg *conductor.Registration, err error) error {
	var conflict *conductor.ConflictError
	var seed *conductor.SeedMismatchError
	switch {
	case errors.As(err, &conflict):
		field := "hash_seed"
		if conflict.InForce.Replay != reg.Replay {
			field = "replay_endpoint"
		}
		return &contract.Error{Kind: contract.Conflict, Text: err.Error(), Reason: reasonRegistered, Field: field, Err: err}
	case errors.As(err, &seed):
		return &contract.Error{Kind: contract.Conflict, Text: err.Error(), Reason: reasonSeed, Field: "hash_seed", Err: err}
	case errors.Is(err, conductor.ErrFull):
		return &contract.Error{Kind: contract.Unavailable, Text: err.Error(), Reason: reasonFull, Err: err}
	}
	return &contract.Error{Kind: contract.Internal, Text: "internal error", Err: err}
}
