package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// engine is a server on the loopback whose n-th connection, from 0 on, is served by a function; the
// connection is closed behind it.
type engine struct {
	Origin
	accepted atomic.Int64
}

func startEngine(t testing.TB, serve func(n int, c *net.TCPConn, in *bufio.Reader)) *engine {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{Origin: Origin{"http", ln.Addr().String()}}
	var (
		serving sync.WaitGroup
		mu      sync.Mutex // guards the next two
		open    []net.Conn
		over    bool
	)
	serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			n := int(e.accepted.Add(1)) - 1
			mu.Lock()
			if open = append(open, c); over { // it came at the very end
				_ = c.Close()
			}
			mu.Unlock()
			serving.Go(func() {
				defer c.Close()
				serve(n, c.(*net.TCPConn), bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		over = true
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
	return e
}

// read reads a request with its body, and reports whether there is one.
func read(in *bufio.Reader) bool {
	req, err := http.ReadRequest(in)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// reset makes the end of a connection a reset.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// stall keeps a connection without reading from it, until the engine stops.
func stall(c *net.TCPConn) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Read(func(uintptr) bool { return false })
	}
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// TestFaults: each fault of a server has an error that says how far the request came, and whether it may be
// sent to another server.
func TestFaults(t *testing.T) {
	type told struct {
		phase    Phase
		reused   bool
		sent     bool
		unserved bool
		is       error // what the error wraps
	}
	answers := func(text string) func(int, *net.TCPConn, *bufio.Reader) {
		return func(_ int, c *net.TCPConn, in *bufio.Reader) {
			read(in)
			_, _ = io.WriteString(c, text)
		}
	}
	// second serves one request well, and the second one of the same connection otherwise.
	second := func(f func(c *net.TCPConn)) func(int, *net.TCPConn, *bufio.Reader) {
		return func(_ int, c *net.TCPConn, in *bufio.Reader) {
			for n := 0; read(in); n++ {
				if n == 1 {
					f(c)
					return
				}
				_, _ = io.WriteString(c, okAnswer)
			}
		}
	}
	for name, tc := range map[string]struct {
		serve    func(n int, c *net.TCPConn, in *bufio.Reader)
		body     int           // bytes
		timeout  time.Duration // HeadTimeout
		requests int           // before the one that fails
		want     told
		accepted int64
	}{
		"reset while the body was sent": {
			serve: func(_ int, c *net.TCPConn, in *bufio.Reader) { _, _ = in.Peek(1); reset(c) }, body: 32 << 20,
			want: told{Send, false, false, true, nil}, accepted: 1,
		},
		"all sent, then reset": {
			serve: func(_ int, c *net.TCPConn, in *bufio.Reader) { read(in); reset(c) },
			want:  told{Wait, false, true, false, syscall.ECONNRESET}, accepted: 1,
		},
		"all sent, then closed":  {serve: answers(""), want: told{Wait, false, true, false, io.ErrUnexpectedEOF}, accepted: 1},
		"closed in the head":     {serve: answers("HTTP/1.1 200 OK\r\nX: "), want: told{Head, false, true, false, io.ErrUnexpectedEOF}, accepted: 1},
		"closed behind a 103":    {serve: answers("HTTP/1.1 103 Early Hints\r\n\r\n"), want: told{Head, false, true, false, io.ErrUnexpectedEOF}, accepted: 1},
		"closed in the body":     {serve: answers("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok"), want: told{Body, false, true, false, io.ErrUnexpectedEOF}, accepted: 1},
		"closed in a chunk":      {serve: answers("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nok"), want: told{Body, false, true, false, io.ErrUnexpectedEOF}, accepted: 1},
		"closed behind a chunk":  {serve: answers("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"), want: told{Body, false, true, false, io.ErrUnexpectedEOF}, accepted: 1},
		"closed before trailers": {serve: answers("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"), want: told{Body, false, true, false, io.ErrUnexpectedEOF}, accepted: 1},
		"no HTTP":                {serve: answers("SSH-2.0-x\r\n"), want: told{Head, false, true, false, ErrProtocol}, accepted: 1},
		"reset in the body": {
			serve: func(_ int, c *net.TCPConn, in *bufio.Reader) {
				read(in)
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nok")
				_, _ = in.ReadByte() // until the client has the head
				reset(c)
			},
			want: told{Body, false, true, false, syscall.ECONNRESET}, accepted: 1,
		},
		"reused, closed, then again": {
			serve: second(func(*net.TCPConn) {}), requests: 1, // the new connection serves one request
			want: told{}, accepted: 2,
		},
		"reused, reset, then again": {serve: second(reset), requests: 1, want: told{}, accepted: 2},
		"reused, closed, then closed": {
			serve: func(n int, c *net.TCPConn, in *bufio.Reader) {
				read(in)
				if n == 0 {
					_, _ = io.WriteString(c, okAnswer)
					read(in)
				}
			}, requests: 1,
			want: told{Wait, false, true, false, io.ErrUnexpectedEOF}, accepted: 2,
		},
		"reused, closed in the head": {
			serve: second(func(c *net.TCPConn) { _, _ = io.WriteString(c, "H") }), requests: 1,
			want: told{Head, true, true, false, io.ErrUnexpectedEOF}, accepted: 1,
		},
		// What comes before the wait is sent within the time, too.
		"no answer in time": {
			serve: func(_ int, _ *net.TCPConn, in *bufio.Reader) { read(in); read(in) }, timeout: 3 * time.Second,
			want: told{Wait, false, true, false, os.ErrDeadlineExceeded}, accepted: 1,
		},
		"reused, no answer in time": {
			serve: second(func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 1)) }), requests: 1, timeout: 3 * time.Second,
			want: told{Wait, true, true, false, os.ErrDeadlineExceeded}, accepted: 1,
		},
		"nothing is read in time": {
			serve: func(_ int, c *net.TCPConn, in *bufio.Reader) { _, _ = in.Peek(1); stall(c) }, body: 64 << 20, timeout: 3 * time.Second,
			want: told{Send, false, false, false, os.ErrDeadlineExceeded}, accepted: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startEngine(t, tc.serve)
			c := New(Options{})
			defer c.Close()
			ask := func(timeout time.Duration) error {
				resp, err := c.Do(t.Context(), &Request{Method: "POST", Origin: e.Origin, Target: "/", Body: [][]byte{make([]byte, tc.body)}, HeadTimeout: timeout})
				if err != nil {
					return err
				}
				defer resp.Close()
				if strings.Contains(name, "reset in") {
					_, _ = resp.conn.Write([]byte("x"))
				}
				_, err = io.ReadAll(resp)
				return err
			}
			for range tc.requests {
				if err := ask(0); err != nil {
					t.Fatal(err)
				}
			}
			err := ask(tc.timeout)
			if accepted := e.accepted.Load(); accepted != tc.accepted {
				t.Errorf("%d connections, want %d", accepted, tc.accepted)
			}
			if tc.want == (told{}) {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var got *Error
			if !errors.As(err, &got) {
				t.Fatalf("error %v", err)
			}
			if is := (told{got.Phase, got.Reused, got.Sent, got.Unserved(), tc.want.is}); is != tc.want || tc.want.is != nil && !errors.Is(err, tc.want.is) {
				t.Errorf("%v: %+v, want %+v", err, is, tc.want)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) != got.Timeout() {
				t.Errorf("timeout: %v", got.Timeout())
			}
			if open, idle := c.Connections(); open != 0 || idle != 0 {
				t.Errorf("%d connections stay, %d idle", open, idle)
			}
		})
	}
}

