package gateway_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func role(name string) func(*catalog.Record) {
	return func(r *catalog.Record) { r.Role = &name }
}

const prefiller = "x-prefiller-host-port"

// TestPrefillAndDecode: where workers prefill for others both are booked, together, until the
// first byte; a prefill that has no room leaves the decode alone.
func TestPrefillAndDecode(t *testing.T) {
	w := start(t)
	w.put(1, 1, role("prefill"))
	w.put(2, 1, role("decode"))
	w.put(3, 1, role("prefill"))
	ids := servicetest.Prompt(1, 16)
	w.cache(3, ids[:8])
	e, p := w.post(chatPath, chat(ids, `,"stream":true`))
	if p.destination != at(2) || p.headers[prefiller] != at(3) {
		t.Fatalf("answered %+v", p)
	}
	w.wantLoads("1/0: 0 0 0; 2/0: 0 4 1; 3/0: 8 4 1")
	e.response(200, sse, false)
	e.chunk(event("a"), false)
	w.wantLoads("1/0: 0 0 0; 2/0: 0 4 1; 3/0: 0 0 0")
	e.chunk("data: [DONE]\n\n", true)
	w.wantLoads("1/0: 0 0 0; 2/0: 0 0 0; 3/0: 0 0 0")
	e.close()

	broken, _ := w.post(chatPath, chat(ids, ""))
	broken.cancel()
	w.wantLoads("1/0: 0 0 0; 2/0: 0 0 0; 3/0: 0 0 0")

	w.Remove(1)
	w.Remove(3)
	e, p = w.post(chatPath, chat(ids, ""))
	if p.destination != at(2) || p.headers[prefiller] != "" {
		t.Errorf("without prefill workers: %+v", p)
	}
	w.wantLoads("2/0: 16 4 1")
	e.close()

	w.Remove(2)
	w.put(4, 1, role("prefill"))
	if _, p := w.post(chatPath, chat(ids, "")); p.status != 503 {
		t.Errorf("without decode workers: %+v", p)
	}
	w.wantLoads("4/0: 0 0 0")
}

// TestDecodeFull: a decode leg that is refused leaves no prefill booked.
func TestDecodeFull(t *testing.T) {
	w := start(t, func(c *node.Config, _ *settings) {
		c.Scopes.Admission = admission.Config{Threshold: new(0.5)}
		c.Selection.Overload.DecodeBlocks = new(0.5)
	})
	limits := func(r *catalog.Record) { r.MaxNumBatchedTokens, r.TotalKVBlocks = new(uint64(1000)), new(uint64(4)) }
	w.put(1, 1, role("prefill"), func(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(1000)) })
	w.put(2, 1, role("decode"), limits)
	e, _ := w.post(chatPath, chat(servicetest.Prompt(1, 16), `,"stream":true`))
	w.wantLoads("1/0: 16 4 1; 2/0: 0 4 1")
	if _, p := w.post(chatPath, chat(servicetest.Prompt(2, 16), "")); p.status != 429 {
		t.Errorf("answered %+v", p)
	}
	w.wantLoads("1/0: 16 4 1; 2/0: 0 4 1")
	e.close()
}

// TestFurtherNames: a request that names the model by a further name of its engines goes to them as it is,
// with their cached blocks, whether the gateway's models are named or are all of a tenant.
func TestFurtherNames(t *testing.T) {
	for name, configure := range map[string]change{
		"named": func(*node.Config, *settings) {},
		"all":   func(_ *node.Config, s *settings) { s.Models = nil },
		// --gateway-model with a name that is not the engines' first one.
		"named by a further name": func(_ *node.Config, s *settings) {
			s.Models = map[string]catalog.Scope{"gpt-4": {Model: "gpt-4", Tenant: servicetest.Scope.Tenant}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, configure)
			record := func(r *catalog.Record) {
				if r.Aliases = []string{"gpt-4"}; name == "all" {
					r.Scope.Tenant = catalog.DefaultName
				}
			}
			w.put(1, 1, record)
			w.put(2, 1, record)
			ids := servicetest.Prompt(1, 16)
			engine := w.Engine(2, 0)
			engine.Publish(0, engine.Stored(ids, servicetest.BlockSize, nil))
			w.Settle()
			body := strings.Replace(chat(ids, ""), `"m"`, `"gpt-4"`, 1)
			e, p := w.post(chatPath, body)
			if p.destination != at(2) || p.body != body {
				t.Errorf("answered %+v", p)
			}
			e.close()
			if _, p := w.post(chatPath, strings.Replace(chat(ids, ""), `"m"`, `"gpt-5"`, 1)); p.status != 404 {
				t.Errorf("another name: %+v", p)
			}
		})
	}
}

