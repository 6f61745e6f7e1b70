package selecting

import (
	"math"

	"github.com/select-service/select-service/internal/telemetry"
)

// count is how a selection is counted.
type count struct {
	model *telemetry.ModelSelections // that it is counted in, nil: in none yet
}

// of returns the counts that the selection belongs to.
func (n *count) of(c *selection) *telemetry.ModelSelections {
	model := c.request.Scope.Model
	if c.scope == nil && !c.api.catalog.HasModel(model) {
		return c.api.selections.Others()
	}
	return c.api.selections.Of(model)
}

// issued counts that the selection was asked for, unless it did so before, and
// returns the counts that it belongs to from then on.
func (n *count) issued(c *selection) *telemetry.ModelSelections {
	if n.model == nil {
		n.model = n.of(c)
		n.model.Issued(telemetry.RouteOf(c.reserve))
	}
	return n.model
}

// queued counts a selection that begins to wait. It counts as issued now and not
// when it ends: a wait has no limit, and the rate of requests must not depend on it.
func (n *count) queued(c *selection) { n.issued(c).Queued(telemetry.RouteOf(c.reserve), 1) }

// dequeued undoes queued.
func (n *count) dequeued(c *selection) { n.model.Queued(telemetry.RouteOf(c.reserve), -1) }

// ended counts a selection that is over. It runs outside all locks.
func (n *count) ended(c *selection, err error) {
	route := telemetry.RouteOf(c.reserve)
	o := telemetry.OutcomeOf(err, route)
	if c.replayed {
		o = telemetry.Repeated
	}
	if o == telemetry.Invalid && n.model == nil {
		n.of(c).Ended(o, route, err)
		return
	}
	m := n.issued(c)
	m.Ended(o, route, err)
	if o == telemetry.NotReady {
		c.api.selections.NoteUnserved(c.request.Scope)
	}
	if c.wait.queued {
		m.Waited(c.wait.time)
	}
	if err == nil && o != telemetry.Repeated {
		countChoice(m, c)
	}
}

// countChoice notes what the choice was like.
func countChoice(m *telemetry.ModelSelections, c *selection) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, cost := range c.costs { // finite: no need of min and max, which take care of NaN
		if cost < low {
			low = cost
		}
		if cost > high {
			high = cost
		}
	}
	most := uint64(0)
	for i := range c.eligible {
		most = max(most, cachedBlocks(c, c.eligible[i].Slot))
	}
	m.Chosen(cachedBlocks(c, c.chosen.Slot), most, uint64(c.size.Blocks), high-low)
}

// cachedBlocks is how many leading blocks of the prompt the rank has, in all
// tiers together.
func cachedBlocks(c *selection, slot uint32) uint64 {
	device, host, disk := c.overlap.At(slot)
	return uint64(device) + uint64(host) + uint64(disk)
}
