package zmtp_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/transport/zmtp"
)

// ledger is a Memory that knows the most that was ever held, besides buffers.
type ledger struct {
	used, peak, limit, buffers int64
	scarce                     bool // there are no large buffers
}

func (l *ledger) Reserve(n, _, _ int64) bool {
	if l.limit > 0 && l.used+n > l.limit {
		return false
	}
	l.used += n
	l.peak = max(l.peak, l.used)
	return true
}

func (l *ledger) ReserveBuffer(n int64) bool {
	if !l.scarce {
		l.buffers += n
	}
	return !l.scarce
}

func (l *ledger) ReleaseBuffer(n int64) { l.buffers -= n }

func (l *ledger) Release(n int64) { l.used -= n }

const (
	greeting = "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01NULL"
	ready    = "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
)

func padded(s string) string { return s + strings.Repeat("\x00", 64-len(s)) }

func bounded(l *ledger) zmtp.Options {
	return zmtp.Options{
		SocketType: "SUB", MaxMessage: 1 << 20, Memory: l, HandshakeTime: 10 * time.Second,
		Heartbeat: 5 * time.Second, Silence: 15 * time.Second,
	}
}

// play makes a peer say something, after a whole handshake byte by byte with pause
// after each if that is not 0, and then keep the connection. It returns what was received and the error
// that ended it.
func play(t *testing.T, l *ledger, says []byte, pause time.Duration, pair func(*testing.T) (ours, theirs net.Conn)) (messages []string, err error) {
	t.Helper()
	ours, theirs := pair(t)
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	go func() {
		atOnce := len(says)
		if pause > 0 {
			atOnce = len(padded(greeting)+ready) * bytes.Count(says, []byte(ready))
		}
		if atOnce > 0 {
			_, _ = theirs.Write(says[:atOnce])
			says = says[atOnce:]
		}
		for i := range says {
			if _, err := theirs.Write(says[i : i+1]); err != nil {
				return
			}
			time.Sleep(pause)
		}
	}()
	defer func() { _ = theirs.Close() }()
	opt := bounded(l)
	opt.InPlace = true
	c, err := zmtp.Handshake(ours, opt)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for {
		m, err := c.Receive()
		if err != nil {
			return messages, err
		}
		if len(messages)%2 == 0 {
			if m, err = c.Keep(m); err != nil {
				return messages, err
			}
		}
		messages = append(messages, fmt.Sprintf("%q", m.Frames))
		l.Release(m.Memory.Size())
		m.Memory.Release(nil)
	}
}

