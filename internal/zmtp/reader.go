package zmtp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// reader reads a connection through a small buffer, and past it where many bytes
// are wanted.
type reader struct {
	conn    net.Conn
	buf     []byte
	r, w    int           // buf[r:w] has been received and not been read
	silence time.Duration // the longest time without a byte, 0 for any
	// begun is when the message that is being read had its first byte; zero if none
	// has one. taken are its bytes so far.
	begun time.Time
	taken int
	// deadline is conn's read deadline.
	deadline time.Time
	// receivedAt is when the last bytes came.
	receivedAt time.Time
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
	r.w = copy(r.buf, r.buf[r.r:r.w])
	r.r = 0
	n, err := r.receive(r.buf[r.w:])
	r.w += n
	return err
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
		if r.r == r.w && len(p) >= len(r.buf) {
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

// receive reads from the connection. A peer that is silent for too long, or whose
// message takes too long, is an error.
func (r *reader) receive(p []byte) (int, error) {
	now := time.Now()
	if r.begun.IsZero() && (r.taken > 0 || r.w > r.r) {
		r.begun = now
	}
	if r.silence > 0 {
		deadline := now.Add(r.silence)
		if end := r.messageEnd(); !end.IsZero() && end.Before(deadline) {
			deadline = end
		}
		// The deadline may be a second early or late: to set it takes longer than many a read.
		if d := deadline.Sub(r.deadline); d > time.Second || d < 0 {
			r.deadline = deadline
			if err := r.conn.SetReadDeadline(deadline); err != nil {
				return 0, fmt.Errorf("zmtp: %w", err)
			}
		}
	}
	n, err := r.conn.Read(p)
	switch {
	case n > 0:
		r.receivedAt = time.Now()
		return n, nil
	case err == nil:
		return 0, io.ErrNoProgress
	case errors.Is(err, os.ErrDeadlineExceeded) && r.silence > 0 && !r.begun.IsZero():
		return 0, Refuse(TooSlow, "%d bytes of a message in %v", r.taken, time.Since(r.begun).Round(time.Second))
	}
	return 0, fmt.Errorf("zmtp: %w", err)
}

// messageEnd is when the message that is being read has to be there, zero if none
// is.
func (r *reader) messageEnd() time.Time {
	if r.begun.IsZero() {
		return time.Time{}
	}
	return r.begun.Add(messageTime + time.Duration(r.taken)*(time.Second/slowestMessage))
}