// TestNoConnection: what is refused, comes too late, or fails its handshake, was not served.
func TestNoConnection(t *testing.T) {
	silent := startEngine(t, func(_ int, _ *net.TCPConn, in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) })
	plain := startEngine(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		_, _ = in.Peek(1)
		_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
	})
	// Nobody listens at the other end of a connection, and nobody can while it lasts.
	taken, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", silent.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	closed := taken.LocalAddr().String()
	never := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for name, tc := range map[string]struct {
		options Options
		origin  Origin
		phase   Phase
		timeout bool
	}{
		"refused":           {Options{}, Origin{"http", closed}, Dial, false},
		"no connection":     {Options{Dial: never, ConnectTimeout: 20 * time.Millisecond}, Origin{"http", "engine"}, Dial, true},
		"no handshake":      {Options{ConnectTimeout: 3 * time.Second}, Origin{"https", silent.Host}, TLS, true},
		"https to http":     {Options{}, Origin{"https", plain.Host}, TLS, false},
		"no such name":      {Options{}, Origin{"http", "engine.invalid:80"}, Dial, false},
		"refused, with TLS": {Options{}, Origin{"https", closed}, Dial, false},
	} {
		c := New(tc.options)
		_, err := c.Do(t.Context(), &Request{Method: "GET", Origin: tc.origin, Target: "/"})
		var got *Error
		if !errors.As(err, &got) || got.Phase != tc.phase || got.Sent || got.Reused || !got.Unserved() || got.Timeout() != tc.timeout {
			t.Errorf("%s: %+v", name, err)
		}
		c.Close()
	}
}

