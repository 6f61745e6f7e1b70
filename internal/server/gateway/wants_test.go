package gateway_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestTargetHeaders: a header that says nothing that can be wanted is refused by its name, and the request is booked
// nowhere. A header under its present name goes before the former one.
func TestTargetHeaders(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	ask := func(headers ...string) placed {
		e, p := w.post(chatPath, chat(servicetest.Prompt(1, 8), ""), headers...)
		e.close()
		return p
	}
	for _, headers := range [][]string{
		{"x-llm-d-slo-ttft-ms", "500"},
		{"x-llm-d-slo-ttft-ms", " 1 ", "x-slo-ttft-ms", "soon"},
		{"x-slo-ttft-ms", "2.5"},
		{"x-select-deadline-ms", "86400000", "x-select-on-miss", "Place"},
		{"x-select-on-miss", "refuse"},
		{"x-llm-d-slo-ttft-ms", ""},
	} {
		if p := ask(headers...); p.status != 0 {
			t.Errorf("%q: answered %d %s", headers, p.status, p.answer)
		}
	}
	for _, headers := range [][]string{
		{"x-llm-d-slo-ttft-ms", "0"},
		{"x-llm-d-slo-ttft-ms", "-5"},
		{"x-llm-d-slo-ttft-ms", "NaN"},
		{"x-llm-d-slo-ttft-ms", "Inf"},
		{"x-llm-d-slo-ttft-ms", "soon"},
		{"x-llm-d-slo-ttft-ms", "3600001"},
		{"x-slo-ttft-ms", "500ms"},
		{"x-slo-ttft-ms", "0x1F4p0"},
		{"x-select-deadline-ms", "0X1p9"},
		{"x-llm-d-slo-ttft-ms", "1_000"},
		{"x-select-deadline-ms", "3155760000000"},
		{"x-select-deadline-ms", "tomorrow"},
		{"x-select-on-miss", "drop"},
	} {
		p := ask(headers...)
		if p.status != 400 || !strings.Contains(p.answer, headers[0]+" must be ") || !strings.Contains(p.answer, "invalid_target") {
			t.Errorf("%q: answered %d %s", headers, p.status, p.answer)
		}
	}
	w.wantLoads("1/0: 0 0 0")
}

// TestTargetsIgnored: with --request-targets=false requests are placed whatever they want, and those that want something
// are counted, whether it can be wanted or not.
func TestTargetsIgnored(t *testing.T) {
	w := start(t, func(c *node.Config, _ *settings) { c.Selection.IgnoreTargets = true })
	w.put(1, 1)
	for _, value := range []string{"500", "soon", "", "1", "3600001"} {
		e, p := w.post(chatPath, chat(servicetest.Prompt(1, 8), ""), "x-llm-d-slo-ttft-ms", value, "x-select-on-miss", "refuse")
		e.close()
		if p.status != 0 {
			t.Errorf("%q: answered %d %s", value, p.status, p.answer)
		}
	}
	if n := servicetest.Sum(w.Metrics()["request_targets_total"], "m", "ignored"); n != 4 {
		t.Errorf("%g were counted", n)
	}
}

// TestPromisesSeen: what came of a target is when the first token came to the client, whatever else has told the end of the
// prefill; of a deadline, when the answer was whole. Answers that fail, and those that nobody waits for any more, hold no deadline.
func TestPromisesSeen(t *testing.T) {
	for name, tt := range map[string]struct {
		play           func(e *envoy)
		tokens, wholes float64
	}{
		"stream": {func(e *envoy) {
			e.response(200, "text/event-stream", false)
			e.chunk(event("a"), false)
			e.chunk("data: [DONE]\n\n", true)
		}, 1, 1},
		"one piece": {func(e *envoy) {
			e.response(200, "application/json", false)
			e.chunk(`{"choices":[{"message":{"content":"a"}}]}`, true)
		}, 1, 1},
		"client gone": {func(e *envoy) {
			e.response(200, "text/event-stream", false)
			e.chunk(event("a"), false)
		}, 1, 0},
		"engine fails": {func(e *envoy) { e.response(500, "application/json", true) }, 0, 0},
		"no answer":    {func(*envoy) {}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			w.put(1, 1)
			e, p := w.post(chatPath, chat(servicetest.Prompt(1, 8), ""), "x-slo-ttft-ms", "3600000", "x-select-deadline-ms", "3600000", "x-tenant-id", "gold")
			if p.status != 0 {
				t.Fatalf("answered %d %s", p.status, p.answer)
			}
			tt.play(e)
			e.close()
			await(t, func() string {
				got := w.Metrics()["promises_total"]
				tokens, wholes := servicetest.Sum(got, "gold", "first_token"), servicetest.Sum(got, "gold", "answer")
				if tokens != tt.tokens || wholes != tt.wholes || servicetest.Sum(got, "attained") != tokens+wholes {
					return fmt.Sprint(got)
				}
				return ""
			})
		})
	}
}
