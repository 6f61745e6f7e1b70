package node_test

import (
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestReplicas: what one replica books, completes and frees through either
// contract the other carries; ranks that are registered late are made up for;
// and a replica that starts late carries everything.
func TestReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settle := func() {
			servicetest.Announced()
		}
		m := servicetest.NewMesh()
		a, b := m.Start(t, "a", servicetest.EventsOff), m.Start(t, "b", servicetest.EventsOff)
		m.Connect(t, "a", "b")
		a.Put(servicetest.Record(1, 1))
		a.Book("early", servicetest.Prompt(1, 8)) // b does not know the rank yet
		settle()
		b.Put(servicetest.Record(1, 1))
		settle()
		b.WantLoad("1/0: 8 2 1")

		b.Book("r", servicetest.Prompt(100, 8))
		if err := a.SlotsAdd(servicetest.SlotsReservation("s", 1, 0, 5, 1, 2, 3)); err != nil {
			t.Fatal(err)
		}
		settle()
		a.WantLoad("1/0: 21 7 3")
		b.WantLoad("1/0: 21 7 3")

		if err := b.SlotsPrefillComplete(servicetest.Scope, "s"); err != nil {
			t.Fatal(err)
		}
		if err := a.Free("r"); err != nil {
			t.Fatal(err)
		}
		settle()
		a.WantLoad("1/0: 8 5 2")
		b.WantLoad("1/0: 8 5 2")

		c := m.Start(t, "c", servicetest.EventsOff)
		c.Put(servicetest.Record(1, 1))
		m.Connect(t, "c", "a")
		settle()
		c.WantLoad("1/0: 8 5 2")
		if err := c.Free("early"); err != nil {
			t.Fatal(err)
		}
		settle()
		a.WantLoad("1/0: 0 3 1")

		samples := c.Metrics()
		for _, tc := range []struct {
			name      string
			got, want float64
		}{
			{"peers connected", servicetest.Sum(samples["replica_peers"], "connected"), 1},
			{"peers not connected", servicetest.Sum(samples["replica_peers"], "disconnected"), 0},
			{"ends sent", servicetest.Sum(samples["replica_messages_sent_total"], "freed"), 1},
			{"reservations received", servicetest.Sum(samples["replica_messages_received_total"], "booked"), 0},
			{"adopted", servicetest.Sum(samples["replica_snapshot_changes_total"], "adopted"), 2},
			{"lost", servicetest.Sum(samples["replica_messages_lost_total"]), 0},
			{"failed snapshots", servicetest.Sum(samples["replica_snapshots_total"], "failed"), 0},
		} {
			if tc.got != tc.want {
				t.Errorf("%s: %v, want %v", tc.name, tc.got, tc.want)
			}
		}
		if n := servicetest.Sum(samples["replica_snapshots_total"], "fetched"); n < 1 {
			t.Errorf("%v snapshots were fetched", n)
		}
		if n := servicetest.Sum(b.Metrics()["replica_messages_dropped_total"], "unknown_scope"); n != 1 {
			t.Errorf("%v messages of an unknown scope, want 1", n)
		}
	})
}

// TestReadyWaitsForLoads: with peers to recover from, a replica is not ready
// before it has the reservations of the peers that it follows; a worker that comes
// later never makes it unready.
func TestReadyWaitsForLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		a := m.Start(t, "a", servicetest.EventsOff)
		a.Put(servicetest.Record(1, 1))
		a.Book("r", servicetest.Prompt(1, 8))
		a.Put(servicetest.Record(2, 1))
		time.Sleep(50 * time.Millisecond)

		b := m.Start(t, "b", from(new(fleetDumps), whole([]byte("{}"))))
		want := func(ready bool, loads node.LoadsStage) {
			t.Helper()
			got, _, _ := b.Ready()
			if st, ok := b.Recovery(); got != ready || !ok || st.Loads != loads {
				t.Errorf("ready %t, loads %v; want %t, %v", got, st.Loads, ready, loads)
			}
		}
		m.Connect(t, "b", "a")
		wantStage(b, node.RecoveryApplied, false)
		want(false, node.LoadsAwaited)
		time.Sleep(2 * time.Second) // the reservations have come, and found no rank
		want(false, node.LoadsAwaited)
		b.Put(servicetest.Record(1, 1))
		want(false, node.LoadsAwaited)
		time.Sleep(2 * time.Second)
		want(true, node.LoadsApplied)
		b.WantLoad("1/0: 8 2 1")
		b.Put(servicetest.Record(2, 1))
		want(true, node.LoadsApplied)
	})
}

