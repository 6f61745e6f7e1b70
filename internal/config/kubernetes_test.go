package config_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
)

func entries(t *testing.T, s setup) []mapping.Entry {
	t.Helper()
	all, err := s.mustLoad(t).Kubernetes.Entries("home")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// kubeEntry is an entry with the defaults.
func kubeEntry(change func(*mapping.Entry)) mapping.Entry {
	e := mapping.Entry{
		Kind: mapping.InferencePool, Name: "llm", Namespace: "home", Tenant: "default", PortStride: 1, Scheme: "http", Ask: true,
		RoleLabels: []string{"llm-d.ai/role", "nvidia.com/role"}, NotReadyGrace: 5 * time.Minute,
		Worker: catalog.Record{KVEvents: new(true)},
	}
	change(&e)
	return e
}

// TestKubernetesEntries: flags, variables, those of Dynamo, and entries of the file, which have
// the section's values unless they give their own.
func TestKubernetesEntries(t *testing.T) {
	same := func(*mapping.Entry) {}
	for name, tc := range map[string]struct {
		setup setup
		want  []mapping.Entry
	}{
		"none": {},
		"flags": {
			setup{
				args:  []string{"--kube-inference-pool", "llm", "--kube-inference-pool=b", "--config", "f"},
				files: map[string]string{"f": "kubernetes: {model: m, not_ready_grace: 0}\n"},
			},
			[]mapping.Entry{
				kubeEntry(func(e *mapping.Entry) { e.Model, e.NotReadyGrace = "m", 0 }),
				kubeEntry(func(e *mapping.Entry) { e.Name, e.Model, e.NotReadyGrace = "b", "m", 0 }),
			},
		},
		"a selector": {
			setup{args: []string{"--kube-selector", "app=vllm,stage in (a,b)", "--kube-target-port", "8000", "--kube-target-port", "8001"}},
			[]mapping.Entry{kubeEntry(func(e *mapping.Entry) {
				e.Kind, e.Name, e.TargetPorts = mapping.Selector, "app=vllm,stage in (a,b)", []uint16{8000, 8001}
			})},
		},
		"two selectors": {
			setup{args: []string{"--kube-selector", "app=a,stage in (x,y)", "--kube-selector=app=b", "--kube-target-port", "8000"}},
			[]mapping.Entry{
				kubeEntry(func(e *mapping.Entry) {
					e.Kind, e.Name, e.TargetPorts = mapping.Selector, "app=a,stage in (x,y)", []uint16{8000}
				}),
				kubeEntry(func(e *mapping.Entry) { e.Kind, e.Name, e.TargetPorts = mapping.Selector, "app=b", []uint16{8000} }),
			},
		},
		"the model of Dynamo, for an entry of the file": {
			setup{
				args: []string{"--config", "f"}, env: map[string]string{"DYN_MODEL_NAME": "m"},
				files: map[string]string{"f": "kubernetes:\n  pools:\n  - inference_pool: llm\n"},
			},
			[]mapping.Entry{kubeEntry(func(e *mapping.Entry) { e.Model = "m" })},
		},
		"the model of Dynamo, not for one of two": {
			setup{
				args: []string{"--config", "f"}, env: map[string]string{"DYN_MODEL_NAME": "m", "DYN_EPP_INFERENCE_POOL_NAME": "llm"},
				files: map[string]string{"f": "kubernetes:\n  pools:\n  - service: s\n"},
			},
			[]mapping.Entry{kubeEntry(same), kubeEntry(func(e *mapping.Entry) { e.Kind, e.Name = mapping.Service, "s" })},
		},
		"ports of the section, beside a pool": {
			setup{args: []string{"--config", "f"}, files: map[string]string{
				"f": "kubernetes:\n  target_ports: [8000]\n  pools:\n  - inference_pool: llm\n  - selector: a=b\n",
			}},
			[]mapping.Entry{
				kubeEntry(same),
				kubeEntry(func(e *mapping.Entry) { e.Kind, e.Name, e.TargetPorts = mapping.Selector, "a=b", []uint16{8000} }),
			},
		},
		"of Dynamo": {
			setup{env: map[string]string{
				"DYN_EPP_INFERENCE_POOL_NAME": "llm", "POD_NAMESPACE": "dynamo", "DYN_MODEL_NAME": "m", "DYN_KV_CACHE_BLOCK_SIZE": "64",
				"DYN_EPP_TOTAL_KV_BLOCKS": "9", "DYN_EPP_MAX_NUM_BATCHED_TOKENS": "8", "DYN_EPP_KV_EVENT_PORT": "1", "DYN_EPP_KV_EVENT_REPLAY_PORT": "2",
				"DYN_EPP_DATA_PARALLEL_STRIDE": "3", "DYN_EPP_DATA_PARALLEL_SIZE": "4", "DYN_EPP_WORKER_ROLE_LABEL": "x",
			}},
			[]mapping.Entry{kubeEntry(func(e *mapping.Entry) {
				e.Namespace, e.Model, e.KVEventsPort, e.KVReplayPort, e.PortStride, e.RoleLabels = "dynamo", "m", 1, 2, 3, []string{"x"}
				r := &e.Worker
				r.BlockSize, r.TotalKVBlocks, r.MaxNumBatchedTokens, r.Size = new(uint32(64)), new(uint64(9)), new(uint64(8)), new(uint32(4))
			})},
		},
		"two pools of Dynamo": {
			setup{env: map[string]string{"DYN_EPP_INFERENCE_POOL_NAME": "llm", "DYN_EPP_PREFILL_INFERENCE_POOL_NAME": "p", "DYN_MODEL_NAME": "m"}},
			[]mapping.Entry{kubeEntry(same), kubeEntry(func(e *mapping.Entry) { e.Name, e.Worker.Role = "p", new("prefill") })},
		},
		"the file": {
			setup{args: []string{"--config", "f"}, files: map[string]string{"f": "kubernetes:\n  namespace: n\n  block_size: 16\n  pools:\n  - inference_pool: llm\n  - {selector: 'a=b,c=d', target_ports: [1, 2], block_size: 32, role_label: '', ask: no}\n" +
				"  - {service: s, namespace: o, role: decode}\n"}},
			[]mapping.Entry{
				kubeEntry(func(e *mapping.Entry) { e.Namespace, e.Worker.BlockSize = "n", new(uint32(16)) }),
				kubeEntry(func(e *mapping.Entry) {
					e.Kind, e.Name, e.Namespace, e.Worker.BlockSize, e.TargetPorts, e.RoleLabels, e.Ask = mapping.Selector, "a=b,c=d", "n", new(uint32(32)), []uint16{1, 2}, nil, false
				}),
				kubeEntry(func(e *mapping.Entry) {
					e.Kind, e.Name, e.Namespace, e.Worker.BlockSize, e.Worker.Role = mapping.Service, "s", "o", new(uint32(16)), new("decode")
				}),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tc.want, entries(t, tc.setup)); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestFieldsOfPool: an entry of kubernetes.pools may have each field that pods may have, also one without an option.
func TestFieldsOfPool(t *testing.T) {
	all := entries(t, setup{args: []string{"--config", "f"}, files: map[string]string{
		"f": "kubernetes:\n  rank_header: local\n  kv_events: false\n  pools:\n  - {inference_pool: llm, attention_chunk_size: 8192, is_eagle: false, kv_events: true, adapters: 'a,b', rank_header: none, load_metrics: true}\n",
	}})
	want := catalog.Record{
		AttentionChunkSize: new(uint64(8192)), IsEagle: new(false), KVEvents: new(true), Adapters: []string{"a", "b"}, RankHeader: new("none"),
		LoadMetrics: new(catalog.LoadMetrics),
	}
	if d := cmp.Diff(want, all[0].Worker); d != "" {
		t.Error(d)
	}
	for _, key := range []string{"endpoint", "model_aliases", "stable_routing_id"} {
		_, err := setup{args: []string{"--config", "f"}, files: map[string]string{"f": "kubernetes:\n  pools:\n  - {inference_pool: llm, " + key + ": x}\n"}}.load()
		if err == nil || !strings.Contains(err.Error(), "kubernetes.pools[0]: "+key+": unknown key") {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// TestNoEventsPort: who writes that there is no port of KV events is told how pods without events are written.
func TestNoEventsPort(t *testing.T) {
	for _, section := range []string{
		"inference_pool: llm, kv_events_port: none",
		"pools: [{inference_pool: llm, kv_events_port: none}]",
		"pools: [{inference_pool: llm, kv_events_port: false}]",
		"inference_pool: llm, kv_events_port: -1",
	} {
		if _, err := fromFile("kubernetes: {" + section + "}").load(); err == nil || !strings.Contains(err.Error(), "kv_events: false") {
			t.Errorf("%q: %v", section, err)
		}
	}
}

// TestKubernetesFaults: what cannot be meant stops the start.
func TestKubernetesFaults(t *testing.T) {
	for _, args := range []string{
		"--kube-selector app=vllm", "--kube-selector =;a --kube-target-port 1", "--kube-inference-pool llm --kube-target-port 8000",
		"--kube-target-port 0", "--kube-inference-pool A_b", "--kube-service s --kube-target-port 1,2,3,4,5,6,7,8,9",
	} {
		fields := strings.Fields(args)
		mustFail(t, setup{args: fields}, fields[0])
	}
	for _, section := range []string{
		"role: both", "block_size: -1", "pools: [{inference_pool: a, target_ports: [1]}]", "pools: {}", "pools: [{}]",
		"pools: [{inference_pool: a, kubeconfig: b}]", "pools: [{service: a, selector: b=c}]",
	} {
		key, _, _ := strings.Cut(section, ":")
		mustFail(t, fromFile("kubernetes: {"+section+"}"), "kubernetes."+key)
	}
	mustFail(t, setup{args: []string{"--kube-service", numbered("s", 65)}}, "--kube-service")
	if all := entries(t, setup{args: []string{"--kube-service", numbered("s", 64)}}); len(all) != 64 {
		t.Errorf("%d sources", len(all))
	}
	if _, err := (setup{args: []string{"--kube-service", "s"}}).mustLoad(t).Kubernetes.Entries(""); err == nil {
		t.Error("no namespace is no fault")
	}
}

// numbered returns n names, with commas between them.
func numbered(name string, n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprint(name, i))
	}
	return strings.Join(all, ",")
}

// TestPeerService: replicas that are found need a port for their reservations, Dynamo's.
func TestPeerService(t *testing.T) {
	conf := setup{env: map[string]string{"DYN_EPP_PEER_SERVICE": "peers"}}.mustLoad(t)
	if conf.Replicas.KubePeerService != "peers" || conf.Replicas.Publish() != "tcp://*:9092" {
		t.Errorf("%+v", conf.Replicas)
	}
}
