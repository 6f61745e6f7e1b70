package kubernetes_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/internal/workers/kubernetes"
	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/kubetest"
)

// virtual runs a test in a bubble of testing/synctest, whose time passes when all wait.
func virtual(t *testing.T, test func(t *testing.T, api *kubetest.Server)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, kubetest.Offline(t)) })
}

// timely runs a test of which most is waiting: with a real API server where there is one, else with a
// stand-in in such a bubble.
func timely(t *testing.T, test func(t *testing.T, api kubetest.API)) {
	t.Helper()
	if os.Getenv(kubetest.BinariesEnv) != "" {
		test(t, kubetest.Any(t))
		return
	}
	virtual(t, func(t *testing.T, api *kubetest.Server) { test(t, api) })
}

// startVirtual is start with a catalog.
func startVirtual(t *testing.T, api *kubetest.Server, workers *catalog.Catalog, entries ...mapping.Entry) *world {
	t.Helper()
	return startConfig(t, api, dial(t, api), kubernetes.Config{Settings: settings(), Entries: entries, Catalog: workers})
}

// TestGrace: a pod that is not ready loses its worker after the grace, without grace at once, and
// does not get it back however it ends: deleted, without its label, or with its pool (scenario 5).
func TestGrace(t *testing.T) {
	for _, grace := range []time.Duration{0, mapping.DefaultGrace} {
		t.Run(grace.String(), func(t *testing.T) {
			virtual(t, func(t *testing.T, api *kubetest.Server) {
				withThreePods(api)
				api.Put("pods", kubetest.Pod("llm", "vllm-3", "10.0.0.4"))
				w := startVirtual(t, api, nil, pool(func(e *mapping.Entry) { e.NotReadyGrace = grace }))
				w.await("four workers", func() bool { return w.catalog.CountSchedulable() == 4 })
				for i := range 3 {
					api.Put("pods", kubetest.Pod("llm", fmt.Sprint("vllm-", i), fmt.Sprint("10.0.0.", i+1), kubetest.Ready(false)))
				}
				if grace > 0 {
					time.Sleep(grace - time.Second)
					unready := func(i int) string { return fmt.Sprintf("vllm-%d:8000 draining: pod llm/vllm-%d is not ready", i, i) }
					w.has(unready(0), unready(1), unready(2), "vllm-3:8000 schedulable")
				}
				time.Sleep(2 * time.Second)
				w.has("vllm-3:8000 schedulable")
				api.Put("pods", kubetest.Pod("llm", "vllm-0", "10.0.0.1", kubetest.Ready(false), kubetest.Deleted(time.Now().Add(time.Minute))))
				api.Put("pods", kubetest.Pod("llm", "vllm-1", "10.0.0.2", kubetest.Ready(false), kubetest.Labels("app", "debug")))
				time.Sleep(time.Second)
				w.has("vllm-3:8000 schedulable")
				api.Delete("inferencepools", "llm", "llm")
				time.Sleep(time.Second)
				if grace == 0 {
					w.has()
				} else {
					w.has("vllm-3:8000 draining: pod llm/vllm-3 left pool llm")
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				for id, n := range w.removed {
					if n > 1 {
						t.Errorf("worker %d was removed %d times", id, n)
					}
				}
			})
		})
	}
}

// TestAskedAgain: an adapter that is loaded is listed within 70 s, and an engine whose answers take long
// has time for all of them (scenario 17). That one which restarts is asked at once is proven in
// internal/node.
func TestAskedAgain(t *testing.T) {
	virtual(t, func(t *testing.T, api *kubetest.Server) {
		api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
		api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.1"))
		const engine = "http://10.0.0.1:8000"
		w := startVirtual(t, api, nil, pool(func(e *mapping.Entry) { e.Ask, e.Model, e.Worker.BlockSize = true, "", nil }))
		slow := func(ctx context.Context) error { // five questions of 4.5 s
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(5 * 4500 * time.Millisecond):
				return nil
			}
		}
		w.mu.Lock()
		w.asking = slow
		w.mu.Unlock()
		w.says(engine, answer{Model: "x", BlockSize: 32})
		time.Sleep(30 * time.Second)
		w.has("a:8000 schedulable")
		if n := w.asks(engine); n != 1 {
			t.Errorf("asked %d times", n)
		}
		w.mu.Lock()
		w.asking = nil
		w.mu.Unlock()
		w.says(engine, answer{Model: "x", BlockSize: 32, Adapters: []string{"sql"}})
		time.Sleep(70 * time.Second)
		if got := w.worker("a").Adapters; len(got) != 1 {
			t.Errorf("adapters %q", got)
		}
	})
}

