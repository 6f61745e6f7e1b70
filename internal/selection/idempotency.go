package selection

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/internal/selection/affinity"
	"github.com/select-service/select-service/internal/selection/approximate"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// A caller that got no answer can repeat its request with the same id (decision E4). If the
// request is the same, it gets the first answer instead of a conflict.

// idempotency has the state by which requests with the same id find each other.
type idempotency struct {
	ledger   *reservations.Ledger
	catalog  *catalog.Catalog
	answers  answerCache
	waiters  retryWaiters
	inFlight inFlightIDs
}

// promptIdentity distinguishes the prompt of a reservation from others. Sequence hashes cover
// everything that a complete block's content depends on; rest is a digest of what is in no
// complete block. It is unknown (hasRest false) for a prompt that came as hashes.
//
// Of the hashes it has a digest, whose seed no caller knows: a record that lives as long as its
// reservation must not keep a long prompt, which the ledger has once for all who share it.
type promptIdentity struct {
	blocks   int
	sequence uint64 // digest of the sequence hashes
	tokens   uint64
	rest     uint64
	hasRest  bool
}

// digestSeed seeds the digests of promptIdentity. Each process has its own.
var digestSeed = maphash.MakeSeed()

// identityOf returns the identity of a prompt of which only hashes and length are known.
func identityOf(sequence []uint64, tokens uint64) promptIdentity {
	var h maphash.Hash
	h.SetSeed(digestSeed)
	var part [512]byte
	for some := range slices.Chunk(sequence, len(part)/8) {
		for i, hash := range some {
			binary.LittleEndian.PutUint64(part[8*i:], hash)
		}
		_, _ = h.Write(part[:8*len(some)])
	}
	return promptIdentity{blocks: len(sequence), sequence: h.Sum64(), tokens: tokens}
}

// identity returns the identity of a prompt that was read.
func (p *prompt) identity(of *Prompt) promptIdentity {
	i := identityOf(p.sequence, p.size.Tokens)
	if p.pinned != nil {
		i.rest, i.hasRest = p.rest, p.tokens
	} else if _, _, i.hasRest = of.tokens(); i.hasRest {
		i.rest = digestRest(of, len(p.sequence), int(p.size.BlockSize))
	}
	return i
}

// digestRest digests what the hashes of the complete blocks do not cover: the tokens and objects
// behind them and, if there is no complete block, the names that are part of every block hash.
func digestRest(p *Prompt, blocks, blockSize int) uint64 {
	tokens, mm, _ := p.tokens()
	var h maphash.Hash
	h.SetSeed(digestSeed)
	var number [8]byte
	add := func(n uint64) {
		binary.LittleEndian.PutUint64(number[:], n)
		_, _ = h.Write(number[:])
	}
	text := func(s string) {
		add(uint64(len(s)))
		_, _ = h.WriteString(s)
	}
	if blocks == 0 {
		text(p.LoRA)
		text(p.CacheSalt)
	}
	for _, t := range tokens[min(blocks*blockSize, len(tokens)):] {
		binary.LittleEndian.PutUint32(number[:4], t)
		_, _ = h.Write(number[:4])
	}
	for _, objects := range mm[min(blocks, len(mm)):] {
		add(uint64(len(objects)))
		for _, object := range objects {
			add(object)
		}
	}
	return h.Sum64()
}

// same reports whether two prompts are the same, as far as both are known.
func (i *promptIdentity) same(o *promptIdentity) bool {
	known := i.hasRest && o.hasRest
	return i.tokens == o.tokens && (!known || i.rest == o.rest) && i.blocks == o.blocks && i.sequence == o.sequence
}

// sameBlocks reports whether a prompt's hashes are those of a reservation. The ledger
// keeps each hash once.
func sameBlocks(sequence, booked []uint64) bool {
	if len(sequence) == len(booked) {
		return slices.Equal(sequence, booked)
	}
	seen := make(map[uint64]struct{}, len(booked))
	distinct := make([]uint64, 0, len(booked))
	for _, h := range sequence {
		if _, ok := seen[h]; !ok {
			seen[h] = struct{}{}
			distinct = append(distinct, h)
		}
	}
	return slices.Equal(distinct, booked)
}

