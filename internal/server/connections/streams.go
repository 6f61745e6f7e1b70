package connections

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	// MaxStreams bounds the concurrent requests of one HTTP/2 connection.
	MaxStreams = 256
	// streamBuffer and connBuffer bound the unread body bytes that an HTTP/2 client may
	// send, for one request and for a whole connection. connBuffer is reserved from
	// Limits.Heads at the first request.
	streamBuffer = 64 << 10
	connBuffer   = 128 << 10
	// frameBytes is the longest frame that is accepted: the least that the protocol allows.
	frameBytes = 16 << 10
	// maxHead bounds the reservation for an incomplete head over HTTP/2. A connection without
	// requests may send other frames for as long as it likes, and these look like a head to Read.
	maxHead = 256 << 10
)

// Configure makes a server use the set, and speak HTTP/2 without TLS to clients that begin with
// it (prior knowledge), such as gateways that send many requests over few connections. HTTP/2
// requests are bounded like connections. Beyond Limits.Total or Limits.PerAddress a request is
// refused, unless another one whose body does not come can be dropped. An answer is cut off if
// the client does not read it. The server's listeners must be those of the set.
func (s *Set) Configure(srv *http.Server) {
	srv.ConnState = s.observe
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, below(c))
	}
	srv.Protocols = new(http.Protocols)
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	srv.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams: MaxStreams, MaxReadFrameSize: frameBytes,
		MaxReceiveBufferPerStream: streamBuffer, MaxReceiveBufferPerConnection: connBuffer,
	}
	srv.Handler = streams{set: s, next: srv.Handler}
}

// below returns the connection below TLS.
func below(c net.Conn) net.Conn {
	if secure, ok := c.(*tls.Conn); ok {
		return secure.NetConn()
	}
	return c
}

// connKey is the context key of a request's connection.
type connKey struct{}

// streams is a handler that bounds the requests of HTTP/2 and the heads of all requests.
type streams struct {
	set  *Set
	next http.Handler
}

func (s streams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	heads, head := s.set.limits.Heads, headBytes(r)
	fits := head <= freeHead || heads.Reserve(head)
	if fits && head > freeHead {
		defer heads.Release(head)
	}
	switch {
	case isStream(w, r):
		s.serveStream(w, r, head, fits)
	case fits:
		s.next.ServeHTTP(w, r)
	default:
		w.Header().Set("Connection", "close")
		w.Header().Set("Content-Type", "application/json")
		refuse(w)
		_, _ = io.WriteString(w, noMemory)
	}
}

// isStream reports whether a request came over HTTP/2. It did not, whatever its protocol is called, if its connection
// can be taken over: net/http passes the begin of HTTP/2 on as a request of HTTP/1 if no HTTP/2 follows.
func isStream(w http.ResponseWriter, r *http.Request) bool {
	_, http1 := w.(http.Hijacker)
	return r.ProtoMajor >= 2 && !http1
}

// noMemory is the answer to a request whose head does not fit into Limits.Heads.
const noMemory = `{"error":"no memory left for the head of this request: account heads of --max-memory is full"}`

// serveStream serves a request of HTTP/2.
func (s streams) serveStream(w http.ResponseWriter, r *http.Request, head int64, fits bool) {
	st := &stream{ResponseWriter: w, control: http.NewResponseController(w), of: r.Context().Value(connKey{}).(*conn)}
	if head > freeHead && !st.of.keepHead(head) {
		_ = st.of.Close()
		return
	}
	if !fits || !s.set.begin(st) {
		forgetHead(r)
		s.set.refuse(st)
		return
	}
	defer s.set.leave(st)
	s.next.ServeHTTP(st, r)
	forgetHead(r)
	s.set.finish(st)
}

// forgetHead drops the head of a request, so that its memory is not held while the answer waits
// for its reader. net/http still needs the method.
func forgetHead(r *http.Request) { *r = http.Request{Method: r.Method} }

