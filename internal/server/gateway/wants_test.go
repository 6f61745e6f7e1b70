package gateway_test

import (
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
// are counted.
func TestTargetsIgnored(t *testing.T) {
	w := start(t, func(c *node.Config, _ *settings) { c.Selection.IgnoreTargets = true })
	w.put(1, 1)
	for _, value := range []string{"500", "soon", "", "1"} {
		e, p := w.post(chatPath, chat(servicetest.Prompt(1, 8), ""), "x-llm-d-slo-ttft-ms", value, "x-select-on-miss", "refuse")
		e.close()
		if p.status != 0 {
			t.Errorf("%q: answered %d %s", value, p.status, p.answer)
		}
	}
	if n := servicetest.Sum(w.Metrics()["request_targets_total"], "m", "ignored"); n != 2 {
		t.Errorf("%g were counted", n)
	}
}
