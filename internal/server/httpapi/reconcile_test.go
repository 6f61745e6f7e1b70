package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestReconcileWorkers plays PUT /workers against a real service (decision E5):
// the difference, names that workers inherit, and every fault, which names the
// entry and changes nothing.
func TestReconcileWorkers(t *testing.T) {
	svc := node.New(node.Config{Threads: 1}, nil, zerolog.Nop())
	h := New(svc.UseCases, svc.Conductor(), Options{Log: zerolog.Nop()})
	if err := svc.UseCases.SlotsRegister(node.SlotsWorker{Worker: 7, Scope: catalog.Scope{Model: "m", Tenant: "t"}, BlockSize: 4, DPSize: 1}); err != nil {
		t.Fatal(err)
	}
	const path, old, now = "/workers", "/v1.3/workers", "/v1.6/workers"
	nothing := func(n int) string {
		return fmt.Sprintf(`{"added":[],"changed":[],"removed":[],"unchanged":%d}`, n)
	}
	fault := func(text string) string { return `{"error":"` + text + `"}` }
	shape := func(what string) string { return `{"error":"` + shapePrefix + what }
	worker := func(id uint64) string {
		return fmt.Sprintf(`{"worker_id":%d,"endpoint":"http://w","block_size":4}`, id)
	}
	set := func(names string, workers ...string) string {
		return "{" + names + `"workers":[` + strings.Join(workers, ",") + "]}"
	}
	play(t, h, []step{
		{"PUT", path, set(""), 200, nothing(0)},
		// Two workers of the defaults; an id above 2^63 stays exact.
		{"PUT", path, set("", worker(1<<64-1), worker(1)), 200, `{"added":[1,18446744073709551615],"changed":[],"removed":[],"unchanged":0}`},
		{"PUT", path, set("", worker(1), worker(1<<64-1)), 200, nothing(2)},
		// One scope: the set's names come before or after the workers, in either dialect.
		{"PUT", path, `{"workers":[` + worker(2) + `,{"worker_id":3,"tenant_id":"t"}],"tenant_id":"t","model_name":"m"}`, 200, `{"added":[2,3],"changed":[],"removed":[],"unchanged":0}`},
		{"PUT", old, set(`"routing_group":"t","model_name":"m",`, worker(2), `{"worker_id":3,"model_name":"m"}`), 200, nothing(2)},
		{"PUT", now, set(`"routing_group":"t","tenant_id":"t","model_name":"m",`, worker(2), `{"worker_id":3,"routing_group":"t"}`), 200, nothing(2)},
		// A model alone, a tenant alone: the other name is the default.
		{"PUT", path, set(`"model_name":"n",`, worker(4), `{"worker_id":5,"tenant_id":"t"}`), 200, `{"added":[4,5],"changed":[],"removed":[],"unchanged":0}`},
		{"PUT", path, set(`"tenant_id":"u",`, worker(6)), 200, `{"added":[6],"changed":[],"removed":[],"unchanged":0}`},
		{"GET", "/workers?tenant_id=u", "", 200, `[{"worker_id":6,"model_name":"default","tenant_id":"u","lifecycle":"schedulable"*`},
		// An incomplete worker is none of the faults.
		{"PUT", path, set(`"tenant_id":"u",`, `{"worker_id":6,"block_size":4,"unknown":{}}`), 200, `{"added":[],"changed":[6],"removed":[],"unchanged":0}`},
		{"GET", "/workers?tenant_id=u", "", 200, `[{"worker_id":6,"model_name":"default","tenant_id":"u","lifecycle":"incomplete"*`},

		// Faults.
		{"PUT", path, set(`"model_name":"m",`, worker(2), worker(9), `{"worker_id":3,"data_parallel_size":5000}`), 400, fault("workers[2]: data_parallel_size 5000 exceeds the maximum 4096")},
		{"PUT", path, set(`"model_name":"m",`, worker(2), worker(2)), 400, fault("workers[1]: worker_id 2 is given twice")},
		{"PUT", path, set(`"model_name":"m","tenant_id":"t",`, worker(9), worker(7)), 409, fault("workers[1]: worker 7 already registered for model=m tenant=t")},
		{"PUT", now, set(`"model_name":"m","tenant_id":"t",`, worker(9), worker(7)), 409, fault("workers[1]: worker 7 already registered for model=m routing_group=t")},
		{"PUT", path, set(`"model_name":"m","tenant_id":"t",`, worker(6)), 409, fault("workers[0]: worker 6 already registered for model=default tenant=u")},
		{"PUT", path, set(`"model_name":"m",`, `{"worker_id":2,"model_name":"n"}`), 400, fault(`workers[0]: model_name \"n\" is not that of the set, \"m\"`)},
		{"PUT", old, set(`"routing_group":"t",`, `{"worker_id":2,"tenant_id":"u"}`), 400, fault(`workers[0]: tenant_id \"u\" is not that of the set, \"t\"`)},
		{"PUT", now, set(`"tenant_id":"t",`, `{"worker_id":2,"tenant_id":"u"}`), 400, fault(`workers[0]: routing_group \"u\" is not that of the set, \"t\"`)},
		{"PUT", path, set(`"model_name":"m",`, `{"worker_id":2,"tenant_id":"t","routing_group":"u"}`), 422, shape("workers[0].routing_group: *")},
		{"PUT", path, `{}`, 422, shape("missing field `workers`*")},
		{"PUT", path, `{"workers":null}`, 422, shape("workers: invalid type: null*")},
		{"PUT", path, `{"workers":{}}`, 422, shape("workers: invalid type: object*")},
		{"PUT", path, set("", worker(1), `{}`), 422, shape("workers[1]: missing field `worker_id`*")},
		{"PUT", path, set("", worker(1), `{"worker_id":-1}`), 422, shape("workers[1].worker_id: *")},
		{"PUT", path, set("", worker(1), `[]`), 422, shape("workers[1]: invalid type: array*")},
		{"PUT", path, `{"model_name":null,"workers":[]}`, 422, shape("model_name: invalid type: null*")},
		{"PUT", path, set("") + "x", 400, `{"error":"` + syntaxPrefix + "*"},
		{"PUT", path, `{"workers":[{"worker_id":1]}`, 400, `{"error":"` + syntaxPrefix + "*"},
	})
	var left []struct {
		ID uint64 `json:"worker_id"`
	}
	if err := json.Unmarshal(call(t, h, "GET", path, "", nil).Body.Bytes(), &left); err != nil || len(left) != 8 {
		t.Errorf("workers are %v, %v: a refused set changed them", left, err)
	}
	play(t, h, []step{
		{"PUT", path, set(""), 200, `{"added":[],"changed":[],"removed":[1,2,3,4,5,6,18446744073709551615],"unchanged":0}`},
		{"GET", "/slots/workers", "", 200, `[{"worker_id":7,*`},
	})
	svc.Close()
	play(t, h, []step{{"PUT", path, set(""), 503, fault("selection service is shutting down")}})
}

