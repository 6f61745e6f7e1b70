package kubernetes_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/engines/describe"
	"github.com/select-service/select-service/internal/workers/kubernetes"
	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/kubetest"
)

// withThreePods adds a pool with three ready pods.
func withThreePods[A kubetest.API](api A) A {
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
	for i := range 3 {
		api.Put("pods", kubetest.Pod("llm", fmt.Sprint("vllm-", i), fmt.Sprint("10.0.0.", i+1)))
	}
	return api
}

// TestPool: the pods of a pool become workers with the known ids (scenarios 1 to 4).
func TestPool(t *testing.T) {
	api := withThreePods(kubetest.Any(t))
	api.Put("pods", kubetest.Pod("llm", "other", "10.0.0.9", kubetest.Labels("app", "other")))
	w := start(t, api, pool())
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable")
	if x := w.worker("vllm-0"); x.ID != 1943803597606491 || *x.Endpoint != "http://10.0.0.1:8000" || *x.KVEventsEndpoint != "tcp://10.0.0.1:5557" ||
		x.Source != (catalog.Source{Kind: "kubernetes", Namespace: "llm", Pod: "vllm-0", UID: kubetest.UIDOf(api, "llm", "vllm-0"), Pool: "llm"}) {
		t.Errorf("worker %+v", x.Record)
	}
	w.await("it is ready", w.d.Listed) // the workers are in the catalog before
	with := func(change ...func(kubetest.Object)) kubetest.Object {
		return kubetest.Pod("llm", "vllm-3", "10.0.0.4", append(change, kubetest.Ports(map[string]int{"kv-events": 6000, "kv-replay": 6100}))...)
	}
	api.Put("pods", with(kubetest.Ready(false)))
	w.await("one waits", func() bool { return w.d.Status().Sources[0].Waiting == 1 })
	api.Put("pods", with())
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable", "vllm-3:8000 schedulable")
	if x := w.worker("vllm-3"); *x.KVEventsEndpoint != "tcp://10.0.0.4:6000" || *x.ReplayEndpoint != "tcp://10.0.0.4:6100" {
		t.Errorf("named ports: %s, %s", *x.KVEventsEndpoint, *x.ReplayEndpoint)
	}
	api.Put("pods", with(kubetest.Ready(false)))
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable", "vllm-3:8000 draining: pod llm/vllm-3 is not ready")
	api.Put("pods", with())
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable", "vllm-3:8000 schedulable")
	w.lostNone()
}

