package selection

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// Conditional says which prompts the rank that decodes prefills itself: those of which it has to
// compute fewer tokens than MaxUncachedTokens, and a smaller share than MaxUncachedShare, as far as
// they are given. These are the rules of Dynamo's conditional disaggregation (isl_bounding), whose
// values are 2,048 tokens and 0.7.
type Conditional struct {
	MaxUncachedTokens *uint64
	MaxUncachedShare  *float64 // of the prompt
}

// PairRequest asks for two ranks for one request.
type PairRequest struct {
	// SelectRequest is the request. Its constraints, Eligible and Session are those of the side that decodes, its
	// Stored is about the rank that prefills. Fallbacks, Pending and Advisory are not used.
	SelectRequest
	Prefill         Constraints // of the side that prefills
	PrefillEligible Eligible    `json:"-"` // as Eligible, of the side that prefills
	// PrefillShares is SharesFrontend of the side that prefills, if its frontend is told the chosen rank by the worker
	// that decodes, or if it is not (see ObeysPrefillRank).
	PrefillShares func(e catalog.Entry, told bool) bool `json:"-"`
	Conditional   *Conditional                          // nil: every prompt gets a pair
}

// Pair is the answer to a PairRequest.
type Pair struct {
	ID      string // by which calls mean both reservations
	Decode  Selection
	Prefill *Selection // nil: the rank that decodes prefills
	// Reason is counts.ReasonUnknown if it is not known any more: see Selection.PlacementOnly.
	Reason counts.PairReason
}

// unbook drops what is known of reservations.
func (p *Pair) unbook() {
	p.ID = ""
	for _, s := range [...]*Selection{&p.Decode, p.Prefill} {
		if s != nil {
			s.ReservationID, s.Registration = nil, 0
		}
	}
}

// SelectPair chooses a rank that prefills and one that decodes, and books both in one step, or
// neither. Workers with the role of prefills prefill, all others decode. If no rank for the prefill
// can be chosen that works together with one that decodes, that one gets the whole request.
func (a *API) SelectPair(ctx context.Context, req *PairRequest) (Pair, error) {
	p := &pairing{of: req}
	req.Eligible, req.EligibleKey = req.Eligible.and(decodes), "decodes"+req.EligibleKey
	t := a.newAttempt(&req.SelectRequest, true)
	t.pair = p
	_, err := t.run(ctx)
	result := p.result
	t.recycle()
	return result, err
}

// OnlyPrefills reports whether a worker serves prefills alone.
func OnlyPrefills(w *catalog.Worker) bool { return w.Role != nil && *w.Role == catalog.RolePrefill }

// ObeysPrefillRank reports whether the sidecar of a worker that decodes tells the one that prefills its rank.
func ObeysPrefillRank(w *catalog.Worker) bool {
	return w.PrefillRankHeader != nil && *w.PrefillRankHeader
}

func decodes(e catalog.Entry) bool { return !OnlyPrefills(e.Worker) }

func prefills(e catalog.Entry) bool { return OnlyPrefills(e.Worker) }

// pairing is the part of an attempt that is about the second rank.
type pairing struct {
	of      *PairRequest
	prefill prefillSide
	found   bool // there are ranks that may prefill
	// bare is the prompt as a rank that has nothing of it sees it.
	bare   prompt
	result Pair
}

// prefillSide is the request for the rank that prefills, and its choice.
type prefillSide struct {
	asked   SelectRequest
	request request
	scope   scope
	session session // none: the request's is that of the decode side
	choice  choice
	told    bool // the frontends are told the rank, see PairRequest.PrefillShares
}

// check returns what is wrong with the request beyond what that for one rank has. p may be nil.
func (p *pairing) check() error {
	if p == nil {
		return nil
	}
	if id := p.of.ReservationID; id != nil && reservations.IsSideID(*id) {
		return contract.Errorf(contract.BadRequest, "the id of a pair must not end with %q or %q", reservations.PrefillID(""), reservations.DecodeID(""))
	}
	if c := p.of.Conditional; c != nil {
		if share := c.MaxUncachedShare; share != nil && !(*share >= 0 && *share <= 1) {
			return contract.Errorf(contract.BadRequest, "conditional.max_uncached_share must be between 0 and 1")
		}
		if c.MaxUncachedShare == nil && c.MaxUncachedTokens == nil {
			return contract.Errorf(contract.BadRequest, "conditional needs `max_uncached_tokens` or `max_uncached_share`")
		}
	}
	if pinned := p.of.Prefill.Pinned; pinned != nil {
		f := p.of.Prefill.filter()
		if err := f.CheckPinned(pinned.Worker); err != nil {
			return &contract.Error{Kind: contract.BadRequest, Text: "prefill: " + err.Error(), Err: err}
		}
	}
	return nil
}

