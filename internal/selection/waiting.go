package selection

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// runOrWait runs the selection, at once or when its turn comes. If the caller goes away, the
// selection leaves the wait queue, and its reservation is cancelled if there is one.
func (c *selection) runOrWait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return errClientGone(err)
	}
	queue := c.scope.Queue
	if !queue.Waits() {
		return c.Run()
	}
	var booked chan struct{}
	if c.isRetry() {
		id := *c.request.ReservationID
		booked = c.api.idempotency.waiters.add(id)
		defer c.api.idempotency.waiters.remove(id, booked)
	}
	queued, err := queue.Enter(c, &c.wait.since)
	if queued == nil {
		return queueError(err)
	}
	c.countQueued()
	defer func() {
		c.countDequeued()
		c.wait.queued, c.wait.time = true, time.Since(c.wait.since)
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
		if queued.Err() == nil && c.reserve {
			c.cancelReservation()
		}
		return errClientGone(err)
	}
	return queued.Err()
}

// errBusy refuses a request with NoWait.
var errBusy = &contract.Error{Kind: contract.QueueRejected, Text: "every eligible rank is busy"}

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

// Waiter implements waitqueue.Request.
func (c *selection) Waiter() admission.Waiter {
	best := uint64(0)
	for _, e := range c.eligible {
		cand := candidate(e, &c.overlap, &reservations.View{})
		best = max(best, c.weights.Cached(c.size, &cand))
	}
	w := admission.Waiter{
		ClassHeader:    c.request.PolicyClass,
		StrictPriority: c.request.StrictPriority,
		PriorityJump:   c.request.PriorityJump,
		Tokens:         c.size.Tokens,
		Uncached:       c.size.Tokens - min(c.size.Tokens, best),
		Lane:           admission.Lane{Filter: c.filter.Key()},
	}
	if p := c.request.Pinned; p != nil {
		w.Lane.Pinned, w.Lane.Rank = true, *p
	}
	if t := c.request.Target; t != nil && !c.ignoresTarget() {
		w.Lane.Filter += t.key()
	}
	w.Lane.Filter += c.request.EligibleKey
	return w
}

// Workers implements waitqueue.Request.
func (c *selection) Workers() int { return len(c.snapshot.Workers) }

// CanRun implements waitqueue.Request.
func (c *selection) CanRun(class *admission.Class) (free bool) {
	c.api.ledger.Look(c.request.Scope, nil, func(v *reservations.View) {
		for _, e := range c.responsive() {
			if !v.Known(e.Slot, e.Rank) || !class.Busy(v.Greater(e.Slot).PrefillTokens, batchLimit(e.Worker)) {
				free = true
				return
			}
		}
	})
	return free
}

// CanRunNow implements waitqueue.Request.
func (c *selection) CanRunNow(class *admission.Class) bool {
	if snap := c.api.catalog.Snapshot(c.request.Scope); snap != c.snapshot {
		err := c.Refresh(0)
		c.dropHashes()
		if err != nil {
			return true
		}
	}
	return c.CanRun(class)
}

// BeforeWait implements waitqueue.Request. The reservation that a retry repeats may have been
// booked after the retry looked for it, and may keep the rank busy, so it checks again. Then it
// drops what is not needed while waiting.
func (c *selection) BeforeWait(class *admission.Class) error {
	if c.isRetry() && c.api.idempotency.conflict(*c.request.ReservationID, c.request.Scope) != nil {
		return errBookedMeanwhile
	}
	if c.request.NoWait && c.scope.Queue.Enabled() { // a request that is held does not wait for a busy rank
		return errBusy
	}
	return c.keepHashes(class.Name)
}

// Refresh implements waitqueue.Request.
func (c *selection) Refresh(overlapAge time.Duration) error {
	snap, state, err := c.api.scopes.Schedulable(c.request.Scope)
	if err != nil {
		return err
	}
	if state != c.scope {
		return scopes.ErrGone
	}
	if c.waitedFor(overlapAge) || snap != c.snapshot {
		c.loadHashes()
		c.findOverlap()
	}
	c.snapshot = snap
	c.expireStale()
	return c.listEligible()
}

// waitedFor reports whether the request first came to a queue at least d ago; never for d = 0.
func (c *selection) waitedFor(d time.Duration) bool { return d > 0 && time.Since(c.wait.since) >= d }

