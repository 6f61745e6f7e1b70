// Package connections bounds the connections that a process accepts and their requests over
// HTTP/2: how many there are, in all and from one address, what their heads take, and how
// long an answer may wait for its reader.
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
	"time"

	"github.com/select-service/select-service/internal/budget"
)

const (
	// silentFor is how long a new connection may take to its first request, and any to
	// the body of a request, before it counts as idle.
	silentFor = time.Second
	// sampled is how many connections are looked at to find an idle one to close. The
	// one found is among the longest idle, like that of a cache with sampled LRU.
	sampled = 16
	// progressWithin is how long a reader may take for the next pieceBytes of an
	// answer. A reader that is slower is cut off: what it does not take is held in
	// memory.
	progressWithin = 30 * time.Second
	pieceBytes     = 256 << 10
	// deadlineAge is how old a write deadline gets before it is moved, and how far ahead
	// the socket's read deadline is at most when it is set: to move them at each call
	// would cost a timer each.
	deadlineAge = 5 * time.Second
	// freeHead is what the head of a request may take, on a new connection a handshake
	// included; beyond it the bytes come from an account.
	freeHead = 8 << 10
	// fieldBytes is about what net/http makes of a field of a head beside its text, and
	// valueBytes of a further value of the same name.
	fieldBytes = 128
	valueBytes = 32
	// packedBytes is what is made of a byte of HTTP/2: it may be a field, by its number.
	packedBytes = 64
)

// errHeads ends a connection with a long head when there is no memory for it.
var errHeads = errors.New("no memory for the head of a request")

// Limits bound the connections of a Set, and beside them the requests of HTTP/2;
// PerAddress, which counts both together, 0 is no bound.
type Limits struct {
	Total, PerAddress int
	// Heads is the account of the heads of requests, as far as they are long, from their
	// first byte until the request has its answer, and of the buffers of HTTP/2; nil is no
	// bound.
	Heads *budget.Account
}

// Stats counts what a Set has done.
type Stats struct {
	Open           int
	RefusedTotal   uint64 // because of Limits.Total, with requests of HTTP/2
	RefusedAddress uint64 // because of Limits.PerAddress, with requests of HTTP/2
	ClosedIdle     uint64 // to make room for a new one, with requests of HTTP/2
}

