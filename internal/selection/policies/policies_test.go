package policies_test

import (
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/codec/yamlread"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

var scope = catalog.Scope{Model: "m", Tenant: catalog.DefaultName}

func node(t *testing.T, text string) *yaml.Node {
	t.Helper()
	n, err := yamlread.Root([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// resolve reads a section and makes its instances.
func resolve(t *testing.T, text string) (*policies.Table, error) {
	t.Helper()
	s, err := policies.ParseSection(node(t, text))
	if err != nil {
		return nil, err
	}
	return s.Resolve(policies.Settings{Weights: selector.DefaultWeights()})
}

// The words for what is wrong with a section are those of dynamo-kv-router 1.6.1.
func TestFaults(t *testing.T) {
	instance := func(name, rest string) string {
		return fmt.Sprintf("aggregated: p\ninstances: [{name: p, type: %s%s}]", name, rest)
	}
	const twoTier, cost = "dynamo-two-tier-cost-fn", "dynamo-default-cost-fn"
	bad := func(name, parameters, why string) [2]string {
		return [2]string{
			instance(name, ", parameters: {"+parameters+"}"),
			fmt.Sprintf("invalid parameters for worker-selection policy type %q: %s", name, why),
		}
	}
	for _, test := range [][2]string{
		{"{}", "invalid router policy config: worker_selection must define an instance or an aggregated, prefill, decode, or encode selection"},
		{"aggregated: x", `invalid router policy config: worker_selection aggregated "x" does not name a configured instance`},
		{"aggregated: 7", `invalid router policy config: worker_selection aggregated "7" does not name a configured instance`},
		{"prefill: x", `invalid router policy config: worker_selection prefill "x" does not name a configured instance`},
		{"models: {m: x}", `worker_selection models.m "x" does not name a configured instance`},
		{"shadow: [x]", `worker_selection shadow "x" does not name a configured instance`},
		{"shadow: [default, default]", `worker_selection shadow contains duplicate instance "default"`},
		{"instances: [{name: default, type: a}]", "worker_selection instance name 'default' is reserved for Dynamo's built-in selector"},
		{"instances: [{name: a b, type: a}]", `worker_selection instance name "a b" must match [A-Za-z0-9_.-]+`},
		{"instances: [{name: '', type: a}]", `worker_selection instance name "" must match [A-Za-z0-9_.-]+`},
		{"instances: [{name: a, type: x/y}]", `worker_selection policy type name "x/y" must match [A-Za-z0-9_.-]+`},
		{"instances: [{name: p, type: a}, {name: p, type: b}]", `worker_selection contains duplicate instance "p"`},
		{"instances: [{name: p, type: a, parameters: null}]", `worker_selection instance "p" parameters must be a YAML mapping`},
		{"instances: [{name: p, type: a, parameters: [1]}]", `worker_selection instance "p" parameters must be a YAML mapping`},
		{"instances: [{name: p}]", "worker_selection.instances[0]: missing field `type` at line 1"},
		{"instances: [{name: p, type: a, x: 1}]", "worker_selection.instances[0]: unknown field `x`, expected one of `name`, `type`, `parameters` at line 1"},
		{"foo: 1", "worker_selection: unknown field `foo`, expected one of `aggregated`, `prefill`, `decode`, `encode`, `instances`"},
		{"3", "worker_selection: invalid type: integer `3`, expected a mapping"},
		{"instances: 3", "worker_selection.instances: invalid type: integer `3`, expected a sequence"},
		{"aggregated: [1]", "worker_selection.aggregated: invalid type: sequence, expected a string"},
		{"aggregated: a\naggregated: b", `worker_selection: duplicate entry with key "aggregated"`},
		{instance("nope", ""), `unknown worker-selection policy type "nope"; linked policy types: dynamo-default-cost-fn, dynamo-two-tier-cost-fn, `},
		bad(twoTier, "x: 1", "unknown field `x`, expected one of `cache_threshold`, `balance_abs_threshold`, `balance_rel_threshold`"),
		bad(twoTier, "cache_threshold: 2", "cache_threshold must be a finite number between 0.0 and 1.0"),
		bad(twoTier, "cache_threshold: .nan", "cache_threshold must be a finite number between 0.0 and 1.0"),
		bad(twoTier, "cache_threshold: abc", `invalid type: string "abc", expected f64`),
		bad(twoTier, "cache_threshold: null", "invalid type: unit value, expected f64"),
		bad(twoTier, "cache_threshold: true", "invalid type: boolean `true`, expected f64"),
		bad(twoTier, "balance_rel_threshold: 0.5", "balance_rel_threshold must be a finite number greater than or equal to 1.0"),
		bad(twoTier, "balance_abs_threshold: -1", "invalid value: integer `-1`, expected usize"),
		bad(twoTier, "balance_abs_threshold: 1.5", "invalid type: floating point `1.5`, expected usize"),
		bad(cost, "x: 1", "unknown field `x`, expected one of `overlap_score_credit`, `overlap_score_credit_decay`, `prefill_load_scale`, `decode_active_request_weight`, `host_cache_hit_weight`, `disk_cache_hit_weight`, `shared_cache_multiplier`, `router_temperature`"),
		bad(cost, "prefill_load_scale: -1, overlap_score_credit: -1", "overlap_score_credit must be finite and non-negative"),
		bad(cost, "router_temperature: .inf", "router_temperature must be finite and non-negative"),
		bad(cost, "overlap_score_credit: [1]", "invalid type: sequence, expected f64"),
		bad("lmetric", "x: 1", "unknown field `x`, expected `hotspot_detection`"),
		bad("lmetric", "hotspot_detection: 1", "invalid type: integer `1`, expected a boolean"),
		bad("predicted-ttft", "x: 1", "unknown field `x`, expected one of `host_cache_hit_weight`, `disk_cache_hit_weight`, `router_temperature`, `hold_seconds`, `hold_max_seconds`"),
		bad("predicted-ttft", "hold_seconds: -0.1", "hold_seconds must be finite and non-negative"),
		bad("predicted-ttft", "hold_max_seconds: 3601", "hold_max_seconds must be at most 3600"),
		bad("dynamo-random", "x: 1", "unknown field `x`, there are no fields"),
	} {
		if _, err := resolve(t, test[0]); err == nil || !strings.Contains(err.Error(), test[1]) {
			t.Errorf("%s:\n  got  %v\n  want %s", test[0], err, test[1])
		}
	}
}

// Every type can be configured under its name and with Dynamo's prefix; parameters that
// are not given are the service's or the type's.
func TestTypes(t *testing.T) {
	service := selector.DefaultWeights()
	own := service
	own.OverlapCredit, own.Disk, own.PrefixOnly = 2, 5, true
	for name, want := range map[string]selector.Policy{
		"dynamo-two-tier-cost-fn, parameters: {cache_threshold: 1, respect_soft_affinity: true}": selector.TwoTier{
			CacheThreshold: 1, BalanceAbs: 32, BalanceRel: 1.1, RespectSoftAffinity: true,
		},
		"lmetric, parameters: {hotspot_detection: false}": selector.LMetric{WithoutGuard: true},
		"dynamo-lmetric":              selector.LMetric{},
		"round-robin":                 selector.RoundRobin{},
		"dynamo-round-robin":          selector.RoundRobin{},
		"random, parameters: {}":      selector.Random{},
		"dynamo-power-of-two-choices": selector.PowerOfTwoChoices{},
		"least-loaded":                selector.LeastLoaded{},
		"dynamo-default-cost-fn, parameters: {overlap_score_credit: 2, prefill_load_scale: null, disk_cache_hit_weight: 5}": selector.CostFunction{Own: &own},
	} {
		table, err := resolve(t, "aggregated: p\ninstances: [{name: p, type: "+name+"}]")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		i, _ := table.Of(scope)
		got := i.Policy
		if f, is := got.(selector.CostFunction); is {
			if *f.Own != own {
				t.Errorf("%s: %+v", name, f.Own)
			}
		} else if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// predicted-ttft has the service's weights where it has none of its own, and holds nothing
// unless it is told to.
func TestPredictedTTFT(t *testing.T) {
	want := selector.PredictedTTFT{Own: selector.DefaultWeights(), Longest: 10}
	for parameters, change := range map[string]func(){
		"":                           func() {},
		"disk_cache_hit_weight: 0.5": func() { want.Own.Disk = 0.5 },
		"disk_cache_hit_weight: 0.5, hold_seconds: 0.2, hold_max_seconds: 2": func() { want.Own.Disk, want.Hold, want.Longest = 0.5, 0.2, 2 },
	} {
		want = selector.PredictedTTFT{Own: selector.DefaultWeights(), Longest: 10}
		change()
		table, err := resolve(t, "models: {m: p}\ninstances: [{name: p, type: dynamo-predicted-ttft, parameters: {"+parameters+"}}]")
		if err != nil {
			t.Fatal(err)
		}
		i, _ := table.Of(scope)
		if got := *i.Policy.(*selector.PredictedTTFT); got != want || table.Delays() != (want.Hold > 0) {
			t.Errorf("%s: %+v, delays %v", parameters, got, table.Delays())
		}
	}
}

// What nothing names is neither made nor checked, but told of.
func TestWarnings(t *testing.T) {
	s, err := policies.ParseSection(node(t, `
prefill: default
encode: a
models: {m: b}
shadow: [c]
instances: [{name: a, type: random}, {name: b, type: random}, {name: c, type: random}, {name: d, type: nope}, {name: e, type: nope}]
`))
	if err != nil {
		t.Fatal(err)
	}
	want := "worker-selection policies configured for unserved worker types are ignored: prefill, encode; " +
		"worker_selection instances that nothing names are ignored: d"
	if got := strings.Join(s.Warnings("e"), "; "); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := s.Resolve(policies.Settings{Weights: selector.DefaultWeights()}); err != nil {
		t.Error(err)
	}
}

// What two sections differ in is named part by part, whatever the order of their members is.
func TestChanges(t *testing.T) {
	const was = `{"aggregated":"p","models":{"m":"p","n":"q"},"instances":[{"name":"p","type":"lmetric"},{"name":"q","type":"random"}],"shadow":["q"]}`
	for _, tt := range []struct{ was, now, want string }{
		{was, was, ""},
		{"", "", ""},
		{was, `{"instances":[{"name":"q","type":"random"},{"name":"p","type":"lmetric"}],"shadow":["q"],"models":{"n":"q","m":"p"},"aggregated":"p"}`, ""},
		{"", was, "aggregated instances.p instances.q models.m models.n shadow"},
		{was, "", "aggregated instances.p instances.q models.m models.n shadow"},
		{
			was, `{"aggregated":"q","models":{"m":"p","o":"q"},"instances":[{"name":"p","type":"lmetric","parameters":{"hotspot_detection":false}},{"name":"q","type":"random"}],"shadow":["q"]}`,
			"aggregated instances.p models.n models.o",
		},
	} {
		if got := strings.Join(policies.Changes([]byte(tt.was), []byte(tt.now)), " "); got != tt.want {
			t.Errorf("%s to %s: %q, want %q", tt.was, tt.now, got, tt.want)
		}
	}
}
