package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
)

const (
	// maxAnswer bounds what is read of an answer, in bytes; dumps are streamed.
	maxAnswer = 256 << 20
	// maxError bounds what is read of an error's body.
	maxError = 64 << 10
	// policyClass is the header with the class of the wait queue.
	policyClass = "X-Dynamo-Meta-Policy-Class"
)

// call is one request as do sends it.
type call struct {
	method    string
	path      string // escaped, with query
	noDialect bool   // the path has no dialect prefix
	class     string // of the wait queue; "": none is named
	body      any    // nil: none
	// prompt points to the prompt inside body, whose lists may be sent as words in
	// msgpack; nil: there is none.
	prompt *Prompt
	// repeatable: doing it twice has the same effect as doing it once, so that it may be
	// sent again when it is unknown whether it was done.
	repeatable bool
	// goneIsDone: a 404 for a retry means that an earlier attempt was done.
	goneIsDone bool
	// okStatus is a status besides 2xx that is not an error.
	okStatus int
	// limit bounds each attempt, for calls that the service answers at once; 0: only
	// the context bounds it.
	limit time.Duration
}

// do sends a call until it is answered or should not be retried, and decodes the
// answer into out, unless that is nil.
func (c *Client) do(ctx context.Context, k call, out any) error {
	body, err := c.encode(k)
	if err != nil {
		return fmt.Errorf("%s %s: %w", k.method, k.path, err)
	}
	lost := false // an earlier attempt may have been done
	for tries := (attempts{}); ; {
		err := c.send(ctx, k, body, out)
		if body.msgpack && refusesFormat(err) { // it has not been done
			c.onlyJSON.Store(true)
			if body, err = c.encode(k); err != nil {
				return fmt.Errorf("%s %s: %w", k.method, k.path, err)
			}
			err = c.send(ctx, k, body, out)
		}
		if err == nil || k.goneIsDone && lost && errors.Is(err, ErrNotFound) {
			return nil
		}
		lost = lost || errors.Is(err, ErrMaybeDone)
		wait, again := tries.next(c.retry, k, err)
		if !again || ctx.Err() != nil {
			return withMaybeDone(err, lost)
		}
		if ended := pause(ctx, wait); ended != nil {
			return withMaybeDone(fmt.Errorf("%w (%w)", err, ended), lost)
		}
	}
}

// pause waits for d. It returns the error of ctx if that ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// send makes one attempt. It reads the whole answer, so that the connection can be
// reused.
func (c *Client) send(ctx context.Context, k call, body content, out any) error {
	if k.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, k.limit)
		defer cancel()
	}
	answer, err := c.open(ctx, k, body)
	if err != nil {
		return err
	}
	defer answer.Close()
	text, err := io.ReadAll(io.LimitReader(answer, maxAnswer+1))
	switch {
	case err != nil:
	case len(text) > maxAnswer:
		err = fmt.Errorf("answer is longer than %d bytes", maxAnswer)
	default:
		err = decode(text, out)
	}
	if err != nil {
		return &LostError{Method: k.method, Path: k.path, Err: err}
	}
	return nil
}

// decode reads an answer into out: a string takes the text itself; nil reads nothing.
func decode(text []byte, out any) error {
	switch out := out.(type) {
	case nil:
		return nil
	case *string:
		*out = string(text)
		return nil
	}
	return json.Unmarshal(text, out)
}

// open sends the request and returns the body of a successful answer.
func (c *Client) open(ctx context.Context, k call, body content) (io.ReadCloser, error) {
	var way connTrace
	traced := httptrace.WithClientTrace(ctx, way.trace())
	var sent io.Reader
	if body.text != nil {
		sent = bytes.NewReader(body.text)
	}
	prefix := dialect
	if k.noDialect {
		prefix = ""
	}
	req, err := http.NewRequestWithContext(traced, k.method, c.base+prefix+k.path, sent)
	if err == nil && strings.ContainsFunc(k.class, unicode.IsControl) { // net/http would not send it, and the error would look like a lost request
		err = fmt.Errorf("%w: policy class %q cannot be a header", ErrBadRequest, k.class)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", k.method, k.path, err)
	}
	token, err := c.token.get()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", k.method, k.path, err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if k.class != "" {
		req.Header.Set(policyClass, k.class)
	}
	switch {
	case body.msgpack:
		req.Header.Set("Content-Type", "application/msgpack")
		req.Header.Set("Accept", "application/json") // answers are short
	case body.text != nil:
		req.Header.Set("Content-Type", "application/json")
	}
	if err := ctx.Err(); err != nil {
		return nil, &LostError{Method: k.method, Path: k.path, Unsent: true, Err: err}
	}
	answer, err := c.http.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without method and address
		}
		return nil, &LostError{Method: k.method, Path: k.path, Unsent: way.unsent(), Err: err}
	}
	if answer.StatusCode/100 == 2 || answer.StatusCode == k.okStatus {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxError))
	if err != nil { // half an answer does not show whether it is the service's
		return nil, &LostError{Method: k.method, Path: k.path, Err: fmt.Errorf("status %d: %w", answer.StatusCode, err)}
	}
	return nil, errorOf(k, answer, text)
}

// connTrace records whether a request asked for a connection, and whether it got one.
type connTrace struct {
	asked, got atomic.Bool
}

func (c *connTrace) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) { c.asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { c.got.Store(true) },
	}
}

// unsent reports whether the service cannot have seen the request. It is false with a
// transport that does not support httptrace.
func (c *connTrace) unsent() bool { return c.asked.Load() && !c.got.Load() }
