package node_test

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestPatchKeepsWhatItDoesNotChange (decision D7): sockets, cursors, blocks and
// reservations of a worker outlive a change of another field, and of other ranks.
func TestPatchKeepsWhatItDoesNotChange(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 2))
	a := servicetest.Prompt(1, 12)
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(a, servicetest.BlockSize, nil))
	w.WantDevice(a, "1/0:3 1/1:0")
	w.Book("r", a)
	opened, _ := w.Net.Count()

	w.Patch(1, catalog.Patch{Taints: []string{"x"}, TotalKVBlocks: new(uint64(9))})
	w.Put(servicetest.Record(1, 2, func(r *catalog.Record) { r.Endpoint = new("http://moved") }))
	w.Patch(1, catalog.Patch{ReplayEndpoint: new("tcp://worker-1:6000")})
	if now, _ := w.Net.Count(); now != opened {
		t.Errorf("%d sockets were opened by changes of other fields", now-opened)
	}
	w.WantDevice(a, "1/0:3 1/1:0")
	w.WantLoad("1/0: 0 3 1, 1/1: 0 0 0")

	w.Patch(1, catalog.Patch{Size: new(uint32(3)), KVEventsEndpoints: servicetest.Endpoints(1, 3)})
	w.Patch(1, catalog.Patch{Size: new(uint32(1)), KVEventsEndpoints: servicetest.Endpoints(1, 1)})
	e.Publish(0, e.Stored(a[:8], servicetest.BlockSize, nil)) // the next number: nothing was missed
	w.WantDevice(a, "1/0:3")
	w.WantLoad("1/0: 0 3 1")
	if gaps := servicetest.Sum(w.Metrics()["kv_gaps_total"]); gaps != 0 {
		t.Errorf("%v gaps: the cursor was lost", gaps)
	}
	if err := w.Free("r"); err != nil {
		t.Error(err)
	}
}

// TestStreamKeepsItsLessons: what a stream's events have taught about attention
// groups outlives a change of its replay endpoint.
func TestStreamKeepsItsLessons(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	a, b := servicetest.Prompt(1, 8), servicetest.Prompt(2, 8)
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(a, servicetest.BlockSize, servicetest.Dict{"group_idx": 1, "kv_cache_spec_kind": "full_attention"}))
	w.WantDevice(a, "1/0:2")
	w.Patch(1, catalog.Patch{ReplayEndpoint: new("tcp://worker-1:6000")})
	e.Publish(0, e.Stored(b, servicetest.BlockSize, servicetest.Dict{"group_idx": 1}))
	w.WantDevice(b, "1/0:2")
}

// TestSharedReplayFollowsOtherRanks: once a second rank has the same replay
// server, the first one's stream drops what that answers for the second.
func TestSharedReplayFollowsOtherRanks(t *testing.T) {
	replay := func(r *catalog.Record) { r.ReplayEndpoint = new("tcp://worker-1:6000") }
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1, replay))
	w.Put(servicetest.Record(1, 2, replay))
	w.Net.At(servicetest.Endpoint(1, 0)).Connect()
	w.Settle() // the replay is asked for,
	w.Settle() // and has its turn
	server := w.Net.At("tcp://worker-1:6000")
	if server == nil {
		t.Fatal("no replay was asked for")
	}
	e := w.Engine(1, 1)
	a := servicetest.Prompt(1, 8)
	server.Send(nil, binary.BigEndian.AppendUint64(nil, 0), servicetest.Batch(1, e.Stored(a, servicetest.BlockSize, nil)))
	server.Send(nil, binary.BigEndian.AppendUint64(nil, 1<<64-1), nil)
	w.WantDevice(a, "1/0:0 1/1:0")
	if n := servicetest.Sum(w.Metrics()["kv_messages_total"], "foreign_rank"); n != 1 {
		t.Errorf("%v messages of another rank were seen, want 1", n)
	}
}

