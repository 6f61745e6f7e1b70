package prometheus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/natstest"
)

// chatModel is the model of the gateway's workers.
const chatModel = "chat"

// predicting is a policy that learns, with the default one in its shadow.
const predicting = `
worker_selection:
  aggregated: fast
  shadow: [default]
  instances: [{name: fast, type: predicted-ttft}]
`

// gateway is a service that Envoy would ask, with a proxy. What Envoy itself does is no matter of its
// metrics, so the test sends what Envoy's filter sends.
type gateway struct {
	*service
	client extproc.ExternalProcessorClient
	proxy  string   // where it proxies
	tokens []uint32 // of the next prompt
}

// startGateway runs a gateway over two of the engines.
func startGateway(t *testing.T, engines []engine) *gateway {
	t.Helper()
	g := new(gateway)
	tokenizer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(object{"count": len(g.tokens), "max_model_len": 4096, "tokens": g.tokens})
	}))
	t.Cleanup(tokenizer.Close)
	g.tokens = prompt(0)
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(predicting), 0o600); err != nil {
		t.Fatal(err)
	}
	port, proxy := e2e.FreePort(t), e2e.FreePort(t)
	g.proxy = fmt.Sprintf("http://127.0.0.1:%d", proxy)
	g.service = start(t, "gateway", e2e.FreePort(t), "--gateway-port", fmt.Sprint(port), "--proxy-port", fmt.Sprint(proxy), "--tokenizer-url", tokenizer.URL,
		"--router-policy-config", policy, "--fleet", natstest.Start(t).URL, "--otlp-endpoint", spanStore(t))
	for id, e := range engines {
		answers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for _, event := range events(len(g.tokens), 0) {
				_, _ = io.WriteString(w, event)
			}
		}))
		t.Cleanup(answers.Close)
		g.must(http.StatusCreated, "POST", "/workers", object{
			"worker_id": id + 1, "model_name": chatModel, "endpoint": answers.URL, "block_size": blockSize,
			"kv_events_endpoint": e.Events, "replay_endpoint": e.Replay,
		})
	}
	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	g.client = extproc.NewExternalProcessorClient(conn)
	return g
}

// question is the body of a chat.
var question = fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":"Hello"}]}`, chatModel)

// events are an engine's streamed answer to a prompt, of which it has found some cached.
func events(prompt, cached int) []string {
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":%d}}`, prompt, cached)
	return []string{
		`data: {"choices":[{"delta":{"content":"Hi"}}]}` + "\n\n", `data: {"choices":[],"usage":` + usage + "}\n\n", "data: [DONE]\n\n",
	}
}

// proxied is one request through the proxy.
func (g *gateway) proxied(tokens []uint32) {
	g.t.Helper()
	g.tokens = tokens
	resp, err := client.Post(g.proxy+"/v1/chat/completions", "application/json", strings.NewReader(question))
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		g.t.Fatalf("%s %s %v", resp.Status, body, err)
	}
}

// chat is one request with its streamed answer, of which the engine says that some was cached.
func (g *gateway) chat(tokens []uint32, cached int) {
	g.t.Helper()
	g.tokens = tokens
	stream, err := g.client.Process(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	send := func(m *extproc.ProcessingRequest) {
		m.ProtocolConfig = &extproc.ProtocolConfiguration{
			RequestBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
		}
		if err := stream.Send(m); err != nil {
			g.t.Fatal(err)
		}
	}
	headers := func(fields ...string) *extproc.HttpHeaders {
		h := &extproc.HttpHeaders{Headers: &corev3.HeaderMap{}}
		for i := 0; i < len(fields); i += 2 {
			h.Headers.Headers = append(h.Headers.Headers, &corev3.HeaderValue{Key: fields[i], RawValue: []byte(fields[i+1])})
		}
		return h
	}
	until := func(what string, done func(*extproc.ProcessingResponse) bool) {
		g.t.Helper()
		for {
			m, err := stream.Recv()
			if err != nil || m.GetImmediateResponse() != nil {
				g.t.Fatalf("%s: %v (%v)", what, m, err)
			}
			if done(m) {
				return
			}
		}
	}
	send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{
		RequestHeaders: headers(":method", "POST", ":path", "/v1/chat/completions"),
	}})
	send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{
		RequestBody: &extproc.HttpBody{Body: []byte(question), EndOfStream: true},
	}})
	until("the request", func(m *extproc.ProcessingResponse) bool {
		return m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream()
	})
	send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: headers(":status", "200", "content-type", "text/event-stream"),
	}})
	for i, event := range events(len(tokens), cached) {
		send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseBody{
			ResponseBody: &extproc.HttpBody{Body: []byte(event), EndOfStream: i == 2},
		}})
	}
	until("the answer", func(m *extproc.ProcessingResponse) bool {
		return m.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream()
	})
	_ = stream.CloseSend()
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		g.t.Fatal(err)
	}
}