// headBytes is the approximate memory of a request's head.
func headBytes(r *http.Request) int64 {
	n := 2 * len(r.RequestURI)
	for name, values := range r.Header {
		n += fieldBytes + len(name) + valueBytes*(len(values)-1)
		for _, v := range values {
			n += len(v)
		}
	}
	return int64(n)
}

// refuse writes the answer to a request beyond the limits. It has no body: over HTTP/2 a body
// would wait for its reader.
func refuse(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
}

// begin takes a request into the set, if need be in place of one whose body does not come. It
// reports whether it did.
func (s *Set) begin(st *stream) bool {
	c := st.of
	if !c.reserveBuffers() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addressFullLocked(c) {
		s.refusedAddress.Add(1)
		return false
	}
	if s.requests >= s.limits.Total {
		silent := s.findSilentLocked()
		if silent == nil {
			s.refusedTotal.Add(1)
			return false
		}
		s.closedIdle.Add(1)
		s.uncountLocked(silent)
		_ = silent.control.SetReadDeadline(longAgo) // does not block: its handler has not returned
	}
	st.placed = true
	s.requests++
	s.countAddressLocked(c, 1)
	c.serving++
	c.choosePhaseLocked()
	return true
}

// longAgo is a deadline that ends a read at once.
var longAgo = time.Unix(1, 0)

// findSilentLocked returns the request of a sample that has awaited its body for longest, if
// for at least silentFor; else nil.
func (s *Set) findSilentLocked() *stream {
	var found *stream
	looked := 0
	for st := range s.awaiting { // in random order
		if looked++; looked > sampled {
			break
		}
		if st.placed && time.Since(st.since) >= silentFor && (found == nil || st.since.Before(found.since)) {
			found = st
		}
	}
	return found
}

// uncountLocked takes a request out of the counts; further calls do nothing.
func (s *Set) uncountLocked(st *stream) {
	if st.placed {
		st.placed = false
		s.requests--
		s.countAddressLocked(st.of, -1)
	}
}

// fewPart divides a limit: while at most that part of it is used, finish need not wait for
// answers to be sent.
const fewPart = 4

