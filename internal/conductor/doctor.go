package conductor

// Diagnosis says for every block of a prompt which owners hold it, for every rank
// where its chain breaks and why, and whether the prompt would match under
// another identity.
type Diagnosis struct {
	Identity          // of the query
	HashSeed   uint64 // of the blocks that the query is compared with
	Registered bool   // a publisher is registered for the identity
	// NumBlocks counts the prompt's complete blocks; Blocks are the first of
	// them. Truncated says that blocks, their owners, ranks or identities
	// elsewhere are left out.
	NumBlocks int
	Blocks    []DiagnosedBlock
	Truncated bool
	Ranks     []DiagnosedRank // by instance (selection: by worker), rank and backend
	Elsewhere []Elsewhere     // where something matches: the longest prefix first
	Findings  []string        // plain sentences for operators
}

// DiagnosedBlock is one block of the prompt; its index is its place in the list.
type DiagnosedBlock struct {
	Local    uint64 // XXH3-64 of its tokens
	HasLocal bool   // false: the query came as rolling hashes
	Sequence uint64 // rolling hash
	Owners   []BlockOwner
}

// CacheOwner is one rank of an instance, or a cache backend behind it.
type CacheOwner struct {
	Instance string
	Rank     uint32
	Backend  string // "": the engine itself
}

// BlockOwner is an owner that holds a block in a medium.
type BlockOwner struct {
	CacheOwner
	Medium string
}

// DiagnosedRank is how far one owner follows the prompt.
type DiagnosedRank struct {
	CacheOwner
	Matched int    // leading blocks that it holds in some medium
	Break   *Break // nil: it holds the whole prompt
	Hashes  HashSource
}

// Break is the first block that an owner does not hold.
type Break struct {
	Index  int // of the block
	Reason BreakReason
	Media  []string // that the block has left, if evicted or cleared
}

// BreakReason says why an owner does not hold a block.
type BreakReason uint8

// The reasons of a break. Removals are remembered for a while only: a block
// that left long ago is absent.
const (
	BreakAbsent        BreakReason = iota // it was never announced, or left long ago
	BreakEvicted                          // a removal of this block came
	BreakCleared                          // everything of the owner, or its medium, was cleared
	BreakUnknownParent                    // held back: the block before it was never announced
	BreakUnverified                       // the publisher sends hashes that nothing confirms
)

// String gives the reason's name on the wire.
func (r BreakReason) String() string {
	switch r {
	case BreakEvicted:
		return "evicted"
	case BreakCleared:
		return "cleared"
	case BreakUnknownParent:
		return "unknown_parent"
	case BreakUnverified:
		return "hashes_unverified"
	}
	return "absent"
}

// Elsewhere is another identity of the same tenant and model under which
// leading blocks of the prompt match.
type Elsewhere struct {
	LoRA       *string // nil: not known (selection only)
	Salt       *string // nil: there is one that is not shown
	BlockSize  uint32
	Registered bool
	Matched    int      // blocks of the best instance
	Instances  []string // that hold the first block; at most 64
}
