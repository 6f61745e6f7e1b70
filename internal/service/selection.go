package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/select-service/select-service/internal/admission"
	"github.com/select-service/select-service/internal/affinity"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/scopes"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// selection is one call of Select on its way.
type selection struct {
	*query
	service *Service
	request *SelectRequest // lent until Select returns
	scope   *scopes.State
	snap    *catalog.Snapshot
	weights selector.Weights
	filter  selector.Filter
	since   time.Time // when it came to a wait queue first
	reserve bool
	hold    *affinity.Hold // of the request's session; nil: none
	id      string         // of the reservation
	beside  *companion     // of the reservation
	chosen  catalog.Entry
	result  Selection

	claims   bool // it has its id claimed
	repeated bool // the result is the answer of an earlier request

	queued bool          // it has waited in a queue
	waited time.Duration // from its first wait queue to its turn in the last, if queued

	counts *telemetry.ModelSelections // that it is counted in, nil: in none yet
}

// maxAttempts bounds how often that is done for one request. A wait for a session
// or for the booking of an id takes one more; otherwise a worker has to leave
// within microseconds.
const maxAttempts = 10

// Select chooses a worker and rank for a prompt. With reserve the load is
// booked in the same step: concurrent calls each see the earlier bookings.
// While queueing is on, the call waits until an eligible rank is free.
func (s *Service) Select(ctx context.Context, req *SelectRequest, reserve bool) (Selection, error) {
	c := selection{query: newQuery(), service: s, request: req, filter: filterOf(req), reserve: reserve}
	defer c.recycle()
	defer c.releaseID()
	booked := false
	defer func() {
		if !booked { // by a panic too: others may wait for what becomes of the session
			c.hold.Release()
		}
	}()
	err := c.attempt(ctx)
	for n := 1; n < maxAttempts && errors.Is(err, scopes.ErrStale); n++ {
		err = c.attempt(ctx)
	}
	if booked = err == nil && !c.repeated; booked { // the booking has the hold
		c.keep()
	}
	c.decided(err)
	return c.result, err
}

// filterOf takes the lists of a request over.
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

func (c *selection) attempt(ctx context.Context) (err error) {
	if done, err := c.repeat(); done || err != nil {
		return err
	}
	if c.snap, c.scope, err = c.service.scopes.Schedulable(c.request.Scope); err != nil {
		return err
	}
	if err := c.refuseTaken(); err != nil {
		return err
	}
	if err := c.prepare(ctx); err != nil {
		return err
	}
	if c.request.Advisory {
		return c.Run()
	}
	return c.runOrWait(ctx)
}

// prepare checks the request and looks the prompt up.
func (c *selection) prepare(ctx context.Context) error {
	if err := c.checkSession(ctx); err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	c.endStale()
	if err := c.refuseEarly(); err != nil {
		return err
	}
	if err := c.holdSession(ctx); err != nil {
		return err
	}
	return c.lookUp()
}

