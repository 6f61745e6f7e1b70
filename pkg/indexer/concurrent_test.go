package indexer_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
)

// TestReadsDuringWrites proves, under the race detector, that queries, walks
// and statistics may run at any time, and that they only ever see states that
// make sense: no rank holds more of a prompt than the prompt has blocks.
func TestReadsDuringWrites(t *testing.T) {
	h := newHistory(rand.New(rand.NewPCG(3, 3)), 80, true)
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for i := range uint64(3) {
		readers.Go(func() {
			r := &history{rnd: rand.New(rand.NewPCG(i, 9)), space: h.space, slots: h.slots}
			for n := 0; ctx.Err() == nil; n++ {
				prompt := r.chain(30)
				r.space.Overlap(prompt, &r.o)
				for slot := range r.slots {
					if d, ho, k := r.o.At(slot); int(d+ho+k) > len(prompt) {
						t.Errorf("slot %d holds %d+%d+%d of %d blocks", slot, d, ho, k, len(prompt))
					}
					if n := len(r.space.AppendNames(nil, slot, prompt, 20)); n > 20 {
						t.Errorf("slot %d: %d names of at most 20", slot, n)
					}
				}
				if n%100 == 0 {
					for range r.space.WalkBy(50).Runs {
					}
					r.space.Stats()
				}
			}
		})
	}
	steps := 5000
	if testing.Short() {
		steps = 2000
	}
	for range steps {
		h.step(t)
	}
	stop()
	readers.Wait()
	h.verify(t)
	h.leave(t)
}

// TestWalkIsComplete proves that a walk has every reachable block of every rank,
// parents before children: an index made from it answers alike.
func TestWalkIsComplete(t *testing.T) {
	h := newHistory(rand.New(rand.NewPCG(5, 5)), 71, false)
	for range 4000 {
		h.step(t)
	}
	copied := indexer.New()
	for r := range h.space.Walk().Runs {
		for tier := range indexer.Tier(indexer.NumTiers) {
			for _, slot := range r.Slots[tier] {
				copied.Store(&indexer.Store{Slot: slot, Tier: tier, Parent: r.Parent, HasParent: r.HasParent, EngineHashes: r.EngineHashes, Local: r.Local})
			}
		}
	}
	if n := copied.Stats().Orphans; n != 0 {
		t.Errorf("%d blocks came before their parents", n)
	}
	var a, b indexer.Overlap
	for range 2000 {
		prompt := h.chain(30)
		h.space.Overlap(prompt, &a)
		copied.Overlap(prompt, &b)
		for slot := range h.slots {
			ad, ah, ak := a.At(slot)
			bd, bh, bk := b.At(slot)
			if ad != bd || ah != bh || ak != bk {
				t.Fatalf("slot %d, prompt %v: original %d/%d/%d, copy %d/%d/%d", slot, prompt, ad, ah, ak, bd, bh, bk)
			}
		}
	}
}
