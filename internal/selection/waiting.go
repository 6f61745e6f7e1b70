package selection

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// wait is the state of an attempt in wait queues.
type wait struct {
	since    time.Time     // when it first came to a queue
	queued   bool          // it has waited
	time     time.Duration // from since to its turn in the last queue, if queued
	reserved int64         // bytes of Config.Waiting
	class    *admission.Class
}

// bookInTurn books, at once or when the attempt's turn comes. If the caller goes away,
// the attempt leaves the wait queue, and its reservation is cancelled if there is one.
func (a *attempt) bookInTurn(ctx context.Context) error {
	if a.Advisory || a.ExplainOnly {
		return a.book()
	}
	if err := ctx.Err(); err != nil {
		return errClientGone(err)
	}
	queue := a.scope.rules.Queue
	if !queue.Waits() {
		return a.book()
	}
	var booked chan struct{}
	if a.retry.possible() {
		id := *a.ReservationID
		booked = a.api.idempotency.waiters.add(id)
		defer a.api.idempotency.waiters.remove(id, booked)
	}
	queued, err := queue.Enter((*turn)(a), &a.wait.since)
	if queued == nil {
		return queueError(err)
	}
	a.counts.queued()
	defer func() {
		a.counts.dequeued()
		a.wait.queued, a.wait.time = true, time.Since(a.wait.since)
		a.timeline.waited(a.wait.since)
	}()
	select {
	case <-queued.Done():
	case <-booked:
		if queue.Withdraw(queued) {
			return errBookedMeanwhile
		}
		<-queued.Done()
	case <-ctx.Done():
		if queue.Withdraw(queued) {
			return errClientGone(ctx.Err())
		}
		<-queued.Done()
	}
	if err := ctx.Err(); err != nil {
		if queued.Err() == nil && a.reserve {
			a.cancel()
		}
		return errClientGone(err)
	}
	return queued.Err()
}

func errClientGone(err error) error {
	return &contract.Error{Kind: contract.Cancelled, Text: "the client went away", Err: err}
}

// queueDetails is the "details" object of a queue rejection.
type queueDetails struct {
	PolicyClass string `json:"policy_class"`
	LimitKind   string `json:"limit_kind"`
	Current     uint64 `json:"current"`
	Limit       uint64 `json:"limit"`
}

// queueError returns the caller's error for one of the wait queue.
func queueError(err error) error {
	if err == nil {
		return nil
	}
	full, ok := errors.AsType[*admission.LimitError](err)
	if !ok {
		return err
	}
	limit := ""
	if full.LimitKind == admission.LimitBytes {
		limit = contract.LimitMemory
	}
	return &contract.Error{Kind: contract.QueueRejected, Text: full.Error(), Err: err, Limit: limit, Details: queueDetails{
		PolicyClass: full.PolicyClass, LimitKind: string(full.LimitKind), Current: full.Current, Limit: full.Limit,
	}}
}

// turn is an attempt as a wait queue sees it.
type turn attempt

// Waiter implements waitqueue.Request.
func (t *turn) Waiter() admission.Waiter {
	p, best := &t.prompt, uint64(0)
	for _, e := range t.scope.eligible {
		cand := candidate(e, &p.overlap, &reservations.View{})
		best = max(best, t.weights.Cached(p.size, &cand))
	}
	w := admission.Waiter{
		ClassHeader:    t.PolicyClass,
		StrictPriority: t.StrictPriority,
		PriorityJump:   t.PriorityJump,
		Tokens:         p.size.Tokens,
		Uncached:       p.size.Tokens - min(p.size.Tokens, best),
		Lane:           admission.Lane{Filter: t.filter.Key()},
		Tenant:         t.payingTenant(),
		Program:        cmp.Or(t.FairnessID, t.Parent, t.Session),
	}
	if pinned := t.Pinned; pinned != nil {
		w.Lane.Pinned, w.Lane.Rank = true, *pinned
	}
	if target := t.Target; target != nil && !t.scope.ignoresTarget() {
		w.Lane.Filter += target.key()
	}
	w.Lane.Filter += t.EligibleKey
	if due, latest, _ := (*attempt)(t).due(); !math.IsInf(due, 1) {
		now := t.api.scopes.Seconds()
		w.Due, w.Latest = max(now+due, math.SmallestNonzeroFloat64), now+latest
	}
	return w
}

// Workers implements waitqueue.Request.
func (t *turn) Workers() (n int) {
	snap := t.scope.snapshot
	if !snap.Encoders {
		return len(snap.Workers)
	}
	for _, w := range snap.Workers {
		if !w.OnlyEncodes() {
			n++
		}
	}
	return n
}

