package recovery

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

// TestRoundTrip: what the Writer writes of a random index, with long runs, all
// tiers and block seeds, Read brings into another one as it was, in the order of
// the dump: no block has to wait.
func TestRoundTrip(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 3))
	a := newWorldScope()
	for worker := range uint64(5) {
		a.slot(catalog.Rank{Worker: worker, DP: uint32(worker) % 2})
	}
	var prompts [][]uint64
	for i := range uint64(60) {
		ev := &indexer.Store{Tier: indexer.Tier(rnd.IntN(4)), Seed: 1337, SeedKnown: true}
		family := i % 6
		if family >= 4 { // salted
			ev.Seed = 1000 + family
		}
		fork := rnd.IntN(3000)
		for k := range 1 + rnd.IntN(3000) {
			local := family<<40 + uint64(k)
			if k > fork {
				local += i << 32
			}
			ev.Local = append(ev.Local, local)
			ev.EngineHashes = append(ev.EngineHashes, local^0x5555)
		}
		prompts = append(prompts, ev.Local)
		for slot := range uint32(5) {
			if rnd.IntN(3) == 0 {
				ev.Slot = slot
				a.space.Store(ev)
			}
		}
	}
	var dump bytes.Buffer
	w := NewWriter(&dump)
	err := w.Scope(context.Background(), Source{Scope: mt, BlockSize: 16, Ranks: a.gate.Ranks(), Runs: a.space.Walk().Runs})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}

	to := newWorld()
	report, err := Read(context.Background(), &dump, to, Options{MaxOrphans: 1})
	if err != nil || report.Incomplete() {
		t.Fatalf("%+v, %v", report, err)
	}
	b := to.scopes[mt]
	if from, to := a.space.Stats().Blocks, b.space.Stats().Blocks; from != to {
		t.Errorf("blocks per tier: %v became %v", from, to)
	}
	for _, p := range prompts {
		for r, slot := range a.slots {
			if from, to := a.overlap(r, p), b.overlap(r, p); from != to {
				t.Errorf("%v: %v became %v", r, from, to)
			}
			name := p[0] ^ 0x5555
			from, held := a.space.ParentSeed(slot, name)
			if to, ok := b.space.ParentSeed(b.slots[r], name); ok != held || to != from {
				t.Errorf("%v: seed %d became %d", r, from, to)
			}
		}
	}
}

// TestOwnNames: engines with different hash seeds share a prompt, and go on by
// themselves. What a dump makes of them answers as the original does, resolves
// every removal by a rank's own names, and is empty when all are removed.
func TestOwnNames(t *testing.T) {
	const shared, whole = 1500, 2500 // the prompt is more than one event
	a := newWorldScope()
	ranks := []catalog.Rank{{Worker: 1}, {Worker: 1, DP: 1}, {Worker: 2}}
	local, names := make([][]uint64, len(ranks)), make([][]uint64, len(ranks))
	for i, r := range ranks {
		slot := a.slot(r)
		for k := range uint64(whole) {
			l := k + 1
			if k >= shared {
				l += uint64(i) << 32
			}
			local[i], names[i] = append(local[i], l), append(names[i], l<<8+uint64(i))
		}
		a.gate.Store(&indexer.Store{Slot: slot, EngineHashes: names[i], Local: local[i]})
		a.gate.Store(&indexer.Store{
			Slot: slot, Tier: indexer.Host, Parent: names[i][99], HasParent: true,
			EngineHashes: names[i][100:200], Local: local[i][100:200],
		})
	}
	var dump bytes.Buffer
	w := NewWriter(&dump)
	err := w.Scope(t.Context(), Source{Scope: mt, BlockSize: 16, Ranks: a.gate.Ranks(), Runs: a.space.Walk().Runs})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	to := newWorld()
	report, err := Read(t.Context(), &dump, to, Options{MaxOrphans: 1})
	if err != nil || report.Incomplete() {
		t.Fatalf("%+v, %v", report, err)
	}
	b := to.scopes[mt]
	b.gate.EndRecovery()

	alike := func(when string) {
		t.Helper()
		if from, to := a.space.Stats().Blocks, b.space.Stats().Blocks; from != to {
			t.Errorf("%s: blocks per tier: %v became %v", when, from, to)
		}
		for i := range ranks {
			for _, r := range ranks {
				if from, to := a.overlap(r, local[i]), b.overlap(r, local[i]); from != to {
					t.Errorf("%s: %v: %v became %v", when, r, from, to)
				}
			}
		}
	}
	alike("dumped")
	remove := func(i int, tier indexer.Tier, from, to int) {
		t.Helper()
		gone := slices.Clone(names[i][from:to])
		slices.Reverse(gone)
		a.gate.Remove(a.slots[ranks[i]], tier, gone)
		b.gate.Remove(b.slots[ranks[i]], tier, gone)
	}
	remove(1, indexer.Device, 150, 160)
	remove(2, indexer.Device, 1000, whole)
	remove(0, indexer.Host, 100, 120)
	alike("some removed")
	for i := range ranks {
		remove(i, indexer.Host, 100, 200)
		remove(i, indexer.Device, 0, whole)
	}
	alike("all removed")
	if st := b.space.Stats(); st.Unique != 0 || st.Orphans != 0 {
		t.Errorf("left: %+v", st)
	}
}

// TestKeysShown: a dump in either format says whether keys are in use in a scope, also if it has no
// blocks, and brings blocks of which only the name is known as such.
func TestKeysShown(t *testing.T) {
	for name, tc := range map[string]struct{ shown, blocks bool }{
		"not shown": {false, true}, "shown": {true, true}, "no blocks": {true, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := newWorldScope()
			a.slot(catalog.Rank{Worker: 1})
			if tc.blocks {
				a.space.Store(&indexer.Store{Tier: indexer.Host, EngineHashes: []uint64{1}, Local: []uint64{11}, KeysOmitted: true})
			}
			if tc.shown {
				a.space.ShowKeys()
			}
			if tc.blocks {
				a.space.Store(&indexer.Store{Tier: indexer.Host, EngineHashes: []uint64{2, 3}, Local: []uint64{12, 13}, KeysOmitted: true})
			}
			write := func(w *Writer) {
				t.Helper()
				err := w.Scope(context.Background(), Source{
					Scope: mt, BlockSize: 16, Ranks: a.gate.Ranks(), KeysShown: a.space.KeysShown(), Runs: a.space.Walk().Runs,
				})
				if err = errors.Join(err, w.Close()); err != nil {
					t.Fatal(err)
				}
			}
			var dump, packed bytes.Buffer
			write(NewWriter(&dump))
			to := newWorld()
			report, err := Read(context.Background(), &dump, to, Options{})
			if err != nil || report.Incomplete() {
				t.Fatalf("%+v, %v", report, err)
			}
			if got := slices.Contains(to.keyed, mt); got != tc.shown {
				t.Errorf("shown here: %t, there: %t", tc.shown, got)
			}
			if tc.blocks {
				if got, want := to.scopes[mt].space.Unidentified(), a.space.Unidentified(); got != want {
					t.Errorf("%d unidentified blocks, want %d", got, want)
				}
			}
			write(NewMsgpackWriter(&packed))
			var scopes map[string]map[string]any
			if err := msgpack.Unmarshal(packed.Bytes(), &scopes); err != nil {
				t.Fatal(err)
			}
			if got, _ := scopes["m:t"]["keys_shown"].(bool); got != tc.shown {
				t.Errorf("msgpack: %v", scopes)
			}
		})
	}
}
