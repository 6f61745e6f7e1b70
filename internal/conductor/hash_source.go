package conductor

import (
	"sync/atomic"

	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/indexer"
)

// hashSource judges by how the publisher's hashes compare with blocks known from tokens, and by
// the first blocks that it announced with tokens.
func (p *Publisher) hashSource() diagnose.HashSource {
	c := &p.counts
	yes, no := c[confirmed].Load(), c[resolved].Load()
	switch {
	case yes+no+c[unverified].Load() > 0:
	case c[fromTokens].Load() > 0:
		return diagnose.HashesTokens
	default:
		return diagnose.HashesNone
	}
	switch own := p.tokenEvidence.Load(); {
	case no > 0 || own == evidenceOwn:
		return diagnose.HashesOwn
	case yes > 0 || own == evidenceStandard:
		return diagnose.HashesStandard
	}
	return diagnose.HashesUnverified
}

// maxUnconfirmed is how many hashes of a publisher are kept for later confirmation.
const maxUnconfirmed = 8

// unconfirmed has the latest unconfirmed hashes of first blocks that a publisher announced
// without tokens under its registered identity; 0: none. A later publisher with tokens
// confirms or refutes them.
type unconfirmed struct {
	hashes [maxUnconfirmed]atomic.Uint64
	next   int // guarded by Publisher.mu
}

func (u *unconfirmed) add(hash uint64) {
	u.hashes[u.next%maxUnconfirmed].Store(hash)
	u.next++
}

// confirmHashes confirms or refutes hashes of a publisher of which nothing was known when they
// came. known has rolling hashes of prompts' first blocks, computed from tokens.
func (p *Publisher) confirmHashes(known ...uint64) {
	if p.tokenEvidence.Load() != evidenceNone || p.hashSource() != diagnose.HashesUnverified {
		return
	}
	r := p.registry
	r.mu.RLock()
	defer r.mu.RUnlock()
	if p.withdrawn.Load() {
		return
	}
	var m indexer.Match
	for _, h := range known {
		if own, _ := p.holders(h, &m); own && p.names(h) {
			p.tokenEvidence.CompareAndSwap(evidenceNone, evidenceStandard)
			return
		}
	}
	for i := range p.unconfirmed.hashes {
		h := p.unconfirmed.hashes[i].Load()
		if h == 0 {
			continue
		}
		switch own, tokens := p.holders(h, &m); {
		case own && tokens && p.names(h):
			p.tokenEvidence.CompareAndSwap(evidenceNone, evidenceStandard)
			return
		case !own && p.names(h): // the engine's own: the block has another standard hash
			p.tokenEvidence.CompareAndSwap(evidenceNone, evidenceOwn)
			return
		}
	}
}

// holders reports whether the publisher holds the first block with that hash, and whether a
// publisher does that sends only tokens. The caller holds Registry.mu.
func (p *Publisher) holders(hash uint64, m *indexer.Match) (own, tokens bool) {
	sp := p.namespace.space
	sp.index.Match([]uint64{hash ^ p.namespace.seed}, m)
	if len(m.Steps) == 0 {
		return false, false
	}
	for n := range holders(sp, &m.Steps[0]) {
		by := sp.slots[n].owner.publisher
		own = own || by == p
		tokens = tokens || by.hashSource() == diagnose.HashesTokens
	}
	return own, tokens
}

// names reports whether the publisher has a block under that hash. The caller holds Registry.mu.
func (p *Publisher) names(hash uint64) bool {
	for _, o := range p.owners {
		if o.space != p.namespace.space {
			continue
		}
		if seed, ok := o.seedOf(hash ^ p.namespace.seed); ok && seed == p.namespace.seed {
			return true
		}
	}
	return false
}
