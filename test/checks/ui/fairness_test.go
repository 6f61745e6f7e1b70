package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// fairPolicy has a class in which tenants and programs take turns, and a policy that predicts first tokens.
const fairPolicy = `
default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: agents, policy_family: f, cache_bucket: all, quantum: 1, prefill_busy_threshold: 100000, fairness: {by: program, weights: {gold: 3}}}
worker_selection: {aggregated: p, instances: [{name: p, type: predicted-ttft}]}
`

// traffic has tenants send requests with targets to a service, one after the other.
func traffic(t *testing.T, base string, n int) {
	t.Helper()
	for i := range n {
		tenant := []string{"gold", "gold", "silver", "a-tenant-with-a-name-that-is-longer-than-others-and-does-not-fit-into-a-column"}[i%4]
		tokens := make([]uint32, 20+i%7*60)
		for k := range tokens {
			tokens[k] = uint32(i*1000 + k)
		}
		body, err := json.Marshal(map[string]any{
			"model_name": "llama", "token_ids": tokens, "reservation_id": fmt.Sprint("r", i), "fairness_id": fmt.Sprint("agent-", i%5),
			"ttft_target_ms": []int{1, 60000}[i%2],
		})
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/select_and_reserve", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-Tenant-Id", tenant)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode >= 300 {
			t.Fatalf("%d", resp.StatusCode)
		}
		post(t, fmt.Sprintf("%s/reservations/r%d/prefill_complete", base, i), "", "")
		if i < n-3 { // some still run
			r, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, fmt.Sprintf("%s/reservations/r%d", base, i), nil)
			if err != nil {
				t.Fatal(err)
			}
			if resp, err = http.DefaultClient.Do(r); err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
		}
	}
}

// TestConsumers: with traffic of several tenants the fleet's view shows who uses the engines most, by tenant or by program, and
// that of the decisions how predictions compare with what was observed. Both fit into a phone's window.
func TestConsumers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(fairPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DYN_ROUTER_POLICY_CONFIG", file)
	base, _ := start(t, "--use-kv-events=false")
	for id := 1; id <= 2; id++ {
		post(t, base+"/workers", "", fmt.Sprintf(`{"worker_id": %d, "model_name": "llama", "endpoint": "http://127.0.0.1:1", "block_size": 16, "total_kv_blocks": 1000, "max_num_batched_tokens": 8192}`, id))
	}
	traffic(t, base, 320)
	for _, width := range []int64{1440, 390} {
		p := open(t, base, "#/fleet", width, 900, width == 390)
		p.says("Greatest consumers of engine time")
		p.says("gold")
		name := fmt.Sprint("consumers-", width)
		fits := func() {
			t.Helper()
			if wide := p.is("document.documentElement.scrollWidth - document.documentElement.clientWidth"); wide.(float64) > 0 {
				t.Errorf("the page is %v px wider than its window of %d", wide, width)
			}
		}
		fits()
		p.shoot(name, true)
		p.audit(name)
		p.is(`document.querySelector("#consumers").parentElement.querySelector("input").click()`)
		p.says("agent-3")
		fits()
		p.shoot(name+"-programs", true)
		p.is(`location.hash = "#/decisions"`)
		p.says("Calibration by decile")
		p.says("nine of ten within")
		fits()
		name = fmt.Sprint("calibration-", width)
		p.shoot(name, false)
		p.audit(name)
	}
}
