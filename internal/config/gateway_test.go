package config_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestGatewayModels proves that the flag repeats, what the parts of a name are, and that
// the other sources say the same.
func TestGatewayModels(t *testing.T) {
	want := map[string]catalog.Scope{
		"chat":  {Model: "org/model", Tenant: "default"},
		"small": {Model: "org/small@v1", Tenant: "acme"},
		"plain": {Model: "plain", Tenant: "default"},
	}
	text := "chat=org/model,small=org/small@v1@acme,plain"
	for name, s := range map[string]setup{
		"flags":       {args: []string{"--gateway-model", "chat=org/model", "--gateway-model=small=org/small@v1@acme", "--gateway-model", "plain"}},
		"a flag":      {args: []string{"--gateway-model", text}},
		"environment": {env: map[string]string{"SELECT_SERVICE_GATEWAY_MODELS": text}},
		"overridden":  {args: []string{"--gateway-model", text}, env: map[string]string{"DYN_MODEL_NAME": "other"}},
	} {
		conf := s.mustLoad(t)
		if got := conf.Gateway.Names(); !maps.Equal(got, want) {
			t.Errorf("%s: %v", name, got)
		}
		if got := conf.Gateway.Models; !slices.Equal(got, []string{"chat=org/model@default", "small=org/small@v1@acme", "plain=plain@default"}) {
			t.Errorf("%s: %q", name, got)
		}
	}
	if config.Default().Gateway.Names() != nil {
		t.Error("there are names by default")
	}
	got := setup{env: map[string]string{"DYN_MODEL_NAME": "m"}}.mustLoad(t).Gateway.Names()
	if !maps.Equal(got, map[string]catalog.Scope{"m": {Model: "m", Tenant: "default"}}) {
		t.Errorf("DYN_MODEL_NAME: %v", got)
	}
	for _, bad := range []string{"=m", "a=", "a=m@", "a=@t", "a=m,a=n"} {
		mustFail(t, setup{args: []string{"--gateway-model", bad}}, "--gateway-model")
	}
}

// TestDynamoPicker proves that variables of Dynamo's endpoint picker are heeded where they
// mean the same here.
func TestDynamoPicker(t *testing.T) {
	conf := setup{env: map[string]string{
		"DYN_EPP_MODE": "standalone", "DYN_EPP_TOPOLOGY_MODE": "aggregated", "DYN_EPP_METRICS_PORT": "0", "DYN_EPP_PROBE_PORT": "0",
		"DYN_SECURE_SERVING": "true", "DYN_EPP_TOKENIZER_SERVICE_URL": "http://renderer/base/", "DYN_EPP_TOKENIZER_PROTOCOL": "vllm-render",
		"DYN_EPP_TOKENIZATION_TIMEOUT_MS": "1500", "DYN_EPP_TOKENIZER_MAX_RESPONSE_BYTES": "1048576",
		"DYN_EPP_MAX_INFLIGHT_REQUESTS": "7", "DYN_EPP_SELECTION_INDEXER_THREADS": "3", "DYN_EPP_REPLICA_SYNC_PORT": "9092",
		"DYN_EPP_SELECTION_HTTP_PORT": "8000", "DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS": "2", "DYN_EPP_SHED_RETRY_AFTER_SECS": "4",
		"DYN_METADATA_HEADER": "X-Mine-",
	}}.mustLoad(t)
	if w := conf.Warnings(); len(w) > 0 {
		t.Errorf("warnings: %q", w)
	}
	want := config.Default()
	g := &want.Gateway
	g.SelfSigned, g.MaxStreams, g.DrainDelay, g.MetadataPrefix = true, 7, 2*time.Second, "x-mine-"
	g.Tokenizer.URL, g.Tokenizer.Protocol = "http://renderer/base", config.ProtocolVLLMRender
	g.Tokenizer.Timeout, g.Tokenizer.MaxAnswer = 1500*time.Millisecond, 1<<20
	want.Overload.RetryAfter = new(4 * time.Second)
	want.KVEvents.Threads, want.Replicas.SyncPort, want.Server.Port = 3, 9092, 8000
	equal(t, conf, want)
}

// TestNoDrainDelay proves that a gateway may be told to stop at once.
func TestNoDrainDelay(t *testing.T) {
	for _, s := range []setup{
		{env: map[string]string{"DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS": "0"}},
		{env: map[string]string{"SELECT_SERVICE_GATEWAY_DRAIN_DELAY": "0"}},
		{args: []string{"--gateway-drain-delay", "0s"}},
	} {
		if got := s.mustLoad(t).Gateway.DrainDelay; got != 0 {
			t.Errorf("%v: %v", s, got)
		}
	}
	mustFail(t, setup{args: []string{"--gateway-drain-delay", "-1s"}}, "--gateway-drain-delay")
	mustFail(t, setup{args: []string{"--gateway-drain-timeout", "0s"}}, "--gateway-drain-timeout")
}

