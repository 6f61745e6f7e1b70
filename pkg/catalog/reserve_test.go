package catalog_test

import (
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestHold plays a recovery: which slots ranks get before and after their
// workers come, and when the Reconciler is told that a slot is released.
func TestHold(t *testing.T) {
	c, world := newWorld(t, events)
	reserve := func(sc catalog.Scope, block uint32, worker uint64, dp uint32) (slot int) {
		t.Helper()
		got, ok := c.ReserveSlot(sc, block, catalog.Rank{Worker: worker, DP: dp})
		if !ok {
			return -1
		}
		return int(got)
	}
	check := func(what string, slots, want []int, calls ...string) {
		t.Helper()
		equal(t, what, slots, want)
		equal(t, what+": calls", world.took(), calls)
		world.checkSnapshots()
	}
	check("new ranks, one twice", []int{reserve(m1, 4, 1, 0), reserve(m1, 4, 2, 1), reserve(m1, 4, 2, 7), reserve(m1, 4, 1, 0), reserve(m1, 8, 3, 0), reserve(m2, 8, 1, 0)},
		[]int{0, 1, 2, 0, -1, 0},
		"reserve 1/0@m/t block=4 :0", "reserve 2/1@m/t block=4 :1", "reserve 2/7@m/t block=4 :2", "reserve 1/0@m2/t block=8 :0")
	if c.Snapshot(m1) != nil || len(c.Scopes()) != 0 || len(c.List(nil, nil)) != 0 {
		t.Error("reserved ranks are visible")
	}

	put(t, c, record(2, size(2), streams(map[uint32]string{0: "tcp://h:1", 1: "tcp://h:2"})))
	check("their worker comes with one more, and without one", []int{reserve(m1, 4, 2, 0), reserve(m1, 4, 2, 1), reserve(m1, 8, 2, 1), reserve(m1, 4, 2, 7)}, []int{3, 1, -1, -1},
		"nothing -> 2@m/t block=4 0:3 1:1 0<tcp://h:1 1<tcp://h:2", "release 2/7@m/t :2")
	put(t, c, record(1, blocks(0)))
	check("an incomplete worker is attached nowhere", []int{reserve(m1, 4, 1, 0)}, []int{0})
	remove(t, c, 1)
	check("its deletion releases the slot", nil, nil, "release 1/0@m/t :0")

	put(t, c, record(5, in(m2), stream("tcp://h:5")))
	check("another block size releases all slots of the scope", []int{reserve(m2, 4, 1, 0), reserve(m2, 8, 1, 0)}, []int{1, -1},
		"release 1/0@m2/t :0", "nothing -> 5@m2/t block=4 0:0 0<tcp://h:5", "reserve 1/0@m2/t block=4 :1")
	if _, err := c.PutTracked(tracked(1, m2, 4, 0, 1)); err != nil {
		t.Fatal(err)
	}
	check("a worker of the slot tracker has no blocks", []int{reserve(m2, 4, 1, 0), reserve(m2, 4, 1, 9)}, []int{-1, -1},
		"release 1/0@m2/t :1", "nothing -> 1@m2/t block=4 tracked 0:1")

	put(t, c, record(6, in(m2), stream("bad")))
	world.took()
	check("reserved while it cannot be attached", []int{reserve(m2, 4, 6, 0)}, []int{2}, "reserve 6/0@m2/t block=4 :2")
	put(t, c, record(6, stream("bad")))
	check("a move releases the slot", nil, nil, "release 6/0@m2/t :2")

	check("reserved until the end of the grace", []int{reserve(m1, 4, 9, 0)}, []int{0}, "reserve 9/0@m/t block=4 :0")
	if n := c.ReleaseReservedSlots(); n != 1 {
		t.Errorf("%d ranks were released, want 1", n)
	}
	check("afterwards only attached ranks have slots", []int{reserve(m1, 4, 9, 0), reserve(m1, 4, 2, 0)}, []int{-1, 3}, "release 9/0@m/t :0")
}

// TestHoldSurvivesFailedAttach: a worker that cannot be attached leaves what is
// reserved for it, and takes it over when it can.
func TestHoldSurvivesFailedAttach(t *testing.T) {
	c, world := newWorld(t, events)
	put(t, c, record(1, in(m2), stream("tcp://*:1")))
	if slot, ok := c.ReserveSlot(m1, 4, catalog.Rank{Worker: 2}); slot != 0 || !ok {
		t.Fatal(slot, ok)
	}
	world.took()
	if w := put(t, c, record(2, stream("tcp://*:1"))); w.Lifecycle != catalog.Incomplete {
		t.Fatalf("worker is %+v", w)
	}
	equal(t, "reserved", len(world.reserved[m1].slots), 1)
	remove(t, c, 1)
	equal(t, "calls", world.took(), []string{
		"nothing -> 2@m/t block=4 0:0 0<tcp://*:1",
		"1@m2/t block=4 0:0 0<tcp://*:1 -> nothing",
		"nothing -> 2@m/t block=4 0:0 0<tcp://*:1",
	})
	equal(t, "reserved scopes", len(world.reserved), 0)
}

// TestHoldsOfAnEagleScope: the sole worker of a scope changes how blocks are
// cut, so what is reserved of the old ones goes.
func TestHoldsOfAnEagleScope(t *testing.T) {
	c, world := newWorld(t, eventsOff)
	put(t, c, record(1))
	c.ReserveSlot(m1, 4, catalog.Rank{Worker: 2})
	world.took()
	patch(t, c, 1, catalog.Patch{IsEagle: new(true)})
	equal(t, "calls", world.took(), []string{"1@m/t block=4 0:0 -> nothing", "release 2/0@m/t :1", "nothing -> 1@m/t block=4 eagle 0:0"})
}

// TestReservedBound: no peer's dump makes this process hold more than MaxReservedSlots ranks.
func TestReservedBound(t *testing.T) {
	c := catalog.New(eventsOff, reconcilerFunc(func(_, _ *catalog.Attachment) error { return nil }))
	for i := range uint64(catalog.MaxReservedSlots) {
		if _, ok := c.ReserveSlot(m1, 4, catalog.Rank{Worker: i}); !ok {
			t.Fatalf("rank %d is not reserved", i)
		}
	}
	if _, ok := c.ReserveSlot(m2, 4, catalog.Rank{}); ok {
		t.Error("one more rank is reserved")
	}
	put(t, c, record(5))
	if _, ok := c.ReserveSlot(m2, 4, catalog.Rank{}); !ok {
		t.Error("a slot that was taken over still counts")
	}
	if n := c.ReleaseReservedSlots(); n != catalog.MaxReservedSlots {
		t.Errorf("%d ranks were released", n)
	}
}