// batchLimit returns the worker's max_num_batched_tokens, 0 if unknown.
func batchLimit(w *catalog.Worker) uint64 {
	if w.MaxNumBatchedTokens == nil {
		return 0
	}
	return *w.MaxNumBatchedTokens
}

// Work implements waitqueue.Delayable.
func (c *selection) Work() float64 {
	p := c.scope.Policies
	least := c.size.Tokens
	for _, e := range c.eligible {
		cand := candidate(e, &c.overlap, &reservations.View{})
		least = min(least, c.weights.ToCompute(c.size, &cand))
	}
	return p.Learner.Model().Prefill(float64(least), float64(c.size.Tokens))
}

// RunOrDelay implements waitqueue.Delayable.
func (c *selection) RunOrDelay(charged map[uint32]float64, force bool, overlapAge time.Duration) (delay time.Duration, err error) {
	if c.waitedFor(overlapAge) || c.api.catalog.Snapshot(c.request.Scope) != c.snapshot {
		if err := c.Refresh(overlapAge); err != nil {
			return 0, err
		}
	}
	c.charged = charged
	defer func() { c.charged = nil }()
	if !force {
		c.loadHashes()
		if delay := c.delayOf(); delay > 0 {
			c.dropHashes()
			return delay, nil
		}
	}
	return 0, c.Run()
}

// delayOf returns how long the request should wait, and if so charges its work to the
// rank that it would get. It does not wait if Run would fail, or if the predictions for the
// rank cannot be trusted.
func (c *selection) delayOf() (delay time.Duration) {
	f := c.scope.Policies.PredictedTTFT()
	if f == nil || !c.weights.TrackPrefill {
		return 0
	}
	c.api.ledger.Look(c.request.Scope, c.sequence, func(v *reservations.View) {
		ranks, err := c.dropOverloaded(v)
		if err != nil {
			return
		}
		ranks, excluded, err := c.applySession(ranks)
		if err != nil || excluded != nil {
			return
		}
		c.score(ranks, v)
		i := selector.Pick(c.costs, 0, selector.Global())
		m, q := &c.decision.Model, c.queues[i]
		if m.Fallback || q.Late {
			return // the predictions cannot be trusted
		}
		slot := ranks[i].Slot
		own := m.Cost(float64(f.Own.ToCompute(c.size, &c.candidates[i])), float64(c.size.Tokens), &q, 0)
		if wait := own.Wait - q.Ahead; wait > f.Hold {
			c.charged[slot] += own.Prefill
			delay = max(1, time.Duration((wait-f.Hold)*float64(time.Second)))
		}
	})
	return delay
}

// A waiting request keeps the hashes of its prompt, but neither its text nor, if there are many, its
// tokens. If they are many too, it keeps them where they are active in the ledger, and has a list
// of them only while one is needed.

// kept is the state that a selection keeps while it waits.
type kept struct {
	bytes int64 // reserved from Config.Waiting
	// prompt has the hashes of a long prompt; nil: they are still in the selection or its request.
	// loaded has a list of them while there is one.
	prompt *reservations.Pin
	loaded *hashLists
	// tokens: the long prompt came as tokens. layout is how they were hashed, rest the digest of
	// those in no complete block.
	tokens bool
	layout hashing.Layout
	rest   uint64
}

// hashLists is the memory of the hashes of a prompt.
type hashLists struct{ local, sequence []uint64 }

var hashListPool = sync.Pool{New: func() any { return new(hashLists) }}

// The memory of a waiting request besides its hashes and lists, in bytes.
const (
	// keptOverhead covers its goroutine, its connection, the selection and maxKeptTokens tokens.
	keptOverhead = 24 << 10
	// maxKeptTokens is how many tokens a prompt may have to keep them, so that it can be hashed
	// again if the block size changes.
	maxKeptTokens = 2048
	// maxKeptBlocks is how many blocks a prompt that came as hashes may have to keep its lists.
	maxKeptBlocks = maxKeptTokens / 16
	// keptPerRank is for each rank that it considers: a catalog entry, a candidate with its
	// cost, and the overlap on three tiers.
	keptPerRank = 160
)

// errPromptGone ends a request with a long prompt if the scope's block size changed while it
// waited: its hashes are of the old block size, and its tokens are gone.
var errPromptGone = &contract.Error{Kind: contract.Unavailable, Text: "the block size of the workers changed while the request waited"}