// begin prepares the choice of the rank that prefills, for the workers by which the attempt is judged.
// found reports whether there is one.
func (p *prefillSide) begin(a *attempt) (found bool) {
	of := a.pair.of
	p.asked = SelectRequest{
		Scope: a.Scope, Explain: a.Explain, ExpectedOutputTokens: a.ExpectedOutputTokens, Override: a.Override,
		Eligible: of.PrefillEligible.and(prefills), ByLoad: a.ByLoad, Constraints: of.Prefill,
		TTFTTarget: a.TTFTTarget, Deadline: a.Deadline, RefuseOnMiss: a.RefuseOnMiss, Hint: a.Hint,
	}
	if of.PrefillShares != nil {
		p.asked.SharesFrontend = func(e catalog.Entry) bool { return of.PrefillShares(e, p.told) }
	}
	p.request = request{
		api: a.api, SelectRequest: &p.asked, reserve: true, filter: of.Prefill.filter(), weights: a.weights, firstToken: a.firstToken,
	}
	p.scope.request, p.choice.request = &p.request, &p.request
	p.scope.reset()
	p.choice.reset()
	p.choice.scope, p.choice.prompt, p.choice.session, p.choice.prefills = &p.scope, &a.prompt, &p.session, true
	p.scope.state, p.scope.rules, p.scope.snapshot = a.scope.state, a.scope.rules, a.scope.snapshot
	return p.scope.listEligible() == nil
}

// free returns the ranks that may prefill and are not overloaded; none if no engine gives signs of life, or if all are
// too busy for the class of the wait queue (nil: none is). Other choices take a rank that may be dead before none at all; here the
// rank that decodes prefills.
func (p *prefillSide) free(v *reservations.View, class *admission.Class) []catalog.Entry {
	ranks, err := p.scope.dropOverloaded(v)
	if err != nil || p.scope.allSilent || class != nil && !anyFree(p.scope.responsive(), v, class) {
		return nil
	}
	return ranks
}

// refusesPair reports whether no rank that prefills is predicted to hold the target of a request that wants to be refused then. A
// probe is not: without any, nothing would be observed of these ranks any more, whether the ranks that decode hold the target
// or refuse the request, too.
func (a *attempt) refusesPair() bool {
	t := a.pair.prefill.choice.target
	if t == nil || !t.Refused {
		return false
	}
	probes := a.pairProbes()
	if of := a.promised; of != nil && (of.probes == probes || of.probes == nil && probes.Due()) { // it is asked for each frontend
		t.Refused, t.Probe, of.probes = false, true, probes
	}
	return t.Refused
}

// pairProbes returns the probes of the scope's pairs, whose policy predicts.
func (a *attempt) pairProbes() *ttft.Probes { return &a.scope.rules.Policies.Learner.PairProbes }

// scorePrefills scores ranks that may prefill, and returns the groups from which one may be chosen.
func (a *attempt) scorePrefills(ranks []catalog.Entry, v *reservations.View) []linkedRanks {
	p := &a.pair.prefill
	c, only := &p.choice, -1
	if c.ByLoad {
		c.pickLeastLoaded(ranks, v)
	} else if i, warmed := c.pickToWarm(ranks, v); warmed {
		only = i
	} else {
		c.score(ranks, v)
		if c.hasTarget() {
			if i, ok := c.pickForTarget(ranks); ok && c.target.Holding == 0 {
				only = i
			}
		}
	}
	switch {
	case a.refusesPair():
		return nil
	case only >= 0:
		return groupLinked(c, ranks, func(i int) bool { return i == only })
	}
	return groupLinked(c, ranks, func(i int) bool { return !c.missesAt(i) })
}

