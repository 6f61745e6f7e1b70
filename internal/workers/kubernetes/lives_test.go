package kubernetes_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/internal/workers/workerid"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/kubetest"
)

// asking is an entry that leaves all to the engines.
func asking(e *mapping.Entry) {
	e.Ask, e.Model, e.Worker.BlockSize, e.Worker.TotalKVBlocks = true, "", nil, nil
}

// TestKeptForHours: what an engine has said holds while its pod is known: for a pod that is cordoned, not
// ready or terminating for hours, and while no pod could be listed since a start. Its worker drains for
// as long, and is what it was when the pod serves again, also if its engine does not answer then.
func TestKeptForHours(t *testing.T) {
	said := answer{Model: "x", Adapters: []string{"l"}, BlockSize: 32, TotalKVBlocks: 7, EventsPort: 6000}
	hours := 5
	if testing.Short() {
		hours = 2
	}
	for name, tt := range map[string]struct {
		change func(kubetest.Object)
		why    string
	}{
		"cordoned":    {kubetest.Annotations("select-service/cordoned", "true"), "is cordoned"},
		"not ready":   {kubetest.Ready(false), "is not ready"},
		"terminating": {func(o kubetest.Object) { kubetest.Deleted(time.Now().Add(6 * time.Hour))(o) }, "is terminating"},
		"left":        {kubetest.Labels("app", "debug"), "left pool llm"},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, api *kubetest.Server) {
				api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
				api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.1"))
				w := startVirtual(t, api, nil, pool(asking, func(e *mapping.Entry) { e.NotReadyGrace = 6 * time.Hour }))
				w.says("http://10.0.0.1:8000", said)
				w.has("a:8000 schedulable")
				w.forgets("http://10.0.0.1:8000")
				api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.1", tt.change))
				for range 6 * hours {
					time.Sleep(10 * time.Minute)
					api.Put("pods", kubetest.Pod("llm", "b", "10.0.0.2", kubetest.Ready(false))) // something to look at
				}
				w.has("a:8000 draining: pod llm/a " + tt.why)
				is := func() {
					t.Helper()
					if x := w.worker("a"); x.Scope.Model != "x" || *x.BlockSize != 32 || len(x.Adapters) != 1 || *x.TotalKVBlocks != 7 || *x.KVEventsEndpoint != "tcp://10.0.0.1:6000" {
						t.Errorf("worker %+v", x.Record)
					}
				}
				is()
				api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.1"))
				w.has("a:8000 schedulable")
				is()
				w.lostNone()
				// Another pod of the name is another engine.
				api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.1", kubetest.UID("another")))
				w.await("another engine", func() bool { return w.worker("a").Lifecycle == catalog.Incomplete })
			})
		})
	}
	t.Run("another address", func(t *testing.T) {
		virtual(t, func(t *testing.T, api *kubetest.Server) {
			api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
			api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.1"))
			w := startVirtual(t, api, nil, pool(asking))
			w.says("http://10.0.0.1:8000", said)
			w.has("a:8000 schedulable")
			api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.9"))
			time.Sleep(10 * time.Minute)
			w.has("a:8000 schedulable")
			if x := w.worker("a"); x.Scope.Model != "x" || *x.BlockSize != 32 || *x.KVEventsEndpoint != "tcp://10.0.0.9:6000" {
				t.Errorf("worker %+v", x.Record)
			}
			w.lostNone()
		})
	})
	t.Run("no list since the start", func(t *testing.T) {
		virtual(t, func(t *testing.T, api *kubetest.Server) {
			api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
			api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.1"))
			w := startVirtual(t, api, nil, pool(asking))
			w.says("http://10.0.0.1:8000", said)
			w.has("a:8000 schedulable")
			workers := w.restored(false)
			api.Kill()
			w = startVirtual(t, api, workers, pool(asking))
			time.Sleep(90 * time.Minute)
			w.has("a:8000 draining: restored")
			api.Start()
			w.has("a:8000 schedulable")
			w.lostNone()
		})
	})
}

// forgets makes an engine answer no more.
func (w *world) forgets(url string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.engines, url)
}

