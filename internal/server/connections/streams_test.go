package connections_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/server/connections"
	"github.com/select-service/select-service/pkg/memory"
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
		heads := memory.NewAccount(memory.Heads, 1<<20)
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

// TestStreamReset: a request whose client has reset it while its handler runs leaves nothing
// when that returns, also while the connection stays.
func TestStreamReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heads := memory.NewAccount(memory.Heads, 1<<20)
		begun, proceed := make(chan struct{}), make(chan struct{})
		set, client := multiplexed(t, connections.Limits{Total: 4, Heads: heads}, func(http.ResponseWriter, *http.Request) {
			begun <- struct{}{}
			<-proceed
		})
		get := func(ctx context.Context) (int, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://service/", nil)
			if err != nil {
				return 0, err
			}
			answer, err := client.Do(req)
			if err != nil {
				return 0, err
			}
			return answer.StatusCode, answer.Body.Close()
		}
		for range 4 {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-begun
				cancel()
			}()
			if _, err := get(ctx); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			synctest.Wait() // the server knows
			proceed <- struct{}{}
			synctest.Wait()
			if n := heads.Used(); n != 0 || set.Stats().Open != 1 {
				t.Errorf("%d bytes and %d connections", n, set.Stats().Open)
			}
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if status, err := get(t.Context()); status != http.StatusOK || err != nil {
					t.Errorf("%d, %v", status, err)
				}
			})
		}
		for range 4 {
			<-begun
		}
		close(proceed)
		all.Wait()
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

// Frames of HTTP/2 and their flags (RFC 9113).
const (
	dataFrame, headersFrame, resetFrame, settingsFrame, pingFrame = 0, 1, 3, 4, 6
	endStream, ack, endHeaders                                    = 1, 1, 4
	indexedOK                                                     = 0x88 // ":status: 200"
)

// getRoot is the head of "GET http://x/".
const getRoot = "\x82\x86\x84\x41\x01x"

// manyFields is a part of a head: as many fields of different names, of six bytes each.
func manyFields(n int) string {
	var fields strings.Builder
	for i := range n {
		fields.WriteString("\x00\x03" + string([]byte{byte('a' + i/676), byte('a' + i/26%26), byte('a' + i%26)}) + "\x00")
	}
	return fields.String()
}

// rawClient speaks HTTP/2 by the frame, and never gives a window for bodies: its readers
// take none.
type rawClient struct {
	net.Conn

	mu       sync.Mutex
	statuses map[uint32]byte // first byte of the head of each answer, by stream; indexedOK is 200
	reset    map[uint32]bool
	closed   bool
}

// dialRaw opens a connection from an address.
func (s *server) dialRaw(t *testing.T, address string) *rawClient {
	t.Helper()
	c := &rawClient{Conn: s.dial(address).Conn, statuses: make(map[uint32]byte), reset: make(map[uint32]bool)}
	go c.read()
	if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	c.send(settingsFrame, 0, 0, "\x00\x04\x00\x00\x00\x00") // INITIAL_WINDOW_SIZE 0
	return c
}

func (c *rawClient) send(kind, flags byte, stream uint32, payload string) {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	head = binary.BigEndian.AppendUint32(append(head, flags), stream)
	_, _ = io.WriteString(c, string(head)+payload) // fails if the service has closed it
}

func (c *rawClient) read() {
	for {
		head := make([]byte, 9)
		_, err := io.ReadFull(c, head)
		length := binary.BigEndian.Uint32(head) >> 8
		payload := make([]byte, length+1)
		if err == nil {
			_, err = io.ReadFull(c, payload[:length])
		}
		c.mu.Lock()
		switch stream := binary.BigEndian.Uint32(head[5:]); {
		case err != nil:
			c.closed = true
			c.mu.Unlock()
			return
		case head[3] == headersFrame:
			c.statuses[stream] = payload[0]
		case head[3] == resetFrame:
			c.reset[stream] = true
		}
		c.mu.Unlock()
	}
}

// answers is how many streams have the status 200, and another, and how many were reset.
func (c *rawClient) answers() (ok, other, reset int) {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, status := range c.statuses {
		if status == indexedOK {
			ok++
		} else {
			other++
		}
	}
	return ok, other, len(c.reset)
}

