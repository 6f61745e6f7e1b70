package main

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestServeUnderPressure: the thresholds of flag and environment are in force at
// the start, a refusal has the configured header, and the requests of all
// listeners are in the metrics of the selection's, Dynamo's names on demand.
func TestServeUnderPressure(t *testing.T) {
	p := launch(t, env("DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD", "None", "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD", "7"), 3,
		"--listen", "127.0.0.1", "--port", "0", "--slots-port", freePort(t), "--conductor-port", freePort(t), "--use-kv-events=false",
		"--active-prefill-tokens-threshold", "3", "--overload-retry-after-secs", "2", "--metrics-dynamo-aliases")
	selection := p.urls[selectionContract]
	for _, step := range []struct {
		base, method, path, body string
		status                   int
		answer                   string // part
	}{
		{selection, "POST", "/workers", `{"worker_id":1,"endpoint":"http://w","block_size":4}`, 201, `"lifecycle":"schedulable"`},
		{selection, "GET", "/busy_threshold", "", 200, `"active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":3,`},
		{selection, "POST", "/select_and_reserve", `{"token_ids":[1,2,3,4]}`, 200, `"worker_id":1`},
		{selection, "POST", "/select", `{"token_ids":[1]}`, 503, `"type":"service_unavailable","code":503`},
		{p.urls[slotsContract], "GET", "/loads", "", 200, ""},
		{p.urls[conductorContract], "GET", "/services", "", 200, ""},
		{selection, "GET", "/metrics", "", 200, `select_service_http_requests_total{code="503",listener="selection",method="POST",route="/select"} 1` + "\n"},
		{selection, "GET", "/metrics", "", 200, `select_service_http_requests_total{code="200",listener="slots",method="GET",route="/loads"} 1` + "\n"},
		{selection, "GET", "/metrics", "", 200, `select_service_http_requests_total{code="200",listener="conductor",method="GET",route="/services"} 1` + "\n"},
		{selection, "GET", "/metrics", "", 200, "dynamo_kvindexer_workers"},
	} {
		status, answer := p.callAt(step.base, step.method, step.path, step.body)
		if status != step.status || !strings.Contains(answer, step.answer) {
			t.Errorf("%s %s: %d %s, want %d %s", step.method, step.path, status, answer, step.status, step.answer)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, selection+"/select", strings.NewReader(`{"token_ids":[1]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Retry-After"); resp.StatusCode != http.StatusServiceUnavailable || got != "2" {
		t.Errorf("status %d, Retry-After %q", resp.StatusCode, got)
	}
	p.stop()
	p.ended(5 * time.Second)
}