// TestGone: the end of the context closes the connection at once in each phase, with its cause as the error.
func TestGone(t *testing.T) {
	errLeft := errors.New("the caller left")
	for name, text := range map[string]string{
		"before a byte": "", "in the head": "HTTP/1.1 200", "in the body": "HTTP/1.1 200 OK\r\n\r\nok", "in a chunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nok",
		"upgraded": "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nok",
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan error, 1)
			ctx, cancel := context.WithCancelCause(t.Context())
			e := startEngine(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
				_, _ = http.ReadRequest(in)
				_, _ = io.WriteString(c, text)
				if text == "" || text == "HTTP/1.1 200" {
					cancel(errLeft)
				}
				_, err := in.ReadByte()
				ended <- err
			})
			c := New(Options{})
			defer c.Close()
			resp, err := c.Do(ctx, &Request{Method: "GET", Origin: e.Origin, Target: "/", Upgrade: "websocket"})
			if err == nil {
				defer resp.Close()
				from := io.Reader(resp)
				if s := resp.Upgraded(); s != nil {
					from = s
				}
				two := make([]byte, 2)
				if _, err := io.ReadFull(from, two); err != nil || string(two) != "ok" {
					t.Fatalf("%q, %v", two, err)
				}
				cancel(errLeft)
				_, err = from.Read(two)
				if name == "upgraded" && err != nil {
					err = &Error{Err: errLeft} // it is the connection's own
				}
				if got := <-ended; got == nil {
					t.Error("the server still reads")
				}
				ended <- nil
				if !errors.Is(err, errLeft) {
					t.Errorf("error %v", err)
				}
				return
			}
			var got *Error
			if !errors.As(err, &got) || !errors.Is(err, errLeft) || got.Unserved() {
				t.Errorf("error %v", err)
			}
			if <-ended == nil {
				t.Error("the server still reads")
			}
		})
	}
}

