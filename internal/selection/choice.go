package selection

import (
	"cmp"
	"slices"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// choice is the decision of one attempt: which of the ranks that may take the request gets it.
// Its methods score ranks, pick one and explain the result. They change nothing that other
// requests see, but for what policies learn of a decision.
type choice struct {
	*request
	scope   *scope
	prompt  *prompt
	session *session

	chosen   catalog.Entry
	uncached uint64 // tokens that the chosen rank has to compute, for its queue; 0: the answer's EffectivePrefillTokens
	// predicted is the time to first token on the chosen rank, in seconds; 0: no policy predicts it.
	predicted float64
	warmed    bool // a new or emptied rank was chosen for that reason
	prefills  bool // the rank is to prefill for another one, see Pair
	sampled   sampled
	// charged is the predicted work of requests that are delayed before this one, in seconds by slot.
	charged map[uint32]float64

	candidates []selector.Candidate
	costs      []float64
	group      []float64              // see compared
	foreign    []reservations.Foreign // of the candidates, if an engine of the scope reports
	queues     []selector.Queue       // queues of the candidates, if the policy needs them
	decision   selector.Decision      // the policy's input, if a policy is configured
	scored     []catalog.Entry        // ranks of the candidates once one is chosen: a part of scope.eligible or scope.free; nil: in byLoad.scored
	byLoad     byLoad
	shadows    []ShadowChoice
	// fetches has what the candidates would fetch, with selector.FetchPriced, and fetched the same for the policy; empty: fetches were
	// not priced. fetch is that of the chosen one, nil: none.
	fetches []fetchOffer
	fetched []selector.Fetch
	fetch   *fetchOffer
	loads   []fetchLoad   // see fetchLoad
	target  *TargetEffect // nil: the request has no target
	holding []int         // 1 for the scored ranks that are predicted to hold it
	times   []float64     // predicted times to first token of the scored ranks, in seconds
}

// reset empties the choice, but for its memory.
func (c *choice) reset() {
	clear(c.byLoad.scored)
	c.chosen, c.uncached, c.predicted, c.warmed, c.sampled, c.charged = catalog.Entry{}, 0, 0, false, sampled{}, nil
	c.foreign, c.scored, c.shadows, c.target = c.foreign[:0], nil, c.shadows[:0], nil
	c.fetches, c.fetch = c.fetches[:0], nil
}

// pick chooses among ranks. It returns the ranks that were scored, and the index of the chosen
// one.
func (c *choice) pick(ranks []catalog.Entry, v *reservations.View) (scored []catalog.Entry, i int) {
	scored, i = c.pickBest(ranks, v)
	if k := &c.session.kept; k.session != "" && len(ranks) > 1 {
		if k.beside && scored[i].Rank == k.parent && c.candidates[i].Requests > 0 && !c.targetDecides() && !c.holdsMost(i) {
			scored, i = c.pickBest(slices.DeleteFunc(slices.Clone(ranks), func(e catalog.Entry) bool { return e.Rank == k.parent }), v)
		}
		i = c.keepHome(scored, i)
	}
	return scored, i
}

// pickBest is pick without regard to where the request's session is.
func (c *choice) pickBest(ranks []catalog.Entry, v *reservations.View) (scored []catalog.Entry, i int) {
	c.byLoad.used = false
	if c.ByLoad {
		return ranks, c.pickLeastLoaded(ranks, v)
	}
	if c.hasTarget() {
		c.score(ranks, v)
		if i, ok := c.pickForTarget(ranks); ok {
			return ranks, c.leastLoaded(ranks, i)
		}
	}
	if i, warmed := c.pickToWarm(ranks, v); warmed {
		return ranks, i
	}
	if c.mayPickByLoad(ranks) && !c.needsAllCosts() {
		if i, c.byLoad.used = c.pickByLoad(ranks, v); c.byLoad.used {
			return c.byLoad.scored, i
		}
	}
	c.score(ranks, v)
	return ranks, c.leastLoaded(ranks, selector.Pick(c.compared(), c.temperature(), c.api.random))
}

// needsAllCosts reports whether the costs of all ranks are wanted: for an explanation,
// fallbacks, shadow policies, or a decision that is kept.
func (c *choice) needsAllCosts() bool {
	p, req := c.scope.rules.Policies, c.request
	return c.pricesFetches() || req.SharesFrontend != nil || req.Explain || req.ExplainOnly || req.Fallbacks > 0 ||
		p != nil && len(p.Shadows()) > 0 || c.sampled.is(c.scope)
}

// score fills in the candidates of the ranks and computes their costs.
func (c *choice) score(ranks []catalog.Entry, v *reservations.View) {
	c.candidates = c.candidates[:0]
	active := c.session.kept.countsActive
	for _, e := range ranks {
		cand := candidate(e, &c.prompt.overlap, v)
		if active {
			countActive(&cand)
		}
		if prefer := c.PreferredTaints; len(prefer) > 0 && c.Pinned == nil {
			cand.Taint = selector.TaintFactor(prefer, e.Worker.HasTaint)
		}
		if shares := c.SharesFrontend; shares != nil && shares(e) {
			cand.Device, cand.Host, cand.Disk = c.worstOverlap(e)
		}
		c.candidates = append(c.candidates, cand)
	}
	c.noteForeign(ranks, v)
	c.costsOf(ranks, v)
}

// noteForeign keeps the foreign load of the candidates, for explanations.
func (c *choice) noteForeign(ranks []catalog.Entry, v *reservations.View) {
	c.foreign = c.foreign[:0]
	for _, e := range ranks {
		said := v.Engine(e.Slot)
		if said == nil {
			return
		}
		c.foreign = append(c.foreign, said.Foreign)
	}
}

// worstOverlap returns the overlap of the rank with the most left to compute among those that
// share the frontend of e.
func (c *choice) worstOverlap(e catalog.Entry) (device, host, disk uint32) {
	most, first := uint64(0), true
	for _, other := range c.scope.snapshot.RanksOf(e.Rank.Worker) {
		if !c.SharesFrontend(other) {
			continue
		}
		var of selector.Candidate
		of.Device, of.Host, of.Disk = c.prompt.overlap.At(other.Slot)
		if left := c.weights.ToCompute(c.prompt.size, &of); first || left > most {
			most, first = left, false
			device, host, disk = of.Device, of.Host, of.Disk
		}
	}
	return device, host, disk
}

// leastLoaded returns the least loaded of the scored ranks that share the frontend of rank i.
func (c *choice) leastLoaded(ranks []catalog.Entry, i int) int {
	shares := c.SharesFrontend
	if shares == nil || !shares(ranks[i]) {
		return i
	}
	load := func(i int) uint64 {
		return c.candidates[i].Prefill + c.candidates[i].Active*uint64(c.scope.snapshot.BlockSize)
	}
	for j, e := range ranks {
		if e.Rank.Worker == ranks[i].Rank.Worker && shares(e) &&
			cmp.Or(cmp.Compare(load(j), load(i)), cmp.Compare(c.candidates[j].Requests, c.candidates[i].Requests)) < 0 {
			i = j
		}
	}
	return i
}

// candidate returns a rank with its overlap with the prompt and its load, foreign load included.
func candidate(e catalog.Entry, o *indexer.Overlap, v *reservations.View) selector.Candidate {
	var c selector.Candidate
	c.Device, c.Host, c.Disk = o.At(e.Slot)
	if c.Known = v.Known(e.Slot, e.Rank); c.Known {
		carried := v.Total(e.Slot)
		c.Prefill, c.Active, c.Shared, c.Requests = carried.PrefillTokens, carried.Blocks, v.Shared(e.Slot), carried.Requests
	}
	return c
}

// costsOf computes the costs of the candidates, one for each of ranks, by the scope's policy.
func (c *choice) costsOf(ranks []catalog.Entry, v *reservations.View) {
	p := c.scope.rules.Policies
	c.fetches, c.fetch = c.fetches[:0], nil
	if p != nil || c.session.kept.session != "" { // without a policy keepHome and its like read it
		c.decision = selector.Decision{Prompt: c.prompt.size, Candidates: c.candidates, Weights: c.weights}
	}
	if p == nil {
		c.costs = c.weights.Costs(c.prompt.size, c.candidates, c.costs)
		return
	}
	if p.Learner != nil {
		c.addQueues(ranks, v, p.Learner)
		if !c.decision.Model.Fallback && c.pricesFetches() {
			c.priceFetches(ranks, v)
		}
	}
	c.costs = p.Costs(&c.decision, c.prompt.sequence, c.costs)
}

// addQueues adds to the decision the work that the ranks still have to compute, and the learned
// model of its duration.
func (c *choice) addQueues(ranks []catalog.Entry, v *reservations.View, l *ttft.Learner) {
	c.queues = c.queues[:0]
	c.loads = c.api.fetches.loads(c.scope.snapshot.Scope, v, c.loads)
	flows := l.Flows(v.Now())
	for i, e := range ranks {
		if !c.candidates[i].Known {
			c.queues = append(c.queues, selector.Queue{})
			continue
		}
		q := QueueOf(v, e, l)
		q.Ahead, q.Flow = c.charged[e.Slot]+c.fetchLoad(e.Slot).from, flows.Rank(e.Slot, e.Rank)
		c.queues = append(c.queues, q)
	}
	m := l.Model()
	c.decision.Queues = c.queues
	c.decision.Model = selector.Model{
		Parameters: m.Parameters,
		Crowding:   flows.Scope.Crowding(c.scope.snapshot.NumPrompts),
		Fallback:   m.Fallback,
	}
	if c.prefills { // no answer runs on the rank
		c.decision.Model.PerAttended = 0
	}
}

// foreignWeight is the part of the foreign work that waits by the last report that a new request is
// predicted to wait for. Some of it is that of reservations too young to be told from it, which
// count already, some is done since. In plays with a third of the load around the service, with
// fresh and with old reports, the mean TTFT is lower with a half than with all of it.
const foreignWeight = 0.5

// QueueOf returns the work that a rank still has to compute, foreign work included, and its speed as
// learned by l, without its traffic. The ledger must know the rank.
func QueueOf(v *reservations.View, e catalog.Entry, l *ttft.Learner) selector.Queue {
	of := v.Queue(e.Slot)
	q := selector.Queue{
		Prefills: of.Prefills, Tokens: of.Tokens, Context: of.Context,
		HeadTokens: of.HeadTokens, HeadPrompt: of.HeadPrompt, Elapsed: of.Elapsed.Seconds(), Decoding: of.Decoding,
		Prompts: float64(of.Prompts),
	}
	q.Speed, q.Late = l.Rank(e.Slot, e.Rank)
	if said := v.Engine(e.Slot); said != nil {
		f := &said.Foreign
		if f.Untold {
			q.Foreign = l.Model().Untold(float64(f.Waiting))
		} else {
			q.Foreign = l.Model().Foreign(float64(f.Waiting), float64(f.PrefillTokens))
		}
		q.Foreign *= foreignWeight * q.Speed
		q.Decoding += f.Requests - f.Waiting
	}
	return q
}

// temperature returns the temperature of the choice.
func (c *choice) temperature() float64 {
	if c.ByLoad {
		return 0
	}
	if p := c.scope.rules.Policies; p != nil {
		return p.Policy.Temperature(&c.decision)
	}
	return c.weights.Temperature
}

// noteDecided informs the policy of its decision. A choice from one rank, and one that is only
// asked for, are no decisions.
func (c *choice) noteDecided() {
	if p := c.scope.rules.Policies; p != nil && len(c.candidates) > 1 && !c.Advisory && !c.ExplainOnly {
		p.Decided(&c.decision)
	}
}

// toCompute returns how many tokens of the prompt candidate i has to compute, for the queues of
// predictions; 0 if no policy uses them.
func (c *choice) toCompute(i int) uint64 {
	if p := c.scope.rules.Policies; p != nil && p.Learner != nil {
		return p.ToCompute(&c.decision, i)
	}
	return 0
}

// expected returns the time to first token that is predicted for candidate i, in seconds; 0 if no policy, not even a shadow,
// predicts it.
func (c *choice) expected(i int) float64 {
	if p := c.scope.rules.Policies; p == nil || p.Learner == nil {
		return 0
	}
	of := predict(&c.decision, i)
	return of.Wait + of.Prefill
}

// predictor returns the deciding policy if it predicts times, else nil. Without tracked prefills none does.
func (c *choice) predictor() *selector.PredictedTTFT {
	p := c.scope.rules.Policies
	if p == nil || !c.weights.TrackPrefill {
		return nil
	}
	return p.PredictedTTFT()
}

// predictedTTFT returns the time to first token that the policy predicts for candidate i.
// It is 0 if the policy predicts none, has learned too little, or callers report the ends
// of prefills too late.
func (c *choice) predictedTTFT(i int) time.Duration {
	if i >= len(c.queues) || c.predictor() == nil {
		return 0
	}
	if m := &c.decision.Model; m.Fallback || !m.Mature || c.queues[i].Late {
		return 0
	}
	cost := predict(&c.decision, i)
	return time.Duration((cost.Wait + cost.Prefill) * float64(time.Second))
}

// nextBest lists up to n further ranks, the cheapest first, at most one of each worker and
// none of the chosen one, nor one that is due for a trial, which this request does not take.
func (c *choice) nextBest(n int) (next []catalog.Rank) {
	for range n {
		best := -1
		for i, e := range c.scored {
			taken := e.Rank.Worker == c.chosen.Rank.Worker ||
				slices.ContainsFunc(next, func(r catalog.Rank) bool { return r.Worker == e.Rank.Worker })
			if !taken && c.candidates[i].Known && c.scope.silent[e.Rank] == nil && (best < 0 || c.costs[i] < c.costs[best]) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		next = append(next, c.scored[best].Rank)
	}
	return next
}

// mostCached returns the highest prompt.cachedBlocks of the eligible ranks.
func (c *choice) mostCached() (most uint64) {
	ranks := c.scope.eligible
	if c.byLoad.used {
		ranks = c.byLoad.scored
	}
	for i := range ranks {
		most = max(most, c.prompt.cachedBlocks(ranks[i].Slot))
	}
	return most
}
