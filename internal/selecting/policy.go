package selecting

import (
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// costsOf computes the costs of the candidates, one for each of ranks, by the scope's policy.
func (c *selection) costsOf(ranks []catalog.Entry, v *reservations.View) {
	p := c.scope.Policies
	if p == nil {
		c.costs = c.weights.Costs(c.size, c.candidates, c.costs)
		return
	}
	c.decision = selector.Decision{Prompt: c.size, Candidates: c.candidates, Weights: c.weights}
	if p.Learner != nil {
		c.addQueues(ranks, v, p.Learner)
	}
	c.costs = p.Costs(&c.decision, c.sequence, c.costs)
}

// addQueues adds to the decision the work that the ranks still have to compute, and the learned
// model of its duration.
func (c *selection) addQueues(ranks []catalog.Entry, v *reservations.View, l *ttft.Learner) {
	c.queues = c.queues[:0]
	for i, e := range ranks {
		if !c.candidates[i].Known {
			c.queues = append(c.queues, selector.Queue{})
			continue
		}
		q := QueueOf(v, e, l)
		q.Ahead = c.wait.charged[e.Slot]
		c.queues = append(c.queues, q)
	}
	m := l.Model()
	c.decision.Queues = c.queues
	c.decision.Model = selector.Model{
		Parameters: m.Parameters,
		Crowding:   m.Flow(v.Now()).Crowding(c.snapshot.NumRanks),
		Fallback:   m.Fallback,
	}
}

// QueueOf returns the work that a rank still has to compute, and its speed as learned by l. The
// ledger must know the rank.
func QueueOf(v *reservations.View, e catalog.Entry, l *ttft.Learner) selector.Queue {
	of := v.Queue(e.Slot)
	q := selector.Queue{
		Prefills: of.Prefills, Tokens: of.Tokens, Context: of.Context,
		HeadTokens: of.HeadTokens, HeadPrompt: of.HeadPrompt, Elapsed: of.Elapsed.Seconds(), Decoding: of.Decoding,
	}
	q.Speed, q.Late = l.Rank(e.Slot, e.Rank)
	return q
}

// toCompute returns how many tokens of the prompt candidate i has to compute, for the queues of
// predictions; 0 if no policy uses them.
func (c *selection) toCompute(i int) uint64 {
	if p := c.scope.Policies; p != nil && p.Learner != nil {
		return p.ToCompute(&c.decision, i)
	}
	return 0
}

// temperature returns the temperature of the choice.
func (c *selection) temperature() float64 {
	if p := c.scope.Policies; p != nil {
		return p.Policy.Temperature(&c.decision)
	}
	return c.weights.Temperature
}

// predictedTTFT returns the time to first token that the policy predicts for candidate i.
// It is 0 if the policy predicts none, has learned too little, or callers report the ends
// of prefills too late.
func (c *selection) predictedTTFT(i int) time.Duration {
	p := c.scope.Policies
	if p == nil || i >= len(c.queues) || !c.weights.TrackPrefill {
		return 0
	}
	if _, predicts := p.Policy.(*selector.PredictedTTFT); !predicts {
		return 0
	}
	if m := &c.decision.Model; m.Fallback || !m.Mature || c.queues[i].Late {
		return 0
	}
	cost := predict(&c.decision, i)
	return time.Duration((cost.Wait + cost.Prefill) * float64(time.Second))
}

// noteDecided informs the policy of its decision. A choice from one rank, and one that is only
// asked for, are no decisions.
func (c *selection) noteDecided() {
	if p := c.scope.Policies; p != nil && len(c.candidates) > 1 && !c.request.Advisory && !c.request.ExplainOnly {
		p.Decided(&c.decision)
	}
}

// ignoresTarget reports whether the scope's policy ignores affinity targets and decides among
// all ranks.
func (c *selection) ignoresTarget() bool {
	p := c.scope.Policies
	return p != nil && p.Policy.Needs().Has(selector.IgnoresTarget)
}
