package gateway_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/extproc"
	"github.com/select-service/select-service/pkg/catalog"
)

// upgrades are the headers of requests whose body waits for the answer.
var upgrades = map[string][]string{
	"WebSocket of HTTP/1.1":    {":method", "GET", "upgrade", "websocket", "connection", "upgrade"},
	"extended CONNECT, HTTP/2": {":method", "CONNECT", ":protocol", "websocket"},
	"CONNECT":                  {":method", "CONNECT", ":path", ""},
}

// frame sends a piece of the request's body and checks that it comes back.
func (e *envoy) frame(text string, end bool) {
	e.t.Helper()
	e.body(text, end)
	var got strings.Builder
	for {
		s := e.receive().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if s == nil || len(s.GetBody()) > 62_000 {
			e.t.Fatalf("a frame came back as %v", s)
		}
		got.Write(s.GetBody())
		if got.Len() >= len(text) {
			if got.String() != text || s.GetEndOfStream() != end {
				e.t.Fatalf("a frame of %d bytes came back as %d, end %t", len(text), got.Len(), s.GetEndOfStream())
			}
			return
		}
	}
}

// TestUpgrades: an upgrade is placed by its headers, and its frames pass in both directions, also
// before the answer, after its engine has left, and after one direction has ended. It counts as
// a request under way until its end.
func TestUpgrades(t *testing.T) {
	for name, fields := range upgrades {
		t.Run(name, func(t *testing.T) {
			w := start(t, func(_ *node.Config, c *settings) { c.MaxStreams = 1 })
			w.put(1, 1)
			e := w.open()
			e.request("/v1/realtime", false, fields...)
			if p := e.placement(false, false); p.destination != at(1) {
				t.Fatalf("answered %+v", p)
			}
			e.frame("before the answer", false)
			e.response(101, "", false)
			w.Remove(1)
			for range 100 {
				e.chunk("from the engine", false)
				e.frame("from the client", false)
			}
			e.frame(strings.Repeat("x", 1<<20), false)
			e.body("", false) // has no answer
			if _, p := w.post("/v1/embeddings", `{}`); p.status != 503 || !strings.Contains(p.answer, `"overloaded"`) {
				t.Errorf("beside the only allowed stream: %+v", p)
			}
			e.frame("the last", true)
			e.chunk("the engine's last", true)
			e.close()
			w.put(2, 1)
			if _, p := w.post("/v1/embeddings", `{}`); p.destination != at(2) {
				t.Errorf("after the end: %+v", p)
			}
		})
	}
}

// TestUpgradeEnds: a client or an engine that leaves frees the stream; trailers end a body.
func TestUpgradeEnds(t *testing.T) {
	for name, end := range map[string]func(e *envoy){
		"the client leaves": func(e *envoy) { e.close() },
		"broken":            func(e *envoy) { e.cancel() },
		"the engine closes": func(e *envoy) {
			e.chunk("", true)
			e.frame("meanwhile", false)
			e.close()
		},
		"trailers": func(e *envoy) {
			e.trailers()
			if e.receive().GetRequestTrailers() == nil {
				e.t.Error("the trailers were not answered")
			}
			e.close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			w.put(1, 1)
			e := w.open()
			e.request("/v1/realtime", false, upgrades["WebSocket of HTTP/1.1"]...)
			e.placement(false, false)
			e.response(101, "", false)
			end(e)
			await(t, func() string {
				if n := w.metrics.Of(counts.ExtProc).Open.Load(); n != 0 {
					return fmt.Sprint(n, " streams are open")
				}
				return ""
			})
			w.wantLoads("1/0: 0 0 0")
		})
	}
}

