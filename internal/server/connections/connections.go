package connections

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/select-service/select-service/internal/transport/clientnet"
	"github.com/select-service/select-service/pkg/memory"
)

const (
	// silentFor is how long a new connection may take to send its first request, and any
	// connection to send the body of a request, before it counts as idle.
	silentFor = time.Second
	// sampled is how many connections are examined to find an idle one to close. The one found
	// is among the longest idle, as in a cache with sampled LRU.
	sampled = 16
	// progressWithin is how long a reader may take for the next pieceBytes of an answer. A
	// slower reader is cut off, because unread answers are held in memory.
	progressWithin = 30 * time.Second
	pieceBytes     = 256 << 10
	// A write deadline is moved once it is deadlineAge old, and the socket's read deadline is at
	// most that far ahead: to move them at each call would cost a timer each time.
	deadlineAge = 5 * time.Second
	// freeHead is how many bytes the head of a request may take (on a new connection including
	// a TLS handshake) before they are reserved from an account.
	freeHead = 8 << 10
	// fieldBytes is the approximate memory that net/http takes for a header field besides its
	// text, valueBytes for a further value of the same name.
	fieldBytes = 128
	valueBytes = 32
	// packedBytes is the memory that one byte of an HTTP/2 head may become: it may be the table
	// index of a whole field.
	packedBytes = 64
)

// errHeads ends a connection whose head does not fit into Limits.Heads.
var errHeads = errors.New("no memory for the head of a request")

// Limits bound the connections of a Set, and separately as many requests of HTTP/2. PerAddress
// bounds connections and HTTP/2 requests of one address together; 0: no bound.
type Limits struct {
	Total, PerAddress int
	// Heads is the account for long heads of requests, from their first byte until the request
	// is answered, and for the buffers of HTTP/2; nil: no bound.
	Heads *memory.Account
}

// Stats has the counts of a Set. All but Open include requests of HTTP/2.
type Stats struct {
	Open           int
	RefusedTotal   uint64 // because of Limits.Total
	RefusedAddress uint64 // because of Limits.PerAddress
	ClosedIdle     uint64 // closed to make room for a new one
}

// Set has the connections of all listeners. It is safe for concurrent use.
type Set struct {
	limits                                   Limits
	refusedTotal, refusedAddress, closedIdle atomic.Uint64

	// mu guards the fields below, and those of conn and stream that say so. It is held
	// for memory work only.
	mu       sync.Mutex
	open     map[*conn]struct{}
	from     map[netip.Prefix]int // open connections and HTTP/2 requests by address, if PerAddress bounds them
	requests int                  // HTTP/2 requests being served, and those whose answers may wait for their readers
	refusing int                  // HTTP/2 requests beyond the limits, while they are answered
	awaiting map[*stream]struct{} // HTTP/2 requests whose bodies have a read deadline
}

// New returns a set without connections.
func New(limits Limits) *Set {
	return &Set{limits: limits, open: make(map[*conn]struct{}), from: make(map[netip.Prefix]int), awaiting: make(map[*stream]struct{})}
}

// Stats returns the counts so far.
func (s *Set) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{
		Open: len(s.open), RefusedTotal: s.refusedTotal.Load(), RefusedAddress: s.refusedAddress.Load(), ClosedIdle: s.closedIdle.Load(),
	}
}

// Listener wraps ln so that its connections are within the limits of the set. conf is for
// TLS; nil: plain HTTP.
func (s *Set) Listener(ln net.Listener, conf *tls.Config) net.Listener {
	bounded := &listener{Listener: ln, set: s, begin: fresh, refusal: refusal}
	if conf == nil {
		return bounded
	}
	bounded.refusal = "" // a client cannot read it before the handshake
	return tls.NewListener(bounded, conf)
}

// Counted is Listener for a server other than net/http's. The set does not see what its
// connections do, so it closes none to make room, except those that have a read deadline, as in
// a handshake, and fall silent.
func (s *Set) Counted(ln net.Listener) net.Listener {
	return &listener{Listener: ln, set: s, begin: inRequest}
}

type listener struct {
	net.Listener
	set     *Set
	begin   phase  // of an accepted connection
	refusal string // written to a refused connection
}