// TestEarlyAnswer: an answer that comes while a body is sent is read, whether the server reads on, closes,
// or does neither; the connection is not used again.
func TestEarlyAnswer(t *testing.T) {
	const refusal = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\n\r\nlong"
	for name, behind := range map[string]func(c *net.TCPConn, in *bufio.Reader){
		"reads on":       func(_ *net.TCPConn, in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) },
		"closes":         func(*net.TCPConn, *bufio.Reader) {},
		"reads no more":  func(c *net.TCPConn, _ *bufio.Reader) { stall(c) },
		"writes no more": func(c *net.TCPConn, in *bufio.Reader) { _ = c.CloseWrite(); _, _ = io.Copy(io.Discard, in) },
	} {
		for _, kind := range []string{"held", "length", "chunks"} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				e := startEngine(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
					_, _ = in.Peek(1)
					_, _ = io.WriteString(c, refusal)
					behind(c, in)
				})
				c := New(Options{})
				defer c.Close()
				r := &Request{Method: "POST", Origin: e.Origin, Target: "/"}
				const size = 64 << 20
				switch kind {
				case "held":
					r.Body = [][]byte{make([]byte, size/2), make([]byte, size/2)}
				default:
					r.Reader, r.Length = &endless{closed: make(chan struct{})}, -1
					if kind == "length" {
						r.Length = 1 << 40
					}
				}
				resp, err := c.Do(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(resp)
				_ = resp.Close()
				if resp.Status != 413 || string(text) != "long" || err != nil {
					t.Errorf("%d %q, %v", resp.Status, text, err)
				}
				if open, _ := c.Connections(); open != 0 {
					t.Error("the connection is kept")
				}
			})
		}
	}
}

// endless is a body without an end, until it is closed.
type endless struct {
	closed chan struct{}
	once   sync.Once
}

func (e *endless) Read(p []byte) (int, error) {
	select {
	case <-e.closed:
		return 0, errors.New("closed")
	default:
		return len(p), nil
	}
}

func (e *endless) Close() error {
	e.once.Do(func() { close(e.closed) })
	return nil
}

// TestRequest: what is sent, byte by byte.
func TestRequest(t *testing.T) {
	text := func(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }
	long := strings.Repeat("x", 100<<10)
	for name, tc := range map[string]struct {
		request Request
		want    string
	}{
		"GET":          {Request{Method: "GET", Target: "/v1/models?x=%20"}, "GET /v1/models?x=%20 HTTP/1.1\r\nHost: HOST\r\n\r\n"},
		"POST":         {Request{Method: "POST", Target: "/"}, "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\n\r\n"},
		"pieces":       {Request{Method: "POST", Target: "/", Host: "model", Body: [][]byte{[]byte("a"), nil, []byte("b")}}, "POST / HTTP/1.1\r\nHost: model\r\nContent-Length: 2\r\n\r\nab"},
		"a long body":  {Request{Method: "PUT", Target: "/", Body: [][]byte{[]byte(long), []byte("y")}}, "PUT / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 102401\r\n\r\n" + long + "y"},
		"a read body":  {Request{Method: "POST", Target: "/", Reader: text("abc"), Length: 3}, "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 3\r\n\r\nabc"},
		"no more read": {Request{Method: "POST", Target: "/", Reader: text("abcd"), Length: 3}, "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 3\r\n\r\nabc"},
		"empty":        {Request{Method: "POST", Target: "/", Reader: text(""), Length: 0}, "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\n\r\n"},
		"chunks":       {Request{Method: "POST", Target: "/", Reader: text("abc"), Length: -1}, "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0003\r\nabc\r\n0\r\n\r\n"},
		"long chunks":  {Request{Method: "POST", Target: "/", Reader: text(long[:16<<10]), Length: -1}, "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n3ff8\r\n" + long[:0x3ff8] + "\r\n0008\r\nxxxxxxxx\r\n0\r\n\r\n"},
		"fields": {
			Request{Method: "GET", Target: "*", Header: Header{{"x-B", "1"}, {"X-a", "ü\t"}, {"x-b", ""}}, Upgrade: "websocket"},
			"GET * HTTP/1.1\r\nHost: HOST\r\nx-B: 1\r\nX-a: ü\t\r\nx-b: \r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		},
		"fields of the connection": {
			Request{Method: "POST", Target: "/", Header: Header{
				{"host", "x"},
				{"Connection", "close"},
				{"CONTENT-LENGTH", "9"},
				{"Transfer-Encoding", "chunked"},
				{"TE", "trailers"},
				{"Trailer", "x"},
				{"upgrade", "h2c"},
				{"Expect", "100-continue"},
				{"Keep-Alive", "1"},
				{"Proxy-Connection", "x"},
				{"X", "y"},
			}},
			"POST / HTTP/1.1\r\nHost: HOST\r\nX: y\r\nContent-Length: 0\r\n\r\n",
		},
	} {
		got := make(chan string, 1)
		e := startEngine(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
			raw := make([]byte, len(strings.ReplaceAll(tc.want, "HOST", c.LocalAddr().String())))
			_, _ = io.ReadFull(in, raw)
			_, _ = io.WriteString(c, okAnswer)
			_ = c.CloseWrite()
			rest, _ := io.ReadAll(in)
			got <- string(raw) + string(rest)
		})
		c := New(Options{})
		tc.request.Origin = e.Origin
		resp, err := c.Do(t.Context(), &tc.request)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, _ = io.ReadAll(resp)
		_ = resp.Close()
		c.Close()
		if got := strings.ReplaceAll(<-got, e.Host, "HOST"); got != tc.want {
			t.Errorf("%s: %.300q, want %.300q", name, got, tc.want)
		}
	}
}

