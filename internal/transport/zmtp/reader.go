package zmtp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// reader reads a connection through a buffer, and directly where many bytes are wanted. It has
// the buffer only while there is data in it: thousands of connections wait without one, and one
// read may take in many messages.
type reader struct {
	conn   net.Conn
	memory Memory          // for large buffers
	raw    syscall.RawConn // nil: use conn.Read, which holds a buffer while it waits

	buffer *readBuffer // nil: buf is rest
	buf    []byte
	r, w   int             // buf[r:w] has been received and not been consumed
	rest   [maxHeader]byte // the received part of a header, while the connection waits
	try    attempt

	silence time.Duration // the longest time without a byte, 0 for any
	// begun is when the first byte of the current message came; zero: none has come. taken is
	// the number of its bytes so far.
	begun time.Time
	taken int
	// deadline is conn's read deadline, zero before the first.
	deadline time.Time
	// receivedAt is when the last bytes came.
	receivedAt time.Time
	// drained: the last read has taken all that was there. asleep: the kernel does not wake the
	// reader for what comes.
	drained, asleep bool
}

// attempt is one read from raw.
type attempt struct {
	run    func(fd uintptr) (done bool) // the callback for syscall.RawConn.Read
	target []byte                       // where to read to; nil: the free part of buf
	n      int                          // result, with err
	err    error
	waited bool // there was nothing to read at first
}

// readBuffer is a buffer for reading from a connection.
type readBuffer struct{ bytes []byte }

// There are as many large buffers as there is memory for, and at most one small one per
// connection.
var (
	largeBuffers = sync.Pool{New: func() any { return &readBuffer{make([]byte, largeBuffer)} }}
	smallBuffers = sync.Pool{New: func() any { return &readBuffer{make([]byte, smallBuffer)} }}
)

func (r *reader) init(conn net.Conn, memory Memory) {
	r.conn, r.memory = conn, memory
	r.buf = r.rest[:]
	if c, ok := conn.(syscall.Conn); ok && canRead {
		if raw, err := c.SyscallConn(); err == nil {
			r.raw, r.try.run = raw, r.readNow
		}
	}
}

// begin marks the start of another message or command.
func (r *reader) begin() { r.begun, r.taken = time.Time{}, 0 }

// header reads the header of a frame.
func (r *reader) header() (flags byte, length uint64, err error) {
	for {
		flags, length, n, err := parseHeader(r.buf[r.r:r.w])
		if err != nil {
			return 0, 0, err
		}
		if n > 0 {
			r.r += n
			r.taken += n
			return flags, length, nil
		}
		if err := r.fill(); err != nil {
			return 0, 0, err
		}
	}
}

// fill receives at least one more byte into buf; fewer than maxHeader bytes of it are in use.
func (r *reader) fill() error {
	_, err := r.receive(nil)
	return err
}

// takeBuffer gets a buffer, so that buf has room.
func (r *reader) takeBuffer() {
	switch {
	case r.buffer != nil:
	case r.raw != nil && r.memory.ReserveBuffer(largeBuffer):
		r.buffer = largeBuffers.Get().(*readBuffer)
	default:
		r.buffer = smallBuffers.Get().(*readBuffer)
	}
	r.moveTo(r.buffer.bytes)
}

// giveBuffer returns the buffer. Its remaining content is part of a header, which is kept in
// rest, or of no use.
func (r *reader) giveBuffer() {
	b := r.buffer
	if b == nil {
		return
	}
	r.moveTo(r.rest[:])
	r.buffer = nil
	if len(b.bytes) < largeBuffer {
		smallBuffers.Put(b)
		return
	}
	largeBuffers.Put(b)
	r.memory.ReleaseBuffer(largeBuffer)
}

// moveTo moves the unconsumed bytes to the beginning of buf, which becomes the buffer.
func (r *reader) moveTo(buf []byte) {
	r.w = copy(buf, r.buf[r.r:r.w])
	r.r, r.buf = 0, buf
}

// Read implements io.Reader, for the greeting.
func (r *reader) Read(p []byte) (int, error) {
	if r.r == r.w {
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.buf[r.r:r.w])
	r.r += n
	r.taken += n
	return n, nil
}

