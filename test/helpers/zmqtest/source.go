package zmqtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/kvevents"
)

// Source is a source with a goroutine that owns its sockets.
type Source interface {
	kvevents.Source
	Run(ctx context.Context) error
}

// TestSource proves that the sources that open returns, with their default options, keep the
// contract of kvevents.Source, with libzmq's sockets as the publishers. stopped is the error
// after the end of Run.
func TestSource(t *testing.T, open func() Source, stopped error) {
	for name, test := range map[string]func(*testing.T, func() Source){
		"connects and reconnects":   testSubscribeConnectsAndReconnects,
		"binds":                     testSubscribeBinds,
		"errors":                    testSubscribeErrors,
		"pause":                     testPauseHoldsThePublisherBackWithoutLoss,
		"huge frame":                testHugeFrame,
		"foreign server":            testSubscribeSurvivesAForeignServer,
		"close ends callbacks":      testCloseEndsCallbacks,
		"request":                   testRequest,
		"request before its server": testRequestBeforeTheServer,
	} {
		t.Run(name, func(t *testing.T) { test(t, open) })
	}
	t.Run("stopped", func(t *testing.T) { testStopped(t, open(), stopped) })
}

// Start runs a source for the length of the test.
func Start[S Source](t testing.TB, source S) S {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- source.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return source
}

// Subscribe follows a publisher until the source ends, and logs what comes.
func Subscribe(t testing.TB, source kvevents.Source, endpoint string, l *Log) uint64 {
	t.Helper()
	id, err := source.Subscribe(endpoint, nil, l.Message, l.Status)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func testSubscribeConnectsAndReconnects(t *testing.T, open func() Source) {
	source, l := Start(t, open()), NewLog()
	pub := NewPublisher(t, "")
	defer pub.Close()
	Subscribe(t, source, pub.Endpoint, l)
	pub.Subscribers(1)
	pub.Publish(1, []byte("one"))
	l.Await(t, "first message", Has("up", First)) // the connection before its first message

	pub.Restart()
	pub.Subscribers(1)
	pub.Send([]byte("topic"), []byte("odd"))
	l.Await(t, "reconnect and message", Has(First, `["topic" "odd"]`))
	l.Await(t, "reconnect and message", Has("up", "down", "up"))
}

func testSubscribeBinds(t *testing.T, open func() Source) {
	source, l := Start(t, open()), NewLog()
	endpoint := Wildcard(FreeEndpoint(t))
	id := Subscribe(t, source, endpoint, l)
	if _, err := source.Subscribe(endpoint, nil, l.Message, l.Status); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("second bind: error %v, want address already in use", err)
	}
	connectTo := strings.Replace(endpoint, "*", "127.0.0.1", 1)
	one, two := Connect(t, connectTo), Connect(t, connectTo)
	one.Subscribers(1)
	two.Subscribers(1)
	one.Publish(1, []byte("one"))
	l.Await(t, "message of a connected publisher", Has(First))
	l.Await(t, "both publishers", Has("up", "up")) // a publisher may know of the connection before the source has reported it
	one.Close()
	two.Publish(1, []byte("two"))
	l.Await(t, "message of the other", Has(strings.Replace(First, "one", "two", 1)))
	if slices.Contains(l.Snapshot(), "down") {
		t.Error("down while a publisher is connected")
	}
	two.Close()
	l.Await(t, "both publishers gone", Has("up", "up", "down"))

	source.Close(id)
	again := NewLog()
	Rebind(t, func() error { _, err := source.Subscribe(endpoint, nil, again.Message, again.Status); return err })
	three := Connect(t, connectTo)
	defer three.Close()
	three.Subscribers(1)
	three.Publish(1, []byte("one"))
	again.Await(t, "message after binding again", Has(First))
}

func testSubscribeErrors(t *testing.T, open func() Source) {
	source, l := Start(t, open()), NewLog()
	for _, endpoint := range []string{"", "nonsense", "tcp://", "tcp://*:http-", "ftp://host:1"} {
		if _, err := source.Subscribe(endpoint, nil, l.Message, l.Status); err == nil {
			t.Errorf("Subscribe(%q) succeeded", endpoint)
		}
	}
	if _, err := source.Request("tcp://*:5", [][]byte{nil}, l.Answer); err == nil {
		t.Error("Request to a wildcard succeeded")
	}
}

// A paused socket is not read: libzmq's queues fill and hold the publisher
// back. After Resume everything is there, in order.
func testPauseHoldsThePublisherBackWithoutLoss(t *testing.T, open func() Source) {
	source, l := Start(t, open()), NewLog()
	pub := NewPublisher(t, "")
	defer pub.Close()
	id := Subscribe(t, source, pub.Endpoint, l)
	pub.Subscribers(1)
	l.SetPause(true)

	payload := make([]byte, 8<<10)
	sent := uint64(0)
	for refused := 0; refused < 50; { // fill the queues: nothing below depends on their being quite full
		if pub.TrySend(sent, payload) {
			sent++
			refused = 0
		} else {
			refused++
			<-time.After(2 * time.Millisecond)
		}
	}
	messages := func(events []string) (n uint64) {
		for _, e := range events {
			if e != "up" && e != "down" {
				n++
			}
		}
		return n
	}
	l.Await(t, "first message", func(events []string) bool { return messages(events) > 0 })
	if n := messages(l.Snapshot()); n != 1 {
		t.Errorf("paused after one message, got %d", n)
	}
	l.SetPause(false)
	source.Resume(id)
	l.Await(t, "all messages", func(events []string) bool { return messages(events) == sent })
	seq := uint64(0)
	for _, e := range l.Snapshot() {
		if strings.HasPrefix(e, `["`) {
			if want := Text([][]byte{{}, Seq(seq), payload}); e != want {
				t.Fatalf("message %d is %.60s…", seq, e)
			}
			seq++
		}
	}
	t.Logf("%d messages of %d KiB waited", sent, len(payload)>>10)
}

