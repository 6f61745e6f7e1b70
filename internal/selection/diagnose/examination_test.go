package diagnose_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/test/helpers/length"
)

// ward is the naive model of what a diagnosis is to find: who holds which block
// of a few chains, and how what is not held any more has left.
type ward struct {
	held map[bed]bool
	left map[bed]bool // true: by a clear

	holes int // blocks met that are held behind one that nobody holds
}

// bed is a block of a chain in a tier of a slot.
type bed struct {
	slot  uint32
	tier  indexer.Tier
	chain int
	index int
}

const (
	wardSlots  = 2
	wardChains = 3
	wardBlocks = 9
	wardFork   = 4 // the chains share the blocks before it
)

// wardLocal is the local hash of a block of a chain.
func wardLocal(chain, index int) uint64 {
	if index < wardFork {
		chain = 0
	}
	return uint64(1+chain)<<32 | uint64(index+1)
}

// same returns the beds of the same block in all chains.
func (b bed) same() []bed {
	if b.index >= wardFork {
		return []bed{b}
	}
	var all []bed
	for b.chain = range wardChains {
		all = append(all, b)
	}
	return all
}

func (w *ward) put(b bed) {
	for _, b := range b.same() {
		w.held[b] = true
		delete(w.left, b)
	}
}

func (w *ward) take(b bed, cleared bool) {
	for _, b := range b.same() {
		if w.held[b] {
			delete(w.held, b)
			w.left[b] = cleared
		}
	}
}

func (w *ward) anyTier(slot uint32, chain, index int) bool {
	for t := range indexer.Tier(indexer.NumTiers) {
		if w.held[bed{slot, t, chain, index}] {
			return true
		}
	}
	return false
}

// row renders what a rank is expected to show: blocks, break, reason, media.
func (w *ward) row(slot uint32, chain int) string {
	n := 0
	for n < wardBlocks && w.anyTier(slot, chain, n) {
		n++
	}
	if n == wardBlocks {
		return fmt.Sprintf("%d", n)
	}
	reason := "absent"
	var media []string
	for t := range indexer.Tier(indexer.NumTiers) {
		cleared, left := w.left[bed{slot, t, chain, n}]
		if !left {
			continue
		}
		media = append(media, t.String())
		if !cleared {
			reason = "evicted"
		} else if reason == "absent" {
			reason = "cleared"
		}
	}
	return fmt.Sprintf("%d %s %v", n, reason, media)
}

