// Package zmqtest is an engine's side of the KV event wire for tests: a publisher and its
// replay server, on real libzmq sockets.
package zmqtest

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/select-service/select-service/test/checks/e2e"
)

// Patience is how long helpers wait for an expected condition before they fail a
// test. No passing test waits that long: it only ends a test that would hang, so
// it is far beyond what the busiest machine needs.
const Patience = 2 * time.Minute

// Publisher is an XPUB socket: it sees subscriptions arrive, so that a test
// loses nothing to a slow joiner. It belongs to one goroutine.
type Publisher struct {
	Endpoint string

	tb      testing.TB
	options []Option
	sock    *zmq4.Socket
	subs    int // current subscriptions
	total   int // subscriptions since the start
}

// Option is set on a socket before it is bound or connected.
type Option func(*zmq4.Socket) error

// NewPublisher binds a publisher to endpoint; "" takes a free port.
func NewPublisher(tb testing.TB, endpoint string, options ...Option) *Publisher {
	tb.Helper()
	p := &Publisher{Endpoint: endpoint, tb: tb, options: options}
	p.open()
	p.Endpoint = bind(tb, p.sock, endpoint)
	return p
}

// NewPublisher6 binds a publisher to a port of [::1].
func NewPublisher6(tb testing.TB, port int) *Publisher {
	tb.Helper()
	p := &Publisher{tb: tb}
	p.open()
	must(tb, p.sock.SetIpv6(true))
	p.Endpoint = bind(tb, p.sock, fmt.Sprintf("tcp://[::1]:%d", port))
	return p
}

// Connect returns a publisher that connects to a subscriber which is bound.
func Connect(tb testing.TB, endpoint string, options ...Option) *Publisher {
	tb.Helper()
	p := &Publisher{Endpoint: endpoint, tb: tb, options: options}
	p.open()
	must(tb, p.sock.Connect(endpoint))
	return p
}

func (p *Publisher) open() {
	p.sock = newSocket(p.tb, zmq4.XPUB)
	p.tb.Helper()
	for _, set := range p.options {
		must(p.tb, set(p.sock))
	}
	must(p.tb, p.sock.SetXpubVerboser(1))
	// Nothing is lost to the limit: the sender is held back instead.
	must(p.tb, p.sock.SetXpubNodrop(true))
}

// Subscribers waits until there are n subscriptions.
func (p *Publisher) Subscribers(n int) {
	p.tb.Helper()
	p.await("subscribers", func() bool { return p.subs == n })
}

// Subscriptions waits until n subscriptions were made in all, including replaced ones.
func (p *Publisher) Subscriptions(n int) {
	p.tb.Helper()
	p.await("subscriptions", func() bool { return p.total >= n })
}

func (p *Publisher) await(what string, ok func() bool) {
	p.tb.Helper()
	deadline := time.Now().Add(Patience)
	for p.drain(); !ok(); p.drain() {
		if time.Now().After(deadline) {
			p.tb.Fatalf("%s: %d subscribers, %d ever, after %v; waited for %s", p.Endpoint, p.subs, p.total, Patience, what)
		}
		must(p.tb, p.sock.SetRcvtimeo(20*time.Millisecond))
		if b, err := p.sock.RecvBytes(0); err == nil {
			p.count(b)
		}
	}
}

func (p *Publisher) drain() {
	for {
		b, err := p.sock.RecvBytes(zmq4.DONTWAIT)
		if err != nil {
			return
		}
		p.count(b)
	}
}

func (p *Publisher) count(b []byte) {
	switch {
	case len(b) == 0:
	case b[0] == 1:
		p.subs++
		p.total++
	case b[0] == 0:
		p.subs--
	}
}

// Publish sends a well-formed message.
func (p *Publisher) Publish(seq uint64, payload []byte) {
	p.tb.Helper()
	p.Send([]byte(""), Seq(seq), payload)
}

// Send sends any frames.
func (p *Publisher) Send(frames ...[]byte) {
	p.tb.Helper()
	_, err := p.sock.SendMessage(frames)
	must(p.tb, err)
}

// TrySend sends a well-formed message unless that would block.
func (p *Publisher) TrySend(seq uint64, payload []byte) bool {
	_, err := p.sock.SendMessageDontwait("", Seq(seq), payload)
	return err == nil
}