// TestBadRequest: nothing is sent that would be read as something else.
func TestBadRequest(t *testing.T) {
	good := func() *Request { return &Request{Method: "GET", Origin: Origin{"http", "engine"}, Target: "/"} }
	for name, change := range map[string]func(r *Request){
		"method":            func(r *Request) { r.Method = "GET /\r\n" },
		"no method":         func(r *Request) { r.Method = "" },
		"CONNECT":           func(r *Request) { r.Method = "CONNECT" },
		"target":            func(r *Request) { r.Target = "/ HTTP/1.1\r\nX: y" },
		"absolute target":   func(r *Request) { r.Target = "http://other/" },
		"no target":         func(r *Request) { r.Target = "" },
		"host":              func(r *Request) { r.Host = "a\r\nb" },
		"origin":            func(r *Request) { r.Origin.Host = "a\nb" },
		"no host":           func(r *Request) { r.Origin.Host = "" },
		"a path in a host":  func(r *Request) { r.Origin.Host = "engine/x" },
		"scheme":            func(r *Request) { r.Origin.Scheme = "ftp" },
		"name of a field":   func(r *Request) { r.Header = Header{{"a b", ""}} },
		"field without one": func(r *Request) { r.Header = Header{{"", "x"}} },
		"value of a field":  func(r *Request) { r.Header = Header{{"a", "b\r\nc: d"}} },
		"NUL":               func(r *Request) { r.Header = Header{{"a", "\x00"}} },
		"upgrade":           func(r *Request) { r.Upgrade = "a\r\nb" },
	} {
		c := New(Options{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("dialed") }})
		r := good()
		change(r)
		if _, err := c.Do(t.Context(), r); !errors.Is(err, ErrRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReader: a body whose reader fails is cut, so that the server does not take it for whole, and the error
// is the reader's.
func TestReader(t *testing.T) {
	errSource := errors.New("the source failed")
	for _, length := range []int64{-1, 100} {
		got := make(chan error, 1)
		e := startEngine(t, func(_ int, _ *net.TCPConn, in *bufio.Reader) {
			req, err := http.ReadRequest(in)
			if err == nil {
				_, err = io.Copy(io.Discard, req.Body)
			}
			got <- err
		})
		c := New(Options{})
		_, err := c.Do(t.Context(), &Request{Method: "POST", Origin: e.Origin, Target: "/", Length: length, Reader: io.NopCloser(io.MultiReader(strings.NewReader("abc"), failing{errSource}))})
		var is *Error
		if !errors.As(err, &is) || !errors.Is(err, errSource) || is.Phase != Send || is.Unserved() {
			t.Errorf("length %d: %v", length, err)
		}
		if <-got == nil {
			t.Errorf("length %d: the server has a whole body", length)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
