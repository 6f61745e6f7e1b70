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
	r, err := s.reserve(req)
	for n := 1; n < maxAttempts && errors.Is(err, errStale); n++ {
		r, err = s.reserve(req)
	}
	return r, err
}

func (s *Service) reserve(req *ReserveRequest) (Reservation, error) {
	snap, p, err := s.schedulable(req.Scope)
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
	prefill, track, err := req.prefill(q.size.Tokens, weights.TrackPrefill)
	if err != nil {
		return Reservation{}, err
	}
	e, ok := snap.Entry(req.Rank)
	if !ok {
		return Reservation{}, noSuchRank(snap, req.Rank)
	}
	_, err = s.ledger.Book(req.Scope, reservations.Request{
		ID:             req.ID,
		Hashes:         slices.Clone(q.sequence),
		TrackPrefill:   track,
		ExpectedOutput: req.ExpectedOutputTokens,
	}, func(*reservations.View) (reservations.Placement, error) {
		if p.gone.Load() { // see selection.choose
			return reservations.Placement{}, errStale
		}
		return reservations.Placement{Slot: e.Slot, Rank: e.Rank, PrefillTokens: prefill}, nil
	})
	var exists *reservations.ExistsError
	switch {
	case errors.As(err, &exists):
		return Reservation{}, &Error{Kind: Conflict, Text: exists.Error(), Err: err}
	case errors.Is(err, errStale), errors.Is(err, reservations.ErrUnknownRank):
		left := noSuchRank(snap, req.Rank)
		left.Err = errStale
		return Reservation{}, left
	case err != nil:
		return Reservation{}, err
	}
	return Reservation{ID: req.ID, Scope: req.Scope, Rank: req.Rank, Endpoint: e.Worker.Address()}, nil
}

// prefill returns the tokens to book for a prompt, and whether they count.
// tracked is what the configuration or the request's override says.
func (r *ReserveRequest) prefill(prompt uint64, tracked bool) (tokens uint64, counts bool, err error) {
	given := r.EffectivePrefillTokens
	switch {
	case given == nil && tracked: // decision D3
		return prompt, true, nil
	case given == nil:
		return 0, false, nil
	case *given > prompt:
		return 0, false, errorf(BadRequest, "effective_prefill_tokens (%d) must not exceed isl_tokens (%d)", *given, prompt)
	}
	return *given, true, nil
}

// noSuchRank tells an unknown worker from an unknown rank of a known one
// (decision D4).
func noSuchRank(snap *catalog.Snapshot, r catalog.Rank) *Error {
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