// CanRun implements waitqueue.Request.
func (t *turn) CanRun(class *admission.Class) (free bool) {
	t.wait.class = class
	t.api.ledger.Look(t.Scope, nil, func(v *reservations.View) { free = anyFree(t.scope.responsive(), v, class) })
	return free
}

// anyFree reports whether one of the ranks is not too busy for the class, or not known.
func anyFree(ranks []catalog.Entry, v *reservations.View, class *admission.Class) bool {
	return slices.ContainsFunc(ranks, func(e catalog.Entry) bool {
		return !v.Known(e.Slot, e.Rank) || !class.Busy(v.Greater(e.Slot).PrefillTokens, batchLimit(e.Worker))
	})
}

// CanRunNow implements waitqueue.Request.
func (t *turn) CanRunNow(class *admission.Class) bool {
	if !t.scope.isCurrent() {
		err := t.Refresh(0)
		t.prompt.unload()
		if err != nil {
			return true
		}
	}
	return t.CanRun(class)
}

// BeforeWait implements waitqueue.Request. The reservation that a retry repeats may have been
// booked after the retry looked for it, and may keep the rank busy, so it checks again. Then it
// drops what is not needed while waiting.
func (t *turn) BeforeWait(class *admission.Class) error {
	if t.retry.possible() && t.api.idempotency.conflict(*t.ReservationID, t.Scope) != nil {
		return errBookedMeanwhile
	}
	t.payer.PolicyClass = class.Name // until its turn
	return (*attempt)(t).prepareWait(class.Name)
}

// Refresh implements waitqueue.Request.
func (t *turn) Refresh(overlapAge time.Duration) error {
	changed, err := t.scope.refresh()
	if err != nil {
		return err
	}
	if changed || t.wait.longerThan(overlapAge) {
		t.prompt.load()
		t.prompt.lookUp(t.scope.state, false)
	}
	t.scope.expireStale()
	return t.scope.listEligible()
}

// TooLate implements waitqueue.Request.
func (t *turn) TooLate(by admission.Payer) error {
	c := &t.choice
	if !t.RefuseOnMiss || t.pair != nil || c.predictable() != "" || railed(c.scope.rules.Policies.Learner, c.scope.eligible) {
		return nil
	}
	_, latest, needs := (*attempt)(t).due()
	t.payer, c.target = by, &TargetEffect{Refused: true}
	waited := time.Since(t.wait.since).Seconds()
	return contract.NewTargetMissed(contract.TargetError{Predicted: seconds(needs), Over: seconds(max(waited, -latest)), Waited: true})
}

// Run implements waitqueue.Request.
func (t *turn) Run(by admission.Payer) error {
	t.payer = by
	return (*attempt)(t).book()
}

// longerThan reports whether the attempt first came to a queue at least d ago; never for d = 0.
func (w *wait) longerThan(d time.Duration) bool { return d > 0 && time.Since(w.since) >= d }

// batchLimit returns the worker's max_num_batched_tokens, 0 if unknown.
func batchLimit(w *catalog.Worker) uint64 {
	if w.MaxNumBatchedTokens == nil {
		return 0
	}
	return *w.MaxNumBatchedTokens
}

// Work implements waitqueue.Delayable.
func (t *turn) Work() float64 {
	p, l := &t.prompt, t.scope.rules.Policies.Learner
	work, least := l.Model().Prefill(float64(p.size.Tokens), float64(p.size.Tokens)), t.choice.leastPrefill(l)
	for _, e := range t.scope.eligible {
		cand := candidate(e, &p.overlap, &reservations.View{})
		work = min(work, least(&e, t.weights.ToCompute(p.size, &cand), 1))
	}
	return work
}

// RunOrDelay implements waitqueue.Delayable.
func (t *turn) RunOrDelay(charged map[uint32]float64, force bool, overlapAge time.Duration) (delay time.Duration, err error) {
	if t.wait.longerThan(overlapAge) || !t.scope.isCurrent() {
		if err := t.Refresh(overlapAge); err != nil {
			return 0, err
		}
	}
	t.choice.charged = charged
	defer func() { t.choice.charged = nil }()
	if !force {
		t.prompt.load()
		if delay := t.delay(); delay > 0 {
			t.prompt.unload()
			return delay, nil
		}
	}
	return 0, t.Run(admission.Payer{})
}

