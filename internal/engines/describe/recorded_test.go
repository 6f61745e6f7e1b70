package describe_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/internal/engines/describe"
)

// TestRecorded proves that what real releases have said is read: kv_events of SGLang 0.5.23's
// server information, by its own code for several arguments, and the metrics of vLLM 0.32.0 with
// two ranks of 64 blocks each.
func TestRecorded(t *testing.T) {
	text, err := os.ReadFile("testdata/sglang-0.5.23.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded map[string]json.RawMessage
	if err := json.Unmarshal(text, &recorded); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for name, events := range recorded {
		at := engine(t, answers{"/v1/models": models, "/server_info": fmt.Sprintf(`{"version":"0.5.23","page_size":64,"kv_events":%s}`, events)})
		d, err := client(t).Describe(t.Context(), at, "")
		if err != nil {
			t.Fatal(err)
		}
		got[name] = strings.ReplaceAll(fmt.Sprint(d.BlockSize, d.Size, d.KVEventsEndpoints, d.ReplayEndpoints, d.LoadEndpoints, d.Unknown), at, "")
	}
	want := map[string]string{
		"ranks, replays and load": "64 2 map[0:tcp://127.0.0.1:5557 1:tcp://127.0.0.1:5558] map[0:tcp://127.0.0.1:5559 1:tcp://127.0.0.1:5560] " +
			"map[0:tcp://127.0.0.1:5561 1:tcp://127.0.0.1:5562] map[]",
		"context parallel":      "128 1 map[0:tcp://127.0.0.1:5557] map[] map[] map[]",
		"all addresses of IPv6": "64 1 map[0:tcp://127.0.0.1:6000] map[] map[] map[]",
		"connects to a subscriber": "64 0 map[] map[] map[] map[kv_events_endpoints:GET /server_info: the engine names sockets on \"10.0.0.9\", " +
			"which is not the host of its URL]",
		"no events": "64 0 map[] map[] map[] map[kv_events_endpoints:GET /server_info: the engine publishes no KV events (--kv-events-config)]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got: %s", diff)
	}
	page, err := os.ReadFile("testdata/vllm-0.32.0-metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	cache, err := client(t).Cache(t.Context(), engine(t, answers{"/metrics": string(page)}), engines.Named(""))
	if wantCache := (describe.Cache{BlockSize: 32, Blocks: 64, Ranks: 2}); err != nil || cache != wantCache {
		t.Errorf("%+v, %v, want %+v", cache, err, wantCache)
	}
}
