package zmqsock_test

import (
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// An idle stream costs about 12 KiB, with stacks; the test's end of it is in the bound.
func TestIdleStreamsAreCheap(t *testing.T) {
	const streams, most = 500, 14 << 10
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hello := append([]byte("\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01NULL"), make([]byte, 48)...)
	hello = append(hello, "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"...)
	conns := make([]net.Conn, 0, streams)
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for range streams {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn)
			_, _ = conn.Write(hello)
		}
	}()
	defer func() {
		_ = listener.Close()
		<-accepted
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	h := start(t, zmqsock.DefaultOptions())
	before := memoryInUse()
	up := make(chan struct{}, streams)
	for range streams {
		_, err := h.Subscribe("tcp://"+listener.Addr().String(), nil,
			func([][]byte, *memory.Buffer, time.Time) bool { return true }, func(bool) { up <- struct{}{} })
		if err != nil {
			t.Fatal(err)
		}
	}
	for range streams {
		<-up
	}
	<-accepted
	for _, c := range conns { // their own side of the handshake
		_, _ = io.CopyN(io.Discard, c, 64)
	}
	awaitCheap(t, streams, most, before)
}

// awaitCheap waits until what is in use since before is at most that much for each stream:
// what attempts and handshakes take is less at some times than at others.
func awaitCheap(t *testing.T, streams, most, before int64) {
	t.Helper()
	for end := time.Now().Add(zmqtest.Patience); ; {
		each := (memoryInUse() - before) / streams
		if each <= most {
			t.Logf("%d bytes a stream", each)
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d bytes a stream, want at most %d", each, most)
		}
	}
}

// memoryInUse returns the bytes of the live heap and of stacks.
func memoryInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// A stream that leads nowhere costs at most 2 KiB; what attempts to connect take is
// bounded for all together.
func TestDeadStreamsAreCheap(t *testing.T) {
	const streams, most = 4096, 2 << 10
	for name, c := range map[string]struct {
		endpoint string
		attempts int64 // bytes
	}{
		"closed port":  {"tcp://127.0.0.1:1", 128 * 24 << 10},
		"no such name": {"tcp://nowhere:5557", 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := startWith(t, newNames())
			before := memoryInUse()
			for range streams {
				_, err := h.Subscribe(c.endpoint, nil, func([][]byte, *memory.Buffer, time.Time) bool { return true }, func(bool) {})
				if err != nil {
					t.Fatal(err)
				}
			}
			awaitCheap(t, streams, most, before+c.attempts)
		})
	}
}