// errIDExists is the error for an id that a live reservation has. If its caller wants the first
// answer, the error makes the request run again, which then finds the reservation.
func errIDExists(text string, wanted IfExists, exists *reservations.ExistsError) *contract.Error {
	e := &contract.Error{Kind: contract.Conflict, Text: text, TakenID: &exists.ID, Err: exists}
	if wanted == ReturnFirst {
		e.Err = fmt.Errorf("%w: %w", scopes.ErrStale, exists)
	}
	return e
}

// errIDInFlight is the error for an id that another request is booking.
func errIDInFlight(id string) *contract.Error {
	return &contract.Error{Kind: contract.Conflict, Text: "Request " + id + " is being booked", TakenID: &id}
}

// errBookedMeanwhile is scopes.ErrStale for a request whose id was booked while it waited.
var errBookedMeanwhile = &contract.Error{Kind: contract.Conflict, Text: "the id was booked meanwhile", Err: scopes.ErrStale}

// bookingFailed returns dynamo-kv-router 1.3.1's text for an error that stops a selection.
func bookingFailed(err error) string { return fmt.Sprintf("failed to book scheduler state: %v", err) }

// idRequest describes the reservation that a request may repeat.
type idRequest struct {
	id     string
	scope  catalog.Scope
	pair   bool             // the request books a pair, whose id it is
	rank   *catalog.Rank    // nil: the request names none
	filter *selector.Filter // nil: any worker will do
	// prompt reads the request's prompt in the block size of the scope's workers. It is nil if
	// the request books a pending selection: such a request has no prompt, only the id. The
	// sequence hashes are borrowed.
	prompt func(*catalog.Snapshot) (identity promptIdentity, sequence []uint64, err error)
}

// existingReservation is a live reservation that a request repeats.
type existingReservation struct {
	reservations.LiveReservation
	endpoint  string
	selection *Selection // nil: it was not booked by Select, or on another replica
	pair      *Pair      // the answer, of a pair that was booked by this process
}

// findExisting returns the live reservation that a request repeats, nil if there is none. The
// request is a sign of life from its caller, so the lease restarts. Whether a worker could
// serve the request now does not matter. The error is an *reservations.ExistsError if the id
// belongs to another request, an error of the prompt, or has scopes.ErrStale.
func (i *idempotency) findExisting(q *idRequest) (*existingReservation, error) {
	live, ok := i.find(q.id)
	if !ok || !idConflicts(&live, q.scope) {
		return nil, nil
	}
	snap := i.catalog.Snapshot(q.scope)
	if snap == nil && live.Scope == q.scope {
		return nil, nil // the workers have just left, and the reservation with them
	}
	other := &reservations.ExistsError{ID: q.id, Rank: live.Rank}
	if live.Scope != q.scope || live.Pair != q.pair || live.onlyPrefill || q.rank != nil && *q.rank != live.Rank || q.filter != nil && !q.filter.Allows(live.Rank.Worker) {
		return nil, other
	}
	var asked promptIdentity
	var sequence []uint64
	if q.prompt != nil {
		var err error
		if asked, sequence, err = q.prompt(snap); err != nil {
			return nil, err
		}
	}
	e := &existingReservation{LiveReservation: live.LiveReservation}
	record, local := live.CallerState.(*idempotencyRecord)
	same := false
	switch {
	case live.PerScope: // booked by the slot tracker, which has no retries
	case live.Remote:
		same = q.prompt == nil || sameBlocks(sequence, live.Hashes)
		e.endpoint = endpointOf(snap, live.Rank)
	case local:
		var over <-chan struct{}
		same, over = i.answers.repeat(record, func() bool {
			if q.prompt != nil && !record.prompt.same(&asked) {
				return false
			}
			e.endpoint = record.endpoint
			switch {
			case record.pair != nil:
				e.pair = new(*record.pair)
				e.pair.Decode.SequenceHashes = live.Hashes
			case record.selected:
				e.selection = new(record.selection)
				e.selection.SequenceHashes = live.Hashes
			}
			return true
		})
		if over != nil {
			<-over
			return nil, errBookedMeanwhile
		}
	}
	if !same {
		return nil, other
	}
	if live.Lease > 0 && i.ledger.Renew(live.id) != nil {
		return nil, errBookedMeanwhile // it has just ended
	}
	if live.Lease > 0 && q.pair {
		_ = i.ledger.Renew(reservations.PrefillID(q.id)) // ErrNotFound: there is none, or none any more
	}
	return e, nil
}

