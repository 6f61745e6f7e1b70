package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/select-service/select-service/internal/engines/describe"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/extproc"
	"github.com/select-service/select-service/internal/server/gateway/tokenizer"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// model is the name that requests have for the model of the workers.
const model = "m"

// world is an endpoint picker over a service; the test is Envoy and the engines.
type world struct {
	*servicetest.World
	gateway *gateway.Gateway
	server  *extproc.Server
	prompts *gateway.Prompts
	metrics *counts.Gateway
	log     *servicetest.Log
	client  extprocv3.ExternalProcessorClient
	conn    *grpc.ClientConn
	address string
	engines map[uint64]*servicetest.Engine // that have sent something, see cache
	// tokenized counts the calls of the tokenizer, which has a token for each word.
	tokenized atomic.Int64
	// renderer, if set, answers in the tokenizer's place.
	renderer atomic.Pointer[http.HandlerFunc]
}

// settings are those of the gateway and of its front for Envoy.
type settings struct {
	gateway.Config
	Envoy extproc.Config
}

type change func(*node.Config, *settings)

// start runs an endpoint picker until the end of the test.
func start(t testing.TB, changes ...change) *world {
	t.Helper()
	return startExpecting(t, nil, changes...)
}

// startExpecting is start with scopes that sources of workers name.
func startExpecting(t testing.TB, expected []catalog.Scope, changes ...change) *world {
	t.Helper()
	w := &world{metrics: counts.NewGateway(), log: new(servicetest.Log), engines: make(map[uint64]*servicetest.Engine)}
	tokens := httptest.NewServer(http.HandlerFunc(w.tokenize))
	t.Cleanup(tokens.Close)
	asks := tokenizer.New(tokenizer.Options{URL: tokens.URL, Protocol: tokenizer.VLLMTokenize, Timeout: time.Minute, MaxResponse: 1 << 20})
	t.Cleanup(asks.Close)
	lengths := describe.New(describe.Options{})
	t.Cleanup(lengths.Close)
	config := settings{Config: gateway.Config{
		Length:         lengths.Length,
		MetadataPrefix: "x-dynamo-meta-", RetryAfter: 1,
		Models: map[string]catalog.Scope{model: servicetest.Scope}, Tokenizer: asks,
		MaxStreams: 100, MaxBody: 1 << 20, PickTimeout: time.Minute, Lease: 30 * time.Second,
		Metrics: w.metrics, Log: zerolog.New(w.log), Dial: connects,
	}}
	w.World = servicetest.Start(t, func(c *node.Config) {
		c.Scopes.WatchStored, c.Selection.Owners = true, true
		for _, f := range changes {
			f(c, &config)
		}
	})
	w.gateway = gateway.New(config.Config, gateway.Service{Selecting: w.API, Catalog: w.Catalog(), Expected: expected, Ready: w.Settled})
	config.Envoy.MaxStreams, config.Envoy.Log = config.MaxStreams, config.Log
	w.server = extproc.New(config.Envoy, w.gateway)
	w.prompts = gateway.NewPrompts(config.Config, w.Catalog())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 3)
	go func() { ended <- w.server.Serve(ln) }()
	go func() { ended <- w.server.Run(ctx) }()
	go func() { ended <- w.gateway.Run(ctx) }()
	t.Cleanup(func() {
		w.server.Stop(ctx, 0, 10*time.Second)
		cancel()
		for range cap(ended) {
			if err := <-ended; err != nil {
				t.Errorf("the endpoint picker ended with %v", err)
			}
		}
	})
	w.address = ln.Addr().String()
	w.conn = w.dial()
	w.client = extprocv3.NewExternalProcessorClient(w.conn)
	return w
}

// connects connects to any engine.
func connects(context.Context, string, string) (net.Conn, error) {
	near, _ := net.Pipe()
	return near, nil
}

// dial opens a connection of a gateway.
func (w *world) dial() *grpc.ClientConn {
	w.T.Helper()
	conn, err := grpc.NewClient(w.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = conn.Close() })
	return conn
}

