package scopes

import (
	"sync"
	"sync/atomic"
)

// Hits counts, for each rank of a scope, the blocks of the prompts for which it was chosen and how
// many of them it had cached. The zero Hits has none. A count stays with its slot when another
// rank gets that.
type Hits struct {
	pages atomic.Pointer[[]*hitPage] // replaced under mu; a page stays where it is
	mu    sync.Mutex                 // serialises the growth of pages
}

// hitPage has the counts of 64 neighbouring slots.
type hitPage [64]struct{ blocks, cached atomic.Uint64 }

// Note counts a prompt of the given number of complete blocks for which the rank in a slot was
// chosen.
func (h *Hits) Note(slot uint32, cached, blocks uint64) {
	at := int(slot / 64)
	pages := h.pages.Load()
	if pages == nil || at >= len(*pages) {
		pages = h.grow(at + 1)
	}
	n := &(*pages)[at][slot%64]
	n.blocks.Add(blocks)
	n.cached.Add(min(cached, blocks))
}

// grow makes room for n pages.
func (h *Hits) grow(n int) *[]*hitPage {
	h.mu.Lock()
	defer h.mu.Unlock()
	var grown []*hitPage
	if pages := h.pages.Load(); pages != nil {
		if len(*pages) >= n {
			return pages
		}
		grown = append(grown, *pages...)
	}
	for len(grown) < n {
		grown = append(grown, new(hitPage))
	}
	h.pages.Store(&grown)
	return &grown
}

// Of returns the counts of a slot.
func (h *Hits) Of(slot uint32) (cached, blocks uint64) {
	pages := h.pages.Load()
	if pages == nil || int(slot/64) >= len(*pages) {
		return 0, 0
	}
	n := &(*pages)[slot/64][slot%64]
	return n.cached.Load(), n.blocks.Load()
}

// Total returns the sums over all slots.
func (h *Hits) Total() (cached, blocks uint64) {
	if pages := h.pages.Load(); pages != nil {
		for _, p := range *pages {
			for i := range p {
				cached += p[i].cached.Load()
				blocks += p[i].blocks.Load()
			}
		}
	}
	return cached, blocks
}
