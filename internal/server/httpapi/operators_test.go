package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/doctor"
	"github.com/select-service/select-service/internal/server/ranks"
	"github.com/select-service/select-service/internal/server/replicastatus"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// newOperators are the views of a service without workers that does not run.
func newOperators() Operators { return operatorsOf(node.New(node.Config{}, nil, zerolog.Nop())) }

func operatorsOf(svc *node.Service) Operators {
	v := ranks.New(svc.Parts(), AppendRank, time.Now)
	peers := replicastatus.New(replicastatus.Config{Contract: "1.3"}, svc.UseCases, nil, nil, time.Now)
	return Operators{
		Ranks: v, History: ranks.NewHistory(v, ranks.MaxHistory), Prefixes: ranks.NewPrefixes(svc.Parts(), time.Now),
		Doctor: doctor.New(svc.Parts(), peers, nil, time.Now), Replicas: peers,
	}
}

// TestFleet: the whole answer in both dialects, the difference to it, what a token of one tenant
// gets, and which roles the caller has.
func TestFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		w.Put(servicetest.Record(1, 1, servicetest.Total(10)))
		w.Put(servicetest.Record(2, 1, func(r *catalog.Record) { r.Scope.Tenant = "own" }))
		if _, err := w.DrainWorkerIn(catalog.ScopeFilter{}, 2, new(time.Hour)); err != nil {
			t.Fatal(err)
		}
		w.Burden("r", 1, 0, 3, 4)
		h := New(w.UseCases, w.Conductor(), Options{Log: zerolog.Nop(), Operators: operatorsOf(w.Service), Access: guardOf(t)})
		get := func(target, token string) (answer map[string]any) {
			t.Helper()
			got := ask(h, "GET", target, token, "")
			if err := json.Unmarshal(got.Body.Bytes(), &answer); err != nil || got.Code != 200 {
				t.Fatalf("%s: %d %s", target, got.Code, got.Body)
			}
			return answer
		}
		text := func(v any) string {
			b, _ := json.Marshal(v)
			return string(b)
		}
		all := get("/v1.6/fleet", "read")
		const rows = `[{"active_blocks":3,"causes":["stream_down"],"dp_rank":0,"max_batched_tokens":100,"prefill_tokens":4,"requests":1,"scope":2,"source":"api","state":"ready","stream":"connecting","total_blocks":10,"urgency":2,"worker_id":1}]`
		if got := get("/fleet?tenant_id=t", "read"); text(got["rows"]) != rows {
			t.Errorf("rows %s", text(got["rows"]))
		}
		if got := text(all["scopes"]); !strings.Contains(got, `"routing_group":"own"`) || strings.Contains(got, "tenant_id") {
			t.Errorf("scopes %s", got)
		}
		if got := text(get("/v1.3/fleet", "read")["scopes"]); !strings.Contains(got, `"tenant_id":"own"`) {
			t.Errorf("scopes %s", got)
		}
		if got := get("/fleet", "own-read"); len(got["rows"].([]any)) != 1 || !strings.Contains(text(got["rows"]), `"drain":{"deadline":"`) || text(got["totals"].(map[string]any)["ranks"]) != "1" {
			t.Errorf("a token of one tenant gets %s", text(got))
		}
		if got := get("/fleet?since="+all["version"].(string), "read"); got["full"] != false || len(got["rows"].([]any)) != 0 {
			t.Errorf("without a change: %s", text(got))
		}
		for token, want := range map[string]string{"read": `["read"]`, "call": `["read","call"]`, "operate": `["read","call","operate"]`, "own-read": `["read"]`} {
			if got := text(get("/fleet?since="+all["version"].(string), token)["roles"]); got != want {
				t.Errorf("roles of %s: %s", token, got)
			}
		}
		open := New(w.UseCases, w.Conductor(), Options{Log: zerolog.Nop(), Operators: operatorsOf(w.Service)})
		if got := ask(open, "GET", "/fleet", "", "").Body.String(); !strings.Contains(got, `"roles":["read","call","operate","peer","metrics"]`) {
			t.Errorf("roles without tokens: %s", got)
		}
		if got := ask(h, "GET", "/fleet?tenant_id=t", "own-read", ""); got.Code != 403 {
			t.Errorf("another tenant: %d", got.Code)
		}
		for target, want := range map[string]int{
			"/history": 200, "/history?worker_id=1": 200, "/history?seconds=4": 400, "/history?seconds=3601": 400, "/history?worker_id=x": 400, "/fleet?since=a&since=b": 400,
			"/fairness": 200, "/fairness?by=program&limit=1000": 200, "/fairness?by=agent": 400, "/fairness?by=tenant&by=tenant": 400, "/fairness?limit=0": 400,
			"/sessions": 200, "/sessions?limit=0": 400, "/sessions?limit=1001": 400, "/sessions?worker_id=-1": 400, "/sessions?after=ff": 400,
			"/sessions?after=FF-1": 400, "/sessions?after=ff-1%20": 400, "/sessions?after=ff-1&worker_id=3&limit=1000": 200, "/sessions?after=1-1&after=1-1": 400,
			"/decisions?limit=0": 400, "/decisions?limit=1001": 400, "/decisions?limit=1&limit=1": 400,
			"/decisions?reasons=no": 400, "/decisions?time=a&time=a": 400, "/decisions?time=now": 200,
			"/index/prefixes?limit=0": 400, "/index/prefixes?limit=1001": 400, "/index/prefixes?tenant_id=x": 200,
		} {
			if got := ask(h, "GET", target, "read", ""); got.Code != want {
				t.Errorf("%s: %d %s", target, got.Code, got.Body)
			}
		}
	})
}

