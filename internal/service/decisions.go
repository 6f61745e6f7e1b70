package service

import (
	"math"

	"github.com/select-service/select-service/internal/telemetry"
)

// stats returns the counts that the selection belongs to.
func (c *selection) stats() *telemetry.ModelSelections {
	model := c.request.Scope.Model
	if c.scope == nil && !c.service.catalog.HasModel(model) {
		return c.service.selections.Others()
	}
	return c.service.selections.Of(model)
}

// issued counts that the selection was asked for, unless it did so before, and
// returns the counts that it belongs to from then on.
func (c *selection) issued() *telemetry.ModelSelections {
	if c.counts == nil {
		c.counts = c.stats()
		c.counts.Issued(telemetry.RouteOf(c.reserve))
	}
	return c.counts
}

// enterQueue counts a selection that begins to wait. It counts as issued now: a
// wait has no limit, and the rate of what is asked for is needed meanwhile.
func (c *selection) enterQueue() { c.issued().Queued(telemetry.RouteOf(c.reserve), 1) }

// leaveQueue counts it out again.
func (c *selection) leaveQueue() { c.counts.Queued(telemetry.RouteOf(c.reserve), -1) }

// decided counts a selection that is over. It runs outside all locks.
func (c *selection) decided(err error) {
	route := telemetry.RouteOf(c.reserve)
	o := telemetry.OutcomeOf(err, route)
	if c.repeated {
		o = telemetry.Repeated
	}
	if o == telemetry.Invalid && c.counts == nil {
		c.stats().Ended(o, route, err)
		return
	}
	m := c.issued()
	m.Ended(o, route, err)
	if o == telemetry.NotReady {
		c.service.selections.NoteUnserved(c.request.Scope)
	}
	if c.queued {
		m.Waited(c.waited)
	}
	if err == nil && o != telemetry.Repeated {
		c.observeChoice(m)
	}
}

// observeChoice notes what the choice was like.
func (c *selection) observeChoice(m *telemetry.ModelSelections) {
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
