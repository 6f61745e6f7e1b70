package zmqsock

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/internal/transport/zmtp"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

const (
	// queueMessages and queueBytes bound the queue of one subscriber; it misses further
	// messages. The messages are half a second of 20,000 events a second; the bytes include the
	// overhead of messages. An empty queue takes one message of any size.
	queueMessages = 10_000
	queueBytes    = 16 << 20
	// allQueues bounds the bytes in all queues together; shared bytes count once.
	allQueues = 64 << 20
	// queuesShare divides the account: all queues may hold half of it, and the rest is for
	// messages from other replicas.
	queuesShare = 2
	// sendBytes and sendMessages bound what a subscriber's goroutine sends at once.
	sendBytes    = 64 << 10
	sendMessages = 256
	// maxSubscription bounds a subscriber's message in bytes; it has a topic only.
	maxSubscription = 4 << 10
	// maxSubscriptions bounds the number of such messages on a connection. A subscriber
	// sends one per topic.
	maxSubscriptions = 4096
)

// publisher is a bound PUB socket with a fixed set of topics. Every subscriber has a queue of
// its own; all queues share the messages. If the account is full, the subscriber that is
// furthest behind is disconnected.
type publisher struct {
	hub      *Hub
	topics   [][]byte
	account  *memory.Account
	limit    int64 // bound of queued, in bytes
	acceptor *acceptor

	sent, dropped atomic.Uint64

	// mu guards the fields below.
	mu          sync.Mutex
	subscribers map[*subscriber]struct{}
	queued      int64         // bytes in all queues; shared bytes count once
	receivers   []*subscriber // scratch of publish
}

// openPublisher binds a publisher to a TCP endpoint.
func (h *Hub) openPublisher(endpoint string, topics [][]byte) (*publisher, error) {
	select {
	case <-h.ready:
	case <-h.ended:
	}
	select {
	case <-h.ended: // as well as ready
		return nil, ErrStopped
	default:
	}
	e, err := catalog.ParseEndpoint(endpoint)
	if err == nil && e.Scheme != "tcp" {
		err = &catalog.EndpointError{Endpoint: endpoint, Why: "replicas publish on TCP only"}
	}
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(bindHost(e.Host), strconv.Itoa(int(e.Port))))
	if err != nil {
		return nil, fmt.Errorf("bind: %w", err)
	}
	p := &publisher{
		hub: h, topics: topics, account: h.opt.Replication, limit: queueLimit(h.opt.Replication),
		subscribers: make(map[*subscriber]struct{}),
	}
	p.acceptor = newAcceptor(h, listener, h.opt.Subscribers, newestSubscriber, p.serve)
	if err := h.start(p.acceptor.run); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// bindHost returns the address to listen at. As in libzmq, host may be the name of an
// interface, or * for all of them.
func bindHost(host string) string {
	if host == "*" {
		return ""
	}
	if i, err := net.InterfaceByName(host); err == nil {
		addresses, _ := i.Addrs() // on an error the name is taken as a host name
		for _, a := range addresses {
			if network, ok := a.(*net.IPNet); ok {
				return network.IP.String()
			}
		}
	}
	return host
}

// queueLimit returns the bound of all queues of a publisher together, in bytes.
func queueLimit(account *memory.Account) int64 {
	if share := account.Limit() / queuesShare; share > 0 {
		return min(share, allQueues)
	}
	return allQueues
}

// close closes the socket. The port is free when it returns.
func (p *publisher) close() { p.acceptor.close() }

// newestSubscriber orders connections by age, the newest first, so that established
// subscribers stay.
func newestSubscriber(c, d *accepted) bool { return c.since.After(d.since) }

// outgoing is a message in one or more queues. Its bytes never change.
type outgoing struct {
	frames [][]byte // topic, payload
	size   int64
	queues int // number of queues that hold it; guarded by publisher.mu
}

