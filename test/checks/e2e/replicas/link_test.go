package replicas_test

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/test/checks/e2e"
)

// The topics of the wire: Dynamo's, which carries reservations, and our own.
const (
	eventTopic    = "dynamo.slot-tracker.v1"
	announceTopic = "select-service.replica.v1"
)

// maxScatter is how late a scattered message may come.
const maxScatter = 150 * time.Millisecond

// fate is what a link does to messages.
type fate struct {
	drop, duplicate, scatter float64       // chances of a message; a scattered one comes late, behind others
	delay                    time.Duration // of all messages, which keep their order
	cut                      bool          // every message is lost
	closed                   bool          // and the follower loses its connection
}

// link carries what one replica publishes to one that follows it: a forwarder
// of ZMQ messages between their PUB and SUB sockets. Faults are made here and
// not below, because TCP repairs a lost packet and never loses a message.
type link struct {
	source, target *zmqsock.Mesh
	endpoint       string // that the follower connects to
	rng            *rand.Rand
	arrived        chan message
	turns          chan turn
	stop           chan struct{}
	done           chan struct{}

	// deaf is set while nobody follows: then nothing is lost.
	deaf atomic.Bool
	// lost counts the bookings' messages of which no copy was forwarded,
	// announcements those of our own topic. duplicated counts bookings' messages
	// alone, because announcements may still be under way when the fate changes;
	// scattered counts both.
	lost, announcements, duplicated, scattered atomic.Uint64

	// Owned by run.
	fate    fate
	waiting []message // by due
	last    time.Time // when the last message that kept its order is due
}

type message struct {
	topic   string
	payload []byte
	due     time.Time
	copies  *copies
}

// copies are those of one message.
type copies struct {
	left int  // not forwarded yet
	sent bool // one was
}

// turn asks for another fate.
type turn struct {
	fate fate
	done chan<- error
}

// newLink starts to carry from one endpoint to another, which it binds.
func newLink(t *testing.T, hub *zmqsock.Hub, from, to string, seed uint64) *link {
	t.Helper()
	topics := []string{eventTopic, announceTopic}
	l := &link{
		source: zmqsock.NewMesh(hub, "", topics), target: zmqsock.NewMesh(hub, to, topics), endpoint: to,
		rng:     rand.New(rand.NewPCG(seed, seed)),
		arrived: make(chan message, 1<<16), turns: make(chan turn),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	if err := l.target.Open(); err != nil {
		t.Fatal(err)
	}
	unfollow, err := l.source.Follow(from, l.take, func(bool) {})
	if err != nil {
		t.Fatal(err)
	}
	go l.run()
	t.Cleanup(func() {
		unfollow()
		close(l.stop)
		<-l.done
		l.target.Close()
	})
	return l
}

// take runs on the hub's loop.
func (l *link) take(topic string, payload []byte) {
	m := message{topic: topic, payload: payload}
	select {
	case l.arrived <- m:
	default:
		l.lose(m)
	}
}

func (l *link) lose(m message) {
	switch {
	case l.deaf.Load():
	case m.topic == eventTopic:
		l.lost.Add(1)
	default:
		l.announcements.Add(1)
	}
}

// become gives the link another fate. What waits goes its old way.
func (l *link) become(t *testing.T, f fate) {
	t.Helper()
	done := make(chan error, 1)
	l.turns <- turn{f, done}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func (l *link) run() {
	defer close(l.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if len(l.waiting) > 0 {
			timer.Reset(time.Until(l.waiting[0].due))
		}
		select {
		case m := <-l.arrived:
			l.decide(m)
		case turn := <-l.turns:
			turn.done <- l.change(turn.fate)
		case <-timer.C:
		case <-l.stop:
			return
		}
		for now := time.Now(); len(l.waiting) > 0 && !l.waiting[0].due.After(now); l.waiting = l.waiting[1:] {
			l.forward(l.waiting[0])
		}
	}
}

func (l *link) change(f fate) (err error) {
	if closed := l.fate.closed; f.closed && !closed {
		l.target.Close()
	} else if !f.closed && closed {
		// The port comes back when libzmq's reaper has come round.
		err = l.target.Open()
		for end := time.Now().Add(e2e.Patience); err != nil && time.Now().Before(end); err = l.target.Open() {
			time.Sleep(20 * time.Millisecond)
		}
	}
	l.fate = f
	return err
}

func (l *link) decide(m message) {
	f := l.fate
	if f.cut || f.closed || l.rng.Float64() < f.drop {
		l.lose(m)
		return
	}
	m.copies = &copies{left: 1}
	if l.rng.Float64() < f.duplicate {
		m.copies.left++
		if m.topic == eventTopic {
			l.duplicated.Add(1)
		}
	}
	for range m.copies.left {
		if l.rng.Float64() < f.scatter {
			m.due = time.Now().Add(time.Duration(l.rng.Int64N(int64(maxScatter))))
			l.scattered.Add(1)
		} else {
			m.due = time.Now().Add(f.delay)
			if m.due.Before(l.last) {
				m.due = l.last
			}
			l.last = m.due
		}
		i, _ := slices.BinarySearchFunc(l.waiting, m.due, func(w message, due time.Time) int {
			if w.due.After(due) {
				return 1
			}
			return -1 // behind what is due at the same time
		})
		l.waiting = slices.Insert(l.waiting, i, m)
	}
}

func (l *link) forward(m message) {
	m.copies.left--
	if err := l.target.Publish(m.topic, m.payload); err == nil { // else it is closed
		m.copies.sent = true
	}
	if m.copies.left == 0 && !m.copies.sent {
		l.lose(m)
	}
}
