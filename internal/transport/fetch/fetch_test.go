package fetch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/select-service/select-service/internal/transport/fetch"
	"github.com/select-service/select-service/pkg/recovery"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// idle is of fake time: a slow machine is no silence of the other side.
const idle = time.Second

// pipes are the connections to a server, in memory: unlike those of sockets their reads
// and writes let fake time pass.
type pipes struct {
	coming chan net.Conn
	closed chan struct{}
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.coming <- theirs:
		return ours, nil
	case <-p.closed:
	case <-ctx.Done():
	}
	return nil, net.ErrClosed
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.coming:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// replica is the host of what serve serves.
const replica = "replica"

// serve returns a client of a server that has the handler, and the server's URL. It is
// for tests within a bubble of synctest.
func serve(t *testing.T, handler http.HandlerFunc) (*fetch.Client, string) {
	t.Helper()
	p := &pipes{coming: make(chan net.Conn), closed: make(chan struct{})}
	s := &http.Server{Handler: handler}
	ended := make(chan error)
	go func() { ended <- s.Serve(p) }()
	c := fetch.New(idle, fetch.Identity{})
	c.DialWith(p.dial)
	t.Cleanup(func() {
		c.Close()
		_ = s.Close() // of connections that tests leave open
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return c, "http://" + replica
}

// pause waits, or ends the handler when its client is gone.
func pause(r *http.Request, d time.Duration) {
	select {
	case <-r.Context().Done():
	case <-time.After(d):
	}
}

func send(w http.ResponseWriter, text string) {
	_, _ = io.WriteString(w, text) // a client that is gone is the test's wish
	_ = http.NewResponseController(w).Flush()
}

// An answer may take as long as it likes, as long as something comes.
func TestSlowButSteady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pieces = 15
		c, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			pause(r, idle-1)
			for range pieces {
				send(w, "x")
				pause(r, idle-1)
			}
		})
		begin := time.Now()
		body, err := c.Get(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = body.Close() }()
		got, err := io.ReadAll(body)
		if err != nil || len(got) != pieces {
			t.Errorf("%d of %d bytes, %v", len(got), pieces, err)
		}
		if took := time.Since(begin); took != (pieces+1)*(idle-1) {
			t.Errorf("took %v", took)
		}
	})
}

// A reader that takes its time is not the other side's silence.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(bytes.Repeat([]byte("x"), 1<<20))
		})
		body, err := c.Get(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = body.Close() }()
		if _, err := io.ReadFull(body, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * idle)
		if n, err := io.Copy(io.Discard, body); err != nil || n != 1<<20-10 {
			t.Errorf("%d bytes after a pause, %v", n, err)
		}
	})
}

func TestStalled(t *testing.T) {
	for name, before := range map[string]string{"before the answer": "", "in the answer": "begin"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
					if before != "" {
						send(w, before)
					}
					pause(r, time.Minute)
				})
				begin := time.Now()
				body, err := c.Get(t.Context(), url)
				if err == nil {
					var got []byte
					got, err = io.ReadAll(body)
					if string(got) != before {
						t.Errorf("read %q, want %q", got, before)
					}
					_ = body.Close()
				}
				if !errors.Is(err, fetch.ErrIdle) {
					t.Errorf("error %v, want ErrIdle", err)
				}
				if took := time.Since(begin); took != idle {
					t.Errorf("gave up after %v, idle time is %v", took, idle)
				}
			})
		})
	}
}

func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			send(w, "begin")
			pause(r, time.Minute)
		})
		ctx, cancel := context.WithCancel(t.Context())
		body, err := c.Get(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = body.Close() }()
		cancel()
		if _, err := io.ReadAll(body); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want context.Canceled", err)
		}
		if _, err := c.Get(ctx, url); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want context.Canceled", err)
		}
	})
}

// An answer that breaks off is not a short one.
func TestCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			send(w, "begin")
			panic(http.ErrAbortHandler)
		})
		body, err := c.Get(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = body.Close() }()
		if got, err := io.ReadAll(body); err == nil || string(got) != "begin" {
			t.Errorf("read %q, %v; want an error", got, err)
		}
	})
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/long":
				w.WriteHeader(http.StatusServiceUnavailable)
				send(w, strings.Repeat("é", 2000))
			case "/stalled":
				w.WriteHeader(http.StatusTeapot)
				send(w, "short")
				pause(r, time.Minute)
			default:
				w.WriteHeader(http.StatusNotModified)
			}
		})
		tests := map[string]fetch.StatusError{
			"/long":    {Code: 503, Excerpt: strings.Repeat("é", 256)},
			"/stalled": {Code: 418, Excerpt: "short"},
			"/none":    {Code: 304},
		}
		for path, want := range tests {
			want.URL = url + path
			_, err := c.Get(t.Context(), url+path)
			var got *fetch.StatusError
			if !errors.As(err, &got) || *got != want {
				t.Errorf("%s: %v, want %v", path, err, &want)
			}
		}
		for _, bad := range []string{"", "://", "ftp://host/"} {
			if _, err := c.Get(t.Context(), bad); err == nil {
				t.Errorf("Get(%q) succeeded", bad)
			}
		}
	})
}

func TestRedirects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			to := map[string]string{"/moved": "/here", "/away": "http://elsewhere/", "/round": "/round"}[r.URL.Path]
			if to == "" {
				send(w, "here")
				return
			}
			http.Redirect(w, r, to, http.StatusFound)
		})
		body, err := c.Get(t.Context(), url+"/moved")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = body.Close() }()
		if err := iotest.TestReader(body, []byte("here")); err != nil {
			t.Error(err)
		}
		for _, path := range []string{"/away", "/round"} {
			if _, err := c.Get(t.Context(), url+path); err == nil {
				t.Errorf("%s was followed", path)
			}
		}
	})
}

func TestDump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/absent" {
				w.Header().Set(recovery.RecoveringHeader, r.URL.Path[1:])
			}
			send(w, r.Header.Get("User-Agent"))
		})
		for path, want := range map[string]bool{"/true": true, "/false": false, "/absent": false} {
			body, recovering, err := c.GetDump(t.Context(), url+path)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(body)
			_ = body.Close()
			if recovering != want || string(got) != "select-service" || err != nil {
				t.Errorf("%s: recovering %v, want %v; agent %q, %v", path, recovering, want, got, err)
			}
		}
	})
}

// One replica is asked for a few things at a time, the others wait.
func TestConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound = 8
		c, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			send(w, "begin")
			pause(r, time.Minute)
		})
		for i := range bound {
			body, err := c.Get(t.Context(), fmt.Sprint(url, "/", i))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = body.Close() }()
		}
		if _, err := c.Get(t.Context(), url); !errors.Is(err, fetch.ErrIdle) {
			t.Errorf("connection %d: %v, want ErrIdle", bound+1, err)
		}
	})
}

// The error of a peer that is not there says that, and nothing of a request that
// somebody ended.
func TestConnectionRefused(t *testing.T) {
	c := fetch.New(time.Minute, fetch.Identity{})
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, bad := range []string{gone.URL, "ftp" + strings.TrimPrefix(gone.URL, "http")} {
		_, err := c.Get(t.Context(), bad)
		if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, fetch.ErrIdle) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