// TestRestored: workers that the state on disk has keep what they have, and are what their engines
// said then, until they say otherwise: also one whose pod is not ready. Those of pods that are gone go,
// unless their own source cannot say so.
func TestRestored(t *testing.T) {
	virtual(t, func(t *testing.T, api *kubetest.Server) {
		withThreePods(api)
		asked := pool(func(e *mapping.Entry) {
			e.Ask, e.Model, e.Worker.BlockSize, e.Worker.TotalKVBlocks = true, "", nil, nil
		})
		before := startVirtual(t, api, nil, asked)
		for i := range 3 {
			before.says(fmt.Sprintf("http://10.0.0.%d:8000", i+1), answer{Model: "x", Adapters: []string{"a"}, BlockSize: 32, TotalKVBlocks: 7, Ranks: 2, Eagle: true})
		}
		before.await("three workers", func() bool { return before.catalog.CountSchedulable() == 3 })
		var records []catalog.Record
		for _, x := range before.catalog.List(nil, nil) {
			r := x.Record
			r.Draining = "restored"
			records = append(records, r)
			r.ID, r.Source.Pod, r.Source.UID = r.ID+1, r.Source.Pod+"-gone", r.Source.UID+"-gone"
			records = append(records, r)
			r.ID, r.Source.Namespace = r.ID+1, "denied"
			records = append(records, r)
		}
		var attached attachments
		workers := catalog.New(catalog.Settings{KVEvents: true}, &attached)
		if _, err := workers.Reconcile(catalog.Set{Kind: catalog.SourceKubernetes, Records: records}); err != nil {
			t.Fatal(err)
		}
		api.Put("pods", kubetest.Pod("llm", "vllm-2", "10.0.0.3", kubetest.Ready(false)))
		api.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/namespaces/denied/") {
				kubetest.Fail(rw, http.StatusForbidden, "Forbidden", "no")
				return true
			}
			return false
		})
		w := startVirtual(t, api, workers, asked, pool(func(e *mapping.Entry) { e.Namespace = "denied" }))
		stays := []string{
			"vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 draining: pod llm/vllm-2 is not ready",
			"vllm-0-gone:8000 draining: restored", "vllm-1-gone:8000 draining: restored", "vllm-2-gone:8000 draining: restored",
		}
		w.has(stays...)
		if x := w.worker("vllm-1"); x.Scope.Model != "x" || *x.BlockSize != 32 || x.RankCount() != 2 || !*x.IsEagle || *x.TotalKVBlocks != 7 {
			t.Errorf("worker %+v", x.Record)
		}
		w.await("the engines are asked", func() bool { return w.asks("http://10.0.0.1:8000") > 1 && w.asks("http://10.0.0.3:8000") == 0 })
		w.says("http://10.0.0.1:8000", answer{Model: "x", Adapters: []string{"a", "b"}, BlockSize: 32, TotalKVBlocks: 7, Ranks: 2, Eagle: true})
		w.await("an answer counts", func() bool { return len(w.worker("vllm-0").Adapters) == 2 })
		w.has(stays...)
		if n := len(w.removed); n != 3 || len(attached.lost) != 3 {
			t.Errorf("%d workers were removed, %d have lost their ranks, want the three in llm without a pod", n, len(attached.lost))
		}
	})
}

// TestSameID: of two pods with one worker id the older has it; of many excluded pods the first are
// shown, and how many more there are. A pod may have an IPv6 address (scenario 31).
func TestSameID(t *testing.T) {
	virtual(t, func(t *testing.T, api *kubetest.Server) {
		api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000, 8001))
		api.Put("pods", kubetest.Pod("llm", "a:8001", "10.0.0.1")) // no API server has such a name
		api.Put("pods", kubetest.Pod("llm", "a", "fd00::7"))
		for i := range 105 {
			api.Put("pods", kubetest.Pod("llm", fmt.Sprint("lo-", i), "127.0.0.1"))
		}
		w := startVirtual(t, api, nil, pool())
		w.has("a:8000 schedulable", "a:8001 schedulable")
		if x := w.worker("a"); *x.Endpoint != "http://[fd00::7]:8000" && *x.Endpoint != "http://[fd00::7]:8001" {
			t.Errorf("endpoint %s", *x.Endpoint)
		}
		synctest.Wait() // the workers are in the catalog before
		st := w.d.Status()
		if by := w.d.ExcludedBy(); by["id_taken"] != 1 || by["bad_ip"] != 105 || len(st.Excluded) != 100 || st.MoreExcluded != 6 {
			t.Errorf("excluded %v, %d shown, %d more", by, len(st.Excluded), st.MoreExcluded)
		}
	})
}

