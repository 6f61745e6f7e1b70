package describe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/pkg/catalog"
)

// Bounds of what is asked.
const (
	atATime      = 16              // questions, over all engines
	patience     = 5 * time.Second // for the whole answer to a question
	maxAnswer    = 1 << 20         // bytes
	maxMetrics   = 8 << 20         // bytes of a metrics page
	excerptBytes = 200             // of an answer in the log
	longError    = 1 << 10         // bytes: a longer error is shortened
)

var errNotJSON = errors.New("the answer is no JSON")

// Error says why an engine did not answer a question.
type Error struct {
	URL string // that was asked
	// Status is that of the answer, 0 if there was none.
	Status int
	// Away: the engine does not run, is starting, or is too busy to answer.
	Away bool
	// Err is what is wrong. It repeats nothing of an answer that is not an engine's. Everybody who may name
	// a URL could otherwise read pages of others. The log has the beginning of such an answer.
	Err error
}

// Error names the URL.
func (e *Error) Error() string { return fmt.Sprintf("GET %s: %v", e.URL, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Options configure a Client.
type Options struct {
	engines.Access
	// Log gets the begin of answers that are refused, at level debug.
	Log zerolog.Logger
}

// Client asks engines, 16 questions at a time. It is safe for concurrent use.
type Client struct {
	options  Options
	http     *engines.Client
	turns    chan struct{} // a token for each question under way
	patience time.Duration // the constant, but in tests
}

// New returns a client.
func New(options Options) *Client {
	return &Client{options: options, http: engines.NewClient(options.Access), turns: make(chan struct{}, atATime), patience: patience}
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.Close() }

// join returns the URL of a path of the engine at a URL.
func join(base, path string) string { return strings.TrimRight(base, "/") + path }

// query gives the body of a 200 answer of at most some bytes to read. An error is an *Error.
func (c *Client) query(ctx context.Context, base, path string, most int64, read func(io.Reader) error) error {
	url := join(base, path)
	fail := func(status int, err error) error {
		away := mayAnswerLater(status, err)
		if text := err.Error(); len(text) > longError { // it repeats what the engine says
			err = errors.New(catalog.Clip(text))
		}
		return &Error{URL: url, Status: status, Away: away, Err: err}
	}
	select {
	case c.turns <- struct{}{}:
		defer func() { <-c.turns }()
	case <-ctx.Done():
		return fail(0, fmt.Errorf("too many engines are asked at the same time: %w", ctx.Err()))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.patience, late(c.patience))
	defer cancel()
	var begin excerpt
	status := 0
	err := c.http.Get(ctx, engines.Question{URL: url, Most: most}, func(body io.Reader) error {
		status, begin.Reader = http.StatusOK, body
		return read(&begin)
	})
	if err == nil {
		return nil
	}
	if other, is := errors.AsType[*engines.StatusError](err); is {
		c.refused(url, other.Status, other.Begin)
		return fail(other.Status, other)
	}
	err = cause(ctx, err)
	switch {
	case status != 0:
		c.refused(url, status, string(begin.text))
	case isNotHTTP(err):
		c.refused(url, 0, err.Error())
		err = errNotHTTP
	}
	return fail(status, err)
}

// refused logs the begin of an answer that is not used.
func (c *Client) refused(url string, status int, begin string) {
	c.options.Log.Debug().Str("engine", catalog.Clip(url)).Int("status", status).Str("answer", begin[:min(len(begin), excerptBytes)]).
		Msg("an answer of an engine cannot be used")
}

// excerpt keeps the begin of what is read.
type excerpt struct {
	io.Reader
	text []byte
}

func (e *excerpt) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	e.text = append(e.text, p[:min(n, excerptBytes-len(e.text))]...)
	return n, err
}

var errNotHTTP = errors.New("what answers does not speak HTTP")

// isNotHTTP reports whether an error of net/http is about the form of an answer, of which it repeats
// a line.
func isNotHTTP(err error) bool {
	var broken net.Error
	return strings.HasPrefix(err.Error(), "net/http: HTTP/1.x transport connection broken") &&
		!errors.As(err, &broken) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF)
}

// late is the error of an answer that takes longer than patience.
func late(patience time.Duration) error {
	return fmt.Errorf("no answer within %s: %w", patience, context.DeadlineExceeded)
}

// cause returns what a reader needs to know of an error of net/http.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil {
		return why
	}
	var wrapped interface {
		error
		Timeout() bool
		Unwrap() error
	}
	if errors.As(err, &wrapped) && strings.HasPrefix(err.Error(), "Get ") { // *url.Error repeats method and URL
		return wrapped.Unwrap()
	}
	return err
}

// mayAnswerLater reports whether the same question may be answered later without anybody's doing.
func mayAnswerLater(status int, err error) bool {
	_, refused := errors.AsType[*engines.AddressError](err)
	switch {
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests, status >= 500:
		return true
	case refused:
		return false
	}
	var broken net.Error
	return errors.As(err, &broken) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// queryJSON reads the JSON of an answer into v.
func (c *Client) queryJSON(ctx context.Context, base, path string, v any) error {
	return c.query(ctx, base, path, maxAnswer, func(body io.Reader) error {
		text, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		err = json.Unmarshal(text, v)
		if _, is := errors.AsType[*json.SyntaxError](err); is {
			return errNotJSON // its text repeats a byte
		}
		return err
	})
}
