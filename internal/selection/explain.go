package selection

import (
	"slices"

	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/internal/selection/rankstate"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// Explanation says why a rank was chosen, or why none was.
type Explanation struct {
	Scope        catalog.Scope
	Policy, Type string // the instance and its type; the built-in one has no type
	DecidedBy    policies.Reason
	Size         selector.Prompt
	Temperature  float64
	Warmup       bool          // a new or emptied rank was chosen for that reason, whatever it costs
	Chosen       *catalog.Rank // nil: none
	ChosenHeader RankHeader
	Refusal      string // why no rank was chosen
	// Session is the request's session, and Group the session that has started it, by whose name the
	// requests of its children are kept together, both as ListedSession has them; "": none, or it has no effect.
	Session, Group string
	// Home is the rank of the session, or else of the group, before this choice; nil: none.
	Home *catalog.Rank
	// MovedBecause says why another rank than Home was chosen, with the costs in the policy's unit where
	// they are the reason; "": it was not.
	MovedBecause string
	Target       *TargetEffect // nil: the request has no target
	Candidates   []ExplainedRank
	Excluded     []ExcludedRank
	Shadows      []ShadowChoice
}

// ExplainedRank is a candidate with its cost, the terms of the cost, and the predicted times.
type ExplainedRank struct {
	Rank      catalog.Rank
	Header    RankHeader
	Cost      float64
	Requests  uint32 // active requests, foreign ones included
	Foreign   reservations.Foreign
	Predicted ttft.Cost
	// PerOutput is the rank's time per output token in seconds, as learned; 0: that is unknown, or the decision is a past one.
	PerOutput float64
	Fetch     PricedFetch // the zero value: fetches were not priced
	selector.Reasons
}

// RankHeader says how the frontend of a rank's worker wants to be told the rank (decision U2).
type RankHeader struct {
	Form  string // catalog.RankLocal, RankGlobal or RankNone; "" in explanations of past decisions
	Local uint32 // the rank's number within its worker, from 0
}

// TTFT is the predicted time to first token, in seconds.
func (r *ExplainedRank) TTFT() float64 { return r.Predicted.Wait + r.Predicted.Prefill }

// ExcludedRank is a rank that could not be chosen.
type ExcludedRank struct {
	Rank catalog.Rank
	Why  Exclusion
}

// Exclusion is why a rank could not be chosen.
type Exclusion string

// The exclusions.
const (
	Unschedulable Exclusion = "not_schedulable" // incomplete, not in the record, or of the slot tracker alone
	Draining      Exclusion = "draining"        // its worker is leaving
	NotOfRole     Exclusion = "not_of_role"     // its worker only encodes
	NotAllowed    Exclusion = "not_allowed"     // not in allowed_worker_ids
	MissingTaint  Exclusion = "missing_taint"
	NotPinned     Exclusion = "not_pinned"
	NotTarget     Exclusion = "not_affinity_target"
	Overloaded    Exclusion = "overloaded"
	NotOfSession  Exclusion = "not_of_session"
	// Of engines that give no sign of life, see rankstate.
	Stalled Exclusion = "stalled"
	Silent  Exclusion = "silent"
)

// exclusionOf returns the exclusion that a verdict means, "" for a rank that is ready.
func exclusionOf(v rankstate.Verdict) Exclusion {
	if v.Causes.Has(rankstate.SlotTracker) {
		return Unschedulable
	}
	return [rankstate.NumStates]Exclusion{
		rankstate.Draining: Draining, rankstate.Overloaded: Overloaded, rankstate.Stalled: Stalled, rankstate.Silent: Silent,
		rankstate.Incomplete: Unschedulable,
	}[v.State]
}

// ShadowChoice is what a shadow policy would have chosen.
type ShadowChoice struct {
	Policy string
	Rank   catalog.Rank
	// Same: by the shadow's costs the chosen rank is no worse than the shadow's own choice.
	Same bool
	// CostForegone is how much more the chosen rank costs than the shadow's choice, in the
	// shadow's unit. TTFTForegone is how much longer the chosen rank's predicted time to first
	// token is, in seconds; negative if shorter.
	CostForegone, TTFTForegone float64
}

// decided is a choice and the data that it was based on. It shares no memory with its attempt.
type decided struct {
	scope    catalog.Scope
	policy   *policies.Instance // nil: the built-in one
	by       policies.Reason
	decision selector.Decision
	ranks    []catalog.Rank         // of the candidates
	foreign  []reservations.Foreign // of the candidates; nil: none
	fetches  []fetchOffer           // likewise; nil: they were not priced
	costs    []float64
	chosen   int // -1: none
	excluded []ExcludedRank
	shadows  []ShadowChoice
	target   *TargetEffect
	warmed   bool
	kept     kept
}

// decided returns a copy of the choice of c and its data.
func (c *choice) decided() *decided {
	if len(c.scored) == 0 {
		c.decision = selector.Decision{Prompt: c.prompt.size, Weights: c.weights}
	} else if c.scope.rules.Policies == nil {
		c.decision = selector.Decision{Prompt: c.prompt.size, Candidates: c.candidates, Weights: c.weights}
	}
	d := &decided{
		scope: c.scope.snapshot.Scope, by: c.scope.rules.DecidedBy, decision: c.decision, chosen: -1,
		excluded: c.scope.excluded(c.scored), shadows: slices.Clone(c.shadows), warmed: c.warmed, target: c.target,
		kept: c.session.forPeople(),
	}
	if p := c.scope.rules.Policies; p != nil {
		d.policy = p.Instance
	}
	d.decision.Candidates, d.decision.Queues = slices.Clone(c.decision.Candidates), slices.Clone(c.decision.Queues)
	d.decision.Fetches = slices.Clone(c.decision.Fetches)
	d.costs = slices.Clone(c.costs[:len(c.scored)])
	if len(c.fetches) == len(c.scored) {
		d.fetches = slices.Clone(c.fetches)
	}
	if len(c.foreign) == len(c.scored) {
		d.foreign = slices.Clone(c.foreign)
	}
	for i, e := range c.scored {
		d.ranks = append(d.ranks, e.Rank)
		if e.Rank == c.chosen.Rank {
			d.chosen = i
		}
	}
	return d
}

// explain returns the explanation of the decision.
func (d *decided) explain() *Explanation {
	x, policy := d.outline()
	x.Excluded, x.Shadows = d.excluded, d.shadows
	for i, r := range d.ranks {
		x.Candidates = append(x.Candidates, ExplainedRank{
			Rank: r, Cost: d.costs[i], Requests: d.decision.Candidates[i].Requests,
			Predicted: predict(&d.decision, i), Reasons: policy.Reasons(&d.decision, i),
		})
		if d.foreign != nil {
			x.Candidates[i].Foreign = d.foreign[i]
		}
		if d.fetches != nil {
			x.Candidates[i].Fetch = d.fetches[i].PricedFetch
		}
	}
	return x
}

// outline returns the explanation without other ranks than the chosen one, and the policy.
func (d *decided) outline() (*Explanation, selector.Policy) {
	x := &Explanation{Scope: d.scope, Policy: policies.BuiltIn, DecidedBy: d.by, Size: d.decision.Prompt, Warmup: d.warmed, Target: d.target}
	var policy selector.Policy = selector.CostFunction{}
	if d.policy != nil {
		x.Policy, x.Type, policy = d.policy.Name, d.policy.Type, d.policy.Policy
	}
	x.Temperature = policy.Temperature(&d.decision)
	if d.chosen >= 0 {
		x.Chosen = &d.ranks[d.chosen]
	}
	if x.Session, x.Group = d.kept.session, d.kept.group; d.kept.homed {
		x.Home = &d.kept.home
		if x.Chosen != nil && *x.Chosen != *x.Home {
			x.MovedBecause = d.kept.because(policy.Reasons(&d.decision, d.chosen).Unit)
		}
	}
	return x, policy
}

// predict returns the predicted times of the prompt on candidate i, in seconds. Without a
// learned model it uses the default one, and takes the rank's prefill tokens as its queue.
func predict(d *selector.Decision, i int) ttft.Cost {
	c := &d.Candidates[i]
	if i < len(d.Queues) {
		return d.Predict(d.Weights, i, &d.Queues[i])
	}
	u, length := float64(d.Weights.ToCompute(d.Prompt, c)), float64(d.Prompt.Tokens)
	model := ttft.Default()
	q := ttft.Queue{Tokens: float64(c.Prefill), HeadTokens: c.Prefill, HeadPrompt: c.Prefill}
	if c.Prefill > 0 {
		q.Prefills = 1
	}
	return model.Cost(u, length, &q, ttft.Crowding{})
}

// evaluateShadows computes what the scope's shadow policies would have chosen, and counts it.
// It runs after the choice, outside all locks.
func (c *choice) evaluateShadows() {
	c.shadows = c.shadows[:0]
	p := c.scope.rules.Policies
	if p == nil || len(p.Shadows()) == 0 || len(c.scored) == 0 {
		return
	}
	chosen := slices.Index(c.scored, c.chosen)
	taken := predict(&c.decision, chosen)
	var costs []float64
	for _, shadow := range p.Shadows() {
		d := c.decision
		costs = shadow.Costs(&d, c.prompt.sequence, costs)
		i := selector.Pick(costs, 0, selector.Global())
		other := predict(&d, i)
		s := ShadowChoice{
			Policy: shadow.Name, Rank: c.scored[i].Rank,
			Same: costs[chosen] <= costs[i], CostForegone: costs[chosen] - costs[i],
		}
		if s.Same {
			s.Rank = c.chosen.Rank
		} else {
			s.TTFTForegone = taken.Wait + taken.Prefill - other.Wait - other.Prefill
		}
		c.shadows = append(c.shadows, s)
		if !c.ExplainOnly {
			shadow.Decided(&d, s.Same, s.CostForegone, s.TTFTForegone)
		}
	}
}