func (c *rawClient) isClosed() bool {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// TestStreamsOfAConnection: a connection has at most MaxStreams requests at a time, whatever there is room for,
// although its client does not heed that the service says so.
func TestStreamsOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, beyond = 256, 20 // see docs/start/callers.md; by itself, net/http would have 250
		running, proceed := new(atomic.Int32), make(chan struct{})
		s := serveWith(t, connections.Limits{Total: 10 * most}, func(http.ResponseWriter, *http.Request) {
			running.Add(1)
			<-proceed
		})
		c := s.dialRaw(t, "10.0.0.1")
		synctest.Wait()
		c.send(settingsFrame, ack, 0, "")
		for i := range uint32(most + beyond) {
			c.send(headersFrame, endStream|endHeaders, 2*i+1, getRoot)
			synctest.Wait()
		}
		if _, _, reset := c.answers(); running.Load() != most || reset != beyond {
			t.Errorf("%d requests run, %d are reset, want %d and %d", running.Load(), reset, most, beyond)
		}
		close(proceed)
		if ok, _, _ := c.answers(); ok != most {
			t.Errorf("%d answers, want %d", ok, most)
		}
	})
}

// TestHalfPreface: a client that begins as one of HTTP/2 does, and does not go on so, has an answer of HTTP/1 with its
// head: net/http takes the begin for a request of HTTP/1, whose protocol it calls HTTP/2.0.
func TestHalfPreface(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveText(t, connections.Limits{Total: 1}, "answer")
		c := s.dial("10.0.0.1")
		if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nI * HT"); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(c.answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "answer" || answer.Proto != "HTTP/1.1" {
			t.Errorf("%s %q, %v", answer.Proto, body, err)
		}
	})
}

// TestUnreadAnswers: requests whose answers are not read count until they are given up;
// those beyond the total are refused, although the client does not read that either.
func TestUnreadAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const total = 20
		s := serveText(t, connections.Limits{Total: total}, "answer")
		first, second := s.dialRaw(t, "10.0.0.1"), s.dialRaw(t, "10.0.0.2")
		for i := range uint32(total) {
			first.send(headersFrame, endStream|endHeaders, 2*i+1, getRoot)
			second.send(headersFrame, endStream|endHeaders, 2*i+1, getRoot)
			synctest.Wait()
		}
		ok, refused, _ := first.answers()
		more, moreRefused, _ := second.answers()
		if ok+more != total || refused+moreRefused != total {
			t.Errorf("%d are served, %d refused", ok+more, refused+moreRefused)
		}
		if st := s.set.Stats(); st.RefusedTotal != total {
			t.Errorf("%+v", st)
		}
		time.Sleep(31 * time.Second)
		if _, _, reset := first.answers(); reset != ok {
			t.Errorf("%d of %d answers are given up", reset, ok)
		}
		third := s.dialRaw(t, "10.0.0.3")
		for i := range uint32(total) {
			third.send(headersFrame, endStream|endHeaders, 2*i+1, getRoot)
			synctest.Wait()
		}
		if ok, refused, _ := third.answers(); ok != total || refused != 0 {
			t.Errorf("later: %d are served, %d refused", ok, refused)
		}
		_, _, _ = first.Close(), second.Close(), third.Close()
		synctest.Wait()
	})
}

// TestReadAnswers: answers that are read do not count, also while their connection never
// is without requests.
func TestReadAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		set, client := multiplexed(t, connections.Limits{Total: 20, PerAddress: 20}, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				<-proceed
			}
			_, _ = io.WriteString(w, "answer")
		})
		get := func(path string) {
			answer, err := client.Get("http://service" + path)
			if err != nil {
				t.Error(err)
				return
			}
			defer answer.Body.Close()
			if body, err := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK || string(body) != "answer" || err != nil {
				t.Errorf("%d %q, %v", answer.StatusCode, body, err)
			}
		}
		get("/")
		var waiting sync.WaitGroup
		waiting.Go(func() { get("/wait") })
		for range 1000 {
			get("/")
		}
		close(proceed)
		waiting.Wait()
		if st := set.Stats(); st.RefusedTotal != 0 || st.RefusedAddress != 0 || st.Open != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// TestStreamsPerAddress: requests count with the connections of their address.
func TestStreamsPerAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, connections.Limits{Total: 100, PerAddress: 4})
		first, other := s.dialRaw(t, "10.0.0.1"), s.dialRaw(t, "10.0.0.2")
		const wait = "\x82\x86\x04\x05/wait\x41\x01x"
		for i := range uint32(5) {
			first.send(headersFrame, endStream|endHeaders, 2*i+1, wait)
			synctest.Wait()
		}
		other.send(headersFrame, endStream|endHeaders, 1, getRoot)
		if ok, refused, _ := first.answers(); ok != 0 || refused != 2 {
			t.Errorf("%d are served, %d refused", ok, refused)
		}
		if got := s.dial("10.0.0.1").status(); got != 503 {
			t.Errorf("one more connection: status %d", got)
		}
		if ok, _, _ := other.answers(); ok != 1 {
			t.Error("another address is refused")
		}
		close(s.proceed)
		if ok, _, _ := first.answers(); ok != 3 {
			t.Errorf("%d are served", ok)
		}
		first.send(headersFrame, endStream|endHeaders, 99, getRoot)
		if ok, _, _ := first.answers(); ok != 4 {
			t.Error("what has ended counts")
		}
		if st := s.set.Stats(); st.RefusedAddress != 3 || st.RefusedTotal != 0 {
			t.Errorf("%+v", st)
		}
		_, _ = first.Close(), other.Close()
		synctest.Wait()
		if got := s.dial("10.0.0.1").get("/"); got != 200 {
			t.Errorf("after all were closed: status %d", got)
		}
	})
}

// postWait is the head of "POST http://x/wait".
const postWait = "\x83\x86\x04\x05/wait\x41\x01x"

// TestAwaitedStreams: requests whose bodies do not come make room for others, after a while,
// and never those whose bodies are there.
func TestAwaitedStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, connections.Limits{Total: 3})
		c := s.dialRaw(t, "10.0.0.1")
		for _, id := range []uint32{1, 3, 5} {
			c.send(headersFrame, endHeaders, id, postWait)
			synctest.Wait()
		}
		c.send(dataFrame, endStream, 3, "a body")
		synctest.Wait()
		c.send(headersFrame, endStream|endHeaders, 7, getRoot)
		if ok, refused, reset := c.answers(); ok != 0 || refused != 1 || reset != 0 {
			t.Errorf("at once: %d %d %d", ok, refused, reset)
		}
		time.Sleep(1100 * time.Millisecond)
		for _, id := range []uint32{9, 11, 13} {
			c.send(headersFrame, endStream|endHeaders, id, "\x82\x86\x04\x05/wait\x41\x01x")
			synctest.Wait()
		}
		if ok, refused, reset := c.answers(); ok != 0 || refused != 2 || reset != 2 {
			t.Errorf("later: %d %d %d", ok, refused, reset)
		}
		close(s.proceed)
		if ok, _, reset := c.answers(); ok != 3 || reset != 2 || !c.reset[1] || !c.reset[5] {
			t.Errorf("at the end: %d %v", ok, c.reset)
		}
		if st := s.set.Stats(); st.ClosedIdle != 2 || st.RefusedTotal != 2 {
			t.Errorf("%+v", st)
		}
		_ = c.Close()
	})
}

// TestAwaitingConnections: connections on which all requests await bodies make room for
// others, though they send pings, and none with another request.
func TestAwaitingConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, connections.Limits{Total: 2})
		silent, busy := s.dialRaw(t, "10.0.0.1"), s.dialRaw(t, "10.0.0.2")
		for _, c := range []*rawClient{silent, busy} {
			c.send(headersFrame, endHeaders, 1, postWait)
			synctest.Wait()
		}
		busy.send(dataFrame, endStream, 1, "a body")
		synctest.Wait()
		if got := s.dial("10.0.0.3").status(); got != 503 {
			t.Errorf("beside new requests: status %d", got)
		}
		for range 5 {
			time.Sleep(time.Second / 4)
			silent.send(pingFrame, 0, 0, "12345678")
			busy.send(pingFrame, 0, 0, "12345678")
		}
		if got := s.dial("10.0.0.3").get("/"); got != 200 {
			t.Errorf("status %d", got)
		}
		if !silent.isClosed() || busy.isClosed() {
			t.Error("the wrong one was closed")
		}
		close(s.proceed)
		if ok, _, _ := busy.answers(); ok != 1 {
			t.Error("a request in service was cut off")
		}
		_, _ = silent.Close(), busy.Close()
	})
}

