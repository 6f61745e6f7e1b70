package catalog_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestParallelPatches: of 100 patches at once, each to a field or map entry of
// its own, none is lost, and none disturbs what they do not touch. Readers run
// along and see consistent states only.
func TestParallelPatches(t *testing.T) {
	c, world := newWorld(t, events)
	put(t, c, record(1, stream("tcp://h:1")))
	put(t, c, record(2, stream("tcp://h:2")))
	world.took()

	var done atomic.Bool
	var readers, writers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for !done.Load() {
				readAll(t, c)
			}
		})
	}
	for i := range uint64(100) {
		writers.Go(func() {
			p := catalog.Patch{MaxNumBatchedTokens: new(i)}
			if i%2 == 0 {
				p = catalog.Patch{Taints: []string{fmt.Sprint(i)}}
			}
			if _, err := c.Patch(1, p); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	done.Store(true)
	readers.Wait()

	w := c.List(nil, nil)[0]
	if len(w.Taints) != 1 || w.MaxNumBatchedTokens == nil {
		t.Errorf("a field went missing: taints %v, max_num_batched_tokens %v", w.Taints, w.MaxNumBatchedTokens)
	}
	if calls := world.took(); len(calls) > 0 {
		t.Errorf("patches of other fields were reconciled: %v", calls)
	}
}

// TestParallelUpserts: workers that register, grow, move and go at once leave
// exactly what the last change of each one said.
func TestParallelUpserts(t *testing.T) {
	c, world := newWorld(t, eventsOff)
	var wg sync.WaitGroup
	for id := range uint64(16) {
		wg.Go(func() {
			for i := range uint32(48) {
				scope := m1
				if i%3 == 0 {
					scope = m2
				}
				if _, err := c.Put(record(id, in(scope), size(1+i%4))); err != nil {
					t.Error(err)
				}
				readAll(t, c)
				if i%7 == 0 {
					if _, err := c.Delete(id); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	world.checkSnapshots()
	if n := len(c.Snapshot(m1).Ranks()); n != 16*4 || c.CountSchedulable() != 16 || len(world.inForce) != 16 {
		t.Errorf("%d ranks, %d ready, %d attached", n, c.CountSchedulable(), len(world.inForce))
	}
	for id := range uint64(16) {
		remove(t, c, id)
	}
	if len(c.Scopes()) != 0 || len(world.inForce) != 0 {
		t.Error("something is left of deleted workers")
	}
}

// TestParallelContracts: both contracts and a recovery at once on the same ids
// and scopes. Exactly one of two registrations of an id in a scope is accepted,
// the world checks every call, and in the end nothing is left.
func TestParallelContracts(t *testing.T) {
	c, world := newWorld(t, eventsOff)
	var wg sync.WaitGroup
	for id := range uint64(8) {
		wg.Go(func() {
			for i := range uint32(40) {
				_, _ = c.Put(record(id, in(m1), size(1+i%3))) // refused while the other has it
				readAll(t, c)
				_, _ = c.Delete(id)
			}
		})
		wg.Go(func() {
			for i := range uint32(40) {
				_, first := c.PutTracked(tracked(id, m1, 4, i%2, 1+i%3))
				if _, err := c.PutTracked(tracked(id, m1, 4, 0, 1)); err == nil && first == nil {
					t.Error("an id was registered twice")
				}
				readAll(t, c)
				_ = c.DeleteTracked(m1, id)
			}
		})
		wg.Go(func() {
			for i := range uint32(40) {
				c.ReserveSlot(m1, 4, catalog.Rank{Worker: id, DP: i % 5})
			}
		})
	}
	wg.Wait()
	world.checkSnapshots()
	c.ReleaseReservedSlots()
	if len(c.List(nil, nil)) != 0 || len(c.Scopes()) != 0 || len(world.inForce) != 0 || len(world.reserved) != 0 {
		t.Error("something is left")
	}
}

// readAll reads the whole catalog and checks that snapshots are sound.
func readAll(t *testing.T, c *catalog.Catalog) {
	for _, sc := range c.Scopes() {
		s := c.Snapshot(sc)
		if s == nil {
			continue
		}
		slots := make(map[uint32]bool, len(s.Known()))
		for _, e := range s.Known() {
			if slots[e.Slot] || int(e.Slot) >= s.Slots || e.Worker.Scope != sc {
				t.Errorf("unsound entry %+v in %v", e, sc)
				return
			}
			slots[e.Slot] = true
		}
		for _, e := range s.Ranks() {
			if e.Worker.Lifecycle != catalog.Schedulable {
				t.Errorf("%s is a candidate, but %s", e.Rank, e.Worker.Lifecycle)
			}
		}
	}
}

// BenchmarkSnapshot is what every selection pays for the catalog.
func BenchmarkSnapshot(b *testing.B) {
	c := filled(b, 64)
	b.ReportAllocs()
	for b.Loop() {
		s := c.Snapshot(m1)
		if _, ok := s.Entry(catalog.Rank{Worker: 40}); !ok {
			b.Fatal("no such rank")
		}
	}
}

// BenchmarkPut is a registration that changes no attachment.
func BenchmarkPut(b *testing.B) {
	for _, n := range []uint64{64, 1024} {
		b.Run(fmt.Sprintf("workers=%d", n), func(b *testing.B) {
			c := filled(b, n)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Put(record(1)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func filled(b *testing.B, n uint64) *catalog.Catalog {
	c := catalog.New(eventsOff, reconcilerFunc(func(_, _ *catalog.Attachment) error { return nil }))
	for id := range n {
		if _, err := c.Put(record(id)); err != nil {
			b.Fatal(err)
		}
	}
	return c
}
