package zmtp_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/select-service/select-service/internal/transport/curve"
	"github.com/select-service/select-service/internal/transport/zmtp"
)

const patience = 2 * time.Minute

// libzmq is a socket of libzmq with the keys of one side of CURVE.
func libzmq(t *testing.T, typ zmq4.Type, set ...func(*zmq4.Socket) error) *zmq4.Socket {
	t.Helper()
	s, err := zmq4.NewSocket(typ)
	if err == nil {
		err = errors.Join(s.SetLinger(0), s.SetRcvtimeo(patience), s.SetSndtimeo(patience), s.SetIpv6(true))
	}
	for _, f := range set {
		err = errors.Join(err, f(s))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func asServer(own *curve.KeyPair) func(*zmq4.Socket) error {
	return func(s *zmq4.Socket) error {
		return errors.Join(s.SetCurveServer(1), s.SetCurveSecretkey(own.SecretText()))
	}
}

func asClient(own *curve.KeyPair, server curve.PublicKey) func(*zmq4.Socket) error {
	return func(s *zmq4.Socket) error {
		return errors.Join(s.SetCurveServerkey(server.String()), s.SetCurvePublickey(own.Public.String()), s.SetCurveSecretkey(own.SecretText()))
	}
}

// bound binds a socket to a free port and returns its address.
func bound(t *testing.T, s *zmq4.Socket) string {
	t.Helper()
	if err := s.Bind("tcp://127.0.0.1:*"); err != nil {
		t.Fatal(err)
	}
	endpoint, err := s.GetLastEndpoint()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(endpoint, "tcp://")
}

func options(typ string, m zmtp.Mechanism) zmtp.Options {
	return zmtp.Options{
		SocketType: typ, Mechanism: m, MaxMessage: 16 << 20,
		HandshakeTime: patience, Heartbeat: 5 * time.Millisecond, Silence: patience,
	}
}

func dial(t *testing.T, address string, m zmtp.Mechanism) (*zmtp.Conn, error) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c, err := zmtp.Handshake(conn, options("SUB", m))
	if err == nil {
		t.Cleanup(c.Close)
	}
	return c, err
}

var sizes = []int{0, 1, 200, 254, 255, 256, 4000, 5000, 100_000, 9 << 20}

func payload(n int) []byte { return bytes.Repeat([]byte("payload "), n/8+1)[:n] }

// A client of ours understands libzmq's server, heartbeats included.
func TestCurveWithLibzmqServer(t *testing.T) {
	server, own := curve.NewKeyPair(), curve.NewKeyPair()
	pub := libzmq(t, zmq4.XPUB, asServer(server))
	c, err := dial(t, bound(t, pub), zmtp.CurveClient(own, server.Public))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Subscribe([]byte("topic")); err != nil {
		t.Fatal(err)
	}
	if got, err := pub.RecvBytes(0); err != nil || string(got) != "\x01topic" {
		t.Fatalf("subscription %q, %v", got, err)
	}
	for _, size := range sizes {
		if _, err := pub.SendMessage("topic", payload(size)); err != nil {
			t.Fatal(err)
		}
		m, err := c.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Frames) != 2 || string(m.Frames[0]) != "topic" || !bytes.Equal(m.Frames[1], payload(size)) {
			t.Fatalf("payload of %d bytes came as %.80q", size, m.Frames)
		}
	}
}

// A server of ours understands libzmq's client.
func TestCurveWithLibzmqClient(t *testing.T) {
	server, own := curve.NewKeyPair(), curve.NewKeyPair()
	accepted, address := serve(t, server, func(k curve.PublicKey) bool { return k == own.Public })
	sub := libzmq(t, zmq4.SUB, asClient(own, server.Public))
	if err := errors.Join(sub.Connect("tcp://"+address), sub.SetSubscribe("topic")); err != nil {
		t.Fatal(err)
	}
	got := <-accepted
	if got.err != nil {
		t.Fatal(got.err)
	}
	m, err := got.conn.Receive()
	if err != nil || fmt.Sprintf("%q", m.Frames) != `["\x01topic"]` {
		t.Fatalf("subscription %q, %v", m.Frames, err)
	}
	for _, size := range sizes {
		if err := got.conn.Send([]byte("topic"), payload(size)); err != nil {
			t.Fatal(err)
		}
		frames, err := sub.RecvMessageBytes(0)
		if err != nil || len(frames) != 2 || !bytes.Equal(frames[1], payload(size)) {
			t.Fatalf("payload of %d bytes came as %.80q, %v", size, frames, err)
		}
	}
}

