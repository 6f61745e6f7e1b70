package workersfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/internal/workers/workerid"
	"github.com/select-service/select-service/pkg/catalog"
)

const everything = `# a comment
model_name: m
routing_group: t
workers:
  - worker_id: 18446744073709551615
    endpoint: http://w:1
    kv_events_endpoint: tcp://w:2
    kv_events_endpoints: {0: "tcp://w:3", "1": 'tcp://w:4'}
    replay_endpoint: tcp://w:5
    replay_endpoints:
      1: tcp://w:6
    kv_events_server_key: ~
    kv_event_copies: set
    kv_event_rank: stream
    load_endpoint: tcp://w:8
    load_endpoints: {1: "tcp://w:9"}
    load_metrics: {url: "http://w:10/m", interval_seconds: 1.5}
    block_size: 16
    data_parallel_start_rank: 0
    data_parallel_size: 2
    max_num_batched_tokens: 8192
    total_kv_blocks: 1000
    attention_chunk_size: 8192
    stable_routing_id: r
    is_eagle: true
    role: prefill
    rank_endpoints: {1: "http://w:7"}
    rank_header: local
    prefill_rank_header: true
    kv_events: false
    adapters: [m, l]
    taints: [b, a]
    topology_domains: {zone: z}
    kv_transfer_domain: d
    kv_transfer_enforcement: preferred
    kv_transfer_preferred_weight: 0.5
    drain: true
  - {worker_id: 9007199254740993, model_name: m, tenant_id: t, endpoint: ~, drain: false}
`

var all = []catalog.Record{{
	ID: 1<<64 - 1, Scope: catalog.Scope{Model: "m", Tenant: "t"},
	Endpoint:          new("http://w:1"),
	KVEventsEndpoint:  new("tcp://w:2"),
	KVEventsEndpoints: map[uint32]string{0: "tcp://w:3", 1: "tcp://w:4"},
	ReplayEndpoint:    new("tcp://w:5"),
	ReplayEndpoints:   map[uint32]string{1: "tcp://w:6"},
	KVEventCopies:     new("set"),
	KVEventRank:       new("stream"),
	LoadEndpoint:      new("tcp://w:8"),
	LoadEndpoints:     map[uint32]string{1: "tcp://w:9"},
	LoadMetrics:       &catalog.LoadMetrics{URL: new("http://w:10/m"), IntervalSeconds: new(1.5)},
	BlockSize:         new(uint32(16)), StartRank: new(uint32(0)), Size: new(uint32(2)),
	MaxNumBatchedTokens: new(uint64(8192)), TotalKVBlocks: new(uint64(1000)), AttentionChunkSize: new(uint64(8192)),
	StableRoutingID: new("r"), IsEagle: new(true), Taints: []string{"b", "a"},
	Role: new("prefill"), RankEndpoints: map[uint32]string{1: "http://w:7"}, Adapters: []string{"m", "l"},
	RankHeader: new("local"), PrefillRankHeader: new(true), KVEvents: new(false),
	TopologyDomains: map[string]string{"zone": "z"}, KVTransferDomain: new("d"),
	KVTransferEnforcement: new("preferred"), KVTransferPreferredWeight: new(float32(0.5)),
	Draining: "the workers file says drain",
}, {ID: 1<<53 + 1, Scope: catalog.Scope{Model: "m", Tenant: "t"}}}

