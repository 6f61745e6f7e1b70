package selection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/affinity"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// selection is one call of Select.
type selection struct {
	choice
	api *API
	reservation
	result Selection
	wait   queueWait
	due    keepTime                // of its decision
	counts *counts.ModelSelections // where it is counted; nil: not counted yet
}

// reservation is a selection's part of its reservation, from before that is booked.
type reservation struct {
	id       string
	record   *idempotencyRecord
	hold     *affinity.Hold // of the request's session; nil: no session
	reserve  bool           // the choice is to be booked
	inFlight bool           // claimID has claimed the id
	replayed bool           // the result is the answer of an earlier request
}

// queueWait is the state of a selection in wait queues.
type queueWait struct {
	since  time.Time     // when it first came to a queue
	queued bool          // it has waited
	time   time.Duration // from since to its turn in the last queue, if queued
	kept   *kept         // nil: it has never waited
}

// maxAttempts bounds how often a request is run again because of scopes.ErrStale. Waiting for a
// session or for the reservation of an id takes one attempt; a further one is needed only if a
// worker leaves within microseconds.
const maxAttempts = 10

// untilFresh runs a request until its answer is not of a state that has changed meanwhile.
func untilFresh(serve func() error) error {
	err := serve()
	for n := 1; n < maxAttempts && errors.Is(err, scopes.ErrStale); n++ {
		err = serve()
	}
	return err
}

// Select chooses a worker and rank for a prompt. If reserve is set, the load is booked in the
// same step, so that each of several concurrent calls sees the reservations of the earlier
// ones. If queueing is on, the call waits until an eligible rank is free.
func (a *API) Select(ctx context.Context, req *SelectRequest, reserve bool) (Selection, error) {
	c := a.newSelection(req, reserve)
	defer c.recycle()
	defer c.releaseKept()
	defer c.releaseID()
	selected := false
	defer func() {
		if !selected { // also after a panic: other requests may wait for the session
			c.hold.Release()
		}
	}()
	err := untilFresh(func() error { return c.serve(ctx) })
	if selected = err == nil && !c.replayed; selected { // from now on the reservation owns the hold
		a.pending.save(c)
	}
	c.countEnded(err)
	if selected {
		c.audit()
	}
	return c.result, err
}

// Explain returns what Select would choose for a prompt, and why. It has no effect: no policy
// learns from it, and nothing is booked, kept or counted. If no rank can be chosen, that is
// part of the answer and no error.
func (a *API) Explain(ctx context.Context, req *SelectRequest) (*Explanation, error) {
	req.ExplainOnly = true
	c := a.newSelection(req, false)
	defer c.recycle()
	err := untilFresh(func() error { return c.serve(ctx) })
	if err == nil {
		c.evaluateShadows()
		return c.addHeaders(c.decided().explain()), nil
	}
	if kind := contract.KindOf(err); kind != contract.Unavailable && kind != contract.Overloaded || c.snapshot == nil {
		return nil, err
	}
	if c.readPrompt(c.snapshot) != nil {
		return nil, err
	}
	x := c.addHeaders(c.decided().explain())
	x.Refusal = err.Error()
	return x, nil
}

func (a *API) newSelection(req *SelectRequest, reserve bool) *selection {
	return &selection{
		choice: choice{query: newQuery(), request: req, filter: filterOf(req)},
		api:    a, reservation: reservation{reserve: reserve},
	}
}

// filterOf returns the filter of a request. The filter keeps and sorts the request's lists.
func filterOf(req *SelectRequest) selector.Filter {
	if !req.HasAllowedWorkers {
		return selector.NewFilter(nil, req.RequiredTaints)
	}
	allowed := req.AllowedWorkers
	if allowed == nil {
		allowed = []uint64{}
	}
	return selector.NewFilter(allowed, req.RequiredTaints)
}