// TestPrefixes: the tree of what is cached, with who holds it; the model and tenant of a token are
// those that are shown.
func TestPrefixes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		w.Put(servicetest.Record(1, 1))
		w.Put(servicetest.Record(2, 1))
		tokens := servicetest.Prompt(1, 16)
		for id, n := range map[uint64]int{1: 16, 2: 8} {
			e := w.Engine(id, 0)
			e.Publish(0, e.Stored(tokens[:n], servicetest.BlockSize, nil))
		}
		w.Settle()
		h := New(w.UseCases, w.Conductor(), Options{Log: zerolog.Nop(), Operators: operatorsOf(w.Service)})
		got := ask(h, "GET", "/v1.6/index/prefixes?model_name=m&routing_group=t&limit=1", "", "").Body.String()
		_, rest, _ := strings.Cut(got, `"block_size":`)
		hash := regexp.MustCompile(`"block_hash":-?\d+`)
		want := `4,"unique_blocks":4,"held_blocks":6,"nodes":[{"id":0,"parent":null,"depth":0,"blocks":2,"holders":2,"held":4,"subtree_blocks":4,"subtree_held":6,` +
			`"tiers":{"device":2},"ranks":[{"worker_id":1,"dp_rank":0},{"worker_id":2,"dp_rank":0}],HASH,"lora_name":"","salted":false,"hottest":1}],"walked":2,"truncated":false}`
		if rest = hash.ReplaceAllString(rest, "HASH"); rest != want {
			t.Errorf("%s\nwant %s", rest, want)
		}
		if got := ask(h, "GET", "/index/prefixes", "", "").Body.String(); !strings.Contains(got, `"nodes":[]`) {
			t.Errorf("the default scope: %s", got)
		}
	})
}

// TestDoctor: a finding as it is written, and that a token of one tenant hears of its own workers
// alone; the status for replicas needs the role peer.
func TestDoctor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		_, _ = w.PutWorker(servicetest.Record(1, 1, func(r *catalog.Record) { r.Endpoint = nil }))
		h := New(w.UseCases, w.Conductor(), Options{Log: zerolog.Nop(), Operators: operatorsOf(w.Service), Access: guardOf(t)})
		const finding = `"healthy":false,"findings":[{"check":"worker_incomplete","severity":"error",` +
			`"sentence":"Worker 1 cannot be chosen: endpoint is required.","remedy":"Complete the worker's record, or delete it.",` +
			`"runbook":"docs/run/runbook.md#selectservicenoworkers","model_name":"m","routing_group":"t","worker_id":1}],"checks":[` +
			`{"check":"worker_incomplete","title":"All workers can be chosen","result":"finding"},`
		if got := ask(h, "GET", "/v1.6/doctor", "read", "").Body.String(); !strings.Contains(got, finding) {
			t.Errorf("%s", got)
		}
		if got := ask(h, "GET", "/doctor", "own-read", "").Body.String(); !strings.Contains(got, `"healthy":true`) {
			t.Errorf("a token of one tenant gets %s", got)
		}
		if got := ask(h, "GET", "/replicas", "read", "").Body.String(); !strings.HasPrefix(got, `{"enabled":false,"process":"0","version":""`) {
			t.Errorf("replicas: %s", got)
		}
		got := ask(h, "GET", "/replica_sync/status", "peer", "").Body.String()
		if !strings.Contains(got, `"contract":"1.3"`) || !strings.Contains(got, `"thresholds":[{"model":"m","active_decode_blocks_threshold":null,`) {
			t.Errorf("status: %s", got)
		}
	})
}

// TestDryRun: the answer of the same call without dry_run, and nothing is changed.
func TestDryRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff)
		h := New(w.UseCases, w.Conductor(), Options{Log: zerolog.Nop()})
		put := func(query, body string) string {
			got := call(t, h, "PUT", "/workers"+query, body, nil)
			return fmt.Sprint(got.Code, " ", got.Body)
		}
		worker := func(id int, endpoint string) string {
			return fmt.Sprintf(`{"worker_id":%d,"endpoint":%q,"block_size":4}`, id, endpoint)
		}
		put("", `{"workers":[`+worker(1, "http://a")+`,`+worker(2, "http://b")+`,`+worker(3, "http://c")+`]}`)
		next := `{"workers":[` + worker(1, "http://a") + `,` + worker(2, "http://x") + `,` + worker(4, "http://d") + `]}`
		before := call(t, h, "GET", "/workers", "", nil).Body.String()
		dry := put("?dry_run=true", next)
		if after := call(t, h, "GET", "/workers", "", nil).Body.String(); after != before {
			t.Errorf("a dry run has changed\n%s\nto\n%s", before, after)
		}
		if wet := put("?dry_run=false", next); wet != dry || wet != `200 {"added":[4],"changed":[2],"removed":[3],"unchanged":1}` {
			t.Errorf("dry %s, then %s", dry, wet)
		}
		if got := put("?dry_run=maybe", next); !strings.HasPrefix(got, "400 ") {
			t.Errorf("dry_run=maybe: %s", got)
		}
	})
}

