package zmqsock

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pebbe/zmq4"
)

const (
	// MeshMaxMessage bounds one payload in bytes, both ways: a peer that sends a
	// larger one is disconnected.
	MeshMaxMessage = 8 << 20
	// meshHWM is how many messages libzmq keeps for one peer at either end. Ten
	// times its default: half a second of 20,000 events a second.
	meshHWM = 10_000
	// maxMeshMessage is a payload with its topic.
	maxMeshMessage = MeshMaxMessage + 256
	// meshReconnect is the longest wait between two attempts to reach a peer: of
	// the few seconds after which replicas agree again it may take one.
	meshReconnect = time.Second
	// meshConnect is the longest wait for one attempt. Where packets are dropped
	// the kernel's own attempts would be further and further apart, and the next
	// one half a minute after the network works again.
	meshConnect = time.Second
	// publishPatience is how long Publish waits for the loop.
	publishPatience = 100 * time.Millisecond
)

var (
	// ErrBusy is returned by Publish when the loop did not take the messages
	// before this one in time.
	ErrBusy = errors.New("publisher is busy")
	// ErrTooLarge is returned by Publish for a payload above MeshMaxMessage.
	ErrTooLarge = fmt.Errorf("message is larger than %d bytes", MeshMaxMessage)
	// ErrWildcard is returned by Follow for an endpoint that names no peer.
	ErrWildcard = errors.New("a wildcard host cannot be connected to")
)

// Mesh connects equal processes: each publishes on one bound PUB socket and
// follows the PUB sockets of the others. A message is two frames, topic and
// payload. What a peer does not take in time is lost to it, and so is what is
// published while it is not connected.
//
// Its methods are safe for concurrent use, but not from the functions that it
// calls, and wait until the hub runs.
type Mesh struct {
	hub      *Hub
	endpoint string
	topics   [][]byte
	names    []string // the same

	sent, unsent, malformed atomic.Uint64

	// mu guards what follows.
	mu       sync.Mutex
	open     bool
	id       uint64 // of the PUB socket
	loop     *loop  // its owner
	waiting  batch
	spare    batch               // the loop's while it sends
	room     chan struct{}       // closed when waiting is empty again; nil if no Publish waits
	followed map[uint64]struct{} // sockets of Follow
}

// NewMesh returns a mesh that publishes at endpoint, for example tcp://*:8092,
// and knows only these topics. Nothing is opened yet.
func NewMesh(hub *Hub, endpoint string, topics []string) *Mesh {
	m := &Mesh{hub: hub, endpoint: endpoint, names: slices.Clone(topics), followed: make(map[uint64]struct{})}
	for _, t := range topics {
		m.topics = append(m.topics, []byte(t))
	}
	return m
}

