package zmqsock_test

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

	"go.uber.org/goleak"

	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/internal/zmqsock"
	"github.com/select-service/select-service/internal/zmqsock/zmqtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSubscribeConnectsAndReconnects(t *testing.T) {
	h, l := start(t, zmqsock.DefaultOptions()), newLog()
	pub := zmqtest.NewPublisher(t, "")
	defer pub.Close()
	subscribe(t, h, pub.Endpoint, l)
	pub.Subscribers(1)
	pub.Publish(1, []byte("one"))
	l.await(t, "first message", has("up", first)) // the connection before its first message

	pub.Restart()
	pub.Subscribers(1)
	pub.Send([]byte("topic"), []byte("odd"))
	l.await(t, "reconnect and message", has(first, `["topic" "odd"]`))
	l.await(t, "reconnect and message", has("up", "down", "up"))
}

func TestSubscribeBinds(t *testing.T) {
	h, l := start(t, zmqsock.DefaultOptions()), newLog()
	endpoint := zmqtest.Wildcard(zmqtest.FreeEndpoint(t))
	id := subscribe(t, h, endpoint, l)
	if _, err := h.Subscribe(endpoint, nil, l.timed, l.status); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("second bind: error %v, want address already in use", err)
	}
	connectTo := strings.Replace(endpoint, "*", "127.0.0.1", 1)
	one, two := zmqtest.Connect(t, connectTo), zmqtest.Connect(t, connectTo)
	one.Subscribers(1)
	two.Subscribers(1)
	one.Publish(1, []byte("one"))
	l.await(t, "message of a connected publisher", has(first))
	one.Close()
	two.Publish(1, []byte("two"))
	l.await(t, "message of the other", has(strings.Replace(first, "one", "two", 1)))
	if slices.Contains(l.snapshot(), "down") {
		t.Error("down while a publisher is connected")
	}
	two.Close()
	l.await(t, "both publishers gone", has("up", "up", "down"))

	h.Close(id)
	again := newLog()
	rebind(t, func() error { _, err := h.Subscribe(endpoint, nil, again.timed, again.status); return err })
	three := zmqtest.Connect(t, connectTo)
	defer three.Close()
	three.Subscribers(1)
	three.Publish(1, []byte("one"))
	again.await(t, "message after binding again", has(first))
}

func TestSubscribeErrors(t *testing.T) {
	h, l := start(t, zmqsock.DefaultOptions()), newLog()
	for _, endpoint := range []string{"", "nonsense", "tcp://", "tcp://*:http-", "ftp://host:1"} {
		if _, err := h.Subscribe(endpoint, nil, l.timed, l.status); err == nil {
			t.Errorf("Subscribe(%q) succeeded", endpoint)
		}
	}
	if _, err := h.Request("tcp://*:5", [][]byte{nil}, l.answer); err == nil {
		t.Error("Request to a wildcard succeeded")
	}
}

// A paused socket is not read: libzmq's queues fill and hold the publisher
// back. After Resume everything is there, in order.
func TestPauseHoldsThePublisherBackWithoutLoss(t *testing.T) {
	h, l := start(t, zmqsock.DefaultOptions()), newLog()
	pub := zmqtest.NewPublisher(t, "")
	defer pub.Close()
	id := subscribe(t, h, pub.Endpoint, l)
	pub.Subscribers(1)
	l.setPause(true)

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
	l.await(t, "first message", func(events []string) bool { return messages(events) > 0 })
	if n := messages(l.snapshot()); n != 1 {
		t.Errorf("paused after one message, got %d", n)
	}
	l.setPause(false)
	h.Resume(id)
	l.await(t, "all messages", func(events []string) bool { return messages(events) == sent })
	seq := uint64(0)
	for _, e := range l.snapshot() {
		if strings.HasPrefix(e, `["`) {
			if want := text([][]byte{{}, zmqtest.Seq(seq), payload}); e != want {
				t.Fatalf("message %d is %.60s…", seq, e)
			}
			seq++
		}
	}
	t.Logf("%d messages of %d KiB waited", sent, len(payload)>>10)
}

func TestRequest(t *testing.T) {
	for _, topic := range []bool{false, true} {
		t.Run(fmt.Sprintf("topic=%v", topic), func(t *testing.T) {
			h, l := start(t, zmqsock.DefaultOptions()), newLog()
			server := zmqtest.NewReplayServer(t, "", topic)
			defer server.Close()
			server.Keep(zmqtest.Kept{Seq: 0, Payload: []byte("zero")}, zmqtest.Kept{Seq: 1, Payload: []byte("one")})
			id, err := h.Request(server.Endpoint, [][]byte{nil, zmqtest.Seq(1)}, l.answer)
			if err != nil {
				t.Fatal(err)
			}
			answer, end := first, `["" "\xff\xff\xff\xff\xff\xff\xff\xff" ""]`
			if topic {
				answer, end = `["" `+answer[1:], `["" `+end[1:]
			}
			l.await(t, "answers", has(answer, end))
			if got := server.Requests(); !slices.Equal(got, []uint64{1}) {
				t.Errorf("requests %v, want [1]", got)
			}
			h.Close(id)
		})
	}
}

