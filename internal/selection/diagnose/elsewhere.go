package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

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

// Probe is another identity that holds first blocks of the prompt.
type Probe[K any] struct {
	Identity K
	Tokens   uint64 // of the prompt that it holds, as far as it was probed
}

// LookElsewhere follows the prompt under the identities that hold most of its first blocks, and adds
// findings about those under which it would match longer. There may be one identity per customer, so
// at most MaxElsewhere are followed. follow returns false if an identity is not to be shown.
func LookElsewhere[K any](d *Diagnosis, found []Probe[K], follow func(K) (Elsewhere, bool)) {
	slices.SortStableFunc(found, func(a, b Probe[K]) int { return cmp.Compare(b.Tokens, a.Tokens) })
	if len(found) > MaxElsewhere {
		found, d.Truncated = found[:MaxElsewhere], true
	}
	for _, p := range found {
		if e, ok := follow(p.Identity); ok && e.Matched > 0 {
			d.Elsewhere = append(d.Elsewhere, e)
		}
	}
	slices.SortStableFunc(d.Elsewhere, func(a, b Elsewhere) int { return cmp.Compare(b.tokens(), a.tokens()) })
	d.findElsewhere()
}

// findElsewhere adds findings about other identities under which the prompt would match, or
// match longer.
func (d *Diagnosis) findElsewhere() {
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

func (e *Elsewhere) tokens() uint64 { return uint64(e.Matched) * uint64(e.BlockSize) }