// Open binds the publisher. A mesh that was closed may be opened again.
func (m *Mesh) Open() error {
	id, err := m.hub.openBound(func(l *loop, id uint64) error { return l.publish(id, m.endpoint, meshHWM) })
	if err != nil {
		return fmt.Errorf("failed to bind replica publisher to `%s`: %w", m.endpoint, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open, m.id, m.loop = true, id, m.hub.loops.loop
	m.waiting.reset()
	return nil
}

// Publish sends a message to every peer that follows. Messages leave in the
// order of the calls; the payload is copied. It waits a moment for a busy loop,
// then the message is refused with ErrBusy.
func (m *Mesh) Publish(topic string, payload []byte) error {
	i := slices.Index(m.names, topic)
	switch {
	case i < 0:
		return fmt.Errorf("publish: the mesh has no topic %q", topic)
	case len(payload) > MeshMaxMessage:
		return fmt.Errorf("publish: %w", ErrTooLarge)
	}
	room, err := m.enqueue(m.topics[i], payload)
	if room == nil {
		return err
	}
	patience := time.NewTimer(publishPatience)
	defer patience.Stop()
	for room != nil {
		select {
		case <-room:
		case <-m.hub.ended:
			return fmt.Errorf("publish: %w", ErrStopped)
		case <-patience.C:
			return fmt.Errorf("publish: %w", ErrBusy)
		}
		room, err = m.enqueue(m.topics[i], payload)
	}
	return err
}

// enqueue leaves a message to the loop. If too many are waiting it returns a channel
// that is closed when there is room.
func (m *Mesh) enqueue(topic, payload []byte) (room <-chan struct{}, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.open {
		return nil, fmt.Errorf("publish: %w", ErrStopped)
	}
	if !m.waiting.add(topic, payload) {
		if m.room == nil {
			m.room = make(chan struct{})
		}
		return m.room, nil
	}
	if len(m.waiting.messages) > 1 { // the loop will flush them
		return nil, nil
	}
	l, id := m.loop, m.id
	if !l.post(func() { m.flush(l, id) }) {
		m.open = false
		return nil, fmt.Errorf("publish: %w", ErrStopped)
	}
	return nil, nil
}

// flush runs on the loop: it sends what waits.
func (m *Mesh) flush(l *loop, id uint64) {
	m.mu.Lock()
	sending := m.waiting
	m.waiting = m.spare
	if m.room != nil {
		close(m.room)
		m.room = nil
	}
	m.mu.Unlock()

	sent := l.send(id, &sending)
	m.sent.Add(uint64(sent))
	m.unsent.Add(uint64(len(sending.messages) - sent))
	sending.reset()
	m.mu.Lock()
	m.spare = sending
	m.mu.Unlock()
}

// Follow connects to the publisher of a peer and gives every message of the
// mesh's topics to deliver, which owns the payload then. status is called with true
// for every connection and with false when the last one is lost. Both run on a loop of the hub: they
// must not block, nor call the mesh or the hub. The connection is made, and
// made again, in the background; after stop nothing is called any more.
func (m *Mesh) Follow(peer string, deliver func(topic string, payload []byte), status func(up bool)) (stop func(), err error) {
	if Bound(peer) {
		return nil, fmt.Errorf("follow %s: %w", peer, ErrWildcard)
	}
	take := func(frames [][]byte, _ int64, _ time.Time) bool {
		if topic, ok := m.topicOf(frames); ok {
			deliver(topic, frames[1])
		} else {
			m.malformed.Add(1)
		}
		return true
	}
	id, err := m.hub.open(peer, m.subscriberOptions(), take, status)
	if err != nil {
		return nil, fmt.Errorf("follow: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.followed[id] = struct{}{}
	return func() { m.unfollow(id) }, nil
}

func (m *Mesh) subscriberOptions() socketOptions {
	return socketOptions{kind: "SUB", topics: m.names, maxMessage: maxMeshMessage, maxReconnect: meshReconnect, connectTimeout: meshConnect}
}

// topicOf reads the topic of a message. libzmq lets longer ones through.
func (m *Mesh) topicOf(frames [][]byte) (topic string, ok bool) {
	if len(frames) != 2 {
		return "", false
	}
	for _, name := range m.names {
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

// Close closes the publisher and stops following. What was published just now
// may be lost.
func (m *Mesh) Close() {
	m.mu.Lock()
	open, id := m.open, m.id
	followed := slices.Collect(maps.Keys(m.followed))
	m.open = false
	clear(m.followed)
	m.mu.Unlock()
	if open {
		m.hub.closeBound(id)
	}
	for _, id := range followed {
		m.hub.Close(id)
	}
}

// MeshStats are counts since the start.
type MeshStats struct {
	Sent      uint64 // messages handed to libzmq
	Unsent    uint64 // messages that Publish took but the socket was closed
	Malformed uint64 // messages received that are not two frames of a topic of the mesh
}

// Stats returns the counts so far.
func (m *Mesh) Stats() MeshStats {
	return MeshStats{Sent: m.sent.Load(), Unsent: m.unsent.Load(), Malformed: m.malformed.Load()}
}

// maxSubscription bounds what a subscriber may send: its topics.
const maxSubscription = 64 << 10

// publish opens a PUB socket that is bound to endpoint and keeps up to hwm
// messages for each subscriber; a subscriber that is further behind loses the
// new ones.
func (l *loop) publish(id uint64, endpoint string, hwm int) error {
	z, err := l.newSocket(zmq4.PUB)
	if err != nil {
		return err
	}
	err = errors.Join(z.SetSndhwm(hwm), z.SetMaxmsgsize(maxSubscription), z.Bind(endpoint))
	if err != nil {
		return errors.Join(err, z.Close())
	}
	s, err := l.add(z)
	if err != nil {
		return errors.Join(err, z.Close())
	}
	l.byID[id] = s
	return nil
}

// send sends the messages of b in order and returns how many were sent. A PUB
// socket never blocks, and fails only when it is closed.
func (l *loop) send(id uint64, b *batch) (sent int) {
	s := l.byID[id]
	if s == nil {
		return 0
	}
	from := 0
	for _, m := range b.messages {
		payload := b.bytes[from:m.end]
		from = m.end
		_, err := s.zmq.SendBytes(m.topic, zmq4.SNDMORE|zmq4.DONTWAIT)
		if err == nil {
			_, err = s.zmq.SendBytes(payload, zmq4.DONTWAIT)
		}
		if err == nil {
			sent++
		}
	}
	return sent
}

// batch is messages that wait for their loop, without an allocation for each.
type batch struct {
	messages []outgoingMessage
	bytes    []byte // the payloads, one after the other
}

type outgoingMessage struct {
	topic []byte
	end   int // of its payload in bytes
}

const (
	// batchMessages and batchBytes bound a batch. One of 1,024 small messages
	// keeps the loop from its other sockets for about a millisecond.
	batchMessages = 1024
	batchBytes    = 1 << 20
)

// add appends a copy of a message, unless the batch is full. One message fits
// into an empty batch, however large.
func (b *batch) add(topic, payload []byte) bool {
	if n := len(b.messages); n > 0 && (n == batchMessages || len(b.bytes)+len(payload) > batchBytes) {
		return false
	}
	b.bytes = append(b.bytes, payload...)
	b.messages = append(b.messages, outgoingMessage{topic, len(b.bytes)})
	return true
}

// reset empties the batch and keeps its memory, unless that is unusually much.
func (b *batch) reset() {
	b.messages = b.messages[:0]
	if b.bytes = b.bytes[:0]; cap(b.bytes) > 2*batchBytes {
		b.bytes = nil
	}
}
