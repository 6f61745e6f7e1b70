package proxy_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/pkg/memory"
)

// TestAnswerBeforeBody: an engine may answer before it has read the request. What it reads of it afterwards is still that request,
// whatever others send meanwhile, and it counts as memory until then.
func TestAnswerBeforeBody(t *testing.T) {
	budget := memory.New(1 << 30)
	w := start(t, withMemory(budget), func(s *settings) {
		s.Proxy.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			if err == nil {
				_ = c.(*net.TCPConn).SetWriteBuffer(4 << 10) // so that most of the body has to wait
			}
			return c, err
		}
	})
	answered, rest := make(chan struct{}), make(chan string, 1)
	w.put(startEngine(t, func(c *served) {
		_ = c.SetReadBuffer(4 << 10)
		r, err := http.ReadRequest(c.in)
		if err != nil {
			return
		}
		if r.Header.Get("X-First") == "" {
			_, _ = io.Copy(io.Discard, r.Body)
			c.write(jsonAnswer("{}"))
			return
		}
		c.write(eventsHead + chunk(event("a")))
		<-answered
		_ = c.SetReadBuffer(1 << 20)
		body, _ := io.ReadAll(r.Body)
		c.write(lastChunk)
		rest <- string(body)
	}))
	requests := budget.Account(memory.Bodies)
	first := chatBody(`,"stream":true,"user":"` + strings.Repeat("a", 200<<10) + `"`)
	c := w.dial()
	c.send(request(chatPath, first, "X-First", "1"))
	if _, err := c.in.ReadString('\n'); err != nil { // its answer begins
		t.Fatal(err)
	}
	if used := requests.Used(); used < int64(len(first)) {
		t.Errorf("%d bytes are accounted while a body of %d is sent", used, len(first))
	}
	second := strings.ReplaceAll(first, "aaaa", "bbbb")
	if a := w.ask(request(chatPath, second)); a.StatusCode != 200 {
		t.Fatal(a.StatusCode, a.body)
	}
	close(answered)
	if got := <-rest; got != first {
		t.Errorf("the engine got a body that is not its request's: %.60q, %d bytes, %d of them another one's", got, len(got), strings.Count(got, "b"))
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(c.in, 100))
	w.wantLoads("1:0")
	await(t, func() string {
		if requests.Used() != 0 {
			return "memory is still accounted"
		}
		return ""
	})
}

// TestSilenceOverHTTP2: the write timeout is for clients that read nothing, and not for engines that say nothing.
func TestSilenceOverHTTP2(t *testing.T) {
	const timeout = 2 * time.Second // a busy machine may need a part of it for one write
	w := start(t, func(s *settings) { s.Proxy.WriteTimeout = timeout })
	w.put(startEngine(t, func(c *served) {
		c.read()
		c.write(eventsHead + chunk(event("a")))
		<-time.After(timeout + timeout/2)
		c.write(chunk(event("b")) + lastChunk)
	}))
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+w.address+chatPath, strings.NewReader(chatBody(`,"stream":true`)))
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != event("a")+event("b") {
		t.Errorf("%q, %v", body, err)
	}
}

// TestKeepaliveWithLength: nothing is added to a stream of events whose length has been announced.
func TestKeepaliveWithLength(t *testing.T) {
	w := start(t, func(s *settings) { s.Proxy.Keepalive = 20 * time.Millisecond })
	w.put(startEngine(t, func(c *served) {
		c.read()
		c.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 14\r\n\r\n")
		<-time.After(200 * time.Millisecond)
		c.write(done)
	}))
	if a := w.ask(request(chatPath, chatBody(`,"stream":true`))); a.err != nil || a.body != done {
		t.Errorf("%q, %v", a.body, a.err)
	}
}

// TestUnreadBody: a request with a body that nobody reads, and that does not come, does not keep its answer waiting.
func TestUnreadBody(t *testing.T) {
	w := start(t, func(s *settings) { s.PickTimeout = 100 * time.Millisecond })
	w.put(answering(t, jsonAnswer("{}")))
	for _, tt := range []struct {
		head string
		want int
	}{
		{"GET /health HTTP/1.1\r\nHost: x\r\n", 200},
		{"GET /v1/models HTTP/1.1\r\nHost: x\r\n", 200},
		{"GET /v1/models/none HTTP/1.1\r\nHost: x\r\n", 404},
		{realtime, 408},
	} {
		for _, framing := range []string{"Content-Length: 1000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"} {
			c := w.dial()
			c.send(tt.head + framing)
			if a, err := c.tryReceive("GET"); err != nil || a.StatusCode != tt.want {
				t.Errorf("%q: %v, %v", tt.head+framing, a.Response, err)
			}
			if _, err := c.in.ReadByte(); err != io.EOF {
				t.Errorf("%q: the connection is still open: %v", tt.head+framing, err)
			}
		}
	}
	w.wantLoads("1:0")
}

// TestRefusedOverHTTP2: a refusal ends its request, and not the connection with the requests of others.
func TestRefusedOverHTTP2(t *testing.T) {
	w := start(t)
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	connection, err := transport.NewClientConn(t.Context(), "http", w.address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	for range 3 {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+w.address+"/flush_cache", strings.NewReader("{}"))
		resp, err := connection.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Error(resp.Status)
		}
	}
}

// TestLostPlace: a request whose body does not come is answered as soon as another one has its place.
func TestLostPlace(t *testing.T) {
	for _, version := range []int{1, 2} {
		w := start(t, func(s *settings) { s.MaxStreams = 1 })
		w.put(answering(t, jsonAnswer("{}")))
		answered := make(chan int, 1)
		if version == 1 {
			c := w.dial()
			c.send("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
			go func() {
				a, err := c.tryReceive("POST")
				if err != nil {
					t.Error(err)
					close(answered)
					return
				}
				answered <- a.StatusCode
			}()
		} else {
			transport := &http.Transport{Protocols: new(http.Protocols)}
			transport.Protocols.SetUnencryptedHTTP2(true)
			defer transport.CloseIdleConnections()
			body, rest := io.Pipe()
			defer rest.Close()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.address+chatPath, body)
			go func() {
				resp, err := transport.RoundTrip(r)
				if err != nil {
					t.Error(err)
					close(answered)
					return
				}
				_ = resp.Body.Close()
				answered <- resp.StatusCode
			}()
		}
		await(t, func() string {
			if w.gateway.Opened(counts.Proxy) == 0 {
				return "the request has not come"
			}
			return ""
		})
		await(t, func() string {
			if a := w.ask(request(chatPath, chatBody(""))); a.StatusCode != 200 {
				return a.body
			}
			return ""
		})
		if status := <-answered; status != http.StatusRequestTimeout {
			t.Errorf("HTTP/%d: %d", version, status)
		}
	}
}
