package connections_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/server/connections"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/checks/e2e"
)

// pipes is a listener whose connections are pipes in memory.
type pipes struct{ next chan net.Conn }

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p.next
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// from is a connection from an address.
type from struct {
	net.Conn
	address net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.address }

// server is an HTTP server over pipes; it answers /wait when it is told to.
type server struct {
	set     *connections.Set
	next    chan net.Conn
	proceed chan struct{}
}

func serve(t *testing.T, limits connections.Limits) *server {
	t.Helper()
	proceed := make(chan struct{})
	s := serveWith(t, limits, func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			conn := http.NewResponseController(w)
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			_ = conn.SetReadDeadline(time.Time{})
		}
		if r.URL.Path == "/wait" {
			select {
			case <-proceed:
			case <-r.Context().Done():
			}
		}
	})
	s.proceed = proceed
	return s
}

// serveWith is serve with another handler.
func serveWith(t *testing.T, limits connections.Limits, handle http.HandlerFunc) *server {
	t.Helper()
	s := &server{set: connections.New(limits), next: make(chan net.Conn)}
	srv := &http.Server{Handler: handle}
	s.set.Configure(srv)
	go func() { _ = srv.Serve(s.set.Listener(pipes{s.next}, nil)) }()
	t.Cleanup(func() {
		close(s.next)
		_ = srv.Close()
		s.set.CloseAll()
		synctest.Wait()
	})
	return s
}

// dial opens a connection from an address.
func (s *server) dial(address string) *client {
	ours, theirs := net.Pipe()
	s.next <- from{theirs, &net.TCPAddr{IP: net.ParseIP(address), Port: 1}}
	return &client{ours, bufio.NewReader(ours)}
}

type client struct {
	net.Conn
	answers *bufio.Reader
}

// get sends a request; the answer's status is 0 if the connection is closed.
func (c *client) get(path string) int {
	_ = c.send(path)
	return c.status()
}

func (c *client) send(path string) error {
	_, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
	return err
}

func (c *client) status() int {
	resp, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestTotal: beyond the limit the longest idle connection makes room, one that has
// fallen silent too, and one in a request never; then the new one is refused.
func TestTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, connections.Limits{Total: 3})
		busy := s.dial("10.0.0.1")
		if err := busy.send("/wait"); err != nil {
			t.Fatal(err)
		}
		old, young := s.dial("10.0.0.1"), s.dial("10.0.0.1")
		if old.get("/") != 200 {
			t.Fatal("not answered")
		}
		time.Sleep(time.Second)
		if young.get("/") != 200 {
			t.Fatal("not answered")
		}
		synctest.Wait()
		silent := s.dial("10.0.0.1") // in place of old
		synctest.Wait()
		if old.get("/") != 0 || young.get("/") != 200 {
			t.Error("it was not the longest idle that was closed")
		}
		time.Sleep(time.Second / 2)
		next := s.dial("10.0.0.1") // in place of young: silent is too new
		if err := next.send("/wait"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if young.get("/") != 0 {
			t.Error("the idle one is open")
		}
		if got := s.dial("10.0.0.1").status(); got != 503 {
			t.Errorf("one too many: status %d", got)
		}
		time.Sleep(time.Second)
		last := s.dial("10.0.0.1") // in place of silent
		if err := last.send("/wait"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if silent.get("/") != 0 {
			t.Error("the silent one is open")
		}
		if st := s.set.Stats(); st != (connections.Stats{Open: 3, RefusedTotal: 1, ClosedIdle: 3}) {
			t.Errorf("%+v", st)
		}
		close(s.proceed)
		for _, c := range []*client{busy, next, last} {
			if c.status() != 200 {
				t.Error("a request was cut off")
			}
			_ = c.Close()
		}
		synctest.Wait()
		if st := s.set.Stats(); st.Open != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// TestAwaitedBodies: who holds connections with requests whose bodies do not come
// keeps nobody out, however the bytes drip; once a body is there, its request stays.
func TestAwaitedBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, connections.Limits{Total: 2})
		whole, dripping := s.dial("10.0.0.1"), s.dial("10.0.0.1")
		const head = "POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
		for c, text := range map[*client]string{whole: head + "123456789", dripping: head + "1"} {
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if got := s.dial("10.0.0.2").status(); got != 503 {
			t.Errorf("beside two new requests: status %d", got)
		}
		for range 5 {
			time.Sleep(time.Second / 4)
			if _, err := io.WriteString(dripping, "2"); err != nil {
				t.Fatal(err)
			}
		}
		next := s.dial("10.0.0.2") // in place of dripping
		if got := next.get("/"); got != 200 {
			t.Errorf("status %d", got)
		}
		if dripping.status() != 0 {
			t.Error("a request without its body is still there")
		}
		close(s.proceed)
		if whole.status() != 200 {
			t.Error("a request in service was cut off")
		}
	})
}

