package selecting

import (
	"github.com/select-service/select-service/pkg/selector"
)

// costsOf computes the costs of the candidates, by the policy that is configured for
// the scope.
func (c *selection) costsOf() {
	p := c.scope.Policies
	if p == nil {
		c.costs = c.weights.Costs(c.size, c.candidates, c.costs)
		return
	}
	c.decision = selector.Decision{Prompt: c.size, Candidates: c.candidates, Weights: c.weights}
	c.costs = p.Costs(&c.decision, c.sequence, c.costs)
}

// temperature is that of the choice.
func (c *selection) temperature() float64 {
	if p := c.scope.Policies; p != nil {
		return p.Policy.Temperature(&c.decision)
	}
	return c.weights.Temperature
}

// noteDecided tells the policy that it has decided. A choice of one is no decision, and
// one that only asks neither.
func (c *selection) noteDecided() {
	if p := c.scope.Policies; p != nil && len(c.candidates) > 1 && !c.request.Advisory {
		p.Decided(&c.decision)
	}
}

// ignoresTarget reports whether the policy of the scope decides among all ranks whatever
// the affinity target of the request is.
func (c *selection) ignoresTarget() bool {
	p := c.scope.Policies
	return p != nil && p.Policy.Needs().Has(selector.IgnoresTarget)
}