// TestCounts: pods are counted by what their workers are in the catalog, which also knows what no
// pod says.
func TestCounts(t *testing.T) {
	virtual(t, func(t *testing.T, api *kubetest.Server) {
		api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
		put := func(name string, annotations ...string) {
			api.Put("pods", kubetest.Pod("llm", name, "10.0.0.1", kubetest.Annotations(annotations...)))
		}
		put("a", "select-service/block-size", "16")
		put("drained", "select-service/block-size", "16")
		put("none")
		put("portless", "select-service/block-size", "16", "llm-d.ai/active-ports", "9")
		w := startVirtual(t, api, nil, pool(func(e *mapping.Entry) { e.Worker.BlockSize = nil }))
		is := func(want kubernetes.Pods) {
			t.Helper()
			w.await(fmt.Sprintf("counts %+v", want), func() bool { return w.d.Status().Sources[0].Pods == want })
		}
		is(kubernetes.Pods{Selected: 4, Schedulable: 2, Incomplete: 1, Excluded: 1})
		if r := w.d.Report(); !r.Synced || !slices.Equal(r.Parts, []workers.Part{{Name: "llm", State: "synced"}}) || r.Kind != catalog.SourceKubernetes {
			t.Errorf("report %+v", r)
		}
		put("another", "select-service/block-size", "32") // than its scope
		is(kubernetes.Pods{Selected: 5, Schedulable: 2, Incomplete: 2, Excluded: 1})
		if n := w.d.ExcludedBy()["invalid"]; n != 1 {
			t.Errorf("excluded %+v", w.d.Status().Excluded)
		}
		if _, err := w.catalog.Drain(catalog.ScopeFilter{}, w.worker("drained").ID, catalog.Drain{}); err != nil {
			t.Fatal(err)
		}
		is(kubernetes.Pods{Selected: 5, Schedulable: 1, Draining: 1, Incomplete: 2, Excluded: 1})
	})
}

// TestEndsOfWatches: watches that the server ends each second, without events, cost no list, and
// what changes is still applied at once (scenario 26).
func TestEndsOfWatches(t *testing.T) {
	virtual(t, func(t *testing.T, api *kubetest.Server) {
		withThreePods(api)
		w := startVirtual(t, api, nil, pool())
		w.await("three workers", func() bool { return w.catalog.CountSchedulable() == 3 })
		for i := range 60 {
			api.CutWatches()
			if i%10 == 9 {
				api.Put("pods", kubetest.Pod("llm", fmt.Sprint("new-", i), fmt.Sprint("10.0.1.", i)))
			}
			time.Sleep(time.Second)
			if n := w.catalog.CountSchedulable(); n != 3+(i+1)/10 {
				t.Fatalf("%d workers after %d s", n, i+1)
			}
		}
		if pods, pools := api.Seen("pods list"), api.Seen("inferencepools list"); pods != 1 || pools != 1 {
			t.Errorf("%d lists of pods, %d of pools", pods, pools)
		}
		w.lostNone()
	})
}

// TestBookmarks: bookmarks alone keep a source synced, and move the version after which the next watch
// begins; without them it is unreachable, until something comes again (scenario 26).
func TestBookmarks(t *testing.T) {
	virtual(t, func(t *testing.T, api *kubetest.Server) {
		withThreePods(api)
		w := startVirtual(t, api, nil, pool())
		w.await("three workers", func() bool { return w.catalog.CountSchedulable() == 3 })
		for range 30 {
			time.Sleep(time.Minute)
			api.Bookmark()
			w.state(0, kubernetes.Synced)
		}
		api.Compact() // up to the bookmarks
		api.CutWatches()
		time.Sleep(time.Second)
		w.state(0, kubernetes.Synced)
		if pods := api.Seen("pods list"); pods != 1 {
			t.Errorf("%d lists of pods", pods)
		}
		time.Sleep(152 * time.Second)
		w.state(0, kubernetes.Unreachable)
		api.Put("pods", kubetest.Pod("llm", "vllm-3", "10.0.0.4"))
		w.await("a fourth worker", func() bool { return w.catalog.CountSchedulable() == 4 })
		w.lostNone()
	})
}

// TestInstant: a server that ends its watches as soon as they begin is polled by lists instead.
func TestInstant(t *testing.T) {
	virtual(t, func(t *testing.T, api *kubetest.Server) {
		withThreePods(api)
		api.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") != "" {
				rw.WriteHeader(http.StatusOK)
			}
			return r.URL.Query().Get("watch") != ""
		})
		w := startVirtual(t, api, nil, pool())
		w.await("three workers", func() bool { return w.catalog.CountSchedulable() == 3 })
		api.Put("pods", kubetest.Pod("llm", "vllm-3", "10.0.0.4"))
		time.Sleep(15 * time.Second)
		w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable", "vllm-3:8000 schedulable")
	})
}