// refusal is the answer to a connection beyond the limits.
const refusal = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n" +
	"Content-Type: application/json\r\nContent-Length: 32\r\n\r\n" + `{"error":"too many connections"}`

// Accept returns the next connection that is within the limits.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.set.admit(raw, l.begin); c != nil {
			return c, nil
		}
		_, _ = io.WriteString(raw, l.refusal) // does not block: nothing was sent before
		_ = raw.Close()
	}
}

// admit takes a connection into the set, or returns nil if that would exceed a limit.
func (s *Set) admit(raw net.Conn, begin phase) *conn {
	c := &conn{Conn: raw, set: s, address: network(raw.RemoteAddr())}
	c.phase.Store(int32(begin))
	c.active.Store(time.Now().UnixNano())
	s.mu.Lock()
	var idle *conn
	switch {
	case s.addressFullLocked(c):
		s.mu.Unlock()
		s.refusedAddress.Add(1)
		return nil
	case len(s.open) >= s.limits.Total:
		if idle = s.findIdleLocked(); idle == nil {
			s.mu.Unlock()
			s.refusedTotal.Add(1)
			return nil
		}
		s.dropLocked(idle)
	}
	s.open[c] = struct{}{}
	s.countAddressLocked(c, 1)
	s.mu.Unlock()
	if idle != nil {
		s.closedIdle.Add(1)
		_ = idle.Conn.Close() // its server notices at the next read
	}
	return c
}

// findIdleLocked returns the connection of a sample that has been idle for longest; nil if none
// is idle.
func (s *Set) findIdleLocked() *conn {
	var found *conn
	since, looked := time.Now().UnixNano(), 0
	for c := range s.open { // in random order
		if looked++; looked > sampled {
			break
		}
		active := c.active.Load()
		switch phase(c.phase.Load()) {
		case inRequest:
			continue
		case fresh, awaitingBody:
			if since-active < int64(silentFor) {
				continue
			}
		case betweenRequests:
		}
		if found == nil || active < found.active.Load() {
			found = c
		}
	}
	return found
}

// dropLocked takes a connection out of the set; further calls do nothing.
func (s *Set) dropLocked(c *conn) {
	if _, ok := s.open[c]; !ok {
		return
	}
	delete(s.open, c)
	s.countAddressLocked(c, -1)
	s.forgetAnswersLocked(c)
}

// boundsAddress reports whether PerAddress bounds the connection. Connections of unix
// sockets have no address.
func (s *Set) boundsAddress(c *conn) bool { return s.limits.PerAddress > 0 && c.address.IsValid() }

// addressFullLocked reports whether the address of c has reached PerAddress.
func (s *Set) addressFullLocked(c *conn) bool {
	return s.boundsAddress(c) && s.from[c.address] >= s.limits.PerAddress
}

// countAddressLocked adds n to the count of the address of c.
func (s *Set) countAddressLocked(c *conn, n int) {
	if !s.boundsAddress(c) || n == 0 {
		return
	}
	if s.from[c.address] += n; s.from[c.address] == 0 {
		delete(s.from, c.address)
	}
}

// network returns the client's network, by which Limits.PerAddress counts.
func network(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	return clientnet.Of(tcp.AddrPort().Addr())
}

// observe is the http.Server.ConnState of the servers.
func (s *Set) observe(nc net.Conn, state http.ConnState) {
	c, ok := below(nc).(*conn)
	if !ok {
		return
	}
	if secure, ok := nc.(*tls.Conn); ok && state == http.StateActive && secure.ConnectionState().NegotiatedProtocol == "h2" {
		c.multiplexed.Store(true) // Read sees nothing of it
	}
	switch state {
	case http.StateNew:
		c.phase.Store(int32(fresh))
	case http.StateActive:
		c.phase.Store(int32(inRequest))
		c.releaseHead()
	case http.StateIdle:
		c.phase.Store(int32(betweenRequests))
		if c.multiplexed.Load() {
			s.mu.Lock()
			s.forgetRequestsLocked(c)
			s.mu.Unlock()
		}
	case http.StateHijacked, http.StateClosed:
	}
}

// CloseFresh closes the connections that have not sent a whole head of a request.
func (s *Set) CloseFresh() {
	s.closeIf(func(c *conn) bool { return phase(c.phase.Load()) == fresh })
}

