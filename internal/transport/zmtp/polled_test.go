package zmtp_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/transport/zmtp"
)

// polledConn is a connection with a descriptor, of which a bubble's clock says when its
// deadline has passed.
type polledConn struct {
	net.Conn // writes, and is closed
	fd       int
	ready    chan struct{} // of capacity 1: there may be something to read

	mu       sync.Mutex
	deadline time.Time
}

// polledPeer is the other end.
type polledPeer struct {
	net.Conn
	to *polledConn
	fd int
}

// polled returns both ends of a connection. Of what ours writes nothing is lost.
func polled(t *testing.T) (ours, theirs net.Conn) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = syscall.Close(fds[0]), syscall.Close(fds[1]) })
	a, b := net.Pipe()
	conn := &polledConn{Conn: a, fd: fds[0], ready: make(chan struct{}, 1)}
	return conn, &polledPeer{Conn: b, to: conn, fd: fds[1]}
}

func (p *polledPeer) Write(b []byte) (n int, err error) {
	for n < len(b) {
		k, err := syscall.Write(p.fd, b[n:])
		switch {
		case err == nil:
			n += k
		case !errors.Is(err, syscall.EAGAIN):
			return n, fmt.Errorf("write: %w", err)
		}
		p.to.wake()
		if err != nil {
			time.Sleep(time.Microsecond)
		}
	}
	return n, nil
}

func (p *polledPeer) Close() error {
	_ = syscall.Shutdown(p.fd, syscall.SHUT_WR)
	p.to.wake()
	return p.Conn.Close() //nolint:wrapcheck // of a test
}

func (c *polledConn) wake() {
	select {
	case c.ready <- struct{}{}:
	default: // it has been told
	}
}

func (c *polledConn) SetDeadline(at time.Time) error {
	_ = c.SetWriteDeadline(at)
	return c.SetReadDeadline(at)
}

func (c *polledConn) SetReadDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = at
	return nil
}

func (c *polledConn) SyscallConn() (syscall.RawConn, error) { return polledRaw{c}, nil }

// polledRaw is the syscall.RawConn of a polledConn.
type polledRaw struct{ c *polledConn }

func (r polledRaw) Control(f func(fd uintptr)) error { f(uintptr(r.c.fd)); return nil }

func (r polledRaw) Write(func(fd uintptr) bool) error { return errors.ErrUnsupported }

// Read does what that of package net does.
func (r polledRaw) Read(f func(fd uintptr) bool) error {
	for {
		r.c.mu.Lock()
		left := time.Until(r.c.deadline)
		if r.c.deadline.IsZero() {
			left = time.Hour
		}
		r.c.mu.Unlock()
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		if f(uintptr(r.c.fd)) {
			return nil
		}
		select {
		case <-r.c.ready:
		case <-time.After(left):
		}
	}
}

// Whatever the sizes of messages, and of the pieces in which they come, they are received as
// they were sent, in place or kept, and nothing is held by a connection that waits.
func TestInPlace(t *testing.T) {
	for _, scarce := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(1, 2))
			ours, theirs := polled(t)
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			var wire []byte
			var want []string
			for range 300 {
				for left := rnd.IntN(zmtp.MaxFrames); left >= 0; left-- {
					if rnd.IntN(3) == 0 {
						wire = append(wire, "\x04\x07\x04PING\x00\x00"...)
					}
					body := make([]byte, rnd.IntN([]int{10, 300, 5000, 40_000}[rnd.IntN(4)]))
					for i := range body {
						body[i] = byte(rnd.Uint32())
					}
					wire = append(wire, 2|byte(min(left, 1)))
					wire = append(binary.BigEndian.AppendUint64(wire, uint64(len(body))), body...)
					want = append(want, string(body))
				}
				want = append(want, "end")
			}
			go func() {
				rnd := rand.New(rand.NewPCG(3, 4))
				_, _ = theirs.Write([]byte(padded(greeting) + ready))
				for len(wire) > 0 {
					n := min(len(wire), 1+rnd.IntN([]int{20, 6000, 200_000}[rnd.IntN(3)]))
					_, _ = theirs.Write(wire[:n])
					wire = wire[n:]
					time.Sleep(time.Duration(rnd.IntN(2)) * time.Millisecond)
				}
			}()
			l := &ledger{scarce: scarce}
			opt := bounded(l)
			opt.InPlace = true
			c, err := zmtp.Handshake(ours, opt)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var got []string
			inPlace := 0
			for range 300 {
				m, err := c.Receive()
				if err != nil {
					t.Fatal(err)
				}
				if m.Memory == nil {
					inPlace++
					if rnd.IntN(2) == 0 {
						if m, err = c.Keep(m); err != nil {
							t.Fatal(err)
						}
					}
				}
				for _, f := range m.Frames {
					got = append(got, string(f))
				}
				got = append(got, "end")
				l.Release(m.Memory.Size())
				m.Memory.Release(nil)
			}
			if !slices.Equal(got, want) {
				t.Error("other messages were received than sent")
			}
			if inPlace == 0 {
				t.Error("no message was received in place")
			}
			if _, err := c.Receive(); err == nil || l.used != 0 || l.buffers != 0 {
				t.Errorf("%v, %d bytes are held, and %d of buffers", err, l.used, l.buffers)
			}
		})
	}
}

// TestGatheredIsReceived proves that what has gathered of a connection whose messages cannot lie in
// place, as sealed ones, is left to Receive.
func TestGatheredIsReceived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := polled(t)
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		if _, err := io.WriteString(theirs, padded(greeting)+ready+"\x00\x01a"); err != nil {
			t.Fatal(err)
		}
		c, err := zmtp.Handshake(ours, bounded(new(ledger)))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Receive(); err != nil || !c.Gather() {
			t.Fatalf("nothing gathers: %v", err)
		}
		if _, err := io.WriteString(theirs, "\x00\x01b"); err != nil || !c.Fetch() {
			t.Fatalf("nothing was fetched: %v", err)
		}
		if m, ok := c.Gathered(); ok {
			t.Errorf("%q was returned without Receive", m.Frames)
		}
		if m, err := c.Receive(); err != nil || len(m.Frames) != 1 || string(m.Frames[0]) != "b" {
			t.Errorf("received %q: %v", m.Frames, err)
		}
	})
}
