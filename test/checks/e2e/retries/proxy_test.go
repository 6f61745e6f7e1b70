package retries_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// loss is what a proxy does to one request.
type loss struct {
	before func() // runs before the request goes on
	drop   bool   // the request does not go on
	after  func() // runs when the service has answered
	cut    cut    // what the caller gets of the answer
	// patience ends the wait of the caller, not that of the request: it arrives
	// when nobody expects it any more.
	patience time.Duration
}

type cut int

const (
	whole cut = iota
	nothing
	half
)

// proxy is between a caller and the service. It keeps forwarding what its caller
// has given up, as networks do.
type proxy struct {
	*httptest.Server
	target string
	http   *http.Client
	decide func(*http.Request) loss
	late   sync.WaitGroup // requests under way
}

func newProxy(t *testing.T, target string, decide func(*http.Request) loss) *proxy {
	t.Helper()
	p := &proxy{target: target, decide: decide}
	p.http = &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, MaxIdleConnsPerHost: 256}}
	p.Server = httptest.NewServer(p)
	t.Cleanup(func() {
		p.Close()
		p.late.Wait()
		p.http.CloseIdleConnections()
	})
	return p
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	what := p.decide(r)
	if what.drop {
		if what.before != nil {
			what.before()
		}
		panic(http.ErrAbortHandler)
	}
	done := make(chan answer, 1)
	ctx := context.WithoutCancel(r.Context())
	p.late.Go(func() {
		if what.before != nil {
			what.before()
		}
		got := p.forward(ctx, r, body)
		if what.after != nil {
			what.after()
		}
		done <- got
	})
	var impatient <-chan time.Time
	if what.patience > 0 {
		impatient = time.After(what.patience)
	}
	select {
	case got := <-done:
		if got.err != nil || what.cut == nothing {
			panic(http.ErrAbortHandler)
		}
		for k, v := range got.header {
			w.Header()[k] = v
		}
		w.WriteHeader(got.status)
		if what.cut == half {
			_, _ = w.Write(got.body[:len(got.body)/2])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(got.body)
	case <-impatient:
		panic(http.ErrAbortHandler)
	case <-r.Context().Done():
	}
}

// answer is one of the service, or why there is none.
type answer struct {
	status int
	header http.Header
	body   []byte
	err    error
}

func (p *proxy) forward(ctx context.Context, r *http.Request, body []byte) (got answer) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.Method, p.target+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	req.Header = r.Header.Clone()
	resp, err := p.http.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	got.status, got.header = resp.StatusCode, resp.Header
	got.body, got.err = io.ReadAll(resp.Body)
	return got
}