// TestPerAddress: an address has its own bound, an IPv6 host with all its addresses;
// what is closed counts no more.
func TestPerAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, connections.Limits{Total: 100, PerAddress: 2})
		for address, other := range map[string]string{"10.0.0.1": "10.0.0.2", "2001:db8::1": "2001:db8:0:1::1", "::ffff:10.1.0.1": "10.1.0.2"} {
			first, second := s.dial(address), s.dial(address)
			again := map[string]string{"2001:db8::1": "2001:db8::2", "::ffff:10.1.0.1": "10.1.0.1"}[address]
			if again == "" {
				again = address
			}
			if got := s.dial(again).status(); got != 503 {
				t.Errorf("%s: status %d of the third", again, got)
			}
			if got := s.dial(other).get("/"); got != 200 {
				t.Errorf("%s: status %d", other, got)
			}
			_ = first.Close()
			synctest.Wait()
			if got := s.dial(address).get("/"); got != 200 {
				t.Errorf("%s: status %d after one was closed", address, got)
			}
			_ = second.Close()
		}
		if st := s.set.Stats(); st.RefusedAddress != 3 || st.RefusedTotal != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// TestReaders: an answer is broken off when its reader takes nothing, and goes on for
// as long as it takes something; a deadline of the handler's own is kept.
func TestReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := connections.New(connections.Limits{Total: 10})
		next := make(chan net.Conn, 1)
		ln := set.Listener(pipes{next}, nil)
		open := func() (server, reader net.Conn) {
			reader, theirs := net.Pipe()
			next <- theirs
			server, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			return server, reader
		}
		answer := make([]byte, 4<<20)

		server, reader := open()
		begin := time.Now()
		if _, err := server.Write(answer); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("nobody reads: %v", err)
		}
		if took := time.Since(begin); took < 30*time.Second || took > 40*time.Second {
			t.Errorf("nobody reads: broken off after %v", took)
		}
		_, _ = server.Close(), reader.Close()

		server, reader = open()
		var read atomic.Int64
		ended := make(chan struct{})
		go func(reader net.Conn) {
			defer close(ended)
			for buffer := make([]byte, 64<<10); ; time.Sleep(5 * time.Second) {
				n, err := io.ReadFull(reader, buffer)
				read.Add(int64(n))
				if err != nil {
					return
				}
			}
		}(reader)
		begin = time.Now()
		if n, err := server.Write(answer); n != len(answer) || err != nil {
			t.Errorf("a slow reader: %d, %v", n, err)
		}
		took := time.Since(begin)
		_, _ = server.Close(), reader.Close()
		<-ended
		if took < 5*time.Minute || read.Load() != int64(len(answer)) {
			t.Errorf("a slow reader has %d bytes after %v", read.Load(), took)
		}

		server, reader = open()
		if err := server.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		begin = time.Now()
		if _, err := server.Write(answer); err == nil || time.Since(begin) > time.Second {
			t.Errorf("a deadline of a second: %v after %v", err, time.Since(begin))
		}
		if err := server.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		begin = time.Now()
		if _, err := server.Write(answer); err == nil || time.Since(begin) > 40*time.Second {
			t.Errorf("no deadline of its own any more: %v after %v", err, time.Since(begin))
		}
		_, _ = server.Close(), reader.Close()
	})
}

// interrupted is a connection that calls during while its write deadline is set for the
// first time.
type interrupted struct {
	net.Conn
	called atomic.Bool
	during func()
}

func (i *interrupted) SetWriteDeadline(t time.Time) error {
	if i.called.CompareAndSwap(false, true) {
		i.during()
	}
	return i.Conn.SetWriteDeadline(t)
}