// TestEnds: how pods end, and what they keep until then (scenarios 6, 8, 9).
func TestEnds(t *testing.T) {
	api := withThreePods(kubetest.Any(t))
	w := start(t, api, pool())
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable")
	// A graceful end.
	api.Put("pods", kubetest.Pod("llm", "vllm-0", "10.0.0.1", kubetest.Deleted(time.Now().Add(30*time.Second))))
	w.has("vllm-0:8000 draining: pod llm/vllm-0 is terminating", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable")
	api.Delete("pods", "llm", "vllm-0")
	w.has("vllm-1:8000 schedulable", "vllm-2:8000 schedulable")
	// A label taken away and given back.
	api.Put("pods", kubetest.Pod("llm", "vllm-1", "10.0.0.2", kubetest.Labels("app", "debug")))
	w.has("vllm-1:8000 draining: pod llm/vllm-1 left pool llm", "vllm-2:8000 schedulable")
	api.Put("pods", kubetest.Pod("llm", "vllm-1", "10.0.0.2"))
	w.has("vllm-1:8000 schedulable", "vllm-2:8000 schedulable")
	if w.removals(w.worker("vllm-1").ID) > 0 {
		t.Error("the worker was removed in between")
	}
	// Another pod under the same name.
	id, uid := w.worker("vllm-2").ID, kubetest.UIDOf(api, "llm", "vllm-2")
	another := func(change ...func(kubetest.Object)) kubetest.Object {
		return kubetest.Pod("llm", "vllm-2", "10.0.0.3", append(change, kubetest.UID("another"))...)
	}
	api.Put("pods", another())
	w.has("vllm-1:8000 schedulable", "vllm-2:8000 schedulable")
	w.await("another pod", func() bool { x, ok := w.find("vllm-2"); return ok && x.Source.UID != uid })
	w.await("the worker of the dead pod is removed", func() bool { return w.removals(id) == 1 })
	api.Put("pods", another(kubetest.Annotations("select-service/cordoned", "true")))
	w.has("vllm-1:8000 schedulable", "vllm-2:8000 draining: pod llm/vllm-2 is cordoned")
	api.Put("pods", another(kubetest.Annotations("select-service/cordoned", "true"), kubetest.Phase("Failed")))
	w.has("vllm-1:8000 schedulable")
}

// TestDeadNode: a pod whose node has died stays terminating for ever (scenario 7).
func TestDeadNode(t *testing.T) {
	t.Parallel()
	api := withThreePods(kubetest.New(t))
	w := start(t, api, pool())
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable")
	api.Put("pods", kubetest.Pod("llm", "vllm-1", "10.0.0.2", kubetest.Deleted(time.Now().Add(-time.Minute))))
	w.has("vllm-0:8000 schedulable", "vllm-2:8000 schedulable")
}

// TestUnseen: what happened while discovery could not watch is found in the next list: a pod
// that is gone, and one that has another UID. Until then, and while the server restarts or denies,
// no worker is lost, and the error names the rule that is missing (scenarios 9, 22, 24).
func TestUnseen(t *testing.T) {
	api := withThreePods(kubetest.Any(t))
	w := start(t, api, pool())
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable")
	id, uid := w.worker("vllm-0").ID, kubetest.UIDOf(api, "llm", "vllm-0")
	api.Allow(false)
	api.Kill() // ends the watches
	api.Start()
	w.state(0, kubernetes.Forbidden)
	why := catalog.Clip(w.d.Status().Sources[0].Error) // as the log has it
	if !strings.Contains(why, `lacks the rule {apiGroups: [""], resources: [pods], verbs: [get, list, watch]} in the namespace llm`) &&
		!strings.Contains(why, `lacks the rule {apiGroups: ["inference.networking.k8s.io"], resources: [inferencepools], verbs: [get, list, watch]} in the namespace llm`) {
		t.Errorf("error %q", why)
	}
	api.Put("pods", kubetest.Pod("llm", "vllm-0", "10.0.0.8", kubetest.UID("another")))
	api.Delete("pods", "llm", "vllm-1")
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable")
	w.lostNone()
	api.Allow(true)
	w.has("vllm-0:8000 schedulable", "vllm-2:8000 schedulable")
	w.await("another pod", func() bool { x, ok := w.find("vllm-0"); return ok && x.Source.UID != uid })
	w.await("the worker of the dead pod is removed", func() bool { return w.removals(id) == 1 })
	w.state(0, kubernetes.Synced)
}

// TestOutage: while the API server is away its workers are served as before; what changes then is
// applied soon after it answers again (scenario 21).
func TestOutage(t *testing.T) {
	timely(t, func(t *testing.T, api kubetest.API) {
		withThreePods(api)
		w := start(t, api, pool())
		w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable")
		w.await("it is ready", w.d.Listed)
		api.Kill()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
			if w.catalog.CountSchedulable() != 3 || !w.d.Listed() {
				t.Fatalf("workers %q", w.workers())
			}
		}
		api.Start()
		back := time.Now()
		api.Put("pods", kubetest.Pod("llm", "vllm-3", "10.0.0.4"))
		api.Put("pods", kubetest.Pod("llm", "vllm-0", "10.0.0.1", kubetest.Ready(false)))
		w.has("vllm-0:8000 draining: pod llm/vllm-0 is not ready", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable", "vllm-3:8000 schedulable")
		t.Logf("applied %v after it answered", time.Since(back))
		if late := time.Since(back); late > 5*time.Second && e2e.Alone() {
			t.Errorf("applied after %v, want 5 s", late)
		}
		w.lostNone()
		w.state(0, kubernetes.Synced)
	})
}

// TestFrozen: an API server that accepts and says nothing is noticed by pings, here of shorter times, within
// 30 s (scenario 23).
func TestFrozen(t *testing.T) {
	if kubernetes.Noticed > 30*time.Second {
		t.Errorf("it is noticed after %v, want 30 s", kubernetes.Noticed)
	}
	api := withThreePods(kubetest.Any(t))
	client, err := kubernetes.DialPinging(api.Kubeconfig(t), time.Second, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	w := startWith(t, api, client, pool())
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable")
	api.Freeze()
	w.await("the failure", func() bool { return w.d.Status().Sources[0].Error != "" })
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable")
	api.Thaw()
	api.Put("pods", kubetest.Pod("llm", "vllm-3", "10.0.0.4"))
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable", "vllm-3:8000 schedulable")
	w.lostNone()
}

// TestPoolEdited: selector, ports and existence of the pool follow (scenarios 10, 11).
func TestPoolEdited(t *testing.T) {
	api := withThreePods(kubetest.Any(t))
	api.Put("pods", kubetest.Pod("llm", "new-0", "10.0.0.7", kubetest.Labels("app", "new")))
	w := start(t, api, pool())
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable")
	left := func(i int) string { return fmt.Sprintf("vllm-%d:8000 draining: pod llm/vllm-%d left pool llm", i, i) }
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "new", 8000))
	w.has(left(0), left(1), left(2), "new-0:8000 schedulable")
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "new", 8000, 8001))
	w.has(left(0), left(1), left(2), "new-0:8000 schedulable", "new-0:8001 schedulable")
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "new", 9000))
	w.await("the port follows", func() bool {
		lines := strings.Join(w.workers(), "\n")
		return strings.Contains(lines, "new-0:9000 schedulable") && strings.Contains(lines, "new-0:8001 draining: port 8001 of pod llm/new-0 left pool llm")
	})
	api.Delete("inferencepools", "llm", "llm")
	w.state(0, kubernetes.Missing)
	w.await("all drain", func() bool { return w.catalog.CountSchedulable() == 0 && w.d.Status().Sources[0].Draining == 4 })
	if w.d.Listed() {
		t.Error("ready without a pool")
	}
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
	w.await("the pool is back", func() bool { return w.catalog.CountSchedulable() == 3 && w.d.Listed() })
	w.lostNone()
}

