package selection

import (
	"errors"
	"slices"

	"github.com/select-service/select-service/internal/selection/approximate"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// Reserve books a prompt on a rank that the caller chose. The load exists in any case, so the
// call never waits and is never refused for load.
func (a *API) Reserve(req *ReserveRequest) (r Reservation, err error) {
	req.Scope = a.catalog.Named(req.Scope)
	a.pending.store.Drop(req.Scope, req.ID)
	err = untilFresh(func() (err error) {
		r, err = a.reserve(req)
		return err
	})
	return r, err
}

// reserve makes a reservation on a rank that the caller chose, step by step: repeat,
// read, find the rank, book. It ends with the first step that fails. Reserve runs it
// again on scopes.ErrStale.
func (a *API) reserve(req *ReserveRequest) (Reservation, error) {
	q := newPrompt()
	defer q.recycle()
	// A retry gets the first reservation; an id of another request is a conflict.
	if req.IfExists == ReturnFirst {
		r, repeated, err := a.repeatReservation(&idRequest{
			id: req.ID, scope: req.Scope, rank: &req.Rank,
			prompt: func(snap *catalog.Snapshot) (promptIdentity, []uint64, error) {
				err := q.readReserve(&req.Prompt, snap)
				return q.identity(&req.Prompt), q.sequence, err
			},
		})
		if repeated || err != nil {
			return r, err
		}
	}
	// Read the request. Errors: not ready, invalid.
	var p newReservation
	if err := a.readReservation(req, q, &p); err != nil {
		return Reservation{}, err
	}
	// Find the rank. Errors: worker or rank unknown, id in use.
	var err error
	if p.entry, err = a.findRank(req, p.snapshot); err != nil {
		return Reservation{}, err
	}
	// Book it. Errors: id in use, rank gone.
	end, err := a.beginID(req)
	if err != nil {
		return Reservation{}, err
	}
	defer end()
	p.ID, p.Lease, p.Hashes = req.ID, req.Lease, slices.Clone(q.sequence)
	p.record = &idempotencyRecord{prompt: q.identity(&req.Prompt)}
	return a.book(&p, req.IfExists)
}

// Rebook books a request again, because it went to another rank than the chosen one, or because
// its rank has left and come back. It returns the rank's registration. The error has
// ErrStillRegistered if the rank has not left since the request was booked there.
func (a *API) Rebook(req *Rebooking) (registration uint64, err error) {
	err = untilFresh(func() (err error) {
		registration, err = a.rebook(req)
		return err
	})
	return registration, err
}

// ErrStillRegistered refuses to book again on a rank that has not left in the meantime: the
// reservation has ended otherwise than with its rank.
var ErrStillRegistered = errors.New("the rank is still registered as it was")

func (a *API) rebook(req *Rebooking) (registration uint64, err error) {
	sel := req.Selection
	snap, state, err := a.scopes.Bookable(sel.Scope)
	if err != nil {
		return 0, err
	}
	e, ok := snap.Bookable(req.Rank)
	if !ok {
		return 0, errUnknownRank(snap, req.Rank)
	}
	hashes := sel.SequenceHashes
	if snap.BlockSize != sel.BlockSize {
		hashes = nil // of blocks of another size
	}
	p := newReservation{scope: state, snapshot: snap, entry: e, prefill: sel.EffectivePrefillTokens, after: req.After}
	p.size = selector.Prompt{BlockSize: snap.BlockSize, Tokens: sel.ISLTokens, Blocks: len(hashes)}
	p.Request = reservations.Request{
		ID: req.ID, Pair: reservations.IsSideID(req.ID), Lease: req.Lease, Hashes: hashes,
		TrackPrefill: sel.TrackPrefill && !req.PrefillDone, ExpectedOutput: req.ExpectedOutputTokens,
	}
	p.record = &idempotencyRecord{prompt: identityOf(hashes, sel.ISLTokens)}
	former := a.recordOf(req.Former)
	if former != nil {
		p.record.promise.Store(former.promise.Swap(nil))
	}
	if _, err = a.book(&p, Refuse); err != nil && former != nil {
		former.promise.Store(p.record.promise.Swap(nil))
	}
	return p.registration, err
}

// readReservation reads the prompt into q, and fills in all of p but the rank, the hashes, the
// record and what the request names.
func (a *API) readReservation(req *ReserveRequest, q *prompt, p *newReservation) (err error) {
	if p.snapshot, p.scope, err = a.scopes.Bookable(req.Scope); err != nil {
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

// repeatReservation answers a request that is a retry of an earlier one; repeated reports
// whether it is. It is an error if the id is another request's.
func (a *API) repeatReservation(q *idRequest) (r Reservation, repeated bool, err error) {
	first, err := a.idempotency.findExisting(q)
	if err != nil || first == nil {
		return Reservation{}, false, asConflict(err, error.Error)
	}
	return Reservation{
		ID: q.id, Scope: first.Scope, Rank: first.Rank, Endpoint: first.endpoint, Lease: first.Lease, Repeated: true,
	}, true, nil
}

// beginID marks the request's id as in flight, as retry.begin does, until end is called. It fails
// if another request has the id.
func (a *API) beginID(req *ReserveRequest) (end func(), err error) {
	if req.Dialect != contract.V16 || req.IfExists != Refuse {
		return func() {}, nil
	}
	if !a.idempotency.inFlight.begin(req.ID, false) {
		return nil, errIDInFlight(req.ID)
	}
	return func() { a.idempotency.inFlight.end(req.ID) }, nil
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
	e, ok := snap.Bookable(req.Rank)
	if !ok && !snap.TakesBookings(req.Rank.Worker) {
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
	end, err := a.beginID(req)
	if err != nil {
		return e, err
	}
	end()
	return e, errUnknownRank(snap, req.Rank)
}

// errUnknownRank distinguishes an unknown worker from an unknown rank of a known one
// (decision D4).
func errUnknownRank(snap *catalog.Snapshot, r catalog.Rank) *contract.Error {
	if !snap.TakesBookings(r.Worker) {
		return contract.ScopeErrorf(contract.NotFound, snap.Scope, "schedulable worker %d not found", r.Worker)
	}
	return contract.Errorf(contract.NotFound, "Worker %s not found", r)
}

// newReservation is a reservation to be made on a rank that was chosen before. The ledger keeps its
// Hashes.
type newReservation struct {
	reservations.Request
	scope    *scopes.State
	snapshot *catalog.Snapshot
	entry    catalog.Entry
	local    []uint64 // local hashes, borrowed; nil: unknown
	size     selector.Prompt
	prefill  uint64 // tokens
	after    uint64 // a registration under which it must not be booked; 0: none
	// registration is the rank's when it was booked.
	registration uint64
	record       *idempotencyRecord
}

// book makes a reservation, and completes its record. wanted says how to treat an id that exists.
func (a *API) book(p *newReservation, wanted IfExists) (Reservation, error) {
	e := p.entry
	r := Reservation{ID: p.ID, Scope: p.snapshot.Scope, Rank: e.Rank, Endpoint: e.Worker.Address(), Lease: p.Lease}
	p.record.lease = p.scope.NewLease()
	p.record.answers, p.record.id, p.record.endpoint = &a.idempotency.answers, p.ID, r.Endpoint
	p.CallerState = p.record
	p.Prompt = p.size.Tokens
	_, err := a.ledger.Book(r.Scope, p.Request, func(v *reservations.View) (reservations.Placement, error) {
		if p.scope.Gone() { // see attempt.choose
			return reservations.Placement{}, scopes.ErrStale
		}
		if p.registration = v.Registration(e.Slot); p.after != 0 && p.registration == p.after {
			return reservations.Placement{}, ErrStillRegistered
		}
		return reservations.Placement{Slot: e.Slot, Rank: e.Rank, PrefillTokens: p.prefill}, nil
	})
	var exists *reservations.ExistsError
	limit, full := errors.AsType[*reservations.LimitError](err)
	switch {
	case errors.As(err, &exists):
		return Reservation{}, errIDExists(exists.Error(), wanted, exists)
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
		r.claim.Bind(e.Rank)
		a.idempotency.answers.add(r)
		a.idempotency.waiters.wake(r.id)
	}
	scope.Booked(e, local, privateBlocks(size, local), lease)
}

// privateBlocks returns how many blocks of a prompt no other one can share: those whose local hashes
// are unknown, and an incomplete last one.
func privateBlocks(size selector.Prompt, local []uint64) int {
	private := size.Blocks - len(local)
	if size.Partial() > 0 {
		private++
	}
	return private
}
