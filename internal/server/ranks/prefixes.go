package ranks

import (
	"sync"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

const (
	// MaxPrefixes bounds the prefixes that Hottest finds.
	MaxPrefixes = 1000
	// prefixesKept is how long an answer is repeated, and maxPrefixesKept how many answers are.
	prefixesKept    = 5 * time.Second
	maxPrefixesKept = 16
)

// Prefixes finds what is cached most. It walks one index at a time.
type Prefixes struct {
	parts node.Parts
	now   func() time.Time

	mu   sync.Mutex // guards kept; it is held during a walk
	kept map[prefixesOf]*Hottest
}

// prefixesOf is a question.
type prefixesOf struct {
	scope catalog.Scope
	limit int
}

// Hottest are the prefixes of a scope with the most blocks times holders. It must not be changed.
type Hottest struct {
	Scope     catalog.Scope
	Time      time.Time // of the walk
	BlockSize uint32    // tokens; 0: the scope has no workers
	// UniqueBlocks and HeldBlocks count the scope's whole index: each block once, and once for each
	// rank and tier that holds it.
	UniqueBlocks, HeldBlocks int
	Runs                     []HotRun
	Walked                   int  // runs
	Truncated                bool // the index has more runs than a walk looks at
}

// HotRun is a run of blocks with some of the ranks that hold it.
type HotRun struct {
	indexer.HotRun
	Ranks []catalog.Rank
	// The keys of its prompts, at the root of the tree, where an event has named them.
	KeysKnown bool
	LoRA      string
	Salted    bool
}

// NewPrefixes returns the prefixes of a service's parts.
func NewPrefixes(parts node.Parts, now func() time.Time) *Prefixes {
	return &Prefixes{parts: parts, now: now, kept: make(map[prefixesOf]*Hottest)}
}

// Hottest returns the hottest prefixes of a scope, at most limit and those before them, as they
// were some seconds ago.
func (p *Prefixes) Hottest(sc catalog.Scope, limit int) *Hottest {
	p.mu.Lock()
	defer p.mu.Unlock()
	of, now := prefixesOf{sc, limit}, p.now()
	if h := p.kept[of]; h != nil && now.Sub(h.Time) < prefixesKept {
		return h
	}
	for of, h := range p.kept {
		if now.Sub(h.Time) >= prefixesKept {
			delete(p.kept, of)
		}
	}
	h := p.walk(of)
	if len(p.kept) < maxPrefixesKept {
		p.kept[of] = h
	}
	return h
}

func (p *Prefixes) walk(of prefixesOf) *Hottest {
	h := &Hottest{Scope: of.scope, Time: p.now()}
	state, snap := p.parts.Scopes.Of(of.scope), p.parts.Catalog.Snapshot(of.scope)
	if state == nil || snap == nil {
		return h
	}
	h.BlockSize = state.BlockSize
	stats := state.Space.Stats()
	h.UniqueBlocks = stats.Unique
	for _, n := range stats.Blocks {
		h.HeldBlocks += n
	}
	runs, walked, complete := state.Space.Hottest(of.limit)
	h.Walked, h.Truncated = walked, !complete
	bySlot := make(map[uint32]catalog.Rank)
	for _, e := range snap.Known() {
		bySlot[e.Slot] = e.Rank
	}
	for _, r := range runs {
		run := HotRun{HotRun: r}
		for _, slot := range r.Slots {
			if rank, ok := bySlot[slot]; ok {
				run.Ranks = append(run.Ranks, rank)
			}
		}
		if r.Known && r.Parent < 0 {
			run.LoRA, run.Salted, run.KeysKnown = state.Seeds.SeedName(r.Seed)
		}
		h.Runs = append(h.Runs, run)
	}
	return h
}
