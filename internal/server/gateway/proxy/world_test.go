package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/select-service/select-service/internal/engines/routes"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/connections"
	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/proxy"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a proxy over a service; the test is the clients and the engines.
type world struct {
	*servicetest.World
	server  *proxy.Server
	gateway *gateway.Gateway
	metrics *counts.Gateway
	proxied *counts.Proxied
	log     *servicetest.Log
	address string
	stop    func(delay, timeout time.Duration) // ends the server; further calls do nothing
}

// settings are those of the gateway, of the proxy and of its connections.
type settings struct {
	gateway.Config
	Proxy  proxy.Config
	Limits connections.Limits
	Wrap   func(net.Conn) net.Conn // of accepted connections
	// SessionTTL is the lifetime of sessions; 0: they are off.
	SessionTTL time.Duration
}

// wrapping is a listener whose connections are wrapped.
type wrapping struct {
	net.Listener
	wrap func(net.Conn) net.Conn
}

func (w wrapping) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return w.wrap(c), nil
}

// start runs a proxy until the end of the test.
func start(t testing.TB, changes ...func(*settings)) *world {
	t.Helper()
	w := &world{metrics: counts.NewGateway(), proxied: counts.NewProxied(), log: new(servicetest.Log)}
	paths, err := routes.Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	log := zerolog.New(w.log)
	config := settings{
		Config: gateway.Config{
			MetadataPrefix: "x-dynamo-meta-", RetryAfter: 1, Paths: paths,
			Models:     map[string]catalog.Scope{"m": servicetest.Scope},
			MaxStreams: 100, MaxBody: 1 << 20, PickTimeout: time.Minute, Lease: 30 * time.Second,
			Metrics: w.metrics, Log: log,
		},
		Proxy: proxy.Config{
			Retries: 1, ConnectTimeout: time.Minute,
			Metrics: w.proxied, Log: log,
		},
		Limits: connections.Limits{Total: 1000},
	}
	for _, f := range changes {
		f(&config)
	}
	w.World = servicetest.Start(t, func(c *node.Config) { c.Scopes.WatchStored, c.Selection.SessionTTL = true, config.SessionTTL })
	w.gateway = gateway.New(config.Config, gateway.Service{Selecting: w.API, Catalog: w.Catalog(), Ready: w.Settled})
	w.server = proxy.New(config.Proxy, w.gateway)
	open := connections.New(config.Limits)
	open.Configure(w.server.HTTP)
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address = ln.Addr().String()
	if config.Wrap != nil {
		ln = wrapping{ln, config.Wrap}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- w.server.Serve(open.Listener(ln, nil)) }()
	go func() { ended <- w.gateway.Run(ctx) }()
	var once sync.Once
	w.stop = func(delay, timeout time.Duration) { once.Do(func() { w.server.Stop(ctx, delay, timeout) }) }
	t.Cleanup(func() {
		w.stop(0, 10*time.Second)
		cancel()
		for range cap(ended) {
			if err := <-ended; err != nil {
				t.Errorf("the proxy ended with %v", err)
			}
		}
		if n := w.gateway.Opened(counts.Proxy); n != 0 {
			t.Errorf("%d exchanges are open", n)
		}
	})
	return w
}

// engine is a server whose connections the test serves, each by a function that gets its number, from 0 on.
type engine struct {
	address string
	serve   func(c *served)
	conns   atomic.Int64
}

// served is a connection of an engine.
type served struct {
	*net.TCPConn
	t  testing.TB
	in *bufio.Reader
	n  int64
}