// TestHeadsInService: heads count while their requests are served, by what is made of
// them and not by how long they are, over both versions of HTTP.
func TestHeadsInService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const buffers = 128 << 10 // of an HTTP/2 connection
		account := memory.NewAccount("heads", buffers+270<<10)
		s := serve(t, connections.Limits{Total: 100, Heads: account})
		c := s.dialRaw(t, "10.0.0.1")
		const wait = "\x82\x86\x04\x05/wait\x41\x01x"
		for _, id := range []uint32{1, 3, 5} { // 64 KiB each, and what the connection keeps
			c.send(headersFrame, endStream|endHeaders, id, wait+manyFields(500))
			synctest.Wait()
		}
		if used := account.Used(); used < buffers+255<<10 {
			t.Errorf("%d bytes are used", used)
		}
		c.send(headersFrame, endStream|endHeaders, 7, wait+manyFields(500))
		c.send(headersFrame, endStream|endHeaders, 9, getRoot)
		if ok, refused, _ := c.answers(); ok != 1 || refused != 1 {
			t.Errorf("%d are served, %d refused", ok, refused)
		}
		lines := strings.Repeat("a:\r\n", 300)
		old := s.dial("10.0.0.2")
		if _, err := io.WriteString(old, "GET / HTTP/1.1\r\nHost: x\r\n"+lines+"\r\n"); err != nil {
			t.Fatal(err)
		}
		if got := old.status(); got != 0 {
			t.Errorf("many lines without memory: status %d", got)
		}
		close(s.proceed)
		if ok, _, _ := c.answers(); ok != 4 {
			t.Errorf("%d are served", ok)
		}
		other := s.dialRaw(t, "10.0.0.3")
		other.send(headersFrame, endHeaders, 1, getRoot+manyFields(1800))
		if !other.isClosed() {
			t.Error("a connection keeps a head for which there is no memory")
		}
		_ = c.Close()
		synctest.Wait()
		if used := account.Used(); used != 0 {
			t.Errorf("%d bytes are left", used)
		}
	})
}

// TestLinesOfBodies: a body that comes with its head may have as many lines as it likes.
func TestLinesOfBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, connections.Limits{Total: 100, Heads: memory.NewAccount("heads", 1<<10)})
		c := s.dial("10.0.0.1")
		if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n"+strings.Repeat("1,\n", 1000)); err != nil {
			t.Fatal(err)
		}
		if got := c.status(); got != 200 {
			t.Errorf("status %d", got)
		}
	})
}

// TestLongHeadInService: the head of an HTTP/1 request counts until it has its answer.
func TestLongHeadInService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := memory.NewAccount("heads", 50<<10)
		s := serve(t, connections.Limits{Total: 100, Heads: account})
		first, second := s.dial("10.0.0.1"), s.dial("10.0.0.1")
		long := func(path string) string {
			return "GET " + path + " HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("x", 30<<10) + "\r\n\r\n"
		}
		if _, err := io.WriteString(first, long("/wait")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if used := account.Used(); used < 30<<10 {
			t.Errorf("%d bytes are used", used)
		}
		if _, err := io.WriteString(second, long("/")); err == nil {
			t.Error("a second head fits")
		}
		close(s.proceed)
		if got := first.status(); got != 200 {
			t.Errorf("status %d", got)
		}
		synctest.Wait()
		if used := account.Used(); used != 0 {
			t.Errorf("%d bytes are left", used)
		}
	})
}

// serveText is serve with an answer that has a body.
func serveText(t *testing.T, limits connections.Limits, text string) *server {
	t.Helper()
	return serveWith(t, limits, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}
