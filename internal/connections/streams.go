package connections

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	// MaxStreams bounds the requests at a time of one HTTP/2 connection.
	MaxStreams = 256
	// streamBuffer and connBuffer bound what an HTTP/2 client may send of bodies that are
	// not read yet, for a request and for all of a connection. connBuffer comes from
	// Limits.Heads, with the first request.
	streamBuffer = 64 << 10
	connBuffer   = 128 << 10
	// frameBytes is the longest frame that is read: the least that the protocol allows.
	frameBytes = 16 << 10
	// maxHead is the most that is reserved for a head. HTTP/1 heads are shorter; HTTP/2
	// connections that have no request may send other frames for as long as they like.
	maxHead = 128 << 10
)

// Configure makes a server use the set, and speak HTTP/2 without TLS to clients that
// begin with it (prior knowledge), such as gateways that send many requests over few
// connections. They are bounded as connections are: a request is refused beyond
// Limits.Total of them, and its answer is cut off if the client does not read it.
func (s *Set) Configure(srv *http.Server) {
	srv.ConnState = s.observe
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	srv.Protocols = new(http.Protocols)
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	srv.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams: MaxStreams, MaxReadFrameSize: frameBytes,
		MaxReceiveBufferPerStream: streamBuffer, MaxReceiveBufferPerConnection: connBuffer,
	}
	srv.Handler = streams{set: s, next: srv.Handler}
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// streams is the handler of requests, which bounds those of HTTP/2.
type streams struct {
	set  *Set
	next http.Handler
}

func (h streams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor < 2 {
		h.next.ServeHTTP(w, r)
		return
	}
	defer h.set.streams.Add(-1)
	c, _ := r.Context().Value(connKey{}).(*conn)
	answer := &streamWriter{ResponseWriter: w, conn: http.NewResponseController(w)}
	tooMany := h.set.streams.Add(1) > int64(h.set.limits.Total)
	if tooMany {
		h.set.refusedTotal.Add(1)
	}
	if tooMany || c != nil && !c.reserveBuffers() {
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(answer, refusalText)
	} else {
		h.next.ServeHTTP(answer, r)
	}
	clear(r.Header) // the answer may wait for its reader, the head of the request need not
}

// reserveBuffers takes connBuffer for a connection, once, until it has no requests or is
// closed. It reports false if there is no memory.
func (c *conn) reserveBuffers() bool {
	if c.buffers.Load() {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.buffers.Load() { // closed: the answer has no reader
		return true
	}
	if !c.set.limits.Heads.Reserve(connBuffer) {
		return false
	}
	c.buffers.Store(true)
	return true
}

// releaseBuffers gives back what reserveBuffers took.
func (c *conn) releaseBuffers() {
	if c.buffers.Swap(false) {
		c.set.limits.Heads.Release(connBuffer)
	}
}

// streamWriter writes the answer to an HTTP/2 request. As on a connection of its own, the
// deadline moves with what the reader takes, unless a caller has set one.
type streamWriter struct {
	http.ResponseWriter
	conn    *http.ResponseController
	imposed atomic.Bool
}

// Unwrap is for http.ResponseController.
func (w *streamWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *streamWriter) Write(p []byte) (int, error) {
	written := 0
	for {
		piece := p[:min(len(p), pieceBytes)]
		if !w.imposed.Load() {
			_ = w.conn.SetWriteDeadline(time.Now().Add(progressWithin))
		}
		n, err := w.ResponseWriter.Write(piece)
		written += n
		if p = p[n:]; err != nil || len(p) == 0 {
			return written, err
		}
	}
}

// SetWriteDeadline imposes a deadline; the zero time leaves it to the writer again. There
// always is one: the end of an answer is written when its handler has returned.
func (w *streamWriter) SetWriteDeadline(t time.Time) error {
	w.imposed.Store(!t.IsZero())
	if t.IsZero() {
		t = time.Now().Add(progressWithin)
	}
	return w.conn.SetWriteDeadline(t)
}
