package recovery

import (
	"bytes"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

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
	report, err := Read(t.Context(), &dump, to, Options{Waiting: 1})
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
