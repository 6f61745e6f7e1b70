package zmqsock

import (
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/transport/zmtp"
)

// pair returns both ends of a connection with descriptors, of which ours can hold little unread data.
func pair(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	if err := ends[0].(*net.UnixConn).SetWriteBuffer(1); err != nil {
		t.Fatal(err)
	}
	return ends[0], ends[1]
}

// TestGatherWaitsForNobody: what has gathered is delivered without an answer to the peer, which may
// not read: the goroutine of its own connection answers heartbeats, after what came before them.
func TestGatherWaitsForNobody(t *testing.T) {
	const (
		report, ping, pong = "\x00\x01r", "\x04\x07\x04PING\x00\x00", "\x04\x05\x04PONG"
		heartbeats         = 200 // whose answers are more than our end can hold
	)
	ours, theirs := pair(t)
	if _, err := io.WriteString(theirs, "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01NULL"+strings.Repeat("\x00", 48)+
		"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"); err != nil {
		t.Fatal(err)
	}
	c, err := zmtp.Handshake(ours, zmtp.Options{SocketType: "SUB", InPlace: true, MaxMessage: 100, HandshakeTime: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	delivered := 0
	x := &sampled{
		socket: &socket{call: callbacks{sample: func([][]byte, time.Time, bool) { delivered++ }}},
		ctx:    t.Context(), conn: c, received: func() {},
	}
	come := func(wire string, again bool) {
		t.Helper()
		if _, err := io.WriteString(theirs, report); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Receive(); err != nil || !c.Gather() {
			t.Fatalf("nothing gathers: %v", err)
		}
		if _, err := io.WriteString(theirs, wire); err != nil {
			t.Fatal(err)
		}
		if x.read() != again {
			t.Errorf("more may gather: %t", !again)
		}
	}
	come(report+pong+report, true)
	come(report+strings.Repeat(ping+report, heartbeats), false)
	if delivered != 3 {
		t.Fatalf("%d reports were delivered before the first heartbeat", delivered)
	}
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	for range heartbeats {
		if _, err := c.Receive(); err != nil {
			t.Fatal(err)
		}
	}
}
