package zmqsock_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// topics of the tests; the second begins with the first.
var topics = []string{"events.v1", "events.v1.said"}

func opened(t testing.TB, h *zmqsock.Hub, endpoint string) *zmqsock.Mesh {
	t.Helper()
	m := zmqsock.NewMesh(h, endpoint, topics)
	zmqtest.Rebind(t, m.Open)
	return m
}

func follow(t testing.TB, m *zmqsock.Mesh, peer string, l *zmqtest.Log) (stop func()) {
	t.Helper()
	stop, err := m.Follow(peer, func(topic string, payload []byte) { l.Add(topic + " " + string(payload)) }, l.Status)
	if err != nil {
		t.Fatal(err)
	}
	return stop
}

func publish(t testing.TB, m *zmqsock.Mesh, topic, payload string) {
	t.Helper()
	if err := m.Publish(topic, []byte(payload)); err != nil {
		t.Fatal(err)
	}
}

// until publishes until the follower hears it: a subscription reaches the
// publisher at its own time.
func until(t testing.TB, m *zmqsock.Mesh, payload string, l *zmqtest.Log) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); !slices.Contains(l.Snapshot(), topics[0]+" "+payload); <-tick.C {
		if time.Since(begin) > zmqtest.Patience {
			t.Fatalf("%q was not heard", payload)
		}
		publish(t, m, topics[0], payload)
	}
}

// Everything that one process publishes reaches all that follow, in order over
// all topics, in many hand-overs to the loop.
func TestMeshKeepsTheOrder(t *testing.T) {
	h := start(t, zmqsock.DefaultOptions())
	endpoint := zmqtest.FreeEndpoint(t)
	a := opened(t, h, zmqtest.Wildcard(endpoint))
	b, c := opened(t, h, zmqtest.FreeEndpoint(t)), opened(t, h, zmqtest.FreeEndpoint(t))
	heard := []*zmqtest.Log{zmqtest.NewLog(), zmqtest.NewLog()}
	for i, m := range []*zmqsock.Mesh{b, c} {
		defer follow(t, m, endpoint, heard[i])()
		until(t, a, "begin", heard[i])
	}
	const n = 8000 // below the limit of what libzmq keeps
	var want []string
	for i := range n {
		topic, payload := topics[i%len(topics)], fmt.Sprintf("%d %s", i, strings.Repeat("x", i%700))
		want = append(want, topic+" "+payload)
		publish(t, a, topic, payload)
	}
	for i, l := range heard {
		l.Await(t, "last message", zmqtest.Has(want[n-1]))
		got := slices.DeleteFunc(l.Snapshot(), func(s string) bool { return s == "up" || strings.HasSuffix(s, "begin") })
		if !slices.Equal(got, want) {
			t.Errorf("follower %d heard %d messages, want %d in order", i, len(got), n)
		}
	}
	if s := a.Stats(); s.Sent < n || s.Dropped != 0 {
		t.Errorf("stats of the sender: %+v", s)
	}
}

// A follower asks for its topics only, and what is not two frames of one of
// them is counted and dropped.
func TestMeshDropsWhatItDoesNotKnow(t *testing.T) {
	h, l := start(t, zmqsock.DefaultOptions()), zmqtest.NewLog()
	m := opened(t, h, zmqtest.FreeEndpoint(t))
	pub := zmqtest.NewPublisher(t, "")
	defer pub.Close()
	defer follow(t, m, pub.Endpoint, l)()
	pub.Subscribers(len(topics))
	for _, frames := range [][]string{
		{"dynamo.session-affinity.v1", "never sent: not subscribed"},
		{"events.v1"},
		{"events.v1", "a", "b"},
		{"events.v1.other", "longer topic"}, // malformed
		{"events.v1", "one"},
		{"events.v1.said", ""},
	} {
		var raw [][]byte
		for _, f := range frames {
			raw = append(raw, []byte(f))
		}
		pub.Send(raw...)
	}
	l.Await(t, "last message", zmqtest.Has("events.v1.said "))
	if got, want := l.Snapshot(), []string{"up", "events.v1 one", "events.v1.said "}; !slices.Equal(got, want) {
		t.Errorf("heard %q, want %q", got, want)
	}
	if got := m.Stats().Malformed; got != 3 {
		t.Errorf("%d malformed, want 3", got)
	}
}

