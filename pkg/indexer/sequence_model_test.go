package indexer_test

import (
	"slices"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// seqModel is the dumbest index of namespaces that can be right: sets of blocks
// per rank and tier. A block is its namespace and its chain of local hashes. It
// shares no code with the real index.
type seqModel struct {
	chains map[step]int // (chain before, local hash) → chain; 0 is empty
	up     []step       // by chain
	ranks  map[uint32]*seqRank
	// claims are blocks of which only a name of the engine's own is known.
	claims map[seqClaim]int   // hash → chain
	said   map[seqClaim][]int // name → chains
	tokens map[seqBlock]bool
	told   map[uint64]bool // names that came with tokens
}

type seqClaim struct {
	key, hash uint64
}

// seqBlock is a block of the namespace with a key.
type seqBlock struct {
	key   uint64
	chain int
}

type seqRank struct {
	named   [indexer.NumTiers]map[uint64]seqBlock
	waiting []seqOrphan
	gone    map[uint64]seqBlock
}

type seqOrphan struct {
	name, parent, local, key uint64
	keyKnown                 bool
	tiers                    map[indexer.Tier]bool
}

func newSeqModel() *seqModel {
	return &seqModel{
		chains: map[step]int{}, up: []step{{}}, ranks: map[uint32]*seqRank{},
		claims: map[seqClaim]int{}, said: map[seqClaim][]int{}, tokens: map[seqBlock]bool{}, told: map[uint64]bool{},
	}
}

func (m *seqModel) rank(slot uint32) *seqRank {
	r := m.ranks[slot]
	if r == nil {
		r = &seqRank{gone: map[uint64]seqBlock{}}
		for t := range r.named {
			r.named[t] = map[uint64]seqBlock{}
		}
		m.ranks[slot] = r
	}
	return r
}

func (m *seqModel) chain(before int, local uint64) int {
	s := step{before, local}
	c, ok := m.chains[s]
	if !ok {
		c = len(m.up)
		m.up = append(m.up, s)
		m.chains[s] = c
	}
	return c
}

func (r *seqRank) find(name uint64) (seqBlock, bool) {
	for t := range r.named {
		if b, ok := r.named[t][name]; ok {
			return b, true
		}
	}
	return seqBlock{}, false
}

func (r *seqRank) findFor(t indexer.Tier, name uint64) (seqBlock, bool) {
	if b, ok := r.named[t][name]; ok {
		return b, true
	}
	return r.find(name)
}

func (m *seqModel) store(ev *indexer.Store) {
	r := m.rank(ev.Slot)
	at, ok := seqBlock{key: hashing.Seed}, true
	if ev.HasParent {
		b, held := r.findFor(ev.Tier, ev.Parent)
		if held {
			at = b
		}
		ok = held || ev.Parent == 0
	}
	if !ok {
		m.wait(r, ev)
		return
	}
	if ev.SeedKnown {
		at.key = ev.Seed
	}
	root := at.chain == 0
	for i, name := range ev.EngineHashes {
		at.chain = m.chain(at.chain, ev.Local[i])
		r.named[ev.Tier][name] = at
		if root {
			m.tokens[at], m.told[name] = true, true
			m.gather(at, name)
		}
	}
	m.join(r, ev.Tier, ev.EngineHashes)
}

// wait keeps the blocks of an event that come before the first that r has.
func (m *seqModel) wait(r *seqRank, ev *indexer.Store) {
	parent := ev.Parent
	for i, name := range ev.EngineHashes {
		b, held := r.find(name)
		if held && m.up[b.chain].local == ev.Local[i] && (!ev.SeedKnown || ev.Seed == b.key) {
			r.named[ev.Tier][name] = b
			m.join(r, ev.Tier, []uint64{name})
			if rest := *ev; i+1 < len(ev.EngineHashes) {
				rest.Parent, rest.HasParent, rest.EngineHashes, rest.Local = name, true, ev.EngineHashes[i+1:], ev.Local[i+1:]
				m.store(&rest)
			}
			return
		}
		o := seqOrphan{name, parent, ev.Local[i], ev.Seed, ev.SeedKnown, map[indexer.Tier]bool{ev.Tier: true}}
		for _, old := range r.waiting {
			if old.name == name && old.parent == parent && old.local == o.local {
				for t := range old.tiers {
					o.tiers[t] = true
				}
			}
		}
		r.drop(name)
		r.waiting = append(r.waiting, o)
		parent = name
	}
}

func (r *seqRank) drop(name uint64) {
	r.waiting = slices.DeleteFunc(r.waiting, func(o seqOrphan) bool { return o.name == name })
}

// join follows a store of names in a tier.
func (m *seqModel) join(r *seqRank, tier indexer.Tier, names []uint64) {
	for _, o := range slices.Clone(r.waiting) {
		if !slices.Contains(names, o.name) {
			continue
		}
		r.drop(o.name)
		if b := r.named[tier][o.name]; m.up[b.chain].local == o.local && (!o.keyKnown || o.key == b.key) {
			for t := range o.tiers {
				r.named[t][o.name] = b
			}
		}
	}
	for work := slices.Clone(names); len(work) > 0; work = work[1:] {
		for _, o := range slices.Clone(r.waiting) {
			if o.parent != work[0] {
				continue
			}
			r.drop(o.name)
			for t := range indexer.Tier(indexer.NumTiers) {
				if at, ok := r.findFor(t, o.parent); ok && o.tiers[t] {
					b := seqBlock{at.key, m.chain(at.chain, o.local)}
					if o.keyKnown {
						b.key = o.key
					}
					r.named[t][o.name] = b
					work = append(work, o.name)
				}
			}
		}
	}
}

// storeHashed applies blocks that are known to be these.
func (m *seqModel) storeHashed(slot uint32, t indexer.Tier, names []uint64, blocks []seqBlock) {
	r := m.rank(slot)
	for i, name := range names {
		r.named[t][name] = blocks[i]
	}
	m.join(r, t, names)
}

// claim returns the block that stands for a hash of the engine's own; it is the
// block with tokens that comes by the name.
func (m *seqModel) claim(key, hash, name uint64) seqBlock {
	c, ok := m.claims[seqClaim{key, hash}]
	if !ok {
		c = m.chain(-1, uint64(len(m.claims)))
		m.claims[seqClaim{key, hash}] = c
		m.said[seqClaim{key, name}] = append(m.said[seqClaim{key, name}], c)
	}
	return seqBlock{key, c}
}

// gather gives a block with tokens all that was announced by its name alone.
func (m *seqModel) gather(b seqBlock, name uint64) {
	for _, c := range m.said[seqClaim{b.key, name}] {
		for _, r := range m.ranks {
			for t := range r.named {
				for n, held := range r.named[t] {
					if held == (seqBlock{b.key, c}) {
						r.named[t][n] = b
					}
				}
			}
		}
	}
}

func (m *seqModel) storeNamed(slot uint32, t indexer.Tier, names []uint64) {
	r := m.rank(slot)
	for _, name := range names {
		if _, ok := r.named[t][name]; ok {
			continue
		}
		b, ok := r.find(name)
		if !ok {
			waiting := false
			for _, o := range r.waiting {
				if o.name == name {
					o.tiers[t] = true
					waiting = true
				}
			}
			b, ok = r.gone[name]
			ok = ok && !waiting
		}
		if ok {
			r.named[t][name] = b
			m.join(r, t, []uint64{name})
		}
	}
}

func (m *seqModel) remove(slot uint32, t indexer.Tier, names []uint64) {
	r := m.rank(slot)
	for _, name := range names {
		if b, ok := r.named[t][name]; ok {
			delete(r.named[t], name)
			r.gone[name] = b
			continue
		}
		for _, o := range r.waiting {
			if o.name == name && o.tiers[t] {
				if delete(o.tiers, t); len(o.tiers) == 0 {
					r.drop(name)
				}
				break
			}
		}
	}
}

func (m *seqModel) clear(slot uint32) { delete(m.ranks, slot) }

func (m *seqModel) clearTier(slot uint32, t indexer.Tier, key uint64) {
	r := m.rank(slot)
	for name, b := range r.named[t] {
		if b.key == key {
			delete(r.named[t], name)
		}
	}
	for _, o := range r.waiting {
		if o.keyKnown && o.key == key {
			delete(o.tiers, t)
		}
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(o seqOrphan) bool { return len(o.tiers) == 0 })
}

// holders returns who holds a block.
func (m *seqModel) holders(b seqBlock) map[[2]uint32]bool {
	out := map[[2]uint32]bool{}
	for slot, r := range m.ranks {
		for t := range r.named {
			for _, held := range r.named[t] {
				if held == b {
					out[[2]uint32{slot, uint32(t)}] = true
				}
			}
		}
	}
	return out
}

// blocks counts the (rank, block) entries of a tier.
func (m *seqModel) blocks(t indexer.Tier) int {
	n := 0
	for _, r := range m.ranks {
		set := map[seqBlock]bool{}
		for _, b := range r.named[t] {
			set[b] = true
		}
		n += len(set)
	}
	return n
}
