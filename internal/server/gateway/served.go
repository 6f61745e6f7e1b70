package gateway

import (
	"context"

	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/pkg/catalog"
)

// served handles a front's report that the request was served at an endpoint: it moves the
// booking there. If no worker of the model listens there, the booking is freed.
func (g *Gateway) served(b *booking, at string) {
	if at == b.at() {
		b.metrics.Served(counts.ServedChosen)
		return
	}
	if rank, ok := g.rankAt(b.scope, at); ok && b.move(rank, at) == nil {
		b.metrics.Served(counts.ServedFallback)
		return
	}
	b.metrics.Served(counts.ServedUnknown)
	g.config.Log.Debug().Str("endpoint", catalog.Clip(at)).Msg("a request was served by no worker of its model")
	b.free()
}

// endpointOf returns the endpoint of a rank that takes bookings, ip:port, "" if it is none. It
// looks up no host names.
func (g *Gateway) endpointOf(sc catalog.Scope, r catalog.Rank) string {
	snap := g.picker.models.catalog.Snapshot(sc)
	if snap == nil {
		return ""
	}
	e, ok := snap.Bookable(r)
	if !ok {
		return ""
	}
	at, _ := g.picker.endpoints.known(e.Worker, e.DP)
	return at.text
}

// rankAt returns the rank of a scope that takes bookings and listens at an endpoint. It looks up
// no host names; those not resolved yet do not match.
func (g *Gateway) rankAt(sc catalog.Scope, at string) (catalog.Rank, bool) {
	snap := g.picker.models.catalog.Snapshot(sc)
	if snap == nil {
		return catalog.Rank{}, false
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	for _, e := range snap.Known() {
		if !snap.IsBookable(e) {
			continue
		}
		if own, err := g.picker.endpoints.of(now, e.Worker, e.DP); err == nil && own.text == at {
			return e.Rank, true
		}
	}
	return catalog.Rank{}, false
}
