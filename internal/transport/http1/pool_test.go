package http1

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// get sends a GET and reads its answer to the end.
func get(ctx context.Context, c *Client, o Origin) (string, error) {
	resp, err := c.Do(ctx, &Request{Method: "GET", Origin: o, Target: "/"})
	if err != nil {
		return "", err
	}
	defer resp.Close()
	body, err := io.ReadAll(resp)
	return string(body), err
}

// TestSecured: TLS with a private authority and the name of the server in the handshake; connections are
// used again, looked at through TLS, and one that the server has closed is not.
func TestSecured(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.ServerName+" "+r.TLS.NegotiatedProtocol+" "+r.RemoteAddr)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	c := New(Options{
		TLS: func(host string) *tls.Config {
			return &tls.Config{ServerName: host, RootCAs: pool, MinVersion: tls.VersionTLS12}
		},
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
		},
	})
	defer c.Close()
	at := Origin{"https", "example.com"} // httptest's certificate has the name
	first, err := get(t.Context(), c, at)
	if err != nil || !strings.HasPrefix(first, "example.com  127.0.0.1:") {
		t.Fatalf("%q, %v", first, err)
	}
	if again, err := get(t.Context(), c, at); again != first || err != nil {
		t.Errorf("%q, %v, want the connection of %q", again, err, first)
	}
	s.CloseClientConnections()
	if again, err := get(t.Context(), c, at); again == first || err != nil {
		t.Errorf("%q, %v", again, err)
	}
	if _, err := get(t.Context(), c, Origin{"https", "other.example"}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("another name: %v", err)
	}
	if open, idle := c.Connections(); open != idle {
		t.Errorf("%d connections open, %d idle", open, idle)
	}
}

// TestHead: an answer to HEAD has no body, whatever its head says, and its connection is kept.
func TestHead(t *testing.T) {
	for _, text := range []string{"Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", ""} {
		got, err := readText(t, "HEAD", "HTTP/1.1 200 x\r\n"+text+"\r\n", func() int { return 1 })
		if err != nil || !strings.HasSuffix(got, " kept") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

// TestUpgrade: both sides speak the other protocol, from the first byte behind the head on, each ends its
// side by itself, and the connection ends with the answer.
func TestUpgrade(t *testing.T) {
	rest := make(chan string, 1)
	e := startEngine(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		req, err := http.ReadRequest(in)
		if err != nil || req.Header.Get("Upgrade") != "websocket" {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nupgrade: WebSocket\r\nconnection: keep-alive, Upgrade\r\n\r\nfirst")
		text, _ := io.ReadAll(in)
		rest <- string(text)
		_, _ = io.WriteString(c, "last")
	})
	c := New(Options{})
	defer c.Close()
	resp, err := c.Do(t.Context(), &Request{Method: "GET", Origin: e.Origin, Target: "/", Upgrade: "websocket"})
	if err != nil {
		t.Fatal(err)
	}
	s := resp.Upgraded()
	if s == nil || resp.Upgraded() != nil || resp.HasBody() {
		t.Fatal("no connection, or twice")
	}
	_, _ = io.WriteString(s, "hello")
	_ = s.CloseWrite()
	if got := <-rest; got != "hello" {
		t.Errorf("the server got %q", got)
	}
	if got, err := io.ReadAll(s); string(got) != "firstlast" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	_ = resp.Close()
	if open, idle := c.Connections(); open != 0 || idle != 0 {
		t.Errorf("%d connections open, %d idle", open, idle)
	}
	for text, want := range map[string]string{
		"HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n": "protocol",
		"HTTP/1.1 101 x\r\nUpgrade: websocket\r\n\r\n":                  "protocol",
	} {
		c := New(Options{Dial: func(context.Context, string, string) (net.Conn, error) {
			return &pieces{text: text, size: func() int { return len(text) }}, nil
		}})
		if _, err := c.Do(t.Context(), &Request{Method: "GET", Origin: e.Origin, Target: "/", Upgrade: "websocket"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	refused := New(Options{Dial: func(context.Context, string, string) (net.Conn, error) {
		return &pieces{text: "HTTP/1.1 400 x\r\nContent-Length: 2\r\n\r\nno", size: func() int { return 99 }}, nil
	}})
	resp, err = refused.Do(t.Context(), &Request{Method: "GET", Origin: e.Origin, Target: "/", Upgrade: "websocket"})
	if err != nil || resp.Status != 400 || resp.Upgraded() != nil {
		t.Errorf("refused: %+v, %v", resp, err)
	}
}

// TestStream: each piece of an answer is read when it has come, whatever its framing.
func TestStream(t *testing.T) {
	for head, pieces := range map[string][]string{
		"":                               {"a", "bc", "d"},
		"Content-Length: 4\r\n":          {"a", "bc", "d"},
		"Transfer-Encoding: chunked\r\n": {"1\r\na\r\n", "2\r\nbc\r\n1", "\r\nd\r\n0\r\n"},
	} {
		read := make(chan struct{})
		e := startEngine(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
			_, _ = http.ReadRequest(in)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+head+"\r\n")
			for _, piece := range pieces {
				_, _ = io.WriteString(c, piece)
				<-read // the piece has been passed on: else this would wait for ever
			}
			if strings.HasPrefix(head, "Transfer") {
				_, _ = io.WriteString(c, "\r\n")
			}
		})
		c := New(Options{})
		resp, err := c.Do(t.Context(), &Request{Method: "GET", Origin: e.Origin, Target: "/"})
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 64)
		for _, want := range []string{"a", "bc", "d"} {
			n, err := resp.Read(buf)
			if string(buf[:n]) != want || err != nil && !errors.Is(err, io.EOF) {
				t.Errorf("%q: %q, %v, want %q", head, buf[:n], err, want)
			}
			read <- struct{}{}
		}
		if n, err := resp.Read(buf); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("%q: %d bytes, %v at the end", head, n, err)
		}
		_ = resp.Close()
		c.Close()
	}
}

// TestBounds: idle connections are bounded for an origin and in all, and none is idle for long.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Options{MaxIdlePerOrigin: 2, MaxIdle: 3, Dial: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				defer far.Close()
				for in := bufio.NewReader(far); read(in); {
					_, _ = io.WriteString(far, okAnswer)
				}
			}()
			return near, nil
		}})
		var open []*Response
		for _, host := range []string{"a", "a", "a", "b", "b", "b"} {
			resp, err := c.Do(t.Context(), &Request{Method: "GET", Origin: Origin{"http", host}, Target: "/"})
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, resp)
		}
		for _, resp := range open {
			_, _ = io.ReadAll(resp)
			_ = resp.Close()
		}
		if open, idle := c.Connections(); open != 3 || idle != 3 {
			t.Errorf("%d open, %d idle", open, idle)
		}
		time.Sleep(defaultIdle)
		synctest.Wait()
		if open, idle := c.Connections(); open != 0 || idle != 0 {
			t.Errorf("later: %d open, %d idle", open, idle)
		}
		c.Close()
	})
}

