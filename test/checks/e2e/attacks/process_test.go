package attacks

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/select-service/select-service/test/checks/e2e"
)

// fullPipe is a pipe that takes nothing more and that nobody reads.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.Close()
		_ = r.Close()
	})
	size, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	return w
}

// serveInto starts the service with a standard error of its own.
func serveInto(t *testing.T, stderr *os.File, args ...string) *e2e.Service {
	t.Helper()
	port := strconv.Itoa(e2e.FreePort(t))
	command := append([]string{e2e.Binary(t), "--listen", "127.0.0.1", "--port", port}, args...)
	s := e2e.New(t, e2e.Options{Command: command, Stderr: stderr, Address: "127.0.0.1:" + port})
	s.Run()
	return s
}

// hammer sends requests from several connections and ends the test if one fails.
func hammer(t *testing.T, s *e2e.Service, requests int) {
	t.Helper()
	const callers = 8
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range requests / callers {
				if a, err := s.Call(t.Context(), http.MethodGet, "/workers", nil); err != nil || a.Status != http.StatusOK {
					t.Errorf("GET /workers: %v, %v", a, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestFullLogPipe: standard error takes nothing. Every request is answered, at debug
// level too, where each makes a line; lines beyond the queue are counted, and SIGTERM
// ends the process.
func TestFullLogPipe(t *testing.T) {
	for _, level := range []string{"info", "debug"} {
		t.Run(level, func(t *testing.T) {
			s := serveInto(t, fullPipe(t), "--log-level", level)
			hammer(t, s, 12_000)
			if dropped := s.Metric(t, "select_service_log_lines_dropped_total"); (dropped > 0) != (level == "debug") {
				t.Errorf("%v lines were dropped", dropped)
			}
			if err := s.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			mustEnd(t, s.Process, 0)
		})
	}
}

// TestCrashIntoFullPipe: what the Go runtime itself writes to standard error does not
// block either. SIGQUIT has it write the stacks of all goroutines.
func TestCrashIntoFullPipe(t *testing.T) {
	s := serveInto(t, fullPipe(t))
	if err := s.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	mustEnd(t, s.Process, 2)
}

// TestBadStartIntoFullPipe: a configuration that is refused ends the process although
// nobody can read why.
func TestBadStartIntoFullPipe(t *testing.T) {
	p := e2e.Start(t, e2e.Options{Command: []string{e2e.Binary(t), "--nonsense"}, Stderr: fullPipe(t)})
	mustEnd(t, p, 2)
}

// TestLogReaderDies: a log collector that goes away does not take the service along.
func TestLogReaderDies(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s := serveInto(t, w, "--log-level", "debug")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close() // ours; the process has its own
	hammer(t, s, 800)
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	mustEnd(t, s.Process, 0)
}

// TestHangups: SIGHUP, again and again under load, fails no request.
func TestHangups(t *testing.T) {
	s := e2e.Serve(t, nil)
	var stopped atomic.Bool
	var answered atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !stopped.Load() {
				a, err := s.Call(t.Context(), http.MethodGet, "/health", nil)
				if err != nil || a.Status != http.StatusOK {
					t.Errorf("GET /health: %v, %v", a, err)
					return
				}
				answered.Add(1)
			}
		})
	}
	for range 100 {
		if err := s.Signal(syscall.SIGHUP); err != nil {
			t.Error(err)
			break
		}
		before := answered.Load()
		e2e.Eventually(t, "requests are answered after SIGHUP", func() error {
			if answered.Load() < before+8 && !t.Failed() {
				return fmt.Errorf("%d answers", answered.Load()-before)
			}
			return nil
		})
	}
	stopped.Store(true)
	wg.Wait()
}

// TestSecondSignal: the second SIGTERM does not wait for what the first one waits for.
func TestSecondSignal(t *testing.T) {
	// The first one gives load balancers an hour to notice.
	s := e2e.Serve(t, nil, "--proxy-port", strconv.Itoa(e2e.FreePort(t)), "--gateway-drain-delay", "1h")
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	e2e.Eventually(t, "the first signal is heeded", func() error { return logged(s.Process, `"message":"stopping"`) })
	again := time.NewTicker(50 * time.Millisecond) // the handler of the first one may not have been taken away yet
	defer again.Stop()
	ended := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		for s.Signal(syscall.SIGTERM) == nil {
			select {
			case <-again.C:
			case <-ended:
				return
			}
		}
	})
	mustEnd(t, s.Process, -1)
	close(ended)
	sending.Wait()
}

