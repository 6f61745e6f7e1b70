package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	// minRate is the lowest rate, in bytes per second, of an announced answer, once its reader
	// has waited for rateGrace, so that a slow sender holds nothing up.
	minRate   = 64 << 10
	rateGrace = 2 * time.Second
)

// Errors of GetAnnounced.
var (
	// ErrForeignHost refuses a URL on another host than the replica's.
	ErrForeignHost = errors.New("announced URL is on another host than the replica, and not on one of --replica-hosts")
	// ErrSlow is the error of an answer that comes more slowly than 64 KiB/s.
	ErrSlow = errors.New("the answer comes too slowly")
	// ErrRedirect refuses a redirect.
	ErrRedirect = errors.New("redirects are not followed")
)

// GetAnnounced is Get for a URL that a replica has announced; host is the host at which the
// replica is followed. So that a replica cannot make others read arbitrary URLs, the request
// goes to that host whatever the URL says, or to a host that the operator lists, and redirects
// are not followed. Reads fail with ErrSlow below 64 KiB/s.
func (c *Client) GetAnnounced(ctx context.Context, text, host string) (io.ReadCloser, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	at, err := c.addressOf(ctx, u.Hostname(), host)
	if err != nil {
		return nil, fmt.Errorf("fetch: GET %s: %w", text, err)
	}
	if at.IsValid() {
		ctx = context.WithValue(ctx, dialAt{}, at.String())
	}
	body, _, err := c.get(ctx, c.direct, text)
	if err != nil {
		return nil, err
	}
	return Paced(body), nil
}

// Paced returns the body of an answer whose reads fail with ErrSlow below 64 KiB/s.
func Paced(body io.ReadCloser) io.ReadCloser { return &paced{ReadCloser: body} }

// addressOf returns the address to which a request for a URL's host goes. If that host is the
// replica's own or a listed one, it is that host. Otherwise it is the replica's own address, if
// the URL's host resolves to it.
func (c *Client) addressOf(ctx context.Context, named, host string) (at netip.Addr, err error) {
	if strings.EqualFold(named, host) || c.who.lists(named) {
		return netip.Addr{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.idle)
	defer cancel()
	own, err := lookUp(ctx, host)
	if err != nil {
		return netip.Addr{}, err
	}
	theirs, err := lookUp(ctx, named)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range own {
		if slices.Contains(theirs, a) {
			return a, nil
		}
	}
	return netip.Addr{}, ErrForeignHost
}

func lookUp(ctx context.Context, host string) ([]netip.Addr, error) {
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for i, a := range found {
		found[i] = a.Unmap()
	}
	return found, nil
}

// dialAt is the context key of the address to which a request's connection goes.
type dialAt struct{}

// dialer opens the connections of a client.
type dialer struct {
	net.Dialer
	who Identity
}

func (d *dialer) plain(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, _ := net.SplitHostPort(address) // net/http has made it
	if at, ok := ctx.Value(dialAt{}).(string); ok {
		address = net.JoinHostPort(at, port)
	}
	if d.who.Dial == nil || d.who.lists(host) {
		return d.DialContext(ctx, network, address)
	}
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	return d.who.Dial(ctx, network, address)
}

func (d *dialer) encrypted(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	raw, err := d.plain(ctx, network, address)
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(address)
	conn := tls.Client(raw, d.who.Certificates.Client(host))
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, nil
}

func noRedirects(*http.Request, []*http.Request) error { return ErrRedirect }

// paced is a body that must come at a minimum rate.
type paced struct {
	io.ReadCloser
	read   int64
	waited time.Duration
}

func (p *paced) Read(b []byte) (int, error) {
	begin := time.Now()
	n, err := p.ReadCloser.Read(b)
	p.read += int64(n)
	p.waited += time.Since(begin)
	if late := p.waited - rateGrace; err == nil && late > 0 && float64(p.read) < minRate*late.Seconds() {
		err = fmt.Errorf("fetch: %w", ErrSlow)
	}
	return n, err
}