// TestDynamoPickerRefused proves that a variable of Dynamo's endpoint picker that would mean
// something else, or nothing, stops the start and says what to do instead.
func TestDynamoPickerRefused(t *testing.T) {
	for name, value := range map[string]string{
		"DYN_EPP_MODE": "dynamo", "DYN_EPP_TOPOLOGY_MODE": "disaggregated", "DYN_KUBE_DISCOVERY_MODE": "container", "DYN_EPP_PREFILL_MAX_NUM_BATCHED_TOKENS": "1",
		"DYN_EPP_DECODE_MAX_NUM_BATCHED_TOKENS": "1", "DYN_EPP_METRICS_PORT": "9090", "DYN_EPP_PROBE_PORT": "1",
		"DYN_EPP_TOKENIZER_PROTOCOL": "other", "DYN_EPP_TOKENIZATION_TIMEOUT_MS": "0", "DYN_SECURE_SERVING": "perhaps",
		"DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS": "0.5", "DYN_METADATA_HEADER": "a b", "DYN_EPP_TOKENIZER_SERVICE_URL": "renderer:8000",
	} {
		mustFail(t, setup{env: map[string]string{name: value}}, name)
	}
	mustFail(t, setup{args: []string{"--tokenizer-protocol", "sglang-renderer"}}, "--tokenizer-protocol")
	mustFail(t, setup{args: []string{"--gateway-port", "8092"}}, "--gateway-port")
	mustFail(t, setup{args: []string{"--gateway-port", "9002", "--gateway-health-port", "9002"}}, "--gateway-health-port")
	mustFail(t, setup{args: []string{"--gateway-health-port", "9003"}}, "--gateway-health-port")
	mustFail(t, setup{args: []string{"--gateway-port", "9002", "--replica-sync-port", "9002"}}, "--replica-sync-port")
}

// TestAllowedPaths proves that a further path of engines that the gateway could not read stops the start: it would
// otherwise have no list of paths, and let all pass.
func TestAllowedPaths(t *testing.T) {
	for _, path := range []string{"videos", "/é", "/a\x01", "/a\x7f", "/a%2e", "//a", "/a/../b", "/a?b"} {
		mustFail(t, setup{args: []string{"--proxy-port=8080", "--gateway-allow-paths=" + path}}, "--gateway-allow-paths")
	}
	setup{args: []string{"--proxy-port=8080", "--gateway-allow-paths=/v1/videos"}}.mustLoad(t)
}

// TestSessionHeaders: more headers of sessions than are looked at stop the start, as what is no header's name does.
func TestSessionHeaders(t *testing.T) {
	args := []string{"--proxy-port=8080"}
	for _, name := range []string{"a/a1", "b/b1", "c/c1", "d/d1", "e/e1", "f/f1", "g/g1", "h/h1"} {
		args = append(args, "--gateway-session-headers="+name)
	}
	setup{args: args}.mustLoad(t)
	mustFail(t, setup{args: append(args, "--gateway-session-headers=i")}, "--gateway-session-headers")
	mustFail(t, setup{args: []string{"--proxy-port=8080", "--gateway-session-headers=a b"}}, "--gateway-session-headers")
}

// TestKeepsHomes: ranks of sessions are known where a gateway or proxy needs them, and sub-agents form groups
// unless that is switched off.
func TestKeepsHomes(t *testing.T) {
	for _, tt := range []struct {
		args          []string
		homes, groups bool
	}{
		{nil, false, true},
		{[]string{"--proxy-port=8080"}, true, true},
		{[]string{"--gateway-port=9002"}, true, true},
		{[]string{"--gateway-port=9002", "--session-groups=false"}, false, false},
		{[]string{"--gateway-port=9002", "--session-groups", "--gateway-session-affinity=soft"}, true, true},
		{[]string{"--gateway-port=9002", "--session-groups=false", "--gateway-session-affinity=soft"}, true, false},
		{[]string{"--gateway-port=9002", "--gateway-session-affinity=hard", "--session-affinity-ttl-secs=60"}, false, true},
	} {
		c := setup{args: tt.args}.mustLoad(t)
		if c.KeepsHomes() != tt.homes || c.FrontGroups() != tt.groups {
			t.Errorf("%v: homes %t, groups %t", tt.args, c.KeepsHomes(), c.FrontGroups())
		}
	}
}
