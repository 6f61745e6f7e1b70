package zmqsock

import (
	"errors"

	"github.com/pebbe/zmq4"
)

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
	main, err := l.add(z, nil)
	if err != nil {
		return errors.Join(err, z.Close())
	}
	l.byID[id] = &group{main: main, endpoint: endpoint}
	return nil
}

// send sends what is in b, in order, and tells how many messages left. A PUB
// socket never blocks, and fails only when it is closed.
func (l *loop) send(id uint64, b *batch) (sent int) {
	g := l.byID[id]
	if g == nil {
		return 0
	}
	from := 0
	for _, m := range b.messages {
		payload := b.bytes[from:m.end]
		from = m.end
		_, err := g.main.zmq.SendBytes(m.topic, zmq4.SNDMORE|zmq4.DONTWAIT)
		if err == nil {
			_, err = g.main.zmq.SendBytes(payload, zmq4.DONTWAIT)
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