// startEngine runs an engine until the end of the test.
func startEngine(t testing.TB, serve func(c *served)) *engine {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{address: ln.Addr().String(), serve: serve}
	var running sync.WaitGroup
	var mu sync.Mutex // guards the next two
	var all []net.Conn
	over := false
	running.Go(func() {
		for {
			raw, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			if all = append(all, raw); over { // it came at the very end
				_ = raw.Close()
			}
			mu.Unlock()
			c := &served{TCPConn: raw.(*net.TCPConn), t: t, in: bufio.NewReader(raw), n: e.conns.Add(1) - 1}
			running.Go(func() {
				defer c.Close()
				e.serve(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		over = true
		for _, c := range all {
			_ = c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return e
}

// engineRequest is a request as an engine got it.
type engineRequest struct {
	*http.Request
	body string
}

// read reads a request; nil: there is no further one.
func (s *served) read() *engineRequest {
	r, err := http.ReadRequest(s.in)
	if err != nil {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil
	}
	return &engineRequest{r, string(body)}
}

func (s *served) write(texts ...string) {
	for _, text := range texts {
		_, _ = io.WriteString(s, text) // what the client does not get shows there
	}
}

// reset closes the connection with a reset.
func (s *served) reset() {
	_ = s.SetLinger(0)
	_ = s.Close()
}

// answering is an engine that answers each request with a text.
func answering(t testing.TB, text string) *engine {
	return startEngine(t, func(c *served) {
		for c.read() != nil {
			c.write(text)
		}
	})
}

// put registers engines as workers 1, 2, ….
func (w *world) put(engines ...*engine) {
	w.T.Helper()
	for i, e := range engines {
		w.Put(servicetest.Record(uint64(i+1), 1, func(r *catalog.Record) { r.Endpoint = new("http://" + e.address) }))
	}
}

const chatPath = "/v1/chat/completions"

// chatBody is a chat's, with further members.
func chatBody(more string) string {
	return `{"model":"m","messages":[{"role":"user","content":"hello"}]` + more + `}`
}

// request is the text of a POST to a path.
func request(path, body string, fields ...string) string {
	return requestOf("POST", path, body, fields...)
}

func requestOf(method, path, body string, fields ...string) string {
	text := method + " " + path + " HTTP/1.1\r\nHost: proxy.example\r\n"
	for i := 0; i < len(fields); i += 2 {
		text += fields[i] + ": " + fields[i+1] + "\r\n"
	}
	if body != "" {
		text += fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	return text + "\r\n" + body
}

// client is a client's connection.
type client struct {
	*net.TCPConn
	t  testing.TB
	in *bufio.Reader
}

func (w *world) dial() *client {
	w.T.Helper()
	c, err := (&net.Dialer{}).DialContext(w.T.Context(), "tcp", w.address)
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return &client{c.(*net.TCPConn), w.T, bufio.NewReader(c)}
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatal(err)
	}
}

// answer is what a client got. err is that of its body.
type answer struct {
	*http.Response
	body  string
	err   error
	hints []http.Header // of answers before it
}

// receive reads an answer to a request of a method.
func (c *client) receive(method string) answer {
	c.t.Helper()
	a, err := c.tryReceive(method)
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	return a
}

func (c *client) tryReceive(method string) (answer, error) {
	var hints []http.Header
	r, err := http.ReadResponse(c.in, &http.Request{Method: method}) //nolint:bodyclose // the connection is closed at the end
	for err == nil && r.StatusCode/100 == 1 && r.StatusCode != http.StatusSwitchingProtocols {
		hints = append(hints, r.Header)
		r, err = http.ReadResponse(c.in, &http.Request{Method: method}) //nolint:bodyclose // as above
	}
	if err != nil {
		return answer{}, err
	}
	if r.StatusCode == http.StatusSwitchingProtocols {
		return answer{Response: r}, nil
	}
	body, err := io.ReadAll(r.Body)
	return answer{Response: r, body: string(body), err: err, hints: hints}, nil
}

// ask sends a request on a connection of its own and reads the answer.
func (w *world) ask(text string) answer {
	w.T.Helper()
	c := w.dial()
	c.send(text)
	method, _, _ := strings.Cut(text, " ")
	a := c.receive(method)
	_ = c.Close()
	return a
}

// askPart sends a request that is answered before it has been read to its end. net/http closes such a connection half
// a second after the answer, whose reset takes the answer from a client that comes late: then it asks again.
func (w *world) askPart(text string) answer {
	w.T.Helper()
	var a answer
	await(w.T, func() string {
		c := w.dial()
		defer func() { _ = c.Close() }()
		_, _ = io.WriteString(c, text)
		var err error
		if a, err = c.tryReceive("POST"); err != nil {
			return err.Error()
		}
		return ""
	})
	return a
}

// loads are the requests under way of each worker.
func (w *world) loads() string {
	var b strings.Builder
	for _, sc := range w.Loads(nil, nil) {
		for _, l := range sc.Loads {
			fmt.Fprintf(&b, "%d:%d ", l.Rank.Worker, l.Requests)
		}
	}
	return strings.TrimSpace(b.String())
}

// wantLoads waits for the requests of each worker, as loads has them.
func (w *world) wantLoads(want string) {
	w.T.Helper()
	await(w.T, func() string {
		if got := w.loads(); got != want {
			return fmt.Sprintf("loads are %q, want %q", got, want)
		}
		return ""
	})
}

// patience bounds every wait for something that has to happen in the end. Only a test that fails waits it out.
const patience = 2 * time.Minute

// await waits until fault has no text.
func await(t testing.TB, fault func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		text := fault()
		if text == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(text)
		}
		<-tick.C
	}
}

// count is a metric of the gateway or the proxy; labels is what its line has between the braces.
func (w *world) count(name, labels string) string {
	w.T.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.metrics, w.proxied)
	rec := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
	if labels != "" {
		name += "{" + labels + "}"
	}
	for line := range strings.SplitSeq(rec.Body.String(), "\n") {
		if value, ok := strings.CutPrefix(line, "select_service_"+name+" "); ok {
			return value
		}
	}
	w.T.Fatalf("there is no %s", name)
	return ""
}

func (w *world) wantCount(name, labels, want string) {
	w.T.Helper()
	await(w.T, func() string {
		if got := w.count(name, labels); got != want {
			return fmt.Sprintf("%s{%s} is %s, want %s", name, labels, got, want)
		}
		return ""
	})
}

// withMemory bounds the gateway's memory.
func withMemory(b *memory.Budget) func(*settings) { return func(s *settings) { s.Memory = b } }

const (
	jsonHead   = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
	eventsHead = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
	lastChunk  = "0\r\n\r\n"
	done       = "data: [DONE]\n\n"
)

func jsonAnswer(body string) string {
	return fmt.Sprintf("%scontent-length: %d\r\n\r\n%s", jsonHead, len(body), body)
}

func chunk(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

func event(text string) string {
	return `data: {"choices":[{"index":0,"delta":{"content":"` + text + `"}}]}` + "\n\n"
}

// guardOf reads a tokens file.
func guardOf(t testing.TB, text string) *access.Guard {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := access.New(path)
	if err != nil {
		t.Fatal(err)
	}
	return g
}
