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
	// maxHead is the most that is reserved for a head that is not complete over HTTP/2.
	// Connections that have no request may send other frames for as long as they like.
	maxHead = 256 << 10
)

// Configure makes a server use the set, and speak HTTP/2 without TLS to clients that
// begin with it (prior knowledge), such as gateways that send many requests over few
// connections. They are bounded as connections are: a request is refused beyond
// Limits.Total of them or Limits.PerAddress, unless there is one whose body does not come,
// and its answer is cut off if the client does not read it. The listeners of the server
// have to be those of the set.
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

// streams is the handler of requests, which bounds those of HTTP/2 and the heads of all.
type streams struct {
	set  *Set
	next http.Handler
}

func (h streams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	heads, head := h.set.limits.Heads, headBytes(r)
	fits := head <= freeHead || heads.Reserve(head)
	if fits && head > freeHead {
		defer heads.Release(head)
	}
	switch {
	case r.ProtoMajor >= 2:
		h.serveStream(w, r, head, fits)
	case fits:
		h.next.ServeHTTP(w, r)
	default:
		w.Header().Set("Connection", "close")
		w.Header().Set("Content-Type", "application/json")
		refuse(w)
		_, _ = io.WriteString(w, noMemory)
	}
}

// noMemory is the answer to a request whose head does not fit into Limits.Heads.
const noMemory = `{"error":"no memory left for the head of this request: account heads of --max-memory is full"}`

// serveStream serves a request of HTTP/2.
func (h streams) serveStream(w http.ResponseWriter, r *http.Request, head int64, fits bool) {
	st := &stream{ResponseWriter: w, control: http.NewResponseController(w), of: r.Context().Value(connKey{}).(*conn)}
	if head > freeHead && !st.of.keepHead(head) {
		_ = st.of.Close()
		return
	}
	if !fits || !h.set.begin(st) {
		forgetHead(r)
		h.set.refuse(st)
		return
	}
	defer h.set.leave(st)
	h.next.ServeHTTP(st, r)
	forgetHead(r)
	h.set.finish(st)
}

// forgetHead drops the head of a request: the answer may wait for its reader, but that need
// not. net/http still asks for the method.
func forgetHead(r *http.Request) { *r = http.Request{Method: r.Method} }

// headBytes is about what the head of a request takes.
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

// refuse answers a request that is one too many. Over HTTP/2 that is all: a body would wait
// for its reader.
func refuse(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
}

// begin takes a request into the set, if need be in place of one whose body does not come.
// It reports false if it is one too many.
func (s *Set) begin(st *stream) bool {
	c := st.of
	if !c.reserveBuffers() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addressFull(c) {
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
		s.giveUpPlaceLocked(silent)
		_ = silent.control.SetReadDeadline(longAgo) // does not wait; its handler has not returned
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

// findSilentLocked returns the request of a sample that has awaited its body for longest,
// if that is long enough.
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

// giveUpPlaceLocked makes room for another request, once.
func (s *Set) giveUpPlaceLocked(st *stream) {
	if st.placed {
		st.placed = false
		s.requests--
		s.countAddressLocked(st.of, -1)
	}
}

// fewPart is the part of a limit up to which answers may count that are read by now.
const fewPart = 4

// finish sees to the end of the answer, which net/http writes when the handler has returned:
// its reader may keep it waiting then, and it counts until the connection has no requests.
// Where that would be too many, the answer is sent before. A request that has lost its place
// has none.
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
	s.giveUpPlaceLocked(st)
	s.arrivedLocked(st)
	st.of.serving--
	st.of.choosePhaseLocked()
}

// forgetAnswersLocked is for a connection that has no requests any more: all is read.
func (s *Set) forgetAnswersLocked(c *conn) {
	s.requests -= c.answered
	s.countAddressLocked(c, -c.answered)
	c.answered = 0
}

// refuse answers a request that is one too many. A client that does not read even that is
// cut off once there are many.
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

// choosePhaseLocked lets a connection of which all requests await bodies count as idle when
// those do not come. Set.mu is held.
func (c *conn) choosePhaseLocked() {
	if c.serving > 0 || c.awaiting == 0 {
		c.phase.CompareAndSwap(int32(awaitingBody), int32(inRequest))
	} else if phase(c.phase.Load()) == inRequest {
		c.active.Store(time.Now().UnixNano())
		c.phase.CompareAndSwap(int32(inRequest), int32(awaitingBody))
	}
}

// keepHead takes what the longest head of the connection takes, until it is closed: net/http
// keeps the last frame that it has read. It reports false if there is no memory.
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

// stream is an HTTP/2 request, and writes its answer. As on a connection of its own, the
// write deadline moves with what the reader takes, unless a caller has set one.
type stream struct {
	http.ResponseWriter
	control *http.ResponseController
	of      *conn
	imposed atomic.Bool

	// placed: it counts in Set.requests. waits: it awaits its body, since then. Guarded by
	// Set.mu.
	placed, waits bool
	since         time.Time
}

// Unwrap is for http.ResponseController.
func (w *stream) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *stream) Write(p []byte) (int, error) {
	written := 0
	for {
		piece := p[:min(len(p), pieceBytes)]
		if !w.imposed.Load() {
			_ = w.control.SetWriteDeadline(time.Now().Add(progressWithin))
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
func (w *stream) SetWriteDeadline(t time.Time) error {
	w.imposed.Store(!t.IsZero())
	if t.IsZero() {
		t = time.Now().Add(progressWithin)
	}
	return w.control.SetWriteDeadline(t)
}

// SetReadDeadline tells that the body is awaited, or with the zero time that it is not any
// more.
func (w *stream) SetReadDeadline(t time.Time) error {
	s := w.of.set
	s.mu.Lock()
	if t.IsZero() {
		s.arrivedLocked(w)
	} else if !w.waits {
		w.waits, w.since = true, time.Now()
		s.awaiting[w] = struct{}{}
		w.of.serving--
		w.of.awaiting++
	}
	w.of.choosePhaseLocked()
	s.mu.Unlock()
	return w.control.SetReadDeadline(t)
}

// arrivedLocked says that a request does not await its body any more.
func (s *Set) arrivedLocked(st *stream) {
	if !st.waits {
		return
	}
	st.waits = false
	delete(s.awaiting, st)
	st.of.serving++
	st.of.awaiting--
}
