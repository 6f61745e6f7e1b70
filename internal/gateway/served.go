package gateway

import (
	"context"
	"sync"

	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/pkg/catalog"
)

// mostFallbacks is how many destinations follow the chosen one.
const mostFallbacks = 2

// fallbacks are the gateways that say which endpoint has served a request: only they get
// further destinations, as a booking has to follow where its request went.
type fallbacks struct {
	mu       sync.RWMutex // guards gateways
	gateways map[string]bool
}

// maxGateways bounds the gateways that are remembered.
const maxGateways = 1024

// of returns how many fallbacks a gateway can use.
func (f *fallbacks) of(gateway string) int {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.gateways[gateway] {
		return mostFallbacks
	}
	return 0
}

// tells notes that a gateway says it.
func (f *fallbacks) tells(gateway string) {
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

// served takes note of the endpoint that a request went to, and moves its booking there. A
// request that went to no worker of its model is not booked any more.
func (s *Server) served(gateway string, b *booking, at string) {
	s.fallbacks.tells(gateway)
	if b == nil {
		return
	}
	if at == b.at() {
		s.config.Metrics.Served(telemetry.ServedChosen)
		return
	}
	if rank, ok := s.rankAt(b.scope, at); ok && b.move(rank, at) == nil {
		s.config.Metrics.Served(telemetry.ServedFallback)
		return
	}
	s.config.Metrics.Served(telemetry.ServedUnknown)
	s.config.Log.Debug().Str("endpoint", catalog.Clip(at)).Msg("a request was served by no worker of its model")
	b.free()
}

// rankAt finds the rank of a scope that listens at an endpoint. Host names that are not known
// yet are not looked up.
func (s *Server) rankAt(sc catalog.Scope, at string) (catalog.Rank, bool) {
	snap := s.picker.models.catalog.Snapshot(sc)
	if snap == nil {
		return catalog.Rank{}, false
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	for _, e := range snap.Ranks() {
		if own, _, err := s.picker.endpoints.of(now, e.Worker, e.DP); err == nil && own.text == at {
			return e.Rank, true
		}
	}
	return catalog.Rank{}, false
}