// TestDeleteForgets (decision D6): with a worker go its sockets, blocks and
// reservations, and the next worker in its slot starts from nothing.
func TestDeleteForgets(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1))
	a := servicetest.Prompt(1, 12)
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(a, servicetest.BlockSize, nil))
	w.WantDevice(a, "1/0:3 2/0:0")
	if sel := w.Book("r", a); sel.Rank.Worker != 1 {
		t.Fatalf("worker %d was chosen, not the one with the cache", sel.Rank.Worker)
	}

	w.Remove(1)
	w.WantDevice(a, "2/0:0")
	w.WantLoad("2/0: 0 0 0")
	servicetest.WantError(t, w.Free("r"), contract.NotFound, "reservation r not found")
	if _, live := w.Net.Count(); live != 1 {
		t.Errorf("%d sockets are open, want 1", live)
	}

	w.Put(servicetest.Record(3, 1)) // in worker 1's slot
	w.WantDevice(a, "2/0:0 3/0:0")
	w.WantLoad("2/0: 0 0 0, 3/0: 0 0 0")
	w.Book("r", a) // the id is free again
	e3 := w.Engine(3, 0)
	e3.Publish(0, e3.Stored(a[:4], servicetest.BlockSize, nil))
	w.WantDevice(a, "2/0:0 3/0:1")
}

// TestMoveBetweenScopes: a POST with another model takes nothing along.
func TestMoveBetweenScopes(t *testing.T) {
	w := servicetest.Start(t)
	other := catalog.Scope{Model: "other", Tenant: "t"}
	w.Put(servicetest.Record(1, 1))
	a := servicetest.Prompt(1, 12)
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(a, servicetest.BlockSize, nil))
	w.WantDevice(a, "1/0:3")
	w.Book("r", a)

	w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.Scope = other }))
	w.WantLoad("other/t, 1/0: 0 0 0")
	servicetest.WantError(t, w.PrefillComplete("r"), contract.NotFound, "reservation r not found")
	_, err := w.Select(context.Background(), servicetest.Ask(a), false)
	servicetest.WantError(t, err, contract.Unavailable, "no schedulable workers for model=m tenant=t")
	req := servicetest.Ask(a)
	req.Scope = other
	sel, err := w.Select(context.Background(), req, false)
	if err != nil || sel.Overlap.GPU != 0 || sel.Rank.Worker != 1 {
		t.Errorf("in the new scope: %+v, %v", sel, err)
	}
	e.Publish(0, e.Stored(a, servicetest.BlockSize, nil)) // numbers go on at 1 for a stream that is new
	w.Settle()
	if sel, err = w.Select(context.Background(), req, false); err != nil || sel.Overlap.GPU != 12 {
		t.Errorf("after an event in the new scope: %+v, %v", sel, err)
	}
}

// TestSoleWorkerChangesBlockSize (decision D17): its blocks and reservations go,
// and from then on everything is in the new size.
func TestSoleWorkerChangesBlockSize(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	a := servicetest.Prompt(1, 16)
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(a, 4, nil))
	w.WantDevice(a, "1/0:4")
	w.Book("r", a)
	w.Patch(1, catalog.Patch{BlockSize: new(uint32(8))})
	w.WantDevice(a, "1/0:0")
	w.WantLoad("1/0: 0 0 0")
	e.Publish(0, e.Stored(a, 4, nil)) // does not fit any more
	e.Publish(0, e.Stored(a, 8, nil))
	w.WantDevice(a, "1/0:2")
	if sel := w.Book("r", a); sel.BlockSize != 8 || sel.Overlap.GPU != 16 {
		t.Errorf("selection is %+v", sel)
	}
	w.WantLoad("1/0: 0 2 1")
}