// full fills p.
func (r *reader) full(p []byte) error {
	for len(p) > 0 {
		if r.r == r.w && len(p) >= firstChunk {
			n, err := r.receive(p)
			if err != nil {
				return err
			}
			p = p[n:]
			r.taken += n
			continue
		}
		n, err := r.Read(p)
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// receive reads from the connection into p, or into buf if p is nil. It fails if the peer is
// silent for too long, or its message takes too long.
func (r *reader) receive(p []byte) (int, error) {
	if r.begun.IsZero() && (r.taken > 0 || r.w > r.r) {
		r.begun = time.Now()
	}
	for {
		if err := r.arm(); err != nil {
			return 0, err
		}
		n, err := r.read(p)
		switch {
		case n > 0:
			r.receivedAt = time.Now()
			return n, nil
		case err == nil:
			return 0, io.ErrNoProgress
		case r.silence > 0 && errors.Is(err, os.ErrDeadlineExceeded):
			if r.raw != nil && r.early() {
				continue
			}
			if !r.begun.IsZero() {
				return 0, Refuse(TooSlow, "%d bytes of a message in %v", r.taken, time.Since(r.begun).Round(time.Second))
			}
		}
		return 0, fmt.Errorf("zmtp: %w", err)
	}
}

// arm sets the deadline of a read. For raw a deadline may stay too early: early then moves it,
// and a message that comes in time costs no change of the deadline.
func (r *reader) arm() error {
	if r.silence == 0 {
		return nil
	}
	end := r.messageEnd()
	if r.raw != nil && !r.deadline.IsZero() && (end.IsZero() || !end.Before(r.deadline)) {
		return nil
	}
	return r.setDeadline(time.Now().Add(r.silence), end)
}

// early reports whether the deadline that has passed was too early, and if so moves it.
func (r *reader) early() bool {
	now := time.Now()
	silent := r.receivedAt.Add(r.silence)
	if !r.try.waited { // the caller was elsewhere meanwhile, so bytes may be there already
		silent = now.Add(r.silence)
	}
	end := r.messageEnd()
	return silent.After(now) && (end.IsZero() || end.After(now)) && r.setDeadline(silent, end) == nil
}

// setDeadline sets the read deadline to the earlier of two times; end may be zero.
func (r *reader) setDeadline(silent, end time.Time) error {
	if r.deadline = silent; !end.IsZero() && end.Before(silent) {
		r.deadline = end
	}
	if err := r.conn.SetReadDeadline(r.deadline); err != nil {
		return fmt.Errorf("zmtp: %w", err)
	}
	return nil
}

// gather makes the kernel not wake the reader until it has found nothing to read, if that is the
// case now.
func (r *reader) gather() bool {
	if r.raw == nil || !r.drained {
		return false
	}
	r.giveBuffer()
	if !r.asleep {
		r.asleep = r.raw.Control(func(fd uintptr) { wakeAt(fd, smallBuffer) }) == nil
	}
	return true
}

// fetch receives into buf what is there, if there is something.
func (r *reader) fetch() bool {
	r.try = attempt{run: r.try.run}
	if r.raw.Control(func(fd uintptr) { r.readNow(fd) }) != nil || r.try.n == 0 {
		return false
	}
	r.receivedAt = time.Now()
	return true
}

// read reads from the connection into p, or into buf if p is nil.
func (r *reader) read(p []byte) (n int, err error) {
	if r.raw == nil {
		if p != nil {
			return r.conn.Read(p) //nolint:wrapcheck // receive does
		}
		r.takeBuffer()
		n, err = r.conn.Read(r.buf[r.w:])
		r.w += n
		return n, err //nolint:wrapcheck // receive does
	}
	r.try = attempt{run: r.try.run, target: p}
	if err := r.raw.Read(r.try.run); err != nil {
		return 0, err //nolint:wrapcheck // receive does
	}
	return r.try.n, r.try.err
}

// readNow reads the bytes that are there, and reports whether there were any, or an error. If
// not, it is called again when there are; until then no buffer is held.
func (r *reader) readNow(fd uintptr) bool {
	p := r.try.target
	if p == nil {
		r.takeBuffer()
		p = r.buf[r.w:]
	}
	n, again, err := readNow(fd, p)
	switch {
	case again:
		r.try.waited = true
		r.giveBuffer()
		if r.asleep {
			wakeAt(fd, 1)
			r.asleep = false
		}
		return false
	case err == nil && n == 0:
		err = io.EOF
	case err == nil && r.try.target == nil:
		r.w += n
	}
	r.try.n, r.try.err = n, err
	r.drained = n < len(p)
	return true
}

// messageEnd returns the time by which the current message must be complete, zero if none has
// begun.
func (r *reader) messageEnd() time.Time {
	if r.begun.IsZero() {
		return time.Time{}
	}
	return r.begun.Add(messageTime + time.Duration(r.taken)*(time.Second/slowestMessage))
}