// TestInvalidPool: a pool without ports is as a deleted one. The definition of InferencePools
// forbids them.
func TestInvalidPool(t *testing.T) {
	t.Parallel()
	api := withThreePods(kubetest.New(t))
	w := start(t, api, pool())
	w.await("three workers", func() bool { return w.catalog.CountSchedulable() == 3 })
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm"))
	w.state(0, kubernetes.Invalid)
	w.await("all drain", func() bool { return w.catalog.CountSchedulable() == 0 })
	w.lostNone()
}

// TestTwoPools: of two pools with a model each, one may go without the other (scenario 13).
func TestTwoPools(t *testing.T) {
	api := withThreePods(kubetest.Any(t))
	api.Put("inferencepools", kubetest.Pool("llm", "small", "sglang", 30000))
	api.Put("pods", kubetest.Pod("llm", "sglang-0", "10.0.1.1", kubetest.Labels("app", "sglang")))
	w := start(t, api, pool(), pool(func(e *mapping.Entry) { e.Name, e.Model = "small", "s" }))
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable", "sglang-0:30000 schedulable")
	if m := w.worker("sglang-0").Scope.Model; m != "s" {
		t.Errorf("model %q", m)
	}
	api.Delete("inferencepools", "llm", "small")
	w.state(1, kubernetes.Missing)
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable", "sglang-0:30000 draining: pod llm/sglang-0 left pool small")
	w.await("it is ready, as a pool is left", w.d.Listed)
	w.lostNone()
}

// TestPorts: several ports and active-ports (scenario 14), and a malformed annotation that
// spoils its own pod only (18).
func TestPorts(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000, 8001))
	api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.1"))
	api.Put("pods", kubetest.Pod("llm", "b", "10.0.0.2", kubetest.Annotations("llm-d.ai/active-ports", "8001")))
	api.Put("pods", kubetest.Pod("llm", "c", "10.0.0.3", kubetest.Annotations("select-service/block-size", "x", "llm-d.ai/active-ports", "8000")))
	lo := kubetest.Annotations("select-service/blocksize", "1")
	api.Put("pods", kubetest.Pod("llm", "lo", "127.0.0.1", lo))
	w := start(t, api, pool())
	w.has("a:8000 schedulable", "a:8001 schedulable", "b:8001 schedulable",
		`c:8000 incomplete: annotation select-service/block-size: "x" is not a number from 1 to 4294967295`)
	w.await("an excluded pod", func() bool { return len(w.d.Status().Excluded) > 0 }) // the workers are in the catalog before
	st := w.d.Status()
	if len(st.Excluded) != 1 || st.Excluded[0].Pod != "llm/lo" || st.Excluded[0].Reason != "bad_ip" {
		t.Errorf("excluded %+v", st.Excluded)
	}
	api.Put("pods", kubetest.Pod("llm", "lo", "127.0.0.2", lo))
	w.await("another address", func() bool { return strings.Contains(w.d.Status().Excluded[0].Why, "127.0.0.2") })
	if n := w.d.Counts().Unknown; n != 1 {
		t.Errorf("%d unknown annotations, want one of one pod", n)
	}
	if p := st.Sources[0].Pods; p != (kubernetes.Pods{Selected: 4, Schedulable: 2, Incomplete: 1, Excluded: 1}) {
		t.Errorf("counts %+v", p)
	}
}

