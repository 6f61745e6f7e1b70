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
}

// sweepDrained removes the workers that are empty for the second time, or whose deadline has
// passed.
func (s *Service) sweepDrained(d *drains, now time.Time) {
	was, empty := d.empty, make(map[*catalog.Worker]struct{})
	d.empty = empty
	for _, w := range s.catalog.Drained(catalog.SourceAPI) {
		live := s.liveRequests(w)
		late := !w.Drain.Deadline.IsZero() && !now.Before(w.Drain.Deadline)
		if live == 0 {
			empty[w] = struct{}{}
		}
		if _, twice := was[w]; !late && (live > 0 || !twice) {
			continue
		}
		s.removeDrained(w, func() {
			s.log.Info().Uint64("worker_id", w.ID).Str("model", catalog.Clip(w.Scope.Model)).Str("tenant_id", catalog.Clip(w.Scope.Tenant)).
				Bool("deadline", late).Int("reservations", live).Msg("drained worker removed")
		})
	}
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