// found is a live reservation that an id names: its own, or a side of the pair of that id.
type found struct {
	reservations.LiveReservation
	id          string // the reservation's own
	onlyPrefill bool   // the side that decodes has ended
}

// find returns the live reservation that an id names, of a pair the side that decodes if it lives.
func (i *idempotency) find(id string) (found, bool) {
	if live, ok := i.ledger.Find(id); ok {
		return found{LiveReservation: live, id: id}, true
	}
	sides := i.ledger.Sides(id)
	for _, side := range [...]string{sides.Decode, sides.Prefill} {
		if side == "" {
			continue
		}
		if live, ok := i.ledger.Find(side); ok {
			return found{live, side, side == sides.Prefill}, true
		}
	}
	return found{}, false
}

// asConflict gives an *reservations.ExistsError of findExisting the route's text for an id in
// use. Other errors are returned as they are.
func asConflict(err error, text func(error) string) error {
	exists, ok := errors.AsType[*reservations.ExistsError](err)
	if !ok {
		return err
	}
	return errIDExists(text(exists), Refuse, exists)
}

// idConflicts reports whether a live reservation keeps its id from being booked in the scope.
// An id of the slot tracker conflicts within its own scope only.
func idConflicts(live *found, sc catalog.Scope) bool {
	return idIsGlobal(live) || live.Scope == sc
}

// idIsGlobal reports whether a live reservation keeps its id from being booked in every scope.
// Only ids of the slot tracker are per scope (decision S4).
func idIsGlobal(live *found) bool { return !live.PerScope }

// conflict returns the error for an id that a live reservation keeps from being booked in the
// scope, nil if none does.
func (i *idempotency) conflict(id string, scope catalog.Scope) *reservations.ExistsError {
	live, ok := i.find(id)
	if !ok || !idConflicts(&live, scope) {
		return nil
	}
	return &reservations.ExistsError{ID: id, Rank: live.Rank}
}

// endpointOf returns the endpoint of a rank's worker, "" if the worker is unknown.
func endpointOf(snap *catalog.Snapshot, r catalog.Rank) string {
	e, ok := snap.KnownEntry(r)
	if !ok {
		return ""
	}
	return e.Worker.Address()
}

// idempotencyRecord belongs to a live reservation: it has the first answer, and the
// reservation's claim on a session and lease of its rank's blocks.
type idempotencyRecord struct {
	answers *answerCache
	claim   *affinity.Claim   // nil: no session
	running *affinity.Running // nil: no session that has a home
	last    *last             // nil: the session goes on
	lease   *approximate.Lease
	charge  *charge // nil: nobody pays for the engine time
	promise atomic.Pointer[promise]
	// fetching is set before the reservation can be found; nil: the engine was told of no fetch, or it was not priced.
	fetching *fetching

	// The answer and what identifies the request. Set before the reservation can be found, and
	// guarded by answers.mu from then on.
	id        string
	prompt    promptIdentity
	endpoint  string
	selection Selection
	selected  bool  // booked by Select: selection is the answer
	pair      *Pair // of a side that decodes: the answer instead
	// prefill is the record of the other side of a pair; nil: there is none. It has no answer.
	prefill *idempotencyRecord
	sent    *sent // of a side that decodes what another rank prefills; its since and ended are guarded by answers.mu

	// The fields below are guarded by answers.mu.
	state        recordState
	repeated     bool               // a retry got the answer
	older, newer *idempotencyRecord // in the cache, while state is recordCached
	cancelled    chan struct{}      // not nil: the reservation is being cancelled; closed when it has ended
}

// recordState is the state of a record. It goes from recordNew to recordCached to recordEvicted
// to recordEnded, and may skip states.
type recordState uint8

const (
	recordNew     recordState = iota // its reservation is being booked
	recordCached                     // the answer is in the cache
	recordEvicted                    // the answer was dropped, or cannot be asked for
	recordEnded                      // the reservation has ended
)

// String gives the state's name.
func (s recordState) String() string {
	return [...]string{"new", "cached", "evicted", "ended"}[s]
}