// TestReadyDeadlineOfLoads: a peer whose reservations cannot be read is waited for
// until the deadline, and the status says so.
func TestReadyDeadlineOfLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		m.Start(t, "a", servicetest.EventsOff)
		b := m.Start(t, "b", from(new(fleetDumps), whole([]byte("{}"))))
		b.Put(servicetest.Record(1, 1))
		m.Connect(t, "b", "a")
		m.ServeSnapshot("a", false) // announces itself, and answers nothing
		check := func(ready bool, loads node.LoadsStage) {
			t.Helper()
			got, _, _ := b.Ready()
			if st, _ := b.Recovery(); got != ready || st.Loads != loads {
				t.Errorf("ready %t, loads %v; want %t, %v", got, st.Loads, ready, loads)
			}
		}
		time.Sleep(29 * time.Second)
		check(false, node.LoadsAwaited)
		time.Sleep(time.Second)
		check(true, node.LoadsDeadline)
		m.ServeSnapshot("a", true)
		time.Sleep(5 * time.Second)
		check(true, node.LoadsApplied)
	})
}

// TestPeerErrors: kinds and texts of what is refused as a peer; the rest is
// listed in order.
func TestPeerErrors(t *testing.T) {
	w := servicetest.NewMesh().Start(t, "a", servicetest.EventsOff)
	for _, register := range []func(string) (bool, error){w.RegisterPeer, w.SlotsRegisterPeer} {
		_, err := register("nope")
		servicetest.WantError(t, err, contract.BadRequest, "invalid ZMQ endpoint `nope`: missing scheme")
		_, err = register("tcp://*:1")
		servicetest.WantError(t, err, contract.BadRequest, servicetest.ErrWildcard.Error())
		_, err = register("tcp://c:1")
		if err != nil {
			t.Error(err)
		}
	}
	_, err := w.SlotsRegisterPeer(servicetest.PeerEndpoint("a"))
	servicetest.WantError(t, err, contract.BadRequest, "peer endpoint matches this replica's advertised endpoint")
	if added, err := w.RegisterPeer(servicetest.PeerEndpoint("a")); !added || err != nil { // harmless, and the peer allows it
		t.Errorf("oneself by the selection contract: %t, %v", added, err)
	}
	if added, err := w.RegisterPeer("tcp://c:1"); added || err != nil {
		t.Errorf("a known peer: %t, %v", added, err)
	}
	if got, want := w.Peers(), []string{"tcp://a:1", "tcp://c:1"}; !slices.Equal(got, want) {
		t.Errorf("peers are %v, want %v", got, want)
	}
	servicetest.WantError(t, w.DeregisterPeer("nope"), contract.BadRequest, "invalid ZMQ endpoint `nope`: missing scheme")
	servicetest.WantError(t, w.DeregisterPeer("tcp://d:1"), contract.NotFound, "peer not found")
	if err := w.DeregisterPeer("tcp://c:1"); err != nil {
		t.Error(err)
	}
	w.Close()
	w.Stop()
	_, err = w.RegisterPeer("tcp://e:1")
	servicetest.WantError(t, err, contract.Unavailable, "replica peer manager is unavailable")
	servicetest.WantError(t, w.DeregisterPeer("tcp://a:1"), contract.Unavailable, "replica peer manager is unavailable")
}

// TestSnapshotErrors: what is refused before a page begins.
func TestSnapshotErrors(t *testing.T) {
	w := servicetest.NewMesh().Start(t, "a", servicetest.EventsOff)
	err := w.WriteSnapshot(t.Context(), io.Discard, replicasync.PageRequest{After: "nonsense"})
	var e *contract.Error
	if !errors.As(err, &e) || e.Kind != contract.BadRequest {
		t.Errorf("a bad cursor: %v", err)
	}
	alone := servicetest.Start(t, servicetest.EventsOff)
	err = alone.WriteSnapshot(t.Context(), io.Discard, replicasync.PageRequest{})
	servicetest.WantError(t, err, contract.Conflict, "replica sync is disabled")
	_, err = alone.SlotsRegisterPeer("tcp://h:1")
	servicetest.WantError(t, err, contract.Conflict, "replica sync is disabled")
}

// TestPeersAnswerAsDisabled: without replica synchronisation.
func TestPeersAnswerAsDisabled(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	if p := w.Peers(); p == nil || len(p) != 0 {
		t.Errorf("peers are %v", p)
	}
	_, err := w.RegisterPeer("tcp://h:1")
	servicetest.WantError(t, err, contract.Conflict, "replica sync is disabled")
	servicetest.WantError(t, w.DeregisterPeer("tcp://h:1"), contract.Conflict, "replica sync is disabled")
}
