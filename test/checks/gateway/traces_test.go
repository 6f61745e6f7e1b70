package gateway

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/tracetest"
)

// The span of a client, as its traceparent has it.
const (
	clientTrace = "0af7651916cd43dd8448eb211c80319c"
	clientSpan  = "b7ad6b7169203331"
)

// traced is a setup whose picker sends spans to the collector.
func traced(c *tracetest.Collector, envoy ...edit) setup {
	return setup{
		service: []string{"--otlp-endpoint", c.GRPC},
		env:     map[string]string{"OTEL_BSP_SCHEDULE_DELAY": "10", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
		envoy:   envoy,
	}
}

// traces: a request's span is below the client's, and has the choice and the answer below it; the
// engine is told that span. So is the tokenizer the span of its call.
func traces(t *testing.T) {
	c := tracetest.Start(t)
	s, text := traced(c), words(1, 100)
	s.tokenizer = newRenderer(t, says(200, tokenized(promptOf(text))))
	b := lay(t, s)
	header := []string{"traceparent", "00-" + clientTrace + "-" + clientSpan + "-01", "tracestate", "a=b"}
	b.post(200, chats, chat(text), header...)
	got := c.Await(t, clientTrace, "chat "+model)
	if tree := got.Under(clientSpan); tree != "chat m(pick(tokenize select(hash look up choose book)) first byte answer)" {
		t.Errorf("%s in:\n%v", tree, got)
	}
	root := got.Named("chat " + model)[0]
	engine := engineOf(t, b, chats)
	for key, want := range map[string]string{
		"gen_ai.operation.name": "chat", "gen_ai.request.model": model, "http.response.status_code": "200", "http.request.method": "POST",
		"server.address": "127.0.0.1", "server.port": engine.port, "gen_ai.usage.input_tokens": strconv.Itoa(len(promptOf(text))),
	} {
		if root.Attributes[key] != want {
			t.Errorf("%s is %q, want %q", key, root.Attributes[key], want)
		}
	}
	if parent := engine.seen.header.Get("Traceparent"); parent != "00-"+clientTrace+"-"+root.ID+"-01" {
		t.Errorf("the engine is told %q, want the span %s", parent, root.ID)
	}
	if state := engine.seen.header.Get("Tracestate"); state != "a=b" {
		t.Errorf("the engine is told the state %q", state)
	}
	asked := s.tokenizer.takeAsked()
	if parent := asked[len(asked)-1].header.Get("Traceparent"); parent != "00-"+clientTrace+"-"+got.Named("tokenize")[0].ID+"-01" {
		t.Errorf("the tokenizer is told %q", parent)
	}

	// What a client does not trace is not traced, and its header passes as it is.
	header[1] = "00-" + clientTrace[1:] + "1-" + clientSpan + "-00"
	b.post(200, chats, chat(words(2, 100)), header...)
	if parent := engineOf(t, b, chats).seen.header.Get("Traceparent"); parent != header[1] {
		t.Errorf("the engine is told %q, want the client's %q", parent, header[1])
	}
	// A refusal says why.
	b.post(404, chats, object{"model": "unknown", "messages": []object{{"role": "user", "content": "x"}}})
	if refused := c.Await(t, "", "chat unknown").Named("chat unknown")[0]; refused.Attributes["http.response.status_code"] != "404" || refused.Fault == "" {
		t.Errorf("%+v", refused)
	}
}

// tracesOfEnvoy: where Envoy traces, a request's span is in Envoy's trace, and the engine's in it too.
func tracesOfEnvoy(t *testing.T) {
	c := tracetest.Start(t)
	b := lay(t, traced(c, func(e config) { e.traced(t, strings.TrimPrefix(c.GRPC, "http://")) }))
	b.post(200, chats, chat(words(1, 100)), "traceparent", "00-"+clientTrace+"-"+clientSpan+"-01")
	e2e.Eventually(t, "the picker's span is below Envoy's", func() error {
		got := c.Await(t, clientTrace, "chat "+model)
		for at := got.Named("chat " + model)[0]; ; {
			i := slices.IndexFunc(got, func(s tracetest.Span) bool { return s.ID == at.Parent })
			switch {
			case i >= 0:
				at = got[i]
			case at.Parent == clientSpan && at.Attributes["service.name"] == "envoy":
				return nil
			default:
				return fmt.Errorf("%q is the topmost in:\n%v", at.Name, got)
			}
		}
	})
	if parent := engineOf(t, b, chats).seen.header.Get("Traceparent"); !strings.HasPrefix(parent, "00-"+clientTrace+"-") {
		t.Errorf("the engine is told %q", parent)
	}
}

// traced lets Envoy send spans to an OTLP receiver.
func (c config) traced(t *testing.T, receiver string) {
	host, port, err := net.SplitHostPort(receiver)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	c.root["layered_runtime"] = object{"layers": []any{object{"name": "spans at once", "static_layer": object{"tracing.opentelemetry.min_flush_spans": 1}}}}
	clusters := objectAt(c.root, "static_resources")
	clusters["clusters"] = append(clusters["clusters"].([]any), object{
		"name": "collector", "type": "STATIC",
		"typed_extension_protocol_options": c.cluster("picker")["typed_extension_protocol_options"],
		"load_assignment": object{"cluster_name": "collector", "endpoints": []any{object{"lb_endpoints": []any{
			object{"endpoint": object{"address": object{"socket_address": object{"address": host, "port_value": number}}}},
		}}}},
	})
	c.connections()["tracing"] = object{"provider": object{"name": "envoy.tracers.opentelemetry", "typed_config": object{
		"@type":        "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
		"grpc_service": object{"envoy_grpc": object{"cluster_name": "collector"}}, "service_name": "envoy",
	}}}
}

// reached is an engine with the last request that reached it.
type reached struct {
	port string
	seen seen
}

// engineOf returns the engine that a request to a path reached last. All that was seen before is
// kept for further calls.
func engineOf(t *testing.T, b *bed, path string) (last reached) {
	t.Helper()
	for _, e := range b.engines {
		_, port, err := net.SplitHostPort(e.address)
		if err != nil {
			t.Fatal(err)
		}
		e.mu.Lock()
		for _, s := range e.seen {
			if strings.HasSuffix(s.path, path) && s.at.After(last.seen.at) {
				last = reached{port, s}
			}
		}
		e.mu.Unlock()
	}
	if last.port == "" {
		t.Fatalf("no engine was asked %s", path)
	}
	return last
}
