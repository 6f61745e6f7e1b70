package mapping_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
)

var settings = mapping.Settings{Home: "llm", KVEvents: true}

func pod(change func(*mapping.Pod)) *mapping.Pod {
	p := &mapping.Pod{Namespace: "llm", Name: "vllm-0", UID: "u", IP: "10.0.0.1", Ready: true}
	if change != nil {
		change(p)
	}
	return p
}

func annotated(pairs ...string) *mapping.Pod {
	return pod(func(p *mapping.Pod) {
		p.Annotations = make(map[string]string)
		for i := 0; i < len(pairs); i += 2 {
			p.Annotations[pairs[i]] = pairs[i+1]
		}
	})
}

// configured is an entry that leaves nothing to be asked.
func configured() mapping.Entry {
	return mapping.Entry{
		Kind: mapping.InferencePool, Name: "llm", Namespace: "llm", Model: "m", Tenant: "default", Worker: catalog.Record{BlockSize: new(uint32(16))},
		Scheme: "http", RoleLabels: []string{mapping.RoleLabelLLMD, mapping.RoleLabelDynamo},
	}
}

// show returns a worker in one line, what it leaves unset is left out.
func show(w mapping.Worker) string {
	r := w.Record
	out := fmt.Sprintf("%d %s@%s %s", r.ID, r.Scope.Model, r.Scope.Tenant, *r.Endpoint)
	add := func(name string, set bool, value func() any) {
		if set {
			out += fmt.Sprintf(" %s=%v", name, value())
		}
	}
	add("block", r.BlockSize != nil, func() any { return *r.BlockSize })
	add("blocks", r.TotalKVBlocks != nil, func() any { return *r.TotalKVBlocks })
	add("batched", r.MaxNumBatchedTokens != nil, func() any { return *r.MaxNumBatchedTokens })
	add("ranks", r.StartRank != nil || r.RankCount() != 1, func() any { return fmt.Sprintf("%d+%d", r.FirstRank(), r.RankCount()) })
	add("header", r.RankHeader != nil, func() any { return *r.RankHeader })
	add("role", r.Role != nil, func() any { return *r.Role })
	add("events", r.KVEventsEndpoint != nil, func() any { return *r.KVEventsEndpoint })
	add("events", r.KVEventsEndpoints != nil, func() any { return r.KVEventsEndpoints })
	add("replay", r.ReplayEndpoint != nil, func() any { return *r.ReplayEndpoint })
	add("replay", r.ReplayEndpoints != nil, func() any { return r.ReplayEndpoints })
	if r.KVEvents != nil && !*r.KVEvents {
		out += " no events"
	}
	add("load", r.LoadEndpoint != nil, func() any { return *r.LoadEndpoint })
	add("load", r.LoadEndpoints != nil, func() any { return r.LoadEndpoints })
	add("metrics", r.LoadMetrics != nil, func() any { return true })
	add("adapters", r.Adapters != nil, func() any { return r.Adapters })
	add("aliases", r.Aliases != nil, func() any { return r.Aliases })
	add("taints", r.Taints != nil, func() any { return r.Taints })
	add("domains", r.TopologyDomains != nil, func() any { return r.TopologyDomains })
	add("eagle", r.IsEagle != nil, func() any { return *r.IsEagle })
	for _, why := range w.Reasons {
		out += " !" + why
	}
	return out
}

// described returns a worker as a catalog has it after its engine has said something, or nothing with a
// reason.
func described(t *testing.T, w mapping.Worker, said *catalog.Description, away string) mapping.Worker {
	t.Helper()
	if w.Record.Describe == nil {
		return w
	}
	w.Record.Source, w.Record.Faults = catalog.Source{Kind: catalog.SourceKubernetes, UID: "u"}, w.Reasons
	c := catalog.New(catalog.Settings{KVEvents: true}, new(attachments))
	if _, err := c.Reconcile(catalog.Set{Kind: catalog.SourceKubernetes, Records: []catalog.Record{w.Record}}); err != nil {
		t.Fatal(err)
	}
	if said != nil || away != "" {
		c.Describe(c.Latest(w.Record.ID), said, away)
	}
	now := c.Latest(w.Record.ID)
	return mapping.Worker{Record: now.Record, Port: w.Port, Reasons: now.Explain()}
}

