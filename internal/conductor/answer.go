package conductor

import (
	"cmp"
	"slices"
	"strings"

	"github.com/select-service/select-service/pkg/indexer"
)

// Answer is the answer to a query. It is meant to be used again.
type Answer struct {
	// Media are the columns of the instances' rows: GPU, CPU and DISK, then the
	// further media that events have named, sorted.
	Media     []string
	Instances []InstanceMatch // by name

	sorted int // rows that are
}

// InstanceMatch is how much of a prompt an instance holds, in tokens.
type InstanceMatch struct {
	Instance string
	// Longest is the joint prefix: each of its blocks is on some medium of some
	// rank.
	Longest uint64
	Media   []uint64 // of the joint prefix that the instance has on each of the Answer's media
	Ranks   []RankMatch
}

// RankMatch is one rank's own prefix over all its media, in tokens.
type RankMatch struct {
	Rank   uint32
	Tokens uint64
}

// Reset empties an answer: no instances, and the media that are always shown.
func (a *Answer) Reset() { a.begin(naturalMedia) }

func (a *Answer) begin(media []string) {
	a.Media = append(a.Media[:0], media...)
	a.Instances, a.sorted = a.Instances[:0], 0
}

// add appends a row of zeros. It uses the memory of an earlier answer's rows.
func (a *Answer) add(instance string) *InstanceMatch {
	n := len(a.Instances)
	if n == cap(a.Instances) {
		a.Instances = slices.Grow(a.Instances, 1)
	}
	a.Instances = a.Instances[:n+1]
	im := &a.Instances[n]
	im.Instance, im.Longest, im.Ranks = instance, 0, im.Ranks[:0]
	im.Media = slices.Grow(im.Media[:0], len(a.Media))[:len(a.Media)]
	clear(im.Media)
	return im
}

// Has reports whether an instance had a row when the answer was last sorted, as a
// query leaves it.
func (a *Answer) Has(instance string) bool {
	_, ok := slices.BinarySearchFunc(a.Instances[:a.sorted], instance, func(im InstanceMatch, name string) int {
		return strings.Compare(im.Instance, name)
	})
	return ok
}

// Sort orders the rows by instance and their ranks by number.
func (a *Answer) Sort() {
	slices.SortFunc(a.Instances, func(x, y InstanceMatch) int { return strings.Compare(x.Instance, y.Instance) })
	for i := range a.Instances {
		a.Instances[i].sortRanks()
	}
	a.sorted = len(a.Instances)
}

func (im *InstanceMatch) sortRanks() {
	slices.SortFunc(im.Ranks, func(x, y RankMatch) int { return cmp.Compare(x.Rank, y.Rank) })
}

// column returns the number of a medium's column, and adds it if need be.
func (a *Answer) column(medium string) int {
	if i := slices.Index(a.Media, medium); i >= 0 {
		return i
	}
	fixed := len(naturalMedia)
	i, _ := slices.BinarySearch(a.Media[fixed:], medium)
	i += fixed
	a.Media = slices.Insert(a.Media, i, medium)
	for n := range a.Instances {
		a.Instances[n].Media = slices.Insert(a.Instances[n].Media, i, 0)
	}
	return i
}

// Holder is a rank of an instance and its slot in an index.
type Holder struct{ Slot, Rank uint32 }

// AddRanks adds the row of an instance whose ranks are slots of an index in which
// a prompt was followed; tiers are shown as their natural media (decision C7).
// blockSize is in tokens.
func (a *Answer) AddRanks(instance string, ranks []Holder, m *indexer.Match, blockSize uint32) {
	im := a.add(instance)
	for _, r := range ranks {
		im.Ranks = append(im.Ranks, RankMatch{Rank: r.Rank})
	}
	for i := range m.Steps {
		step := &m.Steps[i]
		tokens := uint64(step.Blocks) * uint64(blockSize)
		var held [indexer.NumTiers]bool
		any := false
		for k, r := range ranks {
			has := false
			for t := range step.Holders {
				if contains(step.Holders[t], r.Slot) {
					held[t], has = true, true
				}
			}
			if has && im.Ranks[k].Tokens == im.Longest { // without a hole so far
				im.Ranks[k].Tokens += tokens
			}
			any = any || has
		}
		if !any {
			break
		}
		im.Longest += tokens
		for t, has := range held {
			if has {
				c := a.column(tierMedia[t])
				im.Media[c] += tokens
			}
		}
	}
	im.sortRanks()
}

func contains(set []uint64, slot uint32) bool {
	return int(slot/64) < len(set) && set[slot/64]>>(slot%64)&1 == 1
}
