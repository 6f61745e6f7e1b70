package catalog_test

import (
	"errors"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// step is one change of a catalog and what it must lead to.
type step struct {
	put    *catalog.Record
	patch  *catalog.Patch // of worker id
	remove bool           // worker id
	id     uint64

	reasons map[uint64]string // of every worker that is not schedulable: its only reason
	calls   []string          // of the Reconciler
}

func (s step) run(t *testing.T, c *catalog.Catalog) {
	t.Helper()
	switch {
	case s.put != nil:
		put(t, c, *s.put)
	case s.patch != nil:
		patch(t, c, s.id, *s.patch)
	case s.remove:
		remove(t, c, s.id)
	}
}

// TestReconciliation plays short histories: which changes reach the Reconciler,
// which workers are kept out of their scope, and when they come back.
func TestReconciliation(t *testing.T) {
	rec := func(id uint64, change ...func(*catalog.Record)) *catalog.Record {
		r := record(id, change...)
		return &r
	}
	const mismatch = "reconciliation failed: block_size mismatch for model=m tenant=t: existing=4 requested=8"
	const inUse = "reconciliation failed: bind tcp://*:1: address already in use"
	tests := map[string]struct {
		settings catalog.Settings
		steps    []step
	}{
		"what does not touch the attachment is not reconciled": {events, []step{
			{put: rec(1, stream("tcp://h:1")), calls: []string{"nothing -> 1@m/t block=4 0:0 0<tcp://h:1"}},
			{put: rec(1, stream("tcp://h:1"))},
			{patch: &catalog.Patch{Taints: []string{"x"}, Endpoint: new("http://n")}, id: 1},
			{patch: &catalog.Patch{Endpoint: new("")}, id: 1, reasons: map[uint64]string{1: "endpoint is required"}},
			{patch: &catalog.Patch{Endpoint: new("http://n")}, id: 1},
		}},
		"block size is fixed by the first and free after the last": {eventsOff, []step{
			{put: rec(1), calls: []string{"nothing -> 1@m/t block=4 0:0"}},
			{put: rec(2, blocks(8)), reasons: map[uint64]string{2: mismatch}},
			{put: rec(3, blocks(8), in(m2)), calls: []string{"nothing -> 3@m2/t block=8 0:0"}, reasons: map[uint64]string{2: mismatch}},
			{patch: &catalog.Patch{BlockSize: new(uint32(4))}, id: 2, calls: []string{"nothing -> 2@m/t block=4 0:1"}},
			{
				patch: &catalog.Patch{BlockSize: new(uint32(8))}, id: 1, calls: []string{"1@m/t block=4 0:0 -> nothing"},
				reasons: map[uint64]string{1: mismatch},
			},
			{remove: true, id: 2, calls: []string{"2@m/t block=4 0:1 -> nothing", "nothing -> 1@m/t block=8 0:0"}},
		}},
		"a conflict that is gone: the lowest id wins, the others conflict with it": {eventsOff, []step{
			{put: rec(9), calls: []string{"nothing -> 9@m/t block=4 0:0"}},
			{put: rec(5, blocks(16)), reasons: map[uint64]string{5: "reconciliation failed: block_size mismatch for model=m tenant=t: existing=4 requested=16"}},
			{put: rec(4, blocks(8)), reasons: map[uint64]string{
				4: mismatch,
				5: "reconciliation failed: block_size mismatch for model=m tenant=t: existing=4 requested=16",
			}},
			{put: rec(6, blocks(8)), reasons: map[uint64]string{
				4: mismatch, 6: mismatch,
				5: "reconciliation failed: block_size mismatch for model=m tenant=t: existing=4 requested=16",
			}},
			{
				remove: true, id: 9,
				calls:   []string{"9@m/t block=4 0:0 -> nothing", "nothing -> 4@m/t block=8 0:0", "nothing -> 6@m/t block=8 0:1"},
				reasons: map[uint64]string{5: "reconciliation failed: block_size mismatch for model=m tenant=t: existing=8 requested=16"},
			},
		}},
		"a sole worker changes block size and eagle flag": {eventsOff, []step{
			{put: rec(0), calls: []string{"nothing -> 0@m/t block=4 0:0"}},
			{
				patch: &catalog.Patch{BlockSize: new(uint32(8))}, id: 0,
				calls: []string{"0@m/t block=4 0:0 -> nothing", "nothing -> 0@m/t block=8 0:0"},
			},
			{
				patch: &catalog.Patch{IsEagle: new(true)}, id: 0,
				calls: []string{"0@m/t block=8 0:0 -> nothing", "nothing -> 0@m/t block=8 eagle 0:0"},
			},
		}},
		"eagle mismatch; unset is false": {eventsOff, []step{
			{put: rec(1), calls: []string{"nothing -> 1@m/t block=4 0:0"}},
			{put: rec(2, eagle), reasons: map[uint64]string{2: "reconciliation failed: is_eagle mismatch for model=m tenant=t: existing=false requested=true"}},
			{
				put: rec(3, func(r *catalog.Record) { r.IsEagle = new(false) }), calls: []string{"nothing -> 3@m/t block=4 0:1"},
				reasons: map[uint64]string{2: "reconciliation failed: is_eagle mismatch for model=m tenant=t: existing=false requested=true"},
			},
		}},
		"an eagle conflict keeps the attachment": {eventsOff, []step{
			{put: rec(1), calls: []string{"nothing -> 1@m/t block=4 0:0"}},
			{put: rec(2), calls: []string{"nothing -> 2@m/t block=4 0:1"}},
			{
				patch: &catalog.Patch{IsEagle: new(true)}, id: 1,
				reasons: map[uint64]string{1: "reconciliation failed: is_eagle mismatch for model=m tenant=t: existing=false requested=true"},
			},
			{remove: true, id: 2, calls: []string{
				"2@m/t block=4 0:1 -> nothing",
				"1@m/t block=4 0:0 -> nothing", "nothing -> 1@m/t block=4 eagle 0:0",
			}},
		}},
		"without a block size nothing is kept": {eventsOff, []step{
			{put: rec(1), calls: []string{"nothing -> 1@m/t block=4 0:0"}},
			{
				patch: &catalog.Patch{BlockSize: new(uint32(0))}, id: 1, calls: []string{"1@m/t block=4 0:0 -> nothing"},
				reasons: map[uint64]string{1: "block_size must be greater than 0"},
			},
			{
				put: rec(2, blocks(8)), calls: []string{"nothing -> 2@m/t block=8 0:0"},
				reasons: map[uint64]string{1: "block_size must be greater than 0"},
			},
		}},
		"an incomplete worker holds the block size": {eventsOff, []step{
			{put: rec(1), calls: []string{"nothing -> 1@m/t block=4 0:0"}},
			{patch: &catalog.Patch{Endpoint: new("")}, id: 1, reasons: map[uint64]string{1: "endpoint is required"}},
			{put: rec(2, blocks(8)), reasons: map[uint64]string{1: "endpoint is required", 2: mismatch}},
			{put: rec(3), calls: []string{"nothing -> 3@m/t block=4 0:1"}, reasons: map[uint64]string{1: "endpoint is required", 2: mismatch}},
		}},
		"ranks come and go, survivors keep their slots": {eventsOff, []step{
			{put: rec(1, size(3)), calls: []string{"nothing -> 1@m/t block=4 0:0 1:1 2:2"}},
			{put: rec(2, size(2)), calls: []string{"nothing -> 2@m/t block=4 0:3 1:4"}},
			{
				patch: &catalog.Patch{StartRank: new(uint32(1)), Size: new(uint32(1))}, id: 1,
				calls: []string{"1@m/t block=4 0:0 1:1 2:2 -> 1@m/t block=4 1:1"},
			},
			{put: rec(2, size(4)), calls: []string{"2@m/t block=4 0:3 1:4 -> 2@m/t block=4 0:3 1:4 2:0 3:2"}},
			{patch: &catalog.Patch{StartRank: new(uint32(7))}, id: 1, calls: []string{"1@m/t block=4 1:1 -> 1@m/t block=4 7:5"}},
			{
				patch: &catalog.Patch{Size: new(uint32(0))}, id: 1, calls: []string{"1@m/t block=4 7:5 -> nothing"},
				reasons: map[uint64]string{1: "data_parallel_size must be greater than 0"},
			},
		}},
		"an incomplete worker keeps surviving ranks and gets no new ones": {eventsOff, []step{
			{put: rec(1, size(2)), calls: []string{"nothing -> 1@m/t block=4 0:0 1:1"}},
			{
				put:   rec(1, start(1), size(2), func(r *catalog.Record) { r.Endpoint = nil }),
				calls: []string{"1@m/t block=4 0:0 1:1 -> 1@m/t block=4 1:1"}, reasons: map[uint64]string{1: "endpoint is required"},
			},
			{put: rec(1, start(1), size(2)), calls: []string{"1@m/t block=4 1:1 -> 1@m/t block=4 1:1 2:0"}},
		}},
		"a move leaves and comes back, and frees the old scope": {eventsOff, []step{
			{put: rec(1), calls: []string{"nothing -> 1@m/t block=4 0:0"}},
			{put: rec(2, blocks(8)), reasons: map[uint64]string{2: mismatch}},
			{put: rec(1, in(m2)), calls: []string{"1@m/t block=4 0:0 -> nothing", "nothing -> 1@m2/t block=4 0:0", "nothing -> 2@m/t block=8 0:0"}},
			{
				put: rec(2, in(m2), blocks(8)), calls: []string{"2@m/t block=8 0:0 -> nothing"},
				reasons: map[uint64]string{2: "reconciliation failed: block_size mismatch for model=m2 tenant=t: existing=4 requested=8"},
			},
		}},
		"extra event ranks are attached, but no candidates": {events, []step{
			{
				put:   rec(1, streams(map[uint32]string{2: "tcp://h:3", 0: "tcp://h:1"}), replay("tcp://h:9"), replays(map[uint32]string{2: "tcp://h:8"})),
				calls: []string{"nothing -> 1@m/t block=4 0:0 [2:1] 0<tcp://h:1,tcp://h:9 2<tcp://h:3,tcp://h:8"},
			},
			{
				patch: &catalog.Patch{Size: new(uint32(3)), KVEventsEndpoints: map[uint32]string{0: "tcp://h:1", 1: "tcp://h:2", 2: "tcp://h:3"}}, id: 1,
				calls: []string{"1@m/t block=4 0:0 [2:1] 0<tcp://h:1,tcp://h:9 2<tcp://h:3,tcp://h:8 -> " +
					"1@m/t block=4 0:0 1:2 2:1 0<tcp://h:1,tcp://h:9 1<tcp://h:2,tcp://h:9 2<tcp://h:3,tcp://h:8"},
			},
		}},
		"a bad endpoint keeps the old stream, none at all ends it": {events, []step{
			{put: rec(1, stream("tcp://h:1")), calls: []string{"nothing -> 1@m/t block=4 0:0 0<tcp://h:1"}},
			{
				patch: &catalog.Patch{KVEventsEndpoint: new("x")}, id: 1,
				reasons: map[uint64]string{1: "reconciliation failed: invalid kv_events endpoint for worker 1 dp_rank 0: invalid ZMQ endpoint `x`: missing scheme"},
			},
			{patch: &catalog.Patch{KVEventsEndpoint: new("tcp://h:1")}, id: 1},
			{
				patch: &catalog.Patch{KVEventsEndpoint: new("")}, id: 1, calls: []string{"1@m/t block=4 0:0 0<tcp://h:1 -> 1@m/t block=4 0:0"},
				reasons: map[uint64]string{1: "kv_events endpoint is required for dp_rank 0"},
			},
			{
				patch: &catalog.Patch{KVEventsEndpoint: new("tcp://h:2")}, id: 1,
				calls: []string{"1@m/t block=4 0:0 -> 1@m/t block=4 0:0 0<tcp://h:2"},
			},
		}},
		"a failed bind is a reason until the endpoint is free": {events, []step{
			{put: rec(2, stream("tcp://*:1")), calls: []string{"nothing -> 2@m/t block=4 0:0 0<tcp://*:1"}},
			{
				put: rec(1, in(m2), stream("tcp://*:1")), calls: []string{"nothing -> 1@m2/t block=4 0:0 0<tcp://*:1"},
				reasons: map[uint64]string{1: inUse},
			},
			{
				patch: &catalog.Patch{KVEventsEndpoint: new("tcp://*:2")}, id: 2,
				calls: []string{"2@m/t block=4 0:0 0<tcp://*:1 -> 2@m/t block=4 0:0 0<tcp://*:2", "nothing -> 1@m2/t block=4 0:0 0<tcp://*:1"},
			},
			{
				patch: &catalog.Patch{KVEventsEndpoint: new("tcp://*:1")}, id: 2,
				calls:   []string{"2@m/t block=4 0:0 0<tcp://*:2 -> 2@m/t block=4 0:0 0<tcp://*:1"},
				reasons: map[uint64]string{2: inUse},
			},
			{remove: true, id: 1, calls: []string{
				"1@m2/t block=4 0:0 0<tcp://*:1 -> nothing",
				"2@m/t block=4 0:0 0<tcp://*:2 -> 2@m/t block=4 0:0 0<tcp://*:1",
			}},
		}},
		"a failed change still takes away what the record no longer has": {events, []step{
			{put: rec(1, stream("tcp://*:1")), calls: []string{"nothing -> 1@m/t block=4 0:0 0<tcp://*:1"}},
			{
				put:   rec(2, size(2), streams(map[uint32]string{0: "tcp://h:1", 1: "tcp://h:2"})),
				calls: []string{"nothing -> 2@m/t block=4 0:1 1:2 0<tcp://h:1 1<tcp://h:2"},
			},
			{
				put: rec(2, start(1), size(2), streams(map[uint32]string{1: "tcp://h:2", 2: "tcp://*:1"})),
				calls: []string{
					"2@m/t block=4 0:1 1:2 0<tcp://h:1 1<tcp://h:2 -> 2@m/t block=4 1:2 2:3 1<tcp://h:2 2<tcp://*:1",
					"2@m/t block=4 0:1 1:2 0<tcp://h:1 1<tcp://h:2 -> 2@m/t block=4 1:2 1<tcp://h:2",
					"2@m/t block=4 1:2 1<tcp://h:2 -> 2@m/t block=4 1:2 2:1 1<tcp://h:2 2<tcp://*:1",
				},
				reasons: map[uint64]string{2: inUse},
			},
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, world := newWorld(t, tc.settings)
			for i, s := range tc.steps {
				s.run(t, c)
				if got := world.took(); len(got)+len(s.calls) > 0 {
					equal(t, "calls of step "+string(rune('0'+i)), got, s.calls)
				}
				reasons := map[uint64]string{}
				for _, w := range c.List(nil, nil) {
					if w.Lifecycle != catalog.Schedulable {
						equal(t, "number of reasons", len(w.Explain()), 1)
						reasons[w.ID] = w.Explain()[0]
					}
				}
				if len(reasons)+len(s.reasons) > 0 {
					equal(t, "reasons after step "+string(rune('0'+i)), reasons, s.reasons)
				}
			}
		})
	}
}

// TestSnapshot: what readers see of a scope, and how they look things up.
func TestSnapshot(t *testing.T) {
	c, _ := newWorld(t, events)
	if c.Snapshot(m1) != nil {
		t.Error("an empty scope has a snapshot")
	}
	put(t, c, record(7, size(2), streams(map[uint32]string{0: "tcp://h:1", 1: "tcp://h:2", 4: "tcp://h:3"})))
	put(t, c, record(3, start(5), stream("tcp://h:4")))
	put(t, c, record(1, stream("tcp://h:5")))
	patch(t, c, 1, catalog.Patch{Endpoint: new("")})
	put(t, c, record(2)) // never complete

	s := c.Snapshot(m1)
	if s.BlockSize != 4 || s.Eagle || s.Scope != m1 || s.Slots != 5 {
		t.Errorf("snapshot %+v", s)
	}
	list := func(entries []catalog.Entry) (out []catalog.Rank) {
		for _, e := range entries {
			out = append(out, e.Rank)
			if e.Worker.ID != e.Rank.Worker {
				t.Errorf("%s has worker %d", e.Rank, e.Worker.ID)
			}
		}
		return out
	}
	equal(t, "Ranks", list(s.Ranks()), []catalog.Rank{{Worker: 3, DP: 5}, {Worker: 7}, {Worker: 7, DP: 1}})
	equal(t, "Known", list(s.Known()), []catalog.Rank{{Worker: 1}, {Worker: 3, DP: 5}, {Worker: 7}, {Worker: 7, DP: 1}, {Worker: 7, DP: 4}})
	equal(t, "RanksOf(7)", list(s.RanksOf(7)), []catalog.Rank{{Worker: 7}, {Worker: 7, DP: 1}})
	equal(t, "RanksOf(3)", list(s.RanksOf(3)), []catalog.Rank{{Worker: 3, DP: 5}})
	equal(t, "RanksOf(1)", len(s.RanksOf(1))+len(s.RanksOf(5))+len(s.RanksOf(99)), 0)
	equal(t, "Workers", len(s.Workers), 2)
	if w, ok := s.Worker(7); !ok || w.ID != 7 {
		t.Errorf("Worker(7) = %v, %t", w, ok)
	}
	if _, ok := s.Worker(1); ok {
		t.Error("Worker(1) is found, but it is not schedulable")
	}
	if e, ok := s.Entry(catalog.Rank{Worker: 7, DP: 1}); !ok || e.Slot != 1 || !s.IsCandidate(e) {
		t.Errorf("Entry(7, 1) = %+v, %t", e, ok)
	}
	for _, r := range []catalog.Rank{{Worker: 7, DP: 4}, {Worker: 1}} {
		if _, ok := s.Entry(r); ok {
			t.Errorf("%s is a candidate", r)
		}
		if e, ok := s.KnownEntry(r); !ok || s.IsCandidate(e) {
			t.Errorf("KnownEntry(%s) = %+v, %t", r, e, ok)
		}
	}
	if _, ok := s.KnownEntry(catalog.Rank{Worker: 2}); ok {
		t.Error("a worker that was never complete is known")
	}
	for _, id := range []uint64{1, 3, 7} {
		remove(t, c, id)
	}
	if c.Snapshot(m1) != nil || len(c.Scopes()) != 0 {
		t.Error("the scope outlives its last attached worker")
	}
	if len(s.Ranks()) != 3 {
		t.Error("an old snapshot changed")
	}
}

// reconcilerFunc lets a test look at the catalog during a call.
type reconcilerFunc func(before, after *catalog.Attachment) error

func (f reconcilerFunc) Reconcile(before, after *catalog.Attachment) error { return f(before, after) }

func (reconcilerFunc) ReserveSlot(catalog.Scope, uint32, catalog.Rank, uint32) {}

func (reconcilerFunc) ReleaseSlot(catalog.Scope, catalog.Rank, uint32) {}

// TestDraining: while a schedulable worker is taken away it is listed as
// draining and cannot be chosen; one that only loses ranks goes on working.
func TestDraining(t *testing.T) {
	var c *catalog.Catalog
	var seen []string
	c = catalog.New(eventsOff, reconcilerFunc(func(before, _ *catalog.Attachment) error {
		if before != nil {
			w := c.List(nil, nil)[0]
			seen = append(seen, w.Scope.Model+" "+w.Lifecycle)
			if snap := c.Snapshot(before.Scope); (w.Lifecycle == catalog.Draining) != (snap == nil) {
				t.Errorf("%s: snapshot %+v", w.Lifecycle, snap)
			}
		}
		return nil
	}))
	put(t, c, record(1, size(2)))
	patch(t, c, 1, catalog.Patch{Size: new(uint32(1))})
	put(t, c, record(1, in(m2)))
	patch(t, c, 1, catalog.Patch{StartRank: new(uint32(3))})
	if w := patch(t, c, 1, catalog.Patch{BlockSize: new(uint32(0))}); w.Lifecycle != catalog.Incomplete {
		t.Errorf("lifecycle %s", w.Lifecycle)
	}
	put(t, c, record(1, in(m2)))
	if w := remove(t, c, 1); w.Lifecycle != catalog.Unschedulable || len(w.Explain()) > 0 {
		t.Errorf("deleted: %+v", w)
	}
	equal(t, "seen", seen, []string{"m schedulable", "m draining", "m2 draining", "m2 draining", "m2 draining"})
}

// TestTakingAwayCannotFail: an error of a call that adds nothing is not looked
// at, so nothing that the record does not have stays behind.
func TestTakingAwayCannotFail(t *testing.T) {
	c := catalog.New(eventsOff, reconcilerFunc(func(before, _ *catalog.Attachment) error {
		if before != nil {
			return errors.New("no")
		}
		return nil
	}))
	put(t, c, record(1, size(2)))
	if w := patch(t, c, 1, catalog.Patch{Size: new(uint32(1))}); w.Lifecycle != catalog.Schedulable || len(c.Snapshot(m1).Known()) != 1 {
		t.Errorf("after losing a rank: %+v", w)
	}
	remove(t, c, 1)
	if c.Snapshot(m1) != nil {
		t.Error("a deleted worker is still attached")
	}
}
