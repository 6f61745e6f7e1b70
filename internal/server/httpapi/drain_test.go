package httpapi

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestDrain plays both calls against a real service: they may be repeated, work without a body,
// and do not depend on the worker's source.
func TestDrain(t *testing.T) {
	svc := node.New(node.Config{Threads: 1}, nil, zerolog.Nop())
	h := New(svc.UseCases, svc.Conductor(), Options{Log: zerolog.Nop()})
	const drain = "/workers/1/drain"
	record := func(lifecycle string) string {
		return `{"worker_id":1,"model_name":"m","tenant_id":"default","lifecycle":"` + lifecycle + `",`
	}
	fault := func(text string) string { return `{"error":"` + text + `"}` }
	outside := fault("deadline_seconds must be between 0 and 604800")
	play(t, h, []step{
		{"POST", drain, "", 404, fault("worker 1 not found")},
		{"DELETE", drain, "", 404, fault("worker 1 not found")},
		{"POST", "/workers/x/drain", "", 400, fault("Invalid URL: Cannot parse `x` to a `u64`")},
		{"POST", "/workers", `{"worker_id":1,"model_name":"m","endpoint":"http://w","block_size":4}`, 201, record("schedulable") + "*"},
		{"POST", drain, "", 200, record("draining") + `"drain":{},"endpoint":"http://w"*`},
		{"POST", "/v1.3" + drain, "{}", 200, record("draining") + `"drain":{},*`},
		{"POST", "/v1.6" + drain, `{"deadline_seconds":null,"unknown":1}`, 200, `{"worker_id":1,"model_name":"m","routing_group":"default","lifecycle":"draining","drain":{},*`},
		{"GET", "/workers", "", 200, "[" + record("draining") + "*"},
		{"POST", "/select", `{"model_name":"m","token_ids":[1]}`, 503, fault("no schedulable workers are available")},
		{"POST", "/reservations", `{"model_name":"m","reservation_id":"r","worker_id":1,"token_ids":[1]}`, 201, `{"reservation_id":"r",*`},
		{"PATCH", "/workers/1", `{"total_kv_blocks":9}`, 200, record("draining") + "*"},
		{"DELETE", drain, "", 200, record("schedulable") + `"endpoint"*`},
		{"DELETE", drain, "", 200, record("schedulable") + `"endpoint"*`},
		{"DELETE", "/reservations/r", "", 200, `{"status":"ok"}`},

		{"POST", drain, `{"deadline_seconds":-1}`, 400, outside},
		{"POST", drain, `{"deadline_seconds":604800.5}`, 400, outside},
		{"POST", drain, `{"deadline_seconds":"1"}`, 422, `{"error":"Failed to deserialize the JSON body into the target type: deadline_seconds: invalid type: string*`},
		{"POST", drain, `{"deadline_seconds":1}x`, 400, `{"error":"Failed to parse the request body as JSON: *`},
		{"GET", "/workers", "", 200, "[" + record("schedulable") + "*"},
		{"POST", drain, `{"deadline_seconds":60}`, 200, record("draining") + `"drain":{"deadline":"*`},
		{"POST", drain, `{"deadline_seconds":604800}`, 200, record("draining") + `"drain":{"deadline":"*`},
	})
	left := time.Until(svc.UseCases.Workers(nil, nil)[0].Drain.Deadline)
	if left <= 0 || left > time.Minute {
		t.Errorf("the deadline is in %s", left)
	}
	if w := call(t, h, "GET", "/ready", "", nil); w.Code != http.StatusServiceUnavailable || !strings.HasPrefix(w.Body.String(), `{"ready":false,"schedulable_workers":0,"workers":[`+record("draining")) {
		t.Errorf("ready: %d %s", w.Code, w.Body)
	}
	if w := call(t, h, "GET", "/workers", "", nil); !strings.Contains(w.Body.String(), `"not_schedulable_reasons":["drained over the API"]`) {
		t.Errorf("no reason: %s", w.Body)
	}
}

// TestManagedWorker: a discovered worker says whose it is, and the calls that may not change it
// are refused with the reason; a drain is not.
func TestManagedWorker(t *testing.T) {
	svc := node.New(node.Config{Threads: 1}, nil, zerolog.Nop())
	h := New(svc.UseCases, svc.Conductor(), Options{Log: zerolog.Nop()})
	if _, err := svc.UseCases.ReplaceWorkers(catalog.Set{Kind: catalog.SourceKubernetes, Records: []catalog.Record{{
		ID: 7, Scope: catalog.Scope{Model: "m", Tenant: "t"}, Endpoint: new("http://w"), BlockSize: new(uint32(4)),
		Source: catalog.Source{Kind: catalog.SourceKubernetes, Namespace: "llm", Pod: "vllm-0", UID: "u", Pool: "p"},
	}}}); err != nil {
		t.Fatal(err)
	}
	const (
		source  = `"source":{"kind":"kubernetes","namespace":"llm","pod":"vllm-0","uid":"u","pool":"p"},`
		listed  = `{"worker_id":7,"model_name":"m","tenant_id":"t","lifecycle":"schedulable",` + source + `"endpoint"`
		managed = `worker 7 is managed by Kubernetes (pod llm/vllm-0)","reason":"managed"}`
		one     = `{"worker_id":7,"model_name":"m","tenant_id":"t"}`
	)
	for _, tt := range []struct{ method, path, body, want string }{
		{"POST", "/workers", one, `{"error":"` + managed},
		{"POST", "/v1.6/workers", one, `{"error":"` + managed},
		{"PATCH", "/workers/7", `{"total_kv_blocks":1}`, `{"error":"` + managed},
		{"DELETE", "/workers/7", "", `{"error":"` + managed},
		{"PUT", "/workers", `{"workers":[` + one + `]}`, `{"error":"workers[0]: ` + managed},
	} {
		if w := call(t, h, tt.method, tt.path, tt.body, nil); w.Code != http.StatusConflict || w.Body.String() != tt.want {
			t.Errorf("%s %s: %d %s", tt.method, tt.path, w.Code, w.Body)
		}
	}
	play(t, h, []step{
		{"PUT", "/workers", `{"workers":[]}`, 200, `{"added":[],"changed":[],"removed":[],"unchanged":0}`},
		{"GET", "/workers", "", 200, "[" + listed + "*"},
		{"POST", "/workers/7/drain", "", 200, strings.Replace(listed, `"schedulable",`+source, `"draining",`+source+`"drain":{},`, 1) + "*"},
		{"DELETE", "/workers/7/drain", "", 200, listed + "*"},
	})
}
