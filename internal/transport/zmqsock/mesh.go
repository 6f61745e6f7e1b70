package zmqsock

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/pkg/memory"
)

const (
	// MeshMaxMessage bounds one payload in bytes, in both directions. A peer that sends a
	// larger one is disconnected.
	MeshMaxMessage = 8 << 20
	// maxMeshMessage bounds a payload with its topic, in bytes.
	maxMeshMessage = MeshMaxMessage + 256
	// meshReconnect is the longest wait between two attempts to reach a peer. Replicas should
	// agree again within a few seconds, of which this may take one.
	meshReconnect = time.Second
)

var (
	// ErrTooLarge is returned by Publish for a payload above MeshMaxMessage.
	ErrTooLarge = fmt.Errorf("message is larger than %d bytes", MeshMaxMessage)
	// ErrWildcard is returned by Follow for an endpoint that names no peer.
	ErrWildcard = errors.New("a wildcard host cannot be connected to")
)

// Mesh connects equal processes: each publishes on one bound PUB socket and follows the PUB
// sockets of the others. A message is two frames, topic and payload. A peer misses messages
// that it does not take in time, and those published while it is not connected.
//
// Its methods are safe for concurrent use, but must not be called from its callbacks. They
// block until the hub runs.
type Mesh struct {
	hub      *Hub
	endpoint string
	topics   [][]byte
	kind     socketKind // of the sockets to other replicas

	malformed atomic.Uint64

	// mu guards the fields below.
	mu        sync.Mutex
	publisher *publisher          // nil: closed
	followed  map[uint64]struct{} // sockets of Follow
	closed    MeshStats           // totals of closed publishers
}

// NewMesh returns a mesh that publishes at endpoint, for example tcp://*:8092,
// and knows only these topics. Nothing is opened yet.
func NewMesh(hub *Hub, endpoint string, topics []string) *Mesh {
	m := &Mesh{hub: hub, endpoint: endpoint, followed: make(map[uint64]struct{}), kind: socketKind{
		name: "SUB", topics: slices.Clone(topics),
		account: hub.opt.Replication, maxMessage: maxMeshMessage, maxReconnect: meshReconnect,
	}}
	for _, t := range topics {
		m.topics = append(m.topics, []byte(t))
	}
	return m
}

// Open binds the publisher. A mesh that was closed may be opened again.
func (m *Mesh) Open() error {
	p, err := m.hub.openPublisher(m.endpoint, m.topics)
	if err != nil {
		return fmt.Errorf("failed to bind replica publisher to `%s`: %w", m.endpoint, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.publisher = p
	return nil
}

// Publish sends a message to every following peer, in the order of the calls. It copies the
// payload and does not block: a peer whose queue is full misses the message.
func (m *Mesh) Publish(topic string, payload []byte) error {
	return m.publish(payload, func(p *publisher) { p.publish(m.topic(topic), payload) }, topic)
}

// PublishEither is Publish of a message that has two forms. A peer that has subscribed to topic
// gets payload. A peer that has subscribed to the topic other only, or to both by an empty prefix,
// gets what form returns, or nothing if that is nil. form is called only if there is such a peer.
func (m *Mesh) PublishEither(topic string, payload []byte, other string, form func() []byte) error {
	return m.publish(payload, func(p *publisher) {
		p.publishEither(m.topic(topic), payload, m.topic(other), form)
	}, topic, other)
}

// publish checks what is to be published, and does it.
func (m *Mesh) publish(payload []byte, do func(*publisher), topics ...string) error {
	for _, topic := range topics {
		if m.topic(topic) < 0 {
			return fmt.Errorf("publish: the mesh has no topic %q", topic)
		}
	}
	if len(payload) > MeshMaxMessage {
		return fmt.Errorf("publish: %w", ErrTooLarge)
	}
	// Taking the lock fixes the order of messages.
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.publisher == nil || m.publisher.acceptor.ctx.Err() != nil {
		return fmt.Errorf("publish: %w", ErrStopped)
	}
	do(m.publisher)
	return nil
}

// topic returns the index of a topic, or a negative number.
func (m *Mesh) topic(name string) int { return slices.Index(m.kind.topics, name) }

// Follow connects to the publisher of a peer and calls deliver with every message of the mesh's
// topics; deliver then owns the payload. status is called with true for every connection and
// with false when the last one is lost. Both run on goroutines of the hub: they must not block,
// nor call the mesh or the hub. The connection is made, and remade, in the background. After
// stop neither is called.
func (m *Mesh) Follow(peer string, deliver func(topic string, payload []byte), status func(up bool)) (stop func(), err error) {
	if Bound(peer) {
		return nil, fmt.Errorf("follow %s: %w", peer, ErrWildcard)
	}
	take := func(frames [][]byte, buffer *memory.Buffer, _ time.Time) bool {
		buffer.Keep()
		buffer.Release(m.hub.opt.Replication) // deliver accounts for it from now on
		if topic, ok := m.topicOf(frames); ok {
			deliver(topic, frames[1])
		} else {
			m.malformed.Add(1)
		}
		return true
	}
	id, err := m.hub.open(&m.kind, destination{endpoint: peer}, callbacks{message: take, status: status})
	if err != nil {
		return nil, fmt.Errorf("follow: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.followed[id] = struct{}{}
	return func() { m.unfollow(id) }, nil
}

// topicOf returns the topic of a message. Subscriptions match prefixes, so libzmq lets
// longer topics through.
func (m *Mesh) topicOf(frames [][]byte) (topic string, ok bool) {
	if len(frames) != 2 {
		return "", false
	}
	for _, name := range m.kind.topics {
		if string(frames[0]) == name {
			return name, true
		}
	}
	return "", false
}

func (m *Mesh) unfollow(id uint64) {
	m.hub.Close(id)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.followed, id)
}

// Close closes the publisher and stops following. Messages published just before may be lost.
func (m *Mesh) Close() {
	m.mu.Lock()
	publisher, followed := m.publisher, slices.Collect(maps.Keys(m.followed))
	m.publisher = nil
	clear(m.followed)
	if publisher != nil {
		m.closed.add(publisher)
	}
	m.mu.Unlock()
	if publisher != nil {
		publisher.close()
	}
	for _, id := range followed {
		m.hub.Close(id)
	}
}

// MeshStats are counts since the start.
type MeshStats struct {
	Sent      uint64 // messages published
	Dropped   uint64 // copies that peers missed because they were too far behind
	Malformed uint64 // messages received that are not two frames of a topic of the mesh
}

func (s *MeshStats) add(p *publisher) {
	s.Sent += p.sent.Load()
	s.Dropped += p.dropped.Load()
}

// Stats returns the counts so far.
func (m *Mesh) Stats() MeshStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.closed
	if m.publisher != nil {
		s.add(m.publisher)
	}
	s.Malformed = m.malformed.Load()
	return s
}
