package conductor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

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