// subscriber is a connection of a publisher.
type subscriber struct {
	conn net.Conn
	wake chan struct{} // capacity 1; signals that the queue is not empty

	// The fields below are guarded by publisher.mu.
	subscribed map[string]int // number of subscriptions by prefix of a topic
	wants      []bool         // by topic
	queue      []*outgoing    // the messages being sent first, then those that wait
	bytes      int64          // bytes in queue
	gone       bool
}

// wantsAll reports whether it has subscribed to whatever there is. It does not know the topics.
func (s *subscriber) wantsAll() bool { return s.subscribed[""] > 0 }

// publish puts a message into the queue of every subscriber that wants it. The payload is copied.
func (p *publisher) publish(topic int, payload []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent.Add(1)
	p.publishLocked(topic, payload, func(s *subscriber) bool { return s.wants[topic] })
}

// publishEither publishes payload to the subscribers that have chosen topic, and what form returns
// to the others that want the topic other. form is called without the lock.
func (p *publisher) publishEither(topic int, payload []byte, other int, form func() []byte) {
	chosen := func(s *subscriber) bool { return s.wants[topic] && !s.wantsAll() }
	left := func(s *subscriber) bool { return s.wants[other] && !chosen(s) }
	p.mu.Lock()
	p.sent.Add(1)
	p.publishLocked(topic, payload, chosen)
	wanted := false
	for s := range p.subscribers {
		wanted = wanted || left(s)
	}
	p.mu.Unlock()
	if !wanted {
		return
	}
	if payload = form(); payload == nil || len(payload) > MeshMaxMessage {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.publishLocked(other, payload, left)
}

// publishLocked puts a message into the queue of every subscriber for which wants is true.
func (p *publisher) publishLocked(topic int, payload []byte, wants func(*subscriber) bool) {
	size := int64(len(p.topics[topic]) + len(payload) + zmtp.MessageOverhead)
	receivers := p.receivers[:0]
	for s := range p.subscribers {
		switch {
		case s.gone || !wants(s):
		case len(s.queue) > 0 && (len(s.queue) == queueMessages || s.bytes+size > queueBytes):
			p.dropped.Add(1)
		default:
			receivers = append(receivers, s)
		}
	}
	defer func() { clear(receivers); p.receivers = receivers[:0] }()
	if len(receivers) == 0 {
		return
	}
	if !p.reserveLocked(size) {
		p.dropped.Add(uint64(len(receivers)))
		return
	}
	m := &outgoing{frames: [][]byte{p.topics[topic], bytes.Clone(payload)}, size: size, queues: 1}
	for _, s := range receivers {
		if s.gone { // disconnected to make room
			continue
		}
		m.queues++
		s.queue = append(s.queue, m)
		s.bytes += size
		select {
		case s.wake <- struct{}{}:
		default: // already signalled
		}
	}
	p.doneLocked(m)
}

// reserveLocked reserves memory for a message, if need be by disconnecting the subscribers that
// are furthest behind.
func (p *publisher) reserveLocked(size int64) bool {
	for p.queued > 0 && p.queued+size > p.limit || !p.account.Reserve(size) {
		if !p.cutFurthestLocked() {
			return false
		}
	}
	p.queued += size
	return true
}

// cutFurthestLocked disconnects the subscriber with the most bytes in its queue.
func (p *publisher) cutFurthestLocked() bool {
	var furthest *subscriber
	for s := range p.subscribers {
		if !s.gone && s.bytes > 0 && (furthest == nil || s.bytes > furthest.bytes) {
			furthest = s
		}
	}
	if furthest == nil {
		return false
	}
	p.cutLocked(furthest)
	return true
}

func (p *publisher) cutLocked(s *subscriber) {
	s.gone = true
	_ = s.conn.Close()
	p.dequeueLocked(s, len(s.queue))
}

// dequeueLocked removes the first n messages of a queue.
func (p *publisher) dequeueLocked(s *subscriber, n int) {
	for i, m := range s.queue[:n] {
		s.bytes -= m.size
		s.queue[i] = nil
		p.doneLocked(m)
	}
	if s.queue = s.queue[n:]; len(s.queue) == 0 {
		s.queue = nil // drop its memory, which may be large
	}
}

// doneLocked records that one queue fewer holds a message.
func (p *publisher) doneLocked(m *outgoing) {
	if m.queues--; m.queues == 0 {
		p.queued -= m.size
		p.account.Release(m.size)
	}
}

// serve serves a connection until it ends.
func (p *publisher) serve(a *accepted) error {
	c, err := zmtp.Handshake(a.conn, zmtp.Options{
		SocketType: "PUB", MaxMessage: maxSubscription,
		HandshakeTime: p.hub.opt.HandshakeTime, Heartbeat: heartbeat, Silence: silence,
	})
	if err != nil {
		return err
	}
	defer c.Close()
	a.establish()
	s := &subscriber{conn: a.conn, wake: make(chan struct{}, 1), subscribed: make(map[string]int), wants: make([]bool, len(p.topics))}
	p.mu.Lock()
	p.subscribers[s] = struct{}{}
	p.mu.Unlock()
	ctx, stop := context.WithCancel(p.acceptor.ctx)
	var sending sync.WaitGroup
	sending.Go(func() {
		p.send(ctx, s, c)
		_ = a.conn.Close() // this ends the reading of subscriptions
	})
	err = p.subscriptions(s, c, a.used)
	stop()
	_ = a.conn.Close()
	sending.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.gone {
		err = zmtp.Refuse(zmtp.NoMemory, "it is too far behind")
	}
	p.cutLocked(s)
	delete(p.subscribers, s)
	return err
}

// send sends the queue's messages until that fails or ctx ends.
func (p *publisher) send(ctx context.Context, s *subscriber, c *zmtp.Conn) {
	var batch [][][]byte
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		for {
			batch = batch[:0]
			p.mu.Lock()
			for size := int64(0); len(batch) < min(len(s.queue), sendMessages) && size < sendBytes; {
				m := s.queue[len(batch)]
				size += m.size
				batch = append(batch, m.frames)
			}
			p.mu.Unlock()
			if len(batch) == 0 {
				break
			}
			err := c.SendAll(batch)
			clear(batch)
			if err != nil {
				return
			}
			p.mu.Lock()
			if !s.gone {
				p.dequeueLocked(s, len(batch))
			}
			p.mu.Unlock()
		}
	}
}