// TestAsked: what nobody has configured is asked of the engine; later failures change nothing
// (scenario 17).
func TestAsked(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
	api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.1"))
	w := start(t, api, pool(func(e *mapping.Entry) { e.Ask, e.Model, e.Worker.BlockSize = true, "", nil }))
	w.await("the reason", func() bool {
		lines := w.workers()
		return len(lines) == 1 && strings.HasPrefix(lines[0], "a:8000 incomplete: GET http://10.0.0.1:8000/v1/models: connection refused")
	})
	w.says("http://10.0.0.1:8000", answer{Model: "x", Adapters: []string{"l"}, BlockSize: 32, TotalKVBlocks: 7})
	w.has("a:8000 schedulable")
	if x := w.worker("a"); x.Scope.Model != "x" || *x.BlockSize != 32 || len(x.Adapters) != 1 || *x.TotalKVBlocks != 100 {
		t.Errorf("worker %+v", x.Record)
	}
	w.mu.Lock()
	delete(w.engines, "http://10.0.0.1:8000")
	asked := w.asked["http://10.0.0.1:8000"]
	w.mu.Unlock()
	api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.1", kubetest.Ready(false)))
	w.has("a:8000 draining: pod llm/a is not ready")
	api.Put("pods", kubetest.Pod("llm", "a", "10.0.0.1"))
	w.await("asked again", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.asked["http://10.0.0.1:8000"] > asked
	})
	w.has("a:8000 schedulable")
}