// TestExamine proves that the owners of every block, the length of every rank's
// chain and the reason of its break agree with a naive model after random
// stores, removals and clears, in an index of local hashes and in one of
// sequence hashes.
func TestExamine(t *testing.T) {
	for _, sequence := range []bool{false, true} {
		t.Run(fmt.Sprintf("sequence=%v", sequence), func(t *testing.T) {
			w := &ward{}
			for seed := range uint64(100) {
				r := rand.New(rand.NewPCG(seed, 1))
				space := indexer.New()
				if sequence {
					space = indexer.NewSequence(hashing.Seed)
				}
				w.held, w.left = map[bed]bool{}, map[bed]bool{}
				for range 60 {
					w.step(r, space)
				}
				for chain := range wardChains {
					w.check(t, space, chain, sequence)
				}
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
			if w.holes < 20 {
				t.Errorf("only %d blocks are held behind one that nobody holds", w.holes)
			}
		})
	}
}

// wardKey is the namespace of the blocks in an index of sequence hashes.
const wardKey = 0x5ee0_1234_5678_9abc

func (w *ward) step(r *rand.Rand, space *indexer.Space) {
	b := bed{uint32(r.IntN(wardSlots)), indexer.Tier(r.IntN(indexer.NumTiers)), r.IntN(wardChains), r.IntN(wardBlocks)}
	switch op := r.IntN(20); {
	case op == 0:
		space.Clear(b.slot)
		for old := range maps.Clone(w.held) {
			if old.slot == b.slot {
				w.take(old, true)
			}
		}
	case op < 14:
		space.Remove(b.slot, b.tier, []uint64{wardLocal(b.chain, b.index)})
		w.take(b, false)
	default:
		for b.index > 0 && !w.anyTier(b.slot, b.chain, b.index-1) {
			b.index--
		}
		ev := &indexer.Store{Slot: b.slot, Tier: b.tier, HasParent: b.index > 0, Seed: wardKey, SeedKnown: true}
		if b.index > 0 {
			ev.Parent = wardLocal(b.chain, b.index-1)
		}
		for end := b.index + 1 + r.IntN(wardBlocks-b.index); b.index < end; b.index++ {
			ev.EngineHashes = append(ev.EngineHashes, wardLocal(b.chain, b.index))
			w.put(b)
		}
		ev.Local = ev.EngineHashes
		space.Store(ev)
	}
}

func (w *ward) check(t *testing.T, space *indexer.Space, chain int, sequence bool) {
	t.Helper()
	e := diagnose.Examination{Space: space}
	for i := range wardBlocks {
		e.Local = append(e.Local, wardLocal(chain, i))
	}
	rolling := hashing.AppendSequence(nil, e.Local)
	if e.Chain = e.Local; sequence {
		e.Chain = nil
		for _, h := range rolling {
			e.Chain = append(e.Chain, h^wardKey)
		}
	}
	for slot := range uint32(wardSlots) {
		s := diagnose.Subject{CacheOwner: diagnose.CacheOwner{Instance: "i", Rank: slot}, Shown: true, Hashes: diagnose.HashesTokens}
		for tier := range indexer.Tier(indexer.NumTiers) {
			s.Media = append(s.Media, diagnose.MediumSlot{Slot: slot, Tier: tier, Medium: tier.String()})
		}
		e.Subjects = append(e.Subjects, s)
	}
	var d diagnose.Diagnosis
	d.Show(e.Local, rolling, 0)
	e.Follow(len(d.Blocks))
	d.Examine(&e)

	for i, b := range d.Blocks {
		if b.Local != e.Local[i] || !b.HasLocal || b.Sequence != rolling[i] {
			t.Errorf("chain %d block %d has the hashes %x %x", chain, i, b.Local, b.Sequence)
		}
		var got, want []string
		for _, o := range b.Owners {
			got = append(got, fmt.Sprintf("%d/%s", o.Rank, o.Medium))
		}
		for slot := range uint32(wardSlots) {
			for tier := range indexer.Tier(indexer.NumTiers) {
				if w.held[bed{slot, tier, chain, i}] {
					want = append(want, fmt.Sprintf("%d/%s", slot, tier))
				}
			}
		}
		if i > 0 && len(d.Blocks[i-1].Owners) == 0 && len(want) > 0 {
			w.holes++
		}
		if !slices.Equal(got, want) {
			t.Errorf("chain %d block %d: owners %s, want %s", chain, i, strings.Join(got, " "), strings.Join(want, " "))
		}
	}
	for slot, r := range d.Ranks {
		got := fmt.Sprintf("%d", r.Matched)
		if r.Break != nil {
			got = fmt.Sprintf("%d %s %v", r.Break.Index, r.Break.Reason, r.Break.Media)
		}
		if want := w.row(uint32(slot), chain); got != want {
			t.Errorf("chain %d rank %d: %s, want %s", chain, slot, got, want)
		}
	}
}

// TestExamineBounds proves that owners, ranks and the search for reasons are
// bounded, and that it is said when a bound is reached.
func TestExamineBounds(t *testing.T) {
	length.Sequential(t)
	space := indexer.New()
	local := []uint64{1, 2}
	places := diagnose.NaturalMedia(0)
	for _, p := range places {
		space.Store(&indexer.Store{Tier: p.Tier, EngineHashes: local, Local: local, Seed: hashing.Seed, SeedKnown: true})
	}
	e := diagnose.Examination{Space: space, Chain: local, Local: local}
	for i := range uint32(20000) {
		e.Subjects = append(e.Subjects, diagnose.Subject{CacheOwner: diagnose.CacheOwner{Rank: i}, Media: places, Shown: true})
	}
	var d diagnose.Diagnosis
	d.Show(local, local, 0)
	e.Follow(len(d.Blocks))
	d.Examine(&e)
	if len(d.Blocks) != 1 || len(d.Blocks[0].Owners) != 1<<16 || len(d.Ranks) != 4096 || !d.Truncated {
		t.Errorf("%d blocks, %d ranks are shown, truncated %v", len(d.Blocks), len(d.Ranks), d.Truncated)
	}

	const sites = 1100 // each costs a look at up to 65,536 departures
	chain := make([]uint64, sites+1)
	for i := range chain {
		chain[i] = uint64(1000 + i)
	}
	e = diagnose.Examination{Space: indexer.New(), Chain: chain, Local: chain}
	for slot := range uint32(sites) {
		held := chain[:slot]
		e.Space.Store(&indexer.Store{Slot: slot, EngineHashes: held, Local: held, Seed: hashing.Seed, SeedKnown: true})
		e.Subjects = append(e.Subjects, diagnose.Subject{CacheOwner: diagnose.CacheOwner{Rank: slot}, Media: diagnose.NaturalMedia(slot), Shown: true})
	}
	d = diagnose.Diagnosis{}
	d.Show(chain, chain, 0)
	e.Follow(len(d.Blocks))
	d.Examine(&e)
	for slot, r := range d.Ranks {
		if r.Matched != slot || r.Break == nil || r.Break.Reason != diagnose.BreakAbsent {
			t.Fatalf("rank %d: %+v", slot, r)
		}
	}
	if len(d.Findings) != 1 || !strings.Contains(d.Findings[0], "too many blocks to look for all reasons") {
		t.Errorf("findings are %q", d.Findings)
	}
}
