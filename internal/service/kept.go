package service

import (
	"errors"

	"github.com/select-service/select-service/internal/affinity"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/pending"
	"github.com/select-service/select-service/pkg/reservations"
)

// keep remembers what was selected, so that it can be booked by its id alone.
func (c *selection) keep() {
	req := c.request
	if c.reserve || !req.Keep || req.SelectionID == nil {
		return
	}
	sel := pending.Selection{
		Scope: req.Scope, Rank: c.result.Rank, BlockSize: c.snap.BlockSize, Eagle: c.snap.Eagle,
		Local: c.local, Sequence: c.sequence,
		Tokens: c.size.Tokens, Prefill: c.result.EffectivePrefillTokens,
		TrackPrefill: c.weights.TrackPrefill, ExpectedOutput: req.ExpectedOutputTokens,
	}
	if req.Pinned == nil {
		sel.Session = req.Session
	}
	c.service.kept.Put(*req.SelectionID, sel)
}

// reserveKept books the selection that is kept under the request's id. It is
// consumed by the first success. A failure leaves it for another try, unless its
// session has moved, or its scope's blocks have changed: then no try can succeed.
func (s *Service) reserveKept(req *ReserveRequest) (Reservation, error) {
	s.bookingKept.Lock()
	defer s.bookingKept.Unlock()
	if r, done, err := s.reservedBefore(req, nil); done || err != nil {
		return r, err
	}
	claim, err := s.kept.Take(req.Scope, req.ID)
	if err != nil {
		return Reservation{}, nothingKept(req)
	}
	defer claim.Back()
	r, err := s.bookKept(req, claim.Selection())
	if err == nil || contract.KindOf(err) == contract.BadRequest || errors.Is(err, pending.ErrNone) {
		claim.Done()
	}
	return r, err
}

func nothingKept(req *ReserveRequest) *contract.Error {
	none := contract.ScopeErrorf(contract.NotFound, req.Scope, "no pending selection %s", req.ID)
	none.Tail, none.Err = " (expired, already used, or never selected)", pending.ErrNone
	return none
}

func (s *Service) bookKept(req *ReserveRequest, sel pending.Selection) (Reservation, error) {
	snap, p, err := s.scopes.Schedulable(sel.Scope)
	if err != nil {
		return Reservation{}, err
	}
	if snap.BlockSize != sel.BlockSize || snap.Eagle != sel.Eagle { // its blocks have gone (decision D17)
		return Reservation{}, nothingKept(req)
	}
	e, ok := snap.Entry(sel.Rank)
	if !ok {
		return Reservation{}, contract.ScopeErrorf(contract.NotFound, sel.Scope, "schedulable worker %d (dp_rank %d) not found", sel.Rank.Worker, sel.Rank.DP)
	}
	if exists := s.live(req.ID, req.Scope); exists != nil { // the session stays as it is
		return Reservation{}, taken(exists.Error(), req.IfExists, exists)
	}
	release, err := s.claim(req)
	if err != nil {
		return Reservation{}, err
	}
	defer release()
	hold, err := s.joinSession(affinity.Key{Scope: sel.Scope, Session: sel.Session}, sel.Rank, snap)
	if err != nil {
		return Reservation{}, err
	}
	b := booking{pool: p, snap: snap, entry: e, local: sel.Local, prefill: sel.Prefill}
	b.Request = reservations.Request{
		Hashes: sel.Sequence, TrackPrefill: sel.TrackPrefill, ExpectedOutput: sel.ExpectedOutput,
	}
	b.keep = &companion{hold: hold, identity: identity{sequence: sel.Sequence, tokens: sel.Tokens}}
	return s.book(req, &b)
}