// TestEngines: what engines answer over HTTP: their values, or the reason why there are none (scenarios
// 17, 34).
func TestEngines(t *testing.T) {
	t.Parallel()
	const (
		list = `{"data":[{"id":"m"},{"id":"sql","parent":"m"}]}`
		page = `vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="1000"} 1.0`
		info = `{"version":"0.5.23","page_size":64,"speculative_algorithm":"EAGLE","kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"block_size":64,"dp_size":1}}`
	)
	fails := func(status int) map[string]string { return map[string]string{"": fmt.Sprint(status)} }
	engines := map[string]struct {
		answers map[string]string // by path; a number is a status, "" is every other path
		want    string
	}{
		"2":  {fails(http.StatusUnauthorized), "incomplete: GET /v1/models: status 401"},
		"3":  {fails(http.StatusNotFound), "incomplete: GET /v1/models: status 404"},
		"4":  {map[string]string{"": "<html>"}, `incomplete: GET /v1/models: the answer is no JSON`},
		"5":  {map[string]string{"/v1/models": strings.Repeat(" ", 2<<20), "": "404"}, "incomplete: GET /v1/models: the answer is too long: more than 1048576 bytes"},
		"6":  {map[string]string{"/v1/models": "401", "/metrics": page, "": "404"}, "incomplete: GET /v1/models: status 401"},
		"7":  {map[string]string{"/v1/models": list, "": "404"}, "incomplete: GET /metrics: status 404"},
		"8":  {map[string]string{"/v1/models": "302"}, "incomplete: GET /v1/models: status 302: redirects are not followed"},
		"9":  {map[string]string{"/v1/models": list, "/metrics": page, "": "405"}, "schedulable"},
		"10": {map[string]string{"/v1/models": strings.ReplaceAll(list, `"m"`, `"s"`), "/server_info": info, "": "404"}, "schedulable"},
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.Host)
		answers := engines[strings.TrimPrefix(host, "127.0.0.")].answers
		text, known := answers[r.URL.Path]
		if !known {
			text = answers[""]
		}
		if status, err := strconv.Atoi(text); err == nil {
			w.Header().Set("Location", "http://127.0.0.99/")
			w.WriteHeader(status)
			return
		}
		_, _ = io.WriteString(w, text)
	}))
	_ = server.Listener.Close()
	var err error
	if server.Listener, err = net.Listen("tcp4", "0.0.0.0:0"); err != nil {
		t.Fatal(err)
	}
	server.Start()
	t.Cleanup(server.Close)
	port := server.Listener.Addr().(*net.TCPAddr).Port
	api := kubetest.New(t)
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", port))
	for name := range engines {
		api.Put("pods", kubetest.Pod("llm", name, "127.0.0."+name))
	}
	client, err := kubernetes.Dial(api.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	asks := describe.New(describe.Options{})
	t.Cleanup(asks.Close)
	config := kubernetes.Config{
		Settings: settings(), Entries: []mapping.Entry{pool(func(e *mapping.Entry) { e.Ask, e.Model, e.Worker.BlockSize = true, "", nil })},
	}
	config.AllowLoopback = true
	w := startAsking(t, api, client, config, func(ctx context.Context, url string) (*catalog.Description, error) {
		return asks.Describe(ctx, url, "")
	})
	for name, e := range engines {
		at := fmt.Sprintf("http://127.0.0.%s:%d", name, port)
		w.await(name+" "+e.want, func() bool {
			x, ok := w.find(name)
			return ok && strings.HasPrefix(strings.ReplaceAll(strings.Join(append([]string{x.Lifecycle + ": "}, x.Explain()...), ""), at, ""), e.want)
		})
	}
	if x := w.worker("9"); x.Scope.Model != "m" || *x.BlockSize != 32 || len(x.Adapters) != 1 || x.IsEagle != nil {
		t.Errorf("vLLM: %+v", x.Record)
	}
	if x := w.worker("10"); x.Scope.Model != "s" || *x.BlockSize != 64 || x.IsEagle == nil || !*x.IsEagle {
		t.Errorf("SGLang: %+v", x.Record)
	}
}

// TestTaken: an id that the API has first is not discovered until it is free, and the API may not
// change a pod's worker (scenario 19).
func TestTaken(t *testing.T) {
	virtual(t, func(t *testing.T, api *kubetest.Server) {
		withThreePods(api)
		w := start(t, kubetest.Offline(t), pool())
		if _, err := w.catalog.Put(catalog.Record{ID: 1943803597606491, Scope: catalog.Scope{Model: "other", Tenant: "default"}}); err != nil {
			t.Fatal(err)
		}
		w.api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
		for i := range 3 {
			w.api.Put("pods", api.Get("pods", "llm", fmt.Sprint("vllm-", i)))
		}
		w.await("two and one excluded", func() bool {
			st := w.d.Status()
			return w.catalog.CountSchedulable() == 2 && len(st.Excluded) == 1 && st.Excluded[0].Reason == "id_taken"
		})
		if _, err := w.catalog.Delete(1943803597606491); err != nil {
			t.Fatal(err)
		}
		w.await("taken over", func() bool { return w.catalog.CountSchedulable() == 3 && len(w.d.Status().Excluded) == 0 })
		if _, err := w.catalog.Put(catalog.Record{ID: 1943803597606491}); err == nil || err.Error() != "worker 1943803597606491 is managed by Kubernetes (pod llm/vllm-0)" {
			t.Errorf("Put = %v", err)
		}
	})
}