// TestIncompleteWorkerKeepsItsPlace (decision D17): out of the choice, but its
// blocks and reservations are there when it comes back.
func TestIncompleteWorkerKeepsItsPlace(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	a := servicetest.Prompt(1, 8)
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(a, servicetest.BlockSize, nil))
	w.Settle()
	w.Book("r", a)
	wk, err := w.PatchWorker(1, catalog.Patch{Endpoint: new("")})
	if err != nil || wk.Lifecycle != catalog.Incomplete {
		t.Fatalf("worker is %+v, %v", wk, err)
	}
	_, err = w.Select(context.Background(), servicetest.Ask(a), false)
	servicetest.WantError(t, err, contract.Unavailable, "no schedulable workers are available")
	w.WantLoad("1/0: 0 2 1")
	w.Patch(1, catalog.Patch{Endpoint: new("http://back")})
	w.WantDevice(a, "1/0:2")
	w.WantLoad("1/0: 0 2 1")
}

// TestFailedBindRollsBack: when the endpoint of one rank cannot be bound, the
// ranks that were opened before it are closed again, and nothing is left in
// index, ledger and loads.
func TestFailedBindRollsBack(t *testing.T) {
	w := servicetest.Start(t)
	w.Net.Refuse(servicetest.Endpoint(1, 2), true)
	wk, err := w.PutWorker(servicetest.Record(1, 3))
	if err != nil {
		t.Fatal(err)
	}
	if wk.Lifecycle != catalog.Incomplete || len(wk.Explain()) != 1 ||
		!strings.HasPrefix(wk.Explain()[0], "reconciliation failed: ") || !strings.Contains(wk.Explain()[0], servicetest.ErrRefused.Error()) {
		t.Errorf("worker is %s: %v", wk.Lifecycle, wk.Explain())
	}
	if opened, live := w.Net.Count(); opened != 2 || live != 0 {
		t.Errorf("%d sockets opened, %d left; want 2 and 0", opened, live)
	}
	if got := w.Loads(nil, nil); len(got) != 0 {
		t.Errorf("loads are %v of a scope that never had a worker", got)
	}
	w.Net.Refuse(servicetest.Endpoint(1, 2), false)
	w.Put(servicetest.Record(1, 3))
	w.WantLoad("1/0: 0 0 0, 1/1: 0 0 0, 1/2: 0 0 0")
}

// TestFailedPatchKeepsOldStreams: a PATCH whose new rank cannot be bound leaves
// the old ranks as they were, with their blocks and reservations.
func TestFailedPatchKeepsOldStreams(t *testing.T) {
	w := servicetest.Start(t)
	// Rank 1 has events only: it is known, but carries no load.
	w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.KVEventsEndpoints = servicetest.Endpoints(1, 2) }))
	a := servicetest.Prompt(1, 8)
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(a, servicetest.BlockSize, nil))
	w.Settle()
	w.Book("r", a)

	w.Net.Refuse(servicetest.Endpoint(1, 3), true)
	wk, err := w.PatchWorker(1, catalog.Patch{Size: new(uint32(4)), KVEventsEndpoints: servicetest.Endpoints(1, 4)})
	if err != nil || wk.Lifecycle != catalog.Incomplete {
		t.Fatalf("worker is %+v, %v", wk, err)
	}
	if _, live := w.Net.Count(); live != 2 {
		t.Errorf("%d sockets are open, want the old 2", live)
	}
	w.WantLoad("1/0: 0 2 1") // no row for rank 1: it never became a candidate
	e.Publish(0, e.Stored(a[:4], servicetest.BlockSize, nil), e.Removed(a, servicetest.BlockSize, 1, "GPU"))

	w.Net.Refuse(servicetest.Endpoint(1, 3), false)
	w.Patch(1, catalog.Patch{})
	w.WantDevice(a, "1/0:1 1/1:0 1/2:0 1/3:0")
	w.WantLoad("1/0: 0 2 1, 1/1: 0 0 0, 1/2: 0 0 0, 1/3: 0 0 0")
}

