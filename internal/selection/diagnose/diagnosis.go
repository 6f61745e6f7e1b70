package diagnose

import (
	"fmt"
	"slices"
)

// Diagnosis has, for every block of a prompt, the owners that hold it; for every rank, where
// its chain breaks and why; and the other identities under which the prompt would match.
type Diagnosis struct {
	// The query is about these: LoRA is an adapter name, "" the base model; Salt "" is none.
	Tenant, Model, LoRA, Salt string
	BlockSize                 uint32 // tokens
	HashSeed                  uint64 // hash seed of the blocks that the query is compared with
	Registered                bool   // a publisher is registered for the identity
	// KeysShown: salts, adapters or other keys were seen in the scope, so that copies without keys
	// are not matched by their tokens.
	KeysShown bool
	// NumBlocks counts the prompt's complete blocks; Blocks has the first of them. Truncated:
	// some blocks, owners, ranks or identities are left out.
	NumBlocks int
	Blocks    []Block
	Truncated bool
	Ranks     []Rank      // by instance (selection: by worker), rank and backend
	Elsewhere []Elsewhere // other identities with a match, the longest prefix first
	Findings  []string    // plain sentences for operators
}

// Block is one block of the prompt; its position in the list is its index.
type Block struct {
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

// Rank is how much of the prompt one owner holds.
type Rank struct {
	CacheOwner
	Matched int    // leading blocks that it holds in some medium
	Break   *Break // nil: it holds the whole prompt
	Hashes  HashSource
}

// Break is the first block that an owner does not hold.
type Break struct {
	Index  int // of the block
	Reason BreakReason
	Media  []string // the media that the block has left, if evicted or cleared
}

// BreakReason is why an owner does not hold a block.
type BreakReason uint8

// The reasons of a break. Removals are remembered for a while only; after that an evicted
// block counts as absent.
const (
	BreakAbsent        BreakReason = iota // it was never announced, or left long ago
	BreakEvicted                          // a removal of this block came
	BreakCleared                          // everything of the owner, or its medium, was cleared
	BreakUnknownParent                    // held back, because the block before it was never announced
	BreakUnverified                       // the publisher's hashes are not confirmed
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

// MaxFindings bounds the sentences of a diagnosis.
const MaxFindings = 64

// Find adds a finding. Findings beyond MaxFindings are replaced by a note that there are more.
func (d *Diagnosis) Find(text string) {
	switch n := len(d.Findings); {
	case slices.Contains(d.Findings, text):
	case n < MaxFindings:
		d.Findings = append(d.Findings, text)
	case n == MaxFindings:
		d.Findings = append(d.Findings, "further findings are left out")
	}
}

// Count returns a number with its noun, in the plural if needed.
func Count[N int | uint64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// findLate adds findings about owners that hold back the end of the prompt, because an
// earlier block is missing.
func (d *Diagnosis) findLate(e *Examination) {
	last := len(e.Chain) - 1
	if last < 1 {
		return
	}
	held := e.waiting(last)
	for i := range e.Subjects {
		s := &e.Subjects[i]
		if s.matched < last && s.reason == BreakAbsent && s.waits(held) {
			d.Find(fmt.Sprintf("%s: block %d is held back because the block before it was never announced, and block %d is missing: "+
				"the stream began too late or lost events; a replay endpoint helps", s.CacheOwner, last, s.matched))
		}
	}
}

// FindShort adds a finding if the prompt has no complete block. needs is what a block has beside its
// tokens, "" for nothing.
func (d *Diagnosis) FindShort(byHash bool, tokens int, needs string) {
	switch {
	case d.NumBlocks > 0:
	case byHash:
		d.Find("the prompt has no block")
	default:
		d.Find(fmt.Sprintf("the prompt has fewer tokens than one block%s: %d of %d", needs, tokens, d.BlockSize))
	}
}

// The two forms of a prompt's hashes.
const (
	LocalHashes   = "local block hashes"
	RollingHashes = "rolling sequence hashes"
)

// FindForm adds a finding if the prompt's hashes match longer in the form that the call does not take. A
// prompt of one block has the same hash in both.
func (d *Diagnosis) FindForm(taken, other string, matched, asOther int) {
	if asOther > matched {
		d.Find(fmt.Sprintf("the hashes are %s, not %s: as such they would match %s", other, taken, Count(asOther, "block")))
	}
}
