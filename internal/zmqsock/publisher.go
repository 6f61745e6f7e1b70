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

	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/internal/zmtp"
	"github.com/select-service/select-service/pkg/catalog"
)

const (
	// queueMessages and queueBytes bound what waits for one subscriber, which loses
	// what comes on top. The messages are half a second of 20,000 events a second; the
	// bytes count what holds a message, too. One message fits into an empty queue,
	// however large.
	queueMessages = 10_000
	queueBytes    = 16 << 20
	// allQueues bounds what all subscribers together have waiting, shared bytes once.
	allQueues = 64 << 20
	// queuesShare is the share of the account that all queues may hold, the rest
	// is for what comes from other replicas.
	queuesShare = 2
	// sendBytes and sendMessages bound what a subscriber's goroutine takes at once.
	sendBytes    = 64 << 10
	sendMessages = 256
	// maxSubscription bounds a message of a subscriber, in bytes: a topic.
	maxSubscription = 4 << 10
	// maxSubscriptions bounds such messages over the life of a connection. A
	// subscriber sends one for each topic.
	maxSubscriptions = 4096
)

// publisher is a bound PUB socket with a fixed set of topics. Every subscriber has a queue
// of its own, whose messages all queues share. What the account has no room for costs
// the subscriber that is furthest behind its connection.
type publisher struct {
	hub      *Hub
	topics   [][]byte
	account  *budget.Account
	limit    int64 // of bytes in all queues
	acceptor *acceptor

	sent, dropped atomic.Uint64

	// mu guards what follows.
	mu          sync.Mutex
	subscribers map[*subscriber]struct{}
	held        int64         // bytes in all queues, shared ones once
	takers      []*subscriber // scratch of publish
}

// openPublisher binds a publisher to a TCP endpoint.
func (h *Hub) openPublisher(endpoint string, topics [][]byte) (*publisher, error) {
	select {
	case <-h.ready:
	case <-h.ended:
		return nil, ErrStopped
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

// bindHost is the address of a host to listen at. As in libzmq it may be the name of an
// interface, and * is all of them.
func bindHost(host string) string {
	if host == "*" {
		return ""
	}
	if i, err := net.InterfaceByName(host); err == nil {
		addresses, _ := i.Addrs() // none: the name is taken for a host's
		for _, a := range addresses {
			if network, ok := a.(*net.IPNet); ok {
				return network.IP.String()
			}
		}
	}
	return host
}

// queueLimit is how much all queues of a publisher may hold, in bytes.
func queueLimit(account *budget.Account) int64 {
	if share := account.Limit() / queuesShare; share > 0 {
		return min(share, allQueues)
	}
	return allQueues
}

// close closes the socket. The port is free when it returns.
func (p *publisher) close() { p.acceptor.close() }

// newestSubscriber has a connection go first that never subscribed to a topic, the oldest
// first; then the one that subscribed last: who is served stays.
func newestSubscriber(c, d *accepted) bool {
	switch {
	case c.lastMessage.IsZero() != d.lastMessage.IsZero():
		return c.lastMessage.IsZero()
	case c.lastMessage.IsZero():
		return c.since.Before(d.since)
	}
	return c.since.After(d.since)
}

// outgoing is a message in one or more queues. Its bytes never change.
type outgoing struct {
	frames [][]byte // topic, payload
	size   int64
	queues int // that hold it; guarded by publisher.mu
}

// subscriber is a connection of a publisher.
type subscriber struct {
	conn net.Conn
	wake chan struct{} // of capacity 1: there is something in the queue

	// The publisher's mu guards what follows.
	subscribed map[string]int // how often, for each prefix of a topic
	wants      []bool         // by topic
	queue      []*outgoing    // what waits, and first what is being sent
	bytes      int64          // of them
	gone       bool
}

// publish puts a message into the queues of all who want it. The payload is
// copied.
func (p *publisher) publish(topic int, payload []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent.Add(1)
	size := int64(len(p.topics[topic]) + len(payload) + zmtp.MessageOverhead)
	takers := p.takers[:0]
	for s := range p.subscribers {
		switch {
		case s.gone || !s.wants[topic]:
		case len(s.queue) > 0 && (len(s.queue) == queueMessages || s.bytes+size > queueBytes):
			p.dropped.Add(1)
		default:
			takers = append(takers, s)
		}
	}
	defer func() { clear(takers); p.takers = takers[:0] }()
	if len(takers) == 0 {
		return
	}
	if !p.reserveLocked(size) {
		p.dropped.Add(uint64(len(takers)))
		return
	}
	m := &outgoing{frames: [][]byte{p.topics[topic], bytes.Clone(payload)}, size: size, queues: 1}
	for _, s := range takers {
		if s.gone { // to make room
			continue
		}
		m.queues++
		s.queue = append(s.queue, m)
		s.bytes += size
		select {
		case s.wake <- struct{}{}:
		default: // it has been told
		}
	}
	p.doneLocked(m)
}

// reserveLocked takes memory for a message, if need be from those who are furthest
// behind.
func (p *publisher) reserveLocked(size int64) bool {
	for p.held > 0 && p.held+size > p.limit || !p.account.Reserve(size) {
		if !p.cutFurthestLocked() {
			return false
		}
	}
	p.held += size
	return true
}

// cutFurthestLocked ends the connection of the subscriber with most in its queue.
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
	p.takenLocked(s, len(s.queue))
}

// takenLocked removes the first n messages of a queue.
func (p *publisher) takenLocked(s *subscriber, n int) {
	for i, m := range s.queue[:n] {
		s.bytes -= m.size
		s.queue[i] = nil
		p.doneLocked(m)
	}
	if s.queue = s.queue[n:]; len(s.queue) == 0 {
		s.queue = nil // with its memory, which may be much
	}
}

// doneLocked says that one queue less holds a message.
func (p *publisher) doneLocked(m *outgoing) {
	if m.queues--; m.queues == 0 {
		p.held -= m.size
		p.account.Release(m.size)
	}
}

// serve is the life of a connection.
func (p *publisher) serve(a *accepted) error {
	c, err := zmtp.Handshake(a.conn, zmtp.Options{
		SocketType: "PUB", Mechanism: p.hub.opt.Curve.replica(true)(), MaxMessage: maxSubscription,
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
		_ = a.conn.Close() // and the subscriptions end
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

// send sends what is in the queue, until that fails or ctx ends.
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
				p.takenLocked(s, len(batch))
			}
			p.mu.Unlock()
		}
	}
}

// subscriptions reads what the subscriber wants until the connection ends. Only prefixes of the
// publisher's topics are kept: nothing else can make it send.
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

// subscribe counts a subscription or takes one back, as libzmq does. It reports
// whether the subscription was to a topic.
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
