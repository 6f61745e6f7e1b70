package servicetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/pkg/replicasync"
)

// Mesh connects the replicas of a test: replica "a" publishes at "tcp://a:1" and
// serves its snapshot at "http://a".
type Mesh struct {
	// Delay is how long a message is on its way.
	Delay time.Duration
	// Loses, if not nil, reports whether a message is lost. It is called for one message at a time.
	Loses func() bool

	mu        sync.Mutex // guards the fields below
	followers map[string]map[int]func(topic string, payload []byte)
	next      int
	replicas  map[string]*World // by host
	silent    map[string]bool   // hosts that serve no snapshot
	crashed   map[string]bool   // endpoints of replicas of which nothing is heard any more
}

// NewMesh returns a mesh without replicas.
func NewMesh() *Mesh {
	return &Mesh{
		followers: make(map[string]map[int]func(string, []byte)),
		replicas:  make(map[string]*World),
		silent:    make(map[string]bool),
		crashed:   make(map[string]bool),
	}
}

// Start runs a replica, which follows no other one yet, until the end of the test.
func (m *Mesh) Start(t testing.TB, name string, change ...func(*node.Config)) *World {
	t.Helper()
	endpoint := PeerEndpoint(name)
	w := Start(t, append(change, func(c *node.Config) {
		c.Replication = &node.Replication{
			URL: "http://" + name, Advertised: endpoint, Transport: endpointOf{m, endpoint}, Fetch: endpointOf{Mesh: m},
		}
	})...)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.replicas[name] = w
	return w
}

// Connect makes two replicas follow each other.
func (m *Mesh) Connect(t testing.TB, a, b string) {
	t.Helper()
	m.mu.Lock()
	first, second := m.replicas[a], m.replicas[b]
	m.mu.Unlock()
	for _, peer := range []struct {
		w    *World
		name string
	}{{first, b}, {second, a}} {
		if added, err := peer.w.RegisterPeer(PeerEndpoint(peer.name)); err != nil || !added {
			t.Fatalf("register %s: %t, %v", peer.name, added, err)
		}
	}
}

// ServeSnapshot sets whether a replica serves its snapshot; it does at first.
func (m *Mesh) ServeSnapshot(name string, on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.silent[name] = !on
}

// Crash makes nothing be heard of a replica any more: no message of it arrives, and it serves no snapshot.
func (m *Mesh) Crash(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.silent[name], m.crashed[PeerEndpoint(name)] = true, true
}

// Pair starts two replicas without KV events that follow each other and have
// worker 1. change is the second one's.
func Pair(t testing.TB, change ...func(*node.Config)) (a, b *World) {
	t.Helper()
	m := NewMesh()
	a, b = m.Start(t, "a", EventsOff), m.Start(t, "b", append(change, EventsOff)...)
	m.Connect(t, "a", "b")
	a.Put(Record(1, 1))
	b.Put(Record(1, 1))
	return a, b
}

// Announced waits until all replicas have announced themselves twice, so that what
// one knew before the others know; only in a synctest bubble.
func Announced() {
	time.Sleep(2500 * time.Millisecond)
	synctest.Wait()
}

// PeerEndpoint is where a replica of a Mesh publishes.
func PeerEndpoint(name string) string { return "tcp://" + name + ":1" }

// ErrWildcard is a Mesh's error for the peer "tcp://*:1".
var ErrWildcard = errors.New("a wildcard host cannot be connected to")

// node is the transport and the fetcher of one replica.
type endpointOf struct {
	*Mesh
	endpoint string
}

// Publish implements replicasync.Transport.
func (e endpointOf) Publish(topic string, payload []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, deliver := range e.followers[e.endpoint] {
		if e.crashed[e.endpoint] || e.Loses != nil && e.Loses() {
			continue
		}
		message := bytes.Clone(payload)
		if e.Delay > 0 {
			time.AfterFunc(e.Delay, func() { deliver(topic, message) })
			continue
		}
		deliver(topic, message)
	}
	return nil
}

// PublishEither implements replicasync.Transport: all followers know all topics.
func (e endpointOf) PublishEither(topic string, payload []byte, _ string, _ func() []byte) error {
	return e.Publish(topic, payload)
}

// Follow implements replicasync.Transport.
func (e endpointOf) Follow(peer string, deliver func(string, []byte), status func(bool)) (func(), error) {
	if peer == "tcp://*:1" {
		return nil, ErrWildcard
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.followers[peer] == nil {
		e.followers[peer] = make(map[int]func(string, []byte))
	}
	e.next++
	id := e.next
	e.followers[peer][id] = deliver
	status(true)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.followers[peer], id)
	}, nil
}

// GetAnnounced returns a page of the snapshot at an address.
func (e endpointOf) GetAnnounced(ctx context.Context, address, _ string) (io.ReadCloser, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	w, silent := e.replicas[u.Host], e.silent[u.Host]
	e.mu.Unlock()
	if w == nil || silent || u.Path != replicasync.SnapshotPath {
		return nil, fmt.Errorf("nothing is at %s", address)
	}
	var page bytes.Buffer
	err = w.WriteSnapshot(ctx, &page, replicasync.PageOf(u.Query()))
	return io.NopCloser(&page), err
}
