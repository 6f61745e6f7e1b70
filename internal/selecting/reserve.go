package selecting

import (
	"errors"
	"slices"
	"sync"

	"github.com/select-service/select-service/internal/affinity"
	"github.com/select-service/select-service/internal/approximate"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/pending"
	"github.com/select-service/select-service/internal/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// Reserve books a prompt on a rank that the caller chose, or a pending selection. The load
// exists in any case, so the call never waits and is never refused for load.
func (a *API) Reserve(req *ReserveRequest) (Reservation, error) {
	reserve := a.reserve
	if req.Pending {
		reserve = a.reservePending
	} else {
		a.pending.store.Drop(req.Scope, req.ID)
	}
	r, err := reserve(req)
	for n := 1; n < maxAttempts && errors.Is(err, scopes.ErrStale); n++ {
		r, err = reserve(req)
	}
	return r, err
}

// reserve makes a reservation on a rank that the caller chose, step by step: replay,
// read, find the rank, book. It ends with the first step that fails. Reserve runs it
// again on scopes.ErrStale.
func (a *API) reserve(req *ReserveRequest) (Reservation, error) {
	q := newQuery()
	defer q.recycle()
	// A retry gets the first reservation; an id of another request is a conflict.
	if r, replayed, err := a.replayReservation(req, q); replayed || err != nil {
		return r, err
	}
	// Read the request. Errors: not ready, invalid.
	var p placement
	if err := a.readPlacement(req, q, &p); err != nil {
		return Reservation{}, err
	}
	// Find the rank. Errors: worker or rank unknown, id in use.
	var err error
	if p.entry, err = a.findRank(req, p.snapshot); err != nil {
		return Reservation{}, err
	}
	// Book it. Errors: id in use, rank gone.
	release, err := a.claimID(req)
	if err != nil {
		return Reservation{}, err
	}
	defer release()
	p.Hashes = slices.Clone(q.sequence)
	p.record = &idempotencyRecord{prompt: q.identify(&req.Prompt, p.Hashes)}
	return a.book(req, &p)
}

// readPlacement reads the prompt into q, and fills in all of p but the rank, the hashes and the
// record.
func (a *API) readPlacement(req *ReserveRequest, q *query, p *placement) (err error) {
	if p.snapshot, p.scope, err = a.scopes.Schedulable(req.Scope); err != nil {
		return err
	}
	weights, err := a.config.Weights.With(req.Override)
	if err != nil {
		return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	if err := q.readReserve(&req.Prompt, p.snapshot); err != nil {
		return err
	}
	req.Prompt.noteKeys(p.scope.Space)
	p.local, p.size, p.ExpectedOutput = q.local, q.size, req.ExpectedOutputTokens
	p.prefill, p.TrackPrefill, err = req.prefill(q.size.Tokens, weights.TrackPrefill)
	return err
}

// replayReservation answers a request that is a retry of an earlier one; replayed reports
// whether it is. It is an error if the id is another request's. The prompt is read into scratch.
func (a *API) replayReservation(req *ReserveRequest, scratch *query) (r Reservation, replayed bool, err error) {
	if req.IfExists != ReturnFirst {
		return Reservation{}, false, nil
	}
	q := idRequest{id: req.ID, scope: req.Scope}
	if !req.Pending {
		q.rank = &req.Rank
		q.prompt = func(snap *catalog.Snapshot) (promptIdentity, error) {
			err := scratch.readReserve(&req.Prompt, snap)
			return scratch.identify(&req.Prompt, scratch.sequence), err
		}
	}
	first, err := a.idempotency.findExisting(&q)
	if err != nil || first == nil {
		return Reservation{}, false, asConflict(err, error.Error)
	}
	return Reservation{
		ID: req.ID, Scope: first.Scope, Rank: first.Rank, Endpoint: first.endpoint, Lease: first.Lease, Repeated: true,
	}, true, nil
}

// claimID claims the request's id as selection.claimID does, until release is called. It fails
// if another request has the id.
func (a *API) claimID(req *ReserveRequest) (release func(), err error) {
	if !req.Detailed || req.IfExists != Refuse {
		return func() {}, nil
	}
	if !a.idempotency.inFlight.claim(req.ID, false) {
		return nil, errIDInFlight(req.ID)
	}
	return func() { a.idempotency.inFlight.release(req.ID) }, nil
}

// prefill returns the prefill tokens to book for a prompt of the given length, and whether
// they count as load. tracked is the setting of the configuration or of the request's
// override. If the request has effective_prefill_tokens they count (decision D3), unless its
// TrackPrefill says otherwise.
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

// findRank returns the rank that a request names. If several things are wrong, the order of
// errors is Dynamo's: an unknown worker and hashes that cannot be indexed come before an id
// that exists, and that before an unknown rank.
func (a *API) findRank(req *ReserveRequest, snap *catalog.Snapshot) (catalog.Entry, error) {
	e, ok := snap.Entry(req.Rank)
	if !ok && len(snap.RanksOf(req.Rank.Worker)) == 0 {
		return e, errUnknownRank(snap, req.Rank)
	}
	if a.config.Approximate && req.Prompt.HasBlockHashes {
		if err := req.Prompt.check(); err != nil {
			return e, err
		}
	}
	if ok {
		return e, nil
	}
	if exists := a.idempotency.conflict(req.ID, req.Scope); exists != nil {
		return e, errIDExists(exists.Error(), Refuse, exists)
	}
	release, err := a.claimID(req)
	if err != nil {
		return e, err
	}
	release()
	return e, errUnknownRank(snap, req.Rank)
}

// errUnknownRank distinguishes an unknown worker from an unknown rank of a known one
// (decision D4).
func errUnknownRank(snap *catalog.Snapshot, r catalog.Rank) *contract.Error {
	if len(snap.RanksOf(r.Worker)) == 0 {
		return contract.ScopeErrorf(contract.NotFound, snap.Scope, "schedulable worker %d not found", r.Worker)
	}
	return contract.Errorf(contract.NotFound, "Worker %s not found", r)
}

// placement is a reservation to be made on a rank that was chosen before. The ledger keeps its
// Hashes.
type placement struct {
	reservations.Request
	scope    *scopes.State
	snapshot *catalog.Snapshot
	entry    catalog.Entry
	local    []uint64 // local hashes, borrowed; nil: unknown
	size     selector.Prompt
	prefill  uint64 // tokens
	record   *idempotencyRecord
}

// book makes a reservation under the request's id, and completes its record.
func (a *API) book(req *ReserveRequest, p *placement) (Reservation, error) {
	e := p.entry
	r := Reservation{ID: req.ID, Scope: req.Scope, Rank: e.Rank, Endpoint: e.Worker.Address(), Lease: req.Lease}
	p.record.lease = p.scope.NewLease()
	p.record.answers, p.record.id, p.record.endpoint = &a.idempotency.answers, req.ID, r.Endpoint
	p.ID, p.Lease, p.CallerState = req.ID, req.Lease, p.record
	p.Prompt = p.size.Tokens
	_, err := a.ledger.Book(req.Scope, p.Request, func(*reservations.View) (reservations.Placement, error) {
		if p.scope.Gone() { // see selection.choose
			return reservations.Placement{}, scopes.ErrStale
		}
		return reservations.Placement{Slot: e.Slot, Rank: e.Rank, PrefillTokens: p.prefill}, nil
	})
	if err != nil {
		p.record.hold.Release()
	}
	var exists *reservations.ExistsError
	limit, full := errors.AsType[*reservations.LimitError](err)
	switch {
	case errors.As(err, &exists):
		return Reservation{}, errIDExists(exists.Error(), req.IfExists, exists)
	case full:
		return Reservation{}, contract.LedgerLimit(limit)
	case errors.Is(err, scopes.ErrStale), errors.Is(err, reservations.ErrUnknownRank):
		left := errUnknownRank(p.snapshot, e.Rank)
		left.Err = scopes.ErrStale
		return Reservation{}, left
	case err != nil:
		return Reservation{}, err
	}
	a.booked(p.record, p.scope, e, p.local, p.size)
	return r, nil
}

// booked runs after a reservation has been booked: it binds the session, caches the answer,
// wakes retries and predicts blocks. The record may be nil.
func (a *API) booked(r *idempotencyRecord, scope *scopes.State, e catalog.Entry, local []uint64, size selector.Prompt) {
	var lease *approximate.Lease
	if r != nil {
		lease = r.lease
		r.hold.Bind(e.Rank)
		a.idempotency.answers.add(r)
		a.idempotency.waiters.wake(r.id)
	}
	private := size.Blocks - len(local)
	if size.Partial() > 0 {
		private++
	}
	scope.Booked(e, local, private, lease)
}

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