// TestUpgradeModel: an upgrade goes to the model that its query names.
func TestUpgradeModel(t *testing.T) {
	w := start(t, func(_ *node.Config, c *settings) { c.Models = nil })
	for id, name := range []string{"a", "b/c"} {
		w.put(uint64(id+1), 1, func(r *catalog.Record) { r.Scope = catalog.Scope{Model: name, Tenant: catalog.DefaultName} })
	}
	for query, want := range map[string]string{"?model=a": at(1), "?x=1&model=b%2Fc": at(2), "?model=d": ""} {
		for range 4 {
			e := w.open()
			e.request("/v1/realtime"+query, false, upgrades["WebSocket of HTTP/1.1"]...)
			if p := e.placement(false, false); p.destination != want || want == "" && p.status != 404 {
				t.Errorf("%s: %+v", query, p)
			}
		}
	}
}

// TestUpgradeModes: a filter that cannot pass frames on has upgrades refused at once.
func TestUpgradeModes(t *testing.T) {
	for _, mode := range []filterv3.ProcessingMode_BodySendMode{
		filterv3.ProcessingMode_NONE, filterv3.ProcessingMode_STREAMED, filterv3.ProcessingMode_BUFFERED, filterv3.ProcessingMode_BUFFERED_PARTIAL,
	} {
		w := start(t)
		w.put(1, 1)
		e := w.open()
		e.config.RequestBodyMode, e.config.ResponseBodyMode = mode, mode
		e.request("/v1/realtime", false, upgrades["WebSocket of HTTP/1.1"]...)
		if p := e.placement(false, false); p.status != 400 || !strings.Contains(p.answer, `"upgrade_unsupported"`) {
			t.Errorf("%v: answered %+v", mode, p)
		}
		if n := w.count("requests_total", `outcome="protocol"`); n != 1 {
			t.Errorf("%v: counted %v times", mode, n)
		}
	}
}

// pipe is a stream whose messages come when the test sends them.
type pipe struct {
	grpc.ServerStream

	ctx  context.Context
	in   chan *extprocv3.ProcessingRequest
	mu   sync.Mutex // guards sent while the call runs
	sent []*extprocv3.ProcessingResponse
}

func (p *pipe) Context() context.Context { return p.ctx }

func (p *pipe) Send(m *extprocv3.ProcessingResponse) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, m)
	return nil
}

func (p *pipe) Recv() (*extprocv3.ProcessingRequest, error) {
	select {
	case m := <-p.in:
		return m, nil
	case <-p.ctx.Done():
		return nil, io.EOF
	}
}

// TestBodyTimeout: a body that is still awaited at the pick timeout after its last piece, or
// after the headers, ends with 408, also that of an upgrade of a path placed by tokens. So does one that
// drips: a body has the pick timeout beside its time at 16 KiB a second.
func TestBodyTimeout(t *testing.T) {
	const timeout = time.Minute
	for name, tt := range map[string]struct {
		pieces, size int
		every        time.Duration
		fields       []string
		want         time.Duration
	}{
		"no piece": {want: timeout},
		"pieces":   {pieces: 3, size: 1 << 20, every: timeout - time.Second, want: 3*(timeout-time.Second) + timeout},
		"drips":    {pieces: 8, size: 2, every: 7 * time.Second, want: timeout + 16*time.Second/(16<<10)},
		"upgrade":  {fields: []string{"upgrade", "websocket"}, want: timeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				metrics := counts.NewGateway()
				placing := gateway.New(gateway.Config{
					MaxStreams: 1, MaxBody: 4 << 20, PickTimeout: timeout, Lease: time.Minute, Metrics: metrics, Log: zerolog.Nop(),
				}, gateway.Service{Ready: func() bool { return true }})
				server := extproc.New(extproc.Config{MaxStreams: 1, Log: zerolog.Nop()}, placing)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				p := &pipe{ctx: ctx, in: make(chan *extprocv3.ProcessingRequest)}
				ended := make(chan error, 1)
				began := time.Now()
				go func() { ended <- server.Process(p) }()
				p.in <- &extprocv3.ProcessingRequest{ProtocolConfig: duplex(), Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
					Headers: headerMap(append([]string{":method", "POST", ":path", chatPath}, tt.fields...)),
				}}}
				for range tt.pieces {
					time.Sleep(tt.every)
					p.in <- &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: make([]byte, tt.size)}}}
				}
				if err := <-ended; err != nil {
					t.Fatal(err)
				}
				if got := time.Since(began).Round(time.Microsecond); got != tt.want.Round(time.Microsecond) {
					t.Errorf("ended after %v, want %v", got, tt.want)
				}
				if len(p.sent) != 1 || p.sent[0].GetImmediateResponse().GetStatus().GetCode() != 408 {
					t.Errorf("answered %v", p.sent)
				}
				if n := metrics.Of(counts.ExtProc).Open.Load(); n != 0 {
					t.Errorf("%d streams are open", n)
				}
			})
		})
	}
}

