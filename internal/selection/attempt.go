package selection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/identity"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// attempt is one call of Select or Explain: its request, and what the steps of serve have found
// out and decided. Attempts are pooled, with the memory of their values.
type attempt struct {
	request
	scope   scope
	prompt  prompt
	retry   retry
	session session
	choice  choice
	wait    wait
	payer   admission.Payer // who pays for the engine time
	// promised is what is promised of the reservation that is being booked; nil: nothing, or none is.
	promised *promise
	result   Selection
	counts   counting
	// fetching is the fetch that the engine of the rank that computes the prompt is told of; nil: none, or it was not priced.
	fetching *fetching

	timeline timeline
}

var attempts = sync.Pool{New: func() any {
	a := new(attempt)
	a.scope.request, a.retry.request, a.session.request = &a.request, &a.request, &a.request
	a.choice.request, a.counts.request = &a.request, &a.request
	a.session.scope, a.choice.scope, a.choice.prompt, a.choice.session = &a.scope, &a.scope, &a.prompt, &a.session
	return a
}}

// request is what a caller asks for.
type request struct {
	api            *API
	*SelectRequest           // borrowed until Select returns
	reserve        bool      // the choice is to be booked
	pair           *pairing  // the second rank, if a pair is asked for, whose id is ReservationID; nil: one rank is chosen
	firstToken     time.Time // when the request wants its first token, if it has a TTFTTarget
	filter         selector.Filter
	weights        selector.Weights // set by check
}

// maxRuns bounds how often the steps of a request are run because of scopes.ErrStale. Waiting for
// a session or for the reservation of an id takes one run, and so does each loss of a scope's last
// worker and each change of policies while the request is in a wait queue; a further one is needed
// only if a worker leaves within microseconds.
const maxRuns = 10

// untilFresh runs the steps of a request until its answer is not of a state that has changed
// meanwhile.
func untilFresh(serve func() error) error {
	err := serve()
	for n := 1; n < maxRuns && errors.Is(err, scopes.ErrStale); n++ {
		err = serve()
	}
	return err
}

// Select chooses a worker and rank for a prompt. If reserve is set, the load is booked in the
// same step, so that each of several concurrent calls sees the reservations of the earlier
// ones. If queueing is on, the call waits until an eligible rank is free.
func (a *API) Select(ctx context.Context, req *SelectRequest, reserve bool) (Selection, error) {
	t := a.newAttempt(req, reserve)
	result, err := t.run(ctx)
	t.recycle()
	return result, err
}

// run runs the attempt until its end.
func (a *attempt) run(ctx context.Context) (Selection, error) {
	defer a.end() // also after a panic: other requests may wait for the session
	err := untilFresh(func() error { return a.serve(ctx) })
	if !a.ExplainOnly {
		a.countEnded(err)
	}
	a.endTrace(err)
	return a.result, err
}

// Explain returns what Select would choose for a prompt, and why. It has no effect: no policy
// learns from it, and nothing is booked, kept or counted. If no rank can be chosen, that is
// part of the answer and no error. Where the caller's own requests have no sessions, it says what one
// with this session through the gateway or the proxy gets, whose tenant is the salt of the prompt. There a name that cannot be
// used is as if it were not sent.
func (a *API) Explain(ctx context.Context, of *SelectRequest) (*Explanation, error) {
	req := *of
	req.ExplainOnly = true
	if req.SessionMode == HardSessions && a.config.SessionTTL == 0 {
		req.SessionMode, req.Groups, req.SessionTenant, req.FilterBeforeSession = a.config.FrontSessions, a.config.FrontGroups, req.Prompt.CacheSalt, true
		if identity.FaultOf(req.Session) != 0 { // they place it as one without the name
			req.Session, req.Parent = "", ""
		} else if identity.FaultOf(req.Parent) != 0 {
			req.Parent = ""
		}
	}
	t := a.newAttempt(&req, false)
	result, err := t.run(ctx)
	defer t.recycle()
	if err == nil {
		return result.Explanation, nil
	}
	if kind := contract.KindOf(err); kind != contract.Unavailable && kind != contract.Overloaded || t.scope.snapshot == nil {
		return nil, err
	}
	if t.prompt.read(&req.Prompt, t.scope.snapshot) != nil {
		return nil, err
	}
	x := t.explain()
	x.Refusal = err.Error()
	return x, nil
}