// bookPair is book for a pair.
func (a *attempt) bookPair() error {
	p, req := a.pair, &a.request
	a.retry.id = p.id(req)
	p.found = p.prefill.begin(a)
	p.bare.size = a.prompt.size
	p.bare.lookUp(a.scope.state, true)
	decode := a.retry.newRecord(&a.session, a.scope.state.NewLease(), &a.prompt, false)
	if decode == nil {
		decode = &idempotencyRecord{answers: &a.api.idempotency.answers, id: a.retry.id, state: recordEvicted}
	}
	decode.promise.Store(a.newPromise())
	prefill := &idempotencyRecord{
		answers: &a.api.idempotency.answers, lease: a.scope.state.NewLease(), id: a.retry.id, state: recordEvicted,
	}
	r := reservations.Request{
		ID: a.retry.id, Hashes: slices.Clone(a.prompt.sequence), ExpectedOutput: req.ExpectedOutputTokens,
		Lease: req.Lease, Prompt: a.prompt.size.Tokens,
	}
	if claim := a.session.claim; claim != nil {
		claim.Turn = a.session.turn(a.prompt.size.Tokens)
	}
	err := a.api.ledger.BookPair(req.Scope, r, func(v *reservations.View) (reservations.PairPlacement, error) {
		a.fetching.end(false) // the ledger may choose a second time
		err := a.choosePair(v)
		a.timeline.end("choose")
		if err != nil {
			return reservations.PairPlacement{}, err
		}
		placed := a.placements(v, r.Hashes)
		placed.Decode.CallerState = decode
		if placed.Prefill != nil {
			a.fetching = p.prefill.choice.startFetch(reservations.PrefillID(a.retry.id), prefill, v)
			placed.Prefill.CallerState, placed.Prefill.Unobserved = prefill, a.fetching != nil
			decode.sent = &sent{link: a.link(&p.prefill.choice, &a.choice), tokens: a.prompt.size.Tokens}
		} else {
			a.fetching = a.choice.startFetch(reservations.DecodeID(a.retry.id), decode, v)
			placed.Decode.Unobserved = a.fetching != nil
		}
		p.remember(decode, prefill)
		placed.Decode.Booked = a.session.settler(a.choice.chosen.Rank, a.prompt.size.Tokens, decode)
		return placed, nil
	})
	a.timeline.end("book")
	if err != nil {
		a.fetching.end(false)
		if a.unbooked(err) {
			if settle := a.session.settler(a.choice.chosen.Rank, a.prompt.size.Tokens, nil); settle != nil {
				settle()
			}
			p.result.unbook()
			return nil
		}
		p.result = Pair{}
		return bookError(err, req.IfExists)
	}
	a.noteBooked(decode)
	p.result.Decode.StopWatch = a.result.StopWatch
	a.chargePair()
	if p.result.Prefill != nil {
		a.scope.state.Booked(p.prefill.choice.chosen, a.prompt.local, privateBlocks(a.prompt.size, a.prompt.local), prefill.lease)
	}
	return nil
}

// id returns the id of the pair: the request's, or a new one.
func (p *pairing) id(req *request) string {
	if req.ReservationID != nil {
		return *req.ReservationID
	}
	return uuid.NewString()
}

// choosePair is choose for a pair.
func (a *attempt) choosePair(v *reservations.View) error {
	p, c := a.pair, &a.choice
	c.prompt, a.weights = &a.prompt, p.prefill.request.weights // as for one rank
	ranks, excluded, err := a.candidates(v)
	if err != nil {
		return err
	}
	kept := a.session.kept
	if of := p.of.Conditional; of != nil && !a.ByLoad {
		scored, i := c.pick(ranks, v)
		if reason := of.reason(c.prompt, scored[i].Slot); reason != counts.Paired {
			return a.chooseAlone(scored, i, excluded, reason, v)
		}
		a.session.kept = kept
	}
	if p.found && excluded == nil {
		done, err := a.chooseTwo(ranks, v)
		if done || err != nil {
			return err
		}
		if of := a.promised; of != nil && of.probes != nil && of.probes == a.pairProbes() {
			of.probes = nil // no rank that decodes works together with one that would have been probed
		}
		c.prompt, a.weights, a.session.kept = &a.prompt, p.prefill.request.weights, kept
	}
	scored, i := c.pick(ranks, v)
	return a.chooseAlone(scored, i, excluded, counts.NoPrefillWorker, v)
}