// setAnswer sets the answer of a selection that is about to be booked. r may be nil.
func (r *idempotencyRecord) setAnswer(answer *Selection) {
	if r == nil || !r.selected {
		return
	}
	r.selection, r.endpoint = *answer, answer.Endpoint
	r.selection.ReservationID = &r.id
	r.selection.SequenceHashes = nil // the ledger has them
	if answer.SelectionID != nil {
		r.selection.SelectionID = new(*answer.SelectionID) // the request's is borrowed
	}
}

// size returns the approximate memory of a cached answer in bytes, beside its record, which is on the
// account of the ledger.
func (r *idempotencyRecord) size() int64 {
	const answer = 96
	n := answer + len(r.id) + len(r.endpoint) + 8*len(r.selection.Overlap.DP)
	if id := r.selection.SelectionID; id != nil {
		n += len(*id)
	}
	if p := r.pair; p != nil {
		n += pairBytes + len(p.ID) + 8*len(p.Decode.Overlap.DP)
		if p.Prefill != nil {
			n += pairBytes + len(p.Prefill.Endpoint) + 8*len(p.Prefill.Overlap.DP)
		}
	}
	return int64(n)
}

// pairBytes is what a side of a pair adds to a cached answer.
const pairBytes = 512

// PrefillEnded implements reservations.CallerState.
func (r *idempotencyRecord) PrefillEnded(reported bool) {
	r.charge.prefillEnded()
	r.fetching.end(reported)
	if reported {
		r.promise.Load().firstTokenCame()
	}
}

// ReservationFreed implements reservations.CallerState.
func (r *idempotencyRecord) ReservationFreed() { r.promise.Load().ended(true) }

// ReservationEnded implements reservations.CallerState.
func (r *idempotencyRecord) ReservationEnded() {
	r.promise.Load().ended(false)
	r.fetching.end(false)
	r.answers.end(r)
	bound := r.claim.Release()
	r.running.End()
	if r.claim == nil || bound { // else the session has been bound to another rank since
		r.last.end()
	}
	r.lease.End()
	r.charge.end()
}

// maxAnswers bounds the reservations whose answers are cached (decision E4).
const maxAnswers = 1 << 16

// ended is a closed channel, for reservations that have ended already.
var ended = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// answerCache has the first answers of live reservations, in order of booking. The zero value
// is empty.
type answerCache struct {
	// mu guards the fields below and the guarded fields of records. It is taken after the
	// locks of the ledger.
	mu             sync.Mutex
	oldest, newest *idempotencyRecord
	n              int
	bytes          int64 // approximate memory of the answers
	maxBytes       int64 // limit of bytes; 0: none
}

// add caches the answer of a reservation, unless that has ended already. The oldest answers
// make room.
func (a *answerCache) add(r *idempotencyRecord) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.state != recordNew {
		return
	}
	a.becomeCachedLocked(r)
	for a.n > maxAnswers || a.maxBytes > 0 && a.bytes > a.maxBytes && a.n > 1 {
		a.becomeEvictedLocked(a.oldest)
	}
}

// end drops the answer of a reservation that has ended.
func (a *answerCache) end(r *idempotencyRecord) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.becomeEndedLocked(r)
}

func (a *answerCache) becomeCachedLocked(r *idempotencyRecord) {
	r.state = recordCached
	if r.older = a.newest; r.older != nil {
		r.older.newer = r
	} else {
		a.oldest = r
	}
	a.newest = r
	a.n++
	a.bytes += r.size()
}

// becomeEvictedLocked drops the answer. The reservation may live on.
func (a *answerCache) becomeEvictedLocked(r *idempotencyRecord) { a.dropLocked(r, recordEvicted) }

func (a *answerCache) becomeEndedLocked(r *idempotencyRecord) { a.dropLocked(r, recordEnded) }

func (a *answerCache) dropLocked(r *idempotencyRecord, state recordState) {
	if r.state == recordCached {
		a.unlinkLocked(r)
	}
	r.state = state
	if r.cancelled != nil {
		close(r.cancelled)
		r.cancelled = nil
	}
	r.prompt, r.endpoint, r.selection, r.pair = promptIdentity{}, "", Selection{}, nil
}

