package proxy_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// TestPanic: a fault of this program in one request frees what that request has booked and cuts its connection, with a
// line in the log. Other requests are served.
func TestPanic(t *testing.T) {
	var faulty atomic.Bool
	faulty.Store(true)
	w := start(t, func(s *settings) {
		s.Proxy.Token = func() string {
			if faulty.Load() {
				panic("a fault")
			}
			return "engine"
		}
	})
	w.put(answering(t, jsonAnswer("{}")))
	c := w.dial()
	c.send(request(chatPath, chatBody("")))
	if a, err := c.tryReceive("POST"); err == nil {
		t.Errorf("an answer came: %d %q", a.StatusCode, a.body)
	}
	w.wantLoads("1:0")
	if line := strings.Join(w.log.Take(t), "\n"); !strings.Contains(line, "request through the proxy failed") || !strings.Contains(line, "a fault") {
		t.Errorf("the log has %q", line)
	}
	faulty.Store(false)
	if a := w.ask(request(chatPath, chatBody(""))); a.StatusCode != 200 {
		t.Errorf("the next request gets %d %q", a.StatusCode, a.body)
	}
}

// panicking is a client's connection of which one write panics: that of a marker.
type panicking struct {
	net.Conn
	done atomic.Bool
}

func (p *panicking) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("marker")) {
		if p.done.Swap(true) { // net/http flushes what is left of the answer
			return 0, net.ErrClosed
		}
		panic("a fault of the test")
	}
	return p.Conn.Write(b)
}

// TestPanicWithinAnswer: a fault within an answer ends the connection without a word more, so that the client does not
// take what has come for all (stacklok/toolhive#4064), frees the booking, and is in both logs.
func TestPanicWithinAnswer(t *testing.T) {
	w := start(t, func(s *settings) {
		s.Proxy.AccessLog = true
		s.Wrap = func(c net.Conn) net.Conn { return &panicking{Conn: c} }
	})
	goOn := make(chan struct{})
	w.put(startEngine(t, func(s *served) {
		s.read()
		s.write(eventsHead, chunk(event("a")))
		<-goOn
		s.write(chunk(event("marker")))
		_, _ = s.in.ReadByte() // until the proxy has gone
	}))
	c := w.dial()
	c.send(request(chatPath, chatBody(`,"stream":true`)))
	if _, err := c.in.Peek(1); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if a := c.receive("POST"); a.StatusCode != 200 || a.body != event("a") || !errors.Is(a.err, io.ErrUnexpectedEOF) {
		t.Errorf("%d %q %v", a.StatusCode, a.body, a.err)
	}
	w.wantLoads("1:0")
	var lines []string
	await(t, func() string {
		lines = append(lines, w.log.Take(t)...)
		if text := strings.Join(lines, "\n"); strings.Count(text, "error: request through the proxy failed") != 1 || !strings.Contains(text, "outcome=failed") {
			return text
		}
		return ""
	})
}

// names are the names and labels of all series.
func (w *world) names() string {
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.metrics, w.proxied)
	rec := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
	return regexp.MustCompile(`(?m) \S+$`).ReplaceAllString(rec.Body.String(), "")
}

// TestLabels: nothing that clients or engines say becomes a label of a metric, and no request makes a series more.
func TestLabels(t *testing.T) {
	w := start(t)
	before := w.names()
	answers := []string{
		"HTTP/1.1 599 evil\r\nx-error: evil\r\ncontent-type: application/json\r\ncontent-length: 24\r\n\r\n" + `{"error":{"code":"evil"}}`[:24],
		"evil\r\n\r\n",
		"HTTP/1.1 200 evil\r\ncontent-type: text/evil\r\ntransfer-encoding: chunked\r\n\r\nevil\r\n",
		eventsHead + chunk(`data: {"error":{"type":"evil"}}`+"\n\n") + "evil\r\n",
	}
	w.put(startEngine(t, func(s *served) {
		if r := s.read(); r != nil {
			var i int
			_, _ = fmt.Sscan(r.Header.Get("X-Answer"), &i)
			s.write(answers[i])
		}
	}))
	for i := range answers {
		c := w.dial()
		c.send(request(chatPath, chatBody(`,"stream":true`), "X-Answer", fmt.Sprint(i)))
		_, _ = c.tryReceive("POST")
	}
	for _, text := range []string{
		request(chatPath, `{"model":"evil","messages":[]}`), request("/evil", "{}"), requestOf("EVIL", chatPath, ""),
		request(chatPath, chatBody(""), "X-Dynamo-Policy-Class", "evil", "X-Tenant-Id", "evil"),
	} {
		w.ask(text)
	}
	if after := w.names(); after != before || strings.Contains(after, "evil") {
		t.Errorf("the series are\n%s\nand were\n%s", after, before)
	}
	w.wantLoads("1:0")
}

// TestConnect: over HTTP/2 nobody is offered the extended CONNECT of RFC 8441, and a plain one names no route.
func TestConnect(t *testing.T) {
	w := start(t)
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	for protocol, want := range map[string]int{"": 404, "websocket": 0} {
		r := &http.Request{Method: http.MethodConnect, URL: &url.URL{Scheme: "http", Host: w.address, Path: "/v1/realtime"}, Host: w.address, Header: http.Header{}}
		if protocol != "" {
			r.Header.Set(":protocol", protocol)
		} else {
			r.URL.Path = ""
		}
		got := 0
		if resp, err := tr.RoundTrip(r.WithContext(t.Context())); err == nil {
			got = resp.StatusCode
			_ = resp.Body.Close()
		}
		if got != want {
			t.Errorf("CONNECT with protocol %q: %d, want %d", protocol, got, want)
		}
	}
}
