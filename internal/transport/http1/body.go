package http1

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
)

// HasBody reports whether bytes of a body may come.
func (r *Response) HasBody() bool { return r.framing != noBody && r.framing != upgraded }

// Read reads what has come of the body, and waits only if nothing has. The body has ended as the server
// meant it if the error is io.EOF; another one is an *Error. Bytes may come with either. The connection is kept for another request once
// the body has been read to its end.
func (r *Response) Read(p []byte) (n int, err error) {
	if r.err != nil || len(p) == 0 {
		return 0, r.err
	}
	switch r.framing {
	case noBody, upgraded:
		return 0, io.EOF
	case byLength:
		n, err = r.conn.read(p[:min(int64(len(p)), r.left)])
		if r.left -= int64(n); r.left == 0 {
			err = io.EOF
		} else if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
	case byEnd:
		n, err = r.conn.read(p)
	case byChunks:
		n, err = r.readChunks(p)
	}
	if err != nil {
		r.finish(err)
	}
	return n, r.err
}

// Ready reports whether Read returns at once: bytes of the body have come, or its end, or an error.
func (r *Response) Ready() bool {
	for r.err == nil && r.framing == byChunks && r.left == 0 {
		line, err := r.nextLine()
		if line == nil && err == nil {
			return false
		}
		if err == nil {
			err = r.readLine(line)
		}
		if err != nil {
			r.finish(err)
		}
	}
	return r.err != nil || !r.HasBody() || r.conn.r < r.conn.w
}

// Wait waits until Read returns at once. A reader that waits here needs no buffer of its own meanwhile.
func (r *Response) Wait() {
	for !r.Ready() {
		if r.conn.fill() != nil {
			return // Read gets the same error
		}
	}
}

// Sending reports whether the request's body is still being sent, and so may not be changed: a server may answer
// before it has read a request. It does not once Read has returned an error, nor after Close.
func (r *Response) Sending() bool {
	if r.conn == nil || r.conn.sender == nil {
		return false
	}
	select {
	case <-r.conn.sender.done:
		return false
	default:
		return true
	}
}

// finish ends the body with io.EOF or another error.
func (r *Response) finish(err error) {
	if r.err = err; errors.Is(err, io.EOF) {
		r.end(r.keep)
		return
	}
	e := &Error{Phase: Body, Reused: r.conn.reused, Sent: true, Err: err}
	if ctx := r.conn.ctx; ctx.Err() != nil {
		e.Err = context.Cause(ctx)
	} else {
		e.ended = !errors.Is(err, ErrProtocol) && !errors.Is(err, os.ErrDeadlineExceeded)
	}
	r.err = e
	r.end(false)
}

// errClosed is that of a body that is read after Close.
var errClosed = errors.New("http1: read of a closed answer")

// Close ends the answer. It closes the connection unless the body has been read to its end.
func (r *Response) Close() error {
	if r.err == nil {
		r.err = errClosed
	}
	r.end(false)
	return nil
}

func (r *Response) end(keep bool) {
	if cn := r.conn; cn != nil {
		r.conn = nil
		cn.end(keep)
	}
}

// read reads bytes of the body as they are.
func (cn *conn) read(p []byte) (int, error) {
	if cn.r == cn.w {
		if len(p) >= len(cn.buf) {
			return cn.readMore(p)
		}
		if err := cn.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, cn.buf[cn.r:cn.w])
	cn.r += n
	return n, nil
}