// TestTwoEntries: a pod of two entries is the first one's; equal names in two namespaces are two
// workers (scenario 20); a denied source does not keep the other from serving.
func TestTwoEntries(t *testing.T) {
	t.Parallel()
	api := withThreePods(kubetest.New(t))
	api.Put("pods", kubetest.Pod("far", "vllm-0", "10.0.1.1"))
	api.Put("pods", kubetest.Pod("far", "vllm-7", "10.0.1.8"))
	api.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/namespaces/denied/") {
			kubetest.Fail(rw, http.StatusForbidden, "Forbidden", "pods is forbidden")
			return true
		}
		return false
	})
	selector := func(namespace string) mapping.Entry {
		return pool(func(e *mapping.Entry) {
			e.Kind, e.Name, e.Namespace, e.TargetPorts = mapping.Selector, "app=vllm", namespace, []uint16{8000}
		})
	}
	w := start(t, api, pool(), selector("llm"), selector("far"), selector("denied"),
		pool(func(e *mapping.Entry) { e.Kind, e.Namespace = mapping.Service, "denied" }))
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable", "vllm-0:8000 schedulable", "vllm-7:8000 schedulable")
	w.await("duplicates", func() bool { return w.d.ExcludedBy()["duplicate"] == 3 })
	w.state(3, kubernetes.Forbidden)
	if why := w.d.Status().Sources[3].Error; !strings.Contains(why, `lacks the rule {apiGroups: [""], resources: [pods], verbs: [get, list, watch]} in the namespace denied`) {
		t.Errorf("error %q", why)
	}
	// What a source has lost goes, although another one with its name has never been listed.
	for _, gone := range [][3]string{{"far", "vllm-7", "10.0.1.8"}, {"llm", "vllm-2", "10.0.0.3"}} {
		api.Put("pods", kubetest.Pod(gone[0], gone[1], gone[2], kubetest.Deleted(time.Now().Add(time.Minute))))
		api.Delete("pods", gone[0], gone[1])
	}
	w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-0:8000 schedulable")
}

// TestMissing: without the definition of InferencePools the source is missing. It and a pool are
// found when they are there (scenario 12).
func TestMissing(t *testing.T) {
	timely(t, func(t *testing.T, api kubetest.API) {
		api.Install(false)
		w := start(t, api, pool())
		w.state(0, kubernetes.Missing)
		if w.d.Listed() {
			t.Error("ready without a pool")
		}
		begin := time.Now()
		api.Install(true)
		withThreePods(api)
		w.state(0, kubernetes.Synced)
		w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable")
		if after := time.Since(begin); after > 35*time.Second && e2e.Alone() {
			t.Errorf("found after %v, want 35 s", after)
		}
	})
}

// TestService: endpoints of slices, without a pool (scenario 29).
func TestService(t *testing.T) {
	api := kubetest.Any(t)
	serving := kubetest.Object{"ready": true, "serving": true, "terminating": false}
	unready := kubetest.Object{"ready": true, "serving": false, "terminating": false} // publishNotReadyAddresses
	ending := kubetest.Object{"ready": true, "serving": true, "terminating": true}
	ports := map[string]int{"http": 8000, "kv-events": 6000, "a": 1}
	put := func(name string, endpoints ...kubetest.Object) {
		api.Put("endpointslices", kubetest.Slice("llm", name, "engines", "IPv4", ports, endpoints...))
	}
	put("one", kubetest.Endpoint("llm", "a", "10.0.0.1", serving), kubetest.Endpoint("llm", "b", "10.0.0.2", unready), kubetest.Endpoint("llm", "", "10.0.0.3", serving))
	api.Put("endpointslices", kubetest.Slice("llm", "six", "engines", "IPv6", ports, kubetest.Endpoint("llm", "z", "fd00::1", serving)))
	w := start(t, api, pool(func(e *mapping.Entry) { e.Kind, e.Name = mapping.Service, "engines" }))
	w.has("a:8000 schedulable", ":8000 schedulable")
	if x := w.worker("a"); *x.KVEventsEndpoint != "tcp://10.0.0.1:6000" || x.Source.UID != "a-uid" {
		t.Errorf("worker %+v", x.Record)
	}
	put("two", kubetest.Endpoint("llm", "a", "10.0.0.1", unready)) // newer than one
	w.has("a:8000 draining: pod llm/a is not ready", ":8000 schedulable")
	put("two", kubetest.Endpoint("llm", "a", "10.0.0.1", ending))
	w.has("a:8000 draining: pod llm/a is terminating", ":8000 schedulable")
	api.Delete("endpointslices", "llm", "two") // the older one has it still
	w.has("a:8000 schedulable", ":8000 schedulable")
	put("one", kubetest.Endpoint("llm", "a", "10.0.0.1", ending), kubetest.Endpoint("llm", "", "10.0.0.3", serving))
	w.has("a:8000 draining: pod llm/a is terminating", ":8000 schedulable")
	put("one", kubetest.Endpoint("llm", "", "10.0.0.3", serving))
	w.has(":8000 schedulable")
}
