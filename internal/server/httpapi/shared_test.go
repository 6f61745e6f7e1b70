package httpapi

import (
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/settings"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// fleetOf is the store of a fleet whose changes end as they are told to.
type fleetOf struct {
	workers.Store
	behind []string
	err    error
}

func (f *fleetOf) Edit(change workers.Change) (*catalog.Worker, error) {
	if f.err != nil {
		return nil, f.err
	}
	w, err := f.Store.Edit(change)
	if err != nil {
		return nil, err
	}
	late := *w
	late.Behind = f.behind
	return &late, nil
}

func (f *fleetOf) Replace(set catalog.Set) (catalog.Difference, error) {
	if f.err != nil {
		return catalog.Difference{}, f.err
	}
	d, err := f.Store.Replace(set)
	d.Behind = f.behind
	return d, err
}

// fleetSettings are the settings of such a fleet.
type fleetSettings struct{ of *fleetOf }

func (f fleetSettings) Attach(settings.Process) {}

func (fleetSettings) Version() uint64 { return 0 }

func (f fleetSettings) Edit(change func(*settings.Settings) error) ([]string, error) {
	if f.of.err != nil {
		return nil, f.of.err
	}
	return f.of.behind, change(&settings.Settings{Thresholds: overload.NewTable(overload.Thresholds{}, nil)})
}

// TestSharedAnswers: the answers of a replica whose workers are the fleet's name the replicas that do
// not know of a change, and are 503 with Retry-After while it cannot be made.
func TestSharedAnswers(t *testing.T) {
	f := &fleetOf{Store: workers.NewAlone()}
	w := servicetest.Start(t, func(c *node.Config) { c.Workers, c.Selection.Settings = f, fleetSettings{f} })
	h := New(w.UseCases, w.Conductor(), Options{Log: zerolog.Nop(), Operators: operatorsOf(w.Service)})
	const worker = `{"worker_id":1,"model_name":"m","endpoint":"http://w","block_size":16,"max_num_batched_tokens":1}`
	for _, c := range []struct {
		method, path, body string
		code               int
		named              bool // the answer names replicas
	}{
		{"POST", "/workers", worker, 201, true},
		{"PATCH", "/workers/1", `{"taints":["x"]}`, 200, true},
		{"POST", "/workers/1/drain", "", 200, true},
		{"DELETE", "/workers/1/drain", "", 200, true},
		{"PUT", "/workers", `{"workers":[` + worker + `]}`, 200, true},
		{"POST", "/busy_threshold", `{"model":"m","active_prefill_tokens_threshold":5}`, 200, false},
		{"PUT", "/policies", `{"worker_selection":{"aggregated":"default"}}`, 200, true},
		{"DELETE", "/policies", "", 200, true},
		{"DELETE", "/workers/1", "", 200, true},
	} {
		f.err, f.behind = &contract.Error{Kind: contract.Away, Text: "the catalog of the fleet cannot be changed now: no leader", Reason: "fleet_away"}, nil
		if got := ask(h, c.method, c.path, "", c.body); got.Code != 503 || got.Header().Get("Retry-After") != "1" ||
			got.Body.String() != `{"error":"the catalog of the fleet cannot be changed now: no leader"}` {
			t.Errorf("%s %s without NATS: %d %v %s", c.method, c.path, got.Code, got.Header(), got.Body)
		}
		f.err, f.behind = nil, []string{"b", "c"}
		got := ask(h, c.method, c.path, "", c.body)
		if named := strings.HasSuffix(got.Body.String(), `,"replicas_behind":["b","c"]}`); got.Code != c.code || named != c.named {
			t.Errorf("%s %s: %d %s", c.method, c.path, got.Code, got.Body)
		}
	}
}

// TestSetPolicies: scopes choose by the policies that were set until they are taken back; what is no
// section is refused with the words of the policy file, and changes nothing.
func TestSetPolicies(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	h := New(w.UseCases, w.Conductor(), Options{Log: zerolog.Nop(), Operators: operatorsOf(w.Service)})
	const path = "/policies"
	set := func(section string) string { return `{"worker_selection":` + section + `}` }
	lists := func(name string) string { return `"policy":"` + name + `"` }
	if got := ask(h, "PUT", path, "", set(`{"models":{"m\ud83d\ude00\\\n":"p"},"aggregated":"p","instances":[{"name":"p","type":"lmetric"}]}`)); got.Code != 200 ||
		!strings.HasPrefix(got.Body.String(), `{"policies":[{`) || !strings.Contains(got.Body.String(), lists("p")) {
		t.Fatalf("%d %s", got.Code, got.Body)
	}
	for _, c := range []struct {
		body string
		code int
		want string
	}{
		{set(`{"aggregated":"x"}`), 400, `worker_selection aggregated \"x\" does not name a configured instance`},
		{set(`{"aggregated":"p","instances":[{"name":"p","type":"nope"}]}`), 400, `unknown worker-selection policy type \"nope\"`},
		{set(`{"foo":1,"bar":2}`), 400, "unknown field `foo`"},
		{set(`[]`), 400, "expected a mapping"},
		{set(`null`), 400, "expected a mapping"},
		{`{}`, 422, "missing field `worker_selection`"},
		{set(`{"aggregated":"` + strings.Repeat("x", maxPolicies) + `"}`), 413, ""},
	} {
		if got := ask(h, "PUT", path, "", c.body); got.Code != c.code || !strings.Contains(got.Body.String(), c.want) {
			t.Errorf("%.80s: %d %s", c.body, got.Code, got.Body)
		}
	}
	if got := ask(h, "GET", path, "", ""); !strings.Contains(got.Body.String(), lists("p")) {
		t.Errorf("a refused section has changed the policies: %s", got.Body)
	}
	change, err := w.SetPolicies([]byte(`{ "aggregated": "p", "instances": [{"name": "p", "type": "random"}]}`))
	if err != nil || change.Section != "24fda0036b00ff3d" || !slices.Equal(change.Changed, []string{"instances.p", "models.m\U0001f600\\\n"}) {
		t.Errorf("%+v, %v", change, err)
	}
	if got := ask(h, "DELETE", path, "", ""); got.Code != 200 || !strings.Contains(got.Body.String(), lists("default")) {
		t.Errorf("%d %s", got.Code, got.Body)
	}
}