// Whatever a peer says is a message, or the end of the connection for a reason; it
// holds no more memory than what it has sent, but for a few KiB.
func TestPeers(t *testing.T) {
	hello := padded(greeting) + ready
	for name, tc := range map[string]struct {
		says  string
		pause time.Duration
		want  string // the messages and the error
		peak  int64  // bytes held at most
	}{
		"a message":                {hello + "\x01\x01a\x01\x00\x00\x02bc", 0, `["a" "" "bc"] silence`, 256},
		"byte by byte":             {hello + "\x01\x01a\x01\x00\x00\x02bc", 10 * time.Millisecond, `["a" "" "bc"] silence`, 256},
		"long frames":              {hello + "\x02\x00\x00\x00\x00\x00\x00\x00\x01a", 0, `["a"] silence`, 256},
		"ZMTP 3.0":                 {strings.Replace(hello, "\x7f\x03\x01", "\x7f\x03\x00", 1) + "\x00\x01a", 0, `["a"] silence`, 256},
		"a ping in a message":      {hello + "\x01\x01a\x04\x07\x04PING\x00\x00\x00\x01b", 0, `["a" "b"] silence`, 256},
		"eight frames":             {hello + strings.Repeat("\x01\x00", 7) + "\x00\x00", 0, `["" "" "" "" "" "" "" ""] silence`, 256},
		"nine frames":              {hello + strings.Repeat("\x01\x00", 9), 0, "too_many_frames", 256},
		"a huge length":            {hello + "\x02\x7f\xff\xff\xff\xff\xff\xff\xff", 0, "too_large", 256},
		"the largest length":       {hello + "\x02\xff\xff\xff\xff\xff\xff\xff\xff", 0, "too_large", 256},
		"a length and no body":     {hello + "\x02\x00\x00\x00\x00\x00\x0f\x00\x00", 0, "too_slow", 17_000},
		"too large in parts":       {hello + "\x03\x00\x00\x00\x00\x00\x0f\x00\x00" + strings.Repeat("x", 0xf0000) + "\x02\x00\x00\x00\x00\x00\x02\x00\x00", 0, "too_large", 1<<20 + 256}, // of a buffer, see memory.Buffer
		"reserved flags":           {hello + "\x08\x00", 0, "bad_frame", 256},
		"a command of frames":      {hello + "\x05\x00", 0, "bad_frame", 256},
		"a large command":          {hello + "\x06\x00\x00\x00\x00\x00\x01\x00\x00", 0, "too_large", 256},
		"an unknown command":       {hello + "\x04\x05\x04HACK", 0, "bad_frame", 256},
		"a command of no name":     {hello + "\x04\x01\x00", 0, "bad_frame", 256},
		"a long ping":              {hello + "\x04\x20\x04PING" + strings.Repeat("x", 27), 0, "bad_frame", 256},
		"many commands":            {hello + strings.Repeat("\x04\x05\x04PONG", 2000), 0, "too_many_commands", 256},
		"a message that trickles":  {hello + "\x00\xff" + strings.Repeat("x", 200), time.Second, "too_slow", 400},
		"a header that trickles":   {hello + "\x02\x00", 0, "too_slow", 256},
		"half of a message":        {hello + "\x01\x01a", 0, "too_slow", 256},
		"silence":                  {hello, 0, "silence", 256},
		"no greeting":              {"", 0, "handshake_timeout", 256},
		"half of a greeting":       {greeting, 0, "handshake_timeout", 256},
		"a greeting that trickles": {padded(greeting), time.Second, "handshake_timeout", 256},
		"no ready":                 {padded(greeting), 0, "handshake_timeout", 256},
		"HTTP":                     {"HTTP/1.1 400 Bad Request\r\n\r\n", 0, "bad_greeting", 256},
		"no signature":             {"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7e\x03", 0, "bad_greeting", 256},
		"ZMTP 2.0":                 {"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01\x02", 0, "old_version", 256},
		"PLAIN":                    {padded(strings.Replace(greeting, "NULL", "PLAIN", 1)), 0, "other_mechanism", 256},
		"NULL and more":            {padded(greeting + "X"), 0, "other_mechanism", 256},
		"a message at once":        {padded(greeting) + "\x00\x01a", 0, "bad_handshake", 256},
		"an error":                 {padded(greeting) + "\x04\x0a\x05ERROR\x03bad", 0, "bad_handshake", 256},
		"a large ready":            {padded(greeting) + "\x06\x00\x00\x00\x00\x00\x00\xff\xff", 0, "bad_handshake", 256},
		"bad metadata":             {padded(greeting) + "\x04\x0c\x05READY\x0bSocke", 0, "bad_handshake", 256},
		"a huge property":          {padded(greeting) + "\x04\x0d\x05READY\x01a\xff\xff\xff\xffb", 0, "bad_handshake", 256},
		"another type":             {padded(greeting) + strings.Replace(ready, "PUB", "SUB", 1), 0, "bad_peer_type", 256},
	} {
		for kind, pair := range map[string]func(*testing.T) (ours, theirs net.Conn){"read": pipe, "polled": polled} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var l ledger
					messages, err := play(t, &l, []byte(tc.says), tc.pause, pair)
					time.Sleep(time.Minute) // the peer has noticed
					reason := "silence"
					if fault := new(zmtp.Error); errors.As(err, &fault) {
						reason = fault.Reason.String()
					}
					if got := strings.Join(append(messages, reason), " "); got != tc.want {
						t.Errorf("%s (%v), want %s", got, err, tc.want)
					}
					if l.used != 0 || l.buffers != 0 || l.peak > tc.peak {
						t.Errorf("%d bytes are held, %d at most, and %d of buffers", l.used, l.peak, l.buffers)
					}
				})
			})
		}
	}
}

func pipe(*testing.T) (ours, theirs net.Conn) { return net.Pipe() }

