package diagnose

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/select-service/select-service/internal/container/slotset"
	"github.com/select-service/select-service/pkg/indexer"
)

// Bounds of a diagnosis.
const (
	// DefaultBlocks and MaxBlocks bound the blocks that are shown. Chains are
	// followed to their ends all the same.
	DefaultBlocks = 256
	MaxBlocks     = 4096
	// MaxOwners bounds the owners that are shown, summed over all blocks.
	MaxOwners = 1 << 16
	// MaxElsewhere bounds the other identities that are followed.
	MaxElsewhere = 64
	// ProbeBlocks is how many blocks are followed under each identity to find the best ones.
	ProbeBlocks = 16
	// maxElsewhereInstances bounds the instances that are named for one identity.
	maxElsewhereInstances = 64
	// maxRanks bounds the ranks that are shown.
	maxRanks = 4096
	// maxLooks bounds the lookups of removals and orphans that explain breaks. Each break site
	// costs siteLooks, and one more for each orphan.
	maxLooks  = 1 << 26
	siteLooks = 1 << 16
)

// Examination compares a prompt with one Space.
type Examination struct {
	Space *indexer.Space
	Chain []uint64 // the prompt in the form for Space.Match
	Local []uint64 // local hashes of the prompt; nil: unknown
	Seed  uint64   // seed of the namespace, in an index of sequence hashes
	// Subjects are the owners to examine, in the order of the answer.
	Subjects []Subject

	prefix indexer.Match // match of Chain, as far as it is held
	shown  indexer.Match // match of the blocks that are shown, held or not
}

// Subject is an owner that is examined.
type Subject struct {
	CacheOwner
	Hashes HashSource
	Media  []MediumSlot // by medium
	// Shown: the owner is in the answer even if it has none of the prompt.
	Shown bool

	matched int  // leading blocks
	owns    bool // it holds some block that is shown
	reason  BreakReason
}

// MediumSlot is the slot and tier of the index that have an owner's blocks of one medium.
type MediumSlot struct {
	Slot   uint32
	Tier   indexer.Tier
	Medium string
}

// Media are the names of the media with a tier of their own, by tier.
var Media = [indexer.NumTiers]string{
	indexer.Device: "GPU", indexer.Host: "CPU", indexer.Disk: "DISK", indexer.External: "EXTERNAL",
}

// NaturalMedia lists the natural media of an owner of one slot.
func NaturalMedia(slot uint32) []MediumSlot {
	media := make([]MediumSlot, indexer.NumTiers)
	for t := range media {
		media[t] = MediumSlot{Slot: slot, Tier: indexer.Tier(t), Medium: Media[t]}
	}
	return media
}

// Compare orders owners by instance, rank and backend.
func (o CacheOwner) Compare(p CacheOwner) int {
	return cmp.Or(cmp.Compare(o.Instance, p.Instance), cmp.Compare(o.Rank, p.Rank), cmp.Compare(o.Backend, p.Backend))
}

// String names an owner in a sentence.
func (o CacheOwner) String() string {
	if o.Backend == "" {
		return fmt.Sprintf("instance %s rank %d", o.Instance, o.Rank)
	}
	return fmt.Sprintf("instance %s rank %d backend %s", o.Instance, o.Rank, o.Backend)
}

// Show fills in the first blocks of the prompt: at most maxBlocks (DefaultBlocks if
// not positive) and at most MaxBlocks. local is nil if the local hashes are unknown.
func (d *Diagnosis) Show(local, rolling []uint64, maxBlocks int) {
	if maxBlocks <= 0 {
		maxBlocks = DefaultBlocks
	}
	n := min(len(rolling), maxBlocks, MaxBlocks)
	d.NumBlocks, d.Truncated = len(rolling), n < len(rolling)
	d.Blocks = make([]Block, n)
	for i := range d.Blocks {
		d.Blocks[i].Sequence = rolling[i]
		if local != nil {
			d.Blocks[i].Local, d.Blocks[i].HasLocal = local[i], true
		}
	}
}

// Follow walks the prompt. Until it returns, the subjects must keep their slots. blocks is how
// many blocks will be shown.
func (e *Examination) Follow(blocks int) {
	e.Space.Match(e.Chain, &e.prefix)
	e.shown.ThroughGaps = true
	e.Space.Match(e.Chain[:min(blocks, len(e.Chain))], &e.shown)
}

// Matched returns how many leading blocks anybody holds, examined or not.
func (e *Examination) Matched() int { return e.prefix.Blocks() }

// Explains reports whether a block that nobody holds is known to have been held, or to be held
// back.
func (e *Examination) Explains(block int) bool {
	b := breakSite{index: block}
	e.look(&b)
	return len(b.removed) > 0 || len(b.waiting) > 0
}

// Examine fills in the owners of d's blocks, and d's ranks, from the walk of Follow.
func (d *Diagnosis) Examine(e *Examination) {
	d.ownAll(e)
	e.advanceAll()
	d.breaks(e)
	d.findLate(e)
}

// FindKeys says whether an index of the scope has been shown keys, and adds a finding if it has
// blocks of which only the name is known.
func (d *Diagnosis) FindKeys(index *indexer.Space) {
	d.KeysShown = d.KeysShown || index.KeysShown()
	if n := index.Unidentified(); n > 0 {
		d.Find(fmt.Sprintf("%s of this model and tenant never match: a medium other than the device has them without "+
			"salt and extra_keys, under names that the rank had not announced before, and salts, adapters or other keys are in use", Count(uint64(n), "block")))
	}
}

// Best returns how many leading blocks the best subject holds, and the first instances that
// hold any. Each subject must be a whole instance.
func (e *Examination) Best() (blocks int, instances []string) {
	e.advanceAll()
	for i := range e.Subjects {
		s := &e.Subjects[i]
		blocks = max(blocks, s.matched)
		if s.matched > 0 && len(instances) < maxElsewhereInstances {
			instances = append(instances, s.Instance)
		}
	}
	return blocks, instances
}

