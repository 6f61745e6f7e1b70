package selection

import (
	"context"
	"fmt"
	"sync"

	"github.com/select-service/select-service/internal/selection/affinity"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/pending"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// pendingSelections has the selections that can be booked by their id alone.
type pendingSelections struct {
	store *pending.Store
	// mu is held while a selection is booked, so that it is booked once.
	mu sync.Mutex
}

// save keeps the selection, if the request asks for it.
func (p *pendingSelections) save(a *attempt) {
	req, snap := &a.request, a.scope.snapshot
	if a.reserve || !req.Pending || req.SelectionID == nil {
		return
	}
	local := a.prompt.local
	if !a.api.config.Approximate { // only predictions need them
		local = nil
	}
	s := pending.Selection{
		Scope: req.Scope, Rank: a.result.Rank, BlockSize: snap.BlockSize, Eagle: snap.Eagle,
		Prompt: a.api.ledger.Pin(req.Scope, local, a.prompt.sequence),
		Tokens: a.prompt.size.Tokens, Prefill: a.result.EffectivePrefillTokens,
		TrackPrefill: a.weights.TrackPrefill, ExpectedOutput: req.ExpectedOutputTokens,
	}
	if a.session.name() != "" {
		s.Session = a.session.key().Session
	}
	if last := a.session.last(); last != nil {
		s.Last = last.own.Session
	}
	p.store.Put(*req.SelectionID, s)
}

// pendingBooking is one call of ReservePending.
type pendingBooking struct {
	api     *API
	request *PendingRequest
	kept    *pending.Kept   // nil: not found
	claim   *affinity.Claim // of the selection's session; nil: not claimed, no session, or the reservation has it
	begun   bool            // beginID has marked the id as in flight
	waiting int64           // bytes reserved from Config.Waiting
}

// ReservePending books the selection that Select has kept under an id. The first success uses
// it up. A failure leaves it for another try, unless its session is bound to another rank or its
// scope's block size has changed: then no try can succeed. The load exists in any case, so the
// call is never refused for load; it waits only while another request is being served that
// decides where the selection's session is bound.
func (a *API) ReservePending(ctx context.Context, req *PendingRequest) (r Reservation, err error) {
	req.Scope = a.catalog.Named(req.Scope)
	b := pendingBooking{api: a, request: req}
	defer b.end() // also after a panic: other requests may wait for the session
	err = untilFresh(func() (err error) {
		r, err = b.serve(ctx)
		return err
	})
	return r, err
}

// serve books the selection step by step: find, repeat, check, claim the session, book. It ends
// with the first step that fails. ReservePending runs it again on scopes.ErrStale.
func (b *pendingBooking) serve(ctx context.Context) (Reservation, error) {
	a, req := b.api, b.request
	// If another request uses the selection up between this and the look for its reservation,
	// that finds the reservation.
	if b.kept == nil {
		b.kept = a.pending.store.Get(req.Scope, req.ID)
	}
	// A retry gets the first reservation; an id of another request is a conflict.
	if req.IfExists == ReturnFirst {
		if r, repeated, err := a.repeatReservation(&idRequest{id: req.ID, scope: req.Scope}); repeated || err != nil {
			return r, err
		}
	}
	// Check the selection. Errors: none, not ready, rank gone, id in use.
	if b.kept == nil || a.pending.store.Spent(b.kept) {
		return Reservation{}, errNotPending(req)
	}
	p, err := b.reservation()
	if err != nil {
		return Reservation{}, err
	}
	if err := b.beginID(); err != nil {
		return Reservation{}, err
	}
	// Claim the session, before the load is booked: the request that decides may wait for the
	// same rank. Errors: bound elsewhere, client gone, no memory to wait.
	if err := b.claimSession(ctx, p.snapshot); err != nil {
		return Reservation{}, err
	}
	// Book it. Errors: used up meanwhile, id in use, rank gone.
	return b.book(p)
}

func errNotPending(req *PendingRequest) *contract.Error {
	none := contract.ScopeErrorf(contract.NotFound, req.Scope, "no pending selection %s", req.ID)
	none.Tail = " (expired, already used, or never selected)"
	return none
}

// reservation returns the reservation of the selection, without its hashes and its record, if its
// rank can still be booked.
func (b *pendingBooking) reservation() (*newReservation, error) {
	sel := &b.kept.Selection
	snap, state, err := b.api.scopes.Bookable(sel.Scope)
	if err != nil {
		return nil, err
	}
	if snap.BlockSize != sel.BlockSize || snap.Eagle != sel.Eagle { // its hashes are of another block size (decision D17)
		b.api.pending.store.Spend(b.kept)
		return nil, errNotPending(b.request)
	}
	e, ok := snap.Bookable(sel.Rank)
	if !ok {
		return nil, contract.ScopeErrorf(contract.NotFound, sel.Scope, "schedulable worker %d (dp_rank %d) not found", sel.Rank.Worker, sel.Rank.DP)
	}
	return &newReservation{
		scope: state, snapshot: snap, entry: e, prefill: sel.Prefill,
		size: selector.Prompt{BlockSize: sel.BlockSize, Tokens: sel.Tokens, Blocks: sel.Prompt.Blocks()},
		Request: reservations.Request{
			ID: b.request.ID, Lease: b.request.Lease,
			TrackPrefill: sel.TrackPrefill, ExpectedOutput: sel.ExpectedOutput,
		},
	}, nil
}

// beginID marks the request's id as in flight until end, as retry.begin does, and fails if the id
// is in use.
func (b *pendingBooking) beginID() error {
	req, ids := b.request, &b.api.idempotency
	if exists := ids.conflict(req.ID, req.Scope); exists != nil { // before the session is changed
		return errIDExists(exists.Error(), req.IfExists, exists)
	}
	if req.Dialect == contract.V16 && !b.begun {
		if b.begun = ids.inFlight.begin(req.ID, req.IfExists == ReturnFirst); !b.begun {
			return errIDInFlight(req.ID)
		}
	}
	return nil
}

// claimSession claims the selection's session, and may wait for it as an attempt does. A
// binding to another rank ends; if that could be used, the request fails.
func (b *pendingBooking) claimSession(ctx context.Context, snap *catalog.Snapshot) (err error) {
	s, session, chosen := &b.api.sessions, b.kept.Session, b.kept.Rank
	if s.Table == nil || session == "" {
		return nil
	}
	if b.claim == nil {
		var wait *affinity.Wait
		if b.claim, wait = s.Claim(affinity.Key{Scope: snap.Scope, Session: session}); wait != nil {
			if err := b.prepareWait(); err != nil {
				wait.Leave()
				return err
			}
			b.claim, err = s.await(ctx, wait)
			return err
		}
	}
	bound, ok := b.claim.Rank()
	if !ok || bound == chosen {
		return nil
	}
	b.claim.Drop()
	if !s.isUnschedulable(bound, snap) {
		b.api.pending.store.Spend(b.kept)
		return errSessionBound(session, bound, chosen)
	}
	b.claim.Release() // another request may decide already: claim it again
	b.claim = nil
	return errSessionMoved
}

// prepareWait reserves the memory of the request while it waits for its session, and releases
// its text. The error says that the account of waiting requests is full.
func (b *pendingBooking) prepareWait() error {
	if b.waiting == 0 {
		n := int64(waitOverhead + b.kept.Bytes())
		if err := b.api.reserveWaiting(n, ""); err != nil {
			return err
		}
		b.waiting = n
	}
	if text := b.request.Text; text != nil {
		text.ReleaseText()
	}
	return nil
}

// book books the selection, unless another request has.
func (b *pendingBooking) book(p *newReservation) (Reservation, error) {
	a, sel := b.api, &b.kept.Selection
	a.pending.mu.Lock()
	defer a.pending.mu.Unlock()
	if a.pending.store.Spent(b.kept) {
		used := errNotPending(b.request)
		used.Err = fmt.Errorf("used up: %w", scopes.ErrStale)
		return Reservation{}, used
	}
	p.local, p.Hashes = sel.Prompt.AppendTo(nil, nil)
	if b.claim != nil {
		b.claim.Turn = affinity.Turn{Tokens: sel.Tokens}
	}
	p.record = &idempotencyRecord{claim: b.claim, prompt: identityOf(p.Hashes, sel.Tokens)}
	if sel.Last != "" {
		p.record.last = &last{&a.sessions, affinity.Key{Scope: p.snapshot.Scope, Session: sel.Last}}
	}
	r, err := a.book(p, b.request.IfExists)
	if err == nil {
		b.claim = nil // the reservation has it
		a.pending.store.Spend(b.kept)
	}
	return r, err
}

// end undoes claimSession, beginID and prepareWait, and releases the selection.
func (b *pendingBooking) end() {
	b.claim.Release()
	if b.begun {
		b.api.idempotency.inFlight.end(b.request.ID)
	}
	b.api.pending.store.Release(b.kept)
	b.api.config.Waiting.Release(b.waiting)
}