func testRequest(t *testing.T, open func() Source) {
	for _, topic := range []bool{false, true} {
		t.Run(fmt.Sprintf("topic=%v", topic), func(t *testing.T) {
			source, l := Start(t, open()), NewLog()
			server := NewReplayServer(t, "", topic)
			defer server.Close()
			server.Keep(Kept{Seq: 0, Payload: []byte("zero")}, Kept{Seq: 1, Payload: []byte("one")})
			id, err := source.Request(server.Endpoint, [][]byte{nil, Seq(1)}, l.Answer)
			if err != nil {
				t.Fatal(err)
			}
			answer, end := First, `["" "\xff\xff\xff\xff\xff\xff\xff\xff" ""]`
			if topic {
				answer, end = `["" `+answer[1:], `["" `+end[1:]
			}
			l.Await(t, "answers", Has(answer, end))
			if got := server.Requests(); !slices.Equal(got, []uint64{1}) {
				t.Errorf("requests %v, want [1]", got)
			}
			source.Close(id)
		})
	}
}

// The request waits in the socket until the server is there.
func testRequestBeforeTheServer(t *testing.T, open func() Source) {
	source, l := Start(t, open()), NewLog()
	endpoint := FreeEndpoint(t)
	if _, err := source.Request(endpoint, [][]byte{nil, Seq(0)}, l.Answer); err != nil {
		t.Fatal(err)
	}
	server := NewReplayServer(t, endpoint, false)
	defer server.Close()
	l.Await(t, "end mark", func(events []string) bool { return len(events) == 1 })
}

// Something else answers at the endpoint first; libzmq alone would never try
// again.
func testSubscribeSurvivesAForeignServer(t *testing.T, open func() Source) {
	source, l := Start(t, open()), NewLog()
	endpoint := FreeEndpoint(t)
	listener, err := net.Listen("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	Subscribe(t, source, endpoint, l)
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	// A ZMTP 3.0 greeting of a mechanism that does not exist.
	greeting := append([]byte("\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00BOGUS"), make([]byte, 47)...)
	if _, err := conn.Write(greeting); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, conn) // until the other side gives up
	_ = conn.Close()
	_ = listener.Close()
	pub := NewPublisher(t, endpoint)
	defer pub.Close()
	pub.Subscribers(1)
	pub.Publish(1, []byte("one"))
	l.Await(t, "message of the publisher", Has(First))
	if got := l.Snapshot(); got[0] != "up" || len(got) != 2 {
		t.Errorf("events %q, want up and the message", got)
	}
}

func testCloseEndsCallbacks(t *testing.T, open func() Source) {
	source, l := Start(t, open()), NewLog()
	pub := NewPublisher(t, "")
	defer pub.Close()
	id := Subscribe(t, source, pub.Endpoint, l)
	pub.Subscribers(1)
	for i := range uint64(1000) {
		pub.Publish(i, []byte("x"))
	}
	source.Close(id)
	n := len(l.Snapshot())
	pub.Subscribers(0)
	source.Close(id)  // closing twice,
	source.Resume(id) // or anything else on a closed socket, does nothing
	if got := len(l.Snapshot()); got != n {
		t.Errorf("%d callbacks after Close", got-n)
	}
}

// A frame above the limit of 64 MiB costs the publisher its connection, not its stream.
func testHugeFrame(t *testing.T, open func() Source) {
	source, l := Start(t, open()), NewLog()
	pub := NewPublisher(t, "")
	defer pub.Close()
	Subscribe(t, source, pub.Endpoint, l)
	pub.Subscribers(1)
	pub.Publish(0, make([]byte, 64<<20+1))
	l.Await(t, "disconnected by the frame above the limit", Has("up", "down", "up"))
	pub.Subscriptions(2)
	pub.Publish(1, []byte("one"))
	l.Await(t, "next message", Has(First))
}

func testStopped(t *testing.T, source Source, stopped error) {
	l := NewLog()
	source.Close(1)
	source.Resume(1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := source.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := source.Subscribe("tcp://127.0.0.1:1", nil, l.Message, l.Status); !errors.Is(err, stopped) {
		t.Errorf("Subscribe: %v, want %v", err, stopped)
	}
	if _, err := source.Request("tcp://127.0.0.1:1", [][]byte{nil}, l.Answer); !errors.Is(err, stopped) {
		t.Errorf("Request: %v, want %v", err, stopped)
	}
	source.Close(1)
	source.Resume(1)
}

// Rebind runs bind until the port of a closed socket is free again: libzmq gives
// it back in the background.
func Rebind(t testing.TB, bind func() error) {
	t.Helper()
	err := bind()
	for begin := time.Now(); err != nil && strings.Contains(err.Error(), "address already in use") && time.Since(begin) < Patience; {
		err = bind()
	}
	if err != nil {
		t.Fatal(err)
	}
}