// TestCutOffDuringWrite: a reader who is cut off while the connection moves the write
// deadline by itself stays cut off.
func TestCutOffDuringWrite(t *testing.T) {
	reader, theirs := net.Pipe()
	defer reader.Close()
	raw, next, cutOff := &interrupted{Conn: theirs}, make(chan net.Conn, 1), make(chan struct{})
	next <- raw
	server, err := connections.New(connections.Limits{Total: 1}).Listener(pipes{next}, nil).Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	raw.during = func() {
		go func() {
			defer close(cutOff)
			_ = server.SetWriteDeadline(time.Unix(1, 0))
		}()
		for range 1000 { // time for the other one, who may have to wait for this one
			select {
			case <-cutOff:
				return
			default:
				runtime.Gosched()
			}
		}
	}
	if _, err := server.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	<-cutOff
}

// TestReadDeadlines: a read ends when the deadline that was set last has come, and at
// no other time, however far ahead it is and if it is moved while the read waits.
func TestReadDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := make(chan net.Conn, 1)
		ln := connections.New(connections.Limits{Total: 1}).Listener(pipes{next}, nil)
		client, theirs := net.Pipe()
		next <- theirs
		server, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		defer client.Close()
		set := func(after time.Duration) {
			var at time.Time
			if after != 0 {
				at = time.Now().Add(after)
			}
			if err := server.SetReadDeadline(at); err != nil {
				t.Error(err)
			}
		}
		const never = 0
		for _, test := range []struct {
			name   string
			before []time.Duration // deadlines from now; never clears
			while  []time.Duration // the same, a second after the read has begun
			ends   time.Duration   // with the deadline; never: with a byte after five minutes
		}{
			{name: "none", before: []time.Duration{never}},
			{name: "near", before: []time.Duration{time.Second}, ends: time.Second},
			{name: "far", before: []time.Duration{time.Minute}, ends: time.Minute},
			{name: "cleared", before: []time.Duration{2 * time.Second, never}},
			{name: "later", before: []time.Duration{2 * time.Second, never, time.Minute}, ends: time.Minute},
			{name: "earlier", before: []time.Duration{time.Minute, 2 * time.Second}, ends: 2 * time.Second},
			{name: "over, then cleared", before: []time.Duration{-time.Second, never}},
			{name: "long over, then cleared", before: []time.Duration{-time.Hour, never}},
			{name: "over, cleared, then far", before: []time.Duration{-time.Second, never, time.Minute}, ends: time.Minute},
			{name: "over, then far", before: []time.Duration{-time.Second, time.Minute}, ends: time.Minute},
			{name: "later meanwhile", before: []time.Duration{3 * time.Second}, while: []time.Duration{time.Minute}, ends: time.Minute + time.Second},
			{name: "earlier meanwhile", before: []time.Duration{time.Minute}, while: []time.Duration{8 * time.Second}, ends: 9 * time.Second},
			{name: "over, cleared, then over meanwhile", before: []time.Duration{-time.Second, never}, while: []time.Duration{-time.Second}, ends: time.Second},
			{name: "over meanwhile", before: []time.Duration{time.Minute}, while: []time.Duration{-time.Second}, ends: time.Second},
			{name: "cleared meanwhile", before: []time.Duration{3 * time.Second}, while: []time.Duration{never}},
		} {
			for _, after := range test.before {
				set(after)
			}
			begin, done := time.Now(), make(chan struct{})
			go func() {
				defer close(done)
				time.Sleep(time.Second)
				for _, after := range test.while {
					set(after)
				}
				if test.ends == never {
					time.Sleep(5 * time.Minute)
					_, _ = client.Write([]byte{1})
				}
			}()
			_, err := server.Read(make([]byte, 1))
			switch took := time.Since(begin); {
			case test.ends == never && err != nil:
				t.Errorf("%s: %v after %v", test.name, err, took)
			case test.ends != never && (!errors.Is(err, os.ErrDeadlineExceeded) || took != test.ends):
				t.Errorf("%s: %v after %v, want it after %v", test.name, err, took, test.ends)
			}
			<-done
		}
	})
}

