package conductor

import (
	"sync/atomic"

	"github.com/select-service/select-service/pkg/indexer"
)

// HashSource says where the hashes of a publisher's blocks come from.
type HashSource uint8

// The sources.
const (
	HashesNone       HashSource = iota // nothing came yet
	HashesTokens                       // computed here from tokens
	HashesStandard                     // the publisher's, confirmed by blocks known from tokens
	HashesUnverified                   // the publisher's, and nothing confirms that they are of the standard
	HashesOwn                          // the engine's own names: the standard's are others
)

var hashSourceNames = [...]string{
	HashesNone: "none", HashesTokens: "tokens", HashesStandard: "standard",
	HashesUnverified: "unverified", HashesOwn: "own",
}

// String gives the source's name on the wire.
func (h HashSource) String() string {
	if int(h) < len(hashSourceNames) {
		return hashSourceNames[h]
	}
	return "unknown"
}

// hashSource judges by what blocks known from tokens said of the publisher's
// hashes, and by the first blocks that it announced with tokens.
func (p *Publisher) hashSource() HashSource {
	c := &p.counts
	yes, no := c[confirmed].Load(), c[resolved].Load()
	switch {
	case yes+no+c[unverified].Load() > 0:
	case c[fromTokens].Load() > 0:
		return HashesTokens
	default:
		return HashesNone
	}
	switch own := p.tokenEvidence.Load(); {
	case no > 0 || own == evidenceOwn:
		return HashesOwn
	case yes > 0 || own == evidenceStandard:
		return HashesStandard
	}
	return HashesUnverified
}

// maxUnconfirmed is how many hashes of a publisher are kept to be confirmed later.
const maxUnconfirmed = 8

// unconfirmed are hashes of first blocks that a publisher announced without tokens
// under its registered identity, when nothing confirmed them: the latest ones, 0
// for none. A publisher with tokens that comes after it confirms or refutes them.
type unconfirmed struct {
	hashes [maxUnconfirmed]atomic.Uint64
	next   int // guarded by Publisher.mu
}

func (c *unconfirmed) add(hash uint64) {
	c.hashes[c.next%maxUnconfirmed].Store(hash)
	c.next++
}

// confirmHashes finds out what hashes of a publisher are of which nothing was known when
// they came. known are rolling hashes of prompts' first blocks, made from tokens.
func (p *Publisher) confirmHashes(known ...uint64) {
	if p.tokenEvidence.Load() != evidenceNone || p.hashSource() != HashesUnverified {
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
		case !own && p.names(h): // it became a block of another hash
			p.tokenEvidence.CompareAndSwap(evidenceNone, evidenceOwn)
			return
		}
	}
}

// holders reports whether the publisher holds the first block of that hash, and
// whether another one does that sends tokens only. It needs Registry.mu.
func (p *Publisher) holders(hash uint64, m *indexer.Match) (own, tokens bool) {
	sp := p.namespace.space
	sp.index.Match([]uint64{hash ^ p.namespace.seed}, m)
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

// names reports whether the publisher has a block under that hash. It needs
// Registry.mu.
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
