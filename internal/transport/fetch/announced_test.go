package fetch_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/transport/fetch"
)

// An announced URL is read from the replica's host or from one that the operator
// lists, and nowhere else: what it names is not even connected to.
func TestAnnouncedHost(t *testing.T) {
	t.Parallel()
	var hits atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { hits.Add(1); send(w, "x") }))
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, host string
		listed     []string
		want       error
	}{
		{"127.0.0.1", "127.0.0.1", nil, nil},
		{"localhost", "127.0.0.1", nil, nil},
		{"127.0.0.1", "localhost", nil, nil},
		{"127.0.0.1", "127.0.0.2", nil, fetch.ErrForeignHost},
		{"127.0.0.1", "127.0.0.2", []string{"127.0.0.1"}, nil},
		{"localhost", "127.0.0.2", nil, fetch.ErrForeignHost},
	} {
		c := fetch.New(time.Minute, fetch.Identity{Hosts: tt.listed})
		before := hits.Load()
		body, err := c.GetAnnounced(t.Context(), "http://"+net.JoinHostPort(tt.name, port), tt.host)
		if body != nil {
			_ = body.Close()
		}
		c.Close()
		if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
			t.Errorf("%s of a replica at %s: %v, want %v", tt.name, tt.host, err, tt.want)
		}
		if got := hits.Load() - before; (got == 1) != (tt.want == nil) {
			t.Errorf("%s of a replica at %s: asked %d times", tt.name, tt.host, got)
		}
	}
}

// Where a policy connects to hosts, it is asked about those that the operator has not named, by name and
// address, and nobody else connects to them.
func TestDial(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { send(w, "x") }))
	t.Cleanup(s.Close)
	refused := errors.New("not allowed")
	var asked []string
	c := fetch.New(time.Minute, fetch.Identity{Hosts: []string{"127.0.0.1"}, Dial: func(_ context.Context, _, address string) (net.Conn, error) {
		asked = append(asked, address)
		return nil, refused
	}})
	t.Cleanup(c.Close)
	body, err := c.Get(t.Context(), s.URL)
	if err != nil {
		t.Fatalf("a named host: %v", err)
	}
	_ = body.Close()
	elsewhere := strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	if _, _, err := c.GetDump(t.Context(), elsewhere); !errors.Is(err, refused) || len(asked) != 1 || "http://"+asked[0] != elsewhere {
		t.Errorf("%s: %v; asked about %v", elsewhere, err, asked)
	}
}

// A replica cannot send its readers elsewhere.
func TestAnnouncedRedirect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/elsewhere" {
				t.Error("a redirect was followed")
			}
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		})
		if _, err := c.GetAnnounced(t.Context(), at, replica); !errors.Is(err, fetch.ErrRedirect) {
			t.Errorf("%v", err)
		}
	})
}

// Who drips is cut off, although something comes all the time.
func TestAnnouncedDripping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := serve(t, func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				send(w, "x")
				pause(r, idle/10)
			}
		})
		body, err := c.GetAnnounced(t.Context(), at, replica)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = body.Close() }()
		if _, err := io.Copy(io.Discard, body); !errors.Is(err, fetch.ErrSlow) {
			t.Errorf("%v", err)
		}
	})
}

// An answer that comes fast enough may be of any length.
func TestAnnouncedLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 4 << 20
		c, at := serve(t, func(w http.ResponseWriter, _ *http.Request) { send(w, strings.Repeat("x", size)) })
		body, err := c.GetAnnounced(t.Context(), at, replica)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = body.Close() }()
		if n, err := io.Copy(io.Discard, body); n != size || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
}
