package gateway_test

import (
	"slices"
	"strings"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/select-service/select-service/internal/engines/routes"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

const sse = "text/event-stream"

func event(text string) string {
	return `data: {"choices":[{"index":0,"delta":{"content":"` + text + `"}}]}` + "\n\n"
}

// TestChat: a streamed chat from its request to the end of its answer, with the load that it
// is at each step.
func TestChat(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	ids := servicetest.Prompt(1, 16)
	text := chat(ids, `,"stream":true`)
	e, p := w.post(chatPath, text)
	if p.destination != at(1) || p.body != text || p.status != 0 {
		t.Fatalf("answered %+v", p)
	}
	w.wantLoads("1/0: 16 4 1")
	e.response(200, sse, false)
	e.chunk(": a comment\n\n", false)
	w.wantLoads("1/0: 16 4 1")
	e.chunk(event("1"), false)
	if got := w.loads(); got != "1/0: 0 4 1" {
		t.Errorf("when the client has the first piece, loads are %q", got)
	}
	e.chunk(strings.Repeat(event("x"), 4*3), false) // with the first one 13 tokens, three blocks
	w.wantLoads("1/0: 0 7 1")
	e.chunk("data: [DONE]\n\n", true)
	if got := w.loads(); got != "1/0: 0 0 0" {
		t.Errorf("when the client has the last piece, loads are %q", got)
	}
	e.close()
}

// TestEnds: whatever ends a request, its load goes.
func TestEnds(t *testing.T) {
	text := chat(servicetest.Prompt(1, 16), `,"stream":true`)
	for name, end := range map[string]func(w *world, e *envoy){
		"end of the stream before an answer": func(_ *world, e *envoy) { e.close() },
		"broken before an answer":            func(_ *world, e *envoy) { e.cancel() },
		"500 without a body":                 func(_ *world, e *envoy) { e.response(500, "text/plain", true) },
		"500 with a body": func(_ *world, e *envoy) {
			e.response(500, "application/json", false)
			e.chunk(`{"error":{}}`, true)
		},
		"broken while streaming": func(_ *world, e *envoy) {
			e.response(200, sse, false)
			e.chunk(event("a"), false)
			e.cancel()
		},
		"end of the stream while streaming": func(_ *world, e *envoy) {
			e.response(200, sse, false)
			e.chunk(event("a"), false)
			e.close()
		},
		"an empty last chunk": func(_ *world, e *envoy) {
			e.response(200, sse, false)
			e.chunk(event("a"), false)
			e.chunk("", true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			w.put(1, 1)
			e, _ := w.post(chatPath, text)
			w.wantLoads("1/0: 16 4 1")
			end(w, e)
			w.wantLoads("1/0: 0 0 0")
		})
	}
}

// TestTrailers: a request that ends with trailers is placed then, and gets them back; those
// of an answer end it.
func TestTrailers(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	text := chat(servicetest.Prompt(1, 16), "")
	e := w.open()
	e.request(chatPath, false)
	e.body(text[:10], false)
	e.body(text[10:], false)
	e.trailers()
	if p := e.placement(true, true); p.destination != at(1) || p.body != text {
		t.Fatalf("answered %+v", p)
	}
	e.response(200, "application/json", false)
	e.chunk(`{}`, false)
	w.wantLoads("1/0: 0 4 1") // the first byte
	e.send(responseTrailersOf())
	if e.receive().GetResponseTrailers() == nil {
		t.Fatal("the trailers were not answered")
	}
	w.wantLoads("1/0: 0 0 0")
	e.close()
}

// TestSkippedHeaders: of a filter that does not send the headers of responses, what follows them tells
// of the answer: its pieces with their tokens and its usage, or its trailers alone.
func TestSkippedHeaders(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	ids := servicetest.Prompt(1, 16)
	e, _ := w.post(chatPath, chat(ids, `,"stream":true`))
	w.wantLoads("1/0: 16 4 1")
	e.chunk(": a comment\n\n", false)
	w.wantLoads("1/0: 16 4 1")
	e.chunk(strings.Repeat(event("x"), 4), false)
	w.wantLoads("1/0: 0 5 1")
	e.chunk(`data: {"choices":[],"usage":{"prompt_tokens":16,"prompt_tokens_details":{"cached_tokens":4}}}`+"\n\n", true)
	e.close()
	w.wantLoads("1/0: 0 0 0")
	w.wantCount("prefill_completed_total", `by="stream"`, 1)
	w.wantCount("cached_tokens_sum", "", 4)

	whole, _ := w.post(chatPath, chat(ids, ""))
	whole.chunk("{", false)
	w.wantLoads("1/0: 0 4 1")
	whole.close()
	w.wantCount("prefill_completed_total", `by="first_byte"`, 1)

	unseen := w.open()
	unseen.config.ResponseBodyMode = filterv3.ProcessingMode_NONE
	unseen.request(chatPath, false)
	unseen.body(chat(ids, ""), true)
	unseen.placement(true, false)
	unseen.send(responseTrailersOf())
	if unseen.receive().GetResponseTrailers() == nil {
		t.Error("the trailers were not answered")
	}
	w.wantLoads("1/0: 0 0 0")
	unseen.close()

	reading := w.open() // an answer of Envoy itself
	reading.request(chatPath, false)
	reading.chunk("too long", true)
	reading.body("{", true) // nobody reads it
	reading.close()
}

// TestBodies: long bodies come back in the order and as they are, in pieces that Envoy takes.
func TestBodies(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	text := chat(servicetest.Prompt(1, 16), `,"x":"`+strings.Repeat("0123456789", 30_000)+`"`)
	e := w.open()
	e.request(chatPath, false)
	for rest := text; ; rest = rest[min(len(rest), 65_000):] {
		e.body(rest[:min(len(rest), 65_000)], len(rest) <= 65_000)
		if len(rest) <= 65_000 {
			break
		}
	}
	if p := e.placement(true, false); p.body != text {
		t.Fatalf("%d bytes came back as %d", len(text), len(p.body))
	}
	e.response(200, "application/json", false)
	e.chunk(strings.Repeat("x", 1<<20), true)
	e.close()
}

// TestModes: only a filter that streams bodies in both directions is served, or one that keeps
// the response's body to itself.
func TestModes(t *testing.T) {
	const duplex, buffered, none = filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, filterv3.ProcessingMode_BUFFERED, filterv3.ProcessingMode_NONE
	for _, tt := range []struct {
		request, response filterv3.ProcessingMode_BodySendMode
		want              codes.Code
	}{
		{duplex, duplex, codes.OK},
		{duplex, none, codes.OK},
		{buffered, buffered, codes.FailedPrecondition},
		{duplex, filterv3.ProcessingMode_STREAMED, codes.FailedPrecondition},
		{none, duplex, codes.FailedPrecondition},
	} {
		t.Run(tt.request.String()+" "+tt.response.String(), func(t *testing.T) {
			w := start(t)
			w.put(1, 1)
			e := w.open()
			e.config.RequestBodyMode, e.config.ResponseBodyMode = tt.request, tt.response
			e.request(chatPath, false)
			e.body(chat(servicetest.Prompt(1, 8), ""), true)
			if tt.want == codes.OK {
				e.placement(true, false)
				e.response(200, sse, false)
				e.close()
				w.wantLoads("1/0: 0 0 0")
				return
			}
			_, err := e.stream.Recv()
			if status.Code(err) != tt.want || !strings.Contains(err.Error(), "response_body_mode") {
				t.Errorf("ended with %v", err)
			}
			if lines := w.log.Take(t); len(lines) == 0 || !strings.Contains(lines[0], "FULL_DUPLEX_STREAMED") {
				t.Errorf("logged %v", lines)
			}
		})
	}
	t.Run("not said", func(t *testing.T) {
		w := start(t)
		w.put(1, 1)
		e := w.open()
		e.config = nil
		e.request(chatPath, false)
		e.body(chat(servicetest.Prompt(1, 8), ""), true)
		e.placement(true, false)
		e.close()
	})
}

// TestLocalReply: a response that Envoy makes itself while a request is being read or waits is
// passed on, and nothing stays booked.
func TestLocalReply(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	e := w.open()
	e.request(chatPath, false)
	e.body("{", false)
	e.response(408, "text/plain", true)
	e.body("}", true) // nobody reads it
	e.close()
	w.wantLoads("1/0: 0 0 0")
}

// TestOrder: messages in an order that no filter has end the stream.
func TestOrder(t *testing.T) {
	for name, send := range map[string]func(e *envoy){
		"a body first":     func(e *envoy) { e.body("x", true) },
		"a response first": func(e *envoy) { e.send(responseTrailersOf()) },
		"headers twice": func(e *envoy) {
			e.request(chatPath, false)
			e.request(chatPath, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			w.put(1, 1)
			e := w.open()
			send(e)
			if _, err := e.stream.Recv(); status.Code(err) != codes.InvalidArgument {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

// TestRemovedHeaders: what a client must not say reaches no engine.
func TestRemovedHeaders(t *testing.T) {
	w := start(t)
	w.put(1, 2)
	_, p := w.post(chatPath, chat(servicetest.Prompt(1, 8), ""), "x-data-parallel-rank", "7", "x-prefiller-host-port", "1.2.3.4:5")
	if slices.Contains(p.removed, "x-data-parallel-rank") || p.headers["x-data-parallel-rank"] == "" {
		t.Errorf("the rank is told as %q, and removed are %v", p.headers["x-data-parallel-rank"], p.removed)
	}
	for _, name := range []string{
		"x-prefiller-host-port", "x-prefiller-data-parallel-rank",
		"x-gateway-destination-endpoint-served", "x-gateway-destination-endpoint-subset",
		// llm-d-router pkg/common/routing: the names of its sidecar, and HeaderNames of its aliases.
		"x-encoder-hosts-ports", "x-data-parallel-host-port", "x-kv-cache-source-host-port", "x-prefiller-url",
		"x-llm-d-prefiller-host-port", "x-llm-d-encoder-hosts-ports", "x-llm-d-kv-cache-source-host-port",
		// Dynamo lib/llm nvext.rs: HEADER_… and HEADER_…_ALIAS, which overrule the body.
		"x-worker-instance-id", "x-prefill-instance-id", "x-dp-rank", "x-prefill-dp-rank",
		"x-dynamo-worker-instance-id", "x-dynamo-prefill-instance-id", "x-dynamo-dp-rank", "x-dynamo-prefill-dp-rank", "x-dynamo-routing-mode",
		// SMG's policies manual and consistent_hashing: a worker by its URL or index.
		"x-smg-target-worker",
		// What the gateway obeys itself: llm-d's headers with their former names, and ours.
		"x-gateway-inference-fairness-id", "x-llm-d-slo-ttft-ms", "x-slo-ttft-ms", "x-select-deadline-ms", "x-select-on-miss",
		"x-llm-d-pin-host-port", "epp-profile", "x-select-reservation-id",
	} {
		if !slices.Contains(p.removed, name) {
			t.Errorf("%s is not removed", name)
		}
	}
	for _, name := range []string{
		"x-request-id", "x-tenant-id", "authorization", "x-session-id", "x-dynamo-session-id", "x-dynamo-parent-session-id", "x-smg-routing-key",
		"x-dynamo-request-priority", "x-llm-d-slo-tpot-ms", "x-llm-d-inference-objective", "x-llm-d-inference-fairness-id",
	} {
		if slices.Contains(p.removed, name) {
			t.Errorf("%s, which steers nothing, is removed", name)
		}
	}
	seen := make(map[string]bool)
	for _, name := range p.removed {
		if seen[name] || p.headers[name] != "" || name != strings.ToLower(name) {
			t.Errorf("%q is removed twice, is set too, or is not as Envoy writes it", name)
		}
		seen[name] = true
	}
}

// TestRefusedPaths: Envoy sends every path to the picker, which refuses what is no engine's route for clients. What a
// route of the gateway has put before a path does not count; further paths are named.
func TestRefusedPaths(t *testing.T) {
	for further, allowed := range map[string]string{"": "", "/flush_cache": "/flush_cache"} {
		var names []string
		if further != "" {
			names = []string{further}
		}
		paths, err := routes.Parse(names)
		if err != nil {
			t.Fatal(err)
		}
		w := start(t, func(_ *node.Config, c *settings) { c.Paths = paths })
		w.put(1, 1)
		for _, path := range []string{chatPath, "/team" + chatPath, "/flush_cache", "/pause", "/load_lora_adapter", "/collective_rpc", "/v1/../pause", "/v1/%2e%2e/pause", "//pause", "/pause" + chatPath + "/.."} {
			e := w.open()
			e.request(path, false)
			e.body(chat(servicetest.Prompt(1, 1), ""), true)
			got := int(e.receive().GetImmediateResponse().GetStatus().GetCode()) // 0: it is placed
			want := 404
			if path == chatPath || path == "/team"+chatPath || path == allowed {
				want = 0
			}
			if got != want {
				t.Errorf("%s with %q: %d, want %d", path, further, got, want)
			}
			e.cancel()
		}
		w.wantLoads("1/0: 0 0 0")
	}
}
