package selecting

import (
	"time"

	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// Work implements waitqueue.Held.
func (c *selection) Work() float64 {
	p := c.scope.Policies
	least := c.size.Tokens
	for _, e := range c.eligible {
		cand := candidate(e, &c.overlap, &reservations.View{})
		least = min(least, c.weights.ToCompute(c.size, &cand))
	}
	return p.Learner.Model().Prefill(float64(least), float64(c.size.Tokens))
}

// RunOrHold implements waitqueue.Held.
func (c *selection) RunOrHold(charged map[uint32]float64, force bool, overlapAge time.Duration) (hold time.Duration, err error) {
	if c.waitedFor(overlapAge) || c.api.catalog.Snapshot(c.request.Scope) != c.snapshot {
		if err := c.Refresh(overlapAge); err != nil {
			return 0, err
		}
	}
	c.wait.charged = charged
	defer func() { c.wait.charged = nil }()
	if !force {
		if hold := c.holdFor(); hold > 0 {
			return hold, nil
		}
	}
	return 0, c.Run()
}

// holdFor returns how long the request should be held, and if so charges its work to the
// rank that it would get. It is not held if Run would fail, or if the predictions for the
// rank cannot be trusted.
func (c *selection) holdFor() (hold time.Duration) {
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
			c.wait.charged[slot] += own.Prefill
			hold = max(1, time.Duration((wait-f.Hold)*float64(time.Second)))
		}
	})
	return hold
}
