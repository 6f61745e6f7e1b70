package indexer

import (
	"math/rand/v2"
	"sync"

	"github.com/select-service/select-service/pkg/hashing"
)

// Space is the index of one world of comparable blocks: one scope with one
// block size. A local Space (New) knows a block by its chain of local hashes, a
// sequence Space (NewSequence) by its rolling hash in a namespace. Ranks are
// known by their slot, a dense number that the caller gives out and keeps stable
// while the rank has blocks.
type Space struct {
	// mu guards all fields. It is held for memory work on one event or one
	// query; Clear lets go of it now and then.
	mu         sync.RWMutex
	mem        memory
	tree       tree
	ranks      []rank   // by slot
	clearing   []uint64 // bit set of slots that are being cleared
	blocks     [NumTiers]int
	staleNames []uint64 // scratch of rename
	removals   removalLog
	// sequence: blocks are known by their rolling hash, whose seed is chain.
	sequence bool
	chain    uint64
	byAlias  aliasIndex
}

// holder is a slot in a tier.
type holder uint32

func holderOf(slot uint32, t Tier) holder { return holder(slot<<2 | uint32(t)) }

func (h holder) slot() uint32 { return uint32(h) >> 2 }

func (h holder) tier() Tier { return Tier(h & 3) }

// rank is what the index keeps of one slot beside the tree.
type rank struct {
	blocks  [NumTiers]int
	aliases aliases
	orphans orphans
	removed removedBlocks
}

// Store is one "stored" event: consecutive blocks that a rank now holds in a
// tier.
type Store struct {
	Slot uint32
	Tier Tier
	// Parent is the engine's hash of the block before the first one. A parent 0
	// that names no block is the root (decision K10).
	Parent       uint64
	HasParent    bool
	EngineHashes []uint64 // the engine's hashes, one per block, no two equal
	Local        []uint64 // the local block hashes, as many
	// Seed is the block seed of Local (hashing.LocalSeed), in a sequence Space
	// the namespace's key; without SeedKnown it is that of the parent.
	Seed      uint64
	SeedKnown bool
}

// Outcome counts what became of the blocks of an event.
type Outcome struct {
	Stored   int // newly held
	Known    int // held already
	Orphaned int // kept until their parent comes (decision K7)
	Dropped  int // orphans that had to make room
}

// New returns an empty index.
func New() *Space {
	s := &Space{}
	t := &s.tree
	t.mem, t.cells.mem, t.children.mem, t.sets.mem = &s.mem, &s.mem, &s.mem, &s.mem
	t.byName.init(&s.mem)
	t.salt = rand.Uint64()
	return s
}

// maxHold is how many blocks of one event are dealt with before others get the
// lock: about a millisecond.
const maxHold = 4096

// Store applies a stored event. Blocks that the rank holds already cost a
// look-up. A block whose parent the rank has not announced waits for it.
func (s *Space) Store(ev *Store) Outcome {
	if len(ev.EngineHashes) <= maxHold {
		return s.storePart(ev)
	}
	var out Outcome
	for part := *ev; len(part.EngineHashes) > 0; {
		n := min(maxHold, len(part.EngineHashes))
		for n < len(part.EngineHashes) && part.EngineHashes[n-1] == 0 {
			n++ // as a parent, 0 may mean the root
		}
		names, local := part.EngineHashes[n:], part.Local[n:]
		part.EngineHashes, part.Local = part.EngineHashes[:n], part.Local[:n]
		out.add(s.storePart(&part))
		part.Parent, part.HasParent = part.EngineHashes[n-1], true
		part.EngineHashes, part.Local = names, local
	}
	return out
}

func (o *Outcome) add(more Outcome) {
	o.Stored += more.Stored
	o.Known += more.Known
	o.Orphaned += more.Orphaned
	o.Dropped += more.Dropped
}

func (s *Space) storePart(ev *Store) Outcome {
	if len(ev.EngineHashes) == 0 {
		return Outcome{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensureSlot(ev.Slot)
	return s.store(ev)
}

// ensureSlot makes room for a slot.
func (s *Space) ensureSlot(slot uint32) *rank {
	if int(slot) >= len(s.ranks) {
		s.ranks = append(s.ranks, make([]rank, int(slot)+1-len(s.ranks))...)
	}
	s.tree.sets.widen(uint32(len(s.ranks)))
	for len(s.clearing) < int(s.tree.sets.words) {
		s.clearing = append(s.clearing, 0)
	}
	return &s.ranks[slot]
}

// ParentSeed returns the block seed under which a rank's block was hashed:
// children of a salted block inherit its salt (decision K11).
func (s *Space) ParentSeed(slot uint32, parent uint64) (uint64, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if int(slot) >= len(s.ranks) {
		return hashing.Seed, false
	}
	cell := s.findInAnyTier(slot, parent)
	if cell == 0 {
		return hashing.Seed, false
	}
	return s.tree.seeds.seed(s.tree.node(s.tree.cells.nodeOf(cell)).seed), true
}