// tokenize is vLLM's /tokenize with a token for each word of the prompt.
func (w *world) tokenize(out http.ResponseWriter, r *http.Request) {
	if f := w.renderer.Load(); f != nil {
		(*f)(out, r)
		return
	}
	var body struct {
		Prompt   string
		Messages []struct{ Content string }
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
		return
	}
	text := body.Prompt
	for _, m := range body.Messages {
		text += m.Content + " "
	}
	if text != "a " { // the probe at the start
		w.tokenized.Add(1)
	}
	_ = json.NewEncoder(out).Encode(map[string]any{"tokens": tokensOf(text)})
}

// tokensOf has a token for each word, which is a number.
func tokensOf(text string) []uint32 {
	ids := []uint32{}
	for _, word := range strings.Fields(text) {
		var n uint32
		_, _ = fmt.Sscan(word, &n)
		ids = append(ids, n)
	}
	return ids
}

// wordsOf is the text of tokens.
func wordsOf(ids []uint32) string { return strings.Trim(fmt.Sprint(ids), "[]") }

// put registers a worker of a size at 10.0.0.id:8000.
func (w *world) put(id uint64, size uint32, changes ...func(*catalog.Record)) {
	w.T.Helper()
	w.Put(servicetest.Record(id, size, append([]func(*catalog.Record){func(r *catalog.Record) {
		r.Endpoint = new("http://" + at(id))
	}}, changes...)...))
}

func at(id uint64) string { return fmt.Sprintf("10.0.0.%d:8000", id) }

// loads are those of the workers' ranks: prefill tokens, blocks and requests.
func (w *world) loads() string {
	var b strings.Builder
	for _, sc := range w.Loads(nil, nil) {
		for _, l := range sc.Loads {
			fmt.Fprintf(&b, "%d/%d: %d %d %d; ", l.Rank.Worker, l.Rank.DP, l.PrefillTokens, l.DecodeBlocks, l.Requests)
		}
	}
	return strings.TrimSuffix(b.String(), "; ")
}

// wantLoads waits for the loads.
func (w *world) wantLoads(want string) {
	w.T.Helper()
	await(w.T, func() string {
		if got := w.loads(); got != want {
			return fmt.Sprintf("loads are %q, want %q", got, want)
		}
		return ""
	})
}

// await waits until fault has no text.
func await(t testing.TB, fault func() string) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute) // only a test that fails waits that long
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

// envoy is one request as Envoy's filter sees it.
type envoy struct {
	t      testing.TB
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel func()
	sent   bool
	config *extprocv3.ProtocolConfiguration
	subset *structpb.Value
	served string
}

// open starts the stream of a request.
func (w *world) open() *envoy { w.T.Helper(); return w.openOn(w.client) }

// openOn starts the stream of a request on a connection.
func (w *world) openOn(client extprocv3.ExternalProcessorClient) *envoy {
	w.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := client.Process(ctx)
	if err != nil {
		w.T.Fatal(err)
	}
	e := &envoy{t: w.T, stream: stream, cancel: cancel, config: duplex()}
	w.T.Cleanup(cancel)
	return e
}

func duplex() *extprocv3.ProtocolConfiguration {
	return &extprocv3.ProtocolConfiguration{
		RequestBodyMode:  filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
		ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
	}
}

func headerMap(fields []string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(fields); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: fields[i], RawValue: []byte(fields[i+1])})
	}
	return m
}

func (e *envoy) send(m *extprocv3.ProcessingRequest) {
	if !e.sent {
		m.ProtocolConfig, e.sent = e.config, true
	}
	_ = e.stream.Send(m) // what is wrong is seen at the next receive
}

// request sends headers of a POST to a path, with further ones.
func (e *envoy) request(path string, end bool, fields ...string) {
	method := "POST"
	if end {
		method = "GET"
	}
	m := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
		Headers: headerMap(append([]string{":method", method, ":path", path}, fields...)), EndOfStream: end,
	}}}
	if e.subset != nil {
		m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"envoy.lb.subset_hint": {Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint-subset": e.subset}},
		}}
	}
	e.send(m)
}

func (e *envoy) body(text string, end bool) {
	e.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(text), EndOfStream: end},
	}})
}

func (e *envoy) trailers() {
	e.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}})
}

// response sends the headers of an answer.
func (e *envoy) response(code int, contentType string, end bool) {
	m := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
		Headers: headerMap([]string{":status", fmt.Sprint(code), "content-type", contentType}), EndOfStream: end,
	}}}
	if e.served != "" {
		m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"envoy.lb": {Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint-served": structpb.NewStringValue(e.served)}},
		}}
	}
	e.send(m)
	if r := e.receive().GetResponseHeaders(); r == nil {
		e.t.Fatal("no answer to the response's headers")
	}
}

