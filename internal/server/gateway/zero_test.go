package gateway_test

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// saturation returns the scope's gauge for an autoscaler, -1 if there is none.
func (w *world) saturation(sc catalog.Scope) float64 {
	for _, s := range w.Metrics()["scope_saturation_ratio"] {
		if slices.Contains(s.Labels, sc.Model) && slices.Contains(s.Labels, sc.Tenant) {
			return s.Value
		}
	}
	return -1
}

func (w *world) drain(id uint64) {
	w.T.Helper()
	if _, err := w.DrainWorkerIn(catalog.ScopeFilter{}, id, nil); err != nil {
		w.T.Fatal(err)
	}
}

// incomplete registers a worker whose events are unknown.
func (w *world) incomplete(id uint64, change func(*catalog.Record)) {
	w.T.Helper()
	if wk, err := w.PutWorker(servicetest.Record(id, 1, change, func(r *catalog.Record) { r.KVEventsEndpoints = nil })); err != nil || wk.Lifecycle != catalog.Incomplete {
		w.T.Fatalf("%+v, %v", wk, err)
	}
}

func named(model string) func(*catalog.Record) {
	return func(r *catalog.Record) { r.Scope = catalog.Scope{Model: model, Tenant: catalog.DefaultName} }
}

// TestAtZero: a request for a model whose workers are all away is told to come again (503 with Retry-After), and
// the gauge that docs/run/sizing.md scales by is 1, whatever made the name known and whatever the route. A
// name that never had a worker is 404 and makes no series.
func TestAtZero(t *testing.T) {
	scope := func(model string) catalog.Scope { return catalog.Scope{Model: model, Tenant: catalog.DefaultName} }
	unnamed := func(_ *node.Config, c *settings) { c.Models = nil }
	for name, tt := range map[string]struct {
		change func(*node.Config, *settings)
		// expected are the scopes that a source of workers names.
		expected []catalog.Scope
		before   func(w *world)
		model    string
		scope    catalog.Scope
		status   int
		want     float64
	}{
		"the last worker has left": {change: unnamed, before: func(w *world) {
			w.put(1, 1, named("small"))
			w.put(2, 1, named("big"))
			w.Remove(2)
		}, model: "big", scope: scope("big"), status: 503, want: 1},
		"that of every model": {change: unnamed, before: func(w *world) {
			w.put(2, 1, named("big"))
			w.Remove(2)
		}, model: "big", scope: scope("big"), status: 503, want: 1},
		"its workers are drained": {change: unnamed, before: func(w *world) {
			w.put(1, 1, named("small"))
			w.put(2, 1, named("big"))
			w.drain(2)
		}, model: "big", scope: scope("big"), status: 503, want: 1},
		"its workers are incomplete": {change: unnamed, before: func(w *world) {
			w.put(1, 1, named("small"))
			w.incomplete(2, named("big"))
		}, model: "big", scope: scope("big"), status: 503, want: 1},
		"configured, and never seen": {change: func(_ *node.Config, c *settings) {
			c.Models = map[string]catalog.Scope{"small": scope("a"), "big": {Model: "b", Tenant: "gold"}}
		}, before: func(w *world) { w.put(1, 1, named("a")) }, model: "big", scope: catalog.Scope{Model: "b", Tenant: "gold"}, status: 503, want: 1},
		"named by discovery, and never seen": {change: unnamed, expected: []catalog.Scope{scope("big")}, before: func(w *world) {
			w.put(1, 1, named("small"))
		}, model: "big", scope: scope("big"), status: 503, want: 1},
		"only prefill workers": {change: unnamed, before: func(w *world) {
			w.put(2, 1, named("big"), role("prefill"))
		}, model: "big", scope: scope("big"), status: 503, want: 1},
		"an adapter whose worker has left": {change: unnamed, before: func(w *world) {
			w.put(1, 1, named("small"))
			w.put(2, 1, named("small"), func(r *catalog.Record) { r.Adapters = []string{"big"} })
			w.Remove(2)
		}, model: "big", scope: scope("small"), status: 503, want: 1},
		"the adapter in SGLang's form": {change: unnamed, before: func(w *world) {
			w.put(1, 1, named("small"))
			w.put(2, 1, named("small"), func(r *catalog.Record) { r.Adapters = []string{"big"} })
			w.Remove(2)
		}, model: "small:big", scope: scope("small"), status: 503, want: 1},
		"an adapter that was taken off": {change: unnamed, before: func(w *world) {
			w.put(2, 1, named("small"), func(r *catalog.Record) { r.Adapters = []string{"big"} })
			w.put(2, 1, named("small"))
		}, model: "big", scope: scope("small"), status: 503, want: 1},
		"an adapter with its model": {change: unnamed, before: func(w *world) {
			w.put(1, 1, named("other"))
			w.put(2, 1, named("small"), func(r *catalog.Record) { r.Adapters = []string{"big"} })
			w.Remove(2)
		}, model: "big", scope: scope("small"), status: 503, want: 1},
		"an adapter of a drained worker": {change: unnamed, before: func(w *world) {
			w.put(1, 1, named("small"))
			w.put(2, 1, named("small"), func(r *catalog.Record) { r.Adapters = []string{"big"} })
			w.drain(2)
		}, model: "big", scope: scope("small"), status: 503, want: 1},
		"a further name whose worker has left": {change: unnamed, before: func(w *world) {
			w.put(1, 1, named("small"))
			w.put(2, 1, named("first"), func(r *catalog.Record) { r.Aliases = []string{"big"} })
			w.Remove(2)
		}, model: "big", scope: scope("first"), status: 503, want: 1},
		"a further name whose worker is drained": {change: unnamed, before: func(w *world) {
			w.put(1, 1, named("small"))
			w.put(2, 1, named("first"), func(r *catalog.Record) { r.Aliases = []string{"big"} })
			w.drain(2)
		}, model: "big", scope: scope("first"), status: 503, want: 1},
		"a further name that is configured, and whose worker has left": {change: func(_ *node.Config, c *settings) {
			c.Models = map[string]catalog.Scope{"other": scope("a"), "small": scope("first")}
		}, before: func(w *world) {
			w.put(1, 1, named("a"))
			w.put(2, 1, named("first"), func(r *catalog.Record) { r.Aliases = []string{"big"} })
			w.Remove(2)
		}, model: "big", scope: scope("first"), status: 503, want: 1},
		"a further name that is configured itself, and whose worker has left": {change: func(_ *node.Config, c *settings) {
			c.Models = map[string]catalog.Scope{"big": scope("big"), "small": scope("a")}
		}, before: func(w *world) {
			w.put(1, 1, named("a"))
			w.put(2, 1, named("first"), func(r *catalog.Record) { r.Aliases = []string{"big"} })
			w.Remove(2)
		}, model: "big", scope: scope("first"), status: 503, want: 1},
		"never seen": {change: unnamed, before: func(w *world) {
			w.put(1, 1, named("small"))
		}, model: "big", scope: scope("big"), status: 404, want: -1},
		"another tenant's": {change: unnamed, expected: []catalog.Scope{{Model: "big", Tenant: "gold"}}, before: func(w *world) {
			w.put(1, 1, named("small"))
			w.put(2, 1, func(r *catalog.Record) { r.Scope = catalog.Scope{Model: "big", Tenant: "gold"} })
			w.Remove(2)
		}, model: "big", scope: catalog.Scope{Model: "big", Tenant: "gold"}, status: 404, want: -1},
		"not a configured one": {change: func(_ *node.Config, c *settings) {
			c.Models = map[string]catalog.Scope{"small": scope("a")}
		}, before: func(w *world) {
			w.put(1, 1, named("a"))
			w.put(2, 1, named("big"))
			w.Remove(2)
		}, model: "big", scope: scope("big"), status: 404, want: -1},
		"no worker, never seen": {change: unnamed, before: func(*world) {}, model: "big", scope: scope("big"), status: 503, want: -1},
	} {
		for route, send := range map[string]func(w *world, model string) placed{
			"chat": func(w *world, model string) placed {
				_, p := w.post(chatPath, `{"model":"`+model+`","messages":[{"role":"user","content":"1 2"}]}`)
				return p
			},
			"embeddings": func(w *world, model string) placed {
				_, p := w.post("/v1/embeddings", `{"model":"`+model+`","input":"1 2"}`)
				return p
			},
			"upgrade": func(w *world, model string) placed {
				e := w.open()
				e.request("/v1/realtime?model="+model, false, "upgrade", "websocket")
				return e.placement(false, false)
			},
		} {
			t.Run(name+"/"+route, func(t *testing.T) {
				w := startExpecting(t, tt.expected, tt.change)
				tt.before(w)
				for range 2 {
					if p := send(w, tt.model); p.status != tt.status || (p.headers["retry-after"] != "") != (tt.status == 503) {
						t.Errorf("answered %d with Retry-After %q, want %d", p.status, p.headers["retry-after"], tt.status)
					}
				}
				if got := w.saturation(tt.scope); got != tt.want {
					t.Errorf("saturation is %g, want %g (-1: no series)", got, tt.want)
				}
			})
		}
	}
}