// holds reports whether the slot and tier hold a step's blocks.
func (m *MediumSlot) holds(step *indexer.Step) bool {
	return slotset.Set(step.Holders[m.Tier]).Has(m.Slot)
}

// owners lists the owners that hold the blocks of a step.
func (e *Examination) owners(step *indexer.Step) []BlockOwner {
	var rows []BlockOwner
	for i := range e.Subjects {
		s := &e.Subjects[i]
		for k := range s.Media {
			if p := &s.Media[k]; p.holds(step) {
				rows = append(rows, BlockOwner{s.CacheOwner, p.Medium})
				s.owns = true
			}
		}
	}
	return slices.Compact(rows) // several publishers may announce blocks of one owner
}

// advanceAll moves each subject along the prompt as far as it holds it.
func (e *Examination) advanceAll() {
	alive := make([]*Subject, len(e.Subjects))
	for i := range e.Subjects {
		alive[i] = &e.Subjects[i]
	}
	for i := 0; i < len(e.prefix.Steps) && len(alive) > 0; i++ {
		step := &e.prefix.Steps[i]
		alive = slices.DeleteFunc(alive, func(s *Subject) bool { return !s.holds(step) })
		for _, s := range alive {
			s.matched += int(step.Blocks)
		}
	}
}

func (s *Subject) holds(step *indexer.Step) bool {
	for i := range s.Media {
		if s.Media[i].holds(step) {
			return true
		}
	}
	return false
}

// ownAll fills in the owners of the shown blocks, up to MaxOwners.
func (d *Diagnosis) ownAll(e *Examination) {
	depth, budget := 0, MaxOwners
	for i := range e.shown.Steps {
		step := &e.shown.Steps[i]
		rows := e.owners(step)
		for range min(int(step.Blocks), len(d.Blocks)-depth) {
			if len(rows) > budget {
				d.Truncated = true
				if depth > 0 {
					d.Blocks = d.Blocks[:depth]
					return
				}
				rows = rows[:budget]
			}
			budget -= len(rows)
			d.Blocks[depth].Owners = rows
			depth++
		}
	}
}

// breaks lists the ranks, and why their chains break.
func (d *Diagnosis) breaks(e *Examination) {
	sites := make(map[int]*breakSite)
	looks, cost := maxLooks, siteLooks+e.Space.Stats().Orphans
	for i := range e.Subjects {
		s := &e.Subjects[i]
		r := Rank{CacheOwner: s.CacheOwner, Matched: s.matched, Hashes: s.Hashes}
		if s.matched < len(e.Chain) {
			b := sites[s.matched]
			if b == nil {
				b = &breakSite{index: s.matched}
				sites[s.matched] = b
				if looks -= cost; looks >= 0 {
					e.look(b)
				}
			}
			r.Break = b.explain(s)
			s.reason = r.Break.Reason
		}
		if !s.Shown && !s.owns && !r.known() {
			continue
		}
		if len(d.Ranks) == maxRanks {
			d.Truncated = true
			break
		}
		d.Ranks = append(d.Ranks, r)
	}
	if looks < 0 {
		d.Find("the chains break at too many blocks to look for all reasons: some are called absent without a search")
	}
}

// known reports whether the owner has, or had, any of the prompt.
func (r *Rank) known() bool {
	return r.Matched > 0 || r.Break != nil && r.Break.Reason != BreakAbsent && r.Break.Reason != BreakUnverified
}

// breakSite is a block at which chains break.
type breakSite struct {
	index   int
	removed map[uint64]bool // former owners by slot and tier; true: cleared
	waiting map[uint32]bool // slots that hold the block back
}

// look finds out what happened to the block.
func (e *Examination) look(b *breakSite) {
	b.removed = make(map[uint64]bool)
	for _, dep := range e.Space.Removals(e.Chain, b.index, nil) {
		b.removed[tierKey(dep.Slot, dep.Tier)] = dep.Cleared
	}
	b.waiting = e.waiting(b.index)
}

// waiting returns the slots that hold a block back.
func (e *Examination) waiting(at int) map[uint32]bool {
	slots := make(map[uint32]bool)
	if e.Local != nil {
		for _, slot := range e.Space.OrphanSlots(e.Seed, e.Local[at], nil) {
			slots[slot] = true
		}
	}
	return slots
}

// waits reports whether one of the slots is s's.
func (s *Subject) waits(slots map[uint32]bool) bool {
	return slices.ContainsFunc(s.Media, func(p MediumSlot) bool { return slots[p.Slot] })
}

func tierKey(slot uint32, t indexer.Tier) uint64 {
	return uint64(slot)*indexer.NumTiers + uint64(t)
}

// explain returns why s does not hold the block. The present state takes precedence over past
// events, and the removal of one block over a clear.
func (b *breakSite) explain(s *Subject) *Break {
	out := &Break{Index: b.index}
	if s.waits(b.waiting) {
		return &Break{Index: b.index, Reason: BreakUnknownParent}
	}
	for _, p := range s.Media {
		if cleared, left := b.removed[tierKey(p.Slot, p.Tier)]; left {
			if !slices.Contains(out.Media, p.Medium) {
				out.Media = append(out.Media, p.Medium)
			}
			if !cleared {
				out.Reason = BreakEvicted
			} else if out.Reason == BreakAbsent {
				out.Reason = BreakCleared
			}
		}
	}
	if out.Reason == BreakAbsent && (s.Hashes == HashesOwn || s.Hashes == HashesUnverified && s.matched == 0) {
		out.Reason = BreakUnverified
	}
	return out
}
