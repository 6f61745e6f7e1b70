package indexer_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
)

// chain stores blocks that are named by their local hashes.
func chain(s *indexer.Space, slot uint32, parent uint64, blocks ...uint64) {
	s.Store(&indexer.Store{Slot: slot, Parent: parent, HasParent: parent != 0, EngineHashes: blocks, Local: blocks})
}

// walked walks in pieces of one run, calls then with the number of each run,
// and returns what came as "slots blocks".
func walked(s *indexer.Space, then func(n int)) (came []string) {
	for r := range s.WalkBy(1).Runs {
		came = append(came, fmt.Sprint(r.Slots[indexer.Device], r.Local))
		then(len(came))
	}
	return came
}

// TestWalkKeepsItsPlace proves that a walk goes on rightly where the blocks at
// its place have moved into another run, or are gone. Slot 1 first shares blocks
// 1 and 2 with slot 0, and leaves them when they came: the walk then stands
// before block 3, inside of a run from 1 to 4.
func TestWalkKeepsItsPlace(t *testing.T) {
	cases := []struct {
		name string
		then func(s *indexer.Space)
		want []string
	}{
		{"only joined", func(*indexer.Space) {}, []string{"[0] [3 4]", "[0] [9]"}},
		{"the end is evicted", func(s *indexer.Space) {
			s.Remove(0, indexer.Device, []uint64{4})
		}, []string{"[0] [3]", "[0] [9]"}},
		{"all that is left is evicted", func(s *indexer.Space) {
			s.Remove(0, indexer.Device, []uint64{4, 3})
		}, []string{"[0] [9]"}},
		{"evicted, and other blocks get their memory", func(s *indexer.Space) {
			s.Remove(0, indexer.Device, []uint64{4, 3})
			chain(s, 0, 2, 5, 6)
		}, []string{"[0] [9]"}},
		{"the whole chain goes", func(s *indexer.Space) {
			s.Remove(0, indexer.Device, []uint64{4, 3, 2, 1})
		}, []string{"[0] [9]"}},
		{"the next chain goes, too", func(s *indexer.Space) {
			s.Remove(0, indexer.Device, []uint64{4, 3, 2, 1, 9})
		}, nil},
		{"everything goes and comes back", func(s *indexer.Space) {
			s.Forget(0)
			chain(s, 0, 0, 1, 2, 3, 4)
		}, nil},
		{"another chain begins", func(s *indexer.Space) {
			chain(s, 0, 0, 8)
		}, []string{"[0] [3 4]", "[0] [9]"}},
		{"the rank is being cleared", func(s *indexer.Space) {
			s.Hide(0)
		}, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := indexer.New()
			chain(s, 0, 0, 9)
			chain(s, 0, 0, 1, 2, 3, 4)
			chain(s, 1, 0, 1, 2)
			came := walked(s, func(n int) {
				if n == 1 {
					s.Remove(1, indexer.Device, []uint64{2, 1})
					c.then(s)
				}
			})
			if want := append([]string{"[0 1] [1 2]"}, c.want...); !slices.Equal(came, want) {
				t.Errorf("came %q, want %q", came, want)
			}
		})
	}
}

// TestWalkEnds proves that a walk ends although every run that came is removed
// and stored again, another chain comes each time, and the run grows.
func TestWalkEnds(t *testing.T) {
	const n = 100
	s := indexer.New()
	for i := range uint64(n) {
		chain(s, 0, 0, 1+i)
	}
	fresh := uint64(1000)
	came := 0
	for r := range s.WalkBy(1).Runs {
		last := r.EngineHashes[len(r.EngineHashes)-1]
		s.Remove(0, indexer.Device, []uint64{last})
		chain(s, 0, 0, last)
		chain(s, 0, 0, fresh)
		chain(s, 0, last, fresh+1)
		chain(s, 1, last, fresh+1)
		fresh += 2
		if came++; came > n {
			t.Fatalf("%d runs came", came)
		}
	}
	if came != n {
		t.Errorf("%d of %d runs came", came, n)
	}
}

// TestWalkStops proves that a walk that is broken off leaves nothing behind.
func TestWalkStops(t *testing.T) {
	s := indexer.New()
	for range s.Walk().Runs {
		t.Error("an empty index has a run")
	}
	chain(s, 0, 0, 1)
	chain(s, 0, 0, 2)
	for range s.WalkBy(1).Runs {
		break
	}
	if n := s.Walks(); n != 0 {
		t.Errorf("%d walks are still under way", n)
	}
}
