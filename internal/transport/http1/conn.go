package http1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// conn is a connection to a server. It serves one request at a time, and belongs to that.
type conn struct {
	net.Conn
	raw    net.Conn // below TLS, else the same
	of     *Client
	origin Origin
	expiry *time.Timer // closes the connection if it is idle

	sys   syscall.RawConn // of raw; nil: it cannot be looked at
	look  func(fd uintptr) bool
	quiet bool   // what look has found
	cut   func() // closes the connection for a request whose context has ended

	buf      []byte // of what has come; nil while idle
	r, w     int    // buf[r:w] is not read yet
	reused   bool   // another request was served before
	answered bool   // something has come since the request

	ctx     context.Context // of the request
	unwatch func() bool     // ends the watch of ctx, and reports whether ctx had not ended
	sender  *sender         // sends the request's body; nil: it has been sent
	headers int             // bytes that the answer's heads, or its trailers, may still have
}

// buffers has *[bufferSize]byte.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// prepare makes what a connection uses again with each request.
func (cn *conn) prepare() {
	if s, ok := cn.raw.(syscall.Conn); ok {
		cn.sys, _ = s.SyscallConn()
	}
	cn.look = func(fd uintptr) bool {
		cn.quiet = lookNow(fd)
		return true
	}
	cn.cut = func() { _ = cn.raw.Close() }
}

// isQuiet reports whether nothing has come on an idle connection, its end included.
func (cn *conn) isQuiet() bool {
	if cn.sys == nil {
		return true
	}
	cn.quiet = false
	err := cn.sys.Read(cn.look)
	return err == nil && cn.quiet
}

// drop closes the connection. It does not say so within TLS, which may wait for a peer that reads nothing.
func (cn *conn) drop() {
	cn.of.mu.Lock()
	defer cn.of.mu.Unlock()
	cn.closeLocked()
}

func (cn *conn) closeLocked() {
	cn.of.open--
	_ = cn.raw.Close()
}

// ask sends a request and reads the head of its answer. The connection ends with the answer's body or is
// kept, and with an error, which is an *Error, it is closed.
func (cn *conn) ask(ctx context.Context, r *Request) (*Response, error) {
	cn.answered, cn.headers = false, maxHead
	cn.buf = buffers.Get().(*[bufferSize]byte)[:]
	cn.ctx = ctx
	cn.unwatch = context.AfterFunc(ctx, cn.cut)
	if r.HeadTimeout > 0 {
		_ = cn.SetDeadline(time.Now().Add(r.HeadTimeout))
	}
	all, sent := cn.send(r)
	resp, err := cn.readAnswer(r) // also if not all was sent: the server may have refused the rest
	if err != nil {
		s := cn.sender
		cn.end(false)
		if s != nil {
			all, sent = s.all, s.err
		}
		return nil, cn.failed(err, all, sent)
	}
	if r.HeadTimeout > 0 {
		_ = cn.SetDeadline(time.Time{})
	}
	resp.keep = resp.keep && (all || cn.sender != nil)
	if resp.framing == noBody {
		resp.end(resp.keep)
	}
	return resp, nil
}

// failed returns the error of a request without the head of an answer. all and sent are what became of
// sending.
func (cn *conn) failed(err error, all bool, sent error) *Error {
	e := &Error{Phase: Wait, Reused: cn.reused, Sent: all, Err: err}
	switch {
	case cn.answered:
		e.Phase = Head
	case !all:
		e.Phase = Send
		if sent != nil && !errors.Is(sent, net.ErrClosed) { // closed here, since reading failed
			e.Err = sent
		}
	}
	source := (*sourceError)(nil)
	switch {
	case cn.ctx.Err() != nil:
		e.Err = context.Cause(cn.ctx)
	case errors.As(e.Err, &source):
		e.Err = source.err
	default:
		e.ended = !errors.Is(e.Err, ErrProtocol) && !errors.Is(e.Err, os.ErrDeadlineExceeded)
	}
	return e
}

// end ends a request. The connection is kept if its next byte is that of the next answer.
func (cn *conn) end(keep bool) {
	if s := cn.sender; s != nil {
		cn.sender = nil
		keep = s.stop(cn.raw, keep)
	}
	watched := cn.unwatch()
	keep = keep && watched && cn.r == cn.w
	if len(cn.buf) == bufferSize { // a longer one was for a long head
		buffers.Put((*[bufferSize]byte)(cn.buf))
	}
	cn.buf, cn.r, cn.w = nil, 0, 0
	if keep {
		cn.of.put(cn)
	} else {
		cn.drop()
	}
}

