package zmqtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
)

// Ready waits until somebody is subscribed and subscriptions were ever made.
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

// Listen connects to a PUB socket and subscribes to a topic.
func Listen(tb testing.TB, endpoint, topic string) *Listener {
	tb.Helper()
	l := &Listener{newSocket(tb, zmq4.SUB)}
	must(tb, l.sock.SetSubscribe(topic))
	must(tb, l.sock.Connect(endpoint))
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
