package tokenizer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"unicode"

	"github.com/select-service/select-service/internal/codec/redact"
	"github.com/select-service/select-service/internal/transport/http1"
)

// Reason is why there are no tokens.
type Reason string

// The reasons.
const (
	Rejected      Reason = "rejected"      // the server refuses the request (400, 422): the client's fault
	Unavailable   Reason = "unavailable"   // no connection, no engine, or the server has no room (429, 503)
	Timeout       Reason = "timeout"       // no answer in time
	Broken        Reason = "broken"        // another status, or an answer without tokens, or with more than the prompt can have
	TooLarge      Reason = "too_large"     // an answer above the limit
	NoMemory      Reason = "no_memory"     // there is no room here for the answer
	Open          Reason = "open"          // the server failed too often, and is not asked for a while
	Unconvertible Reason = "unconvertible" // the prompt cannot be put into a question
	None          Reason = "none"          // no tokenizer is configured
)

// outcome is a Reason as the client of a request sees it.
type outcome struct {
	status int
	code   string // for programs
	text   string
}

var (
	unavailable = outcome{http.StatusServiceUnavailable, "tokenizer_unavailable", "The tokenizer is not available."}
	broken      = outcome{http.StatusBadGateway, "tokenizer_failed", "The tokenizer failed."}
)

var outcomes = map[Reason]outcome{
	Rejected:      {http.StatusBadRequest, "invalid_request", "The request was rejected by the tokenizer."},
	Unavailable:   unavailable,
	Open:          unavailable,
	Timeout:       {http.StatusGatewayTimeout, "tokenizer_timeout", "The tokenizer did not answer in time."},
	Broken:        broken,
	TooLarge:      broken,
	NoMemory:      {http.StatusServiceUnavailable, "no_memory", "There is no memory left for this request."},
	Unconvertible: {http.StatusBadRequest, "not_convertible", "The prompt has parts that the tokenizer does not take."},
	None:          {http.StatusNotImplemented, "no_tokenizer", "No tokenizer is configured: see --tokenizer-url."},
}

// Client returns the reason as the client of a request is told it: a status of HTTP, a code for
// programs and a text for people.
func (r Reason) Client() (status int, code, text string) {
	o := outcomes[r]
	return o.status, o.code, o.text
}

// answered reports whether the server itself works: it answered, and the failure lies
// elsewhere.
func (r Reason) answered() bool { return r == Rejected || r == TooLarge || r == NoMemory }

// Error is why a prompt has no tokens. Its text is for logs only: it may quote the server. Clients
// get that of Reason.Client.
type Error struct {
	Reason Reason
	Status int // of the server's answer; 0: none
	Err    error
}

func (e *Error) Error() string { return fmt.Sprintf("tokenizer %s: %v", e.Reason, e.Err) }

func (e *Error) Unwrap() error { return e.Err }

var (
	errTimeout  = errors.New("no answer in time")
	errOpen     = errors.New("it failed too often and is not asked for a second")
	errNoEngine = errors.New("there is no engine to ask")
)

// failed returns the error of a call without an answer. reason is the default if it was no
// timeout.
func failed(ctx context.Context, err error, reason Reason) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	switch {
	case errors.Is(context.Cause(ctx), errTimeout):
		return &Error{Reason: Timeout, Err: errTimeout}
	case ctx.Err() != nil:
		return ctx.Err()
	}
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		reason = Timeout
	}
	return &Error{Reason: reason, Err: err}
}

// maxErrorText bounds how much of a refusal is read for the log, in bytes.
const maxErrorText = 1 << 10

// refused returns the error of a server's answer whose status is not 200.
func refused(ctx context.Context, of *url.URL, resp *http1.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp, maxErrorText))
	if ctx.Err() != nil {
		return failed(ctx, ctx.Err(), Broken)
	}
	reason := Broken
	switch resp.Status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		reason = Rejected
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		reason = Unavailable
	}
	return &Error{Reason: reason, Status: resp.Status, Err: fmt.Errorf("%s answers %s: %s", redact.URLs(of.String()), statusOf(resp), printable(text))}
}

// statusOf returns the status of an answer for people.
func statusOf(resp *http1.Response) string {
	return strings.TrimSpace(fmt.Sprint(resp.Status, " ", printable([]byte(resp.Reason))))
}

// printable returns a server's text as one line for the log.
func printable(text []byte) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(text), "?"))
}