// TestBusy: many callers at once, against servers that close, reset, cut and stray at random, each get their
// own answer or an error, and nothing stays behind.
func TestBusy(t *testing.T) {
	before := runtime.NumGoroutine()
	const callers, requests = 16, 200
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	e := startEngine(t, func(n int, c *net.TCPConn, in *bufio.Reader) {
		random := rand.New(rand.NewSource(seed + int64(n)))
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			answer := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(req.RequestURI), req.RequestURI)
			chunked := fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(req.RequestURI), req.RequestURI)
			switch random.Intn(12) {
			case 0:
				return
			case 1:
				reset(c)
				return
			case 2:
				_, _ = io.WriteString(c, answer[:random.Intn(len(answer))])
				return
			case 3: // closed while idle, which races with the next request
				_, _ = io.WriteString(c, answer)
				return
			case 4:
				_, _ = io.WriteString(c, answer+"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray")
			case 5, 6, 7:
				_, _ = io.WriteString(c, chunked)
			default:
				_, _ = io.WriteString(c, answer)
			}
		}
	})
	c := New(Options{MaxIdlePerOrigin: 8})
	var running sync.WaitGroup
	for caller := range callers {
		running.Go(func() {
			random := rand.New(rand.NewSource(seed - int64(caller)))
			for n := range requests {
				ctx, cancel := context.WithCancel(t.Context())
				target := fmt.Sprintf("/%d/%d", caller, n)
				if random.Intn(8) == 0 {
					time.AfterFunc(time.Duration(random.Intn(200))*time.Microsecond, cancel)
				}
				resp, err := c.Do(ctx, &Request{Method: "POST", Origin: e.Origin, Target: target, Body: [][]byte{make([]byte, random.Intn(200<<10))}})
				if err == nil {
					if random.Intn(8) > 0 {
						if body, err := io.ReadAll(resp); err == nil && string(body) != target {
							t.Errorf("%s has the answer %q", target, body)
						}
					}
					_ = resp.Close()
				}
				cancel()
			}
		})
	}
	running.Wait()
	open, idle := c.Connections()
	if open != idle || idle > 8 {
		t.Errorf("%d connections open, %d idle", open, idle)
	}
	c.Close()
	if open, idle := c.Connections(); open != 0 || idle != 0 {
		t.Errorf("closed: %d connections open, %d idle", open, idle)
	}
	for runtime.NumGoroutine() > before+2 { // the engine's own: one that accepts, and some that end now
		runtime.Gosched()
	}
}

// BenchmarkStream: an answer of 100 pieces over the loopback, server included.
func BenchmarkStream(b *testing.B) {
	piece := []byte("10\r\ndata: 012345678\n\r\n")
	e := startEngine(b, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		for read(in) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
			for range 100 {
				_, _ = c.Write(piece)
			}
			_, _ = io.WriteString(c, "0\r\n\r\n")
		}
	})
	c := New(Options{})
	defer c.Close()
	r := &Request{Method: "POST", Origin: e.Origin, Target: "/v1/chat/completions", Body: [][]byte{make([]byte, 5000)}}
	buf := make([]byte, 16<<10)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := c.Do(b.Context(), r)
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = resp.Read(buf)
		}
		if !errors.Is(err, io.EOF) {
			b.Fatal(err)
		}
		_ = resp.Close()
	}
}