// Set is the connections of all listeners. It is safe for concurrent use.
type Set struct {
	limits                                   Limits
	refusedTotal, refusedAddress, closedIdle atomic.Uint64

	// mu guards what follows, and what a conn and a stream say that it guards. It is held
	// for memory work only.
	mu       sync.Mutex
	open     map[*conn]struct{}
	from     map[netip.Prefix]int // open connections and requests by address, if they are bounded
	requests int                  // of HTTP/2: those that are served, and answers that may wait for their readers
	refusing int                  // requests of HTTP/2 that are one too many
	awaiting map[*stream]struct{} // requests of HTTP/2 whose bodies have a deadline
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

// Listener returns ln within the limits of the set. conf is for TLS, nil for plain HTTP.
func (s *Set) Listener(ln net.Listener, conf *tls.Config) net.Listener {
	bounded := &listener{Listener: ln, set: s, begin: fresh, refusal: refusal}
	if conf == nil {
		return bounded
	}
	bounded.refusal = "" // nobody could read it before the handshake
	return tls.NewListener(bounded, conf)
}

// Counted returns ln within the limits of the set, for a server that is not net/http's: what
// its connections do is not known, so that none is closed to make room but those that have a
// read deadline, as in a handshake, and fall silent.
func (s *Set) Counted(ln net.Listener) net.Listener {
	return &listener{Listener: ln, set: s, begin: inRequest}
}

type listener struct {
	net.Listener
	set     *Set
	begin   phase  // of a connection
	refusal string // for a connection that is refused
}

// refusal is the answer of a connection that is one too many.
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

// admit takes a connection into the set, or returns nil if it is one too many.
func (s *Set) admit(raw net.Conn, begin phase) *conn {
	c := &conn{Conn: raw, set: s, address: network(raw.RemoteAddr())}
	c.phase.Store(int32(begin))
	c.active.Store(time.Now().UnixNano())
	s.mu.Lock()
	var idle *conn
	switch {
	case s.addressFull(c):
		s.mu.Unlock()
		s.refusedAddress.Add(1)
		return nil
	case len(s.open) >= s.limits.Total:
		if idle = s.findIdle(); idle == nil {
			s.mu.Unlock()
			s.refusedTotal.Add(1)
			return nil
		}
		s.drop(idle)
	}
	s.open[c] = struct{}{}
	s.countAddressLocked(c, 1)
	s.mu.Unlock()
	if idle != nil {
		s.closedIdle.Add(1)
		_ = idle.Conn.Close() // its server learns it from the next read
	}
	return c
}

// findIdle returns an idle connection of a sample, the one for the longest time; nil
// if there is none. The caller holds mu.
func (s *Set) findIdle() *conn {
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

// drop takes a connection out of the set, once. The caller holds mu.
func (s *Set) drop(c *conn) {
	if _, ok := s.open[c]; !ok {
		return
	}
	delete(s.open, c)
	s.countAddressLocked(c, -1)
	s.forgetAnswersLocked(c)
}

// boundsAddress reports whether connections like c are counted by address. Those of unix
// sockets have none.
func (s *Set) boundsAddress(c *conn) bool { return s.limits.PerAddress > 0 && c.address.IsValid() }

// addressFull reports whether the address of c has all that it may have. The caller holds mu.
func (s *Set) addressFull(c *conn) bool {
	return s.boundsAddress(c) && s.from[c.address] >= s.limits.PerAddress
}

// countAddressLocked adds n to what the address of c has.
func (s *Set) countAddressLocked(c *conn, n int) {
	if !s.boundsAddress(c) || n == 0 {
		return
	}
	if s.from[c.address] += n; s.from[c.address] == 0 {
		delete(s.from, c.address)
	}
}

// network is the address of a connection for Limits.PerAddress: an IPv6 host has a
// whole /64 network of addresses.
func network(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	prefix, _ := ip.Prefix(bits) // the length fits
	return prefix
}

// observe is the ConnState of the servers.
func (s *Set) observe(nc net.Conn, state http.ConnState) {
	if secure, ok := nc.(*tls.Conn); ok {
		nc = secure.NetConn()
	}
	c, ok := nc.(*conn)
	if !ok {
		return
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
			c.releaseBuffers()
			s.mu.Lock()
			s.forgetAnswersLocked(c)
			s.mu.Unlock()
		}
	case http.StateHijacked, http.StateClosed:
	}
}

// CloseFresh closes the connections that have not sent the head of a request yet.
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

// phase is where a connection is.
type phase int32

const (
	fresh           phase = iota // it has not sent the head of a request
	inRequest                    // until the answer is written
	awaitingBody                 // in a request whose body has a deadline; over HTTP/2, in nothing else
	betweenRequests              // kept alive
)

// conn is a connection of a set. Its writes have a deadline that moves with what the
// reader takes, unless a caller has set one.
//
// net/http sets the read deadline several times in each request, twice of these to end
// its own read beside the handler. The socket's is moved only where a read might
// otherwise end late: it may be earlier than the one that was set, and Read goes on then.
type conn struct {
	net.Conn
	set      *Set
	address  netip.Prefix
	phase    atomic.Int32
	active   atomic.Int64 // when it was accepted, awaited a body or was written to last, in ns since 1970
	deadline atomic.Int64 // when the write deadline was last moved, in the same units
	head     atomic.Int64 // about what was made of the bytes that were read since the last request
	buffers  atomic.Bool  // connBuffer is reserved; written under mu
	imposed  atomic.Bool  // the write deadline is a caller's; written under mu, as deadline is
	ended    atomic.Bool  // armed had passed when it was set, to end a read at once; written under mu

	multiplexed atomic.Bool // it speaks HTTP/2
	prefaced    int         // bytes of preface that it began with, -1: another; reads have it

	// The requests of HTTP/2 by what they do: serving has all but those that await a body,
	// answered those whose handler has returned and whose answer a reader may keep
	// waiting; at most MaxStreams. Guarded by Set.mu.
	serving, awaiting, answered int

	// mu guards what follows, and that the write deadline is the one that was imposed
	// last. Reads take it for long heads, and when the socket's deadline has passed by
	// itself; writes when they move theirs. It is held for memory work, and while a
	// deadline of the socket is set.
	mu       sync.Mutex
	until    time.Time // the read deadline that was set; zero: none
	armed    time.Time // the socket's, not after until; zero: none
	reserved int64     // of Limits.Heads, for a head that is not complete
	kept     int64     // likewise, for the longest head that was complete over HTTP/2
	closed   bool
}

// Read counts what comes before the head of a request is complete.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && !c.ended.Load() && c.mayReadOn() {
		n, err = c.Conn.Read(p)
	}
	switch phase(c.phase.Load()) {
	case inRequest, awaitingBody:
		return n, err
	case fresh, betweenRequests:
	}
	size := c.made(p[:n])
	if c.head.Add(size) <= freeHead {
		return n, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.multiplexed.Load() {
		size = min(size, maxHead-c.reserved)
	}
	if c.closed || !c.set.limits.Heads.Reserve(size) {
		_ = c.Conn.Close() // net/http may read on
		return 0, errHeads
	}
	c.reserved += size
	return n, err
}

