package selection

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
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
	// SelectRequest is the request; its constraints are those of the side that decodes. Fallbacks,
	// Pending, Advisory, ByLoad and Stored are not used.
	SelectRequest
	Prefill     Constraints  // of the side that prefills
	Conditional *Conditional // nil: every prompt gets a pair
}

// PairReason says why a request got a pair, or why it got none.
type PairReason string

// The reasons. But for Paired, the rank that decodes prefills too: it has most of the prompt, or the
// prompt is short (see Conditional), or no rank for the prefill could be chosen.
const (
	Paired          PairReason = "pair"
	PrefillCached   PairReason = "cached"
	PromptShort     PairReason = "short"
	NoPrefillWorker PairReason = "no_prefill_worker"
)

// counted returns the reason as it is counted.
func (r PairReason) counted() counts.PairReason {
	switch r {
	case PrefillCached:
		return counts.PrefillCached
	case PromptShort:
		return counts.PromptShort
	case NoPrefillWorker:
		return counts.NoPrefillWorker
	case Paired:
	}
	return counts.Paired
}

// Pair is the answer to a PairRequest.
type Pair struct {
	ID      string // by which calls mean both reservations
	Decode  Selection
	Prefill *Selection // nil: the rank that decodes prefills
	// Reason is "" if it is not known any more: see Selection.PlacementOnly.
	Reason PairReason
}

// SelectPair chooses a rank that prefills and one that decodes, and books both in one step, or
// neither. Workers with the role of prefills prefill, all others decode. If no rank for the prefill
// can be chosen that works together with one that decodes, that one gets the whole request.
func (a *API) SelectPair(ctx context.Context, req *PairRequest) (Pair, error) {
	p := &pairing{of: req}
	req.Eligible, req.EligibleKey = decodes, "decodes"
	t := a.newAttempt(&req.SelectRequest, true)
	t.pair = p
	_, err := t.run(ctx)
	result := p.result
	t.recycle()
	return result, err
}

// OnlyPrefills reports whether a worker serves prefills alone.
func OnlyPrefills(w *catalog.Worker) bool { return w.Role != nil && *w.Role == catalog.RolePrefill }

func decodes(*catalog.Snapshot) func(catalog.Entry) bool {
	return func(e catalog.Entry) bool { return !OnlyPrefills(e.Worker) }
}

func prefills(*catalog.Snapshot) func(catalog.Entry) bool {
	return func(e catalog.Entry) bool { return OnlyPrefills(e.Worker) }
}

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
func (p *prefillSide) begin(a *attempt, c *Constraints) (found bool) {
	p.asked = SelectRequest{
		Scope: a.Scope, Explain: a.Explain, ExpectedOutputTokens: a.ExpectedOutputTokens, Override: a.Override, Eligible: prefills,
		Constraints: *c,
	}
	p.request = request{api: a.api, SelectRequest: &p.asked, reserve: true, filter: c.filter(), weights: a.weights}
	p.scope.request, p.choice.request = &p.request, &p.request
	p.scope.reset()
	p.choice.reset()
	p.choice.scope, p.choice.prompt, p.choice.session = &p.scope, &a.prompt, &p.session
	p.scope.state, p.scope.rules, p.scope.snapshot = a.scope.state, a.scope.rules, a.scope.snapshot
	return p.scope.listEligible() == nil
}

// free returns the ranks that may prefill and are not overloaded.
func (p *prefillSide) free(v *reservations.View) []catalog.Entry {
	ranks, err := p.scope.dropOverloaded(v)
	if err != nil {
		return nil // all are overloaded
	}
	return ranks
}

// bookPair is book for a pair.
func (a *attempt) bookPair() error {
	p, req := a.pair, &a.request
	a.retry.id = p.id(req)
	p.found = p.prefill.begin(a, &p.of.Prefill)
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
		err := a.choosePair(v)
		a.timeline.end("choose")
		if err != nil {
			return reservations.PairPlacement{}, err
		}
		placed := a.placements(v, r.Hashes)
		placed.Decode.CallerState = decode
		if placed.Prefill != nil {
			placed.Prefill.CallerState = prefill
			decode.sent = &sent{link: a.link(&p.prefill.choice, &a.choice), tokens: a.prompt.size.Tokens}
		}
		p.remember(decode, prefill)
		placed.Decode.Booked = a.session.settler(a.choice.chosen.Rank, a.prompt.size.Tokens, decode)
		return placed, nil
	})
	a.timeline.end("book")
	if err != nil {
		p.result = Pair{}
		return bookError(err, req.IfExists)
	}
	a.noteBooked(decode)
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
	reason := NoPrefillWorker
	if of := p.of.Conditional; of != nil {
		scored, i := c.pick(ranks, v)
		if reason = of.reason(c.prompt, scored[i].Slot); reason != Paired {
			return a.chooseAlone(scored, i, excluded, reason, v)
		}
		reason = NoPrefillWorker
	}
	if p.found && excluded == nil {
		done, err := a.chooseTwo(ranks, v)
		if done || err != nil {
			return err
		}
		c.prompt, a.weights = &a.prompt, p.prefill.request.weights
	}
	scored, i := c.pick(ranks, v)
	return a.chooseAlone(scored, i, excluded, reason, v)
}

