package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/internal/transport/certs"
	"github.com/select-service/select-service/pkg/recovery"
)

const (
	userAgent = "select-service"
	// connectionsPerHost bounds the connections to one replica: for its dump, its
	// snapshot, and some to spare.
	connectionsPerHost = 8
	// keptFor is how long an idle connection is kept.
	keptFor = 30 * time.Second
	// excerptBytes bounds the part of a refusal that an error quotes, in bytes.
	excerptBytes = 512
	maxRedirects = 3
)

// ErrIdle is the error if the other side sent nothing for the client's idle time.
var ErrIdle = errors.New("nothing received in time")

// ErrPlain refuses to read without TLS if replicas must present certificates.
var ErrPlain = errors.New("replicas are read over https only, as their certificates are demanded")

// StatusError is an answer that is not 2xx.
type StatusError struct {
	URL     string
	Code    int
	Excerpt string // begin of the body, at most 512 bytes
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("GET %s: status %d", e.URL, e.Code)
	if e.Excerpt != "" {
		text += fmt.Sprintf(": %q", e.Excerpt)
	}
	return text
}

// Client reads from other replicas. It is safe for concurrent use.
type Client struct {
	idle time.Duration
	who  Identity
	// Both share their connections. direct does not follow redirects.
	http, direct *http.Client
}

// Identity has what the client presents to other replicas and requires of them.
type Identity struct {
	// Certificates are presented to and required of the others; nil: the system's authorities
	// are trusted and nothing is presented. With Certificates plain HTTP is refused.
	Certificates *certs.Side
	// Token is sent to the URLs for which Trusted returns true (nil: none); nil: no token.
	Token   *Token
	Trusted func(u *url.URL) bool
	// Hosts are further hosts from which GetAnnounced may read, whichever replica announces them.
	Hosts []string
	// Dial, if set, opens the connections to hosts that are none of Hosts.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// lists reports whether a host is one of Hosts.
func (id *Identity) lists(host string) bool {
	return slices.ContainsFunc(id.Hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// New returns a client that gives up when nothing comes for the time idle, while it connects,
// waits for the answer, or reads it. The total time of an answer is not limited. Proxies of the
// environment are not used, since replicas are in the same network.
func New(idle time.Duration, who Identity) *Client {
	d := &dialer{Dialer: net.Dialer{Timeout: idle}, who: who}
	transport := &http.Transport{
		DialContext:         d.plain,
		DialTLSContext:      d.encrypted,
		MaxConnsPerHost:     connectionsPerHost,
		MaxIdleConnsPerHost: 1,
		IdleConnTimeout:     keptFor,
		DisableCompression:  true,
	}
	return &Client{
		idle: idle, who: who,
		http:   &http.Client{Transport: transport, CheckRedirect: sameHost},
		direct: &http.Client{Transport: transport, CheckRedirect: noRedirects},
	}
}

func sameHost(req *http.Request, via []*http.Request) error {
	switch first := via[0].URL; {
	case len(via) > maxRedirects:
		return fmt.Errorf("more than %d redirects", maxRedirects)
	case req.URL.Host != first.Host || req.URL.Scheme != first.Scheme:
		return fmt.Errorf("redirect to another host, %s", req.URL.Host)
	}
	req.Header.Del("Authorization") // the token is for the original address only
	return nil
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Get returns the body of a 2xx answer; for others the error is a *StatusError. Reads fail
// with ErrIdle after the client's idle time without a byte, and when ctx ends. The caller
// must close the body.
func (c *Client) Get(ctx context.Context, url string) (body io.ReadCloser, err error) {
	body, _, err = c.get(ctx, c.http, url)
	return body, err
}

// GetDump is Get, and reports whether the other side is still recovering itself.
func (c *Client) GetDump(ctx context.Context, url string) (body io.ReadCloser, recovering bool, err error) {
	body, header, err := c.get(ctx, c.http, url)
	return body, strings.EqualFold(header.Get(recovery.RecoveringHeader), "true"), err
}

// get returns the body and the header of a 2xx answer.
func (c *Client) get(ctx context.Context, by *http.Client, url string) (io.ReadCloser, http.Header, error) {
	ctx, w := newWatch(ctx, c.idle)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		w.end()
		return nil, nil, fmt.Errorf("fetch: %w", err)
	}
	if c.who.Certificates != nil && req.URL.Scheme != "https" {
		w.end()
		return nil, nil, fmt.Errorf("fetch: GET %s: %w", url, ErrPlain)
	}
	req.Header.Set("User-Agent", userAgent)
	tracing.Of(ctx).Context().AddTo(req.Header) //nolint:contextcheck // of the span in ctx
	if c.who.Token != nil && c.who.Trusted != nil && c.who.Trusted(req.URL) {
		req.Header.Set("Authorization", "Bearer "+c.who.Token.Text())
	}
	w.start()
	resp, err := by.Do(req)
	w.stop()
	if err != nil {
		err = fmt.Errorf("fetch: %w", w.explain(err)) // before w.end, which would be taken as the reason
		w.end()
		return nil, nil, err
	}
	resp.Body = &body{resp.Body, w}
	if resp.StatusCode/100 != 2 {
		return nil, nil, refusal(url, resp)
	}
	return resp.Body, resp.Header, nil
}

// refusal returns the error of an answer that is not 2xx, and closes the answer.
func refusal(url string, resp *http.Response) error {
	defer func() { _ = resp.Body.Close() }() // nothing more is read
	// A failed read only shortens the excerpt; the status is known.
	text, _ := io.ReadAll(io.LimitReader(resp.Body, excerptBytes))
	return &StatusError{URL: url, Code: resp.StatusCode, Excerpt: strings.ToValidUTF8(string(text), "?")}
}

// watch cancels a request when the other side takes longer than the idle time. It is stopped
// while the caller processes what it has read.
type watch struct {
	cancel context.CancelCauseFunc
	cause  func() error // why the request was cancelled, nil if it was not
	idle   time.Duration
	timer  *time.Timer
}

// newWatch returns a stopped watch and the context of the request.
func newWatch(parent context.Context, idle time.Duration) (context.Context, *watch) {
	ctx, cancel := context.WithCancelCause(parent)
	w := &watch{cancel: cancel, cause: func() error { return context.Cause(ctx) }, idle: idle}
	w.timer = time.AfterFunc(idle, func() { cancel(ErrIdle) })
	w.timer.Stop()
	return ctx, w
}

func (w *watch) start() { w.timer.Reset(w.idle) }
func (w *watch) stop()  { w.timer.Stop() }

// end cancels the request.
func (w *watch) end() {
	w.stop()
	w.cancel(context.Canceled)
}

// explain adds the reason why a request was cancelled, if err does not have it.
func (w *watch) explain(err error) error {
	cause := w.cause()
	if cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// body is the body of an answer whose reads are timed.
type body struct {
	io.ReadCloser
	watch *watch
}

func (b *body) Read(p []byte) (int, error) {
	b.watch.start()
	n, err := b.ReadCloser.Read(p)
	b.watch.stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("fetch: %w", b.watch.explain(err))
	}
	return n, err
}

func (b *body) Close() error {
	b.watch.end()
	return b.ReadCloser.Close()
}
