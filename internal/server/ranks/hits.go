package ranks

// fade is what is left of the weight of prompts after one sample of hits, so that a hit rate is
// about the prompts of the last half a minute.
const fade = 0.85

// hits follows the hit rate of a rank or a scope.
type hits struct {
	cached, blocks     uint64 // counts at the last sample
	fadedHit, fadedAll float64
	rate               Rate
	begun              bool // cached and blocks are known
}

// sample takes the present counts and returns the rate since the last call. It is called every
// ScopeEvery.
func (h *hits) sample(cached, blocks uint64) (rate Rate) {
	if !h.begun || cached < h.cached || blocks < h.blocks {
		*h = hits{cached: cached, blocks: blocks, begun: true}
		return 0
	}
	newHit, newAll := float64(cached-h.cached), float64(blocks-h.blocks)
	h.fadedHit, h.fadedAll = h.fadedHit*fade+newHit, h.fadedAll*fade+newAll
	h.cached, h.blocks = cached, blocks
	h.rate = rateOf(h.fadedHit, h.fadedAll)
	return rateOf(newHit, newAll)
}