func (a *API) newAttempt(req *SelectRequest, reserve bool) *attempt {
	req.Scope = a.catalog.Named(req.Scope)
	t := attempts.Get().(*attempt)
	t.request = request{api: a, SelectRequest: req, reserve: reserve, filter: req.filter()}
	t.timeline.span = req.Trace.Child("select")
	switch {
	case !req.hasTarget() && !req.OddTarget:
	case a.config.IgnoreTargets:
		t.ignoreTargets()
	case req.TTFTTarget > 0:
		t.firstToken = time.Now().Add(req.TTFTTarget)
	}
	return t
}

// end gives back what the attempt has taken for its duration.
func (a *attempt) end() {
	a.session.release()
	a.retry.end()
	a.prompt.unpin()
	a.wait.release(a.api)
}

// recycle makes the attempt's memory available to others, unless its prompt was very long. Nobody
// may use the attempt any more; after a panic, a queue might.
func (a *attempt) recycle() {
	if cap(a.prompt.localMem) > maxPooledBlocks {
		return
	}
	a.request = request{}
	a.scope.reset()
	a.prompt.reset()
	a.choice.reset()
	a.retry, a.promised = retry{request: a.retry.request}, nil
	a.choice.prompt = &a.prompt
	a.session.keys, a.session.kept = sessionKeys{}, kept{}
	a.wait, a.payer, a.result, a.counts.of, a.fetching = wait{}, admission.Payer{}, Selection{}, nil, nil
	attempts.Put(a)
}

// serve runs the steps of an attempt, up to the first that fails. An error with scopes.ErrStale
// says that the state it was judged by has changed; untilFresh then runs serve again.
func (a *attempt) serve(ctx context.Context) error {
	// A retry gets the answer of the first request; an id of another request is a conflict.
	if repeated, err := a.repeat(); repeated || err != nil {
		return err
	}
	// Admit. Errors: not ready, id in use, invalid, no endpoint, session bound elsewhere,
	// overloaded.
	if err := a.admit(ctx); err != nil {
		return err
	}
	// Look up which ranks have the prompt's blocks, which needs no lock.
	if err := a.lookUp(); err != nil {
		return err
	}
	// Queue, and book in the attempt's turn. Errors: queue full, client gone,
	// overloaded, worker gone, id in use.
	if err := a.bookInTurn(ctx); err != nil {
		return err
	}
	a.answer()
	return nil
}

// repeat answers a retry of an earlier request; repeated reports whether this is one.
func (a *attempt) repeat() (repeated bool, err error) {
	if !a.retry.possible() {
		return false, nil
	}
	first, err := a.retry.find(&a.prompt)
	if err != nil || first == nil {
		return false, err
	}
	if a.pair != nil {
		a.pair.repeat(&a.retry, first)
	} else {
		a.result = a.retry.answerOf(first)
	}
	return true, nil
}

// admit checks the request, and whether a worker can take it, before the prompt is processed.
// It claims the request's session, and may wait for it.
func (a *attempt) admit(ctx context.Context) error {
	if err := a.scope.find(); err != nil {
		return err
	}
	if err := a.retry.begin(); err != nil {
		return err
	}
	if err := a.checkSession(ctx); err != nil {
		return err
	}
	if err := a.check(); err != nil {
		return err
	}
	if err := a.pair.check(); err != nil {
		return err
	}
	if err := a.scope.listEligible(); err != nil {
		return err
	}
	a.scope.expireStale()
	if err := a.scope.rejectIfOverloaded(); err != nil {
		return err
	}
	return a.claimSession(ctx)
}