// delay returns how long the request should wait, and if so charges its work to the
// rank that it would get. It does not wait if book would fail, or if the predictions for the
// rank cannot be trusted.
func (t *turn) delay() (delay time.Duration) {
	f := t.scope.rules.Policies.PredictedTTFT()
	if f == nil || !t.weights.TrackPrefill {
		return 0
	}
	t.api.ledger.Look(t.Scope, t.prompt.sequence, func(v *reservations.View) {
		ranks, err := t.scope.dropOverloaded(v)
		if err != nil {
			return
		}
		ranks, excluded, err := t.session.narrow(ranks)
		if err != nil || excluded != nil {
			return
		}
		c := &t.choice
		c.score(ranks, v)
		i := selector.Pick(c.costs, 0, t.api.random)
		m, q := &c.decision.Model, c.queues[i]
		if m.Fallback || q.Late {
			return // the predictions cannot be trusted
		}
		own := m.Cost(float64(c.decision.ToCompute(f.Own, i)), float64(t.prompt.size.Tokens), &q, ttft.Crowding{})
		if wait := own.Wait - c.charged[ranks[i].Slot]; wait > f.Hold {
			c.charged[ranks[i].Slot] += own.Prefill
			delay = max(1, time.Duration((wait-f.Hold)*float64(time.Second)))
		}
	})
	return delay
}

// A waiting request keeps the hashes of its prompt, but neither its text nor, if there are many, its
// tokens. If they are many too, it keeps them where they are active in the ledger, and has a list
// of them only while one is needed.

// The memory of a waiting request besides its hashes and lists, in bytes.
const (
	// waitOverhead covers its goroutine, its connection with buffers and the attempt, as
	// TestAccountsAreReal measures them, and maxKeptTokens tokens.
	waitOverhead = 44 << 10
	// maxKeptTokens is how many tokens a prompt may have to keep them, so that it can be hashed
	// again if the block size changes.
	maxKeptTokens = 2048
	// maxKeptBlocks is how many blocks a prompt that came as hashes may have to keep its lists.
	maxKeptBlocks = maxKeptTokens / 16
	// waitPerRank is for each rank that it considers: a catalog entry, a candidate with its
	// cost, and the overlap on three tiers.
	waitPerRank = 160
)

// prepareSessionWait prepares the attempt to wait for its session.
func (a *attempt) prepareSessionWait() error {
	if err := a.prompt.read(&a.Prompt, a.scope.snapshot); err != nil {
		return err
	}
	return a.prepareWait(a.PolicyClass)
}

// prepareWait prepares an attempt whose prompt was read to wait in a class. The error says that
// the account of waiting requests is full.
func (a *attempt) prepareWait(class string) error {
	p, snap := &a.prompt, a.scope.snapshot
	p.unload()
	if p.pinned == nil && a.Text != nil && p.isLong(&a.Prompt) {
		p.pin(&a.Prompt, snap, a.api.ledger)
	}
	n := int64(waitOverhead+waitPerRank*snap.NumRanks) + p.bytes() + bytesOf(a.SelectRequest)
	if more := n - a.wait.reserved; more > 0 {
		if err := a.api.reserveWaiting(more, class); err != nil {
			return err
		}
		a.wait.reserved = n
	}
	if a.Text != nil {
		a.Text.ReleaseText()
	}
	return nil
}

// bytesOf returns the approximate memory of a request's lists and texts.
func bytesOf(r *SelectRequest) int64 {
	n := 16 * len(r.AllowedWorkers)
	for _, taint := range r.RequiredTaints {
		n += 16 + 2*len(taint)
	}
	for taint := range r.PreferredTaints {
		n += 64 + len(taint)
	}
	for _, text := range []*string{
		r.SelectionID, r.ReservationID, &r.PolicyClass, &r.Session, &r.SessionTenant, &r.Parent, &r.FairnessID, &r.FairTenant, &r.EligibleKey, &r.Scope.Model, &r.Scope.Tenant,
	} {
		if text != nil {
			n += len(*text)
		}
	}
	return int64(n)
}

// reserveWaiting reserves n bytes for a request that waits. The error, which names the class of
// the request, says that the account is full.
func (a *API) reserveWaiting(n int64, class string) error {
	account := a.config.Waiting
	if account.Reserve(n) {
		return nil
	}
	return queueError(&admission.LimitError{
		PolicyClass: class, LimitKind: admission.LimitBytes,
		Current: uint64(account.Used()), Limit: uint64(account.Limit()),
	})
}

// release gives back what was reserved for waiting.
func (w *wait) release(api *API) {
	if w.reserved > 0 {
		api.config.Waiting.Release(w.reserved)
		w.reserved = 0
	}
}