// attachments attaches whatever it is told.
type attachments struct{}

func (*attachments) Reconcile(_, _ *catalog.Attachment) error                { return nil }
func (*attachments) ReserveSlot(catalog.Scope, uint32, catalog.Rank, uint32) {}
func (*attachments) ReleaseSlot(catalog.Scope, catalog.Rank, uint32)         {}

// TestMap: what a pod's names, ports, labels and annotations make of it, and in which order they
// count.
func TestMap(t *testing.T) {
	one := []uint16{8000}
	const plain = "1943803597606491 m@default http://10.0.0.1:8000 block=16"
	tests := map[string]struct {
		pod   *mapping.Pod
		ports []uint16
		entry func(*mapping.Entry)
		away  string               // why the engine does not answer
		said  *catalog.Description // nil: the engine is not asked
		h2c   bool
		want  []string
	}{
		"defaults": {pod: pod(nil), want: []string{plain + " events=tcp://10.0.0.1:5557"}},
		"another namespace": {
			pod:  pod(func(p *mapping.Pod) { p.Namespace = "other" }),
			want: []string{fmt.Sprintf("%d", idOf("other/vllm-0")) + strings.TrimPrefix(plain, "1943803597606491") + " events=tcp://10.0.0.1:5557"},
		},
		"IPv6": {
			pod:  pod(func(p *mapping.Pod) { p.IP = "fd00::7" }),
			want: []string{"1943803597606491 m@default http://[fd00::7]:8000 block=16 events=tcp://[fd00::7]:5557"},
		},
		"without a pod": {
			pod:  pod(func(p *mapping.Pod) { p.Name = "" }),
			want: []string{fmt.Sprintf("%d m@default http://10.0.0.1:8000 block=16 events=tcp://10.0.0.1:5557", idOf("10.0.0.1:8000"))},
		},
		"named ports": {
			pod:  pod(func(p *mapping.Pod) { p.Ports = map[string]uint16{"kv-events": 6000, "kv-replay": 6100} }),
			want: []string{plain + " events=tcp://10.0.0.1:6000 replay=tcp://10.0.0.1:6100"},
		},
		"ports of the entry after named ones": {
			pod:   pod(func(p *mapping.Pod) { p.Ports = map[string]uint16{"kv-events": 6000} }),
			entry: func(e *mapping.Entry) { e.KVEventsPort, e.KVReplayPort = 7000, 7100 },
			want:  []string{plain + " events=tcp://10.0.0.1:6000 replay=tcp://10.0.0.1:7100"},
		},
		"no events by entry": {
			pod:   pod(func(p *mapping.Pod) { p.Ports = map[string]uint16{"kv-events": 6000} }),
			entry: func(e *mapping.Entry) { e.Worker.KVEvents = new(false) }, said: &catalog.Description{KVEventsEndpoints: map[uint32]string{0: "tcp://10.0.0.1:9000"}, ReplayEndpoints: map[uint32]string{0: "tcp://10.0.0.1:9100"}, LoadEndpoints: map[uint32]string{0: "tcp://10.0.0.1:9200"}},
			want: []string{plain + " no events load=tcp://10.0.0.1:9200"},
		},
		"no events by annotation": {pod: annotated("select-service/kv-events", "false"), want: []string{plain + " no events"}},
		"events by annotation": {
			pod: annotated("select-service/kv-events", "true"), entry: func(e *mapping.Entry) { e.Worker.KVEvents = new(false) },
			want: []string{plain + " events=tcp://10.0.0.1:5557"},
		},
		"a port of events that is none": {
			pod: annotated("select-service/kv-events-port", "none"),
			want: []string{plain + ` events=tcp://10.0.0.1:5557 !annotation select-service/kv-events-port: "none" is not a number from 1 to 65535; ` +
				`a pod without KV events has select-service/kv-events: "false"`},
		},
		"further names": {
			pod: pod(nil), said: &catalog.Description{Model: "x", Aliases: []string{"m", "gpt-4"}},
			want: []string{plain + " events=tcp://10.0.0.1:5557 aliases=[gpt-4 x]"},
		},
		"further names of another model than its own": {
			pod: pod(nil), said: &catalog.Description{Model: "x", Aliases: []string{"gpt-4"}},
			want: []string{plain + " events=tcp://10.0.0.1:5557"},
		},
		"annotated ports first": {
			pod: pod(func(p *mapping.Pod) {
				p.Ports = map[string]uint16{"kv-events": 6000}
				p.Annotations = map[string]string{"select-service/kv-events-port": "5000", "select-service/kv-replay-port": "5100"}
			}),
			want: []string{plain + " events=tcp://10.0.0.1:5000 replay=tcp://10.0.0.1:5100"},
		},
		"described ports last": {
			pod:  pod(nil),
			said: &catalog.Description{KVEventsEndpoints: map[uint32]string{0: "tcp://10.0.0.1:9000"}, ReplayEndpoints: map[uint32]string{0: "tcp://10.0.0.1:9100"}},
			want: []string{plain + " events=tcp://10.0.0.1:9000 replay=tcp://10.0.0.1:9100"},
		},
		"load by container port, of two ranks": {
			pod:   pod(func(p *mapping.Pod) { p.Ports = map[string]uint16{"kv-load": 6200} }),
			entry: func(e *mapping.Entry) { e.Worker.Size, e.KVLoadPort = new(uint32(2)), 7200 },
			said:  &catalog.Description{LoadEndpoints: map[uint32]string{0: "tcp://10.0.0.1:9200"}},
			want: []string{plain + " ranks=0+2 events=map[0:tcp://10.0.0.1:5557 1:tcp://10.0.0.1:5558]" +
				" load=map[0:tcp://10.0.0.1:6200 1:tcp://10.0.0.1:6201]"},
		},
		"load by entry": {
			pod: pod(nil), entry: func(e *mapping.Entry) { e.KVLoadPort, e.Worker.LoadMetrics = 7200, new(catalog.LoadMetrics) }, said: &catalog.Description{LoadEndpoints: map[uint32]string{0: "tcp://10.0.0.1:9200"}},
			want: []string{plain + " events=tcp://10.0.0.1:5557 load=tcp://10.0.0.1:7200 metrics=true"},
		},
		"load by annotation": {
			pod:   annotated("select-service/kv-load-port", "5200", "select-service/load-metrics", "false"),
			entry: func(e *mapping.Entry) { e.KVLoadPort, e.Worker.LoadMetrics = 7200, new(catalog.LoadMetrics) },
			want:  []string{plain + " events=tcp://10.0.0.1:5557 load=tcp://10.0.0.1:5200"},
		},
		"load as the engine says": {
			pod: pod(nil), said: &catalog.Description{LoadEndpoints: map[uint32]string{0: "tcp://10.0.0.1:9200"}},
			want: []string{plain + " events=tcp://10.0.0.1:5557 load=tcp://10.0.0.1:9200"},
		},
		"two ports": {
			pod: pod(nil), ports: []uint16{8000, 8001},
			want: []string{
				plain + " events=tcp://10.0.0.1:5557",
				"3621283254180760 m@default http://10.0.0.1:8001 block=16 ranks=1+1 header=none events=tcp://10.0.0.1:5558",
			},
		},
		"each of two ports describes its own": {
			pod: pod(nil), ports: []uint16{8000, 8001}, said: &catalog.Description{KVEventsEndpoints: map[uint32]string{0: "tcp://10.0.0.1:9000"}},
			want: []string{
				plain + " events=tcp://10.0.0.1:9000",
				"3621283254180760 m@default http://10.0.0.1:8001 block=16 ranks=1+1 header=none events=tcp://10.0.0.1:9000",
			},
		},
		"two ports with two ranks each, stride 10": {
			pod: pod(nil), ports: []uint16{8000, 8001}, entry: func(e *mapping.Entry) { e.Worker.Size, e.PortStride = new(uint32(2)), 10 },
			want: []string{
				plain + " ranks=0+2 events=map[0:tcp://10.0.0.1:5557 1:tcp://10.0.0.1:5567]",
				"3621283254180760 m@default http://10.0.0.1:8001 block=16 ranks=2+2 header=local events=map[2:tcp://10.0.0.1:5577 3:tcp://10.0.0.1:5587]",
			},
		},
		"active ports": {
			pod: annotated("llm-d.ai/active-ports", " 8001 ", "inference.networking.k8s.io/active-ports", "8000"), ports: []uint16{8000, 8001},
			want: []string{"3621283254180760 m@default http://10.0.0.1:8001 block=16 ranks=1+1 header=none events=tcp://10.0.0.1:5558"},
		},
		"active ports by the old key": {
			pod: annotated("inference.networking.k8s.io/active-ports", "8000,9"), ports: []uint16{8000, 8001},
			want: []string{plain + " events=tcp://10.0.0.1:5557"},
		},
		"active ports that are none": {
			pod:  annotated("llm-d.ai/active-ports", "x"),
			want: []string{plain + ` events=tcp://10.0.0.1:5557 !annotation llm-d.ai/active-ports: "x" is not a port`},
		},
		"no active port": {
			pod:  annotated("llm-d.ai/active-ports", ","),
			want: []string{plain + " events=tcp://10.0.0.1:5557 !annotation llm-d.ai/active-ports: it names no port"},
		},
		"every annotation": {
			pod: annotated("select-service/model", "n", "select-service/adapters", "b, a", "select-service/block-size", "32",
				"select-service/kv-events-port", "1", "select-service/kv-replay-port", "2", "select-service/data-parallel-size", "2",
				"select-service/total-kv-blocks", "3", "select-service/max-num-batched-tokens", "4", "select-service/role", "decode",
				"select-service/taints", "t", "select-service/rank-header", "global"),
			entry: func(e *mapping.Entry) {
				e.Ask, e.Worker.Role, e.Worker.TotalKVBlocks, e.Worker.MaxNumBatchedTokens = true, new("prefill"), new(uint64(7)), new(uint64(8))
			},
			said: &catalog.Description{Model: "x", Adapters: []string{"y"}, BlockSize: 64, TotalKVBlocks: 5},
			want: []string{"1943803597606491 n@default http://10.0.0.1:8000 block=32 blocks=3 batched=4 ranks=0+2 header=global role=decode " +
				"events=map[0:tcp://10.0.0.1:1 1:tcp://10.0.0.1:2] replay=map[0:tcp://10.0.0.1:2 1:tcp://10.0.0.1:3] adapters=[b a] taints=[t]"},
		},
		"entry before engine": {
			pod: pod(nil), entry: func(e *mapping.Entry) { e.Ask = true },
			said: &catalog.Description{Model: "x", Adapters: []string{"y"}, BlockSize: 64, TotalKVBlocks: 5},
			want: []string{"1943803597606491 m@default http://10.0.0.1:8000 block=16 blocks=5 events=tcp://10.0.0.1:5557 adapters=[y]"},
		},
		"not answered yet": {
			pod: pod(nil), entry: func(e *mapping.Entry) { e.Ask, e.Model = true, "" },
			want: []string{"1943803597606491 default@default http://10.0.0.1:8000 block=16 events=tcp://10.0.0.1:5557 !the engine has not been asked yet"},
		},
		"looks ahead": {
			pod: pod(nil), said: &catalog.Description{Engine: "sglang", Eagle: true},
			want: []string{plain + " events=tcp://10.0.0.1:5557 eagle=true"},
		},
		"does not look ahead": {pod: pod(nil), said: &catalog.Description{Engine: "sglang"}, want: []string{plain + " events=tcp://10.0.0.1:5557"}},
		"tells no model": {
			pod: pod(nil), entry: func(e *mapping.Entry) { e.Ask, e.Model = true, "" }, said: &catalog.Description{Unknown: map[string]string{"model_name": "401", "block_size": "404"}},
			want: []string{"1943803597606491 default@default http://10.0.0.1:8000 block=16 events=tcp://10.0.0.1:5557 !401"},
		},
		"tells no model that is given": {
			pod: pod(nil), entry: func(e *mapping.Entry) { e.Ask, e.Worker.BlockSize = true, nil }, said: &catalog.Description{Unknown: map[string]string{"model_name": "401"}, BlockSize: 32},
			want: []string{"1943803597606491 m@default http://10.0.0.1:8000 block=32 events=tcp://10.0.0.1:5557"},
		},
		"answered with a fault": {
			pod: pod(nil), entry: func(e *mapping.Entry) { e.Ask, e.Worker.BlockSize = true, nil },
			away: "GET http://10.0.0.1:8000/metrics: 404",
			want: []string{"1943803597606491 m@default http://10.0.0.1:8000 events=tcp://10.0.0.1:5557 !GET http://10.0.0.1:8000/metrics: 404 !block_size must be greater than 0"},
		},
		"nobody asks": {
			pod: pod(nil), entry: func(e *mapping.Entry) { e.Model = "" },
			want: []string{"1943803597606491 default@default http://10.0.0.1:8000 block=16 events=tcp://10.0.0.1:5557 !no model is configured, and engines are not asked"},
		},
		"nobody may ask": {
			pod: pod(nil), entry: func(e *mapping.Entry) { e.Ask, e.Model = true, "" }, h2c: true,
			want: []string{"1943803597606491 default@default http://10.0.0.1:8000 block=16 events=tcp://10.0.0.1:5557 !no model is configured, and engines that speak h2c are not asked"},
		},
		"port too high": {
			pod: pod(nil), entry: func(e *mapping.Entry) { e.KVEventsPort, e.Worker.Size = 65535, new(uint32(2)) },
			want: []string{plain + " ranks=0+2 !the port of the events of rank 1 would be 65536"},
		},
		"malformed": {
			pod: annotated("select-service/block-size", "x", "select-service/data-parallel-size", "4097", "select-service/model", "",
				"select-service/cordoned", "maybe", "select-service/taints", strings.Repeat("t", 1025), "select-service/rank-header", "x"),
			want: []string{plain + ` events=tcp://10.0.0.1:5557 !annotation select-service/cordoned: "maybe" is neither true nor false` +
				` !annotation select-service/model: it is empty` +
				` !annotation select-service/rank-header: "x" is not local, global or none` +
				` !annotation select-service/block-size: "x" is not a number from 1 to 4294967295` +
				` !annotation select-service/data-parallel-size: "4097" is not a number from 1 to 4096` +
				` !annotation select-service/taints: it has more than 1024 bytes`},
		},
		"more ranks than a pod may have": {
			pod: annotated("select-service/data-parallel-size", "65"),
			want: []string{plain + " events=tcp://10.0.0.1:5557 !annotation select-service/data-parallel-size: 65 ranks are more than the 64" +
				" that a pod may have behind each of its target ports: set data_parallel_size of its source"},
		},
		"more ranks of an engine than a pod may have": {
			pod: pod(nil), said: &catalog.Description{Size: 65},
			want: []string{plain + " events=tcp://10.0.0.1:5557 !the engine's 65 ranks are more than the 64" +
				" that a pod may have behind each of its target ports: set data_parallel_size of its source"},
		},
		"ranks that its source allows": {
			pod:   annotated("select-service/data-parallel-size", "100", "select-service/kv-events-port", "65500"),
			entry: func(e *mapping.Entry) { e.Worker.Size = new(uint32(100)) },
			want:  []string{plain + " ranks=0+100 !the port of the events of rank 36 would be 65536"},
		},
		"zone": {
			pod: pod(func(p *mapping.Pod) {
				p.Labels = map[string]string{"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "b"}
			}),
			want: []string{plain + " events=tcp://10.0.0.1:5557 domains=map[region:b zone:a]"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			e := configured()
			if tt.entry != nil {
				tt.entry(&e)
			}
			if tt.ports == nil {
				tt.ports = one
			}
			e.Ask = e.Ask || tt.said != nil
			m := mapping.Map(tt.pod, &mapping.Pool{Ports: tt.ports, H2C: tt.h2c}, &e, &settings, func(*catalog.Record) *catalog.Description { return tt.said })
			var got []string
			for _, w := range m.Workers {
				got = append(got, show(described(t, w, tt.said, tt.away)))
			}
			if d := cmp.Diff(tt.want, got); d != "" || m.Excluded != "" {
				t.Errorf("excluded %q, workers (-want +got):\n%s", m.Excluded, d)
			}
		})
	}
}

// TestControlEndpoints: the ranks' ports follow one another as those of other endpoints do.
func TestControlEndpoints(t *testing.T) {
	for port, want := range map[string]map[uint32]string{
		"":      nil,
		"23280": {0: "tcp://10.0.0.1:23280", 1: "tcp://10.0.0.1:23281"},
		"65535": nil,
	} {
		e := configured()
		e.PortStride = 1
		pod := annotated("select-service/data-parallel-size", "2")
		if port != "" {
			pod = annotated("select-service/data-parallel-size", "2", "select-service/router-hint-control-port", port)
		}
		m := mapping.Map(pod, &mapping.Pool{Ports: []uint16{8000}}, &e, &settings, func(*catalog.Record) *catalog.Description { return nil })
		w := m.Workers[0]
		if d := cmp.Diff(want, w.Record.RouterHintSourceControlEndpoints); d != "" || (port == "65535") != (len(w.Reasons) > 0) || len(m.Unknown) > 0 {
			t.Errorf("port %s: %q, unknown %q, endpoints (-want +got):\n%s", port, w.Reasons, m.Unknown, d)
		}
	}
}

// TestFieldsOfPods: an annotation, named after a field of the table, comes before the same field of its
// source, and that before what is unset. A field that is the pod's own is no annotation.
func TestFieldsOfPods(t *testing.T) {
	values := map[string]string{
		"kv_event_copies": "set", "kv_events": "false", "attention_chunk_size": "8192", "max_model_len": "4096", "load_metrics": "true", "role": "decode",
		"rank_header": "none", "prefill_rank_header": "true", "adapters": "a,b", "block_size": "32", "data_parallel_size": "2",
		"max_num_batched_tokens": "5", "total_kv_blocks": "6", "is_eagle": "true", "taints": "t", "revision": "v2", "router_hint_worker_type": "decode", "kv_hints_in_body": "true",
	}
	show := func(of catalog.Accessor, r *catalog.Record) string {
		var v any
		switch of := of.(type) {
		case catalog.Pointer[string]:
			v = *of(r)
		case catalog.Pointer[bool]:
			v = *of(r)
		case catalog.Pointer[uint32]:
			v = *of(r)
		case catalog.Pointer[uint64]:
			v = *of(r)
		case catalog.Pointer[catalog.LoadMetrics]:
			v = *of(r)
		case catalog.List:
			v = *of(r)
		}
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, f := range catalog.Fields() {
		name := mapping.AnnotationPrefix + strings.ReplaceAll(f.Name, "_", "-")
		record := func(e mapping.Entry, p *mapping.Pod) (*catalog.Record, []string) {
			m := mapping.Map(p, &mapping.Pool{Ports: []uint16{8000}}, &e, &settings, func(*catalog.Record) *catalog.Description { return nil })
			return &m.Workers[0].Record, m.Unknown
		}
		r, unknown := record(configured(), annotated(name, values[f.Name]))
		if f.Pods == (len(unknown) > 0) {
			t.Errorf("%s: unknown %q", name, unknown)
		}
		if !f.Pods {
			if none, _ := record(configured(), pod(nil)); show(f.Of, r) != show(f.Of, none) {
				t.Errorf("%s: %s", name, show(f.Of, r))
			}
			continue
		}
		e := configured()
		e.Worker = *r // as its source would say it
		if fromEntry, _ := record(e, pod(nil)); show(f.Of, fromEntry) != show(f.Of, r) || show(f.Of, r) == "null" {
			t.Errorf("%s: %s, the same of the source %s", name, show(f.Of, r), show(f.Of, fromEntry))
		}
	}
}

func idOf(name string) uint64 {
	e := configured()
	p := pod(func(p *mapping.Pod) { p.Name, p.Namespace = name, "llm" })
	return mapping.Map(p, &mapping.Pool{Ports: []uint16{8000}}, &e, &settings, func(*catalog.Record) *catalog.Description { return nil }).Workers[0].Record.ID
}

// TestRoles: all values of both labels, their order, and what an entry fixes.
func TestRoles(t *testing.T) {
	const llmd, dynamo = mapping.RoleLabelLLMD, mapping.RoleLabelDynamo
	tests := []struct {
		labels map[string]string
		fixed  string
		want   string
	}{
		{map[string]string{llmd: "prefill"}, "", "prefill"},
		{map[string]string{llmd: "encode-prefill"}, "", "prefill"},
		{map[string]string{llmd: "decode"}, "", "decode"},
		{map[string]string{llmd: "both"}, "", ""},
		{map[string]string{llmd: "prefill-decode"}, "", ""},
		{map[string]string{llmd: "encode-prefill-decode"}, "", ""},
		{nil, "", ""},
		{map[string]string{llmd: "encode"}, "", "excluded"},
		{map[string]string{llmd: "x"}, "", `label llm-d.ai/role: "x" is not a role`},
		{map[string]string{dynamo: "decode"}, "", "decode"},
		{map[string]string{llmd: "both", dynamo: "decode"}, "", ""},
		{map[string]string{llmd: "encode"}, "decode", "decode"},
	}
	for _, tt := range tests {
		e := configured()
		if tt.fixed != "" {
			e.Worker.Role = &tt.fixed
		}
		p := pod(func(p *mapping.Pod) { p.Labels = tt.labels })
		m := mapping.Map(p, &mapping.Pool{Ports: []uint16{8000}}, &e, &settings, func(*catalog.Record) *catalog.Description { return nil })
		got := ""
		switch {
		case m.Excluded == mapping.ExcludedRole:
			got = "excluded"
		case len(m.Workers[0].Reasons) > 0:
			got = m.Workers[0].Reasons[0]
		case m.Workers[0].Record.Role != nil:
			got = *m.Workers[0].Record.Role
		}
		if got != tt.want {
			t.Errorf("labels %v, fixed %q: %q, want %q", tt.labels, tt.fixed, got, tt.want)
		}
	}
}

// TestExcludedAddresses: nobody connects to addresses that no pod of a network has (scenario 34).
func TestExcludedAddresses(t *testing.T) {
	for ip, bad := range map[string]bool{
		"10.0.0.1": false, "fd00::1": false, "127.0.0.1": true, "::1": true, "::ffff:127.0.0.1": true, "169.254.169.254": true,
		"fe80::1": true, "fe80::1%eth0": true, "224.0.0.1": true, "0.0.0.0": true, "::": true, "pod.example": true,
	} {
		e := configured()
		p := pod(func(p *mapping.Pod) { p.IP = ip })
		m := mapping.Map(p, &mapping.Pool{Ports: []uint16{8000}}, &e, &settings, func(*catalog.Record) *catalog.Description { return nil })
		if (m.Excluded == mapping.ExcludedIP) != bad {
			t.Errorf("%s: excluded %q, want %v", ip, m.Excluded, bad)
		}
	}
	open := settings
	open.AllowLoopback = true
	e := configured()
	p := pod(func(p *mapping.Pod) { p.IP = "127.0.0.9" })
	if m := mapping.Map(p, &mapping.Pool{Ports: []uint16{8000}}, &e, &open, func(*catalog.Record) *catalog.Description { return nil }); m.Excluded != "" {
		t.Errorf("the loopback is excluded although it is allowed: %s", m.Why)
	}
}

// TestUnknownAnnotations: what has the prefix and no meaning is told, the rest is not read.
func TestUnknownAnnotations(t *testing.T) {
	e := configured()
	p := annotated("select-service/blocksize", "1", "select-service/cordoned", "true", "example.com/model", "x")
	m := mapping.Map(p, &mapping.Pool{Ports: []uint16{8000}}, &e, &settings, func(*catalog.Record) *catalog.Description { return nil })
	if d := cmp.Diff([]string{"select-service/blocksize"}, m.Unknown); d != "" || !m.Cordoned || m.Workers[0].Record.Scope != (catalog.Scope{Model: "m", Tenant: "default"}) {
		t.Errorf("cordoned %v, unknown %s", m.Cordoned, d)
	}
	keep := mapping.NewKeep(&e)
	if got := keep.AnnotationsOf(map[string]string{"example.com/x": "1", "select-service/a": strings.Repeat("x", 1<<20)}); len(got) != 1 || len(got["select-service/a"]) > 2<<10 {
		t.Errorf("kept %d annotations, the value of %d bytes", len(got), len(got["select-service/a"]))
	}
}