// serve runs a selection step by step: admit, score, choose, book, answer. It ends with the
// first step that fails. An error with scopes.ErrStale says that the state it was judged by has
// changed; untilFresh then runs serve again.
func (c *selection) serve(ctx context.Context) error {
	// A retry gets the answer of the first request; an id of another request is a conflict.
	if replayed, err := c.replay(); replayed || err != nil {
		return err
	}
	// Admit. Errors: not ready, id in use, invalid, no endpoint, session bound elsewhere,
	// overloaded.
	if err := c.findWorkers(); err != nil {
		return err
	}
	if err := c.claimID(); err != nil {
		return err
	}
	if err := c.admit(ctx); err != nil {
		return err
	}
	// Score, which needs no lock: hash the prompt and find which ranks have its blocks.
	if err := c.lookUpOverlap(); err != nil {
		return err
	}
	// Choose, book and answer (see Run), at once or when its turn comes. Errors: queue full,
	// client gone, overloaded, worker gone, id in use.
	if c.request.Advisory || c.request.ExplainOnly {
		return c.Run()
	}
	return c.runOrWait(ctx)
}

// findWorkers takes the scope's current state and snapshot.
func (c *selection) findWorkers() (err error) {
	c.snapshot, c.scope, err = c.api.scopes.Schedulable(c.request.Scope)
	return err
}

// admit checks the request, and whether a worker can take it, before the prompt is processed.
// It acquires the request's session, and may wait for it.
func (c *selection) admit(ctx context.Context) error {
	if err := c.checkSession(ctx); err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	if err := c.listEligible(); err != nil {
		return err
	}
	c.expireStale()
	if err := c.rejectIfOverloaded(); err != nil {
		return err
	}
	return c.acquireSession(ctx)
}