// check finds the ranks for the request, and tells what is wrong with it.
func (c *selection) check() (err error) {
	req := c.request
	if c.weights, err = c.service.config.Weights.With(req.Override); err != nil {
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
	return c.admit()
}

// lookUp hashes the prompt and finds who has it cached.
func (c *selection) lookUp() error {
	if err := c.read(&c.request.Prompt, c.snap); err != nil {
		return err
	}
	c.scope.Space.Overlap(c.local, &c.overlap)
	return nil
}

// Refresh looks the catalog up again for a request that has waited, and the
// prompt if asked to or if the ranks may have changed.
func (c *selection) Refresh(overlap bool) error {
	snap, state, err := c.service.scopes.Schedulable(c.request.Scope)
	if err != nil {
		return err
	}
	if state != c.scope {
		return scopes.ErrGone
	}
	if overlap || snap != c.snap {
		c.scope.Space.Overlap(c.local, &c.overlap)
	}
	c.snap = snap
	c.endStale()
	return c.admit()
}

// admit lists the ranks that the request's filters leave; none is an error.
func (c *selection) admit() error {
	c.eligible = c.eligible[:0]
	pinned := c.request.Pinned
	var last *catalog.Worker
	ok := false
	for _, e := range c.snap.Ranks {
		if e.Worker != last {
			last, ok = e.Worker, c.filter.Eligible(e.Rank.Worker, e.Worker.HasTaint)
		}
		if ok && (pinned == nil || *pinned == e.Rank) {
			c.eligible = append(c.eligible, e)
		}
	}
	if len(c.eligible) == 0 {
		return &contract.Error{Kind: contract.Unavailable, Text: selector.ErrNoEndpoints.Error(), Err: selector.ErrNoEndpoints}
	}
	return nil
}

// Run chooses on the loads of this moment and, if asked to, books the choice.
func (c *selection) Run() error {
	if !c.reserve {
		var err error
		c.service.ledger.Look(c.request.Scope, c.sequence, func(v *reservations.View) { err = c.choose(v) })
		return err
	}
	req := c.request
	if req.ReservationID != nil {
		c.id = *req.ReservationID
	} else {
		c.id = uuid.NewString()
	}
	booking := reservations.Request{
		ID:             c.id,
		Hashes:         slices.Clone(c.sequence),
		TrackPrefill:   c.weights.TrackPrefill,
		ExpectedOutput: req.ExpectedOutputTokens,
		Lease:          req.Lease,
	}
	keep := c.companion(booking.Hashes)
	c.beside = keep
	if keep != nil {
		booking.CallerState = keep
	}
	_, err := c.service.ledger.Book(req.Scope, booking, func(v *reservations.View) (reservations.Placement, error) {
		if err := c.choose(v); err != nil {
			return reservations.Placement{}, err
		}
		r := &c.result
		r.Lease = req.Lease
		r.SequenceHashes, r.ISLTokens, r.TrackPrefill = booking.Hashes, c.size.Tokens, booking.TrackPrefill
		keep.remember(r)
		return reservations.Placement{Slot: c.chosen.Slot, Rank: c.chosen.Rank, PrefillTokens: c.result.EffectivePrefillTokens}, nil
	})
	var exists *reservations.ExistsError
	if errors.As(err, &exists) {
		return taken(bookingFailed(exists), req.IfExists, exists)
	}
	if err != nil {
		return err
	}
	c.result.ReservationID = &c.id
	c.service.booked(keep, c.scope, c.chosen, c.local)
	return nil
}

// companion is what the booking will have with it; nil: nothing.
func (c *selection) companion(sequence []uint64) *companion {
	switch {
	case c.request.ReservationID != nil:
		return &companion{
			answers: &c.service.first, hold: c.hold,
			id: c.id, selected: true, identity: c.identify(&c.request.Prompt, sequence),
		}
	case c.hold != nil: // nobody asks for an id that was made up
		return &companion{answers: &c.service.first, hold: c.hold, id: c.id, state: forgotten}
	}
	return nil
}

// choose scores the eligible ranks of workers that are not overloaded and fills
// in the answer. It runs under the ledger's lock: a rank that the ledger knows
// there, while the pool is not gone, is in force until the choice is booked.
func (c *selection) choose(v *reservations.View) error {
	ranks, err := c.restrict(v)
	if err != nil {
		return err
	}
	c.candidates = c.candidates[:0]
	ranks, excluded, err := c.steer(ranks)
	if err != nil {
		return err
	}
	for _, e := range ranks {
		cand := candidate(e, &c.overlap, v)
		if prefer := c.request.PreferredTaints; len(prefer) > 0 && c.request.Pinned == nil {
			cand.Taint = selector.TaintFactor(prefer, e.Worker.HasTaint)
		}
		c.candidates = append(c.candidates, cand)
	}
	c.costs = c.weights.Costs(c.size, c.candidates, c.costs)
	i := selector.Pick(c.costs, c.weights.Temperature, selector.Global())
	c.chosen = ranks[i]
	if excluded != nil { // what would have been chosen is of use for the text only
		c.hold.Drop()
		return otherRank(c.request.Session, *excluded, c.chosen.Rank)
	}
	if !c.candidates[i].Known || c.scope.Gone() {
		return &contract.Error{Kind: contract.Internal, Text: fmt.Sprintf("selected worker %d is no longer schedulable", c.chosen.Rank.Worker), Err: scopes.ErrStale}
	}
	c.answer(c.chosen, &c.candidates[i])
	if c.request.Advisory {
		c.result.WorkerLoad = c.workerLoad(&c.candidates[i])
	}
	return nil
}

// workerLoad is what the chosen rank carries.
func (c *selection) workerLoad(cand *selector.Candidate) *WorkerLoad {
	w := c.chosen.Worker
	load := &WorkerLoad{
		ActivePrefillTokens:  cand.Prefill,
		PrefillTokenCapacity: cmp.Or(batchLimit(w), admission.DefaultMaxBatchedTokens),
		TotalKVBlocks:        w.TotalKVBlocks,
	}
	if t := c.service.config.PrefillBusy; t != nil {
		load.PrefillBusy = new(float64(cand.Prefill) > *t*float64(load.PrefillTokenCapacity))
	}
	return load
}

// candidate is a rank as this prompt sees it: what it caches and what it
// carries.
func candidate(e catalog.Entry, o *indexer.Overlap, v *reservations.View) selector.Candidate {
	var c selector.Candidate
	c.Device, c.Host, c.Disk = o.At(e.Slot)
	if c.Known = v.Known(e.Slot, e.Rank); c.Known {
		c.Prefill, c.Active, c.Shared, c.Requests = v.Prefill[e.Slot], v.Blocks[e.Slot], v.Shared[e.Slot], v.Requests[e.Slot]
	}
	return c
}

func (c *selection) answer(e catalog.Entry, cand *selector.Candidate) {
	r := &c.result
	*r = Selection{
		SelectionID:            c.request.SelectionID,
		Scope:                  c.request.Scope,
		Rank:                   e.Rank,
		Endpoint:               e.Worker.Address(),
		BlockSize:              c.snap.BlockSize,
		EffectivePrefillTokens: c.weights.EffectivePrefill(c.size, cand),
		PotentialDecodeBlocks:  selector.PotentialDecode(c.size, cand) + c.size.Partial(),
	}
	if t := c.service.config.DecodeBusy; t != nil && e.Worker.TotalKVBlocks != nil {
		r.DecodeBusy = new(float64(r.PotentialDecodeBlocks) > *t*float64(*e.Worker.TotalKVBlocks))
	}
	var sum selector.Summary
	sisters := c.snap.RanksOf(e.Rank.Worker)
	r.Overlap.DP = make([]RankTokens, 0, len(sisters))
	for _, sister := range sisters {
		var sc selector.Candidate
		sc.Device, sc.Host, sc.Disk = c.overlap.At(sister.Slot)
		sum.Add(c.size, &sc)
		r.Overlap.DP = append(r.Overlap.DP, RankTokens{DP: sister.DP, Tokens: selector.DeviceTokens(c.size, &sc)})
	}
	r.Overlap.LongestMatched, r.Overlap.GPU, r.Overlap.CPU, r.Overlap.Disk = sum.Longest, sum.GPU, sum.CPU, sum.Disk
}
