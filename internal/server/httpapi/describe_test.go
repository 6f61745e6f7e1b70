package httpapi

import (
	"strings"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestWishes proves what a registration asks of an engine: nothing by default, and its model only
// where the record and its set leave that open.
func TestWishes(t *testing.T) {
	for body, want := range map[string]*catalog.Describe{
		`{"worker_id":1}`:                                    nil,
		`{"worker_id":1,"describe":null}`:                    nil,
		`{"worker_id":1,"describe":false}`:                   nil,
		`{"worker_id":1,"describe":true}`:                    {Model: true},
		`{"worker_id":1,"describe":"sglang"}`:                {Engine: "sglang", Model: true},
		`{"worker_id":1,"describe":"vllm","model_name":"m"}`: {Engine: "vllm"},
		`{"worker_id":1,"describe":"x"}`:                     nil,
		`{"worker_id":1,"describe":1}`:                       nil,
	} {
		f := &fake{worker: &catalog.Worker{}}
		w := call(t, newHandler(f), "POST", "/workers", body, nil)
		equal(t, body, f.record.Describe, want)
		if refused := strings.Contains(body, `"x"`) || strings.HasSuffix(body, ":1}") && strings.Contains(body, "describe"); refused != (w.Code == 422) {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
	for body, want := range map[string]*catalog.Describe{
		`{"workers":[{"worker_id":1,"describe":true}]}`:                        {Model: true},
		`{"workers":[{"worker_id":1,"describe":true,"model_name":"m"}]}`:       {},
		`{"workers":[{"worker_id":1,"describe":"vllm"}],"model_name":"m"}`:     {Engine: "vllm"},
		`{"workers":[{"worker_id":1,"describe":true}],"model_name":"default"}`: {},
	} {
		f := &fake{}
		call(t, newHandler(f), "PUT", "/workers", body, nil)
		equal(t, body, f.records[0].Describe, want)
	}
}

// TestDescribed proves how an answer says what an engine has filled in.
func TestDescribed(t *testing.T) {
	told := &catalog.Description{
		Engine: "sglang", Version: "0.5.23", TotalKVBlocks: 100, MaxNumBatchedTokens: 8,
		From: map[string]string{"block_size": "/server_info", "total_kv_blocks": "/server_info", "max_num_batched_tokens": "/server_info"},
	}
	for want, d := range map[string]*catalog.Describe{
		`"describe":true`: {Fault: "away"},
		`"describe":"vllm","described":{"from":{}}`: {Engine: "vllm", Told: new(catalog.Description)},
		`"describe":true,"described":{"engine":"sglang","version":"0.5.23","total_kv_blocks":100,"max_num_batched_tokens":8,` +
			`"from":{"block_size":"/server_info","max_num_batched_tokens":"/server_info","total_kv_blocks":"/server_info"}}`: {
			Told: told, Filled: map[string]string{"block_size": "/server_info"},
		},
	} {
		if got := string(appendDescription([]byte("{"), &catalog.Worker{Record: catalog.Record{Describe: d}})); strings.TrimPrefix(got, "{") != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	if got := appendDescription(nil, new(catalog.Worker)); got != nil {
		t.Errorf("not described: %s", got)
	}
}
