package engines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Access is what engines are shown, and what their HTTP servers must be.
type Access struct {
	Dialer
	// Token returns the bearer token that engines are shown, "" for none; nil: none.
	Token func() string
}

// Bounds of a Client.
const (
	maxHeader    = 64 << 10         // bytes
	maxRedirects = 3                // where any are followed
	keptFor      = 90 * time.Second // an idle connection
	excerptBytes = 200              // of an answer that is not used
)

// Client asks the HTTP servers of engines. It uses no proxy of the environment, since engines are in
// the same network. It is safe for concurrent use.
type Client struct {
	access Access
	http   http.Client
	within http.Client // follows redirects within a server
}

// NewClient returns a client.
func NewClient(access Access) *Client {
	return newClient(access, &http.Transport{
		DialContext:            access.Dial,
		DialTLSContext:         access.DialTLS,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        keptFor,
		MaxResponseHeaderBytes: maxHeader,
	})
}

// NewClientOver is NewClient over another transport, for tests without a network.
func NewClientOver(transport http.RoundTripper) *Client { return newClient(Access{}, transport) }

func newClient(access Access, transport http.RoundTripper) *Client {
	return &Client{
		access: access,
		http: http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		within: http.Client{Transport: transport, CheckRedirect: sameServer},
	}
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Question is a GET of an engine.
type Question struct {
	URL    string
	Accept string // "": anything
	// Most is the greatest size of an answer, in bytes.
	Most int64
	// Redirects: up to three redirects to the same server are followed; else none is.
	Redirects bool
}

// ErrTooLong is the error of an answer beyond its Most.
var ErrTooLong = errors.New("the answer is too long")

// ErrRedirect is the error of a redirect to another server where redirects are followed.
var ErrRedirect = errors.New("redirect to another host")

// StatusError is an answer that is not 200.
type StatusError struct {
	Status int
	// Begin is that of the answer. It may be of something that is no engine.
	Begin string
}

// Error says the status, and nothing of the answer.
func (e *StatusError) Error() string {
	if e.Status/100 == 3 {
		return fmt.Sprintf("status %d: redirects are not followed", e.Status)
	}
	return fmt.Sprintf("status %d", e.Status)
}

// Get gives the body of a 200 answer to read, whose error it returns. Another answer is a
// *StatusError. An address that may not be asked is an *AddressError.
func (c *Client) Get(ctx context.Context, q Question, read func(io.Reader) error) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, q.URL, nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", "select-service")
	if q.Accept != "" {
		request.Header.Set("Accept", q.Accept)
	}
	if c.access.Token != nil && request.URL.User == nil {
		if token := c.access.Token(); token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
	}
	by := &c.http
	if q.Redirects {
		by = &c.within
	}
	answer, err := by.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		begin, _ := io.ReadAll(io.LimitReader(answer.Body, excerptBytes)) // as far as it came
		return &StatusError{Status: answer.StatusCode, Begin: string(begin)}
	}
	return read(AtMost(answer.Body, q.Most))
}

// sameServer allows a few redirects to the server that was asked.
func sameServer(req *http.Request, via []*http.Request) error {
	switch first := via[0].URL; {
	case len(via) > maxRedirects:
		return fmt.Errorf("more than %d redirects", maxRedirects)
	case req.URL.Host != first.Host || req.URL.Scheme != first.Scheme:
		return ErrRedirect
	}
	return nil
}

// AtMost returns a reader that fails with ErrTooLong after a number of bytes.
func AtMost(r io.Reader, most int64) io.Reader { return &bounded{r, most, most} }

type bounded struct {
	io.Reader
	most, left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left == 0 {
		p = p[:min(len(p), 1)] // one byte more tells the end from too much
	} else {
		p = p[:min(int64(len(p)), b.left)]
	}
	n, err := b.Reader.Read(p)
	if n > 0 && b.left == 0 {
		return 0, fmt.Errorf("%w: more than %d bytes", ErrTooLong, b.most)
	}
	b.left -= int64(n)
	return n, err
}
