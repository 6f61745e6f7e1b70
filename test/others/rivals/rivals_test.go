package main

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// TestEnvoyConfig proves that the example's configuration still has what is adapted in it, and that
// none of its own addresses is left.
func TestEnvoyConfig(t *testing.T) {
	text, err := os.ReadFile("../../../examples/gateway/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	w := world{play: &play{restart: true}, engines: []engine{{port: 21}, {port: 22}, {port: 23}}}
	got, err := w.envoy(string(text), map[int]int{10000: 1, 10001: 2, 9901: 3, 9002: 4})
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range []string{"8001", "8002", "9002", "9901", "10000", "10001"} {
		if strings.Contains(got, "port_value: "+port+"}") {
			t.Errorf("port %s is left:\n%s", port, got)
		}
	}
	if strings.Count(got, "port_value: 2") != 4 || strings.Count(got, "retry_policy") != 2 {
		t.Errorf("engines or retries are missing:\n%s", got)
	}
}

// TestReport proves that the table has medians in the order of the contestants, and that only our
// own failures without a restart are an error, and that results are read back.
func TestReport(t *testing.T) {
	rep := report{Machine: "m", Rounds: 3, Results: []result{
		{Play: "eight-50", Contestant: "smg", TTFTMean: 3},
		{Play: "eight-50", Contestant: "select-service", TTFTMean: 9},
		{Play: "eight-50", Contestant: "select-service", TTFTMean: 1},
		{Play: "eight-50", Contestant: "select-service", TTFTMean: 2},
		{Play: "restart", Contestant: "select-service", Round: 1, Failed: 1},
		{Play: "eight-50", Contestant: "smg", Failed: 1, TTFTMean: 1},
	}}
	text := rep.markdown()
	ours, theirs := strings.Index(text, "| select-service | 0 | 0 | 0.0 % | 2.0 ms"), strings.Index(text, "| smg |")
	if ours < 0 || theirs < ours || strings.Contains(text, "many-75") {
		t.Errorf("table:\n%s", text)
	}
	if err := rep.failures(); err != nil {
		t.Error(err)
	}
	rep.Results[2].Failed = 1
	if rep.failures() == nil {
		t.Error("a failed request of select-service is no error")
	}
	if !strings.Contains(text, "select-service by the best rival of each figure: hit rate +0.0 points, TTFT mean 2.00") {
		t.Errorf("no comparison:\n%s", text)
	}
	rep.Paired = true
	rep.Results = append(rep.Results, result{Play: "cost", Contestant: "smg", Round: 1, CPU: 2}, result{Play: "cost", Contestant: "smg", Round: 2, CPU: 4},
		result{Play: "cost", Contestant: "proxy", Round: 1, CPU: 1}, result{Play: "cost", Contestant: "proxy", Round: 2, CPU: 3})
	if text := rep.markdown(); !strings.Contains(text, "| proxy | 0.50 (0.50–0.75) |") { // of each round, not of the medians
		t.Errorf("no ratios of paired rounds:\n%s", text)
	}
	dir := t.TempDir()
	var again report
	if err := errors.Join(again.read(dir), rep.write(dir), again.read(dir)); err != nil {
		t.Fatal(err)
	}
	if !again.has("restart", "select-service", 1) || again.has("restart", "select-service", 2) {
		t.Errorf("read back: %+v", again.Results)
	}
	if svg := rep.plot("eight-50"); !strings.Contains(svg, "select-service") {
		t.Errorf("plot: %s", svg)
	}
}