// restored returns a catalog with the workers as a state on disk has them; plain: without what their
// engines have said, as earlier releases have saved them.
func (w *world) restored(plain bool) *catalog.Catalog {
	w.t.Helper()
	var records []catalog.Record
	for _, x := range w.catalog.List(nil, nil) {
		r := x.Record
		r.Draining = "restored"
		if plain {
			r.Describe = nil
		}
		records = append(records, r)
	}
	workers := newCatalog()
	if _, err := workers.Reconcile(catalog.Set{Kind: catalog.SourceKubernetes, Records: records}); err != nil {
		w.t.Fatal(err)
	}
	return workers
}

// TestFormerSettings: what was configured in an earlier life of the process has no say in this one: once
// the engine has answered, the worker is as after a start without the state; at once if the engine is not
// asked. Values that an engine has told stay while it answers no or not all questions.
func TestFormerSettings(t *testing.T) {
	const engine = "http://10.0.0.1:8000"
	set := func(e *mapping.Entry) {
		asking(e)
		e.KVEventsPort, e.KVReplayPort, e.KVLoadPort = 6000, 6100, 6200
		e.Worker.Size, e.Worker.TotalKVBlocks, e.Worker.BlockSize = new(uint32(2)), new(uint64(9)), new(uint32(64))
	}
	annotations := []string{
		"select-service/kv-events-port", "6000", "select-service/kv-replay-port", "6100", "select-service/kv-load-port", "6200",
		"select-service/data-parallel-size", "2", "select-service/total-kv-blocks", "9", "select-service/block-size", "64",
	}
	const had = "events 6000 replay 6100 load 6200 ranks 2 blocks 9 block 64"
	told := answer{Model: "x", BlockSize: 32}
	for name, tt := range map[string]struct {
		before, after func(*mapping.Entry)
		annotations   []string
		says          *answer // nil: it does not answer
		want          string
		state         catalog.Lifecycle
		saved         bool // by a release whose records have no description
	}{
		"the engine answers":         {before: set, after: asking, says: &told, want: "events 5557 replay 0 load 0 ranks 1 blocks 0 block 32"},
		"annotations":                {before: asking, annotations: annotations, after: asking, says: &told, want: "events 5557 replay 0 load 0 ranks 1 blocks 0 block 32"},
		"the engine does not tell":   {before: set, after: asking, says: &answer{Model: "x", NoBlockSize: "none"}, want: "events 5557 replay 0 load 0 ranks 1 blocks 0 block 0", state: catalog.Incomplete},
		"it does not answer":         {before: set, after: asking, want: "events 5557 replay 0 load 0 ranks 1 blocks 0 block 32"},
		"nor did it say so then":     {before: set, after: asking, saved: true, want: had},
		"it does not answer all":     {before: set, after: asking, saved: true, says: &answer{Model: "x", Unanswered: true}, want: had},
		"it is not asked":            {before: set, after: func(e *mapping.Entry) { e.Worker.TotalKVBlocks = nil }, want: "events 5557 replay 0 load 0 ranks 1 blocks 0 block 16"},
		"it is not asked, nor known": {before: set, after: func(e *mapping.Entry) { asking(e); e.Ask = false }, want: "events 5557 replay 0 load 0 ranks 1 blocks 0 block 0", state: catalog.Incomplete},
		"another port than before":   {before: set, after: func(e *mapping.Entry) { asking(e); e.KVEventsPort = 7000 }, says: &told, want: "events 7000 replay 0 load 0 ranks 1 blocks 0 block 32"},
		"what the engine told it still tells": {
			before: asking, after: asking, says: &answer{Model: "x", BlockSize: 32, EventsPort: 5600, Ranks: 2, TotalKVBlocks: 3},
			want: "events 5600 replay 0 load 0 ranks 2 blocks 3 block 32",
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, api *kubetest.Server) {
				api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
				api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.1", kubetest.Annotations(tt.annotations...)))
				w := startVirtual(t, api, nil, pool(tt.before))
				first := told
				if tt.says != nil && tt.says.EventsPort > 0 {
					first = *tt.says
				}
				w.says(engine, first)
				w.await("the worker", func() bool { x, ok := w.find("a"); return ok && x.Lifecycle == catalog.Schedulable })
				workers := w.restored(tt.saved)
				api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.1"))
				config := pool(tt.after)
				w = startVirtual(t, api, workers, config)
				if tt.says != nil {
					w.says(engine, *tt.says)
				}
				time.Sleep(10 * time.Minute)
				x := w.worker("a")
				if got := show(x); got != tt.want || x.Lifecycle != cmp.Or(tt.state, catalog.Schedulable) {
					t.Errorf("%s %s, want %s", x.Lifecycle, got, tt.want)
				}
			})
		})
	}
}