// TestDecisionsQuery: as many decisions as are asked for, all that are kept by default, with or without the ranks
// that were compared; and the one of a time.
func TestDecisionsQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, func(c *node.Config) { c.Selection.DecisionBytes = 1 << 20 })
		w.Put(servicetest.Record(1, 1))
		h := New(w.UseCases, w.Conductor(), Options{Log: zerolog.Nop()})
		for _, id := range []string{"a", "b", "c"} {
			if got := call(t, h, "POST", "/select", `{"model_name":"m","tenant_id":"t","token_ids":[1],"selection_id":"`+id+`"}`, nil); got.Code != 200 {
				t.Fatal(got.Body)
			}
			time.Sleep(time.Millisecond)
		}
		for query, want := range map[string]string{"": "cba", "?limit=2": "cb", "?limit=1000&tenant_id=t": "cba", "?limit=1&tenant_id=own": ""} {
			ids := ""
			for _, m := range regexp.MustCompile(`"selection_id":"(.)"`).FindAllStringSubmatch(call(t, h, "GET", "/decisions"+query, "", nil).Body.String(), -1) {
				ids += m[1]
			}
			if ids != want {
				t.Errorf("%q: %s, want %s", query, ids, want)
			}
		}
		get := func(query string) (list []map[string]any) {
			if err := json.Unmarshal(call(t, h, "GET", "/decisions"+query, "", nil).Body.Bytes(), &list); err != nil {
				t.Fatal(err)
			}
			return list
		}
		all := get("")
		for i, brief := range get("?reasons=false") {
			if len(all[i]["candidates"].([]any)) != 1 {
				t.Errorf("candidates: %v", all[i])
			}
			maps.Copy(all[i], map[string]any{"candidates": []any{}, "excluded": []any{}, "shadows": []any{}})
			if !reflect.DeepEqual(brief, all[i]) {
				t.Errorf("in brief %v, want %v", brief, all[i])
			}
			if one := get("?time=" + url.QueryEscape(brief["time"].(string))); len(one) != 1 || one[0]["selection_id"] != brief["selection_id"] || len(one[0]["candidates"].([]any)) != 1 {
				t.Errorf("of its time: %v", one)
			}
		}
		if none := get("?time=2026-01-02T03:04:05Z"); len(none) != 0 {
			t.Errorf("of another time: %v", none)
		}
	})
}

// unreachable is a replica that announces itself and does not answer.
type unreachable struct{}

func (unreachable) GetAnnounced(context.Context, string, string) (io.ReadCloser, error) {
	return nil, errors.New("dial tcp b:8092: connection refused")
}

// TestWhereReplicasAre: no route tells a token of one tenant where another replica is reached; one of all
// tenants sees it.
func TestWhereReplicasAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := servicetest.NewMesh()
		a, b := mesh.Start(t, "a", servicetest.EventsOff), mesh.Start(t, "b", servicetest.EventsOff)
		for _, w := range []*servicetest.World{a, b} {
			w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.Scope.Tenant = "own" }))
		}
		mesh.Connect(t, "a", "b")
		time.Sleep(10 * time.Second)
		operators := operatorsOf(a.Service)
		operators.Replicas = replicastatus.New(replicastatus.Config{Process: a.Parts().Process}, a, a.Parts().Replica, unreachable{}, time.Now)
		operators.Doctor = doctor.New(a.Parts(), operators.Replicas, nil, time.Now)
		e := newEngine(a.UseCases, a.Conductor(), Options{Log: zerolog.Nop(), Operators: operators, Access: guardOf(t)})
		seen := 0
		for route := range e.routes.roles {
			method, path, _ := strings.Cut(route, " ")
			if method != "GET" || strings.Contains(path, ":") || strings.HasSuffix(path, "/openapi.yaml") {
				continue
			}
			for _, token := range []string{"own-read", "own-call", "own-operate"} {
				if got := ask(e, method, path, token, "").Body.String(); strings.Contains(got, "b:1") || strings.Contains(got, "b:8092") || strings.Contains(got, "//b") {
					t.Errorf("%s tells %s: %s", route, token, got)
				}
			}
			if got := ask(e, method, path, "read", "").Body.String(); strings.Contains(got, "tcp://b:1") {
				seen++
			}
		}
		if seen < 6 { // peers, replicas and doctor, each in two dialects and without one
			t.Errorf("%d routes tell a token of all tenants where the replica is", seen)
		}
	})
}