// The request waits in the socket until the server is there.
func TestRequestBeforeTheServer(t *testing.T) {
	h, l := start(t, zmqsock.DefaultOptions()), newLog()
	endpoint := zmqtest.FreeEndpoint(t)
	if _, err := h.Request(endpoint, [][]byte{nil, zmqtest.Seq(0)}, l.answer); err != nil {
		t.Fatal(err)
	}
	server := zmqtest.NewReplayServer(t, endpoint, false)
	defer server.Close()
	l.await(t, "end mark", func(events []string) bool { return len(events) == 1 })
}

func TestHugeMessages(t *testing.T) {
	opt := zmqsock.DefaultOptions()
	opt.MaxMessage = 1 << 20
	h, l := start(t, opt), newLog()
	pub := zmqtest.NewPublisher(t, "")
	defer pub.Close()
	subscribe(t, h, pub.Endpoint, l)
	pub.Subscribers(1)

	pub.Send(make([][]byte, 8)...)
	l.await(t, "message of eight frames", has(fmt.Sprintf("%q", make([][]byte, 8))))
	pub.Send(make([][]byte, 9)...)
	l.await(t, "disconnected by more frames", has("up", "down", "up"))
	pub.Subscriptions(2)
	pub.Publish(1, make([]byte, 1<<20+1))
	l.await(t, "disconnected by the frame above the limit", has("up", "down", "up", "down", "up"))
	pub.Subscriptions(3)
	pub.Publish(1, []byte("one"))
	l.await(t, "next message", has(first))
	if got := h.Refused(); got["too_many_frames"] != 1 || got["too_large"] != 1 {
		t.Errorf("refused %v", got)
	}
}

// Something else answers at the endpoint first; libzmq alone would never try
// again.
func TestSubscribeSurvivesAForeignServer(t *testing.T) {
	h, l := start(t, zmqsock.DefaultOptions()), newLog()
	endpoint := zmqtest.FreeEndpoint(t)
	listener, err := net.Listen("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	subscribe(t, h, endpoint, l)
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
	pub := zmqtest.NewPublisher(t, endpoint)
	defer pub.Close()
	pub.Subscribers(1)
	pub.Publish(1, []byte("one"))
	l.await(t, "message of the publisher", has(first))
	if got := l.snapshot(); got[0] != "up" || len(got) != 2 {
		t.Errorf("events %q, want up and the message", got)
	}
}

func TestCloseEndsCallbacks(t *testing.T) {
	h, l := start(t, zmqsock.DefaultOptions()), newLog()
	pub := zmqtest.NewPublisher(t, "")
	defer pub.Close()
	id := subscribe(t, h, pub.Endpoint, l)
	pub.Subscribers(1)
	for i := range uint64(1000) {
		pub.Publish(i, []byte("x"))
	}
	h.Close(id)
	n := len(l.snapshot())
	pub.Subscribers(0)
	h.Close(id)  // closing twice,
	h.Resume(id) // or anything else on a closed socket, does nothing
	if got := len(l.snapshot()); got != n {
		t.Errorf("%d callbacks after Close", got-n)
	}
}

func TestStoppedHub(t *testing.T) {
	h, l := zmqsock.New(zmqsock.DefaultOptions()), newLog()
	h.Close(1)
	h.Resume(1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Subscribe("tcp://127.0.0.1:1", nil, l.timed, l.status); !errors.Is(err, zmqsock.ErrStopped) {
		t.Errorf("Subscribe: %v, want ErrStopped", err)
	}
	if _, err := h.Request("tcp://127.0.0.1:1", [][]byte{nil}, l.answer); !errors.Is(err, zmqsock.ErrStopped) {
		t.Errorf("Request: %v, want ErrStopped", err)
	}
}

func TestBound(t *testing.T) {
	for endpoint, want := range map[string]bool{
		"tcp://*:5557":              true,
		"tcp://0.0.0.0:5557":        true,
		"tcp://[::]:5557":           true,
		"tcp://[0:0::0]:5557":       true,
		"tcp://127.0.0.1:5557":      false,
		"tcp://[::1]:5557":          false,
		"tcp://host:5557":           false,
		"tcp://*":                   false,
		"tcp://":                    false,
		"ipc:///tmp/*:1":            false,
		"inproc://*:1":              false,
		"":                          false,
		"tcp://0.0.0.0.example:555": false,
	} {
		if got := zmqsock.Bound(endpoint); got != want {
			t.Errorf("Bound(%q) = %v, want %v", endpoint, got, want)
		}
	}
}

func BenchmarkReceive(b *testing.B) {
	for _, size := range []int{200, 8192} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			h := start(b, zmqsock.DefaultOptions())
			pub := zmqtest.NewPublisher(b, "")
			defer pub.Close()
			got, done := 0, make(chan struct{})
			_, err := h.Subscribe(pub.Endpoint, nil, func([][]byte, *budget.Buffer, time.Time) bool {
				if got++; got == b.N {
					close(done)
				}
				return true
			}, func(bool) {})
			if err != nil {
				b.Fatal(err)
			}
			pub.Subscribers(1)
			payload := make([]byte, size)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				pub.Publish(uint64(i), payload)
			}
			<-done
		})
	}
}