// TestFailedMoveKeepsOldStreams: of a PATCH that moves the streams of two ranks, one of which cannot
// be opened, neither has an effect.
func TestFailedMoveKeepsOldStreams(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 2))
	const moved, refused = "tcp://moved:1", "tcp://refused:1"
	w.Net.Refuse(refused, true)
	wk, err := w.PatchWorker(1, catalog.Patch{KVEventsEndpoints: map[uint32]string{0: moved, 1: refused}})
	if err != nil || wk.Lifecycle != catalog.Incomplete {
		t.Fatalf("worker is %+v, %v", wk, err)
	}
	for endpoint, open := range map[string]bool{servicetest.Endpoint(1, 0): true, servicetest.Endpoint(1, 1): true, moved: false} {
		if got := w.Net.At(endpoint) != nil; got != open {
			t.Errorf("%s is followed: %t", endpoint, got)
		}
	}
}

// TestEventsOfOtherRanks (decision K12): a rank beside the range is followed and
// shown once it has blocks, but never chosen; an unknown one is dropped.
func TestEventsOfOtherRanks(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.KVEventsEndpoints = servicetest.Endpoints(1, 2) }))
	a := servicetest.Prompt(1, 8)
	e := w.Engine(1, 0)
	e.Publish(1, e.Stored(a, servicetest.BlockSize, nil)) // the batch's rank goes before the socket's
	e.Publish(7, e.Stored(a, servicetest.BlockSize, nil))
	w.WantDevice(a, "1/0:0 1/1:2")
	if n := servicetest.Sum(w.Metrics()["kv_events_total"], "unknown_rank"); n != 1 {
		t.Errorf("%v events of an unknown rank, want 1", n)
	}
	req := servicetest.Ask(a)
	req.Pinned = &catalog.Rank{Worker: 1, DP: 1}
	_, err := w.Select(context.Background(), req, true)
	servicetest.WantError(t, err, contract.Unavailable, "no endpoints available to route work")
	w.WantLoad("1/0: 0 0 0")
}

// TestPastScopes: a scope that has lost its workers is still listed, without loads.
func TestPastScopes(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	w.Remove(1)
	if loads := w.Loads(nil, nil); len(loads) != 1 || loads[0].Scope != servicetest.Scope || len(loads[0].Loads) > 0 {
		t.Errorf("loads %+v", loads)
	}
}

// TestShuttingDown: after Close registrations and selections are refused, lists
// and DELETE work.
func TestShuttingDown(t *testing.T) {
	const text = "selection service is shutting down"
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	w.Book("r", servicetest.Prompt(1, 8))
	w.Close()
	_, err := w.PutWorker(servicetest.Record(2, 1))
	servicetest.WantError(t, err, contract.Unavailable, text)
	_, err = w.PatchWorker(1, catalog.Patch{})
	servicetest.WantError(t, err, contract.Unavailable, text)
	_, err = w.Select(context.Background(), servicetest.Ask(servicetest.Prompt(1, 8)), true)
	servicetest.WantError(t, err, contract.Unavailable, text)
	_, err = w.Reserve(&selection.ReserveRequest{Scope: servicetest.Scope, ID: "s", Prompt: servicetest.Ask(nil).Prompt})
	servicetest.WantError(t, err, contract.Unavailable, text)
	if ready, n, all := w.Ready(); ready || n != 1 || len(all) != 1 {
		t.Errorf("Ready = %t, %d, %d workers", ready, n, len(all))
	}
	w.WantLoad("1/0: 8 2 1")
	if err := w.Free("r"); err != nil {
		t.Error(err)
	}
	w.Remove(1)
}

// TestWorkerErrors: kinds and texts of what a catalog refuses.
func TestWorkerErrors(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	_, err := w.PatchWorker(7, catalog.Patch{})
	servicetest.WantError(t, err, contract.NotFound, "worker 7 not found")
	_, err = w.DeleteWorker(7)
	servicetest.WantError(t, err, contract.NotFound, "worker 7 not found")
	_, err = w.PutWorker(servicetest.Record(1, 5000))
	servicetest.WantError(t, err, contract.BadRequest, "data_parallel_size 5000 exceeds the maximum 4096")
}
