package proxy_test

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// refusing is an address at which nobody listens, nor can until the end of the test: that of a client.
func refusing(t *testing.T) *engine {
	other := startEngine(t, func(s *served) { s.read() })
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", other.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &engine{address: c.LocalAddr().String()}
}

// TestRetries: a request that an engine has not begun to serve goes to another one, and its booking with it. What an
// engine may have begun, and what it has answered, is never repeated: a repeated prefill
// costs as much as the first one.
func TestRetries(t *testing.T) {
	ok := jsonAnswer("{}")
	for name, tt := range map[string]struct {
		first func(s *served) // nil: it refuses connections
		none  bool            // there is no other engine
		want  int
		code  string
		again bool // the other one is asked
	}{
		"refused":               {want: 200, again: true},
		"refused, no other":     {none: true, want: 502, code: "engine_unreachable"},
		"reset before a byte":   {first: func(s *served) { s.read(); s.reset() }, want: 502, code: "engine_unreachable"},
		"closed before a byte":  {first: func(s *served) { s.read() }, want: 502, code: "engine_unreachable"},
		"reset within the head": {first: func(s *served) { s.read(); s.write("HTTP/1.1 200 OK\r\nx"); s.reset() }, want: 502, code: "engine_unreachable"},
		"garbage":               {first: func(s *served) { s.read(); s.write("hello\r\n\r\n"); s.read() }, want: 502, code: "engine_protocol"},
		"two lengths": {first: func(s *served) {
			s.read()
			s.write("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n")
			s.read()
		}, want: 502, code: "engine_protocol"},
		"length and chunks": {first: func(s *served) {
			s.read()
			s.write("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n")
			s.read()
		}, want: 502, code: "engine_protocol"},
		"head of 100 KB": {first: func(s *served) {
			s.read()
			s.write("HTTP/1.1 200 OK\r\nx: " + strings.Repeat("x", 100_000) + "\r\n\r\n")
			s.read()
		}, want: 502, code: "engine_protocol"},
		"500": {first: func(s *served) { s.read(); s.write("HTTP/1.1 500 no\r\ncontent-length: 0\r\n\r\n"); s.read() }, want: 500},
		"503": {first: func(s *served) {
			s.read()
			s.write("HTTP/1.1 503 no\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n")
			s.read()
		}, want: 503},
		"429":                  {first: func(s *served) { s.read(); s.write("HTTP/1.1 429 no\r\ncontent-length: 0\r\n\r\n"); s.read() }, want: 429},
		"reset after a 103":    {first: func(s *served) { s.read(); s.write("HTTP/1.1 103 Early Hints\r\n\r\n"); s.reset() }, want: 502, code: "engine_unreachable"},
		"no answer within 3 s": {first: func(s *served) { s.read(); s.read() }, want: 504, code: "engine_timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, func(s *settings) {
				if strings.HasPrefix(name, "no answer") {
					s.Proxy.FirstByteTimeout = 3 * time.Second // from the connection on
				}
			})
			first := refusing(t)
			if tt.first != nil {
				first = startEngine(t, tt.first)
			}
			var asked atomic.Int64
			if tt.none {
				w.put(first)
			} else {
				second := startEngine(t, func(s *served) {
					for s.read() != nil {
						asked.Add(1)
						s.write(ok)
					}
				})
				w.put(first, second)
				w.Burden("load", 2, 0, 5, 50) // so that the first one is chosen
			}
			a := w.ask(request(chatPath, chatBody("")))
			if a.StatusCode != tt.want || !strings.Contains(a.body, tt.code) || (asked.Load() > 0) != tt.again {
				t.Errorf("%d %q, the other engine was asked %d times", a.StatusCode, a.body, asked.Load())
			}
			if tt.first != nil && first.conns.Load() != 1 {
				t.Errorf("the first engine had %d connections", first.conns.Load())
			}
			retried := "0"
			if tt.again {
				retried = "1"
			}
			w.wantCount("proxy_retries_total", `why="connect"`, retried)
			w.wantLoads(map[bool]string{true: "1:0", false: "1:0 2:1"}[tt.none])
			w.wantCount("gateway_bookings", `via="proxy"`, "0")
		})
	}
}

// TestBookingMoves: while another engine serves the request, it is booked there and not where it was.
func TestBookingMoves(t *testing.T) {
	w := start(t)
	asked, answer := make(chan struct{}), make(chan struct{})
	w.put(refusing(t), startEngine(t, func(s *served) {
		s.read()
		asked <- struct{}{}
		<-answer
		s.write(jsonAnswer("{}"))
		s.read()
	}))
	w.Burden("load", 2, 0, 5, 50)
	c := w.dial()
	c.send(request(chatPath, chatBody("")))
	<-asked
	w.wantLoads("1:0 2:2")
	close(answer)
	if a := c.receive("POST"); a.StatusCode != 200 {
		t.Error(a.StatusCode, a.body)
	}
	w.wantLoads("1:0 2:1")
}

// TestNoRetries: with none configured the first engine's failure is the answer.
func TestNoRetries(t *testing.T) {
	w := start(t, func(s *settings) { s.Proxy.Retries = 0 })
	w.put(refusing(t), answering(t, jsonAnswer("{}")))
	w.Burden("load", 2, 0, 5, 50)
	if a := w.ask(request(chatPath, chatBody(""))); a.StatusCode != 502 {
		t.Error(a.StatusCode)
	}
}

// TestIdleConnections: an engine that closes a connection which nobody uses fails no request, whether the proxy sees
// that before the next request or with it (uvicorn closes its after 5 s).
func TestIdleConnections(t *testing.T) {
	for name, late := range map[string]bool{"before the request": false, "with the request": true} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			closed := make(chan struct{})
			e := startEngine(t, func(s *served) {
				s.read()
				s.write(jsonAnswer("{}"))
				if late {
					s.read() // the next request, which gets no answer
				}
				s.reset()
				closed <- struct{}{}
			})
			w.put(e)
			for i := range 5 {
				done := make(chan answer, 1)
				go func() { done <- w.ask(request(chatPath, chatBody(""))) }()
				if late && i > 0 {
					<-closed
				}
				a := <-done
				if a.StatusCode != 200 {
					t.Fatalf("request %d: %d %s", i, a.StatusCode, a.body)
				}
				if !late {
					<-closed
				}
			}
			if n := e.conns.Load(); n != 5 {
				t.Errorf("%d connections", n)
			}
			if late {
				w.stop(0, time.Second)
				<-closed
			}
		})
	}
}

// TestReuse: requests one after the other share a connection to their engine.
func TestReuse(t *testing.T) {
	w := start(t)
	e := answering(t, jsonAnswer("{}"))
	w.put(e)
	c := w.dial()
	for i := range 3 {
		c.send(request(chatPath, chatBody(fmt.Sprintf(`,"seed":%d`, i))))
		if a := c.receive("POST"); a.StatusCode != 200 {
			t.Fatal(a.StatusCode)
		}
	}
	if n := e.conns.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}