// TestAdapter: the name of an adapter is a model, alone or behind its model's, and SGLang's lora_path
// names one where the model does not; its blocks are its own, and only engines that have it get its
// requests.
func TestAdapter(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	with := func(r *catalog.Record) { r.Adapters = []string{"poet"} }
	w.put(2, 1, with)
	w.put(3, 1, with)
	ids := servicetest.Prompt(1, 16)
	engine := w.Engine(3, 0)
	engine.Publish(0, engine.Stored(ids, servicetest.BlockSize, servicetest.Dict{"lora_name": "poet"}))
	w.Settle()
	text := strings.Replace(chat(ids, ""), `"m"`, `"poet"`, 1)
	for path, bodies := range map[string][]string{
		chatPath: {
			text,
			chat(ids, `,"lora_path":"poet"`),
			strings.Replace(chat(ids, ""), `"m"`, `"m:poet"`, 1),
			strings.Replace(chat(ids, `,"lora_path":"other"`), `"m"`, `"m:poet"`, 1),
		},
		completionsPath: {`{"model":"m","prompt":[` + idsOf(ids) + `],"lora_path":["poet"]}`},
		"/generate":     {`{"input_ids":` + idsOf(ids) + `,"lora_path":"poet"}`},
	} {
		for _, body := range bodies {
			e, p := w.post(path, body)
			if p.destination != at(3) || p.body != body {
				t.Errorf("%s: answered %+v", body, p)
			}
			w.wantLoads("1/0: 0 0 0; 2/0: 0 0 0; 3/0: 0 4 1")
			e.close()
			w.wantLoads("1/0: 0 0 0; 2/0: 0 0 0; 3/0: 0 0 0")
		}
	}
	e, p := w.post("/encode", `{"text":"x","lora_path":"poet"}`) // by load, but not on worker 1
	if p.destination == at(1) {
		t.Errorf("a text for the adapter: %+v", p)
	}
	e.close()
	e, p = w.post(chatPath, chat(ids, `,"lora_path":"unknown"`)) // for the engine to say
	if p.status != 0 || !strings.Contains(w.loads(), ": 16 4 1") {
		t.Errorf("an adapter that no worker lists: %+v, loads %s", p, w.loads())
	}
	e.close()
	w.Remove(3)
	if _, p = w.post(chatPath, text); p.destination != at(2) {
		t.Errorf("went to %+v", p)
	}
	w.Remove(2)
	if _, p = w.post(chatPath, text); p.status != 503 {
		t.Errorf("without the adapter: %+v", p)
	}
}

// TestRankEndpoints: ranks with ports of their own are named by these, and a subset may have
// some of them.
func TestRankEndpoints(t *testing.T) {
	w := start(t)
	w.put(1, 2, func(r *catalog.Record) {
		r.RankEndpoints = map[uint32]string{0: "http://10.0.0.1:8001", 1: "http://10.0.0.1:8002"}
	})
	for _, port := range []string{"10.0.0.1:8001", "10.0.0.1:8002"} {
		e := w.open()
		e.subset = structpb.NewStringValue(port)
		e.request(chatPath, false)
		e.body(chat(servicetest.Prompt(1, 8), ""), true)
		if p := e.placement(true, false); p.destination != port || p.headers["x-data-parallel-rank"] != "" {
			t.Errorf("in the subset %s: %+v", port, p)
		}
		e.close()
	}
}