// TestWorkersFileHasTheSay: with a workers file a set is refused, while single
// workers still come and go.
func TestWorkersFileHasTheSay(t *testing.T) {
	const file, refused = "/etc/w.yaml", `{"error":"workers are managed by --workers-file /etc/w.yaml"}`
	svc := node.New(node.Config{Threads: 1, Given: workers.Given{File: file}}, nil, zerolog.Nop())
	h := New(svc.UseCases, svc.Conductor(), Options{Log: zerolog.Nop()})
	play(t, h, []step{
		{"POST", "/workers", `{"worker_id":1}`, 201, `{"worker_id":1,*`},
		{"PUT", "/workers", `{"workers":[]}`, 409, refused},
		{"PUT", "/v1.3/workers", `{}`, 409, refused},
		{"PUT", "/v1.6/workers", `nonsense`, 409, refused},
		{"PUT", "/workers?model_name=m", `{"workers":[]}`, 409, refused},
		{"PUT", "/workers", "", 405, `{"error":"method not allowed"}`},
		{"DELETE", "/workers/1", "", 200, `{"worker_id":1,*`},
	})
	for _, header := range []http.Header{{}, {"Content-Type": {"text/plain"}}} {
		if w := call(t, h, "PUT", "/workers", `{"workers":[]}`, header); w.Code != 409 {
			t.Errorf("PUT with %v: %d %s", header, w.Code, w.Body)
		}
	}
}