// A process that comes back at its endpoint is heard again.
func TestMeshReconnects(t *testing.T) {
	h, l := start(t, zmqsock.DefaultOptions()), zmqtest.NewLog()
	endpoint := zmqtest.FreeEndpoint(t)
	a, b := opened(t, h, endpoint), opened(t, h, zmqtest.FreeEndpoint(t))
	stop := follow(t, b, endpoint, l)
	until(t, a, "before", l)
	a.Close()
	l.Await(t, "loss", zmqtest.Has("up", "down"))
	if err := a.Publish(topics[0], nil); !errors.Is(err, zmqsock.ErrStopped) {
		t.Errorf("Publish after Close: %v, want ErrStopped", err)
	}
	a = opened(t, h, endpoint)
	until(t, a, "after", l)
	l.Await(t, "order", zmqtest.Has("up", "down", "up", topics[0]+" after"))

	stop()
	n := len(l.Snapshot())
	for range 100 {
		publish(t, a, topics[0], "late")
	}
	stop() // twice is once
	if got := l.Snapshot()[n:]; len(got) > 0 {
		t.Errorf("after stop: %q", got)
	}
}

// A peer may be known by its name; a place to listen at is no peer.
func TestMeshEndpoints(t *testing.T) {
	n, l := newNames(), zmqtest.NewLog()
	n.set("replica-a", "127.0.0.1")
	h := startWith(t, n)
	endpoint := zmqtest.FreeEndpoint(t)
	a, b := opened(t, h, endpoint), opened(t, h, zmqtest.FreeEndpoint(t))
	defer follow(t, b, on("replica-a", endpoint), l)()
	until(t, a, "hello", l)

	for _, peer := range []string{"tcp://*:5", "tcp://0.0.0.0:5", "tcp://[::]:5"} {
		if _, err := b.Follow(peer, nil, nil); !errors.Is(err, zmqsock.ErrWildcard) {
			t.Errorf("Follow(%q): %v, want ErrWildcard", peer, err)
		}
	}
	err := zmqsock.NewMesh(h, endpoint, topics).Open()
	if want := "failed to bind replica publisher to `" + endpoint + "`"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("second bind: %v, want %s", err, want)
	}
}

