package conductor

import (
	"sync/atomic"

	"github.com/select-service/select-service/pkg/indexer"
)

// maxClaims is how many hashes of a publisher are kept to be confirmed later.
const maxClaims = 8

// claims are hashes of first blocks that a publisher announced without tokens
// under its registered identity, when nothing confirmed them: the latest ones, 0
// for none. A publisher with tokens that comes after it tells what they are.
type claims struct {
	hashes [maxClaims]atomic.Uint64
	next   int // guarded by Publisher.mu
}

func (c *claims) add(hash uint64) {
	c.hashes[c.next%maxClaims].Store(hash)
	c.next++
}

// settle finds out what hashes of a publisher are of which nothing was known when
// they came. known are rolling hashes of prompts' first blocks, made from tokens.
func (p *Publisher) settle(known ...uint64) {
	if p.ownNames.Load() != namesUnknown || p.hashSource() != HashesUnverified {
		return
	}
	r := p.registry
	r.mu.RLock()
	defer r.mu.RUnlock()
	if p.gone.Load() {
		return
	}
	var m indexer.Match
	for _, h := range known {
		if own, _ := p.holders(h, &m); own && p.calls(h) {
			p.ownNames.CompareAndSwap(namesUnknown, namesAgree)
			return
		}
	}
	for i := range p.claims.hashes {
		h := p.claims.hashes[i].Load()
		if h == 0 {
			continue
		}
		switch own, tokens := p.holders(h, &m); {
		case own && tokens && p.calls(h):
			p.ownNames.CompareAndSwap(namesUnknown, namesAgree)
			return
		case !own && p.calls(h): // it became a block of another hash
			p.ownNames.CompareAndSwap(namesUnknown, namesDiffer)
			return
		}
	}
}

// holders tells whether the publisher holds the first block of that hash, and
// whether somebody does who sends tokens only. It needs Registry.mu.
func (p *Publisher) holders(hash uint64, m *indexer.Match) (own, tokens bool) {
	sp := p.home.space
	sp.index.Match([]uint64{hash ^ p.home.seed}, m)
	if len(m.Steps) == 0 {
		return false, false
	}
	for n := range holders(sp, &m.Steps[0]) {
		by := sp.slots[n].owner.publisher
		own = own || by == p
		tokens = tokens || by.hashSource() == HashesTokens
	}
	return own, tokens
}

// calls tells whether the publisher has a block under that hash. It needs
// Registry.mu.
func (p *Publisher) calls(hash uint64) bool {
	for _, o := range p.owners {
		if o.space != p.home.space {
			continue
		}
		if seed, ok := o.seedOf(hash ^ p.home.seed); ok && seed == p.home.seed {
			return true
		}
	}
	return false
}
