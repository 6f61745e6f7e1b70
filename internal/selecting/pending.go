package selecting

import (
	"errors"
	"sync"

	"github.com/select-service/select-service/internal/affinity"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/pending"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// pendingSelections has the selections that can be booked by their id alone.
type pendingSelections struct {
	store *pending.Store
	// mu is held while a selection is booked, so that a second request for it finds either the
	// selection or the reservation.
	mu sync.Mutex
}

// save keeps the selection, if the request asks for it.
func (p *pendingSelections) save(c *selection) {
	req := c.request
	if c.reserve || !req.Pending || req.SelectionID == nil {
		return
	}
	s := pending.Selection{
		Scope: req.Scope, Rank: c.result.Rank, BlockSize: c.snapshot.BlockSize, Eagle: c.snapshot.Eagle,
		Local: c.local, Sequence: c.sequence,
		Tokens: c.size.Tokens, Prefill: c.result.EffectivePrefillTokens,
		TrackPrefill: c.weights.TrackPrefill, ExpectedOutput: req.ExpectedOutputTokens,
	}
	if req.Pinned == nil && req.Target == nil {
		s.Session = req.Session
	}
	p.store.Put(*req.SelectionID, s)
}

// reservePending books the selection that is pending under the request's id. The first success
// uses it up. A failure leaves it for another try, unless its session has moved or its scope's
// block size has changed: then no try can succeed.
func (a *API) reservePending(req *ReserveRequest) (Reservation, error) {
	a.pending.mu.Lock()
	defer a.pending.mu.Unlock()
	if r, replayed, err := a.replayReservation(req, nil); replayed || err != nil {
		return r, err
	}
	claim, err := a.pending.store.Take(req.Scope, req.ID)
	if err != nil {
		return Reservation{}, errNotPending(req)
	}
	defer claim.Back()
	r, err := a.bookPending(req, claim.Selection())
	if err == nil || contract.KindOf(err) == contract.BadRequest || errors.Is(err, pending.ErrNone) {
		claim.Done()
	}
	return r, err
}

func errNotPending(req *ReserveRequest) *contract.Error {
	none := contract.ScopeErrorf(contract.NotFound, req.Scope, "no pending selection %s", req.ID)
	none.Tail, none.Err = " (expired, already used, or never selected)", pending.ErrNone
	return none
}

// bookPending books a pending selection: check that it is still valid, join the session, book.
func (a *API) bookPending(req *ReserveRequest, sel pending.Selection) (Reservation, error) {
	snap, state, err := a.scopes.Schedulable(sel.Scope)
	if err != nil {
		return Reservation{}, err
	}
	if snap.BlockSize != sel.BlockSize || snap.Eagle != sel.Eagle { // its hashes are of another block size (decision D17)
		return Reservation{}, errNotPending(req)
	}
	e, ok := snap.Entry(sel.Rank)
	if !ok {
		return Reservation{}, contract.ScopeErrorf(contract.NotFound, sel.Scope, "schedulable worker %d (dp_rank %d) not found", sel.Rank.Worker, sel.Rank.DP)
	}
	if exists := a.idempotency.conflict(req.ID, req.Scope); exists != nil { // before the session is changed
		return Reservation{}, errIDExists(exists.Error(), req.IfExists, exists)
	}
	release, err := a.claimID(req)
	if err != nil {
		return Reservation{}, err
	}
	defer release()
	hold, err := a.sessions.join(affinity.Key{Scope: sel.Scope, Session: sel.Session}, sel.Rank, snap)
	if err != nil {
		return Reservation{}, err
	}
	p := placement{scope: state, snapshot: snap, entry: e, local: sel.Local, prefill: sel.Prefill}
	p.size = selector.Prompt{BlockSize: sel.BlockSize, Tokens: sel.Tokens, Blocks: len(sel.Sequence)}
	p.Request = reservations.Request{
		Hashes: sel.Sequence, TrackPrefill: sel.TrackPrefill, ExpectedOutput: sel.ExpectedOutput,
	}
	p.record = &idempotencyRecord{hold: hold, prompt: promptIdentity{sequence: sel.Sequence, tokens: sel.Tokens}}
	return a.book(req, &p)
}