type acceptance struct {
	conn *zmtp.Conn
	err  error
}

// serve accepts the first connection as a PUB with keys.
func serve(t *testing.T, own *curve.KeyPair, allowed func(curve.PublicKey) bool) (<-chan acceptance, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan acceptance, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			accepted <- acceptance{nil, err}
			return
		}
		c, err := zmtp.Handshake(conn, options("PUB", zmtp.CurveServer(own, allowed)))
		if err == nil {
			t.Cleanup(c.Close)
		}
		accepted <- acceptance{c, err}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return accepted, l.Addr().String()
}

func wantReason(t *testing.T, err error, reason zmtp.Reason, text string) {
	t.Helper()
	var refused *zmtp.Error
	if !errors.As(err, &refused) || refused.Reason != reason || !strings.Contains(err.Error(), text) {
		t.Errorf("%v, want %v with %q", err, reason, text)
	}
}

// Keys that do not fit end the handshake, and say so.
func TestCurveRefusals(t *testing.T) {
	server, own, other := curve.NewKeyPair(), curve.NewKeyPair(), curve.NewKeyPair()
	t.Run("libzmq has another server key", func(t *testing.T) {
		_, err := dial(t, bound(t, libzmq(t, zmq4.XPUB, asServer(server))), zmtp.CurveClient(own, other.Public))
		wantReason(t, err, zmtp.BadKey, "the server hangs up: it does not have the key "+other.Public.String())
	})
	t.Run("libzmq is plain", func(t *testing.T) {
		_, err := dial(t, bound(t, libzmq(t, zmq4.XPUB)), zmtp.CurveClient(own, server.Public))
		wantReason(t, err, zmtp.OtherMechanism, "CURVE")
	})
	t.Run("libzmq wants CURVE", func(t *testing.T) {
		_, err := dial(t, bound(t, libzmq(t, zmq4.XPUB, asServer(server))), zmtp.Null{})
		wantReason(t, err, zmtp.OtherMechanism, "NULL")
	})
	t.Run("libzmq does not allow our key", func(t *testing.T) {
		if err := zmq4.AuthStart(); err != nil {
			t.Fatal(err)
		}
		defer zmq4.AuthStop()
		zmq4.AuthCurveAdd("engines", other.Public.String())
		pub := libzmq(t, zmq4.XPUB, asServer(server), func(s *zmq4.Socket) error { return s.SetZapDomain("engines") })
		address := bound(t, pub)
		_, err := dial(t, address, zmtp.CurveClient(own, server.Public))
		wantReason(t, err, zmtp.BadKey, `refuses our key: "400"`)
		if _, err := dial(t, address, zmtp.CurveClient(other, server.Public)); err != nil {
			t.Errorf("the key that is allowed: %v", err)
		}
	})
	for name, tc := range map[string]struct {
		client func(*zmq4.Socket) error
		reason zmtp.Reason
		text   string
	}{
		"client is not allowed":       {asClient(own, server.Public), zmtp.BadKey, own.Public.String() + " is not allowed"},
		"client knows another server": {asClient(own, other.Public), zmtp.BadKey, "HELLO cannot be opened"},
		"client is plain":             {func(*zmq4.Socket) error { return nil }, zmtp.OtherMechanism, "CURVE"},
	} {
		t.Run(name, func(t *testing.T) {
			accepted, address := serve(t, server, func(k curve.PublicKey) bool { return k == other.Public })
			if err := libzmq(t, zmq4.SUB, tc.client).Connect("tcp://" + address); err != nil {
				t.Fatal(err)
			}
			wantReason(t, (<-accepted).err, tc.reason, tc.text)
		})
	}
}
