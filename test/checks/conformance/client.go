package conformance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

// client speaks HTTP/1.1 to one address, a connection per request. It writes
// requests itself: a scenario's path has to arrive as it is written, and the
// answer to a body that the service does not read to its end still counts.
type client struct{ address string }

// patience bounds whatever has to happen in the end, and every request. What a
// scenario says of its own waits is for a machine that has nothing else to do.
const patience = e2e.Patience

// message is a request that is ready to be sent.
type message struct {
	method, path string
	headers      map[string]string
	body         []byte // nil: none
}

// reply is a response that was read to its end.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// Exchange is a request as it was sent, and the answer as it came.
type Exchange struct {
	Method, Target string // the target is path and query
	RequestHeader  http.Header
	Request        []byte // body
	Status         int
	Header         http.Header
	Body           []byte
}

func (c client) do(m message, patience time.Duration) (reply, error) {
	conn, err := net.DialTimeout("tcp", c.address, patience)
	if err != nil {
		return reply{}, fmt.Errorf("%s %s: %w", m.method, m.path, err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return reply{}, err
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = conn.Write(m.bytes(c.address)) // an early answer may break it; what is read decides
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: m.method})
	if err != nil {
		return reply{}, fmt.Errorf("%s %s: %w", m.method, m.path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{}, fmt.Errorf("%s %s: read answer: %w", m.method, m.path, err)
	}
	_ = conn.Close()
	<-written
	return reply{resp.StatusCode, resp.Header, body}, nil
}

func (m message) bytes(host string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nAccept-Encoding: identity\r\nConnection: close\r\n", m.method, m.path, host)
	for k, v := range m.headers {
		fmt.Fprintf(&b, "%s: %s\r\n", k, v)
	}
	if m.body != nil || m.method == "POST" || m.method == "PUT" || m.method == "PATCH" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(m.body))
	}
	b.WriteString("\r\n")
	b.Write(m.body)
	return b.Bytes()
}

func (m message) exchange(r reply) Exchange {
	header := http.Header{}
	for k, v := range m.headers {
		header.Set(k, v)
	}
	return Exchange{
		Method: m.method, Target: m.path, RequestHeader: header, Request: m.body,
		Status: r.status, Header: r.header, Body: r.body,
	}
}

// message fills the placeholders of a request.
func (p *player) message(r *Request) (message, error) {
	m := message{method: r.Method, path: p.options.target(p.fill(r.Path)), headers: map[string]string{}}
	switch {
	case r.Raw != nil:
		m.body = []byte(p.fill(*r.Raw))
	case r.RawFill != nil:
		f := r.RawFill
		m.body = []byte(f.Prefix + strings.Repeat(f.Fill, f.Count) + f.Suffix)
	case r.Body != nil:
		body, err := p.fillText(r.Body)
		if err != nil {
			return m, err
		}
		m.body = body
	}
	if m.body != nil {
		m.headers["Content-Type"] = "application/json"
	}
	for k, v := range r.Headers {
		k = http.CanonicalHeaderKey(k)
		if v == nil {
			delete(m.headers, k)
		} else {
			m.headers[k] = *v
		}
	}
	return m, nil
}

// request sends a request and decodes the answer.
func (p *player) request(r *Request) (answer, error) {
	m, err := p.message(r)
	if err != nil {
		return answer{}, err
	}
	return p.send(m)
}

func (p *player) send(m message) (answer, error) {
	r, err := p.client.do(m, patience)
	if err != nil {
		return answer{}, err
	}
	if p.options.Check != nil {
		if err := p.options.Check(m.exchange(r)); err != nil {
			return answer{}, fmt.Errorf("%s %s: status %d: %w", m.method, m.path, r.status, err)
		}
	}
	if !strings.Contains(r.header.Get("Content-Type"), "json") {
		return answer{status: r.status, text: p.unfill(strings.ToValidUTF8(string(r.body), "\uFFFD"))}, nil
	}
	v, err := parse(r.body)
	if err != nil {
		return answer{}, fmt.Errorf("status %d, answer is not JSON: %w: %.200q", r.status, err, r.body)
	}
	return answer{status: r.status, isJSON: true, value: mapStrings(v, p.unfill)}, nil
}

// serve answers GET /dump on a free port until the test ends; it returns the URL.
func (peer Peer) serve(tb testing.TB) string {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(peer.answer), ReadHeaderTimeout: patience}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(ln)
	}()
	tb.Cleanup(func() {
		_ = srv.Close()
		<-done
	})
	return "http://" + ln.Addr().String()
}

func (peer Peer) answer(w http.ResponseWriter, r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-time.After(time.Duration(peer.DelayMS) * time.Millisecond):
	}
	body := json.RawMessage("{}")
	switch {
	case peer.Raw != nil:
		body = json.RawMessage(*peer.Raw)
	case peer.JSON != nil:
		body = peer.JSON
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Path != "/dump":
		w.WriteHeader(http.StatusNotFound)
	case peer.Status != 0:
		w.WriteHeader(peer.Status)
	}
	_, _ = w.Write(body) // the client may be gone
}