// fill reads once more into the buffer, which grows if it is full.
func (cn *conn) fill() error {
	switch {
	case cn.r == cn.w:
		cn.r, cn.w = 0, 0
	case cn.w == len(cn.buf) && cn.r > 0:
		cn.w = copy(cn.buf, cn.buf[cn.r:cn.w])
		cn.r = 0
	case cn.w == len(cn.buf):
		longer := make([]byte, 2*len(cn.buf))
		cn.w = copy(longer, cn.buf[:cn.w])
		cn.buf = longer
	}
	n, err := cn.readMore(cn.buf[cn.w:])
	cn.w += n
	return err
}

// readMore reads what the buffer does not have. Without an error it returns bytes.
func (cn *conn) readMore(p []byte) (int, error) {
	for range 100 {
		n, err := cn.Read(p)
		if n > 0 {
			cn.answered = true
			return n, nil // the error comes again
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, io.ErrNoProgress
}

// sourceError is an error of a request's Reader.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return e.err.Error() }

// heads has *[]byte: what is sent at once.
var heads = sync.Pool{New: func() any { b := make([]byte, 0, 2<<10); return &b }}

// send sends a request, or begins to. all reports that it is sent, or would be.
func (cn *conn) send(r *Request) (all bool, err error) {
	head := heads.Get().(*[]byte)
	size := r.size()
	text := r.appendHead((*head)[:0], size)
	if size <= sendAtOnce {
		for _, piece := range r.Body {
			text = append(text, piece...)
		}
		size = 0
	}
	_, err = cn.Write(text)
	if *head = text; cap(text) <= 2*sendAtOnce {
		heads.Put(head)
	}
	switch {
	case err != nil:
		return false, err
	case r.Reader != nil || size > sendAlone:
		cn.sender = &sender{request: r, done: make(chan struct{})}
		go cn.sender.run(cn.Conn, cn.raw)
		return false, nil
	case size > 0:
		err = writePieces(cn.Conn, r.Body)
	}
	return err == nil, err
}

func writePieces(to net.Conn, body [][]byte) error {
	pieces := append(make(net.Buffers, 0, len(body)), body...)
	_, err := pieces.WriteTo(to)
	return err
}

// sender sends a body while the answer is waited for.
type sender struct {
	request *Request
	done    chan struct{} // closed at the end; guards the rest
	all     bool          // it was sent as a whole
	err     error
}

func (s *sender) run(to, raw net.Conn) {
	defer close(s.done)
	if s.request.Reader == nil {
		s.err = writePieces(to, s.request.Body)
	} else if s.err = s.copy(to); s.err != nil {
		if source := (*sourceError)(nil); errors.As(s.err, &source) {
			_ = raw.Close() // the server would wait for the rest
		}
	}
	s.all = s.err == nil
}

// stop ends the sending if it has not ended, and closes the connection then. It returns keep if all was
// sent, else false.
func (s *sender) stop(raw net.Conn, keep bool) bool {
	select {
	case <-s.done:
	default:
		keep = false
		_ = raw.Close()
	}
	if s.request.Reader != nil {
		_ = s.request.Reader.Close() // a Read returns
	}
	<-s.done
	return keep && s.all
}

// copy sends the reader's bytes.
func (s *sender) copy(to net.Conn) error {
	buf := make([]byte, 0, 16<<10)
	const room = len("ffff\r\n")
	for left := s.request.Length; left != 0; {
		part := buf[room : cap(buf)-2]
		if left > 0 {
			part = part[:min(int64(len(part)), left)]
		}
		n, err := s.request.Reader.Read(part)
		if left > 0 {
			left -= int64(n)
			if _, err := to.Write(part[:n]); err != nil {
				return err
			}
		} else if n > 0 {
			size := fmt.Appendf(buf[:0], "%04x\r\n", n)
			if _, err := to.Write(append(buf[:len(size)+n], "\r\n"...)); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF && left > 0:
			return &sourceError{io.ErrUnexpectedEOF}
		case err == io.EOF && left < 0:
			_, err := io.WriteString(to, "0\r\n\r\n")
			return err
		case err != nil && err != io.EOF:
			return &sourceError{err}
		}
	}
	return nil
}