// TestCloseAllTLS: TLS clients that read nothing do not hold up the end, in which
// http.Server would wait 5 s for each of them.
func TestCloseAllTLS(t *testing.T) {
	authority := e2e.NewAuthority(t)
	cert := authority.Issue(t, "server", time.Now().Add(time.Hour)).Load(t)
	set := connections.New(connections.Limits{Total: 1000})
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var blocked atomic.Int64
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		blocked.Add(1)
		for {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<20)); err != nil {
				return
			}
		}
	})}
	set.Configure(srv)
	served := make(chan error, 1)
	go func() {
		served <- srv.Serve(set.Listener(ln, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}))
	}()
	const clients = 20
	for range clients {
		conn, err := tls.Dial("tcp", ln.Addr().String(), &tls.Config{RootCAs: authority.Pool()})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	e2e.Eventually(t, "all requests are being answered", func() error {
		if blocked.Load() < clients {
			return errors.New("not yet")
		}
		return nil
	})
	set.CloseAll()
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	e2e.Eventually(t, "no connection is open", func() error {
		if set.Stats().Open != 0 {
			return errors.New("not yet")
		}
		return nil
	})
}

// TestHeads: long heads share an account; what does not fit ends the connection, and
// what is complete or closed is given back. Short heads need none.
func TestHeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := memory.NewAccount("heads", 32<<10)
		s := serve(t, connections.Limits{Total: 100, Heads: account})
		head := func(c *client, bytes int) error {
			_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nX-Long: "+strings.Repeat("x", bytes))
			return err
		}
		first, second, short := s.dial("10.0.0.1"), s.dial("10.0.0.1"), s.dial("10.0.0.1")
		if err := head(first, 30<<10); err != nil {
			t.Fatal(err)
		}
		if used := account.Used(); used < 20<<10 || used > 32<<10 {
			t.Errorf("%d bytes are used", used)
		}
		if err := head(second, 30<<10); err == nil {
			t.Error("a second long head fits")
		}
		synctest.Wait()
		if account.Refused() == 0 {
			t.Error("the refusal is not counted")
		}
		if got := short.get("/"); got != 200 {
			t.Errorf("a short head: status %d", got)
		}
		if _, err := io.WriteString(first, "\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if got := first.status(); got != 200 {
			t.Errorf("a long head: status %d", got)
		}
		synctest.Wait()
		if used := account.Used(); used != 0 {
			t.Errorf("%d bytes are used after the request", used)
		}
		if err := head(first, 20<<10); err != nil {
			t.Fatal(err)
		}
		_ = first.Close()
		synctest.Wait()
		if used := account.Used(); used != 0 {
			t.Errorf("%d bytes are used after the connection", used)
		}
	})
}

// TestCounted: connections of another server than net/http's count, and are not closed to make
// room for others unless they fall silent in a handshake.
func TestCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := memory.NewAccount("heads", 1)
		set := connections.New(connections.Limits{Total: 1, Heads: account})
		next := make(chan net.Conn, 1)
		ln := set.Counted(pipes{next})
		dial := func() net.Conn {
			ours, theirs := net.Pipe()
			next <- theirs
			return ours
		}
		first := dial()
		served, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		deadline := func(at time.Time) {
			if err := served.SetDeadline(at); err != nil {
				t.Fatal(err)
			}
		}
		deadline(time.Now().Add(10 * time.Second))
		go func() { _, _ = first.Write(make([]byte, 64<<10)) }()
		if _, err := io.ReadFull(served, make([]byte, 64<<10)); err != nil || account.Used() > 0 {
			t.Errorf("a long handshake: %v, %d bytes of heads", err, account.Used())
		}
		deadline(time.Time{})
		time.Sleep(time.Hour)

		second := dial()
		accepted := make(chan net.Conn, 1)
		go func() {
			c, _ := ln.Accept()
			accepted <- c
		}()
		if text, err := io.ReadAll(second); err != nil || len(text) > 0 {
			t.Errorf("one too many: %q, %v", text, err)
		}
		deadline(time.Now().Add(10 * time.Second))
		time.Sleep(2 * time.Second)
		third := dial()
		if c := <-accepted; c == nil {
			t.Error("a silent handshake keeps others out")
		} else {
			_ = c.Close()
		}
		if _, err := first.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the silent one: %v", err)
		}
		_ = served.Close()
		_ = third.Close()
		if st := set.Stats(); st != (connections.Stats{RefusedTotal: 1, ClosedIdle: 1}) {
			t.Errorf("%+v", st)
		}
	})
}
