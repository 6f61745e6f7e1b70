package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The kinds of errors, for errors.Is.
var (
	ErrBadRequest  = errors.New("bad request")            // 400, 413, 415, 422: it can never succeed
	ErrNotFound    = errors.New("not found")              // 404 of the service: worker, reservation, pending selection, or route
	ErrConflict    = errors.New("conflict")               // 409: the id is taken by another request
	ErrOverloaded  = errors.New("overloaded")             // 503: every worker that could serve it is busy
	ErrQueueFull   = errors.New("queue is full")          // 429
	ErrUnavailable = errors.New("service is unavailable") // 503, overload included
	ErrInternal    = errors.New("internal error")         // 500

	// ErrMaybeDone means that the call may have been done, by the last attempt or an
	// earlier one.
	ErrMaybeDone = errors.New("it may have been done")
)

// Error is an answer that is not a success.
type Error struct {
	Status  int             // HTTP status
	Text    string          // what is wrong, in the service's words
	Message string          // the longer text of an overload, else empty
	Type    string          // "service_unavailable" for an overload, else empty
	Details json.RawMessage // of a full queue: class, kind of limit, current value, limit; else nil
	Reason  string          // the kind of a Conductor's error, such as "missing_field", else empty
	Field   string          // the member of the body at fault, of a Conductor's error, else empty

	Method, Path string // of the request
	// RetryAfter is the wait that the service asks for; 0 for none.
	RetryAfter time.Duration

	fromProxy bool // the answer of a proxy
}

// Error returns the request and the reason of the failure.
func (e *Error) Error() string {
	return fmt.Sprintf("%s %s: %d: %s", e.Method, e.Path, e.Status, e.Text)
}

// Is reports whether target is the error's kind.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrBadRequest:
		return e.Status == http.StatusBadRequest || e.Status == http.StatusRequestEntityTooLarge ||
			e.Status == http.StatusUnsupportedMediaType || e.Status == http.StatusUnprocessableEntity
	case ErrNotFound:
		return e.Status == http.StatusNotFound && !e.fromProxy // a proxy without a backend does not know whether it exists
	case ErrConflict:
		return e.Status == http.StatusConflict
	case ErrOverloaded:
		return e.Status == http.StatusServiceUnavailable && e.Type == "service_unavailable"
	case ErrQueueFull:
		return e.Status == http.StatusTooManyRequests
	case ErrUnavailable:
		return e.Status == http.StatusServiceUnavailable
	case ErrInternal:
		return e.Status == http.StatusInternalServerError
	case ErrMaybeDone: // a proxy does not know either
		return e.Status == http.StatusInternalServerError || e.Status > http.StatusInternalServerError && e.fromProxy
	}
	return false
}

// undelivered reports whether a proxy got no answer from the service.
func (e *Error) undelivered() bool {
	switch e.Status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return e.fromProxy
	}
	return false
}

// LostError is the error of a request without a complete answer, or with one that cannot
// be the service's.
type LostError struct {
	Method, Path string
	// Unsent: there was no connection, so that the service has not seen the request.
	// Otherwise the error is an ErrMaybeDone.
	Unsent bool
	Err    error
}

// Error returns the request and how it was lost.
func (e *LostError) Error() string { return fmt.Sprintf("%s %s: %v", e.Method, e.Path, e.Err) }

// Unwrap returns the cause: an error of net/http or of the context.
func (e *LostError) Unwrap() error { return e.Err }

// Is reports whether target is ErrMaybeDone and the request may have been sent.
func (e *LostError) Is(target error) bool { return target == ErrMaybeDone && !e.Unsent }

// withMaybeDone adds ErrMaybeDone to an error after a lost attempt.
func withMaybeDone(err error, lost bool) error {
	if !lost || errors.Is(err, ErrMaybeDone) {
		return err
	}
	return fmt.Errorf("%w (%w before)", err, ErrMaybeDone)
}

// errorOf returns the error for an answer that is not a success. A body that is not the
// service's JSON is taken as a proxy's, and becomes the text of the error.
func errorOf(k call, answer *http.Response, body []byte) *Error {
	e := &Error{Status: answer.StatusCode, Method: k.method, Path: k.path, RetryAfter: retryAfter(answer)}
	var known struct {
		Error, Message, Type, Reason, Field string
		Details                             json.RawMessage
	}
	if json.Unmarshal(body, &known) == nil && known.Error != "" {
		e.Text, e.Message, e.Type, e.Details = known.Error, known.Message, known.Type, known.Details
		e.Reason, e.Field = known.Reason, known.Field
		return e
	}
	e.fromProxy = true
	if e.Text = strings.TrimSpace(string(body)); e.Text == "" {
		e.Text = http.StatusText(e.Status)
	}
	return e
}

// retryAfter reads the header of that name: seconds, of proxies also a date.
func retryAfter(answer *http.Response) time.Duration {
	text := answer.Header.Get("Retry-After")
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}
