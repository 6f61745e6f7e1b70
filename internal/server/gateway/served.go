package gateway

import (
	"context"
	"sync"

	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/pkg/catalog"
)

// maxFallbacks is how many destinations may follow the chosen one.
const maxFallbacks = 2

// fallbacks remembers the gateways, by address, that report which endpoint has served a
// request. Only they get fallback destinations: a booking has to follow its request to the rank
// that serves it.
type fallbacks struct {
	mu       sync.RWMutex // guards gateways
	gateways map[string]bool
}

// maxGateways bounds the remembered gateways.
const maxGateways = 1024

// of returns how many fallback destinations a gateway gets.
func (f *fallbacks) of(gateway string) int {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.gateways[gateway] {
		return maxFallbacks
	}
	return 0
}

// remember notes that a gateway reports the endpoint.
func (f *fallbacks) remember(gateway string) {
	if f.of(gateway) > 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gateways == nil || len(f.gateways) >= maxGateways {
		f.gateways = make(map[string]bool)
	}
	f.gateways[gateway] = true
}

// served handles the gateway's report that the request was served at an endpoint: it moves the
// booking there. If no worker of the model listens there, the booking is freed.
func (s *Server) served(gateway string, b *booking, at string) {
	s.fallbacks.remember(gateway)
	if b == nil {
		return
	}
	if at == b.at() {
		s.config.Metrics.Served(counts.ServedChosen)
		return
	}
	if rank, ok := s.rankAt(b.scope, at); ok && b.move(rank, at) == nil {
		s.config.Metrics.Served(counts.ServedFallback)
		return
	}
	s.config.Metrics.Served(counts.ServedUnknown)
	s.config.Log.Debug().Str("endpoint", catalog.Clip(at)).Msg("a request was served by no worker of its model")
	b.free()
}

// endpointOf returns the endpoint of a rank that takes bookings, ip:port, "" if it is none. It
// looks up no host names.
func (s *Server) endpointOf(sc catalog.Scope, r catalog.Rank) string {
	snap := s.picker.models.catalog.Snapshot(sc)
	if snap == nil {
		return ""
	}
	e, ok := snap.Bookable(r)
	if !ok {
		return ""
	}
	at, _ := s.picker.endpoints.known(e.Worker, e.DP)
	return at.text
}

// rankAt returns the rank of a scope that takes bookings and listens at an endpoint. It looks up
// no host names; those not resolved yet do not match.
func (s *Server) rankAt(sc catalog.Scope, at string) (catalog.Rank, bool) {
	snap := s.picker.models.catalog.Snapshot(sc)
	if snap == nil {
		return catalog.Rank{}, false
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	for _, e := range snap.Known() {
		if !snap.IsBookable(e) {
			continue
		}
		if own, err := s.picker.endpoints.of(now, e.Worker, e.DP); err == nil && own.text == at {
			return e.Rank, true
		}
	}
	return catalog.Rank{}, false
}