func TestMeshPublishErrors(t *testing.T) {
	m := opened(t, start(t, zmqsock.DefaultOptions()), zmqtest.FreeEndpoint(t))
	if err := m.Publish("other", nil); err == nil {
		t.Error("published on a foreign topic")
	}
	if err := m.Publish(topics[0], make([]byte, zmqsock.MeshMaxMessage+1)); !errors.Is(err, zmqsock.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
}

// A large payload goes through, also behind others.
func TestMeshLargePayload(t *testing.T) {
	h, l := start(t, zmqsock.DefaultOptions()), zmqtest.NewLog()
	endpoint := zmqtest.FreeEndpoint(t)
	m := opened(t, h, endpoint)
	defer follow(t, m, endpoint, l)()
	until(t, m, "begin", l)
	large := strings.Repeat("y", zmqsock.MeshMaxMessage)
	for _, payload := range []string{"1", large, "2"} {
		publish(t, m, topics[0], payload)
	}
	l.Await(t, "all", zmqtest.Has(topics[0]+" 1", topics[0]+" "+large, topics[0]+" 2"))
}

func TestMeshWithoutHub(t *testing.T) {
	h := zmqsock.NewWithLookup(zmqsock.DefaultOptions(), func(context.Context, string) ([]netip.Addr, error) { return nil, nil })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	endpoint := zmqtest.FreeEndpoint(t)
	m := opened(t, h, endpoint)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := m.Publish(topics[0], nil); !errors.Is(err, zmqsock.ErrStopped) {
		t.Errorf("Publish: %v, want ErrStopped", err)
	}
	if _, err := m.Follow(endpoint, nil, nil); !errors.Is(err, zmqsock.ErrStopped) {
		t.Errorf("Follow: %v, want ErrStopped", err)
	}
	if err := m.Open(); !errors.Is(err, zmqsock.ErrStopped) {
		t.Errorf("Open: %v, want ErrStopped", err)
	}
	m.Close()
}

// BenchmarkMesh publishes 300-byte events, the usual size, to one follower in
// bursts that libzmq's limit can hold: the rate of the whole way.
func BenchmarkMesh(b *testing.B) {
	h := start(b, zmqsock.DefaultOptions())
	endpoint := zmqtest.FreeEndpoint(b)
	m := opened(b, h, endpoint)
	var heard atomic.Uint64
	wake := make(chan struct{}, 1)
	stop, err := m.Follow(endpoint, func(_ string, payload []byte) {
		heard.Store(binary.BigEndian.Uint64(payload))
		select {
		case wake <- struct{}{}:
		default:
		}
	}, func(bool) {})
	if err != nil {
		b.Fatal(err)
	}
	defer stop()
	payload := make([]byte, 300)
	next := uint64(0)
	send := func() {
		next++
		binary.BigEndian.PutUint64(payload, next)
		if err := m.Publish(topics[0], payload); err != nil {
			b.Fatal(err)
		}
	}
	for heard.Load() == 0 {
		send()
		<-time.After(time.Millisecond)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		for next-heard.Load() > 5000 {
			<-wake
		}
		send()
	}
	for heard.Load() < next {
		<-wake
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// A peer gets a message of two forms once: as one of the topic that it has chosen, else as the
// other one. That one is made only if a peer needs it. Whoever subscribes to everything does not
// know the first.
func TestMeshPublishesEither(t *testing.T) {
	h := start(t, zmqsock.DefaultOptions())
	endpoint := zmqtest.FreeEndpoint(t)
	const short = "short.v1"
	known := []string{topics[0], short}
	m := zmqsock.NewMesh(h, endpoint, known)
	zmqtest.Rebind(t, m.Open)
	made := 0
	either := func(payload string) {
		t.Helper()
		err := m.PublishEither(short, []byte("short "+payload), topics[0], func() []byte {
			made++
			return []byte("long " + payload)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	heard := func(subscribed []string) (l *zmqtest.Log, stop func()) {
		l = zmqtest.NewLog()
		other := zmqsock.NewMesh(h, zmqtest.FreeEndpoint(t), subscribed)
		stop, err := other.Follow(endpoint, func(topic string, payload []byte) { l.Add(topic + " " + string(payload)) }, l.Status)
		if err != nil {
			t.Fatal(err)
		}
		return l, stop
	}
	both, stop := heard(known)
	defer stop()
	until(t, m, "begin", both)
	either("1")
	both.Await(t, "the short form", zmqtest.Has(short+" short 1"))
	if made != 0 {
		t.Error("the long form was made for nobody")
	}
	one, stop := heard(known[:1])
	defer stop()
	until(t, m, "begin", one)
	either("2")
	one.Await(t, "the long form", zmqtest.Has(topics[0]+" long 2"))
	both.Await(t, "the short form", zmqtest.Has(short+" short 2"))

	all, stop := heard(append([]string{""}, known...))
	defer stop()
	until(t, m, "begin", all)
	either("3")
	either("4")
	for _, l := range []*zmqtest.Log{one, all} {
		l.Await(t, "the long form", zmqtest.Has(topics[0]+" long 4"))
	}
	both.Await(t, "the short form", zmqtest.Has(short+" short 4"))
	for _, l := range []*zmqtest.Log{both, one, all} {
		n := 0
		for _, line := range l.Snapshot() {
			if strings.HasSuffix(line, " 3") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("heard %q, one message %d times", l.Snapshot(), n)
		}
	}
}