// preface is what a connection that speaks HTTP/2 begins with.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// made is about how many bytes net/http makes of a part of a head, which may be many times
// as long as that. It finds out whether the connection speaks HTTP/2.
func (c *conn) made(part []byte) int64 {
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
	head, _, _ := bytes.Cut(part, headEnd) // a body that came with it may have many lines
	return int64(len(part) + fieldBytes*bytes.Count(head, newline))
}

var newline, headEnd = []byte("\n"), []byte("\r\n\r\n")

// releaseHead forgets the head of a request that is complete: the request has it.
func (c *conn) releaseHead() {
	if c.head.Swap(0) <= freeHead {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set.limits.Heads.Release(c.reserved)
	c.reserved = 0
}

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

func (c *conn) moveDeadline() {
	now := time.Now()
	if !c.multiplexed.Load() || phase(c.phase.Load()) != awaitingBody { // it answers pings while it does
		c.active.Store(now.UnixNano())
	}
	if c.imposed.Load() || now.UnixNano()-c.deadline.Load() < int64(deadlineAge) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.imposed.Load() { // meanwhile, maybe to cut the reader off
		return
	}
	c.deadline.Store(now.UnixNano())
	_ = c.Conn.SetWriteDeadline(now.Add(progressWithin + deadlineAge)) // fails if closed, as the write will
}

// SetReadDeadline in a request tells that its body is awaited, or with the zero time
// that it is not any more.
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
		return nil // the socket's is not too late
	}
	c.armed = t
	if !t.IsZero() && t.UnixNano() <= c.active.Load() { // it is over, without a look at the clock
		c.ended.Store(true)
		return c.Conn.SetReadDeadline(t)
	}
	now := time.Now()
	c.ended.Store(!t.IsZero() && !t.After(now))
	// One that is likely to do for the next requests too, also where none was set.
	if soon := now.Add(deadlineAge); t.IsZero() || soon.Before(t) {
		c.armed = soon
	}
	return c.Conn.SetReadDeadline(c.armed)
}

// mayReadOn is called when the socket's read deadline has passed. It reports whether
// that was not the one that was set, which the socket has from now on.
func (c *conn) mayReadOn() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.until.IsZero() && !c.until.After(time.Now()) {
		return false
	}
	c.armed = c.until
	c.ended.Store(false)
	return c.Conn.SetReadDeadline(c.until) == nil
}

// SetWriteDeadline imposes a deadline; the zero time leaves it to the connection again.
// net/http sets the zero time after each request: the connection's own stays then.
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
	c.set.drop(c)
	c.set.mu.Unlock()
	c.mu.Lock()
	c.closed = true
	c.set.limits.Heads.Release(c.reserved + c.kept)
	c.reserved, c.kept = 0, 0
	c.mu.Unlock()
	c.releaseBuffers()
	return c.Conn.Close()
}
