package indexer

import (
	"unsafe"

	"github.com/select-service/select-service/pkg/hashing"
)

// Match is the answer of Space.Match: consecutive pieces of the chain with
// their holders. Reusing a Match saves memory; the earlier answer is then
// invalid.
type Match struct {
	// ThroughGaps, set by the caller, makes Match continue after pieces that no slot
	// holds, and in a sequence Space after blocks that are not in the index: each is
	// a Step of one block without holders.
	ThroughGaps bool
	Steps       []Step
	arena       []uint64 // of the bit sets
}

// Step is a piece of a chain: blocks with the same holders.
type Step struct {
	Blocks uint32
	// Holders are bit sets over slots, per tier. A set may be short, or nil:
	// slots beyond its end do not hold the piece. The last word is never 0.
	Holders [NumTiers][]uint64
}

// Blocks returns how many blocks all steps have together.
func (m *Match) Blocks() int {
	n := 0
	for i := range m.Steps {
		n += int(m.Steps[i].Blocks)
	}
	return n
}

// Bytes returns the size of the memory that m keeps for reuse.
func (m *Match) Bytes() int { return cap(m.Steps)*int(unsafe.Sizeof(Step{})) + 8*cap(m.arena) }

func (m *Match) reset() { m.Steps, m.arena = m.Steps[:0], m.arena[:0] }

// add appends a piece and reports whether any slot holds it. Without
// ThroughGaps a piece that no slot holds is not appended.
func (m *Match) add(s *Space, nd *node, blocks int) bool {
	st := Step{Blocks: uint32(blocks)}
	held := false
	for tier, h := range nd.holders {
		if h != noHolder {
			st.Holders[tier] = m.holders(s, h)
			held = held || st.Holders[tier] != nil
		}
	}
	if held || m.ThroughGaps {
		m.Steps = append(m.Steps, st)
	}
	return held
}

// holders returns a copy of a set without the slots that are being cleared, nil
// if none is left. If the arena has to grow, earlier sets stay in the old one.
func (m *Match) holders(s *Space, h holderSet) []uint64 {
	at := len(m.arena)
	if h&single != 0 {
		slot := uint32(h &^ single)
		if s.clearing[slot/64]>>(slot%64)&1 == 1 {
			return nil
		}
		for range slot / 64 {
			m.arena = append(m.arena, 0)
		}
		m.arena = append(m.arena, 1<<(slot%64))
		return m.arena[at:len(m.arena):len(m.arena)]
	}
	for i, w := range s.tree.sets.set(h) {
		m.arena = append(m.arena, w&^s.clearing[i])
	}
	for len(m.arena) > at && m.arena[len(m.arena)-1] == 0 {
		m.arena = m.arena[:len(m.arena)-1]
	}
	if len(m.arena) == at {
		return nil
	}
	return m.arena[at:len(m.arena):len(m.arena)]
}

// Match follows a chain of blocks from its first block on and fills m. The
// chain has the local hashes of a prompt; in a sequence Space its sequence
// hashes, each xor the key of the namespace. Without ThroughGaps the steps end
// at the first block that is not in the index, or that no slot holds in any
// tier. A block whose known depth differs from its place in the chain does not
// match.
func (s *Space) Match(chain []uint64, m *Match) {
	m.reset()
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := &s.tree
	if t.live == 0 && (!m.ThroughGaps || !s.sequence) {
		return
	}
	var p position
	for depth := 0; depth < len(chain); {
		k := 0
		if q, ok := s.tree.nextInChain(p, chain[depth], uint32(depth)); ok {
			k = t.match(q, chain[depth:])
			p = position{q.id, q.at + uint32(k)}
			if !m.add(s, t.node(q.id), k) && !m.ThroughGaps {
				return
			}
		} else if m.ThroughGaps && s.sequence {
			k, p = 1, position{}
			m.Steps = append(m.Steps, Step{Blocks: 1})
		} else {
			return
		}
		depth += k
	}
}

// nextInChain returns the position before the chain's block at a depth, which
// follows p.
func (t *tree) nextInChain(p position, local uint64, depth uint32) (position, bool) {
	if t.live == 0 {
		return position{}, false
	}
	q, ok := t.step(p, local)
	if !ok {
		return position{}, false
	}
	at := t.node(q.id).depth + q.at
	return q, at == depth || at >= unknownDepth
}

// MatchSequence is Match in a local Space for a chain of sequence hashes
// (hashing.AppendSequence). It computes the sequence hashes of the blocks on
// its way; where runs branch, of the first block of each child.
func (s *Space) MatchSequence(chain []uint64, m *Match) {
	m.reset()
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := &s.tree
	if t.live == 0 || len(chain) == 0 {
		return
	}
	id := t.child(root, chain[0])
	for depth := 0; id != 0; {
		nd := t.node(id)
		run := t.cells.locals(nd.off, nd.n)
		k := 0
		for k < len(run) && depth+k < len(chain) && follows(chain, depth+k, run[k]) {
			k++
		}
		depth += k
		if held := m.add(s, nd, k); !held && !m.ThroughGaps || k < len(run) || depth == len(chain) {
			return
		}
		for id = nd.first; id != 0; id = t.node(id).next {
			if follows(chain, depth, t.cells.local(t.node(id).off)) {
				break
			}
		}
	}
}

// follows reports whether a block with that local hash is the i-th of the
// chain.
func follows(chain []uint64, i int, local uint64) bool {
	if i == 0 {
		return chain[0] == local
	}
	return hashing.NextSequence(chain[i-1], local) == chain[i]
}
