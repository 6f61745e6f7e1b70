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

// reader reads a connection through a buffer, and past it where many bytes are wanted. It
// has the buffer only while there is something in it: thousands of connections wait without
// one, and one read takes in many messages.
type reader struct {
	conn   net.Conn
	memory Memory          // for large buffers
	raw    syscall.RawConn // nil: conn is read by its Read, which holds a buffer while it waits

	buffer *readBuffer // nil: none, and buf is rest
	buf    []byte
	r, w   int             // buf[r:w] has been received and not been read
	rest   [maxHeader]byte // what has been received of a header, while the connection waits
	try    attempt

	silence time.Duration // the longest time without a byte, 0 for any
	// begun is when the message that is being read had its first byte; zero if none
	// has one. taken are its bytes so far.
	begun time.Time
	taken int
	// deadline is conn's read deadline, zero before the first.
	deadline time.Time
	// receivedAt is when the last bytes came.
	receivedAt time.Time
}

// attempt is a read of raw.
type attempt struct {
	run    func(fd uintptr) (done bool) // of syscall.RawConn.Read
	target []byte                       // nil: the rest of buf
	n      int                          // what came of it, with err
	err    error
	waited bool // there was nothing at first
}

// readBuffer is what a connection reads into.
type readBuffer struct{ bytes []byte }

// Of large buffers there are as many as there is memory for, of small ones one a connection.
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

// begin says that another message or command is read from now on.
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

// fill receives at least one byte more into buf, of which fewer than maxHeader are
// in use.
func (r *reader) fill() error {
	_, err := r.receive(nil)
	return err
}

// takeBuffer has buf have room.
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

// giveBuffer gives the buffer back. What is in it is a part of a header, or of no use.
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

// moveTo has what has been received and not been read lie at the beginning of buf.
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

// receive reads from the connection into p, or into buf if p is nil. A peer that is silent
// for too long, or whose message takes too long, is an error.
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

// arm sets the deadline of a read. For raw one that is too early will do: early looks after
// it, and a message that comes on time costs none.
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

// early reports whether the deadline has passed before its time, and moves it on.
func (r *reader) early() bool {
	now := time.Now()
	silent := r.receivedAt.Add(r.silence)
	if !r.try.waited { // the caller was away meanwhile: nobody has looked whether bytes are there
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

// readNow reads what has been received, and reports whether there was anything, or an error. If
// not it is called again when there is; until then there is no buffer.
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
		return false
	case err == nil && n == 0:
		err = io.EOF
	case err == nil && r.try.target == nil:
		r.w += n
	}
	r.try.n, r.try.err = n, err
	return true
}

// messageEnd is when the message that is being read has to be there, zero if none
// is.
func (r *reader) messageEnd() time.Time {
	if r.begun.IsZero() {
		return time.Time{}
	}
	return r.begun.Add(messageTime + time.Duration(r.taken)*(time.Second/slowestMessage))
}
