package service

import (
	"errors"
	"slices"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// Reserve books a prompt on a rank that the caller chose, or a kept selection. It
// states a fact: it never waits and is never refused for load.
func (s *Service) Reserve(req *ReserveRequest) (Reservation, error) {
	reserve := s.reserve
	if req.Kept {
		reserve = s.reserveKept
	} else {
		s.kept.Drop(req.Scope, req.ID)
	}
	r, err := reserve(req)
	for n := 1; n < maxAttempts && errors.Is(err, scopes.ErrStale); n++ {
		r, err = reserve(req)
	}
	return r, err
}

func (s *Service) reserve(req *ReserveRequest) (Reservation, error) {
	q := newQuery()
	defer q.recycle()
	if r, done, err := s.reservedBefore(req, q); done || err != nil {
		return r, err
	}
	snap, p, err := s.scopes.Schedulable(req.Scope)
	if err != nil {
		return Reservation{}, err
	}
	weights, err := s.config.Weights.With(req.Override)
	if err != nil {
		return Reservation{}, &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	if err := q.readBooking(&req.Prompt, snap); err != nil {
		return Reservation{}, err
	}
	prefill, track, err := req.prefill(q.size.Tokens, weights.TrackPrefill)
	if err != nil {
		return Reservation{}, err
	}
	e, err := s.place(req, snap)
	if err != nil {
		return Reservation{}, err
	}
	release, err := s.claim(req)
	if err != nil {
		return Reservation{}, err
	}
	defer release()
	b := booking{pool: p, snap: snap, entry: e, local: q.local, prefill: prefill}
	b.Request = reservations.Request{
		Hashes: slices.Clone(q.sequence), TrackPrefill: track, ExpectedOutput: req.ExpectedOutputTokens,
	}
	b.keep = &companion{identity: q.identify(&req.Prompt, b.Hashes)}
	return s.book(req, &b)
}

// claim takes the request's id as refuseTaken does, until release. It fails if
// another request has it.
func (s *Service) claim(req *ReserveRequest) (release func(), err error) {
	if !req.Detailed || req.IfExists != Refuse {
		return func() {}, nil
	}
	if !s.claimed.claim(req.ID, false) {
		return nil, onItsWay(req.ID)
	}
	return func() { s.claimed.release(req.ID) }, nil
}

// booking is what is to be booked on a rank that was chosen before.
type booking struct {
	reservations.Request
	pool    *scopes.State
	snap    *catalog.Snapshot
	entry   catalog.Entry
	local   []uint64 // borrowed; nil: unknown
	prefill uint64   // tokens
	keep    *companion
}

// book enters a booking under the request's id, and completes its companion.
func (s *Service) book(req *ReserveRequest, b *booking) (Reservation, error) {
	e := b.entry
	r := Reservation{ID: req.ID, Scope: req.Scope, Rank: e.Rank, Endpoint: e.Worker.Address(), Lease: req.Lease}
	b.keep.answers, b.keep.id, b.keep.endpoint = &s.first, req.ID, r.Endpoint
	b.ID, b.Lease, b.CallerState = req.ID, req.Lease, b.keep
	_, err := s.ledger.Book(req.Scope, b.Request, func(*reservations.View) (reservations.Placement, error) {
		if b.pool.Gone() { // see selection.choose
			return reservations.Placement{}, scopes.ErrStale
		}
		return reservations.Placement{Slot: e.Slot, Rank: e.Rank, PrefillTokens: b.prefill}, nil
	})
	if err != nil {
		b.keep.hold.Release()
	}
	var exists *reservations.ExistsError
	switch {
	case errors.As(err, &exists):
		return Reservation{}, taken(exists.Error(), req.IfExists, exists)
	case errors.Is(err, scopes.ErrStale), errors.Is(err, reservations.ErrUnknownRank):
		left := noSuchRank(b.snap, e.Rank)
		left.Err = scopes.ErrStale
		return Reservation{}, left
	case err != nil:
		return Reservation{}, err
	}
	s.booked(b.keep, b.pool, e, b.local)
	return r, nil
}

// booked does what is to be done once a booking is entered. keep, its companion,
// may be nil.
func (s *Service) booked(keep *companion, p *scopes.State, e catalog.Entry, local []uint64) {
	if keep != nil {
		keep.hold.Bind(e.Rank)
		s.first.add(keep)
		s.waitedIDs.wake(keep.id)
	}
	p.Booked(e, local)
}

// prefill returns the tokens to book for a prompt, and whether they count.
// tracked is what the configuration or the request's override says; where the
// request gives the tokens they count (decision D3), unless it says otherwise.
func (r *ReserveRequest) prefill(prompt uint64, tracked bool) (tokens uint64, counts bool, err error) {
	tokens, counts = prompt, tracked
	if given := r.EffectivePrefillTokens; given != nil {
		tokens, counts = *given, true
	}
	if tokens > prompt {
		return 0, false, contract.Errorf(contract.BadRequest, "effective_prefill_tokens (%d) must not exceed isl_tokens (%d)", tokens, prompt)
	}
	if r.TrackPrefill != nil {
		counts = *r.TrackPrefill
	}
	if !counts {
		return 0, false, nil
	}
	return tokens, true, nil
}

// place finds the rank that a request names. Where several things are wrong the
// error is Dynamo's: an id that is taken is told before an unknown rank, but behind
// an unknown worker and hashes that cannot be predicted.
func (s *Service) place(req *ReserveRequest, snap *catalog.Snapshot) (catalog.Entry, error) {
	e, ok := snap.Entry(req.Rank)
	if !ok && len(snap.RanksOf(req.Rank.Worker)) == 0 {
		return e, noSuchRank(snap, req.Rank)
	}
	if s.config.approximate() && req.Prompt.HasBlockHashes {
		if err := req.Prompt.check(); err != nil {
			return e, err
		}
	}
	if ok {
		return e, nil
	}
	if exists := s.live(req.ID, req.Scope); exists != nil {
		return e, taken(exists.Error(), Refuse, exists)
	}
	release, err := s.claim(req)
	if err != nil {
		return e, err
	}
	release()
	return e, noSuchRank(snap, req.Rank)
}

// noSuchRank tells an unknown worker from an unknown rank of a known one
// (decision D4).
func noSuchRank(snap *catalog.Snapshot, r catalog.Rank) *contract.Error {
	if len(snap.RanksOf(r.Worker)) == 0 {
		return contract.ScopeErrorf(contract.NotFound, snap.Scope, "schedulable worker %d not found", r.Worker)
	}
	return contract.Errorf(contract.NotFound, "Worker %s not found", r)
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
	if len(p.BlockHashes) == len(p.SequenceHashes) {
		q.local = p.BlockHashes
	}
	q.size.BlockSize, q.size.Tokens, q.size.Blocks = pool.BlockSize, p.ISLTokens, len(p.SequenceHashes)
	return nil
}

// PrefillComplete takes a reservation's prefill load off its rank.
func (s *Service) PrefillComplete(id string) error {
	if err := s.ledger.PrefillComplete(id); err != nil {
		return reservationError(id, err)
	}
	s.scopes.LoadChanged()
	return nil
}

// OutputBlock adds one generated block to a reservation; decay, if given, is
// the weight of the blocks that only this reservation holds from now on.
func (s *Service) OutputBlock(id string, decay *float64) error {
	return reservationError(id, s.ledger.OutputBlock(id, decay))
}

// Renew begins the lease of a reservation anew. The error is of kind NotFound, or
// Conflict if the reservation has none.
func (s *Service) Renew(id string) error { return reservationError(id, s.ledger.Renew(id)) }

// Free ends a reservation.
func (s *Service) Free(id string) error {
	if err := s.ledger.Free(id); err != nil {
		return reservationError(id, err)
	}
	s.scopes.LoadChanged()
	return nil
}

func reservationError(id string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, reservations.ErrNotFound):
		return &contract.Error{Kind: contract.NotFound, Text: "reservation " + id + " not found", Err: err}
	case errors.Is(err, reservations.ErrNoLease):
		return &contract.Error{Kind: contract.Conflict, Text: "reservation " + id + " has no lease", Err: err}
	case errors.Is(err, reservations.ErrFraction):
		return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	return err
}
