package extproc

import "sync"

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
