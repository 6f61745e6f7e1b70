package service_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/pkg/replicasync"
)

// mesh connects the replicas of a test: "tcp://a:1" publishes, "http://a" has
// the snapshot.
type mesh struct {
	mu        sync.Mutex // guards what follows
	followers map[string]map[int]func(topic string, payload []byte)
	next      int
	replicas  map[string]*world // by host
}

func newMesh() *mesh {
	return &mesh{followers: make(map[string]map[int]func(string, []byte)), replicas: make(map[string]*world)}
}

// start starts a replica that does not follow anybody yet.
func (m *mesh) start(t *testing.T, name string) *world { return m.startWith(t, name, eventsOff) }

func (m *mesh) startWith(t *testing.T, name string, options ...func(*service.Config)) *world {
	t.Helper()
	w := start(t, append(options, func(c *service.Config) {
		c.Replication = &service.Replication{
			URL: "http://" + name, Advertised: endpointOf(name), Transport: node{m, endpointOf(name)}, Fetch: node{mesh: m},
		}
	})...)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.replicas[name] = w
	return w
}

// pair starts two replicas that follow each other and have worker 1. options are
// the second one's.
func pair(t *testing.T, options ...func(*service.Config)) (a, b *world) {
	t.Helper()
	m := newMesh()
	a, b = m.start(t, "a"), m.startWith(t, "b", append(options, eventsOff)...)
	follow(t, a, "a", b, "b")
	a.put(record(1, 1))
	b.put(record(1, 1))
	return a, b
}

// announced waits until all replicas have announced themselves twice, so that what
// one knew before the others know.
func announced() {
	time.Sleep(2500 * time.Millisecond)
	synctest.Wait()
}

func endpointOf(name string) string { return "tcp://" + name + ":1" }

// node is the transport and the fetcher of one replica.
type node struct {
	*mesh
	endpoint string
}

func (n node) Publish(topic string, payload []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, deliver := range n.followers[n.endpoint] {
		deliver(topic, bytes.Clone(payload))
	}
	return nil
}

var errUnreachable = errors.New("a wildcard host cannot be connected to")

func (n node) Follow(peer string, deliver func(string, []byte), status func(bool)) (func(), error) {
	if peer == "tcp://*:1" {
		return nil, errUnreachable
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.followers[peer] == nil {
		n.followers[peer] = make(map[int]func(string, []byte))
	}
	n.next++
	id := n.next
	n.followers[peer][id] = deliver
	status(true)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.followers[peer], id)
	}, nil
}

func (n node) Get(ctx context.Context, address string) (io.ReadCloser, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	w := n.replicas[u.Host]
	n.mu.Unlock()
	if w == nil || u.Path != replicasync.SnapshotPath {
		return nil, fmt.Errorf("nothing is at %s", address)
	}
	limit, err := strconv.Atoi(u.Query().Get("limit"))
	if err != nil {
		return nil, err
	}
	var page bytes.Buffer
	err = w.WriteSnapshot(ctx, &page, u.Query().Get("after"), limit)
	return io.NopCloser(&page), err
}

// follow makes both sides follow each other.
func follow(t *testing.T, a *world, nameOfA string, b *world, nameOfB string) {
	t.Helper()
	for _, peer := range []struct {
		w    *world
		name string
	}{{a, nameOfB}, {b, nameOfA}} {
		if added, err := peer.w.RegisterPeer(endpointOf(peer.name)); err != nil || !added {
			t.Fatalf("register %s: %t, %v", peer.name, added, err)
		}
	}
}

// TestReplicas: what one replica books, completes and frees through either
// contract the other carries; ranks that are registered late are made up for;
// and a replica that starts late carries everything.
func TestReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settle := func() {
			announced()
		}
		m := newMesh()
		a, b := m.start(t, "a"), m.start(t, "b")
		follow(t, a, "a", b, "b")
		a.put(record(1, 1))
		a.book("early", prompt(1, 8)) // b does not know the rank yet
		settle()
		b.put(record(1, 1))
		settle()
		b.wantLoad("1/0: 8 2 1")

		b.book("r", prompt(100, 8))
		if err := a.SlotsAdd(adding("s", 1, 0, 5, 1, 2, 3)); err != nil {
			t.Fatal(err)
		}
		settle()
		a.wantLoad("1/0: 21 7 3")
		b.wantLoad("1/0: 21 7 3")

		if err := b.SlotsPrefillComplete(scope, "s"); err != nil {
			t.Fatal(err)
		}
		if err := a.Free("r"); err != nil {
			t.Fatal(err)
		}
		settle()
		a.wantLoad("1/0: 8 5 2")
		b.wantLoad("1/0: 8 5 2")

		c := m.start(t, "c")
		c.put(record(1, 1))
		follow(t, c, "c", a, "a")
		settle()
		c.wantLoad("1/0: 8 5 2")
		if err := c.Free("early"); err != nil {
			t.Fatal(err)
		}
		settle()
		a.wantLoad("1/0: 0 3 1")

		samples := c.Metrics()
		for _, tc := range []struct {
			name      string
			got, want float64
		}{
			{"peers connected", sum(samples["replica_peers"], "connected"), 1},
			{"peers not connected", sum(samples["replica_peers"], "disconnected"), 0},
			{"ends sent", sum(samples["replica_messages_sent_total"], "freed"), 1},
			{"bookings received", sum(samples["replica_messages_received_total"], "booked"), 0},
			{"adopted", sum(samples["replica_snapshot_changes_total"], "adopted"), 2},
			{"lost", sum(samples["replica_messages_lost_total"]), 0},
			{"failed snapshots", sum(samples["replica_snapshots_total"], "failed"), 0},
		} {
			if tc.got != tc.want {
				t.Errorf("%s: %v, want %v", tc.name, tc.got, tc.want)
			}
		}
		if n := sum(samples["replica_snapshots_total"], "fetched"); n < 1 {
			t.Errorf("%v snapshots were fetched", n)
		}
		if n := sum(b.Metrics()["replica_messages_dropped_total"], "unknown_scope"); n != 1 {
			t.Errorf("%v messages of an unknown scope, want 1", n)
		}
	})
}