// CloseAll closes all connections at once. (http.Server closes them one after the
// other, and waits up to 5 s for each TLS client that reads nothing.)
func (s *Set) CloseAll() {
	s.closeIf(func(*conn) bool { return true })
}

func (s *Set) closeIf(which func(*conn) bool) {
	var chosen []*conn
	s.mu.Lock()
	for c := range s.open {
		if which(c) {
			chosen = append(chosen, c)
		}
	}
	s.mu.Unlock()
	for _, c := range chosen {
		_ = c.Close()
	}
}

// phase is what a connection is doing.
type phase int32

const (
	fresh           phase = iota // it has not sent a whole head of a request
	inRequest                    // from the head of a request until its answer is written
	awaitingBody                 // in a request whose body has a read deadline; over HTTP/2, all its requests are
	betweenRequests              // kept alive
)

// conn is a connection of a set. Its write deadline moves ahead as the reader makes progress,
// unless a caller has set one.
//
// net/http sets the read deadline several times in each request, twice of these to end its own
// background read. To save system timers, the socket's deadline is moved only if a read could
// otherwise end too late. It may be earlier than the deadline that was set; Read then continues.
type conn struct {
	net.Conn
	set      *Set
	address  netip.Prefix
	phase    atomic.Int32
	active   atomic.Int64 // when it was accepted, began to await a body or was written to last, in Unix ns
	deadline atomic.Int64 // when the write deadline was last moved, in Unix ns
	head     atomic.Int64 // approximate memory for the bytes read since the last request
	buffers  atomic.Bool  // connBuffer is reserved; written under mu
	imposed  atomic.Bool  // the write deadline was set by a caller; written under mu, as deadline is
	ended    atomic.Bool  // armed was already past when it was set, to end a read at once; written under mu

	multiplexed atomic.Bool // it speaks HTTP/2
	prefaced    int         // how many bytes of preface have matched, -1: it began with something else; used by Read only

	// HTTP/2 requests by state: awaiting a body; served (all others whose handler runs);
	// answered, whose handler has returned but whose answer the reader may not have read, at
	// most MaxStreams. Guarded by Set.mu.
	serving, awaiting, answered int

	// mu guards the fields below, and that the write deadline is the one imposed last. Reads take
	// it for long heads and when the socket's deadline has passed by itself, writes when they
	// move the deadline. It is held for memory work and while a deadline of the socket is set.
	mu       sync.Mutex
	until    time.Time // the read deadline that was set; zero: none
	armed    time.Time // the socket's, not after until; zero: none
	reserved int64     // bytes of Limits.Heads for a head that is not complete
	kept     int64     // bytes of Limits.Heads for the longest complete HTTP/2 head
	closed   bool
}

// Read counts the bytes of a request's head until it is complete.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && !c.ended.Load() && c.rearmRead() {
		n, err = c.Conn.Read(p)
	}
	switch phase(c.phase.Load()) {
	case inRequest, awaitingBody:
		return n, err
	case fresh, betweenRequests:
	}
	size := c.headMemory(p[:n])
	if c.head.Add(size) <= freeHead {
		return n, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.multiplexed.Load() {
		size = min(size, maxHead-c.reserved)
	}
	if c.closed || !c.set.limits.Heads.Reserve(size) {
		_ = c.Conn.Close() // net/http would read on otherwise
		return 0, errHeads
	}
	c.reserved += size
	return n, err
}

// preface is the start of every HTTP/2 connection.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// headMemory estimates the memory that net/http takes for a part of a head, which may be many
// times its length. It also notices that the connection speaks HTTP/2.
func (c *conn) headMemory(part []byte) int64 {
	for len(part) > 0 && c.prefaced >= 0 && c.prefaced < len(preface) {
		if part[0] != preface[c.prefaced] {
			c.prefaced = -1
			break
		}
		part = part[1:]
		if c.prefaced++; c.prefaced == len(preface) {
			c.multiplexed.Store(true)
		}
	}
	if c.multiplexed.Load() {
		return packedBytes * int64(len(part))
	}
	head, _, _ := bytes.Cut(part, headEnd) // do not count the lines of a body that came along
	return int64(len(part) + fieldBytes*bytes.Count(head, newline))
}