// TestScopeInQuery: a set's scope in the query is refused, whatever the body, and
// nothing is reconciled.
func TestScopeInQuery(t *testing.T) {
	svc := node.New(node.Config{Threads: 1}, nil, zerolog.Nop())
	h := New(svc.UseCases, svc.Conductor(), Options{Log: zerolog.Nop()})
	const all = `{"workers":[]}`
	fault := func(group string) string {
		return "{\"error\":\"the query names a scope: name it in the body, `model_name` and `" + group + "` beside `workers`\"}"
	}
	play(t, h, []step{
		{"POST", "/workers", `{"worker_id":1}`, 201, `{"worker_id":1,*`},
		{"PUT", "/workers?model_name=m", all, 400, fault("tenant_id")},
		{"PUT", "/workers?model_name", all, 400, fault("tenant_id")},
		{"PUT", "/workers?tenant_id=", all, 400, fault("tenant_id")},
		{"PUT", "/workers?a=b&routing%5fgroup=x", all, 400, fault("tenant_id")},
		{"PUT", "/v1.6/workers?routing_group=x", all, 400, fault("routing_group")},
		{"PUT", "/workers?model_name=m", `{"model_name":"m","workers":[]}`, 400, fault("tenant_id")},
		{"PUT", "/workers?model_name=m", `nonsense`, 400, fault("tenant_id")},
		{"PUT", "/workers?tenant_id=a&routing_group=b", all, 400, `{"error":"` + queryPrefix + "`tenant_id` and `routing_group` differ\"}"},
		{"PUT", "/workers?model_name=m", "", 405, `{"error":"method not allowed"}`},
		{"PUT", "/workers?other=m", all, 200, `{"added":[],"changed":[],"removed":[1],"unchanged":0}`},
	})
}

// TestLargeSet: of a set with more workers than there may be no more are kept than it takes
// to refuse it, and all of it is read.
func TestLargeSet(t *testing.T) {
	svc := node.New(node.Config{Threads: 1, Limits: catalog.Limits{Workers: 2}}, nil, zerolog.Nop())
	h := New(svc.UseCases, svc.Conductor(), Options{Log: zerolog.Nop(), MaxWorkers: 2})
	var ids []string
	for i := range 1000 {
		ids = append(ids, fmt.Sprintf(`{"worker_id":%d}`, i))
	}
	set := func(ids []string) string { return `{"workers":[` + strings.Join(ids, ",") + "]}" }
	play(t, h, []step{
		{"PUT", "/workers", set(ids[:2]), 200, `{"added":[0,1],"changed":[],"removed":[],"unchanged":0}`},
		{"PUT", "/workers", set(ids), 409, `{"error":"the limit of 2 workers is reached (--max-workers)"}`},
		{"PUT", "/workers", set(append(ids, "{}")), 422, `{"error":"` + shapePrefix + "workers[1000]: missing field*"},
	})
	var s bodyscan.Scanner
	var b reconcileBody
	if err := newReconcileBody(dialect13, 2).shape.Decode(&s, bodyscan.JSON, []byte(set(ids)), &b); err != nil || len(b.workers) != 3 {
		t.Errorf("%d records are kept, %v", len(b.workers), err)
	}
}

// BenchmarkReconcileBody reads and resolves a set of 10,000 workers.
func BenchmarkReconcileBody(b *testing.B) {
	var text []byte
	text = append(text, `{"model_name":"m","workers":[`...)
	for i := range 10_000 {
		if i > 0 {
			text = append(text, ',')
		}
		text = fmt.Appendf(text, `{"worker_id":%d,"endpoint":"http://worker-%d:8000","block_size":16,"kv_events_endpoint":"tcp://worker-%d:5557"}`, i, i, i)
	}
	text = append(text, "]}"...)
	body := newReconcileBody(dialect13, 0)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	var copied []byte
	for b.Loop() {
		x := body.pool.Get().(*scratch[reconcileBody])
		copied = append(copied[:0], text...)
		if err := body.shape.Decode(&x.scan, bodyscan.JSON, copied, &x.req); err != nil {
			b.Fatal(err)
		}
		if _, err := x.req.resolveScopes(); err != nil {
			b.Fatal(err)
		}
		body.release(x)
	}
}