// TestModels: without names every model of the tenant default is served, and no other. Before
// there are workers nobody knows what will be.
func TestModels(t *testing.T) {
	w := start(t, func(_ *node.Config, c *settings) { c.Models = nil })
	if _, p := w.post(chatPath, chat(servicetest.Prompt(1, 8), "")); p.status != 503 {
		t.Errorf("without any worker: %+v", p)
	}
	w.put(1, 1, func(r *catalog.Record) { r.Scope = catalog.Scope{Model: "a", Tenant: catalog.DefaultName} })
	w.put(2, 1, func(r *catalog.Record) { r.Scope = catalog.Scope{Model: "b", Tenant: catalog.DefaultName} })
	w.put(3, 1, func(r *catalog.Record) { r.Scope = catalog.Scope{Model: "c", Tenant: "other"} })
	for name, want := range map[string]string{"a": at(1), "b": at(2), "c": ""} {
		_, p := w.post(chatPath, strings.Replace(chat(servicetest.Prompt(1, 8), ""), `"m"`, `"`+name+`"`, 1))
		if p.destination != want || want == "" && p.status != 404 {
			t.Errorf("model %s: %+v", name, p)
		}
	}
	e := w.open()
	e.request("/v1/models", true)
	if p := e.placement(false, false); p.destination != at(1) && p.destination != at(2) {
		t.Errorf("GET /v1/models: %+v", p)
	}
}

// TestUnreadableDestinations: a request whose prompt cannot be read goes to no worker that only
// prefills, and has fallbacks where the gateway can use them.
func TestUnreadableDestinations(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	w.put(2, 1)
	models := func() string {
		e := w.open()
		e.request("/v1/models", true)
		p := e.placement(false, false)
		list := strings.Split(p.destination, ",")
		e.served = list[0]
		e.response(200, "application/json", true)
		e.close()
		return p.destination
	}
	if got := models(); strings.Contains(got, ",") {
		t.Errorf("a gateway that says nothing of where requests went gets %s", got)
	}
	if got := models(); !strings.Contains(got, at(1)) || !strings.Contains(got, at(2)) {
		t.Errorf("there is no fallback in %s", got)
	}
	busy, p := w.post(chatPath, chat(servicetest.Prompt(7, 64), ""))
	chosen, idle := uint64(1), uint64(2)
	if p.destination[:len(at(1))] != at(1) {
		chosen, idle = idle, chosen
	}
	w.put(idle, 1, role("prefill"))
	if got := models(); got != at(chosen) {
		t.Errorf("beside a worker that only prefills it goes to %s", got)
	}
	busy.close()
}

// TestPrefillEndsWithLastGroup: of an engine with several attention groups, the prefill has ended
// when the last of them has stored the prompt, whichever that is.
func TestPrefillEndsWithLastGroup(t *testing.T) {
	for _, fullFirst := range []bool{true, false} {
		w := start(t, func(c *node.Config, _ *settings) { c.Scopes.HybridExact = true })
		w.put(1, 1)
		engine := w.Engine(1, 0)
		publish := func(ids []uint32) {
			groups := []any{
				engine.Stored(ids, servicetest.BlockSize, servicetest.Dict{"group_idx": 0, "kv_cache_spec_kind": "full_attention"}),
				engine.Stored(ids, servicetest.BlockSize, servicetest.Dict{"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 8}),
			}
			if !fullFirst {
				slices.Reverse(groups)
			}
			engine.Publish(0, groups...)
			w.Settle()
		}
		publish(servicetest.Prompt(5, 16)) // both groups are known
		ids := servicetest.Prompt(1, 18)
		e, _ := w.post(chatPath, chat(ids, ""))
		w.wantLoads("1/0: 18 4 1")
		publish(ids[:16])
		w.wantLoads("1/0: 0 4 1")
		e.close()
	}
}