// A message takes memory as it comes: never more than four times of what has, and 16 KiB.
func TestMemoryFollowsWhatComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer func() { _ = theirs.Close() }()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		var l ledger
		done := make(chan error)
		go func() {
			c, err := zmtp.Handshake(ours, bounded(&l))
			if err == nil {
				defer c.Close()
				_, err = c.Receive()
			}
			done <- err
		}()
		_, _ = theirs.Write([]byte(padded(greeting) + ready + "\x02\x00\x00\x00\x00\x00\x0f\xff\xff"))
		for sent := int64(0); sent < 0xf0000; sent += 1000 {
			_, _ = theirs.Write(bytes.Repeat([]byte("x"), 1000))
			synctest.Wait()
			if most := 4*(sent+1000) + 16<<10 + zmtp.MessageOverhead; l.used > most {
				t.Fatalf("%d bytes are held after %d, want at most %d", l.used, sent, most)
			}
		}
		_ = theirs.Close()
		if err := <-done; err == nil || l.used != 0 {
			t.Errorf("%v, %d bytes are held", err, l.used)
		}
	})
}

// Without memory the connection ends.
func TestNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ledger{limit: 10_000}
		_, err := play(t, &l, []byte(padded(greeting)+ready+"\x02\x00\x00\x00\x00\x00\x00\xff\xff"+strings.Repeat("x", 0xffff)), 0, pipe)
		if fault := new(zmtp.Error); !errors.As(err, &fault) || fault.Reason != zmtp.NoMemory || l.used != 0 {
			t.Errorf("%v, %d bytes are held", err, l.used)
		}
	})
}

// The two sides of this package understand each other, subscriptions too, and
// heartbeats keep an idle connection.
func TestBothSides(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	shake := func(conn net.Conn, err error, kind string) *zmtp.Conn {
		if err != nil {
			t.Error(err)
			return nil
		}
		opt := bounded(new(ledger))
		opt.SocketType, opt.Heartbeat = kind, time.Millisecond
		c, err := zmtp.Handshake(conn, opt)
		if err != nil {
			t.Error(err)
		}
		return c
	}
	accepted := make(chan *zmtp.Conn)
	go func() {
		conn, err := listener.Accept()
		accepted <- shake(conn, err, "PUB")
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	sub, pub := shake(conn, err, "SUB"), <-accepted
	if sub == nil || pub == nil {
		return
	}
	defer sub.Close()
	defer pub.Close()
	if err := sub.Subscribe([]byte("topic")); err != nil {
		t.Fatal(err)
	}
	m, err := pub.Receive()
	if got := fmt.Sprintf("%q", m.Frames); err != nil || got != `["\x01topic"]` {
		t.Errorf("subscription %s, %v", got, err)
	}
	go func() { _, _ = pub.Receive() }() // it answers PINGs
	for _, size := range []int{0, 255, 256, 70_000} {
		go func() { _ = pub.Send([]byte("topic"), make([]byte, size)) }()
		m, err = sub.Receive()
		if err != nil || len(m.Frames) != 2 || string(m.Frames[0]) != "topic" || len(m.Frames[1]) != size {
			t.Fatalf("message of %d bytes: %.100q, %v", size, m.Frames, err)
		}
	}
}

// FuzzConn: nothing that a peer says makes a connection panic, or hold memory after
// its end or beyond the limit.
func FuzzConn(f *testing.F) {
	hello := padded(greeting) + ready
	for _, s := range []string{"", greeting, hello, hello + "\x01\x01a\x00\x02bc", hello + "\x04\x07\x04PING\x00\x00", hello + "\x04\x0b\x09SUBSCRIBEa", hello + "\x02\x00\x00\x00\x00\x00\x00\x10\x00", hello + "\x03\xff\xff\xff\xff\xff\xff\xff\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, says []byte) {
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		go func() {
			_, _ = theirs.Write(says)
			_ = theirs.Close()
		}()
		var l ledger
		opt := bounded(&l)
		opt.MaxMessage = 4096
		c, err := zmtp.Handshake(ours, opt)
		if err != nil {
			return
		}
		defer c.Close()
		for {
			m, err := c.Receive()
			if err != nil {
				break
			}
			size := int64(zmtp.MessageOverhead)
			for _, b := range m.Frames {
				size += int64(len(b))
			}
			if len(m.Frames) == 0 || len(m.Frames) > zmtp.MaxFrames || m.Memory.Size() < size {
				t.Fatalf("%d frames, %d bytes of %d reserved", len(m.Frames), m.Memory.Size(), size)
			}
			l.Release(m.Memory.Size())
			m.Memory.Release(nil)
		}
		if l.used != 0 || l.peak > 4096+2*zmtp.MessageOverhead {
			t.Fatalf("%d bytes are held, %d at most", l.used, l.peak)
		}
	})
}
