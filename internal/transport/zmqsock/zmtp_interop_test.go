package zmqsock_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/transport/zmtp"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// A connection of our own understands libzmq's.
func TestLibzmqPublisher(t *testing.T) {
	pub := zmqtest.NewPublisher(t, "")
	defer pub.Close()
	conn, err := net.Dial("tcp", strings.TrimPrefix(pub.Endpoint, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := zmtp.Handshake(conn, zmtp.Options{SocketType: "SUB", MaxMessage: 64 << 20, HandshakeTime: 10 * time.Second, Heartbeat: 5 * time.Millisecond, Silence: zmqtest.Patience})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Subscribe(nil); err != nil {
		t.Fatal(err)
	}
	pub.Subscribers(1)
	for i, size := range []int{0, 1, 30, 255, 256, 4000, 5000, 100_000, 10 << 20} {
		payload := make([]byte, size)
		for j := range payload {
			payload[j] = byte(j * 7)
		}
		pub.Publish(uint64(i), payload)
		m, err := c.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := fmt.Sprintf("%x", m.Frames), fmt.Sprintf("%x", [][]byte{{}, zmqtest.Seq(uint64(i)), payload}); got != want {
			t.Fatalf("payload of %d bytes came as %.100s", size, got)
		}
		if want := int64(memory.BufferSize(size+8)) + zmtp.MessageOverhead; m.Memory.Size() != want {
			t.Errorf("payload of %d bytes holds %d, not %d", size, m.Memory.Size(), want)
		}
		m.Memory.Release(nil)
	}
}