// check returns what is wrong with the request.
func (r *request) check() (err error) {
	if r.weights, err = r.api.config.Weights.With(r.Override); err != nil {
		return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	if err = r.Prompt.check(); err != nil {
		return err
	}
	if r.Pinned != nil {
		if err := r.filter.CheckPinned(r.Pinned.Worker); err != nil {
			return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
		}
	}
	return nil
}

// checkSession refuses names of sessions that are too long. For a reservation it also ends a
// binding to a rank that is not schedulable, even if the request is refused later.
func (a *attempt) checkSession(ctx context.Context) error {
	if stale, err := a.session.check(); !stale || err != nil {
		return err
	}
	if err := a.claimSession(ctx); err != nil {
		return err
	}
	a.session.dropUnschedulable()
	return nil
}

// claimSession claims the session of a reservation. It waits while another first request of the
// session is being served.
func (a *attempt) claimSession(ctx context.Context) error {
	wait := a.session.begin()
	if wait == nil {
		return nil
	}
	if err := a.prepareSessionWait(); err != nil {
		wait.Leave()
		return err
	}
	return a.session.await(ctx, wait)
}

// lookUp hashes the prompt and finds which ranks have how much of it.
func (a *attempt) lookUp() error {
	a.timeline.begin()
	if err := a.prompt.read(&a.Prompt, a.scope.snapshot); err != nil {
		return err
	}
	a.timeline.end("hash")
	a.Prompt.noteKeys(a.scope.state.Space)
	a.prompt.lookUp(a.scope.state, false)
	a.timeline.end("look up")
	return nil
}

// choose is the decision: filter, score, pick, and fill in the result. It runs under the ledger's
// lock. If the ledger knows a rank then and the scope's state is not gone, the rank stays valid
// until the choice is booked.
func (a *attempt) choose(v *reservations.View) error {
	ranks, excluded, err := a.candidates(v)
	if err != nil {
		return err
	}
	ranks, i := a.choice.pick(ranks, v)
	if a.refuses(i, excluded) {
		return a.choice.missed(ranks, i)
	}
	if !a.choice.takes(ranks[i]) {
		return a.choose(v) // the rank is not due for a trial any more
	}
	return a.settle(ranks, i, excluded, v)
}

// candidates returns the ranks among which the choice is. excluded is as in session.narrow.
func (a *attempt) candidates(v *reservations.View) (ranks []catalog.Entry, excluded *catalog.Rank, err error) {
	if ranks, err = a.scope.dropOverloaded(v); err != nil {
		return nil, nil, err // every worker is overloaded
	}
	return a.session.narrow(ranks) // an error: the session is bound to a worker newer than the snapshot
}

// takes sets the chosen rank, and takes its trial if it gives no sign of life; false if another
// request has taken that.
func (c *choice) takes(e catalog.Entry) bool {
	c.chosen = e
	return c.scope.tries(e.Rank, time.Now())
}

// settle fills in the result for rank i of the scored ones, which is the chosen one.
func (a *attempt) settle(ranks []catalog.Entry, i int, excluded *catalog.Rank, v *reservations.View) (err error) {
	c := &a.choice
	if excluded != nil { // the choice is only needed for the error's text
		a.session.claim.Drop()
		return errSessionBound(a.Session, *excluded, c.chosen.Rank)
	}
	if err = c.settle(ranks, i, v, &a.result); err != nil {
		return err
	}
	if n := a.Fallbacks; n > 0 {
		a.result.Fallbacks = c.nextBest(n)
	}
	if a.Stored != nil && !a.ByLoad {
		a.result.PredictedTTFT = c.predictedTTFT(i)
	}
	return nil
}

// settle fills in the answer for rank i of the scored ones, which is the chosen one, and informs the
// policy.
func (c *choice) settle(ranks []catalog.Entry, i int, v *reservations.View, answer *Selection) error {
	if !c.candidates[i].Known || c.scope.state.Gone() {
		return &contract.Error{Kind: contract.Internal, Text: fmt.Sprintf("selected worker %d is no longer schedulable", c.chosen.Rank.Worker), Err: scopes.ErrStale}
	}
	if !c.byLoad.used {
		c.scored = ranks
	}
	if !c.ByLoad {
		c.noteDecided()
		c.uncached, c.predicted = c.toCompute(i), c.expected(i)
		if i < len(c.fetches) {
			c.fetch = &c.fetches[i]
		}
	}
	c.answer(&c.candidates[i], v, answer)
	return nil
}

// book chooses by the current loads and, with reserve, books the choice in the same step.
func (a *attempt) book() (err error) {
	a.prompt.load()
	a.timeline.beginTurn()
	switch {
	case a.pair != nil:
		return a.bookPair()
	case a.reserve:
		return a.bookChoice()
	}
	a.api.ledger.Look(a.Scope, a.prompt.sequence, func(v *reservations.View) { err = a.choose(v) })
	a.timeline.end("choose")
	if p := &a.payer; err == nil && p.Class != nil {
		p.Class.Once(p.Account, a.choice.chosen.Rank, a.choice.predictedWork(a.result.EffectivePrefillTokens), a.api.scopes.Seconds())
	}
	return err
}

// bookChoice is book with reserve.
func (a *attempt) bookChoice() error {
	req, p := &a.request, &a.prompt
	id := req.ReservationID
	if id == nil {
		id = new(uuid.NewString())
	}
	a.retry.id = *id
	r := reservations.Request{
		ID:             *id,
		Hashes:         slices.Clone(p.sequence),
		TrackPrefill:   a.weights.TrackPrefill && !req.ByLoad,
		ExpectedOutput: req.ExpectedOutputTokens,
		Lease:          req.Lease,
		Prompt:         p.size.Tokens,
	}
	if claim := a.session.claim; claim != nil {
		claim.Turn = a.session.turn(p.size.Tokens)
	}
	promised := a.newPromise()
	record := a.retry.newRecord(&a.session, a.scope.state.NewLease(), p, a.payer.Class != nil || promised != nil || a.choice.pricesFetches())
	if record != nil {
		record.promise.Store(promised)
		r.CallerState = record
	}
	chosen := &a.choice.chosen
	_, err := a.api.ledger.Book(req.Scope, r, func(v *reservations.View) (reservations.Placement, error) {
		a.fetching.end(false) // the ledger may choose a second time
		err := a.choose(v)
		a.timeline.end("choose")
		if err != nil {
			return reservations.Placement{}, err
		}
		answer := &a.result
		if answer.Lease = req.Lease; req.Lease > 0 {
			answer.Registration = v.Registration(chosen.Slot)
		}
		answer.SequenceHashes, answer.ISLTokens, answer.TrackPrefill = r.Hashes, p.size.Tokens, r.TrackPrefill
		record.setAnswer(answer)
		a.charge(record, v)
		a.fetching = a.choice.startFetch(*id, record, v)
		return reservations.Placement{
			Slot: chosen.Slot, Rank: chosen.Rank, PrefillTokens: answer.EffectivePrefillTokens, Uncached: a.choice.uncached, Predicted: a.choice.predicted,
			Unobserved: a.fetching != nil,
			Booked:     a.session.settler(chosen.Rank, p.size.Tokens, record),
		}, nil
	})
	a.timeline.end("book")
	if err != nil {
		record.uncharge()
		a.fetching.end(false)
	}
	if a.unbooked(err) {
		a.result.Registration = 0
		if settle := a.session.settler(chosen.Rank, p.size.Tokens, nil); settle != nil {
			settle()
		}
		return nil
	}
	if err != nil {
		return bookError(err, req.IfExists)
	}
	a.result.ReservationID = id
	a.noteBooked(record)
	return nil
}

// unbooked reports whether the error means that the request is placed without a reservation: by load, while the ledger
// has no room.
func (a *attempt) unbooked(err error) bool {
	_, full := errors.AsType[*reservations.LimitError](err)
	return full && a.ByLoad
}

// noteBooked tells those who follow a reservation that the choice is booked; record is that of the
// reservation.
func (a *attempt) noteBooked(record *idempotencyRecord) {
	p, chosen, prefill := &a.prompt, &a.choice.chosen, a.prefills()
	// Where the frontend picks the rank, the chosen one's events say nothing about this prompt.
	picksOther := prefill.SharesFrontend != nil && prefill.SharesFrontend(prefill.chosen)
	if device, _, _ := p.overlap.At(prefill.chosen.Slot); a.Stored != nil && !picksOther && int(device) < len(p.local) {
		a.result.StopWatch = a.scope.state.WatchStored(prefill.chosen, p.local, a.Stored)
	}
	a.api.booked(record, a.scope.state, *chosen, p.local, p.size)
	a.session.handOver()
	if k := &a.session.kept; k.session != "" {
		a.api.selections.Turns.Note(k.turn)
	}
}

// bookError returns the caller's error for a failed booking. wanted says how to treat an id that
// exists.
func bookError(err error, wanted IfExists) error {
	if exists, is := errors.AsType[*reservations.ExistsError](err); is {
		return errIDExists(bookingFailed(exists), wanted, exists)
	}
	if limit, is := errors.AsType[*reservations.LimitError](err); is {
		return contract.LedgerLimit(limit)
	}
	return err
}

// cancel ends the reservation of a caller that has gone.
func (a *attempt) cancel() {
	if stop := a.result.StopWatch; stop != nil { // the caller will not
		stop()
		a.result.StopWatch = nil
	}
	a.retry.cancel()
}

// answer does what follows from a choice, and completes the result. It runs outside all locks.
func (a *attempt) answer() {
	a.addFetch()
	decided := !a.Advisory && !a.ByLoad
	if decided || a.ExplainOnly {
		a.choice.evaluateShadows()
	}
	if decided && a.choice.sampled.is(&a.scope) {
		a.keepDecision()
	}
	if a.pair != nil {
		a.pair.answer(a)
	}
	if a.Explain || a.ExplainOnly {
		a.result.Explanation = a.explain()
		if a.pair != nil {
			a.pair.result.Decode.Explanation = a.result.Explanation
		}
	}
	a.api.pending.save(a)
}

// explain returns why the choice was made, or why none was.
func (a *attempt) explain() *Explanation {
	x := a.choice.decided().explain()
	if l := a.scope.rules.Learner(); l != nil {
		for i, e := range a.choice.scored {
			x.Candidates[i].PerOutput = l.PerOutput(e.Slot, e.Rank)
		}
	}
	return a.scope.addHeaders(x)
}