// keepHashes prepares a parsed request to wait in a class. The error says that the account of
// waiting requests is full.
func (c *selection) keepHashes(class string) error {
	if c.wait.kept == nil {
		c.wait.kept = new(kept)
	}
	req, k := c.request, c.wait.kept
	c.dropHashes()
	if k.prompt == nil && req.Text != nil && c.hasLongPrompt() {
		c.detachPrompt()
	}
	n := int64(keptOverhead + keptPerRank*c.snapshot.NumRanks + 16*len(req.AllowedWorkers))
	if k.prompt != nil {
		n += int64(k.prompt.Bytes())
	} else {
		n += int64(8 * (len(c.local) + len(c.sequence)))
	}
	for _, taint := range req.RequiredTaints {
		n += int64(16 + 2*len(taint))
	}
	for taint := range req.PreferredTaints {
		n += int64(64 + len(taint))
	}
	for _, text := range []*string{
		req.SelectionID, req.ReservationID, &req.PolicyClass, &req.Session, &req.EligibleKey, &req.Scope.Model, &req.Scope.Tenant,
	} {
		if text != nil {
			n += int64(len(*text))
		}
	}
	if more := n - k.bytes; more > 0 {
		if err := c.api.reserveWaiting(more, class); err != nil {
			return err
		}
		k.bytes = n
	}
	if req.Text != nil {
		req.Text.ReleaseText()
	}
	return nil
}

// hasLongPrompt reports whether the prompt has many tokens, or many blocks if only these are known.
func (c *selection) hasLongPrompt() bool {
	if tokens, _, ok := c.request.Prompt.tokens(); ok {
		return len(tokens) > maxKeptTokens
	}
	return len(c.sequence) > maxKeptBlocks
}

// detachPrompt pins the hashes of the prompt, and drops them and what they were made from.
func (c *selection) detachPrompt() {
	p, k := &c.request.Prompt, c.wait.kept
	if _, _, k.tokens = p.tokens(); k.tokens {
		k.layout, k.rest = p.layout(c.snapshot), digestRest(p, len(c.sequence), int(c.size.BlockSize))
	}
	k.prompt = c.api.ledger.Pin(c.request.Scope, c.local, c.sequence)
	p.TokenIDs, p.MM, p.BlockHashes, p.SequenceHashes = nil, nil, nil, nil
	if p.Routing != nil {
		*p.Routing = Routing{}
	}
	p.Routing = nil
	c.local, c.sequence, c.localMem, c.sequenceMem = nil, nil, nil, nil
}

// loadHashes lists the hashes of a prompt that is detached, until dropHashes.
func (c *selection) loadHashes() {
	if k := c.wait.kept; k != nil && k.prompt != nil && k.loaded == nil {
		l := hashListPool.Get().(*hashLists)
		l.local, l.sequence = k.prompt.AppendTo(l.local[:0], l.sequence[:0])
		k.loaded, c.local, c.sequence = l, l.local, l.sequence
	}
}

func (c *selection) dropHashes() {
	if k := c.wait.kept; k != nil && k.loaded != nil {
		if cap(k.loaded.sequence) <= maxPooledBlocks {
			hashListPool.Put(k.loaded)
		}
		k.loaded, c.local, c.sequence = nil, nil, nil
	}
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

// readPrompt reads the prompt for the workers of a scope, unless the request has waited and
// only the hashes are left.
func (c *selection) readPrompt(snap *catalog.Snapshot) error {
	k := c.wait.kept
	switch {
	case k == nil || k.prompt == nil:
		return c.read(&c.request.Prompt, snap)
	case k.tokens && c.request.Prompt.layout(snap) != k.layout:
		return errPromptGone
	}
	c.loadHashes()
	c.size.BlockSize = snap.BlockSize
	return nil
}

// identity is identify for a request that may have waited.
func (c *selection) identity() promptIdentity {
	if k := c.wait.kept; k != nil && k.prompt != nil {
		i := identityOf(c.sequence, c.size.Tokens)
		i.rest, i.hasRest = k.rest, k.tokens
		return i
	}
	return c.identify(&c.request.Prompt)
}

// releaseKept releases what was kept and reserved for waiting.
func (c *selection) releaseKept() {
	if k := c.wait.kept; k != nil {
		c.dropHashes()
		if k.prompt != nil {
			k.prompt.Unpin()
			k.prompt = nil
		}
		c.api.config.Waiting.Release(k.bytes)
		k.bytes = 0
	}
}