// subscriptions reads subscriptions until the connection ends. It keeps only prefixes of the
// publisher's topics: others never match a message.
func (p *publisher) subscriptions(s *subscriber, c *zmtp.Conn, used func()) error {
	for n := 0; ; n++ {
		m, err := c.Receive()
		if err != nil {
			return err
		}
		if n == maxSubscriptions {
			return zmtp.Refuse(zmtp.TooManyCommands, "more than %d subscriptions", maxSubscriptions)
		}
		if len(m.Frames) == 1 && len(m.Frames[0]) > 0 && m.Frames[0][0] <= 1 {
			if p.subscribe(s, string(m.Frames[0][1:]), m.Frames[0][0] == 1) {
				used()
			}
		}
		m.Memory.Release(nil)
	}
}

// subscribe counts a subscription, or takes one back, as libzmq does. It reports whether
// it matches a topic.
func (p *publisher) subscribe(s *subscriber, prefix string, add bool) bool {
	begins := func(topic []byte) bool { return bytes.HasPrefix(topic, []byte(prefix)) }
	if !slices.ContainsFunc(p.topics, begins) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case add:
		s.subscribed[prefix]++
	case s.subscribed[prefix] > 1:
		s.subscribed[prefix]--
	default:
		delete(s.subscribed, prefix)
	}
	for i, topic := range p.topics {
		s.wants[i] = false
		for prefix := range s.subscribed {
			s.wants[i] = s.wants[i] || bytes.HasPrefix(topic, []byte(prefix))
		}
	}
	return add
}