// Close closes the socket.
func (p *Publisher) Close() { must(p.tb, p.sock.Close()) }

// Restart closes the socket and binds a new one to the same endpoint.
func (p *Publisher) Restart() {
	p.tb.Helper()
	p.Close()
	p.subs = 0
	p.open()
	bind(p.tb, p.sock, p.Endpoint)
}

// Kept is a message in a replay server's ring.
type Kept struct {
	Seq     uint64
	Payload []byte
}

// ReplayServer is a ROUTER that answers as vLLM's and SGLang's publishers do.
type ReplayServer struct {
	Endpoint string

	// mu guards the fields below.
	mu       sync.Mutex
	ring     []Kept
	requests []uint64
	silent   bool
	topic    bool // answers of 4 frames
	noEnd    bool

	stop, done chan struct{}
}

// NewReplayServer binds a replay server to endpoint ("": a free port); topic
// selects answers of four frames (vLLM 0.26 and later) instead of three.
func NewReplayServer(tb testing.TB, endpoint string, topic bool, options ...Option) *ReplayServer {
	tb.Helper()
	r := &ReplayServer{topic: topic, stop: make(chan struct{}), done: make(chan struct{})}
	bound := make(chan error)
	go r.serve(tb, endpoint, options, bound) // a libzmq socket belongs to one goroutine
	if err := <-bound; err != nil {
		tb.Fatalf("replay server: %v", err)
	}
	return r
}

// Keep appends to the ring.
func (r *ReplayServer) Keep(m ...Kept) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ring = append(r.ring, m...)
}

// SetRing replaces the ring.
func (r *ReplayServer) SetRing(m ...Kept) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ring = m
}

// SetSilent makes the server read requests without answering, or answer them again.
func (r *ReplayServer) SetSilent(silent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent = silent
}

// SetNoEnd leaves out the end mark.
func (r *ReplayServer) SetNoEnd(noEnd bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noEnd = noEnd
}

// Requests returns the start numbers asked for so far.
func (r *ReplayServer) Requests() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]uint64(nil), r.requests...)
}

// Close ends the server.
func (r *ReplayServer) Close() {
	close(r.stop)
	<-r.done
}

func (r *ReplayServer) serve(tb testing.TB, endpoint string, options []Option, bound chan<- error) {
	defer close(r.done)
	sock, err := zmqContext().NewSocket(zmq4.ROUTER)
	if err != nil {
		bound <- err
		return
	}
	defer func() { _ = sock.Close() }()
	_ = sock.SetLinger(0)
	_ = sock.SetSndhwm(0)
	_ = sock.SetRcvtimeo(20 * time.Millisecond)
	for _, set := range options {
		if err := set(sock); err != nil {
			bound <- err
			return
		}
	}
	if r.Endpoint, err = tryBind(sock, endpoint); err != nil {
		bound <- err
		return
	}
	bound <- nil
	for {
		select {
		case <-r.stop:
			return
		default:
		}
		if frames, err := sock.RecvMessageBytes(0); err == nil {
			r.answer(tb, sock, frames)
		}
	}
}

func (r *ReplayServer) answer(tb testing.TB, sock *zmq4.Socket, frames [][]byte) {
	if len(frames) != 3 || len(frames[1]) != 0 || len(frames[2]) != 8 {
		tb.Errorf("replay request of frames %q: publishers never answer that", frames[1:])
		return
	}
	start := binary.BigEndian.Uint64(frames[2])
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, start)
	if r.silent {
		return
	}
	head := [][]byte{frames[0], nil}
	if r.topic {
		head = append(head, nil)
	}
	send := func(seq uint64, payload []byte) {
		_, err := sock.SendMessage(head, Seq(seq), payload)
		if err != nil {
			tb.Errorf("replay answer: %v", err)
		}
	}
	for _, m := range r.ring {
		if m.Seq >= start {
			send(m.Seq, m.Payload)
		}
	}
	if !r.noEnd {
		send(^uint64(0), nil)
	}
}

