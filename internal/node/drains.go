package node

import (
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// DrainWorkerIn makes a worker among those of matching scopes drain: it gets no new work. A
// worker of the API is removed once it has had no reservation for a second, and at the latest
// after the given time; nil: there is no such limit. See catalog.Catalog.Drain.
func (s *Service) DrainWorkerIn(own catalog.ScopeFilter, id uint64, within *time.Duration) (*catalog.Worker, error) {
	d := drainOf(within)
	return s.changeDrain(id, func(c *catalog.Catalog) (*catalog.Worker, error) { return c.Drain(own, id, d) })
}

// UndrainWorkerIn takes DrainWorkerIn back.
func (s *Service) UndrainWorkerIn(own catalog.ScopeFilter, id uint64) (*catalog.Worker, error) {
	return s.changeDrain(id, func(c *catalog.Catalog) (*catalog.Worker, error) { return c.Undrain(own, id) })
}

// changeDrain changes whether a worker drains. A discovered worker is no worker of the fleet's catalog.
func (s *Service) changeDrain(id uint64, change func(*catalog.Catalog) (*catalog.Worker, error)) (*catalog.Worker, error) {
	if s.managedHere(id) {
		return s.register(func() (*catalog.Worker, error) { return change(s.catalog) })
	}
	return s.edit(change)
}

// drains removes the workers of the API that operators drain.
type drains struct {
	// empty has the workers that had no reservation at the last sweep. One sweep is not enough:
	// a request that was chosen for a worker just before the drain may not be booked yet.
	empty map[*catalog.Worker]struct{}
	// seen is when this replica of a fleet learned of each drain, or when it had begun if that was before the
	// replica was part of the fleet.
	seen   map[seenDrain]time.Time
	joined bool // the replica is part of the fleet: it learns of drains as they begin
}

// seenDrain names a drain with a deadline.
type seenDrain struct {
	worker   uint64
	deadline int64 // in Unix nanoseconds, by the clock of who drains
}

// sweepDrained removes the workers that are empty for the second time, or whose deadline has
// passed.
func (s *Service) sweepDrained(d *drains, now time.Time) {
	was, empty := d.empty, make(map[*catalog.Worker]struct{})
	before := d.seen
	d.empty, d.seen = empty, make(map[seenDrain]time.Time)
	known := s.loadsKnown()
	for _, w := range s.catalog.Drained(catalog.SourceAPI) {
		live := s.liveRequests(w)
		deadline := w.Drain.Deadline
		if s.config.Shared != nil && w.Drain.Within > 0 { // another replica's clock
			drain := seenDrain{w.ID, deadline.UnixNano()}
			at, is := before[drain]
			if began := deadline.Add(-w.Drain.Within); !is {
				at = now
				if !d.joined && began.Before(now) {
					at = began
				}
			}
			d.seen[drain] = at
			deadline = at.Add(w.Drain.Within)
		}
		late := !deadline.IsZero() && !now.Before(deadline)
		if live == 0 && known {
			empty[w] = struct{}{}
		}
		if _, twice := was[w]; !late && (live > 0 || !twice || !known) {
			continue
		}
		s.removeDrained(w, func() {
			s.log.Info().Uint64("worker_id", w.ID).Str("model", catalog.Clip(w.Scope.Model)).Str("tenant_id", catalog.Clip(w.Scope.Tenant)).
				Bool("deadline", late).Int("reservations", live).Msg("drained worker removed")
		})
	}
	d.joined = d.joined || s.config.Shared != nil && s.config.Shared.Settled()
}

// loadsKnown reports whether no reservation of another replica is known to be on its way, so that
// a worker without any is empty.
func (s *Service) loadsKnown() bool {
	return (s.config.Shared == nil || s.config.Shared.Settled()) && (s.replica == nil || s.replica.CaughtUp())
}

// liveRequests returns the number of reservations on a worker's ranks.
func (s *Service) liveRequests(w *catalog.Worker) (n int) {
	snap := s.catalog.Snapshot(w.Scope)
	if snap == nil {
		return 0
	}
	s.ledger.Look(w.Scope, nil, func(v *reservations.View) {
		for _, e := range snap.KnownOf(w.ID) {
			if v.Known(e.Slot, e.Rank) {
				n += int(v.Load(e.Slot).Requests)
			}
		}
	})
	return n
}
