package indexer

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/internal/container/keyhash"
	"github.com/select-service/select-service/internal/container/offheap"
	"github.com/select-service/select-service/pkg/hashing"
)

// Space is the index of blocks that can be compared with each other: those of one
// scope with one block size. A local Space (New) knows a block by its chain of
// local hashes, a sequence Space (NewSequence) by its sequence hash in a
// namespace. Ranks are known by their slot, a dense number that the caller gives
// out and keeps stable while the rank has blocks.
type Space struct {
	// mu guards all fields but keyed. It is held for memory work on one event or one
	// query; longer operations release it about every millisecond.
	mu         sync.RWMutex
	keyed      atomic.Bool // see ShowKeys
	mem        offheap.Memory
	tree       tree
	ranks      []rank   // by slot
	clearing   []uint64 // bit set of slots that are being cleared
	blocks     [NumTiers]int
	staleNames []uint64 // scratch of freeNames and locate
	knownNames []uint64 // scratch of freeNames
	touches    uint64   // sum of what touch has read, so that the reads have an effect
	removals   removalLog
	// sequence: blocks are known by their sequence hash, whose seed is chain.
	sequence bool
	chain    uint64
	byAlias  aliasIndex
	account  counted
	// hybridSlots is the number of slots with groups.
	hybridSlots int
	hybrid      *HybridStats
}

// holder is a slot in a tier.
type holder uint32

func holderOf(slot uint32, t Tier) holder { return holder(slot<<2 | uint32(t)) }

func (h holder) slot() uint32 { return uint32(h) >> 2 }

func (h holder) tier() Tier { return Tier(h & 3) }

// rank is what the index knows of one slot besides the tree.
type rank struct {
	blocks  [NumTiers]int
	aliases aliases
	copies  copies
	orphans orphans
	removed removedBlocks
	groups  *slotGroups // nil: none has reported
	// unkeyedCopies: the rank has stored blocks with Store.KeysOmitted.
	unkeyedCopies bool
	charged       rankCharge
}

// Tier is where a worker keeps a cached block.
type Tier uint8

// The tiers in the order in which a prefix is followed through them.
const (
	Device Tier = iota
	Host
	Disk
	External
	// NumTiers counts the tiers.
	NumTiers = 4
)

// String gives the tier's name on the wire (dynamo-kv-router 1.3.1, /dump).
func (t Tier) String() string {
	switch t {
	case Device:
		return "device"
	case Host:
		return "host_pinned"
	case Disk:
		return "disk"
	case External:
		return "external"
	}
	return "unknown"
}

// New returns an empty index.
func New() *Space {
	s := &Space{hybrid: new(HybridStats)}
	t := &s.tree
	t.mem, t.cells.mem, t.children.mem, t.sets.mem = &s.mem, &s.mem, &s.mem, &s.mem
	t.byName.init(&s.mem)
	t.childKey = keyhash.New()
	return s
}

// NewSequence returns an index whose blocks are known by sequence hash.
// chain is the seed of the sequence hash (hashing.AppendSequenceSeed).
//
// Store takes true local hashes and, as Seed, the random key of the namespace
// that the blocks belong to; Match takes sequence hashes, each xor the key.
// Overlap, Walk and MatchSequence are for local Spaces.
func NewSequence(chain uint64) *Space {
	s := New()
	s.sequence, s.chain = true, chain
	s.tree.byValue = &cellTable{}
	s.tree.byValue.init(&s.mem)
	return s
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

// Stats describes the size of an index.
type Stats struct {
	Blocks [NumTiers]int // (rank, block) entries per tier
	// Unique counts each block once, however many ranks hold it, and blocks
	// without holders that keep those below them in the tree.
	Unique  int
	Runs    int   // nodes of the tree
	Orphans int   // blocks whose parent is unknown
	Copies  int   // further copies of blocks that a rank holds in a tier
	Bytes   int64 // flat memory
}

// Stats returns the size of the index.
func (s *Space) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	st := Stats{Blocks: s.blocks, Runs: s.tree.live, Bytes: s.mem.Bytes()}
	for i := range s.tree.byName.shards {
		st.Unique += s.tree.byName.shards[i].n
	}
	for i := range s.ranks {
		st.Orphans += s.ranks[i].orphans.len()
		for _, n := range s.ranks[i].copies.further {
			st.Copies += n
		}
	}
	return st
}

// Held returns how many blocks a slot holds per tier.
func (s *Space) Held(slot uint32) [NumTiers]int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if int(slot) >= len(s.ranks) {
		return [NumTiers]int{}
	}
	return s.ranks[slot].blocks
}

// DeviceBlocks appends to dst how many blocks each slot holds on the device, in
// the order of the slots. Slots beyond the end of the list hold none.
func (s *Space) DeviceBlocks(dst []int) []int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	dst = slices.Grow(dst, len(s.ranks))
	for i := range s.ranks {
		dst = append(dst, s.ranks[i].blocks[Device])
	}
	return dst
}

// Empty reports whether a slot holds nothing: no block in any tier, and none that
// waits for its parent.
func (s *Space) Empty(slot uint32) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if int(slot) >= len(s.ranks) {
		return true
	}
	r := &s.ranks[slot]
	return r.blocks == [NumTiers]int{} && r.orphans.len() == 0
}

// DepthOf returns how many blocks precede the one that a slot holds under a name
// in a tier. known is false if the slot holds no such block, or its depth is
// unknown (only in sequence Spaces).
func (s *Space) DepthOf(slot uint32, t Tier, name uint64) (depth uint32, known bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if int(slot) >= len(s.ranks) {
		return 0, false
	}
	cell := s.findInTier(holderOf(slot, t), name)
	if cell == 0 {
		return 0, false
	}
	depth = s.tree.depthOf(cell)
	return depth, depth < unknownDepth
}

// ParentSeed returns the block seed of the block that a slot holds under a
// name: children of a salted block inherit its salt (decision K11). It is false
// if the slot holds no such block.
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
	return s.tree.seeds.seed(s.tree.nodeAt(cell).seed), true
}

// HasSeed reports whether a block seed (in a sequence Space the key of a
// namespace) is in use: by a block in the tree or by an orphan.
func (s *Space) HasSeed(seed uint64) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.tree.usesSeed(seed) {
		return true
	}
	for i := range s.ranks {
		if s.ranks[i].orphans.seeds[seed] > 0 {
			return true
		}
	}
	return false
}

// Seeds appends to dst the block seeds (in a sequence Space the keys of
// namespaces) of the blocks in the tree, in no order.
func (s *Space) Seeds(dst []uint64) []uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.tree.usesSeed(hashing.Seed) {
		dst = append(dst, hashing.Seed)
	}
	for seed := range s.tree.seeds.of {
		if seed != Unidentified {
			dst = append(dst, seed)
		}
	}
	return dst
}

// usesSeed reports whether a run has this block seed.
func (t *tree) usesSeed(seed uint64) bool {
	if seed != hashing.Seed {
		_, ok := t.seeds.of[seed]
		return ok
	}
	counted := 0
	for i := range t.seeds.rows {
		counted += t.seeds.rows[i].refs
	}
	return t.live > counted
}
