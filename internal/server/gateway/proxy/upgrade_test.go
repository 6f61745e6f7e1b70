package proxy_test

import (
	"bufio"
	"io"
	"strings"
	"testing"
	"time"
)

const (
	realtime = "GET /v1/realtime?model=m HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\n"
	changed  = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: b\r\n\r\n"
)

// TestWebSocket: both sides speak to one another, from bytes that come with the request and the answer on; the
// connection is one booking, and ends for both when one of them ends.
func TestWebSocket(t *testing.T) {
	for name, end := range map[string]func(c *client, ends chan struct{}){
		"client closes": func(c *client, _ chan struct{}) { _ = c.Close() },
		"client resets": func(c *client, _ chan struct{}) { _ = c.SetLinger(0); _ = c.Close() },
		"engine closes": func(_ *client, ends chan struct{}) { close(ends) },
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			ends, ended := make(chan struct{}), make(chan struct{})
			w.put(startEngine(t, func(s *served) {
				defer close(ended)
				r := s.read()
				if r.Header.Get("Sec-Websocket-Key") != "a" || r.Header.Get("Upgrade") != "websocket" {
					t.Errorf("the engine got %v", r.Header)
				}
				s.write(changed + "early")
				text := make([]byte, 9)
				if _, err := io.ReadFull(s.in, text); err != nil || string(text) != "soonlater" {
					t.Errorf("%q, %v", text, err)
				}
				s.write("pong")
				left := make(chan struct{})
				go func() {
					_, _ = io.Copy(io.Discard, s.in)
					close(left)
				}()
				select {
				case <-left:
				case <-ends:
					_ = s.Close()
					<-left
				}
			}))
			c := w.dial()
			c.send(realtime + "\r\nsoon")
			if a := c.receive("GET"); a.StatusCode != 101 || a.Header.Get("Sec-Websocket-Accept") != "b" {
				t.Fatal(a.Response)
			}
			c.send("later")
			text := make([]byte, 9)
			if _, err := io.ReadFull(c.in, text); err != nil || string(text) != "earlypong" {
				t.Errorf("%q, %v", text, err)
			}
			w.wantLoads("1:1")
			end(c, ends)
			<-ended
			w.wantLoads("1:0")
			if _, err := c.in.ReadByte(); err == nil {
				t.Error("the client's connection is still open")
			}
		})
	}
}

// TestHalfClosed: an engine may have something to say after its client has ended.
func TestHalfClosed(t *testing.T) {
	w := start(t)
	w.put(startEngine(t, func(s *served) {
		s.read()
		s.write(changed)
		_, _ = io.Copy(io.Discard, s.in)
		s.write("bye")
	}))
	c := w.dial()
	c.send(realtime + "\r\n")
	c.receive("GET")
	_ = c.CloseWrite()
	if text, err := io.ReadAll(c.in); err != nil || string(text) != "bye" {
		t.Errorf("%q, %v", text, err)
	}
	w.wantLoads("1:0")
}

// TestRefusedUpgrade: an engine that does not change its protocol answers in HTTP.
func TestRefusedUpgrade(t *testing.T) {
	w := start(t)
	w.put(answering(t, "HTTP/1.1 426 no\r\ncontent-length: 2\r\n\r\nno"))
	c := w.dial()
	c.send(realtime + "\r\n")
	if a := c.receive("GET"); a.StatusCode != 426 || a.body != "no" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	w.wantLoads("1:0")
}

// TestOtherUpgrades: only WebSockets pass. HTTP/2 without TLS behind the first request would pass every rule
// (golang/go#80416).
func TestOtherUpgrades(t *testing.T) {
	w := start(t)
	w.put(startEngine(t, func(s *served) {
		for r := s.read(); r != nil; r = s.read() {
			if r.Header.Get("Upgrade") != "" {
				t.Errorf("the engine got %v", r.Header)
			}
			s.write(jsonAnswer("{}"))
		}
	}))
	for _, protocol := range []string{"h2c", "websocket, h2c", "TLS/1.0"} {
		a := w.ask(requestOf("GET", "/v1/realtime", "", "Connection", "Upgrade, HTTP2-Settings", "Upgrade", protocol, "HTTP2-Settings", "AAMAAABkAAQAAP__"))
		if a.StatusCode != 200 || a.body != "{}" {
			t.Errorf("%s: %d %q", protocol, a.StatusCode, a.body)
		}
	}
	// An engine that changes its protocol without being asked is none.
	w = start(t)
	w.put(answering(t, changed))
	if a := w.ask(request(chatPath, chatBody(""))); a.StatusCode != 502 || !strings.Contains(a.body, "engine_protocol") {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
}

// TestDrainWebSocket: a connection that has changed its protocol is waited for too, and cut in the end.
func TestDrainWebSocket(t *testing.T) {
	w := start(t)
	w.put(startEngine(t, func(s *served) {
		s.read()
		s.write(changed)
		_, _ = io.Copy(io.Discard, s.in)
	}))
	c := w.dial()
	c.send(realtime + "\r\n")
	c.receive("GET")
	began := time.Now()
	w.stop(0, 300*time.Millisecond)
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("it was cut after %v", took)
	}
	if _, err := bufio.NewReader(c).ReadByte(); err == nil {
		t.Error("the client's connection is still open")
	}
	w.wantLoads("1:0")
}