// TestReadyWaitsForLoads: with peers to recover from, a replica is not ready
// before it has the bookings of those whom it follows; a worker that comes later
// never makes it unready.
func TestReadyWaitsForLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh()
		a := m.start(t, "a")
		a.put(record(1, 1))
		a.book("r", prompt(1, 8))
		a.put(record(2, 1))
		time.Sleep(50 * time.Millisecond)

		b := m.startWith(t, "b", from(new(fleet), whole([]byte("{}"))))
		want := func(ready bool, loads service.LoadsStage) {
			t.Helper()
			got, _, _ := b.Ready()
			if st, ok := b.Recovery(); got != ready || !ok || st.Loads != loads {
				t.Errorf("ready %t, loads %v; want %t, %v", got, st.Loads, ready, loads)
			}
		}
		follow(t, b, "b", a, "a")
		b.wantStage(service.RecoveryApplied, false)
		want(false, service.LoadsAwaited)
		time.Sleep(2 * time.Second) // the bookings have come, and found no rank
		want(false, service.LoadsAwaited)
		b.put(record(1, 1))
		want(false, service.LoadsAwaited)
		time.Sleep(2 * time.Second)
		want(true, service.LoadsApplied)
		b.wantLoad("1/0: 8 2 1")
		b.put(record(2, 1))
		want(true, service.LoadsApplied)
	})
}

// TestReadyDeadlineOfLoads: a peer whose bookings cannot be read is waited for
// until the deadline, and the status says so.
func TestReadyDeadlineOfLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh()
		a := m.start(t, "a")
		b := m.startWith(t, "b", from(new(fleet), whole([]byte("{}"))))
		b.put(record(1, 1))
		follow(t, b, "b", a, "a")
		m.mu.Lock()
		delete(m.replicas, "a") // announces itself, and answers nothing
		m.mu.Unlock()
		check := func(ready bool, loads service.LoadsStage) {
			t.Helper()
			got, _, _ := b.Ready()
			if st, _ := b.Recovery(); got != ready || st.Loads != loads {
				t.Errorf("ready %t, loads %v; want %t, %v", got, st.Loads, ready, loads)
			}
		}
		time.Sleep(29 * time.Second)
		check(false, service.LoadsAwaited)
		time.Sleep(time.Second)
		check(true, service.LoadsDeadline)
		m.mu.Lock()
		m.replicas["a"] = a
		m.mu.Unlock()
		time.Sleep(5 * time.Second)
		check(true, service.LoadsApplied)
	})
}

// TestPeerErrors: kinds and texts of what is refused as a peer; the rest is
// listed in order.
func TestPeerErrors(t *testing.T) {
	w := newMesh().start(t, "a")
	for _, register := range []func(string) (bool, error){w.RegisterPeer, w.SlotsRegisterPeer} {
		_, err := register("nope")
		wantError(t, err, contract.BadRequest, "invalid ZMQ endpoint `nope`: missing scheme")
		_, err = register("tcp://*:1")
		wantError(t, err, contract.BadRequest, errUnreachable.Error())
		_, err = register("tcp://c:1")
		if err != nil {
			t.Error(err)
		}
	}
	_, err := w.SlotsRegisterPeer(endpointOf("a"))
	wantError(t, err, contract.BadRequest, "peer endpoint matches this replica's advertised endpoint")
	if added, err := w.RegisterPeer(endpointOf("a")); !added || err != nil { // harmless, and the peer allows it
		t.Errorf("oneself by the selection contract: %t, %v", added, err)
	}
	if added, err := w.RegisterPeer("tcp://c:1"); added || err != nil {
		t.Errorf("a known peer: %t, %v", added, err)
	}
	if got, want := w.Peers(), []string{"tcp://a:1", "tcp://c:1"}; !slices.Equal(got, want) {
		t.Errorf("peers are %v, want %v", got, want)
	}
	wantError(t, w.DeregisterPeer("nope"), contract.BadRequest, "invalid ZMQ endpoint `nope`: missing scheme")
	wantError(t, w.DeregisterPeer("tcp://d:1"), contract.NotFound, "peer not found")
	if err := w.DeregisterPeer("tcp://c:1"); err != nil {
		t.Error(err)
	}
	w.Close()
	w.stop()
	_, err = w.RegisterPeer("tcp://e:1")
	wantError(t, err, contract.Unavailable, "replica peer manager is unavailable")
	wantError(t, w.DeregisterPeer("tcp://a:1"), contract.Unavailable, "replica peer manager is unavailable")
}

// TestSnapshotErrors: what is refused before a page begins.
func TestSnapshotErrors(t *testing.T) {
	w := newMesh().start(t, "a")
	err := w.WriteSnapshot(t.Context(), io.Discard, "nonsense", 0)
	var e *contract.Error
	if !errors.As(err, &e) || e.Kind != contract.BadRequest {
		t.Errorf("a bad cursor: %v", err)
	}
	alone := start(t, eventsOff)
	err = alone.WriteSnapshot(t.Context(), io.Discard, "", 0)
	wantError(t, err, contract.Conflict, "replica sync is disabled")
	_, err = alone.SlotsRegisterPeer("tcp://h:1")
	wantError(t, err, contract.Conflict, "replica sync is disabled")
}