// TestDecode: every key in both notations; ids above 2^53 stay exact, and JSON may
// have what YAML cannot (tabs, surrogate pairs).
func TestDecode(t *testing.T) {
	body := `{"workers":[
		{"worker_id":18446744073709551615,"endpoint":"http://w:1","kv_events_endpoint":"tcp://w:2",
		"kv_events_endpoints":{"0":"tcp://w:3","1":"tcp://w:4"},"replay_endpoint":"tcp://w:5","replay_endpoints":{"1":"tcp://w:6"},
		"kv_events_server_key":null,"kv_event_copies":"set","kv_event_rank":"stream",
		"load_endpoint":"tcp://w:8","load_endpoints":{"1":"tcp://w:9"},"load_metrics":{"url":"http://w:10/m","interval_seconds":1.5},
		"block_size":16,"data_parallel_start_rank":0,"data_parallel_size":2,"max_num_batched_tokens":8192,"total_kv_blocks":1000,"attention_chunk_size":8192,
		"stable_routing_id":"r","is_eagle":true,"role":"prefill","rank_endpoints":{"1":"http://w:7"},"rank_header":"local","prefill_rank_header":true,"kv_events":false,"adapters":["m","l"],"taints":["b","a"],"topology_domains":{"zone":"z"},"kv_transfer_domain":"d",
		"kv_transfer_enforcement":"preferred","kv_transfer_preferred_weight":5e-1,"drain":true},
		{"worker_id":9007199254740993,"tenant_id":"t","routing_group":"t","endpoint":null,"drain":null}],
		"model_name":"m","tenant_id":"t"}`
	scope := catalog.ScopeFilter{Model: new("m"), Tenant: new("t")}
	other := func(s catalog.Scope) []catalog.Record { return []catalog.Record{{ID: 1, Scope: s}} }
	tests := map[string]struct {
		text string
		want File
	}{
		"YAML":           {everything, File{Scope: scope, Records: all}},
		"JSON":           {body, File{Scope: scope, Records: all}},
		"empty set":      {"workers: []", File{}},
		"empty JSON set": {`{"workers": []}`, File{}},
		"defaults":       {"workers: [{worker_id: 1}]", File{Records: other(catalog.Scope{Model: "default", Tenant: "default"})}},
		"own names":      {"workers: [{worker_id: 1, model_name: a, routing_group: b}]", File{Records: other(catalog.Scope{Model: "a", Tenant: "b"})}},
		"half a scope": {
			"tenant_id: b\nworkers: [{worker_id: 1, model_name: a}]",
			File{Scope: catalog.ScopeFilter{Tenant: new("b")}, Records: other(catalog.Scope{Model: "a", Tenant: "b"})},
		},
		"described": {
			"workers: [{worker_id: 1, endpoint: http://w, describe: true}, {worker_id: 2, endpoint: http://w, model_name: m, describe: vllm}, {worker_id: 3, describe: false}]",
			File{Records: []catalog.Record{
				{ID: 1, Scope: byDefault, Source: fromFile, Endpoint: new("http://w"), Describe: &catalog.Describe{Model: true}},
				{ID: 2, Scope: catalog.Scope{Model: "m", Tenant: "default"}, Source: fromFile, Endpoint: new("http://w"), Describe: &catalog.Describe{Engine: "vllm"}},
				{ID: 3, Scope: byDefault, Source: fromFile},
			}},
		},
		"engines": {
			"engines: [http://w-1:8000, vllm=http://w-2]", File{Records: []catalog.Record{
				{ID: workerid.Of("http://w-1:8000"), Scope: byDefault, Source: fromFile, Endpoint: new("http://w-1:8000"), Describe: &catalog.Describe{Model: true}},
				{ID: workerid.Of("http://w-2"), Scope: byDefault, Source: fromFile, Endpoint: new("http://w-2"), Describe: &catalog.Describe{Engine: "vllm", Model: true}},
			}},
		},
		"engines of one model": {
			"{model_name: m, engines: [http://w], workers: []}", File{Scope: catalog.ScopeFilter{Model: new("m")}, Records: []catalog.Record{
				{ID: workerid.Of("http://w"), Scope: catalog.Scope{Model: "m", Tenant: "default"}, Source: fromFile, Endpoint: new("http://w"), Describe: new(catalog.Describe)},
			}},
		},
		"quoted number": {
			`{"model_name": "7", "workers": []}`, File{Scope: catalog.ScopeFilter{Model: new("7")}},
		},
		"surrogates": {`{"model_name": "\ud83d\ude00", "workers": []}`, File{Scope: catalog.ScopeFilter{Model: new("😀")}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f, err := decode("f", []byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			for i := range tt.want.Records {
				tt.want.Records[i].Source.Kind = catalog.SourceFile
			}
			if d := cmp.Diff(tt.want.Scope, f.Scope) + cmp.Diff(tt.want.Records, f.Records); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestFaults: whatever is wrong is named with its line, all of it at once.
func TestFaults(t *testing.T) {
	const w = "workers:\n- worker_id: 1\n  "
	tests := map[string]struct{ text, want string }{
		"empty":              {"", "f: the file is empty"},
		"comments only":      {"# nothing\n", "f: the file is empty"},
		"null":               {"~", "f: top level (line 1): want keys with values"},
		"a list":             {"- worker_id: 1", "f: top level (line 1): want keys with values"},
		"not YAML":           {"workers: [", "f: yaml: line 1: did not find expected node content"},
		"two documents":      {"workers: []\n---\nworkers: []", "f: more than one document"},
		"no workers":         {"model_name: m", "f: top level (line 1): the key workers is missing"},
		"workers is null":    {"workers:", "f: workers (line 1): want a list"},
		"workers is no list": {"workers: {}", "f: workers (line 1): want a list"},
		"unknown key":        {"worker: []\nworkers: []\n", "f: worker (line 1): unknown key"},
		"key of an engine":   {w + "kv_events_server_key: rq", "f: workers[0].kv_events_server_key (line 3): CURVE towards engines has been removed, register without this key"},
		"unknown in worker":  {w + "blocksize: 4", "f: workers[0].blocksize (line 3): unknown key"},
		"twice":              {w + "worker_id: 2", "f: workers[0].worker_id (line 3): given twice"},
		"twice in JSON":      {"{\"workers\":[],\n\"workers\":[]}", "f: workers (line 2): given twice"},
		"no id":              {"workers:\n- {}\n", "f: workers[0] (line 2): worker_id is missing"},
		"no worker":          {"workers:\n- 7\n", "f: workers[0] (line 2): want keys with values"},
		"two names":          {"tenant_id: a\nrouting_group: b\nworkers: []", "f: routing_group (line 2): differs from tenant_id"},
		"contradiction":      {"model_name: a\n" + w + "model_name: b", `f: workers[0].model_name (line 4): "b" is given elsewhere as "a"`},
		"two names, worker":  {w + "tenant_id: a\n  routing_group: b", `f: workers[0].routing_group (line 4): "b" is given elsewhere as "a"`},
		"a number as name":   {"model_name: 7\nworkers: []", "f: model_name (line 1): " + errText.Error()},
		"a date as name":     {w + "endpoint: 2024-01-01", "f: workers[0].endpoint (line 3): " + errText.Error()},
		"text as id":         {`{"workers":[{"worker_id":"1"}]}`, "f: workers[0].worker_id (line 1): want a whole decimal number of at most 64 bits"},
		"negative":           {"workers: [{worker_id: -1}]", "f: workers[0].worker_id (line 1): want a whole decimal number of at most 64 bits"},
		"too large":          {"workers: [{worker_id: 18446744073709551616}]", "f: workers[0].worker_id (line 1): want a whole decimal number of at most 64 bits"},
		"a fraction":         {"workers: [{worker_id: 1.0}]", "f: workers[0].worker_id (line 1): want a whole decimal number of at most 64 bits"},
		"octal":              {"workers: [{worker_id: 010}]", "f: workers[0].worker_id (line 1): want a whole decimal number of at most 64 bits"},
		"u32":                {w + "block_size: 4294967296", "f: workers[0].block_size (line 3): want a whole decimal number of at most 32 bits"},
		"drain":              {w + "drain: 1", "f: workers[0].drain (line 3): want true or false"},
		"not a bool":         {w + "is_eagle: yes", "f: workers[0].is_eagle (line 3): want true or false"},
		"not a number":       {w + "kv_transfer_preferred_weight: .nan", "f: workers[0].kv_transfer_preferred_weight (line 3): want a number"},
		"enforcement":        {w + "kv_transfer_enforcement: x", "f: workers[0].kv_transfer_enforcement (line 3): want required or preferred"},
		"copies":             {w + "kv_event_copies: x", "f: workers[0].kv_event_copies (line 3): want count or set"},
		"rank of events":     {w + "kv_event_rank: x", "f: workers[0].kv_event_rank (line 3): want batch or stream"},
		"role":               {w + "role: both", "f: workers[0].role (line 3): want prefill, decode or encode"},
		"rank header":        {w + "rank_header: 0", "f: workers[0].rank_header (line 3): " + errText.Error()},
		"rank headers":       {w + "rank_header: own\n  prefill_rank_header: 1", "f: workers[0].rank_header (line 3): want local, global or none; workers[0].prefill_rank_header (line 4): want true or false"},
		"null list":          {w + "taints:", "f: workers[0].taints (line 3): want a list of strings"},
		"list of numbers":    {w + "taints: [1]", "f: workers[0].taints (line 3): want a list of strings"},
		"rank":               {w + "replay_endpoints: {x: y}", "f: workers[0].replay_endpoints (line 3): want ranks with strings"},
		"rank twice":         {w + "replay_endpoints: {1: y, \"1\": y}", "f: workers[0].replay_endpoints (line 3): 1 is given twice"},
		"metrics":            {w + "load_metrics: true", "f: workers[0].load_metrics (line 3): want a map of url and interval_seconds, both optional"},
		"metrics misspelt":   {w + "load_metrics: {interval: 1}", "f: workers[0].load_metrics (line 3): want a map of url and interval_seconds, both optional"},
		"metrics too often":  {w + "load_metrics: {interval_seconds: 0.1}", "f: workers[0] (line 2): load_metrics.interval_seconds 0.1 is not in [0.25, 3600]"},
		"an alias":           {"workers:\n- &a {worker_id: 1}\n- *a", "f: workers[1] (line 3): aliases are not supported"},
		"a merge":            {"workers:\n- &a {worker_id: 1}\n- {<<: *a, worker_id: 2}", "f: workers[1].<< (line 3): merge keys are not supported"},
		"an aliased text":    {"model_name: &a m\ntenant_id: *a\nworkers: []", "f: tenant_id (line 2): aliases are not supported"},
		"ranks":              {w + "data_parallel_size: 5000", "f: workers[0] (line 2): data_parallel_size 5000 exceeds the maximum 4096"},
		"long name":          {w + "tenant_id: " + strings.Repeat("x", 1025), "f: workers[0] (line 2): tenant_id has 1025 bytes, the maximum is 1024"},
		"id twice":           {w + "model_name: m\n- worker_id: 1", "f: workers[1] (line 4): worker_id 1 is given twice"},
		"describe":           {w + "describe: trt", "f: workers[0].describe (line 3): want true, vllm, sglang or trtllm"},
		"described by none":  {w + "describe: true", "f: workers[0] (line 2): describe needs an endpoint: the engine's http:// or https:// URL"},
		"engine":             {"engines: [w]", "f: engines[0] (line 1): `w` is not an http:// or https:// URL"},
		"engine is no text":  {"engines: [7]", "f: engines[0] (line 1): " + errText.Error()},
		"engine twice":       {"engines: [http://w, vllm=http://w/]", fmt.Sprintf("f: engines[1] (line 1): worker_id %d is given twice", workerid.Of("http://w"))},
		"several entries": {
			w + "data_parallel_size: 5000\n- {}\n- worker_id: 2\n- worker_id: 2",
			"f: workers[0] (line 2): data_parallel_size 5000 exceeds the maximum 4096; workers[1] (line 4): worker_id is missing; " +
				"workers[3] (line 6): worker_id 2 is given twice",
		},
		"several": {"x: 1\n" + w + "y: 2", "f: x (line 1): unknown key; workers[0].y (line 4): unknown key"},
		"many": {
			"workers: [" + strings.Repeat("7,", 23) + "]",
			"f: " + strings.Join(numbered("workers[%d] (line 1): want keys with values", 20), "; ") + "; and 3 more faults",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f, err := decode("f", []byte(tt.text))
			if fmt.Sprint(err) != tt.want {
				t.Errorf("%+v, error %v\nwant %s", f, err, tt.want)
			}
		})
	}
}

func numbered(format string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf(format, i))
	}
	return all
}

// TestLoad: what is no file of a bearable size is refused.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "w.yaml")
	if _, err := Load(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if _, err := Load(dir); err == nil || !strings.HasSuffix(err.Error(), "not a regular file") {
		t.Errorf("a folder: %v", err)
	}
	write(t, path, "workers: []\n#"+strings.Repeat("x", MaxSize))
	if _, err := Load(path); err == nil || !strings.HasSuffix(err.Error(), "more than 8388608 bytes") {
		t.Errorf("too large: %v", err)
	}
	write(t, path, everything)
	f, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	refused := fmt.Errorf("wrapped: %w", &catalog.EntryError{Index: 1, Err: errors.New("why")})
	if got := f.Locate(refused).Error(); got != "workers[1] (line 38): why" {
		t.Errorf("Locate: %s", got)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// FuzzDecode: no content panics, and each record has its line.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(everything))
	f.Add([]byte(`{"workers":[{"worker_id":1,"taints":["a"],"replay_endpoints":{"0":"x"}}],"model_name":"m"}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		file, err := decode("f", content)
		if err != nil {
			return
		}
		if len(file.lines) != len(file.Records) {
			t.Errorf("%d lines of %d records", len(file.lines), len(file.Records))
		}
	})
}

var (
	byDefault = catalog.Scope{Model: "default", Tenant: "default"}
	fromFile  = catalog.Source{Kind: catalog.SourceFile}
)
