package connections_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/internal/connections"
)

// multiplexed is a server of a set, and a client that speaks HTTP/2 to it without TLS,
// over pipes. Call it in a bubble.
func multiplexed(t *testing.T, limits connections.Limits, handle http.HandlerFunc) (*connections.Set, *http.Client) {
	t.Helper()
	set, next := connections.New(limits), make(chan net.Conn)
	srv := &http.Server{Handler: handle, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	set.Configure(srv)
	go func() { _ = srv.Serve(set.Listener(pipes{next}, nil)) }()
	client := &http.Transport{Protocols: new(http.Protocols), DialContext: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		next <- theirs
		return ours, nil
	}}
	client.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(func() {
		client.CloseIdleConnections()
		close(next)
		_ = srv.Close()
		set.CloseAll()
		synctest.Wait()
	})
	return set, &http.Client{Transport: client}
}

// TestStreams: many requests go over one connection at a time; those beyond the total are
// refused, and its buffers are accounted for until it is closed.
func TestStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heads := budget.NewAccount(budget.Heads, 1<<20)
		proceed := make(chan struct{})
		set, client := multiplexed(t, connections.Limits{Total: 20, Heads: heads}, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/first" {
				<-proceed
			}
			body, _ := io.ReadAll(r.Body)
			_, _ = w.Write(body)
		})
		// Without a connection, each of the requests might open one of its own.
		answer, err := client.Get("http://service/first")
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		statuses := make(map[int]int)
		var mu sync.Mutex // of statuses
		var all sync.WaitGroup
		for range 25 {
			all.Go(func() {
				answer, err := client.Post("http://service/", "text/plain", strings.NewReader("a body"))
				if err != nil {
					t.Error(err)
					return
				}
				defer answer.Body.Close()
				body, err := io.ReadAll(answer.Body)
				if err != nil || answer.StatusCode == 200 && string(body) != "a body" {
					t.Errorf("%d %q, %v", answer.StatusCode, body, err)
				}
				mu.Lock()
				defer mu.Unlock()
				statuses[answer.StatusCode]++
			})
		}
		synctest.Wait()
		if st := set.Stats(); st.Open != 1 || st.RefusedTotal != 5 {
			t.Errorf("%+v", st)
		}
		if heads.Used() == 0 {
			t.Error("the buffers are not accounted for")
		}
		close(proceed)
		all.Wait()
		if statuses[200] != 20 || statuses[503] != 5 {
			t.Errorf("answers %v", statuses)
		}
		client.CloseIdleConnections()
		time.Sleep(2 * time.Minute)
		if n := heads.Used(); n != 0 || set.Stats().Open != 0 {
			t.Errorf("%d bytes and %d connections are left", n, set.Stats().Open)
		}
	})
}

// TestStreamReaders: the answer to a client that does not read is given up, one that is
// cut off by its handler too, and the connection goes on.
func TestStreamReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan error, 1)
		_, client := multiplexed(t, connections.Limits{Total: 10}, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/short" {
				_, _ = io.WriteString(w, "short")
				return
			}
			if r.URL.Path == "/imposed" {
				_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Second))
			}
			_, err := w.Write(make([]byte, 16<<20))
			failed <- err
		})
		for path, limit := range map[string]time.Duration{"/long": 40 * time.Second, "/imposed": 2 * time.Second} {
			begin := time.Now()
			answer, err := client.Get("http://service" + path)
			if err != nil {
				t.Fatal(err)
			}
			if err := <-failed; err == nil || time.Since(begin) > limit {
				t.Errorf("%s: %v after %v", path, err, time.Since(begin))
			}
			_ = answer.Body.Close()
			answer, err = client.Get("http://service/short")
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			if string(body) != "short" || err != nil {
				t.Errorf("after %s: %q, %v", path, body, err)
			}
		}
	})
}

// TestStreamBodies: a body that does not come has its handler's deadline.
func TestStreamBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan error, 1)
		_, client := multiplexed(t, connections.Limits{Total: 10}, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(30 * time.Second))
			_, err := io.ReadAll(r.Body)
			failed <- err
			w.WriteHeader(http.StatusBadRequest)
		})
		silent, wake := io.Pipe()
		begin := time.Now()
		answer, err := client.Post("http://service/", "text/plain", silent)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begin) != 30*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		_ = wake.Close()
	})
}
