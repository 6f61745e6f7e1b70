package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

const (
	streams   = 1000                   // that are read at once, and as many that are read slowly
	tokenGap  = 500 * time.Millisecond // between the tokens of a stream
	watched   = 10 * time.Second       // how long streams are watched
	perStream = 40 << 10               // bytes of the service for an open stream
	rounds    = 3                      // in which the delays are judged
)

// ticker is an engine whose streams have a token with the time at which it was sent, each half a second, until
// their clients leave.
func ticker(t *testing.T) (address string, open *atomic.Int64) {
	t.Helper()
	open = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/tokenize" {
			_, _ = io.WriteString(w, `{"count":3,"max_model_len":4096,"tokens":[1,2,3]}`)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		open.Add(1)
		defer open.Add(-1)
		w.Header().Set("Content-Type", "text/event-stream")
		tick := time.NewTicker(tokenGap)
		defer tick.Stop()
		for {
			if _, err := fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"a token\"}}],\"sent\":%d}\n\n", time.Now().UnixNano()); err != nil {
				return
			}
			if http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), open
}

// readers are clients of streams.
type readers struct {
	running sync.WaitGroup
	stop    context.CancelFunc

	mu     sync.Mutex // guards the rest
	delays []time.Duration
	failed error
}

// read opens n streams and reads them, slowly or at once, until the end of ctx or stop.
func (b *bed) read(ctx context.Context, n int, slow bool) *readers {
	rs := &readers{}
	ctx, rs.stop = context.WithCancel(ctx)
	turns := make(chan struct{}, 32) // connections that are made at a time
	for range n {
		rs.running.Go(func() {
			turns <- struct{}{}
			c, err := b.openStream(ctx, slow)
			<-turns
			if err == nil {
				unwatch := context.AfterFunc(ctx, func() { _ = c.Close() })
				err = rs.follow(ctx, c, slow)
				unwatch()
				_ = c.Close()
			}
			if err != nil && ctx.Err() == nil {
				rs.mu.Lock()
				defer rs.mu.Unlock()
				rs.failed = err
			}
		})
	}
	return rs
}

func (b *bed) openStream(ctx context.Context, slow bool) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", b.proxy)
	if err != nil {
		return nil, err
	}
	if slow {
		_ = c.(*net.TCPConn).SetReadBuffer(2 << 10)
	}
	const body = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`
	_, err = fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: proxy\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	return c, err
}

// follow reads a stream: lines at once, or eight bytes a second.
func (rs *readers) follow(ctx context.Context, c net.Conn, slow bool) error {
	if slow {
		for buf := make([]byte, 8); ; {
			if _, err := io.ReadFull(c, buf); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Second):
			}
		}
	}
	for in := bufio.NewReader(c); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		if strings.HasPrefix(line, "HTTP/1.1 ") && !strings.HasPrefix(line, "HTTP/1.1 200 ") {
			return fmt.Errorf("answer %q", line)
		}
		if _, sent, ok := strings.Cut(line, `"sent":`); ok {
			nano, err := strconv.ParseInt(strings.TrimRight(sent, "}\n"), 10, 64)
			if err != nil {
				return err
			}
			late := time.Since(time.Unix(0, nano))
			rs.mu.Lock()
			rs.delays = append(rs.delays, late)
			rs.mu.Unlock()
		}
	}
}

// p99 watches the streams for a while and returns the 99th percentile of their tokens' delays.
func (rs *readers) p99(t *testing.T) time.Duration {
	t.Helper()
	rs.mu.Lock()
	rs.delays = nil
	rs.mu.Unlock()
	time.Sleep(watched)
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.failed != nil {
		t.Fatal(rs.failed)
	}
	if len(rs.delays) == 0 {
		t.Fatal("no token came")
	}
	slices.Sort(rs.delays)
	return rs.delays[len(rs.delays)*99/100]
}

// TestStreams: beside a thousand clients that hardly read, a thousand others get their tokens as without them; the
// memory of a stream is bounded, and nothing stays.
func TestStreams(t *testing.T) {
	if !e2e.Alone() {
		t.Skipf("measures memory and delays: make test-proxy sets %s", e2e.AloneEnv)
	}
	address, open := ticker(t)
	debug := e2e.FreePort(t)
	b := lay(t, &engine{address: address}, []string{"http://" + address},
		"--gateway-max-streams", "4096", "--max-connections", "8192", "--max-connections-per-address", "8192", "--debug-listen", fmt.Sprintf("127.0.0.1:%d", debug))
	before := b.use(t)
	fault := ""
	for round := range rounds {
		held := b.At(debug).InUse(t) // what has ended is remembered too
		fast := b.read(t.Context(), streams, false)
		awaitOpen(t, open, streams)
		without := fast.p99(t)
		slow := b.read(t.Context(), streams, true)
		awaitOpen(t, open, 2*streams)
		with := fast.p99(t)
		each := (b.At(debug).InUse(t) - held) / (2 * streams)
		t.Logf("round %d: p99 of a token's delay %v without slow readers, %v with them; %d bytes for each stream", round+1, without, with, each)
		slow.stop()
		fast.stop()
		slow.running.Wait()
		fast.running.Wait()
		awaitOpen(t, open, 0)
		if each > perStream {
			t.Errorf("%d bytes for each stream, more than %d", each, perStream)
		}
		if slow.failed != nil {
			t.Error(slow.failed)
		}
		if with <= 2*without {
			fault = ""
			break
		}
		fault = fmt.Sprintf("p99 of a token's delay is %v beside slow readers, %v without", with, without)
	}
	if fault != "" {
		t.Error(fault)
	}
	b.isIdle(t, before)
}

// awaitOpen waits until the engine has as many streams.
func awaitOpen(t *testing.T, open *atomic.Int64, want int) {
	t.Helper()
	e2e.Eventually(t, fmt.Sprint(want, " streams"), func() error {
		if n := open.Load(); int(n) != want {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
}