func (a *answerCache) unlinkLocked(r *idempotencyRecord) {
	if r.older != nil {
		r.older.newer = r.newer
	} else {
		a.oldest = r.newer
	}
	if r.newer != nil {
		r.newer.older = r.older
	} else {
		a.newest = r.older
	}
	r.older, r.newer = nil, nil
	a.n--
	a.bytes -= r.size()
}

// repeat calls read on the answer of a reservation, if it is cached, and returns its result.
// After read returned true, which gives a retry the answer, the reservation cannot be
// cancelled. If the reservation is being cancelled or has ended, read is not called, and over
// is closed once the reservation has ended.
func (a *answerCache) repeat(r *idempotencyRecord, read func() bool) (repeated bool, over <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case r.state == recordEvicted:
		return false, nil
	case r.state == recordEnded:
		return false, ended
	case r.cancelled != nil:
		return false, r.cancelled
	}
	repeated = read()
	r.repeated = r.repeated || repeated
	return repeated, nil
}

// cancel keeps an answer from being repeated, because its caller has gone and the reservation
// is about to be ended. It returns false if a retry has got the answer: the reservation then
// belongs to the retry.
func (a *answerCache) cancel(r *idempotencyRecord) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.repeated {
		return false
	}
	if r.state == recordNew || r.state == recordCached {
		r.cancelled = make(chan struct{})
	}
	return true
}

// count returns how many answers are cached, and their approximate bytes.
func (a *answerCache) count() (n int, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n, a.bytes
}

// inFlightIDs has the ids that requests are about to book. Like dynamo-kv-router 1.6.1, the
// service refuses a second request for such an id at once, however long the first has to wait.
// The zero value is empty.
type inFlightIDs struct {
	mu  sync.Mutex     // guards ids; innermost
	ids map[string]int // how many requests have added the id
}

// begin adds an id until end, and reports whether it did. Unless shared, it fails if another
// request has added the id.
func (f *inFlightIDs) begin(id string, shared bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ids[id] > 0 && !shared {
		return false
	}
	if f.ids == nil {
		f.ids = make(map[string]int)
	}
	f.ids[id]++
	return true
}

func (f *inFlightIDs) end(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ids[id]--; f.ids[id] == 0 {
		delete(f.ids, id)
	}
}

// retryWaiters has the ids of retries that wait in a queue. Such a request must not wait for a
// rank any longer once its id is booked: that reservation may be what keeps the rank busy. The
// zero value is empty.
type retryWaiters struct {
	mu  sync.Mutex // guards ids; innermost
	ids map[string]*retryWaiter
	n   atomic.Int64 // len(ids), written under mu
}

// retryWaiter is shared by all waiting retries of one id.
type retryWaiter struct {
	booked chan struct{} // closed when the id is booked
	n      int           // requests that wait
}

// add returns a channel that is closed when the id is booked. The caller must call it before
// the last check whether the id is booked, and call remove afterwards.
func (w *retryWaiters) add(id string) (booked chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.ids[id]
	if x == nil {
		if w.ids == nil {
			w.ids = make(map[string]*retryWaiter)
		}
		x = &retryWaiter{booked: make(chan struct{})}
		w.ids[id] = x
		w.n.Add(1)
	}
	x.n++
	return x.booked
}

// remove undoes the add that returned booked.
func (w *retryWaiters) remove(id string, booked chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.ids[id]
	if x == nil || x.booked != booked {
		return // wake has removed it
	}
	if x.n--; x.n == 0 {
		w.deleteLocked(id)
	}
}

func (w *retryWaiters) deleteLocked(id string) {
	delete(w.ids, id)
	w.n.Add(-1)
}

// wake ends the wait of all retries of an id that has been booked. A retry that is added too
// late to be woken checks the ledger after add, and finds the reservation.
func (w *retryWaiters) wake(id string) {
	if w.n.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.ids[id]; x != nil {
		close(x.booked)
		w.deleteLocked(id)
	}
}

// all lists the ids, in no order.
func (w *retryWaiters) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.ids))
}

// wakeRetries wakes requests whose id another replica has booked: its reservations wake no
// request here by themselves.
func (i *idempotency) wakeRetries() {
	for _, id := range i.waiters.all() {
		if live, ok := i.find(id); ok && idIsGlobal(&live) {
			i.waiters.wake(id)
		}
	}
}
