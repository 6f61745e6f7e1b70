package reservations

import (
	"slices"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// generatedTold writes down the answers that an observer is told of.
type generatedTold struct {
	prefillsTold
	blocks []uint64
	took   []time.Duration
}

func (g *generatedTold) Generated(_ uint32, _ catalog.Rank, blocks uint64, took time.Duration) {
	g.blocks, g.took = append(g.blocks, blocks), append(g.took, took)
}

// TestGenerated: the observer is told, at the free, how many blocks came after the first one, and in which time: not before the
// free, not of one block, not of blocks that came all at once, and not of an answer that had begun before there was an observer.
func TestGenerated(t *testing.T) {
	clock := newFakeClock()
	l := New(1, clock.now, nil)
	var told *generatedTold
	l.SetPrefills(func(catalog.Scope) PrefillObserver {
		if told == nil {
			return nil
		}
		return told
	})
	l.PutRank(testScope, 0, catalog.Rank{})
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	answer := func(id string, track bool, pauses ...time.Duration) {
		t.Helper()
		_, err := l.Book(testScope, Request{ID: id, TrackPrefill: track}, func(*View) (Placement, error) {
			return Placement{PrefillTokens: 5}, nil
		})
		do(err)
		for _, pause := range pauses {
			clock.advance(pause)
			do(l.OutputBlock(id, nil))
		}
	}
	answer("before", true, time.Second)
	told = new(generatedTold)
	l.RenewPrefills()
	answer("none", true)
	answer("one", true, time.Second)
	answer("at once", true, time.Second, 0, 0)
	answer("three", true, time.Second, 100*time.Millisecond, 300*time.Millisecond)
	answer("of another prefill", false, time.Second, 200*time.Millisecond)
	clock.advance(time.Minute) // after the last block the caller takes its time
	do(l.OutputBlock("before", nil))
	if len(told.blocks) > 0 {
		t.Errorf("told %v before the end", told.blocks)
	}
	for _, id := range []string{"before", "none", "one", "at once", "three", "of another prefill"} {
		do(l.Free(id))
	}
	if want := []uint64{2, 1}; !slices.Equal(told.blocks, want) {
		t.Errorf("told of %v blocks, want %v", told.blocks, want)
	}
	if want := []time.Duration{400 * time.Millisecond, 200 * time.Millisecond}; !slices.Equal(told.took, want) {
		t.Errorf("which took %v, want %v", told.took, want)
	}
}
