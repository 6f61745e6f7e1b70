package fleet

import (
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// drainClock says when drains are over by the clock of this process: their deadlines are by the clocks of
// the replicas that began them. One goroutine uses it.
type drainClock struct {
	// seen is when this replica learned of each drain, or when it had begun if that was before the replica was
	// part of the fleet.
	seen   map[seenDrain]time.Time
	joined bool // the replica is part of the fleet: it learns of drains as they begin
}

// seenDrain names a drain with a deadline.
type seenDrain struct {
	worker   uint64
	deadline int64 // in Unix nanoseconds, by the clock of who drains
}

// deadlines returns the deadlines of all workers that drain, zero for one without. settled: this replica is
// part of the fleet by now.
func (d *drainClock) deadlines(drained []*catalog.Worker, now time.Time, settled bool) []time.Time {
	before := d.seen
	d.seen = make(map[seenDrain]time.Time)
	all := make([]time.Time, len(drained))
	for i, w := range drained {
		all[i] = w.Drain.Deadline
		if w.Drain.Within == 0 {
			continue
		}
		drain := seenDrain{w.ID, all[i].UnixNano()}
		at, known := before[drain]
		if began := all[i].Add(-w.Drain.Within); !known {
			at = now
			if !d.joined && began.Before(now) {
				at = began
			}
		}
		d.seen[drain] = at
		all[i] = at.Add(w.Drain.Within)
	}
	d.joined = d.joined || settled
	return all
}