// readChunks reads bytes of chunks: all that have come and fit.
func (r *Response) readChunks(p []byte) (n int, err error) {
	cn := r.conn
	for n < len(p) {
		if r.left > 0 {
			if cn.r == cn.w && n > 0 {
				return n, nil
			}
			m, err := cn.read(p[n:min(int64(len(p)), int64(n)+r.left)])
			n += m
			r.left -= int64(m)
			if err != nil {
				return n, unexpected(err)
			}
			continue
		}
		line, err := r.nextLine()
		if err != nil {
			return n, err
		}
		if line == nil {
			if n > 0 {
				return n, nil // the line would have to be waited for
			}
			if err := cn.fill(); err != nil { // here and not deeper: streams wait here, with their stacks
				return 0, unexpected(err)
			}
			continue
		}
		if err := r.readLine(line); err != nil {
			return n, err
		}
	}
	return n, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// next is what a line between chunks is.
type next uint8

const (
	chunkSize next = iota
	chunkEnd
	trailer
)

// nextLine returns a line between chunks or behind them without its end, nil if it has not come as a whole. It is
// valid until the next read.
func (r *Response) nextLine() ([]byte, error) {
	cn := r.conn
	b := cn.buf[cn.r:cn.w]
	end := bytes.IndexByte(b, '\n')
	if end == 0 || end > 0 && b[end-1] != '\r' {
		return nil, protocolError("a line ends in LF alone")
	}
	length, longest := len(b)-1, 0
	if end > 0 {
		length = end - 1
	}
	switch r.next {
	case chunkSize:
		longest = maxChunkLine
	case trailer:
		longest = cn.headers
	}
	if length > longest {
		return nil, protocolError("a line behind the head is too long")
	}
	if end < 0 {
		return nil, nil
	}
	cn.r += end + 1
	return b[:length], nil
}

// readLine takes a line between chunks or behind them. The error is io.EOF behind the last one.
func (r *Response) readLine(line []byte) (err error) {
	switch r.next {
	case chunkEnd:
		if len(line) > 0 {
			return protocolError("bytes behind a chunk")
		}
		r.next = chunkSize
	case chunkSize:
		size, ok := parseChunkSize(line)
		if !ok {
			return protocolError("size of a chunk %q", line[:min(len(line), 32)])
		}
		// Short chunks with long lines cost more than their bytes; net/http has the same bound.
		if r.excess = max(r.excess+int64(len(line))+2-16-2*size, 0); r.excess > 16<<10 {
			return protocolError("more bytes in the lines of chunks than in chunks")
		}
		r.left, r.next = size, chunkEnd
		if size == 0 {
			r.next, r.conn.headers = trailer, maxHead
		}
	case trailer:
		if len(line) == 0 {
			return io.EOF
		}
		r.conn.headers -= len(line) + len("\r\n")
		if r.Trailer, err = appendFields(r.Trailer, string(line)); err != nil {
			return err
		}
		if last := len(r.Trailer) - 1; ofConnection(r.Trailer[last].Name) {
			r.Trailer = r.Trailer[:last]
		}
	}
	return nil
}

// parseChunkSize reads the line before a chunk: a size in hexadecimal digits, and an extension, which is
// ignored.
func parseChunkSize(line []byte) (size int64, ok bool) {
	digits := 0
	for ; digits < len(line); digits++ {
		c := line[digits]
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			rest := bytes.TrimLeft(line[digits:], " \t")
			return size, digits > 0 && (len(rest) == 0 || rest[0] == ';' && isValue(string(rest)))
		}
		if digits == 15 {
			return 0, false
		}
		size = size<<4 | int64(c)
	}
	return size, digits > 0
}

// change makes the answer that of a changed protocol.
func (r *Response) change(of *Request) error {
	switch {
	case of.Upgrade == "":
		return protocolError("status 101 without a request for it")
	case !strings.EqualFold(r.Header.Get("Upgrade"), of.Upgrade) || !r.Header.HasToken("Connection", "upgrade"):
		return protocolError("status 101 for the protocol %q", clip(r.Header.Get("Upgrade")))
	}
	r.framing, r.Length, r.keep = upgraded, -1, false
	return nil
}

// Upgraded returns the connection of an answer with status 101, on which both sides speak the other protocol
// now; nil for other answers, and the second time. The answer's Close closes it, and so does the end of the request's context. It is a
// net.Conn whose reads begin with what has come already.
func (r *Response) Upgraded() *Stream {
	if r.framing != upgraded || r.conn == nil || r.taken {
		return nil
	}
	r.taken = true
	cn := r.conn
	first := bytes.Clone(cn.buf[cn.r:cn.w])
	cn.r = cn.w
	return &Stream{Conn: cn.Conn, first: first}
}

// Stream is a connection in a changed protocol. One goroutine may read while another one writes.
type Stream struct {
	net.Conn
	first []byte // came with the answer
}

// Read reads from the connection.
func (s *Stream) Read(p []byte) (int, error) {
	if len(s.first) > 0 {
		n := copy(p, s.first)
		s.first = s.first[n:]
		return n, nil
	}
	return s.Conn.Read(p)
}

// CloseWrite tells the server that nothing more will be written.
func (s *Stream) CloseWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
