package conductor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

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

// maxFindings bounds the sentences of a diagnosis.
const maxFindings = 64

// Find adds a sentence; what is too much is left out and said to be.
func (d *Diagnosis) Find(text string) {
	switch n := len(d.Findings); {
	case slices.Contains(d.Findings, text):
	case n < maxFindings:
		d.Findings = append(d.Findings, text)
	case n == maxFindings:
		d.Findings = append(d.Findings, "further findings are left out")
	}
}

// FindElsewhere says under which other identities the prompt would match longer
// or at all.
func (d *Diagnosis) FindElsewhere() {
	best := uint64(0)
	for _, r := range d.Ranks {
		best = max(best, uint64(r.Matched)*uint64(d.BlockSize))
	}
	for _, e := range d.Elsewhere {
		if e.tokens() > best {
			d.Find(fmt.Sprintf("would match %s under %s", count(e.Matched, "block"), d.difference(&e)))
		}
	}
}

// difference says in what another identity differs from the query's.
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

// count counts in words.
func count[N int | uint64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// findLate notices owners that hold the end of the prompt back, for want of a
// block that is missing further up.
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
