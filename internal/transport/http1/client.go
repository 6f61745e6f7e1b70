package http1

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"time"
)

// Bounds, unless Options say otherwise.
const (
	defaultIdle          = 4 * time.Second // uvicorn closes after 5 s
	defaultIdlePerOrigin = 64
	defaultIdleInAll     = 1024
	maxHead              = 64 << 10 // bytes of an answer's heads, and of its trailers
	maxFields            = 256      // in a head, in trailers
	maxChunkLine         = 256      // bytes
	sendAlone            = 64 << 10 // bytes of a body above which it is sent by a goroutine of its own
	sendAtOnce           = 16 << 10 // bytes of a body up to which it is copied behind the head
	bufferSize           = 4 << 10  // of a connection in use: nearly all heads fit, and pieces of streams
)

// Options are a client's settings.
type Options struct {
	// Dial opens a connection to host:port; nil: a net.Dialer's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS returns the configuration of one connection to a host; nil: it is verified with the system's
	// authorities.
	TLS func(host string) *tls.Config
	// ConnectTimeout bounds the time of Dial and of the TLS handshake together; 0: no bound.
	ConnectTimeout time.Duration
	// IdleTimeout is how long a connection is kept that nobody uses; 0: 4 s.
	IdleTimeout time.Duration
	// MaxIdlePerOrigin and MaxIdle bound the connections that are kept; 0: 64 and 1,024.
	MaxIdlePerOrigin, MaxIdle int
}

// Client sends requests. It is safe for concurrent use. It bounds the connections that are idle; those in
// use are as many as its callers' requests.
type Client struct {
	options Options

	mu     sync.Mutex         // guards the rest
	idle   map[Origin][]*conn // the one used last is the last
	idles  int                // connections in idle
	open   int                // all connections, those in use too
	closed bool               // connections are not kept any more
}

// New returns a client. Close closes its idle connections.
func New(o Options) *Client {
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	if o.TLS == nil {
		o.TLS = func(host string) *tls.Config { return &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12} }
	}
	if o.IdleTimeout == 0 {
		o.IdleTimeout = defaultIdle
	}
	if o.MaxIdlePerOrigin == 0 {
		o.MaxIdlePerOrigin = defaultIdlePerOrigin
	}
	if o.MaxIdle == 0 {
		o.MaxIdle = defaultIdleInAll
	}
	return &Client{options: o, idle: make(map[Origin][]*conn)}
}

// Do sends a request and returns the head of its answer, with the body to read. The caller must close the
// answer. An error is an *Error, or wraps ErrRequest.
//
// The end of ctx closes the connection at once, also while the body is read; a changed protocol's too.
//
// A request that meets the end of a connection which was idle is sent again on a new one, if no byte of an
// answer has come.
func (c *Client) Do(ctx context.Context, r *Request) (*Response, error) {
	resp, err := c.do(ctx, r)
	if err != nil && r.Reader != nil {
		_ = r.Reader.Close()
	}
	return resp, err
}

func (c *Client) do(ctx context.Context, r *Request) (*Response, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if r.Reader == nil {
		if cn := c.take(r.Origin); cn != nil {
			resp, err := cn.ask(ctx, r)
			if err == nil {
				return resp, nil
			}
			if e := err.(*Error); !e.Unserved() { //nolint:errorlint // it is never wrapped
				return nil, err
			}
		}
	}
	cn, err := c.connect(ctx, r.Origin)
	if err != nil {
		return nil, err
	}
	resp, err := cn.ask(ctx, r)
	return resp, err
}

// Connections returns how many connections are open, and how many of them nobody uses.
func (c *Client) Connections() (open, idle int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open, c.idles
}

// Close closes the connections that are not in use now, and those in use after their answers.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, list := range c.idle {
		for _, cn := range list {
			cn.expiry.Stop()
			cn.closeLocked()
		}
	}
	clear(c.idle)
	c.idles = 0
}

// take returns a connection that was idle and seems to be open, nil if there is none.
func (c *Client) take(o Origin) *conn {
	for {
		cn := c.lastIdle(o)
		if cn == nil {
			return nil
		}
		if cn.isQuiet() {
			cn.reused = true
			return cn
		}
		cn.drop() // it has ended, or an answer has come to nobody's request
	}
}

func (c *Client) lastIdle(o Origin) *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.idle[o]
	if len(list) == 0 {
		return nil
	}
	cn := list[len(list)-1]
	c.removeLocked(cn)
	cn.expiry.Stop()
	return cn
}

// put keeps a connection for the next request, or closes it.
func (c *Client) put(cn *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.idles >= c.options.MaxIdle || len(c.idle[cn.origin]) >= c.options.MaxIdlePerOrigin {
		cn.closeLocked()
		return
	}
	c.idle[cn.origin] = append(c.idle[cn.origin], cn)
	c.idles++
	if cn.expiry == nil {
		cn.expiry = time.AfterFunc(c.options.IdleTimeout, cn.expire)
	} else {
		cn.expiry.Reset(c.options.IdleTimeout)
	}
}

// expire closes a connection that is idle.
func (cn *conn) expire() {
	cn.of.mu.Lock()
	defer cn.of.mu.Unlock()
	if cn.of.removeLocked(cn) {
		cn.closeLocked()
	}
}

// removeLocked reports whether the connection was idle. It is not afterwards.
func (c *Client) removeLocked(cn *conn) bool {
	list := c.idle[cn.origin]
	i := slices.Index(list, cn)
	if i < 0 {
		return false
	}
	if list = slices.Delete(list, i, i+1); len(list) > 0 {
		c.idle[cn.origin] = list
	} else {
		delete(c.idle, cn.origin)
	}
	c.idles--
	return true
}

// connect opens a connection.
func (c *Client) connect(ctx context.Context, o Origin) (*conn, error) {
	name, address, err := o.address()
	if err != nil {
		return nil, err
	}
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if c.options.ConnectTimeout > 0 {
		bounded, cancel = context.WithTimeout(ctx, c.options.ConnectTimeout)
	}
	defer cancel()
	fail := func(p Phase, err error) (*conn, error) {
		if ctx.Err() != nil {
			return nil, &Error{Phase: p, Err: context.Cause(ctx)}
		}
		return nil, &Error{Phase: p, Err: err, ended: true}
	}
	raw, err := c.options.Dial(bounded, "tcp", address)
	if err != nil {
		return fail(Dial, err)
	}
	cn := &conn{Conn: raw, raw: raw, of: c, origin: o}
	if o.Scheme == "https" {
		secured := tls.Client(raw, c.options.TLS(name))
		if err := secured.HandshakeContext(bounded); err != nil {
			_ = raw.Close() // the handshake's error says more
			return fail(TLS, err)
		}
		cn.Conn = secured
	}
	cn.prepare()
	c.mu.Lock()
	c.open++
	c.mu.Unlock()
	return cn, nil
}