// check returns what is wrong with the request.
func (c *selection) check() (err error) {
	req := c.request
	if c.weights, err = c.api.config.Weights.With(req.Override); err != nil {
		return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	if err = req.Prompt.check(); err != nil {
		return err
	}
	if req.Pinned != nil {
		if err := c.filter.CheckPinned(req.Pinned.Worker); err != nil {
			return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
		}
	}
	return nil
}

// listEligible lists the ranks that pass the request's filters. It is an error if there are none.
func (c *selection) listEligible() error {
	target := c.request.Target
	if target != nil && c.ignoresTarget() {
		target = nil
	}
	eligible := c.request.Eligible.of(c.snapshot)
	switch pinned := c.request.Pinned; {
	case target != nil:
		c.filterRanks(eligible)
		if err := c.applyTarget(); err != nil {
			return err
		}
	case pinned != nil:
		c.eligible = c.eligibleMem[:0]
		if e, ok := c.snapshot.Entry(*pinned); ok && c.filter.Eligible(pinned.Worker, e.Worker.HasTaint) &&
			(eligible == nil || eligible(e)) {
			c.eligible = append(c.eligible, e)
			c.eligibleMem = c.eligible
		}
	case c.filter.AdmitsAll() && eligible == nil:
		c.eligible = c.snapshot.Ranks()
	default:
		c.filterRanks(eligible)
	}
	if len(c.eligible) == 0 {
		return &contract.Error{Kind: contract.Unavailable, Text: selector.ErrNoEndpoints.Error(), Err: selector.ErrNoEndpoints}
	}
	return nil
}

// filterRanks lists the ranks that are eligible (nil: all), of the workers that pass the filter.
func (c *selection) filterRanks(eligible func(catalog.Entry) bool) {
	list := c.eligibleMem[:0]
	if allowed, restricted := c.filter.Allowed(); restricted && len(allowed) < len(c.snapshot.Workers)/16 {
		for _, id := range allowed {
			if ranks := c.snapshot.RanksOf(id); len(ranks) > 0 && c.filter.Eligible(id, ranks[0].Worker.HasTaint) {
				list = append(list, ranks...)
			}
		}
	} else {
		for ranks := range byWorker(c.snapshot.Ranks()) {
			if w := ranks[0].Worker; c.filter.Eligible(w.ID, w.HasTaint) {
				list = append(list, ranks...)
			}
		}
	}
	if eligible != nil {
		list = slices.DeleteFunc(list, func(e catalog.Entry) bool { return !eligible(e) })
	}
	c.eligible, c.eligibleMem = list, list
}

// applyTarget narrows the eligible ranks to those of the affinity target, if any of them is
// eligible, and of these to the pinned one. In that case a rank pinned on another worker is an
// error, as in dynamo-kv-router 1.6.1.
func (c *selection) applyTarget() error {
	pinned, target := c.request.Pinned, c.request.Target
	if slices.ContainsFunc(c.eligible, func(e catalog.Entry) bool { return target.matches(e.Rank) }) {
		if pinned != nil {
			only := selector.NewFilter([]uint64{target.Worker}, nil)
			if err := only.CheckPinned(pinned.Worker); err != nil {
				return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
			}
		}
		c.eligible = slices.DeleteFunc(c.eligible, func(e catalog.Entry) bool { return !target.matches(e.Rank) })
	}
	if pinned != nil {
		c.eligible = slices.DeleteFunc(c.eligible, func(e catalog.Entry) bool { return e.Rank != *pinned })
	}
	return nil
}

// lookUpOverlap hashes the prompt and finds which ranks have it cached.
func (c *selection) lookUpOverlap() error {
	if err := c.readPrompt(c.snapshot); err != nil {
		return err
	}
	c.request.Prompt.noteKeys(c.scope.Space)
	c.findOverlap()
	return nil
}

func (c *selection) findOverlap() {
	blocks := c.local
	if c.request.NoOverlap {
		blocks = nil
	}
	c.scope.Overlap(blocks, &c.overlap, &c.predicted)
}

// Run implements waitqueue.Request: it chooses by the current loads and, with reserve, books
// the choice in the same step.
func (c *selection) Run() error {
	c.loadHashes()
	if !c.reserve {
		var err error
		c.api.ledger.Look(c.request.Scope, c.sequence, func(v *reservations.View) { err = c.choose(v) })
		return err
	}
	return c.book()
}

// choose is the decision: filter, score, pick, answer. It runs under the ledger's lock. If
// the ledger knows a rank then and the scope's state is not gone, the rank stays valid until
// the choice is booked.
func (c *selection) choose(v *reservations.View) error {
	ranks, err := c.dropOverloaded(v)
	if err != nil {
		return err // every worker is overloaded
	}
	ranks, excluded, err := c.applySession(ranks)
	if err != nil {
		return err // the session is bound to a worker newer than the snapshot
	}
	ranks, i := c.pick(ranks, v)
	c.chosen = ranks[i]
	if !c.tries(c.chosen.Rank) {
		return c.choose(v) // the rank is not due for a trial any more
	}
	if excluded != nil { // the choice is only needed for the error's text
		c.hold.Drop()
		return errSessionBound(c.request.Session, *excluded, c.chosen.Rank)
	}
	if !c.candidates[i].Known || c.scope.Gone() {
		return &contract.Error{Kind: contract.Internal, Text: fmt.Sprintf("selected worker %d is no longer schedulable", c.chosen.Rank.Worker), Err: scopes.ErrStale}
	}
	if !c.byLoad.used {
		c.scored = ranks
	}
	if !c.request.ByLoad {
		c.noteDecided()
		c.uncached = c.toCompute(i)
	}
	c.answer(&c.candidates[i], v)
	if n := c.request.Fallbacks; n > 0 {
		c.result.Fallbacks = c.nextBest(n)
	}
	if c.request.Stored != nil && !c.request.ByLoad {
		c.result.PredictedTTFT = c.predictedTTFT(i)
	}
	return nil
}

// pick chooses among ranks. It returns the ranks that were scored, and the index of the chosen
// one.
func (c *selection) pick(ranks []catalog.Entry, v *reservations.View) (scored []catalog.Entry, i int) {
	c.byLoad.used = false
	if c.request.ByLoad {
		return ranks, c.pickLeastLoaded(ranks, v)
	}
	if i, warmed := c.pickToWarm(ranks, v); warmed {
		return ranks, i
	}
	if c.mayPickByLoad(ranks) && !c.needsAllCosts() {
		if i, c.byLoad.used = c.pickByLoad(v); c.byLoad.used {
			return c.byLoad.scored, i
		}
	}
	c.score(ranks, v)
	return ranks, c.leastLoaded(ranks, selector.Pick(c.costs, c.temperature(), selector.Global()))
}

// needsAllCosts reports whether the costs of all ranks are wanted: for an explanation,
// fallbacks, shadow policies, or a decision that is kept.
func (c *selection) needsAllCosts() bool {
	p := c.scope.Policies
	return c.request.SharesFrontend != nil || c.request.Explain || c.request.ExplainOnly || c.request.Fallbacks > 0 || p != nil && len(p.Shadows()) > 0 || c.keepsDecision()
}

// book chooses a rank and books it.
func (c *selection) book() error {
	req := c.request
	if req.ReservationID != nil {
		c.id = *req.ReservationID
	} else {
		c.id = uuid.NewString()
	}
	r := reservations.Request{
		ID:             c.id,
		Hashes:         slices.Clone(c.sequence),
		TrackPrefill:   c.weights.TrackPrefill && !req.ByLoad,
		ExpectedOutput: req.ExpectedOutputTokens,
		Lease:          req.Lease,
		Prompt:         c.size.Tokens,
	}
	record := c.newRecord()
	c.record = record
	if record != nil {
		r.CallerState = record
	}
	_, err := c.api.ledger.Book(req.Scope, r, func(v *reservations.View) (reservations.Placement, error) {
		if err := c.choose(v); err != nil {
			return reservations.Placement{}, err
		}
		answer := &c.result
		if answer.Lease = req.Lease; req.Lease > 0 {
			answer.Registration = v.Registration(c.chosen.Slot)
		}
		answer.SequenceHashes, answer.ISLTokens, answer.TrackPrefill = r.Hashes, c.size.Tokens, r.TrackPrefill
		record.setAnswer(answer)
		return reservations.Placement{Slot: c.chosen.Slot, Rank: c.chosen.Rank, PrefillTokens: c.result.EffectivePrefillTokens, Uncached: c.uncached}, nil
	})
	if _, full := errors.AsType[*reservations.LimitError](err); full && req.ByLoad {
		c.hold.Release()
		c.hold, c.result.Registration = nil, 0
		return nil
	}
	if err != nil {
		return c.bookError(err)
	}
	c.result.ReservationID = &c.id
	// Where the frontend picks the rank, the chosen one's events say nothing about this prompt.
	picksOther := req.SharesFrontend != nil && req.SharesFrontend(c.chosen)
	if device, _, _ := c.overlap.At(c.chosen.Slot); req.Stored != nil && !picksOther && int(device) < len(c.local) {
		c.result.StopWatch = c.scope.WatchStored(c.chosen, c.local, req.Stored)
	}
	c.api.booked(record, c.scope, c.chosen, c.local, c.size)
	return nil
}

// bookError returns the caller's error for a failed booking.
func (c *selection) bookError(err error) error {
	if exists, is := errors.AsType[*reservations.ExistsError](err); is {
		return errIDExists(bookingFailed(exists), c.request.IfExists, exists)
	}
	if limit, is := errors.AsType[*reservations.LimitError](err); is {
		return contract.LedgerLimit(limit)
	}
	return err
}

// newRecord returns the idempotency record for the reservation; nil if it needs none.
func (c *selection) newRecord() *idempotencyRecord {
	lease := c.scope.NewLease()
	switch {
	case c.request.ReservationID != nil:
		return &idempotencyRecord{
			answers: &c.api.idempotency.answers, hold: c.hold, lease: lease,
			id: c.id, selected: true, prompt: c.identity(),
		}
	case c.hold != nil || lease != nil: // the id was generated here, so no retry can have it
		return &idempotencyRecord{answers: &c.api.idempotency.answers, hold: c.hold, lease: lease, id: c.id, state: recordEvicted}
	}
	return nil
}

// cancelReservation ends the reservation of a caller that has gone, unless a retry has got its
// answer: then it belongs to the retry.
func (c *selection) cancelReservation() {
	a, r := c.api, c.record
	if stop := c.result.StopWatch; stop != nil { // the caller will not
		stop()
		c.result.StopWatch = nil
	}
	switch {
	case r == nil || !r.selected: // the id is known to this call only
		_ = a.Free(c.id) // ErrNotFound: its worker has left, and the reservation with it
	case !a.idempotency.answers.cancel(r):
		c.hold = nil // the reservation owns it
	case a.ledger.FreeWith(c.id, r) == nil:
		a.scopes.LoadChanged()
	}
}

// isRetry reports whether the request may be a retry of an earlier one.
func (c *selection) isRetry() bool {
	return c.reserve && c.request.ReservationID != nil && c.request.IfExists == ReturnFirst
}

// replay answers a request that is a retry of an earlier one; replayed reports whether it is.
// It is an error if the id is another request's.
func (c *selection) replay() (replayed bool, err error) {
	if !c.isRetry() {
		return false, nil
	}
	req := c.request
	first, err := c.api.idempotency.findExisting(&idRequest{
		id: *req.ReservationID, scope: req.Scope, rank: req.Pinned, filter: &c.filter,
		prompt: func(snap *catalog.Snapshot) (promptIdentity, []uint64, error) {
			err := c.readPrompt(snap)
			return c.identity(), c.sequence, err
		},
	})
	if err != nil || first == nil {
		return false, asConflict(err, bookingFailed)
	}
	c.replayed = true
	if first.selection != nil {
		c.result = *first.selection
	} else {
		c.id = *req.ReservationID
		c.result = Selection{
			SelectionID: req.SelectionID, ReservationID: &c.id, Scope: first.Scope, Rank: first.Rank,
			Endpoint: first.endpoint, Lease: first.Lease, PlacementOnly: true,
		}
	}
	c.result.Repeated = true
	return true, nil
}

// claimID claims the request's id until releaseID, and fails if the id is in use.
// dynamo-kv-router 1.6.1 does that before it checks the rest of a request, 1.3.1 when it books.
// A retry is not refused, but while it waits others are.
func (c *selection) claimID() error {
	req := c.request
	if !c.reserve || req.ReservationID == nil || !req.Detailed {
		return nil
	}
	id, shared := *req.ReservationID, req.IfExists == ReturnFirst
	if !c.inFlight {
		if c.inFlight = c.api.idempotency.inFlight.claim(id, shared); !c.inFlight {
			return errIDInFlight(id)
		}
	}
	if exists := c.api.idempotency.conflict(id, req.Scope); exists != nil && !shared {
		return errIDExists(bookingFailed(exists), Refuse, exists)
	}
	return nil
}

// releaseID undoes claimID.
func (c *selection) releaseID() {
	if c.inFlight {
		c.api.idempotency.inFlight.release(*c.request.ReservationID)
	}
}

// answer fills in the result for the chosen rank and its candidate.
func (c *selection) answer(cand *selector.Candidate, v *reservations.View) {
	e, r := c.chosen, &c.result
	*r = Selection{
		SelectionID:            c.request.SelectionID,
		Scope:                  c.request.Scope,
		Rank:                   e.Rank,
		Endpoint:               e.Worker.Address(),
		BlockSize:              c.snapshot.BlockSize,
		EffectivePrefillTokens: c.weights.EffectivePrefill(c.size, cand),
		PotentialDecodeBlocks:  selector.PotentialDecode(c.size, cand) + c.size.Partial(),
	}
	if t := c.api.config.DecodeBusy; t != nil {
		total, known := e.Worker.KVBlocks()
		if !known {
			total = totalBlocks(v, e.Slot)
		}
		if known || total > 0 {
			r.DecodeBusy = new(float64(r.PotentialDecodeBlocks) > *t*float64(total))
		}
	}
	if c.request.Advisory {
		r.WorkerLoad = c.workerLoad(cand)
	}
	var sum selector.Summary
	ranks := c.snapshot.RanksOf(e.Rank.Worker)
	r.Overlap.DP = make([]RankTokens, 0, len(ranks))
	for _, rank := range ranks {
		var of selector.Candidate
		of.Device, of.Host, of.Disk = c.overlap.At(rank.Slot)
		sum.Add(c.size, &of)
		r.Overlap.DP = append(r.Overlap.DP, RankTokens{DP: rank.DP, Tokens: selector.DeviceTokens(c.size, &of)})
	}
	r.Overlap.LongestMatched, r.Overlap.GPU, r.Overlap.CPU, r.Overlap.Disk = sum.Longest, sum.GPU, sum.CPU, sum.Disk
}

// workerLoad returns the current load of the chosen rank.
func (c *selection) workerLoad(cand *selector.Candidate) *WorkerLoad {
	w := c.chosen.Worker
	load := &WorkerLoad{
		ActivePrefillTokens:  cand.Prefill,
		PrefillTokenCapacity: cmp.Or(batchLimit(w), admission.DefaultMaxBatchedTokens),
		TotalKVBlocks:        w.TotalKVBlocks,
	}
	if t := c.api.config.PrefillBusy; t != nil {
		load.PrefillBusy = new(float64(cand.Prefill) > *t*float64(load.PrefillTokenCapacity))
	}
	return load
}

// countsOf returns the counters of the selection's model, or those for all unknown models.
func (c *selection) countsOf() *counts.ModelSelections {
	model := c.request.Scope.Model
	if c.scope == nil && !c.api.catalog.HasModel(model) {
		return c.api.selections.Others()
	}
	return c.api.selections.Of(model)
}

// countIssued counts the selection as issued, once, and returns its counters.
func (c *selection) countIssued() *counts.ModelSelections {
	if c.counts == nil {
		c.counts = c.countsOf()
		c.counts.Issued(counts.RouteOf(c.reserve))
	}
	return c.counts
}

// countQueued counts a selection that begins to wait. It counts as issued now, not when it
// ends: a wait has no limit, and the rate of requests must not depend on it.
func (c *selection) countQueued() { c.countIssued().Queued(counts.RouteOf(c.reserve), 1) }

// countDequeued undoes countQueued.
func (c *selection) countDequeued() { c.counts.Queued(counts.RouteOf(c.reserve), -1) }

// countEnded counts a selection that is over. It runs outside all locks.
func (c *selection) countEnded(err error) {
	route := counts.RouteOf(c.reserve)
	o := counts.OutcomeOf(err, route)
	if c.replayed {
		o = counts.Repeated
	}
	if o == counts.Invalid && c.counts == nil {
		c.countsOf().Ended(o, route, err)
		return
	}
	m := c.countIssued()
	m.Ended(o, route, err)
	if o == counts.NotReady {
		c.api.selections.NoteUnserved(c.request.Scope)
	}
	if c.scope == nil {
		c.api.scopes.NoteUnserved(c.request.Scope)
	} else {
		c.scope.Traffic.Note(o == counts.Refused || o == counts.QueueFull)
	}
	if c.wait.queued {
		m.Waited(c.wait.time)
	}
	if err == nil && o != counts.Repeated {
		c.countChoice()
	}
}

// countChoice counts the chosen rank's cached blocks and the spread of the costs.
func (c *selection) countChoice() {
	low, high := math.Inf(1), math.Inf(-1)
	for _, cost := range c.costs { // costs are finite, so the NaN handling of min and max is not needed
		if cost < low {
			low = cost
		}
		if cost > high {
			high = cost
		}
	}
	cached, blocks := c.cachedBlocks(c.chosen.Slot), uint64(c.size.Blocks)
	c.counts.Chosen(cached, c.mostCached(), blocks, high-low)
	if c.scope != nil {
		c.scope.Hits.Note(c.chosen.Slot, cached, blocks)
	}
}

// audit runs after a choice: it evaluates shadows, keeps the decision if due, and explains it
// if asked. It runs outside all locks.
func (c *selection) audit() {
	if !c.request.Advisory && !c.request.ByLoad {
		c.evaluateShadows()
		c.keepDecision()
	}
	if c.request.Explain {
		c.result.Explanation = c.addHeaders(c.decided().explain())
	}
}

// keepsDecision reports whether the decision is to be kept.
func (c *selection) keepsDecision() bool {
	if d := &c.api.decisions; !c.due.asked && d.limit > 0 && !c.request.Advisory && !c.request.ExplainOnly {
		if now := time.Now(); d.due(now, c.snapshot.NumRanks) {
			c.due.at = now
		}
	}
	c.due.asked = true
	return !c.due.at.IsZero()
}

// keepDecision keeps the decision of c, if it is due.
func (c *selection) keepDecision() {
	if !c.keepsDecision() {
		return
	}
	x := &Decision{decided: c.decided(), At: c.due.at, Reserved: c.reserve, Cached: c.cachedBlocks(c.chosen.Slot), MostCached: c.mostCached(), times: c.scope.FirstTokens}
	if id := c.request.SelectionID; id != nil {
		x.SelectionID = strings.Clone(*id) // the request's string is borrowed
	}
	if c.reserve {
		x.ReservationID = strings.Clone(c.id)
	}
	if x.chosen >= 0 {
		p := predict(&x.decision, x.chosen)
		x.PredictedTTFT = p.Wait + p.Prefill
	}
	c.api.decisions.keep(x)
}