// chooseAlone gives the whole request to rank i of the scored ones.
func (a *attempt) chooseAlone(ranks []catalog.Entry, i int, excluded *catalog.Rank, reason PairReason, v *reservations.View) error {
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
	p, c := a.pair, &a.choice
	prefillers := p.prefill.free(v)
	if len(prefillers) == 0 {
		return false, nil
	}
	first := &p.prefill.choice
	first.score(prefillers, v)
	// The rank that decodes computes no prompt, so that neither its prefills nor its cache counts.
	if a.weights, err = a.weights.With(selector.Override{TrackPrefill: new(false), OverlapWeight: new(0.0)}); err != nil {
		return false, err
	}
	c.byLoad.used, c.warmed, c.prompt = false, false, &p.bare
	c.score(ranks, v)
	c.prompt = &a.prompt
	i, j := pickPair(c, ranks, first, prefillers, func(from, to linked) float64 {
		if !first.inSeconds() {
			return 0
		}
		return a.api.transfers.cost(link{a.scope.snapshot.Scope, from, to}, a.prompt.size.Tokens)
	})
	if i < 0 {
		return false, nil
	}
	if !c.takes(ranks[i]) || !first.takes(prefillers[j]) {
		return true, a.choosePair(v)
	}
	if err := a.settle(ranks, i, nil, v); err != nil {
		return true, err
	}
	side := new(Selection)
	if err := first.settle(prefillers, j, v, side); err != nil {
		return true, err
	}
	p.result = Pair{Decode: a.result, Prefill: side, Reason: Paired}
	return true, nil
}

// linked has what decides whether the KV caches of one worker can be passed on to another.
type linked struct {
	revision string
	domain   string // kv_transfer_domain
	place    string // where the worker is at that level of topology; "": unknown, or it is only preferred
}

func linkedOf(w *catalog.Worker) (l linked) {
	if w.Revision != nil {
		l.revision = *w.Revision
	}
	if w.KVTransferDomain != nil {
		l.domain = *w.KVTransferDomain
	}
	if only := w.KVTransferEnforcement; only == nil || *only != "preferred" {
		l.place = w.TopologyDomains[l.domain]
	}
	return l
}

// with reports whether workers can pass on KV caches. Both must have one revision, or none; and one
// transfer domain and one place in it, as far as both tell them.
func (l linked) with(o linked) bool {
	equal := func(a, b string) bool { return a == "" || b == "" || a == b }
	return l.revision == o.revision && equal(l.domain, o.domain) && equal(l.place, o.place)
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

func groupLinked(c *choice, ranks []catalog.Entry) (groups []linkedRanks) {
	for i, e := range ranks {
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

// pickPair picks the rank that decodes and the one that prefills with the least sum of costs among
// those that can work together, the cost of the transfer included, or -1. Of equal sums each has the
// same chance.
func pickPair(decode *choice, decoders []catalog.Entry, prefill *choice, prefillers []catalog.Entry, transfer func(from, to linked) float64) (d, p int) {
	d, p = -1, -1
	least, ties := 0.0, 0
	firsts := groupLinked(prefill, prefillers)
	for _, dg := range groupLinked(decode, decoders) {
		for _, pg := range firsts {
			if !dg.with(pg.linked) {
				continue
			}
			i, of := dg.cheapest(decode)
			j, before := pg.cheapest(prefill)
			switch sum := before + transfer(pg.linked, dg.linked) + of; {
			case d < 0 || sum < least:
				d, p, least, ties = i, j, sum, 1
			case sum == least:
				if ties++; decode.api.random.IntN(ties) == 0 {
					d, p = i, j
				}
			}
		}
	}
	return d, p
}

// reason returns why the rank in a slot prefills a prompt itself, or Paired.
func (c *Conditional) reason(p *prompt, slot uint32) PairReason {
	length := p.size.Tokens
	cached := min(length, p.cachedBlocks(slot)*uint64(p.size.BlockSize))
	few := func(uncached uint64) bool {
		return (c.MaxUncachedTokens == nil || uncached < *c.MaxUncachedTokens) &&
			(c.MaxUncachedShare == nil || float64(uncached)/float64(max(1, length)) < *c.MaxUncachedShare)
	}
	switch {
	case few(length):
		return PromptShort
	case few(length - cached):
		return PrefillCached
	}
	return Paired
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
				Slot: c.chosen.Slot, Rank: c.chosen.Rank, PrefillTokens: s.EffectivePrefillTokens, Uncached: c.uncached,
			},
			TrackPrefill: tracked,
		}
	}
	placed.Decode = complete(&p.result.Decode, &a.choice, reservations.DecodeID(a.retry.id), a.weights.TrackPrefill)
	if s := p.result.Prefill; s != nil {
		side := complete(s, &p.prefill.choice, reservations.PrefillID(a.retry.id), p.prefill.request.weights.TrackPrefill)
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
		p.result.Prefill, p.result.Reason = &prefill, Paired
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