// show returns what TestFormerSettings looks at; 0 is none.
func show(x *catalog.Worker) string {
	port := func(one *string, all map[uint32]string) string {
		at := all[0]
		if one != nil {
			at = *one
		}
		if at == "" {
			return "0"
		}
		return at[strings.LastIndexByte(at, ':')+1:]
	}
	number := func(n *uint64) uint64 {
		if n == nil {
			return 0
		}
		return *n
	}
	var block uint32
	if x.BlockSize != nil {
		block = *x.BlockSize
	}
	return fmt.Sprintf("events %s replay %s load %s ranks %d blocks %d block %d", port(x.KVEventsEndpoint, x.KVEventsEndpoints),
		port(x.ReplayEndpoint, x.ReplayEndpoints), port(x.LoadEndpoint, x.LoadEndpoints), x.RankCount(), number(x.TotalKVBlocks), block)
}

// TestFormerPorts: ports that a pool had before drain where they were served, and at no pod that came, or
// became ready, later.
func TestFormerPorts(t *testing.T) {
	virtual(t, func(t *testing.T, api *kubetest.Server) {
		put := func(name, ip string, ready bool) {
			api.Put("pods", kubetest.Pod("llm", name, ip, kubetest.Ready(ready)))
		}
		api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000, 8001))
		put("a", "10.0.0.1", true)
		put("waits", "10.0.0.2", false)
		w := startVirtual(t, api, nil, pool())
		w.has("a:8000 schedulable", "a:8001 schedulable")
		api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
		const left = "a:8001 draining: port 8001 of pod llm/a left pool llm"
		w.has("a:8000 schedulable", left)
		put("new", "10.0.0.3", true)
		put("waits", "10.0.0.2", true)
		w.has("a:8000 schedulable", left, "new:8000 schedulable", "waits:8000 schedulable")
		// Another pod of the name has not had it, either.
		api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.4", kubetest.UID("another")))
		w.has("a:8000 schedulable", "new:8000 schedulable", "waits:8000 schedulable")
		api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000, 9000))
		time.Sleep(time.Second)
		api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
		time.Sleep(mapping.DefaultGrace - 2*time.Second)
		if n := len(w.workers()); n != 6 {
			t.Errorf("workers %q", w.workers())
		}
		time.Sleep(3 * time.Second)
		w.has("a:8000 schedulable", "new:8000 schedulable", "waits:8000 schedulable")
	})
}

// TestPortsReordered: the first target port of a pod has the id of its name, the others' have their port.
// Where an edit, also one that nobody has watched, gives an id to another engine of the pod, that keeps
// nothing of the first: the worker is removed and added. An id whose engine stays keeps everything, and
// so does one whose port is replaced.
func TestPortsReordered(t *testing.T) {
	const moved = "a:8001 draining: port 8001 of pod llm/a has another place in pool llm"
	for name, tt := range map[string]struct {
		before, after []int
		want          []string
		removed       bool // the worker of the first port
	}{
		"swapped":          {[]int{8000, 8001}, []int{8001, 8000}, []string{"a:8001 schedulable", "a:8000 schedulable", moved}, true},
		"rotated":          {[]int{8000, 8001, 8002}, []int{8001, 8002, 8000}, []string{"a:8001 schedulable", "a:8002 schedulable", "a:8000 schedulable", moved}, true},
		"the first goes":   {[]int{8000, 8001}, []int{8001}, []string{"a:8001 schedulable", moved}, true},
		"another is first": {[]int{8000}, []int{9000, 8000}, []string{"a:9000 schedulable", "a:8000 schedulable"}, true},
		"one is added":     {[]int{8000}, []int{8000, 9000}, []string{"a:8000 schedulable", "a:9000 schedulable"}, false},
		"the last goes":    {[]int{8000, 8001}, []int{8000}, []string{"a:8000 schedulable", "a:8001 draining: port 8001 of pod llm/a left pool llm"}, false},
		"replaced":         {[]int{8000}, []int{9000}, []string{"a:9000 schedulable"}, false},
	} {
		for _, restarted := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " restarted ", restarted), func(t *testing.T) {
				virtual(t, func(t *testing.T, api *kubetest.Server) {
					api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", tt.before...))
					api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.1"))
					w := startVirtual(t, api, nil, pool())
					w.await("the workers", func() bool { return w.catalog.CountSchedulable() == len(tt.before) })
					want := tt.want
					if restarted {
						workers := w.restored(false)
						api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", tt.after...))
						w = startVirtual(t, api, workers, pool())
						want = slices.DeleteFunc(slices.Clone(want), func(line string) bool { return strings.Contains(line, "draining") })
					} else {
						api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", tt.after...))
					}
					w.has(want...)
					first := map[bool]int{true: 1}[tt.removed]
					w.await("it is removed and added", func() bool { return w.removals(workerid.Of("a")) == first })
					// What drains is not restored.
					if n := w.removals(workerid.Of("a:8001")); n > 0 && !restarted || w.removals(workerid.Of("a:8002")) > 0 {
						t.Error("an id whose engine stays was removed")
					}
				})
			})
		}
	}
}