// What a dead connection has sent before it fell silent.
const (
	silent     = ""
	halfHeader = "POST /select HTTP/1.1\r\nHost: 127.0.0.1\r\nX-"
	slowBody   = "POST /select HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"
	keptAlive  = "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
)

// dial opens a connection, sends something, and lets it be until the test ends.
func dial(t *testing.T, address, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, _ = conn.Write([]byte(text)) // it may have been refused already
	return conn
}

// unread asks for 20 MB in one go.
var unread = strings.Repeat("GET /openapi.yaml HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 200)

// TestDeadConnections: thousands of connections that fell silent at every stage of a
// request do not keep the process from answering others, nor from ending.
func TestDeadConnections(t *testing.T) {
	for name, serve := range fronts {
		t.Run(name, func(t *testing.T) {
			beside(t)
			// Answers that go to nobody are under way, for as long as the proxy's operator lets them.
			endWithDead(t, serve(t, "--gateway-drain-delay", "0s", "--gateway-drain-timeout", "2s"))
		})
	}
}

// endWithDead ends the service among connections that fell silent.
func endWithDead(t *testing.T, f *front) {
	stages := []string{silent, f.head() + "X-", f.head() + "Content-Length: 100000\r\n\r\n{", keptAlive, strings.Repeat(f.request(""), 5000)}
	for i := range size(2500, 500) {
		stage := stages[i%len(stages)]
		conn := dial(t, f.address, stage)
		if stage == keptAlive {
			if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
	}
	e2e.Eventually(t, "another one has the place of a stalled body", func() error {
		if got := f.statuses(t, f.request(""), 1); len(got) != 1 || got[0] != http.StatusOK {
			return fmt.Errorf("another client gets %v", got)
		}
		return nil
	})
	if err := f.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	mustEnd(t, f.Process, 0)
}

// TestDeadClientAndSnapshot: the last snapshot does not wait for clients that are dead.
func TestDeadClientAndSnapshot(t *testing.T) {
	data := t.TempDir()
	s := e2e.Serve(t, nil, "--data-dir", data)
	for tries := 1; ; tries++ {
		before := snapshotBeforeCut(t, s, data)
		const tick = 100 * time.Millisecond // what comes right after the cut may have a time before it
		if before >= tick {
			return
		}
		if tries == 3 { // both times come at once where the machine stands still meanwhile
			t.Fatalf("written %v before the client was cut off", before)
		}
		s.Run()
	}
}

// snapshotBeforeCut stops the service beside a dead client, and returns how long the snapshot was written before that was cut off.
func snapshotBeforeCut(t *testing.T, s *e2e.Service, data string) time.Duration {
	t.Helper()
	conn := dial(t, s.Address(), slowBody)
	e2e.Eventually(t, "request in flight", func() error { // besides that for the metrics
		if n := s.Metric(t, `select_service_http_requests_in_flight{listener="selection"}`); n < 2 {
			return fmt.Errorf("%d requests in flight", n)
		}
		return nil
	})
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, conn)
	cut := time.Now()
	mustEnd(t, s.Process, 0)
	written, err := os.Stat(filepath.Join(data, "snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	return cut.Sub(written.ModTime())
}

// TestDeadConnectionsTLS: the same behind TLS, where an end has to be said to each.
func TestDeadConnectionsTLS(t *testing.T) {
	s := serveTLS(t, false)
	for _, stage := range []string{silent, halfHeader, slowBody, keptAlive, unread} {
		for range 100 {
			conn, err := tls.Dial("tcp", s.Address(), &tls.Config{RootCAs: s.authority.Pool()})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.NetConn().Close()
			if _, err := conn.Write([]byte(stage)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.health(t, s.client()); err != nil {
		t.Error(err)
	}
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	mustEnd(t, s.Process, 0)
}
