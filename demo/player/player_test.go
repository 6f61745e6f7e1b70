package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func playJSON(t *testing.T, args ...string) (report, string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "results.json")
	var out bytes.Buffer
	runErr := run(t.Context(), append(args, "--json", file), &out)
	var rep report
	text, err := os.ReadFile(file)
	if err != nil {
		return rep, out.String(), runErr
	}
	if err := json.Unmarshal(text, &rep); err != nil {
		t.Fatal(err)
	}
	return rep, out.String(), runErr
}

// TestAllPolicies plays a small workload through a server of the same contract,
// under every policy. It proves that each policy gets all requests on restarted
// engines, that the lifecycle of every reservation is complete and in order, that
// placing by content hits more, and that nothing stays registered.
func TestAllPolicies(t *testing.T) {
	svc, target := newFakeService(t)
	urls := startEngines(t, svc, 3, 16384)
	const n = "30"
	rep, out, err := playJSON(t, "--target", target, "--engines", strings.Join(urls, ","), "--requests", n, "--speedup", "200")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var names []string
	for _, r := range rep.Results {
		names = append(names, r.Policy)
		if r.Requests != 30 || r.Failed != 0 || r.Unreported != 0 {
			t.Errorf("%s: %d requests, %d failed, %d unreported: %v", r.Policy, r.Requests, r.Failed, r.Unreported, r.Errors)
		}
		if r.HitRate <= 0 || r.HitRate >= 1 || r.TTFTMeanMS <= 0 || r.TTFTP90MS < r.TTFTP50MS || r.TTFTP99MS < r.TTFTP90MS || r.BusySpread < 1 {
			t.Errorf("%s: implausible figures %+v", r.Policy, r)
		}
		if math.Abs(r.TPOTMeanMS-20) > 0.001 || r.TPOTP99MS < r.TPOTP50MS || r.TotalMeanMS <= r.TTFTMeanMS || r.AskedTTFTMeanMS < r.TTFTMeanMS {
			t.Errorf("%s: implausible times of answers %+v", r.Policy, r)
		}
	}
	if !slices.Equal(names, allPolicies) {
		t.Errorf("policies %v", names)
	}
	if ours, rr := rep.Results[0].HitRate, rep.Results[1].HitRate; ours <= rr {
		t.Errorf("hit rate by content %.2f, round robin %.2f", ours, rr)
	}
	checkBookings(t, svc)
	for name, n := range svc.published {
		if n == 0 {
			t.Errorf("%s published nothing", name)
		}
	}
	for _, want := range []string{"request 9 → worker ", "select-service  30/30 requests", "round-robin", "hit rate", "TTFT mean", "p90", "TPOT", "load spread"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
}

func checkBookings(t *testing.T, svc *fakeService) {
	t.Helper()
	if len(svc.reservations) != 30 || len(svc.workers) != 0 {
		t.Errorf("%d reservations, %d workers left", len(svc.reservations), len(svc.workers))
	}
	for id, steps := range svc.reservations {
		if len(steps) < 3 || steps[1] != "prefill_complete" || steps[len(steps)-1] != "freed" {
			t.Errorf("%s: %v", id, steps)
		}
	}
}

// TestModelsAndLateLifecycle proves that one run plays the service under several
// models, each with the engines registered under it, and that with --lifecycle late the
// service hears of nothing before the end of a request.
func TestModelsAndLateLifecycle(t *testing.T) {
	svc, target := newFakeService(t)
	urls := startEngines(t, svc, 2, 16384)
	rep, out, err := playJSON(t, "--target", target, "--engines", strings.Join(urls, ","), "--requests", "20", "--speedup", "200",
		"--policies", "select-service,select-service/other", "--lifecycle", "late")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(rep.Results) != 2 || rep.Results[0].Model != "sim" || rep.Results[1].Policy != "select-service/other" || rep.Results[1].Model != "other" {
		t.Errorf("results %+v", rep.Results)
	}
	if !svc.models["sim"] || !svc.models["other"] {
		t.Errorf("engines were registered under %v", svc.models)
	}
	for id, steps := range svc.reservations {
		if !slices.Equal(steps, []string{"booked", "prefill_complete", "freed"}) {
			t.Errorf("%s: %v", id, steps)
		}
	}
}

// TestRounds proves that rounds have tenants and reservations of their own, unless what
// was learned is to be kept, and that all of them are in the results.
func TestRounds(t *testing.T) {
	for warm, tenants := range map[bool]map[string]bool{
		false: {"default": true, "default-2": true}, true: {"default": true},
	} {
		svc, target := newFakeService(t)
		urls := startEngines(t, svc, 2, 16384)
		rep, out, err := playJSON(t, "--target", target, "--engines", strings.Join(urls, ","), "--requests", "10", "--speedup", "200",
			"--policies", "select-service,random", "--rounds", "2", fmt.Sprintf("--warm=%t", warm))
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if len(rep.Results) != 4 || rep.Results[3].Round != 2 || len(rep.Comparisons) != 1 || !strings.Contains(out, "medians of 2 rounds") {
			t.Errorf("results %+v\n%s", rep, out)
		}
		if !maps.Equal(svc.tenants, tenants) || len(svc.reservations) != 20 {
			t.Errorf("warm %t: tenants %v, %d reservations", warm, svc.tenants, len(svc.reservations))
		}
	}
}

// TestAgain proves that a play whose requests came too late is played again, as often as
// asked, under a tenant of its own: at this speedup a microsecond is too late.
func TestAgain(t *testing.T) {
	svc, target := newFakeService(t)
	urls := startEngines(t, svc, 2, 16384)
	rep, out, err := playJSON(t, "--target", target, "--engines", strings.Join(urls, ","), "--requests", "10", "--speedup", "1000000",
		"--policies", "select-service", "--again", "2")
	if err != nil || len(rep.Results) != 1 || len(svc.tenants) != 3 || strings.Count(out, "select-service again: the machine was too busy") != 2 {
		t.Errorf("%v, %d results, tenants %v\n%s", err, len(rep.Results), svc.tenants, out)
	}
	if !strings.Contains(out, "round 1: the machine was too busy") {
		t.Errorf("nothing says that the figures are spoilt:\n%s", out)
	}
}

// TestSlowPhase proves that an engine is slowed when its phase begins, and told its
// old speed when it ends.
func TestSlowPhase(t *testing.T) {
	svc, target := newFakeService(t)
	urls := startEngines(t, svc, 2, 16384)
	_, out, err := playJSON(t, "--target", target, "--engines", strings.Join(urls, ","), "--requests", "20", "--speedup", "200",
		"--policies", "round-robin", "--slow", "2:0.3:0.25-0.75")
	if err != nil || !slices.Equal(svc.slowed, []float64{0.3, 1}) {
		t.Errorf("%v, factors %v\n%s", err, svc.slowed, out)
	}
}

// TestFailuresAreReported proves that a request that the service refuses is
// counted, shown, and makes the run fail.
func TestFailuresAreReported(t *testing.T) {
	svc, target := newFakeService(t)
	svc.refuse["sim-3"] = true
	urls := startEngines(t, svc, 2, 16384)
	rep, out, err := playJSON(t, "--target", target, "--engines", strings.Join(urls, ","),
		"--requests", "6", "--speedup", "500", "--policies", "select-service")
	if err == nil || len(rep.Results) != 1 || rep.Results[0].Failed != 1 || rep.Results[0].Requests != 5 {
		t.Errorf("err %v, results %+v", err, rep.Results)
	}
	if !strings.Contains(out, "request 3") || !strings.Contains(out, "503") {
		t.Errorf("the failure is not shown:\n%s", out)
	}
}

// TestTraceIsPlayed proves that --trace replaces the workload, and that a
// request too large for an engine fails alone.
func TestTraceIsPlayed(t *testing.T) {
	svc, target := newFakeService(t)
	urls := startEngines(t, svc, 1, 64)
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	text := `{"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [1, 2]}
{"timestamp": 5000, "input_length": 700, "output_length": 20, "hash_ids": [1, 2]}
{"timestamp": 5000, "input_length": 1500, "output_length": 20, "hash_ids": [1, 2, 3]}
`
	if err := os.WriteFile(trace, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	rep, _, err := playJSON(t, "--target", target, "--engines", urls[0], "--trace", trace, "--speedup", "500", "--policies", "least-loaded")
	if err == nil || len(rep.Results) != 1 {
		t.Fatalf("err %v, results %+v", err, rep.Results)
	}
	if r := rep.Results[0]; r.Requests != 2 || r.Failed != 1 || r.HitRate != 688.0/1400 {
		t.Errorf("%d requests, %d failed, hit rate %v (%v)", r.Requests, r.Failed, r.HitRate, r.Errors)
	}
}

// TestTraceIsWritten proves that --write-trace needs no engines, and that its file can be
// played.
func TestTraceIsWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agents.jsonl")
	if err := run(t.Context(), []string{"--workload", "agents", "--seed", "4", "--requests", "50", "--write-trace", file}, io.Discard); err != nil {
		t.Fatal(err)
	}
	conf := defaults()
	conf.Trace = file
	requests, err := load(conf)
	if err != nil || len(requests) != 50 {
		t.Errorf("%v, %d requests", err, len(requests))
	}
}

// TestInterrupt proves that an interrupted run ends at once, without a table,
// and takes its workers out of the service.
func TestInterrupt(t *testing.T) {
	svc, target := newFakeService(t)
	urls := startEngines(t, svc, 2, 16384)
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	done := make(chan error)
	go func() {
		done <- run(ctx, []string{"--target", target, "--engines", strings.Join(urls, ","), "--speedup", "1"}, &out)
	}()
	<-svc.first
	cancel()
	if err := <-done; err == nil || strings.Contains(out.String(), "TTFT") {
		t.Errorf("err %v, output:\n%s", err, out.String())
	}
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if len(svc.workers) != 0 {
		t.Errorf("%d workers are still registered", len(svc.workers))
	}
}

// TestClosedLoop plays a trace of sessions: every turn comes its pause after the answer before it, so a session takes as long as
// its answers and pauses do, and the results say so. The service is told of the sessions, which are others in each play.
func TestClosedLoop(t *testing.T) {
	svc, target := newFakeService(t)
	urls := startEngines(t, svc, 2, 16384)
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	lines := `{"session_id":"a","input_length":600,"output_length":101,"hash_ids":[1,2],"timestamp":0}
{"session_id":"a","input_length":10,"output_length":101,"hash_ids":[3],"delay":30000}
{"session_id":"b","input_length":20,"output_length":51,"hash_ids":[1],"parent_session_id":"a","parent_turn":1,"delay":4000}
`
	if err := os.WriteFile(trace, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	rep, out, err := playJSON(t, "--target", target, "--engines", strings.Join(urls, ","), "--trace", trace, "--speedup", "20", "--policies", "round-robin")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// 100 tokens take 2 s at 50 a second, and a's second turn waits for b, which takes 4 s + 1 s, and then 30 s more.
	r := rep.Results[0]
	if r.Requests != 3 || r.Sessions != 2 || r.SessionP99S < 2+4+1+30+2 || r.SessionMeanS < (39+1)/2 || r.TotalP99MS < r.TotalMeanMS || !rep.Config.Closed {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(out, "2 whole sessions took") {
		t.Error(out)
	}
	if _, out, err = playJSON(t, "--target", target, "--engines", strings.Join(urls, ","), "--trace", trace, "--speedup", "200", "--policies", "select-service", "--rounds", "2"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if want := []sessionContext{{"sim-a", ""}, {"sim-b", "sim-a"}, {"sim-a", ""}, {"sim-2-a", ""}, {"sim-2-b", "sim-2-a"}, {"sim-2-a", ""}}; !slices.Equal(svc.sessions, want) {
		t.Errorf("the service is told of the sessions %v, want %v", svc.sessions, want)
	}
	_, _, err = playJSON(t, "--target", target, "--engines", strings.Join(urls, ","), "--trace", trace, "--disturb", "true")
	if err == nil || !strings.Contains(err.Error(), "disturb: ") {
		t.Error(err)
	}
}
