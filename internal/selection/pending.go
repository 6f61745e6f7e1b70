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
func (p *pendingSelections) save(c *selection) {
	req := c.request
	if c.reserve || !req.Pending || req.SelectionID == nil {
		return
	}
	local := c.local
	if !c.api.config.Approximate { // only predictions need them
		local = nil
	}
	s := pending.Selection{
		Scope: req.Scope, Rank: c.result.Rank, BlockSize: c.snapshot.BlockSize, Eagle: c.snapshot.Eagle,
		Prompt: c.api.ledger.Pin(req.Scope, local, c.sequence),
		Tokens: c.size.Tokens, Prefill: c.result.EffectivePrefillTokens,
		TrackPrefill: c.weights.TrackPrefill, ExpectedOutput: req.ExpectedOutputTokens,
	}
	if req.Pinned == nil && req.Target == nil {
		s.Session = req.Session
	}
	p.store.Put(*req.SelectionID, s)
}

// pendingBooking is one call of ReservePending.
type pendingBooking struct {
	api     *API
	request *PendingRequest
	kept    *pending.Kept  // nil: not found
	hold    *affinity.Hold // of the selection's session; nil: not acquired, or no session
	claimed bool           // claimID has claimed the id
	waiting int64          // bytes reserved from Config.Waiting
}

// ReservePending books the selection that Select has kept under an id. The first success uses
// it up. A failure leaves it for another try, unless its session is bound to another rank or its
// scope's block size has changed: then no try can succeed. The load exists in any case, so the
// call is never refused for load; it waits only while another request is being served that
// decides where the selection's session is bound.
func (a *API) ReservePending(ctx context.Context, req *PendingRequest) (r Reservation, err error) {
	b := pendingBooking{api: a, request: req}
	booked := false
	defer func() {
		if !booked { // also after a panic: other requests may wait for the session
			b.hold.Release()
		}
		b.release()
	}()
	err = untilFresh(func() (err error) {
		r, err = b.serve(ctx)
		return err
	})
	booked = err == nil && !r.Repeated // from now on the reservation owns the hold
	return r, err
}

// serve books the selection step by step: find, replay, check, join the session, book. It ends
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
		if r, replayed, err := a.replayReservation(&idRequest{id: req.ID, scope: req.Scope}); replayed || err != nil {
			return r, err
		}
	}
	// Check the selection. Errors: none, not ready, rank gone, id in use.
	if b.kept == nil || a.pending.store.Spent(b.kept) {
		return Reservation{}, errNotPending(req)
	}
	p, err := b.place()
	if err != nil {
		return Reservation{}, err
	}
	if err := b.claimID(); err != nil {
		return Reservation{}, err
	}
	// Join the session, before the load is booked: the request that decides may wait for the
	// same rank. Errors: bound elsewhere, client gone, no memory to wait.
	if err := b.joinSession(ctx, p.snapshot); err != nil {
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

// place returns the placement of the selection, without its hashes and its record, if its rank can
// still be booked.
func (b *pendingBooking) place() (*placement, error) {
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
	return &placement{
		scope: state, snapshot: snap, entry: e, prefill: sel.Prefill,
		size: selector.Prompt{BlockSize: sel.BlockSize, Tokens: sel.Tokens, Blocks: sel.Prompt.Blocks()},
		Request: reservations.Request{
			ID: b.request.ID, Lease: b.request.Lease,
			TrackPrefill: sel.TrackPrefill, ExpectedOutput: sel.ExpectedOutput,
		},
	}, nil
}

// claimID claims the request's id until release, as selection.claimID does, and fails if the id
// is in use.
func (b *pendingBooking) claimID() error {
	req, ids := b.request, &b.api.idempotency
	if exists := ids.conflict(req.ID, req.Scope); exists != nil { // before the session is changed
		return errIDExists(exists.Error(), req.IfExists, exists)
	}
	if req.Detailed && !b.claimed {
		if b.claimed = ids.inFlight.claim(req.ID, req.IfExists == ReturnFirst); !b.claimed {
			return errIDInFlight(req.ID)
		}
	}
	return nil
}

// joinSession acquires the selection's session, and may wait for it as acquireSession does. A
// binding to another rank ends; if that could be used, the request fails.
func (b *pendingBooking) joinSession(ctx context.Context, snap *catalog.Snapshot) (err error) {
	s, session, chosen := &b.api.sessions, b.kept.Session, b.kept.Rank
	if s.Table == nil || session == "" {
		return nil
	}
	if b.hold == nil {
		b.hold, err = s.acquire(ctx, affinity.Key{Scope: snap.Scope, Session: session}, b.prepareWait)
		if err != nil {
			return err
		}
	}
	bound, ok := b.hold.Rank()
	if !ok || bound == chosen {
		return nil
	}
	b.hold.Drop()
	if !s.isUnschedulable(bound, snap) {
		b.api.pending.store.Spend(b.kept)
		return errSessionBound(session, bound, chosen)
	}
	b.hold.Release() // another request may decide already: join again
	b.hold = nil
	return errSessionMoved
}

// prepareWait reserves the memory of the request while it waits for its session, and releases
// its text. The error says that the account of waiting requests is full.
func (b *pendingBooking) prepareWait() error {
	if b.waiting == 0 {
		n := int64(keptOverhead + b.kept.Bytes())
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
func (b *pendingBooking) book(p *placement) (Reservation, error) {
	a, sel := b.api, &b.kept.Selection
	a.pending.mu.Lock()
	defer a.pending.mu.Unlock()
	if a.pending.store.Spent(b.kept) {
		used := errNotPending(b.request)
		used.Err = fmt.Errorf("used up: %w", scopes.ErrStale)
		return Reservation{}, used
	}
	p.local, p.Hashes = sel.Prompt.AppendTo(nil, nil)
	p.record = &idempotencyRecord{hold: b.hold, prompt: identityOf(p.Hashes, sel.Tokens)}
	r, err := a.book(p, b.request.IfExists)
	if err == nil {
		a.pending.store.Spend(b.kept)
	}
	return r, err
}

// release undoes claimID and prepareWait, and releases the selection.
func (b *pendingBooking) release() {
	if b.claimed {
		b.api.idempotency.inFlight.release(b.request.ID)
	}
	b.api.pending.store.Release(b.kept)
	b.api.config.Waiting.Release(b.waiting)
}
