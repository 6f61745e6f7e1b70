package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// dialect is the prefix of the paths of the 1.6 dialect.
	dialect = "/v1.6"
	// idleConnections to one service are kept open.
	idleConnections = 256
	// maxBackgroundFrees bounds the reservations that are ended at once in the background.
	maxBackgroundFrees = 64
)

// Options change how a client works. The zero Options suit most programs.
type Options struct {
	// HTTP sends the requests; with nil the client has connections of its own. It
	// should have no timeout: a selection waits in the service's queue for as long
	// as its context lasts. Redirects are followed only if it has a CheckRedirect, and the
	// token goes along none to another scheme, host or port.
	HTTP *http.Client
	// Credentials are needed for TLS with certificates or authorities that are not the
	// system's, and for a token.
	Credentials Credentials
	// Retry says when and how often refused and undelivered calls are retried; nil
	// stands for DefaultRetry.
	Retry *Retry
	// Lease is how long the service keeps a lease that is no longer renewed, 0.1 s to a
	// day; 0 stands for 30 s. Leases are renewed after a third of that.
	Lease time.Duration
}

// Client calls one service. Close it when it is no longer needed.
type Client struct {
	base      string // without trailing slash
	http      *http.Client
	own       *http.Transport // closed with the client; nil: Options.HTTP was given
	retry     Retry
	lease     time.Duration
	token     *token
	order     callOrder
	freeSlots chan struct{} // holds an item for each background free under way
	onlyJSON  atomic.Bool   // the service has refused a body in msgpack

	closing context.Context // ends with Close
	close   context.CancelFunc

	// mu guards leases and closed.
	mu     sync.Mutex
	leases map[string]*Lease // by the reservation's id, until they are freed or lost
	closed bool
	tasks  sync.WaitGroup // calls that book, and leases: Close waits for them
}

// ErrClosed is wrapped by the errors of calls that book during or after Close.
var ErrClosed = errors.New("client is closed")

// New returns a client of the service at base, such as http://selector:8092. It
// does not connect yet. It fails if base or the options are invalid.
func New(base string, opt Options) (*Client, error) {
	u, err := url.Parse(base)
	switch {
	case err != nil:
		return nil, fmt.Errorf("base URL: %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, fmt.Errorf("base URL %q is not http://host:port or https://host:port", base)
	}
	c := &Client{
		base:      strings.TrimRight(u.String(), "/"),
		retry:     DefaultRetry(),
		lease:     30 * time.Second,
		freeSlots: make(chan struct{}, maxBackgroundFrees),
		leases:    make(map[string]*Lease),
	}
	if opt.Retry != nil {
		if err := opt.Retry.check(); err != nil {
			return nil, err
		}
		c.retry = *opt.Retry
	}
	if opt.Lease != 0 {
		if opt.Lease < minLease || opt.Lease > maxLease {
			return nil, fmt.Errorf("lease of %v is not between %v and %v", opt.Lease, minLease, maxLease)
		}
		c.lease = opt.Lease
	}
	who := opt.Credentials.orEnvironment(os.Getenv)
	if c.token, err = newToken(who); err != nil {
		return nil, err
	}
	if opt.HTTP != nil {
		if opt.Credentials.CA != "" || opt.Credentials.Cert != "" || opt.Credentials.Key != "" {
			return nil, errOwnHTTP
		}
		c.http = new(*opt.HTTP)
	} else {
		c.own = transport()
		if c.own.TLSClientConfig, err = who.tls(); err != nil {
			return nil, err
		}
		c.http = &http.Client{Transport: c.own}
	}
	c.http.CheckRedirect = redirects(c.http.CheckRedirect)
	c.closing, c.close = context.WithCancel(context.Background())
	return c, nil
}

// redirects returns how redirects are followed: not at all, since net/http would turn a POST that books into
// a GET, or as the caller's HTTP client does, but without the token to another scheme, host or port.
func redirects(given func(*http.Request, []*http.Request) error) func(*http.Request, []*http.Request) error {
	if given == nil {
		return func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	return func(req *http.Request, via []*http.Request) error {
		if first := via[0].URL; req.URL.Scheme != first.Scheme || req.URL.Host != first.Host {
			req.Header.Del("Authorization")
		}
		return given(req, via)
	}
}

// transport returns a transport that keeps so many connections open that a busy caller
// makes no new ones.
func transport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        idleConnections,
		MaxIdleConnsPerHost: idleConnections,
		IdleConnTimeout:     2 * time.Minute, // the service closes idle ones after three
	}
}

// Close interrupts the calls that book, frees every lease that is still held, waits
// for that and closes idle connections. It may take up to 5 s if the service does not
// answer, or if an interrupted call seems not to have booked, because its request may
// still arrive. Other calls are not affected. The error joins those of the frees.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.close()
	held := make([]*Lease, 0, len(c.leases))
	for _, l := range c.leases {
		held = append(held, l)
		l.stop()
	}
	c.mu.Unlock()
	faults := make([]error, len(held))
	for i, l := range held {
		faults[i] = l.Free()
	}
	c.tasks.Wait()
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
	return errors.Join(faults...)
}

// beginTask counts a task that Close waits for; it reports false after Close.
func (c *Client) beginTask() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.tasks.Add(1)
	return true
}