// chooseAlone gives the whole request to rank i of the scored ones.
func (a *attempt) chooseAlone(ranks []catalog.Entry, i int, excluded *catalog.Rank, reason counts.PairReason, v *reservations.View) error {
	if a.refuses(i, excluded) {
		return a.choice.missed(ranks, i)
	}
	if !a.choice.takes(ranks[i]) {
		return a.choosePair(v)
	}
	if err := a.settle(ranks, i, excluded, v); err != nil {
		return err
	}
	a.pair.result = Pair{Decode: a.result, Reason: reason}
	return nil
}

// chooseTwo chooses a rank among those that decode, and one that prefills. done is false if no two of
// them can work together.
func (a *attempt) chooseTwo(ranks []catalog.Entry, v *reservations.View) (done bool, err error) {
	p, c, first := a.pair, &a.choice, &a.pair.prefill.choice
	prefillers := p.prefill.free(v, a.wait.class)
	if len(prefillers) == 0 {
		return false, nil
	}
	// The rank that decodes computes no prompt, so that neither its prefills nor its cache counts.
	if a.weights, err = a.weights.With(selector.Override{TrackPrefill: new(false), OverlapWeight: new(0.0)}); err != nil {
		return false, err
	}
	c.byLoad.used, c.warmed, c.target, c.prompt = false, false, nil, &p.bare
	if c.ByLoad {
		c.pickLeastLoaded(ranks, v)
	} else {
		c.score(ranks, v)
	}
	c.prompt = &a.prompt
	best := bestPair{decode: -1}
	for told := range 2 {
		of := groupLinked(c, ranks, func(i int) bool { return p.tells(ranks[i].Worker) == (told == 1) })
		if len(of) == 0 {
			continue
		}
		p.prefill.told = told == 1
		groups := a.scorePrefills(prefillers, v)
		var seconds func(from, to linked, i int) float64
		if first.inSeconds() {
			seconds = func(from, to linked, i int) float64 {
				return a.api.transfers.cost(link{a.scope.snapshot.Scope, from, to}, a.prompt.size.Tokens) + c.secondsToDecode(i)
			}
		}
		best.pick(c, of, first, groups, told == 1, seconds)
	}
	i, j := best.decode, best.prefill
	if i < 0 {
		return false, nil
	}
	if p.prefill.told != best.told { // the last scores are those of the other frontends
		p.prefill.told = best.told
		a.scorePrefills(prefillers, v)
	}
	if home := c.keepHome(ranks, i); linkedOf(ranks[home].Worker).with(linkedOf(prefillers[j].Worker)) && p.tells(ranks[home].Worker) == best.told {
		i = home
	} else {
		a.session.kept.turn = counts.TurnFiltered // home cannot decode what the other rank prefills
	}
	j = first.leastLoaded(prefillers, j)
	if !a.takesPair(ranks[i], prefillers[j]) {
		return true, a.choosePair(v)
	}
	if err := a.settle(ranks, i, nil, v); err != nil {
		return true, err
	}
	side := new(Selection)
	if err := first.settle(prefillers, j, v, side); err != nil {
		return true, err
	}
	if a.Stored != nil && !a.ByLoad {
		a.result.PredictedTTFT = first.predictedTTFT(j)
	}
	p.result = Pair{Decode: a.result, Prefill: side, Reason: counts.Paired}
	return true, nil
}

// takesPair is choice.takes for both ranks: it takes the trials of both, or none.
func (a *attempt) takesPair(decode, prefill catalog.Entry) bool {
	now, c, first := time.Now(), &a.choice, &a.pair.prefill
	c.chosen, first.choice.chosen = decode, prefill
	if !c.scope.tries(decode.Rank, now) {
		return false
	}
	if first.scope.tries(prefill.Rank, now) {
		return true
	}
	if x := c.scope.silent[decode.Rank]; x != nil {
		x.Untry(now)
	}
	return false
}

