package zmqsock_test

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSource(t *testing.T) {
	zmqtest.TestSource(t, func() zmqtest.Source { return zmqsock.New(zmqsock.DefaultOptions()) }, zmqsock.ErrStopped)
}

func TestHugeMessages(t *testing.T) {
	opt := zmqsock.DefaultOptions()
	opt.MaxMessage = 1 << 20
	h, l := start(t, opt), zmqtest.NewLog()
	pub := zmqtest.NewPublisher(t, "")
	defer pub.Close()
	subscribe(t, h, pub.Endpoint, l)
	pub.Subscribers(1)

	pub.Send(make([][]byte, 8)...)
	l.Await(t, "message of eight frames", zmqtest.Has(fmt.Sprintf("%q", make([][]byte, 8))))
	pub.Send(make([][]byte, 9)...)
	l.Await(t, "disconnected by more frames", zmqtest.Has("up", "down", "up"))
	pub.Subscriptions(2)
	pub.Publish(1, make([]byte, 1<<20+1))
	l.Await(t, "disconnected by the frame above the limit", zmqtest.Has("up", "down", "up", "down", "up"))
	pub.Subscriptions(3)
	pub.Publish(1, []byte("one"))
	l.Await(t, "next message", zmqtest.Has(zmqtest.First))
	if got := h.Refused(); got["too_many_frames"] != 1 || got["too_large"] != 1 {
		t.Errorf("refused %v", got)
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
			_, err := h.Subscribe(pub.Endpoint, nil, func([][]byte, *memory.Buffer, time.Time) bool {
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
