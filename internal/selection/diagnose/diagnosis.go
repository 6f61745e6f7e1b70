package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
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

// Elsewhere is another identity of the same tenant and model under which
// leading blocks of the prompt match.
type Elsewhere struct {
	LoRA       *string // nil: not known (selection only)
	Salt       *string // nil: there is one, but it must not be shown
	BlockSize  uint32
	Registered bool
	Matched    int      // blocks of the best instance
	Instances  []string // instances that hold the first block; at most 64
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

// FindElsewhere adds findings about other identities under which the prompt would match, or
// match longer.
func (d *Diagnosis) FindElsewhere() {
	best := uint64(0)
	for _, r := range d.Ranks {
		best = max(best, uint64(r.Matched)*uint64(d.BlockSize))
	}
	for _, e := range d.Elsewhere {
		if e.tokens() > best {
			d.Find(fmt.Sprintf("would match %s under %s", Count(e.Matched, "block"), d.difference(&e)))
		}
	}
}

// difference returns how another identity differs from the query's, in words.
func (d *Diagnosis) difference(e *Elsewhere) string {
	var parts []string
	switch {
	case e.LoRA == nil:
		parts = append(parts, "another lora_name or cache_salt, which is not known by name")
	case *e.LoRA == "" && d.LoRA != "":
		parts = append(parts, "the base model (no lora_name)")
	case *e.LoRA != d.LoRA:
		parts = append(parts, fmt.Sprintf("lora_name %q", *e.LoRA))
	}
	switch {
	case e.LoRA == nil:
	case e.Salt == nil:
		parts = append(parts, "another cache_salt, which is not shown")
	case *e.Salt == "" && d.Salt != "":
		parts = append(parts, "no cache_salt")
	case *e.Salt != d.Salt:
		parts = append(parts, fmt.Sprintf("cache_salt %q", *e.Salt))
	}
	if e.BlockSize != d.BlockSize {
		parts = append(parts, fmt.Sprintf("block_size %d", e.BlockSize))
	}
	return strings.Join(parts, " and ")
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

// SortElsewhere orders the other identities, the longest prefix first.
func (d *Diagnosis) SortElsewhere() {
	slices.SortStableFunc(d.Elsewhere, func(a, b Elsewhere) int { return cmp.Compare(b.tokens(), a.tokens()) })
}

func (e *Elsewhere) tokens() uint64 { return uint64(e.Matched) * uint64(e.BlockSize) }
