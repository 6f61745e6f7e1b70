package service

import (
	"errors"
	"slices"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// Reserve books a prompt on a rank that the caller chose. It states a fact: it
// never waits and is never refused for load.
func (s *Service) Reserve(req *ReserveRequest) (Reservation, error) {
	snap, _, err := s.schedulable(req.Scope)
	if err != nil {
		return Reservation{}, err
	}
	weights, err := s.config.Weights.With(req.Override)
	if err != nil {
		return Reservation{}, &Error{Kind: BadRequest, Text: err.Error(), Err: err}
	}
	q := newQuery()
	defer q.recycle()
	if err := q.readBooking(&req.Prompt, snap); err != nil {
		return Reservation{}, err
	}
	prefill := uint64(0)
	track := weights.TrackPrefill
	switch given := req.EffectivePrefillTokens; {
	case given != nil && *given > q.size.Tokens:
		return Reservation{}, errorf(BadRequest, "effective_prefill_tokens (%d) must not exceed isl_tokens (%d)", *given, q.size.Tokens)
	case given != nil:
		prefill, track = *given, true
	case track: // decision D3
		prefill = q.size.Tokens
	}
	e, ok := snap.Entry(req.Rank)
	if !ok {
		return Reservation{}, s.noSuchRank(snap, req.Rank)
	}
	_, err = s.ledger.Book(req.Scope, reservations.Request{
		ID:             req.ID,
		Hashes:         slices.Clone(q.sequence),
		TrackPrefill:   track,
		ExpectedOutput: req.ExpectedOutputTokens,
	}, func(*reservations.View) (reservations.Placement, error) {
		return reservations.Placement{Slot: e.Slot, Rank: e.Rank, PrefillTokens: prefill}, nil
	})
	var exists *reservations.ExistsError
	switch {
	case errors.As(err, &exists):
		return Reservation{}, &Error{Kind: Conflict, Text: exists.Error(), Err: err}
	case errors.Is(err, reservations.ErrUnknownRank):
		return Reservation{}, s.noSuchRank(snap, req.Rank)
	case err != nil:
		return Reservation{}, err
	}
	return Reservation{ID: req.ID, Scope: req.Scope, Rank: req.Rank, Endpoint: e.Worker.Address()}, nil
}

// noSuchRank tells an unknown worker from an unknown rank of a known one
// (decision D4).
func (s *Service) noSuchRank(snap *catalog.Snapshot, r catalog.Rank) error {
	if len(snap.RanksOf(r.Worker)) == 0 {
		return errorf(NotFound, "schedulable worker %d not found for model=%s tenant=%s", r.Worker, snap.Scope.Model, snap.Scope.Tenant)
	}
	return errorf(NotFound, "Worker %s not found", r)
}

// readBooking reads a prompt that is booked and not looked up: block hashes are
// not needed.
func (q *query) readBooking(p *Prompt, pool *catalog.Snapshot) error {
	if _, _, ok := p.tokens(); ok {
		return q.read(p, pool)
	}
	if err := p.checkBooking(); err != nil {
		return err
	}
	q.sequence = p.SequenceHashes
	q.size.BlockSize, q.size.Tokens, q.size.Blocks = pool.BlockSize, p.ISLTokens, len(p.SequenceHashes)
	return nil
}

// PrefillComplete takes a reservation's prefill load off its rank.
func (s *Service) PrefillComplete(id string) error {
	if err := s.ledger.PrefillComplete(id); err != nil {
		return reservationError(id, err)
	}
	s.loadChanged()
	return nil
}

// OutputBlock adds one generated block to a reservation; decay, if given, is
// the weight of the blocks that only this reservation holds from now on.
func (s *Service) OutputBlock(id string, decay *float64) error {
	return reservationError(id, s.ledger.OutputBlock(id, decay))
}

// Free ends a reservation.
func (s *Service) Free(id string) error {
	if err := s.ledger.Free(id); err != nil {
		return reservationError(id, err)
	}
	s.loadChanged()
	return nil
}

func reservationError(id string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, reservations.ErrNotFound):
		return &Error{Kind: NotFound, Text: "reservation " + id + " not found", Err: err}
	case errors.Is(err, reservations.ErrFraction):
		return &Error{Kind: BadRequest, Text: err.Error(), Err: err}
	}
	return err
}
