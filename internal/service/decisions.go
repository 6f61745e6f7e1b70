package service

import (
	"errors"
	"maps"
	"math"
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/metrics"
	"github.com/select-service/select-service/internal/overload"
	"github.com/select-service/select-service/pkg/catalog"
)

// route is a way to ask for a selection, as the labels of counters tell them
// apart.
type route uint8

const (
	routeSelect route = iota
	routeReserve
	numRoutes = int(iota)
)

// String gives the route's label.
func (r route) String() string { return [numRoutes]string{"select", "select_and_reserve"}[r] }

func routeOf(reserve bool) route {
	if reserve {
		return routeReserve
	}
	return routeSelect
}

// The causes of a rejection: the thresholds, and the wait queue's limits.
const (
	queueLimit = overload.NumThresholds + iota
	numCauses
)

// maxSpread bounds the cost spread that is observed, in blocks. Requests may have
// weights that make any cost, and the histogram's sum must stay of use.
const maxSpread = 1 << 20

// modelStats counts the selections of one model. Writers take no lock.
type modelStats struct {
	outcomes         [NumOutcomes]atomic.Uint64
	issued, rejected [numRoutes]atomic.Uint64
	queued           [numRoutes]atomic.Int64 // requests that wait
	causes           [numCauses]atomic.Uint64

	// Of answered selections:

	ratio, foregone, spread *metrics.Histogram

	wait *metrics.Histogram // seconds in the queue, of those that really waited
}

func newModelStats() *modelStats {
	return &modelStats{
		ratio:    metrics.NewHistogram(metrics.OverlapRatioBounds),
		foregone: metrics.NewHistogram(metrics.ForegoneBounds),
		spread:   metrics.NewHistogram(metrics.CostSpreadBounds),
		wait:     metrics.NewHistogram(metrics.WaitBounds),
	}
}

// maxModelStats bounds the models that are counted each for itself.
const maxModelStats = 1024

// modelTable has the counts of every model. Readers never wait. Counts outlive
// the model's workers, so that they do not start anew when it comes back.
type modelTable struct {
	byName atomic.Pointer[map[string]*modelStats] // replaced under mu
	mu     sync.Mutex
	// others counts the selections for models that the catalog does not have, and
	// those of models for which there was no room.
	others *modelStats
}

func newModelTable() *modelTable {
	t := &modelTable{others: newModelStats()}
	t.byName.Store(&map[string]*modelStats{})
	return t
}

// of returns the counts of a model, those of the others if it has none.
func (t *modelTable) of(model string) *modelStats {
	if m := (*t.byName.Load())[model]; m != nil {
		return m
	}
	return t.others
}

// add gives a model of the catalog counts of its own. If there are too many,
// those of models that the catalog has lost give way; if there are none, the
// model stays among the others.
func (t *modelTable) add(model string, c *catalog.Catalog) {
	if model == "" || (*t.byName.Load())[model] != nil {
		return // no name is the label of the others
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	all := *t.byName.Load()
	if all[model] != nil || !c.HasModel(model) {
		return
	}
	next := maps.Clone(all)
	if len(next) >= maxModelStats {
		maps.DeleteFunc(next, func(name string, _ *modelStats) bool { return !c.HasModel(name) })
	}
	if len(next) >= maxModelStats {
		return
	}
	next[model] = newModelStats()
	t.byName.Store(&next)
}

// stats returns the counts that the selection belongs to.
func (c *selection) stats() *modelStats {
	model := c.request.Scope.Model
	if c.scope == nil && !c.service.catalog.HasModel(model) {
		return c.service.models.others
	}
	return c.service.models.of(model)
}

// issued counts that the selection was asked for, unless it did so before, and
// returns the counts that it belongs to from then on.
func (c *selection) issued() *modelStats {
	if c.counts == nil {
		c.counts = c.stats()
		c.counts.issued[routeOf(c.reserve)].Add(1)
	}
	return c.counts
}

// enterQueue counts a selection that begins to wait. It counts as issued now: a
// wait has no limit, and the rate of what is asked for is needed meanwhile.
func (c *selection) enterQueue() { c.issued().queued[routeOf(c.reserve)].Add(1) }

// leaveQueue counts it out again.
func (c *selection) leaveQueue() { c.counts.queued[routeOf(c.reserve)].Add(-1) }

// decided counts a selection that is over. It runs outside all locks.
func (c *selection) decided(err error) {
	o := outcomeOf(err, c.reserve)
	if c.repeated {
		o = Repeated
	}
	if o == Invalid && c.counts == nil {
		c.stats().outcomes[o].Add(1)
		return
	}
	m := c.issued()
	m.outcomes[o].Add(1)
	if o == NotReady {
		c.service.noteUnserved(c.request.Scope)
	}
	if c.queued {
		m.wait.Observe(c.waited.Seconds())
	}
	switch {
	case o == Repeated:
	case err == nil:
		m.observe(c)
	case o == QueueFull:
		m.causes[queueLimit].Add(1)
	case o == Refused:
		m.rejected[routeOf(c.reserve)].Add(1)
		m.blame(err)
	}
}

// blame counts the thresholds that a refusal is due to.
func (m *modelStats) blame(err error) {
	over, ok := errors.AsType[*contract.OverloadError](err)
	if !ok {
		return
	}
	for t := range overload.Threshold(overload.NumThresholds) {
		if over.Causes.Has(t) {
			m.causes[t].Add(1)
		}
	}
}

// observe notes what the choice was like.
func (m *modelStats) observe(c *selection) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, cost := range c.costs { // finite: no need of min and max, which take care of NaN
		if cost < low {
			low = cost
		}
		if cost > high {
			high = cost
		}
	}
	m.spread.Observe(min(high-low, maxSpread))

	best := uint64(0)
	for i := range c.eligible {
		best = max(best, cachedBlocks(c, c.eligible[i].Slot))
	}
	chosen := cachedBlocks(c, c.chosen.Slot)
	m.foregone.Observe(float64(best - chosen))
	if c.size.Blocks > 0 {
		m.ratio.Observe(float64(chosen) / float64(c.size.Blocks))
	}
}

// cachedBlocks is how many leading blocks of the prompt the rank has, in all
// tiers together.
func cachedBlocks(c *selection, slot uint32) uint64 {
	device, host, disk := c.overlap.At(slot)
	return uint64(device) + uint64(host) + uint64(disk)
}