// chunk sends a piece of an answer's body, and checks that it comes back.
func (e *envoy) chunk(text string, end bool) {
	e.t.Helper()
	e.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(text), EndOfStream: end},
	}})
	var got bytes.Buffer
	for {
		s := e.receive().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if s == nil || len(s.GetBody()) > 62_000 {
			e.t.Fatalf("a chunk came back as %v", s)
		}
		got.Write(s.GetBody())
		if got.Len() >= len(text) {
			if got.String() != text || s.GetEndOfStream() != end {
				e.t.Fatalf("a chunk of %d bytes came back as %d, end %t", len(text), got.Len(), s.GetEndOfStream())
			}
			return
		}
	}
}

func (e *envoy) receive() *extprocv3.ProcessingResponse {
	e.t.Helper()
	m, err := e.stream.Recv()
	if err != nil {
		e.t.Fatalf("receive: %v", err)
	}
	return m
}

// close ends the stream from Envoy's side and waits for its end.
func (e *envoy) close() {
	e.t.Helper()
	_ = e.stream.CloseSend()
	for {
		if _, err := e.stream.Recv(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			e.t.Fatalf("the stream ended with %v", err)
		}
	}
}

// placed is the answer to a request.
type placed struct {
	destination string
	headers     map[string]string
	removed     []string
	body        string
	trailers    bool
	status      int // of an immediate answer
	answer      string
}

// placement receives the answer to a request that has come in full.
func (e *envoy) placement(hasBody, trailers bool) (p placed) {
	e.t.Helper()
	m := e.receive()
	if i := m.GetImmediateResponse(); i != nil {
		p.status, p.answer, p.headers = int(i.GetStatus().GetCode()), string(i.GetBody()), map[string]string{}
		for _, h := range i.GetHeaders().GetSetHeaders() {
			p.headers[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
		}
		return p
	}
	h := m.GetRequestHeaders().GetResponse()
	if h == nil || !h.GetClearRouteCache() {
		e.t.Fatalf("the first answer is %v", m)
	}
	p.headers = map[string]string{}
	for _, s := range h.GetHeaderMutation().GetSetHeaders() {
		p.headers[s.GetHeader().GetKey()] = string(s.GetHeader().GetRawValue())
	}
	p.removed = h.GetHeaderMutation().GetRemoveHeaders()
	const key = "x-gateway-destination-endpoint"
	p.destination = p.headers[key]
	if told := m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()[key].GetStringValue(); told != p.destination {
		e.t.Fatalf("the header names %q, the metadata %q", p.destination, told)
	}
	for end := !hasBody; !end; {
		m := e.receive()
		if p.trailers = m.GetRequestTrailers() != nil; p.trailers {
			break
		}
		s := m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if s == nil || len(s.GetBody()) > 62_000 {
			e.t.Fatalf("a part of the body is %v", m)
		}
		p.body += string(s.GetBody())
		end = s.GetEndOfStream()
	}
	if p.trailers != trailers {
		e.t.Fatalf("trailers %t, want %t", p.trailers, trailers)
	}
	return p
}

const chatPath, completionsPath = "/v1/chat/completions", "/v1/completions"

// chat is the body of a chat with a prompt of tokens, and further members.
func chat(ids []uint32, more string) string {
	return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"%s"}]%s}`, wordsOf(ids), more)
}

// post sends a whole request and returns what is answered.
func (w *world) post(path, text string, fields ...string) (*envoy, placed) {
	w.T.Helper()
	e := w.open()
	e.request(path, false, fields...)
	e.body(text, true)
	return e, e.placement(true, false)
}

func responseTrailersOf() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}}
}

// count is a metric of the gateway; labels is what its line has between the braces.
func (w *world) count(name, labels string) float64 {
	w.T.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.metrics)
	rec := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
	if labels != "" {
		labels += ","
	}
	name = "select_service_gateway_" + name + "{" + labels + `via="ext_proc"}`
	for line := range strings.SplitSeq(rec.Body.String(), "\n") {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				w.T.Fatal(err)
			}
			return n
		}
	}
	w.T.Fatalf("there is no %s", name)
	return 0
}