// tells reports whether a worker that decodes tells the one that prefills its rank, where that matters.
func (p *pairing) tells(w *catalog.Worker) bool {
	return p.of.PrefillShares != nil && ObeysPrefillRank(w)
}

// linked has what decides whether the KV caches of one worker can be passed on to another.
type linked struct {
	Revision string `json:"revision,omitempty"`
	Domain   string `json:"domain,omitempty"`   // kv_transfer_domain
	Place    string `json:"place,omitempty"`    // where the worker is at that level of topology; "": unknown
	Anywhere bool   `json:"anywhere,omitempty"` // the place of the other worker only matters for the time of the transfer
}

func linkedOf(w *catalog.Worker) (l linked) {
	if w.Revision != nil {
		l.Revision = *w.Revision
	}
	if w.KVTransferDomain != nil {
		l.Domain = *w.KVTransferDomain
	}
	l.Place = w.TopologyDomains[l.Domain]
	l.Anywhere = w.KVTransferEnforcement != nil && *w.KVTransferEnforcement == "preferred"
	return l
}

// with reports whether workers can pass on KV caches. Both must have one revision, or none; and one
// transfer domain and one place in it, as far as both tell and require them.
func (l linked) with(o linked) bool {
	equal := func(a, b string) bool { return a == "" || b == "" || a == b }
	return l.Revision == o.Revision && equal(l.Domain, o.Domain) && (l.Anywhere || o.Anywhere || equal(l.Place, o.Place))
}

// link returns the link between the chosen ranks.
func (a *attempt) link(from, to *choice) link {
	return link{a.scope.snapshot.Scope, linkedOf(from.chosen.Worker), linkedOf(to.chosen.Worker)}
}

// linkedRanks are the scored ranks of one choice that are linked alike.
type linkedRanks struct {
	linked
	ranks []int
	costs []float64
}

// cheapest returns the index of the rank that the choice picks among those of the group, and its cost.
func (l *linkedRanks) cheapest(c *choice) (i int, cost float64) {
	n := selector.Pick(l.costs, c.temperature(), c.api.random)
	return l.ranks[n], l.costs[n]
}

// groupLinked returns the groups of those of the scored ranks that may be chosen.
func groupLinked(c *choice, ranks []catalog.Entry, may func(i int) bool) (groups []linkedRanks) {
	for i, e := range ranks {
		if !may(i) {
			continue
		}
		l := linkedOf(e.Worker)
		g := slices.IndexFunc(groups, func(g linkedRanks) bool { return g.linked == l })
		if g < 0 {
			g = len(groups)
			groups = append(groups, linkedRanks{linked: l})
		}
		groups[g].ranks = append(groups[g].ranks, i)
		groups[g].costs = append(groups[g].costs, c.costs[i])
	}
	return groups
}

// bestPair has the indexes of the two ranks whose costs have the least sum so far, decode -1 if there are none.
type bestPair struct {
	decode, prefill int
	told            bool // the rank that prefills is told, see PairRequest.PrefillShares
	sum             float64
	ties            int
}

// pick considers the ranks of the groups that can work together. If the costs of those that prefill are times, seconds returns
// those of the transfer and of the rank i that decodes, whose own cost is none. Of equal sums each has the same chance.
func (b *bestPair) pick(decode *choice, decoders []linkedRanks, prefill *choice, prefillers []linkedRanks, told bool, seconds func(from, to linked, i int) float64) {
	for _, dg := range decoders {
		for _, pg := range prefillers {
			if !dg.with(pg.linked) {
				continue
			}
			i, of := dg.cheapest(decode)
			j, before := pg.cheapest(prefill)
			if seconds != nil {
				of = seconds(pg.linked, dg.linked, i)
			}
			switch sum := before + of; {
			case b.decode < 0 || sum < b.sum:
				*b = bestPair{i, j, told, sum, 1}
			case sum == b.sum:
				if b.ties++; decode.api.random.IntN(b.ties) == 0 {
					b.decode, b.prefill, b.told = i, j, told
				}
			}
		}
	}
}