// finish ends the accounting of an answer. net/http writes the end of the answer after the
// handler has returned, and its reader may make that wait. So the request still counts until
// the connection has no requests; if too many count already, finish sends the answer first. A
// request that has lost its place gets no answer.
func (s *Set) finish(st *stream) {
	c := st.of
	s.mu.Lock()
	if !st.placed {
		s.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	_, open := s.open[c]
	few := fewPart*s.requests <= s.limits.Total && (!s.boundsAddress(c) || fewPart*s.from[c.address] <= s.limits.PerAddress)
	if few && open && c.answered < MaxStreams {
		c.answered++
		st.placed = false
	}
	s.mu.Unlock()
	if !few {
		_ = st.control.Flush() // fails if the reader is gone
	}
}

// leave ends a request.
func (s *Set) leave(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uncountLocked(st)
	s.bodyArrivedLocked(st)
	c := st.of
	c.serving--
	c.choosePhaseLocked()
	if c.serving+c.awaiting == 0 && phase(c.phase.Load()) == betweenRequests { // the client had reset it earlier
		s.forgetRequestsLocked(c)
	}
}

// forgetRequestsLocked is called when a connection has no more requests. It releases what they
// have left.
func (s *Set) forgetRequestsLocked(c *conn) {
	c.releaseBuffers()
	s.forgetAnswersLocked(c)
}

// forgetAnswersLocked is called when a connection has no requests: all its answers have been read.
func (s *Set) forgetAnswersLocked(c *conn) {
	s.requests -= c.answered
	s.countAddressLocked(c, -c.answered)
	c.answered = 0
}

// refuse answers a request beyond the limits. If there are many of them, it closes the
// connection instead, since the clients may not read even that.
func (s *Set) refuse(st *stream) {
	s.mu.Lock()
	s.refusing++
	many := s.refusing > max(MaxStreams, s.limits.Total/8)
	s.mu.Unlock()
	if many {
		_ = st.of.Close()
	} else {
		refuse(st)
		_ = st.control.Flush() // fails if the reader is gone
	}
	s.mu.Lock()
	s.refusing--
	s.mu.Unlock()
}

// choosePhaseLocked sets the connection's phase. A connection all of whose requests await
// bodies counts as idle if these do not come. Set.mu is held.
func (c *conn) choosePhaseLocked() {
	if c.serving > 0 || c.awaiting == 0 {
		c.phase.CompareAndSwap(int32(awaitingBody), int32(inRequest))
	} else if phase(c.phase.Load()) == inRequest {
		c.active.Store(time.Now().UnixNano())
		c.phase.CompareAndSwap(int32(inRequest), int32(awaitingBody))
	}
}

// keepHead keeps the memory of the connection's longest head reserved until it is closed,
// because net/http keeps the last frame that it has read. It reports whether there is memory.
func (c *conn) keepHead(n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	more := n - c.kept
	if c.closed || more <= 0 {
		return true
	}
	if !c.set.limits.Heads.Reserve(more) {
		return false
	}
	c.kept = n
	return true
}

// reserveBuffers reserves connBuffer for a connection until it has no requests or is closed. It
// reports whether there is memory.
func (c *conn) reserveBuffers() bool {
	if c.buffers.Load() {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.buffers.Load() { // if closed, the answer has no reader anyway
		return true
	}
	if !c.set.limits.Heads.Reserve(connBuffer) {
		return false
	}
	c.buffers.Store(true)
	return true
}

// releaseBuffers releases the reservation of reserveBuffers.
func (c *conn) releaseBuffers() {
	if c.buffers.Swap(false) {
		c.set.limits.Heads.Release(connBuffer)
	}
}

// stream is an HTTP/2 request and the writer of its answer. As in conn, the write deadline
// moves ahead as the reader makes progress, unless a caller has set one.
type stream struct {
	http.ResponseWriter
	control *http.ResponseController
	of      *conn
	imposed atomic.Bool

	// placed: the request counts in Set.requests. waits: it has awaited its body, since the
	// time since. Guarded by Set.mu.
	placed, waits bool
	since         time.Time
}

// Unwrap is for http.ResponseController.
func (st *stream) Unwrap() http.ResponseWriter { return st.ResponseWriter }

// Write writes in pieces of pieceBytes, and sets the write deadline before each.
func (st *stream) Write(p []byte) (int, error) {
	written := 0
	for {
		piece := p[:min(len(p), pieceBytes)]
		if !st.imposed.Load() {
			_ = st.control.SetWriteDeadline(time.Now().Add(progressWithin))
		}
		n, err := st.ResponseWriter.Write(piece)
		written += n
		if p = p[n:]; err != nil || len(p) == 0 {
			return written, err
		}
	}
}

// SetWriteDeadline imposes a deadline; the zero time returns it to the writer's own rule. There
// always is one, because the end of an answer is written after its handler has returned.
func (st *stream) SetWriteDeadline(t time.Time) error {
	st.imposed.Store(!t.IsZero())
	if t.IsZero() {
		t = time.Now().Add(progressWithin)
	}
	return st.control.SetWriteDeadline(t)
}

// SetReadDeadline marks that the request's body is awaited; the zero time, that it no longer is.
func (st *stream) SetReadDeadline(t time.Time) error {
	s := st.of.set
	s.mu.Lock()
	if t.IsZero() {
		s.bodyArrivedLocked(st)
	} else if !st.waits {
		st.waits, st.since = true, time.Now()
		s.awaiting[st] = struct{}{}
		st.of.serving--
		st.of.awaiting++
	}
	st.of.choosePhaseLocked()
	s.mu.Unlock()
	return st.control.SetReadDeadline(t)
}

// bodyArrivedLocked marks that a request no longer awaits its body.
func (s *Set) bodyArrivedLocked(st *stream) {
	if !st.waits {
		return
	}
	st.waits = false
	delete(s.awaiting, st)
	st.of.serving++
	st.of.awaiting--
}
