// Package kvpub is the sending side of the KV event wire, as in vLLM's publisher: numbered
// messages on a PUB socket, and a ROUTER socket that repeats the most recent ones. The
// simulated engines publish with it.
package kvpub

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pebbe/zmq4"
)

// Limits of vLLM's publisher (vllm 0.33, KVEventsConfig).
const (
	Steps        = 10_000  // messages that can be replayed
	sendLimit    = 100_000 // messages kept for a slow subscriber
	queueLimit   = 100_000 // messages waiting for the publisher
	pollInterval = 20 * time.Millisecond
)

// Options says where to publish.
type Options struct {
	Bind  string // host of the tcp endpoints
	Port  int    // of the live stream, the next one is that of replays; 0: free ports
	Topic string // first frame of every message, usually empty
}

// Publisher sends numbered messages. Its methods are safe for concurrent use;
// messages are sent in the order of the Publish calls.
type Publisher struct {
	topic       string
	events      string
	replay      string
	in          chan []byte
	stop, done  chan struct{}
	subscribers atomic.Int64

	// Owned by the run goroutine once Open has returned.
	ctx    *zmq4.Context
	pub    *zmq4.Socket // XPUB: on the wire a PUB, but it receives the subscriptions
	router *zmq4.Socket
	seq    uint64   // number of the next message
	ring   [][]byte // message n is at n % Steps
}

// Open binds both sockets and starts to serve. Numbers begin at 0.
func Open(opt Options) (*Publisher, error) {
	p := &Publisher{
		topic: opt.Topic, in: make(chan []byte, queueLimit),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	if err := p.open(opt); err != nil {
		return nil, errors.Join(fmt.Errorf("open publisher: %w", err), p.closeSockets())
	}
	go p.run()
	return p, nil
}

// Events returns the endpoint of the live stream.
func (p *Publisher) Events() string { return p.events }

// Replay returns the endpoint that repeats messages.
func (p *Publisher) Replay() string { return p.replay }

// Subscribers returns how many subscriptions the live stream has. It follows
// the sockets by up to 20 ms.
func (p *Publisher) Subscribers() int { return int(p.subscribers.Load()) }

// Publish queues one payload. It blocks only while 100,000 are waiting, and
// drops the payload once the publisher is closed.
func (p *Publisher) Publish(payload []byte) {
	select {
	case p.in <- payload:
	case <-p.stop:
	}
}

// Close ends both sockets; what is still queued is lost, as when a process
// dies. It must be called once.
func (p *Publisher) Close() error {
	close(p.stop)
	<-p.done
	return p.closeSockets()
}

func (p *Publisher) open(opt Options) (err error) {
	if p.ctx, err = zmq4.NewContext(); err != nil {
		return fmt.Errorf("context: %w", err)
	}
	if p.pub, err = p.ctx.NewSocket(zmq4.XPUB); err != nil {
		return fmt.Errorf("publisher socket: %w", err)
	}
	if p.router, err = p.ctx.NewSocket(zmq4.ROUTER); err != nil {
		return fmt.Errorf("replay socket: %w", err)
	}
	err = errors.Join(
		p.pub.SetLinger(0), p.pub.SetSndhwm(sendLimit), p.pub.SetXpubVerboser(1),
		p.router.SetLinger(0), p.router.SetSndhwm(2*(Steps+1)),
	)
	if err != nil {
		return fmt.Errorf("socket options: %w", err)
	}
	live, replay := "*", "*"
	if opt.Port > 0 {
		live, replay = strconv.Itoa(opt.Port), strconv.Itoa(opt.Port+1)
	}
	if p.events, err = bind(p.pub, opt.Bind, live); err != nil {
		return err
	}
	p.replay, err = bind(p.router, opt.Bind, replay)
	return err
}

func bind(s *zmq4.Socket, host, port string) (string, error) {
	if err := s.Bind("tcp://" + host + ":" + port); err != nil {
		return "", fmt.Errorf("bind to %s, port %s: %w", host, port, err)
	}
	endpoint, err := s.GetLastEndpoint()
	if err != nil {
		return "", fmt.Errorf("bound endpoint: %w", err)
	}
	return endpoint, nil
}

func (p *Publisher) closeSockets() error {
	var errs []error
	for _, s := range []*zmq4.Socket{p.pub, p.router} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	if p.ctx != nil {
		errs = append(errs, p.ctx.Term())
	}
	return errors.Join(errs...)
}

// run owns the sockets. Like vLLM's publisher it looks for replay requests
// between messages, so an idle one answers after up to one interval.
func (p *Publisher) run() {
	defer close(p.done)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case payload := <-p.in:
			p.send(payload)
		case <-tick.C:
		}
		p.countSubscriptions()
		p.answerReplays()
	}
}

// send numbers a message. A failed send still uses up its number, so that
// subscribers see the gap and can ask for it.
func (p *Publisher) send(payload []byte) {
	if len(p.ring) < Steps {
		p.ring = append(p.ring, payload)
	} else {
		p.ring[p.seq%Steps] = payload
	}
	_, _ = p.pub.SendMessage(p.topic, number(p.seq), payload)
	p.seq++
}

func (p *Publisher) countSubscriptions() {
	for {
		b, err := p.pub.RecvBytes(zmq4.DONTWAIT)
		if err != nil {
			return
		}
		switch {
		case len(b) == 0:
		case b[0] == 1:
			p.subscribers.Add(1)
		case b[0] == 0:
			p.subscribers.Add(-1)
		}
	}
}

// answerReplays serves every waiting request: identity, empty frame, first
// number. Other shapes are ignored, as by vLLM.
func (p *Publisher) answerReplays() {
	for {
		req, err := p.router.RecvMessageBytes(zmq4.DONTWAIT)
		if err != nil {
			return
		}
		if len(req) != 3 || len(req[1]) != 0 || len(req[2]) != 8 {
			continue
		}
		p.answer(req[0], binary.BigEndian.Uint64(req[2]))
	}
}

// answer sends what the ring still has from number first on, then the end mark:
// number 2^64-1 without payload. The topic frame is vLLM's since 0.26.
func (p *Publisher) answer(to []byte, first uint64) {
	oldest := p.seq - uint64(len(p.ring))
	for n := max(first, oldest); n < p.seq; n++ {
		if p.reply(to, p.topic, n, p.ring[n%Steps]) != nil {
			return // the subscriber has gone
		}
	}
	_ = p.reply(to, "", ^uint64(0), nil)
}

func (p *Publisher) reply(to []byte, topic string, seq uint64, payload []byte) error {
	_, err := p.router.SendMessageDontwait(to, "", topic, number(seq), payload)
	return err
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