// Seq returns the wire form of a sequence number.
func Seq(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// FreeEndpoint returns a TCP endpoint of 127.0.0.1 where no socket listens, and that no other test takes
// before this test binary ends. Its port is below the kernel's ephemeral ports: sockets of other tests may
// try to reconnect to such a port after its publisher has closed.
func FreeEndpoint(tb testing.TB) string {
	tb.Helper()
	return fmt.Sprintf("tcp://127.0.0.1:%d", e2e.FreePort(tb))
}

// Wildcard returns endpoint with its host replaced by "*".
func Wildcard(endpoint string) string {
	return "tcp://*" + endpoint[strings.LastIndexByte(endpoint, ':'):]
}

func newSocket(tb testing.TB, t zmq4.Type) *zmq4.Socket {
	tb.Helper()
	sock, err := zmqContext().NewSocket(t)
	must(tb, err)
	must(tb, sock.SetLinger(0))
	return sock
}

// zmqContext is shared by the sockets of a test binary, with room for a publisher
// per rank of a large fleet.
var zmqContext = sync.OnceValue(func() *zmq4.Context {
	ctx, err := zmq4.NewContext()
	if err == nil {
		err = ctx.SetMaxSockets(8192)
	}
	if err != nil {
		panic(err)
	}
	return ctx
})

func bind(tb testing.TB, sock *zmq4.Socket, endpoint string) string {
	tb.Helper()
	endpoint, err := tryBind(sock, endpoint)
	must(tb, err)
	return endpoint
}

// loopback is a loopback address that no other process uses here. On a shared address,
// sockets of other tests running at the same time might reconnect to this test's publisher,
// if it got their old port.
var loopback = func() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 1+pid>>16&0x7f, pid>>8&0xff, pid&0xff)
}()

// tryBind retries for a while: a port that was just released stays taken until libzmq's
// reaper thread has run.
func tryBind(sock *zmq4.Socket, endpoint string) (string, error) {
	if endpoint == "" {
		endpoint = "tcp://" + loopback + ":*"
	}
	err := sock.Bind(endpoint)
	for deadline := time.Now().Add(Patience); err != nil && time.Now().Before(deadline); err = sock.Bind(endpoint) {
		<-time.After(20 * time.Millisecond)
	}
	if err != nil {
		return "", fmt.Errorf("bind %s: %w", endpoint, err)
	}
	return sock.GetLastEndpoint()
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Ready waits until there is a subscriber, and the given number of subscriptions was made in all.
func (p *Publisher) Ready(subscriptions int, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for p.drain(); p.subs < 1 || p.total < subscriptions; p.drain() {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: %d subscribers, %d ever, after %v", p.Endpoint, p.subs, p.total, patience)
		}
		if err := p.sock.SetRcvtimeo(20 * time.Millisecond); err != nil {
			return fmt.Errorf("receive timeout of %s: %w", p.Endpoint, err)
		}
		if b, err := p.sock.RecvBytes(0); err == nil {
			p.count(b)
		}
	}
	return nil
}

// SetTopic makes the server answer in four frames, or in three.
func (r *ReplayServer) SetTopic(topic bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.topic = topic
}

// Listener is a SUB socket. It belongs to one goroutine.
type Listener struct{ sock *zmq4.Socket }

// Listen connects to a PUB socket, subscribes to a topic and waits until both
// sides have shaken hands: then the subscription is on its way. A PUB socket does
// not say when it has taken effect.
func Listen(tb testing.TB, endpoint, topic string, options ...Option) *Listener {
	tb.Helper()
	l := &Listener{newSocket(tb, zmq4.SUB)}
	for _, set := range options {
		must(tb, set(l.sock))
	}
	connected := newSocket(tb, zmq4.PAIR)
	address := fmt.Sprintf("inproc://listener-%p", l)
	must(tb, l.sock.Monitor(address, zmq4.EVENT_HANDSHAKE_SUCCEEDED))
	must(tb, connected.SetRcvtimeo(Patience))
	must(tb, connected.Connect(address))
	must(tb, l.sock.SetSubscribe(topic))
	must(tb, l.sock.Connect(endpoint))
	_, _, _, err := connected.RecvEvent(0)
	must(tb, err)
	_ = l.sock.Monitor("", 0) // fails only for what is no socket
	must(tb, connected.Close())
	return l
}

// Receive returns the frames of the next message, or an error after patience.
func (l *Listener) Receive(patience time.Duration) ([][]byte, error) {
	if err := l.sock.SetRcvtimeo(patience); err != nil {
		return nil, fmt.Errorf("receive timeout: %w", err)
	}
	return l.sock.RecvMessageBytes(0)
}

// Close closes the socket.
func (l *Listener) Close() error { return l.sock.Close() }