// reason returns why the rank in a slot prefills a prompt itself, or counts.Paired.
func (c *Conditional) reason(p *prompt, slot uint32) counts.PairReason {
	length := p.size.Tokens
	cached := min(length, p.cachedBlocks(slot)*uint64(p.size.BlockSize))
	few := func(uncached uint64) bool {
		return (c.MaxUncachedTokens == nil || uncached < *c.MaxUncachedTokens) &&
			(c.MaxUncachedShare == nil || float64(uncached)/float64(max(1, length)) < *c.MaxUncachedShare)
	}
	switch {
	case few(length):
		return counts.PromptShort
	case few(length - cached):
		return counts.PrefillCached
	}
	return counts.Paired
}

// placements completes the answer, and returns what of it is to be booked.
func (a *attempt) placements(v *reservations.View, hashes []uint64) (placed reservations.PairPlacement) {
	p := a.pair
	p.result.ID = a.retry.id
	complete := func(s *Selection, c *choice, id string, tracked bool) reservations.Side {
		s.ReservationID, s.Lease = &id, a.Lease
		if a.Lease > 0 {
			s.Registration = v.Registration(c.chosen.Slot)
		}
		s.SequenceHashes, s.ISLTokens, s.TrackPrefill = hashes, a.prompt.size.Tokens, tracked
		return reservations.Side{
			Placement: reservations.Placement{
				Slot: c.chosen.Slot, Rank: c.chosen.Rank, PrefillTokens: s.EffectivePrefillTokens, Uncached: c.uncached, Predicted: c.predicted,
			},
			TrackPrefill: tracked,
		}
	}
	placed.Decode = complete(&p.result.Decode, &a.choice, reservations.DecodeID(a.retry.id), a.weights.TrackPrefill && !a.ByLoad)
	if s := p.result.Prefill; s != nil {
		side := complete(s, &p.prefill.choice, reservations.PrefillID(a.retry.id), p.prefill.request.weights.TrackPrefill && !a.ByLoad)
		placed.Prefill = &side
		p.result.Decode.EffectivePrefillTokens = 0
	}
	a.result = p.result.Decode
	return placed
}

// remember sets the answer that a retry gets, in the records of the sides.
func (p *pairing) remember(decode, prefill *idempotencyRecord) {
	if !decode.selected { // the id was generated here, so no retry can have it
		return
	}
	answer := p.result
	answer.Decode.SequenceHashes = nil // the ledger has them
	if s := answer.Prefill; s != nil {
		side := *s
		side.SequenceHashes = nil
		answer.Prefill, decode.prefill = &side, prefill
	}
	decode.pair, decode.endpoint = &answer, answer.Decode.Endpoint
}

// repeat answers a retry of the pair that first is the decoding side of.
func (p *pairing) repeat(r *retry, first *existingReservation) {
	r.repeated = true
	if first.pair != nil {
		p.result = *first.pair
		p.result.Decode.Repeated = true
		if s := p.result.Prefill; s != nil {
			side := *s
			side.SequenceHashes = p.result.Decode.SequenceHashes
			p.result.Prefill = &side
		}
		return
	}
	side := func(id string, of *reservations.LiveReservation, endpoint string) Selection {
		return Selection{
			ReservationID: &id, Scope: of.Scope, Rank: of.Rank, Endpoint: endpoint, Lease: of.Lease,
			Repeated: true, PlacementOnly: true,
		}
	}
	p.result = Pair{ID: *r.ReservationID, Decode: side(reservations.DecodeID(*r.ReservationID), &first.LiveReservation, first.endpoint)}
	other := reservations.PrefillID(*r.ReservationID)
	if live, ok := r.api.ledger.Find(other); ok {
		prefill := side(other, &live, endpointOf(r.api.catalog.Snapshot(live.Scope), live.Rank))
		p.result.Prefill, p.result.Reason = &prefill, counts.Paired
	}
}

// answer does for the second rank what attempt.answer does for the first.
func (p *pairing) answer(a *attempt) {
	s := p.result.Prefill
	if s == nil {
		return
	}
	c := &p.prefill.choice
	c.evaluateShadows()
	if at := a.choice.sampled.at; !at.IsZero() {
		a.keep(c, at, reservations.PrefillID(p.result.ID))
	}
	if a.Explain {
		s.Explanation = p.prefill.scope.addHeaders(c.decided().explain())
	}
}
