package workers

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// Drains removes the workers of the API that operators drain: once they have no reservation, and at the
// latest at their deadline.
type Drains struct {
	store    Store
	catalog  *catalog.Catalog
	ledger   *reservations.Ledger
	caughtUp func() bool
	log      zerolog.Logger

	// empty has the workers that had no reservation at the last sweep. One sweep is not enough:
	// a request that was chosen for a worker just before the drain may not be booked yet.
	empty map[*catalog.Worker]struct{}
}

// NewDrains returns the drains of a catalog, whose workers a store keeps. caughtUp reports whether no
// reservation of another replica is known to be on its way, so that a worker without any is empty.
func NewDrains(store Store, c *catalog.Catalog, ledger *reservations.Ledger, caughtUp func() bool, log zerolog.Logger) *Drains {
	return &Drains{store: store, catalog: c, ledger: ledger, caughtUp: caughtUp, log: log}
}

// Sweep removes the workers that are empty for the second time, or whose deadline has
// passed. One goroutine calls it every second.
func (d *Drains) Sweep(now time.Time) {
	was, empty := d.empty, make(map[*catalog.Worker]struct{})
	d.empty = empty
	known := d.store.Settled() && d.caughtUp()
	drained := d.catalog.Drained(catalog.SourceAPI)
	deadlines := d.store.Deadlines(drained, now)
	for i, w := range drained {
		live := d.liveRequests(w)
		late := !deadlines[i].IsZero() && !now.Before(deadlines[i])
		if live == 0 && known {
			empty[w] = struct{}{}
		}
		if _, twice := was[w]; !late && (live > 0 || !twice || !known) {
			continue
		}
		d.store.RemoveDrained(w, func() {
			d.log.Info().Uint64("worker_id", w.ID).Str("model", catalog.Clip(w.Scope.Model)).Str("tenant_id", catalog.Clip(w.Scope.Tenant)).
				Bool("deadline", late).Int("reservations", live).Msg("drained worker removed")
		})
	}
}

// liveRequests returns the number of reservations on a worker's ranks.
func (d *Drains) liveRequests(w *catalog.Worker) (n int) {
	snap := d.catalog.Snapshot(w.Scope)
	if snap == nil {
		return 0
	}
	d.ledger.Look(w.Scope, nil, func(v *reservations.View) {
		for _, e := range snap.KnownOf(w.ID) {
			if v.Known(e.Slot, e.Rank) {
				n += int(v.Load(e.Slot).Requests)
			}
		}
	})
	return n
}