// TestForced: a pod that is deleted by force without having been marked comes as one that has left its
// source, since the API server says the same of both: it gets no new request, and its worker is gone after
// the grace, or as soon as another pod has its name.
func TestForced(t *testing.T) {
	virtual(t, func(t *testing.T, api *kubetest.Server) {
		withThreePods(api)
		w := startVirtual(t, api, nil, pool())
		w.await("three workers", func() bool { return w.catalog.CountSchedulable() == 3 })
		api.Delete("pods", "llm", "vllm-0")
		api.Delete("pods", "llm", "vllm-1")
		time.Sleep(time.Second)
		left := func(name string) string { return name + ":8000 draining: pod llm/" + name + " left pool llm" }
		w.has(left("vllm-0"), left("vllm-1"), "vllm-2:8000 schedulable")
		api.Put("pods", kubetest.Pod("llm", "vllm-0", "10.0.0.9", kubetest.UID("another")))
		w.has("vllm-0:8000 schedulable", left("vllm-1"), "vllm-2:8000 schedulable")
		time.Sleep(mapping.DefaultGrace)
		w.has("vllm-0:8000 schedulable", "vllm-2:8000 schedulable")
	})
}

// TestManyRanks: a pod that claims thousands of ranks takes nothing of what others need.
func TestManyRanks(t *testing.T) {
	virtual(t, func(t *testing.T, api *kubetest.Server) {
		api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000, 8001, 8002, 8003, 8004, 8005, 8006, 8007))
		workers := catalog.New(catalog.Settings{KVEvents: true, Limits: catalog.Limits{Workers: 1000, Ranks: 1000, Streams: 64, Scopes: 10}}, new(attachments))
		api.Put("pods", kubetest.Pod("llm", "a-big", "10.0.0.1", kubetest.Annotations(
			"select-service/data-parallel-size", "4096", "select-service/kv-load-port", "7000", "select-service/kv-replay-port", "9000")))
		api.Put("pods", kubetest.Pod("llm", "b-engine", "10.0.0.2"))
		w := startVirtual(t, api, workers, pool(func(e *mapping.Entry) { e.Ask = true }))
		for port := 8000; port < 8008; port++ {
			w.says(fmt.Sprint("http://10.0.0.2:", port), answer{Model: "m", BlockSize: 16, Ranks: 4096, EventsPort: 5557, LoadPort: 7000})
		}
		time.Sleep(time.Minute)
		for i := range 16 {
			api.Put("pods", kubetest.Pod("llm", fmt.Sprint("honest-", i), fmt.Sprint("10.0.1.", i+1), kubetest.Annotations("llm-d.ai/active-ports", "8000")))
		}
		w.await("the honest ones serve", func() bool { return w.catalog.CountSchedulable() == 16 })
		for _, pod := range []string{"a-big", "b-engine"} {
			if x := w.worker(pod); x.Lifecycle != catalog.Incomplete || !strings.Contains(strings.Join(x.Explain(), " "), "4096 ranks are more than the 8 that a pod may have") {
				t.Errorf("%s: %s %q", pod, x.Lifecycle, x.Explain())
			}
		}
	})
}