var newline, headEnd = []byte("\n"), []byte("\r\n\r\n")

// releaseHead ends the accounting of a head that is complete: from now on the request accounts
// for it.
func (c *conn) releaseHead() {
	if c.head.Swap(0) <= freeHead {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set.limits.Heads.Release(c.reserved)
	c.reserved = 0
}

// Write writes in pieces of pieceBytes, and moves the write deadline before each.
func (c *conn) Write(p []byte) (int, error) {
	written := 0
	for {
		c.moveDeadline()
		piece := p[:min(len(p), pieceBytes)]
		n, err := c.Conn.Write(piece)
		written += n
		if p = p[n:]; err != nil || len(p) == 0 {
			return written, err
		}
	}
}

// moveDeadline records activity, and moves the write deadline if it is older than deadlineAge.
func (c *conn) moveDeadline() {
	now := time.Now()
	if !c.multiplexed.Load() || phase(c.phase.Load()) != awaitingBody { // HTTP/2 also writes answers to pings then, which are no progress
		c.active.Store(now.UnixNano())
	}
	if c.imposed.Load() || now.UnixNano()-c.deadline.Load() < int64(deadlineAge) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.imposed.Load() { // set in the meantime, perhaps to cut the reader off
		return
	}
	c.deadline.Store(now.UnixNano())
	_ = c.Conn.SetWriteDeadline(now.Add(progressWithin + deadlineAge)) // fails only if closed, and then the write fails too
}

// SetReadDeadline during a request marks that its body is awaited; the zero time, that it no
// longer is.
func (c *conn) SetReadDeadline(t time.Time) error {
	if t.IsZero() {
		c.phase.CompareAndSwap(int32(awaitingBody), int32(inRequest))
	} else if phase(c.phase.Load()) == inRequest {
		c.active.Store(time.Now().UnixNano())
		c.phase.CompareAndSwap(int32(inRequest), int32(awaitingBody))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
	if !c.ended.Load() && (t.IsZero() || !c.armed.IsZero() && !c.armed.After(t)) {
		return nil // the socket's deadline is early enough
	}
	c.armed = t
	if !t.IsZero() && t.UnixNano() <= c.active.Load() { // it is past for certain, without reading the clock
		c.ended.Store(true)
		return c.Conn.SetReadDeadline(t)
	}
	now := time.Now()
	c.ended.Store(!t.IsZero() && !t.After(now))
	// A deadline that probably serves the next requests too, even if the caller set none.
	if soon := now.Add(deadlineAge); t.IsZero() || soon.Before(t) {
		c.armed = soon
	}
	return c.Conn.SetReadDeadline(c.armed)
}

// rearmRead is called when the socket's read deadline has passed. If that was earlier than the
// deadline that was set, it arms the latter and returns true.
func (c *conn) rearmRead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.until.IsZero() && !c.until.After(time.Now()) {
		return false
	}
	c.armed = c.until
	c.ended.Store(false)
	return c.Conn.SetReadDeadline(c.until) == nil
}

// SetWriteDeadline imposes a deadline; the zero time returns it to the connection's own rule.
// net/http sets the zero time after each request: that keeps the current deadline.
func (c *conn) SetWriteDeadline(t time.Time) error {
	if t.IsZero() && !c.imposed.Load() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.imposed.Store(!t.IsZero())
	c.deadline.Store(0)
	return c.Conn.SetWriteDeadline(t)
}

// SyscallConn implements syscall.Conn, for those who look at a connection without reading it.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if below, ok := c.Conn.(syscall.Conn); ok {
		return below.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// CloseWrite tells the client that nothing more will be written.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// SetDeadline is SetReadDeadline and SetWriteDeadline.
func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// Close takes the connection out of its set.
func (c *conn) Close() error {
	c.set.mu.Lock()
	c.set.dropLocked(c)
	c.set.mu.Unlock()
	c.mu.Lock()
	c.closed = true
	c.set.limits.Heads.Release(c.reserved + c.kept)
	c.reserved, c.kept = 0, 0
	c.mu.Unlock()
	c.releaseBuffers()
	return c.Conn.Close()
}