// TestStalled: streams that bring no request, and requests whose bodies do not come or drip, keep nobody else
// from being admitted: the former take no place and end after 10 s, and of the latter the one that is furthest
// behind gives its place up.
func TestStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := counts.NewGateway()
		placing := gateway.New(gateway.Config{
			MaxStreams: 2, MaxBody: 4 << 20, PickTimeout: time.Minute, Lease: time.Minute, Metrics: metrics, Log: zerolog.Nop(),
		}, gateway.Service{Ready: func() bool { return true }})
		server := extproc.New(extproc.Config{MaxStreams: 2, Log: zerolog.Nop()}, placing)
		type stream struct {
			*pipe
			ended chan error
		}
		open := func() *stream {
			s := &stream{&pipe{ctx: t.Context(), in: make(chan *extprocv3.ProcessingRequest)}, make(chan error, 1)}
			go func() { s.ended <- server.Process(s.pipe) }()
			return s
		}
		head := func(s *stream) {
			s.in <- &extprocv3.ProcessingRequest{ProtocolConfig: duplex(), Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
				Headers: headerMap([]string{":method", "POST", ":path", chatPath}),
			}}}
			synctest.Wait()
		}
		piece := func(s *stream, n int) {
			s.in <- &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: make([]byte, n)}}}
			synctest.Wait()
		}
		status := func(s *stream) int {
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.sent) == 0 {
				return 0
			}
			return int(s.sent[0].GetImmediateResponse().GetStatus().GetCode())
		}
		want := func(when string, s *stream, code int) {
			t.Helper()
			if got := status(s); got != code {
				t.Errorf("%s: answered %d, want %d (0: it is read)", when, got, code)
			}
		}
		idle := open()
		synctest.Wait()
		a, b := open(), open()
		head(a)
		piece(a, 1<<20) // it has brought much, then it stalls
		head(b)
		c := open()
		head(c)
		want("all places are taken just now", c, 503)
		time.Sleep(time.Second)
		piece(b, 1) // it drips
		time.Sleep(time.Second)
		piece(b, 1)
		time.Sleep(time.Second)
		d := open()
		head(d)
		want("one of two is behind", d, 0)
		want("it is behind for 3 s", b, 0)
		want("it has stalled for 3 s", a, 408)
		e := open()
		head(e)
		want("two bytes are none", b, 408)
		want("for the one that drips", e, 0)
		f := open()
		head(f)
		want("those that have just begun keep their places", f, 503)
		time.Sleep(7 * time.Second) // 10 s in all
		synctest.Wait()
		if err := <-idle.ended; grpcstatus.Code(err) != codes.DeadlineExceeded {
			t.Errorf("the stream without a request ended with %v", err)
		}
		for _, s := range []*stream{a, b, c, f} {
			if err := <-s.ended; err != nil {
				t.Errorf("ended with %v", err)
			}
		}
		time.Sleep(time.Minute)
		for _, s := range []*stream{d, e} {
			if err := <-s.ended; err != nil || status(s) != 408 {
				t.Errorf("ended with %v, answered %d", err, status(s))
			}
		}
		g, h := open(), open() // no place is lost
		head(g)
		head(h)
		want("both places are free again", g, 0)
		want("both places are free again", h, 0)
		if n := metrics.Of(counts.ExtProc).Open.Load(); n != 2 {
			t.Errorf("%d streams are open, want 2", n)
		}
		time.Sleep(time.Minute)
		_, _ = <-g.ended, <-h.ended // how they end is not the question
	})
}