// TestBackFromZero: once the worker is there, what was refused before does not count as load.
func TestBackFromZero(t *testing.T) {
	w := start(t, func(_ *node.Config, c *settings) { c.Models = nil })
	w.put(1, 1, named("m"))
	w.Remove(1)
	if _, p := w.post(chatPath, chat(servicetest.Prompt(1, 8), "")); p.status != 503 {
		t.Fatalf("%+v", p)
	}
	w.put(1, 1, named("m"))
	e, p := w.post(chatPath, chat(servicetest.Prompt(1, 8), ""))
	if p.destination != at(1) || w.saturation(catalog.Scope{Model: "m", Tenant: catalog.DefaultName}) == 1 {
		t.Errorf("%+v, saturation %g", p, w.saturation(catalog.Scope{Model: "m", Tenant: catalog.DefaultName}))
	}
	e.close()
}

// TestSubsetAtZero: a subset without a worker is no reason to come again, nor to start an engine.
func TestSubsetAtZero(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	e := w.open()
	e.subset = structpb.NewStringValue("10.9.9.9:1")
	e.request(chatPath, false)
	e.body(chat(servicetest.Prompt(1, 8), ""), true)
	if p := e.placement(true, false); p.status != 503 || p.headers["retry-after"] != "" {
		t.Errorf("%+v", p)
	}
	if got := w.saturation(servicetest.Scope); got == 1 {
		t.Errorf("saturation is %g", got)
	}
}
