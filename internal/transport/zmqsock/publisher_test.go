package zmqsock_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/internal/transport/zmtp"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// Subscribers of libzmq hear the mesh.
func TestMeshWithLibzmqSubscriber(t *testing.T) {
	endpoint := zmqtest.FreeEndpoint(t)
	m := opened(t, start(t, zmqsock.DefaultOptions()), endpoint)
	l := zmqtest.Listen(t, endpoint, topics[0])
	defer func() { _ = l.Close() }()
	for n := uint64(0); ; n++ {
		publish(t, m, "events.v1", fmt.Sprint(n))
		frames, err := l.Receive(10 * time.Millisecond)
		if err != nil {
			continue // its subscription is on its way
		}
		if len(frames) != 2 || string(frames[0]) != "events.v1" {
			t.Fatalf("heard %q", frames)
		}
		break
	}
	large := strings.Repeat("z", 5<<20)
	publish(t, m, "events.v1.said", large)
	for begin := time.Now(); ; {
		frames, err := l.Receive(zmqtest.Patience / 4)
		if err != nil && time.Since(begin) < zmqtest.Patience {
			publish(t, m, "events.v1.said", large) // who takes too long to read it is cut off, and comes again
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if string(frames[0]) == "events.v1.said" {
			if string(frames[1]) != large {
				t.Errorf("a payload of %d bytes came as %d", len(large), len(frames[1]))
			}
			return
		}
	}
}

// subscriber is a raw connection to a publisher.
func subscriber(t *testing.T, endpoint string, topic string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	greeting := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0}, "NULL"...)
	greeting = append(greeting, make([]byte, 64-len(greeting))...)
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
	sent := append(greeting, 4, byte(len(ready)))
	sent = append(sent, ready...)
	sent = append(sent, 2, 0, 0, 0, 0, 0, 0, 0, byte(1+len(topic)), 1)
	if _, err := conn.Write(append(sent, topic...)); err != nil {
		t.Fatal(err)
	}
	// The peer's greeting and READY: then it is a subscriber, or about to be.
	if _, err := io.ReadFull(conn, make([]byte, 64+2+len(ready))); err != nil {
		t.Fatal(err)
	}
	return conn
}

// A subscriber that does not read costs a share of the account, and then its
// connection; one that does loses nothing.
func TestMeshSlowSubscribers(t *testing.T) {
	account := memory.NewAccount("replication", 8<<20)
	opt := zmqsock.DefaultOptions()
	opt.Replication = account
	h, l := start(t, opt), zmqtest.NewLog()
	endpoint := zmqtest.FreeEndpoint(t)
	a := opened(t, h, endpoint)
	defer follow(t, opened(t, h, zmqtest.FreeEndpoint(t)), endpoint, l)()
	until(t, a, "begin", l)
	for n := range uint64(150) {
		if n%10 == 0 {
			subscriber(t, endpoint, "")
		}
		payload := string(binary.BigEndian.AppendUint64(nil, n)) + strings.Repeat("x", 512<<10)
		publish(t, a, topics[0], payload)
		l.Await(t, fmt.Sprint("message ", n), zmqtest.Has(topics[0]+" "+payload))
		if used := account.Used(); used > account.Limit() {
			t.Fatalf("%d bytes are in use", used)
		}
	}
	if got := h.Refused()[zmtp.NoMemory.String()]; got == 0 {
		t.Error("no subscriber was cut off")
	}
	if s := a.Stats(); s.Sent < 150 {
		t.Errorf("stats %+v", s)
	}
	a.Close()
	for begin := time.Now(); account.Used() > 0; <-time.After(time.Millisecond) {
		if time.Since(begin) > zmqtest.Patience {
			t.Fatalf("%d bytes are still in use", account.Used())
		}
	}
}

// Who never subscribes to a topic goes when there are too many connections, and who is served
// stays.
func TestMeshTooManySubscribers(t *testing.T) {
	opt := zmqsock.DefaultOptions()
	opt.Subscribers = 4
	h, l := start(t, opt), zmqtest.NewLog()
	endpoint := zmqtest.FreeEndpoint(t)
	a := opened(t, h, endpoint)
	defer follow(t, opened(t, h, zmqtest.FreeEndpoint(t)), endpoint, l)()
	until(t, a, "begin", l)
	for range 20 {
		subscriber(t, endpoint, "nothing of ours")
	}
	for range 20 {
		subscriber(t, endpoint, topics[0])
	}
	until(t, a, "still", l)
	if events := l.Snapshot(); !zmqtest.Has("up", topics[0]+" still")(events) || zmqtest.Has("down")(events) {
		t.Errorf("the first subscriber was not served throughout: %.200q", events)
	}
	// Of 41 connections four may stay that have not subscribed to a topic, and four others.
	for begin := time.Now(); h.Refused()[zmtp.TooManyConnections.String()] < 41-2*4; <-time.After(time.Millisecond) {
		if time.Since(begin) > zmqtest.Patience {
			t.Fatalf("refused %v", h.Refused())
		}
	}
}
