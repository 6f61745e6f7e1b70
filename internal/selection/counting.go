package selection

import (
	"math"

	"github.com/select-service/select-service/internal/selection/counts"
)

// counting is where an attempt is counted.
type counting struct {
	*request
	of *counts.ModelSelections // nil: not counted yet
}

// counters returns the counters of the request's model, or those for all unknown models.
// inScope: the attempt has found its scope.
func (c *counting) counters(inScope bool) *counts.ModelSelections {
	model := c.Scope.Model
	if !inScope && !c.api.catalog.HasModel(model) {
		return c.api.selections.Others()
	}
	return c.api.selections.Of(model)
}

// issued counts the selection as issued, once, and returns its counters.
func (c *counting) issued(inScope bool) *counts.ModelSelections {
	if c.of == nil {
		c.of = c.counters(inScope)
		c.of.Issued(counts.RouteOf(c.reserve))
	}
	return c.of
}

// queued counts a selection that begins to wait. It counts as issued now, not when it
// ends: a wait has no limit, and the rate of requests must not depend on it.
func (c *counting) queued() { c.issued(true).Queued(counts.RouteOf(c.reserve), 1) }

// dequeued undoes queued.
func (c *counting) dequeued() { c.of.Queued(counts.RouteOf(c.reserve), -1) }

// countEnded counts an attempt that is over. It runs outside all locks.
func (a *attempt) countEnded(err error) {
	route := counts.RouteOf(a.reserve)
	o := counts.OutcomeOf(err, route)
	if a.retry.repeated {
		o = counts.Repeated
	}
	state := a.scope.state
	if o == counts.Invalid && a.counts.of == nil {
		a.counts.counters(state != nil).Ended(o, route, err)
		return
	}
	m := a.counts.issued(state != nil)
	m.Ended(o, route, err)
	if o == counts.NotReady {
		a.api.selections.NoteUnserved(a.Scope)
	}
	if state == nil {
		a.api.scopes.NoteUnserved(a.Scope)
	} else {
		state.Traffic.Note(o == counts.Refused || o == counts.QueueFull || o == counts.TooLate)
	}
	if a.wait.queued {
		m.Waited(a.wait.time, a.timeline.span.Example())
	}
	if t := a.prefills().target; t != nil && (err == nil && o != counts.Repeated || o == counts.TooLate) {
		m.Targeted(t.outcome())
	}
	if o == counts.TooLate {
		a.refusePromise()
	}
	if err == nil && o != counts.Repeated {
		countChoice(a.prefills(), m)
		if a.pair != nil {
			m.Paired(a.pair.result.Reason)
		}
	}
}

// prefills returns the choice of the rank that prefills.
func (a *attempt) prefills() *choice {
	if a.pair != nil && a.pair.result.Prefill != nil {
		return &a.pair.prefill.choice
	}
	return &a.choice
}

// countChoice counts the chosen rank's cached blocks and the spread of the costs.
func countChoice(c *choice, m *counts.ModelSelections) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, cost := range c.costs { // costs are finite, so the NaN handling of min and max is not needed
		if cost < low {
			low = cost
		}
		if cost > high {
			high = cost
		}
	}
	cached, blocks := c.prompt.cachedBlocks(c.chosen.Slot), uint64(c.prompt.size.Blocks)
	m.Chosen(cached, c.mostCached(), blocks, high-low)
	c.scope.state.Hits.Note(c.chosen.Slot, cached, blocks)
}
