package kubernetes_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/workers/kubernetes"
	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/kubetest"
)

// TestFaultsOfWatches: whatever a watch does, no worker is lost, and in the end the workers are
// those that the server has (scenario 26).
func TestFaultsOfWatches(t *testing.T) {
	t.Parallel()
	expired := kubetest.Object{"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old"}
	internal := kubetest.Object{"kind": "Status", "apiVersion": "v1", "code": 500, "reason": "InternalError", "message": "oops"}
	big := strings.Repeat("x", 5<<20)
	tests := map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"410 in a watch": func(w http.ResponseWriter, r *http.Request) bool {
			kubetest.Event(w, "ERROR", expired)
			return true
		},
		"410 of a watch": func(w http.ResponseWriter, r *http.Request) bool {
			kubetest.Fail(w, http.StatusGone, "Expired", "too old")
			return true
		},
		"ERROR 500": func(w http.ResponseWriter, r *http.Request) bool {
			kubetest.Event(w, "ERROR", internal)
			return true
		},
		"a line that breaks off": func(w http.ResponseWriter, r *http.Request) bool {
			_, _ = w.Write([]byte(`{"type":"ADDED","object":{"kind":"Pod","apiVer`))
			return true
		},
		"no JSON": func(w http.ResponseWriter, r *http.Request) bool {
			_, _ = w.Write([]byte("<html>\n"))
			return true
		},
		"an object of 5 MiB": func(w http.ResponseWriter, r *http.Request) bool {
			o := kubetest.Pod("llm", "vllm-0", "10.9.9.9", kubetest.Annotations("a", big))
			o["kind"], o["apiVersion"] = "Pod", "v1"
			kubetest.Event(w, "MODIFIED", o)
			return true
		},
		"an end": func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusOK)
			return true
		},
		"503": func(w http.ResponseWriter, r *http.Request) bool {
			kubetest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable", "away")
			return true
		},
		"429": func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Retry-After", "1")
			kubetest.Fail(w, http.StatusTooManyRequests, "TooManyRequests", "later")
			return true
		},
		"401": func(w http.ResponseWriter, r *http.Request) bool {
			kubetest.Fail(w, http.StatusUnauthorized, "Unauthorized", "who are you")
			return true
		},
		"403": func(w http.ResponseWriter, r *http.Request) bool {
			kubetest.Fail(w, http.StatusForbidden, "Forbidden", "no")
			return true
		},
	}
	for name, fault := range tests {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, api *kubetest.Server) {
				withThreePods(api)
				w := start(t, api, pool())
				w.await("three workers", func() bool { return w.catalog.CountSchedulable() == 3 })
				done := make(chan struct{})
				faults := 0
				api.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
					if !isPods(r) || !isWatch(r) || faults >= 2 {
						return false
					}
					if faults++; faults == 2 {
						close(done)
					}
					rw.Header().Set("Content-Type", "application/json")
					return fault(rw, r)
				})
				api.CutWatches()
				<-done
				api.Put("pods", kubetest.Pod("llm", "vllm-3", "10.0.0.4"))
				w.has("vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable", "vllm-3:8000 schedulable")
				if at := *w.worker("vllm-0").Endpoint; at != "http://10.0.0.1:8000" {
					t.Errorf("endpoint %s", at)
				}
				w.lostNone()
				w.state(0, kubernetes.Synced)
			})
		})
	}
}

// TestPagesAndLateEvents: a list of several pages whose continuation expires, and events that
// come twice or out of order.
func TestPagesAndLateEvents(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
	const many = 520 // more than a page
	for i := range many {
		api.Put("pods", kubetest.Pod("llm", fmt.Sprint("p-", i), fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)))
	}
	expired := false
	api.Answer(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("continue") == "" || expired {
			return false
		}
		expired = true
		kubetest.Fail(w, http.StatusGone, "Expired", "the continue token is too old")
		return true
	})
	w := start(t, api, pool())
	w.await("all pods", func() bool { return w.catalog.CountSchedulable() == many })
	if api.Seen("pods list") < 3 {
		t.Error("the list has had one page only")
	}
	typed := func() kubetest.Object {
		o := maps.Clone(api.Get("pods", "llm", "p-0"))
		o["kind"], o["apiVersion"] = "Pod", "v1"
		return o
	}
	api.Put("pods", kubetest.Pod("llm", "p-0", "10.1.0.1", kubetest.Ready(false)))
	old := typed()
	api.Put("pods", kubetest.Pod("llm", "p-0", "10.1.0.1"))
	newest := typed()
	// The same, and then an older state, in a watch of their own.
	sent := make(chan struct{})
	late := []kubetest.Object{newest, old, newest, old}
	api.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("watch") == "" || !strings.HasSuffix(r.URL.Path, "/pods") || late == nil {
			return false
		}
		rw.Header().Set("Content-Type", "application/json")
		for _, o := range late {
			kubetest.Event(rw, "MODIFIED", o)
		}
		late = nil
		close(sent)
		return true
	})
	api.CutWatches()
	<-sent
	api.Put("pods", kubetest.Pod("llm", "last", "10.2.0.1"))
	w.await("the last", func() bool { return w.catalog.CountSchedulable() == many+1 })
}

// TestMemory: answers count while they are read. Where a page is too much, pages become smaller, and
// nothing is lost.
func TestMemory(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
	const pods = 300 // about 100 KB
	for i := range pods {
		api.Put("pods", kubetest.Pod("llm", fmt.Sprint("p-", i), fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)))
	}
	client, err := kubernetes.Dial(api.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	account := memory.NewAccount(memory.Bodies, 64<<10)
	w := startConfig(t, api, client, kubernetes.Config{Settings: settings(), Entries: []mapping.Entry{pool()}, Memory: account})
	w.await("all pods", func() bool { return w.catalog.CountSchedulable() == pods })
	if account.Refused() == 0 {
		t.Error("a page fitted that should not")
	}
	api.Put("pods", kubetest.Pod("llm", "last", "10.2.0.1"))
	w.await("an event", func() bool { return w.catalog.CountSchedulable() == pods+1 })
	w.await("nothing is held", func() bool { return account.Used() == 0 })
}

// TestToken: a token file that is replaced is read again when its old token is refused (scenario 25);
// client-go reads it within a minute otherwise, long before the kubelet's old token expires.
func TestToken(t *testing.T) {
	t.Parallel()
	api := withThreePods(kubetest.New(t))
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(path+".new", []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	client, err := kubernetes.Dial(api.KubeconfigOf(t, fmt.Sprintf("tokenFile: %q", path)))
	if err != nil {
		t.Fatal(err)
	}
	w := startWith(t, api, client, pool())
	w.await("three workers", func() bool { return w.catalog.CountSchedulable() == 3 })
	write("second")
	api.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == "Bearer second" {
			return false
		}
		kubetest.Fail(rw, http.StatusUnauthorized, "Unauthorized", "it has expired")
		return true
	})
	api.CutWatches()
	w.await("the new token", func() bool { return slices.Contains(api.Tokens(), "Bearer second") })
	const user, want = "auth-provider: {name: gcp}", "auth-provider is not supported"
	if _, err := kubernetes.Dial(api.KubeconfigOf(t, user)); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v", user, err)
	}
}

// TestExec: a kubeconfig whose user is a command, as those of EKS, GKE and AKS are, gives the command's
// token, and another one when that is refused.
func TestExec(t *testing.T) {
	t.Parallel()
	api := withThreePods(kubetest.New(t))
	dir := t.TempDir()
	command, count := filepath.Join(dir, "login"), filepath.Join(dir, "count")
	script := "#!/bin/sh\necho x >> " + count + "\nn=$(wc -l < " + count + ")\n" +
		`echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"token-$((n))\"}}"` + "\n"
	if err := os.WriteFile(command, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.Dial(api.KubeconfigOf(t, fmt.Sprintf("exec: {command: %q, apiVersion: client.authentication.k8s.io/v1, interactiveMode: IfAvailable}", command)))
	if err != nil {
		t.Fatal(err)
	}
	w := startWith(t, api, client, pool())
	w.await("three workers", func() bool { return w.catalog.CountSchedulable() == 3 })
	if !slices.Contains(api.Tokens(), "Bearer token-1") {
		t.Errorf("the tokens %q were shown", api.Tokens())
	}
	api.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") != "Bearer token-1" {
			return false
		}
		kubetest.Fail(rw, http.StatusUnauthorized, "Unauthorized", "it has expired")
		return true
	})
	api.CutWatches()
	api.Put("pods", kubetest.Pod("llm", "vllm-3", "10.0.0.4"))
	w.await("a fourth worker", func() bool { return w.catalog.CountSchedulable() == 4 })
	w.lostNone()
}

// TestTokenRefused: a token is read again after a 401, also where the file does not show that it has
// changed (scenario 25).
func TestTokenRefused(t *testing.T) {
	t.Parallel()
	api := withThreePods(kubetest.New(t))
	path := filepath.Join(t.TempDir(), "token")
	at := time.Now()
	write := func(text string) {
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	write("token-1")
	client, err := kubernetes.Dial(api.KubeconfigOf(t, fmt.Sprintf("tokenFile: %q", path)))
	if err != nil {
		t.Fatal(err)
	}
	w := startWith(t, api, client, pool())
	w.await("three workers", func() bool { return w.catalog.CountSchedulable() == 3 })
	write("token-2")
	api.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == "Bearer token-2" {
			return false
		}
		kubetest.Fail(rw, http.StatusUnauthorized, "Unauthorized", "it has expired")
		return true
	})
	api.CutWatches()
	api.Put("pods", kubetest.Pod("llm", "vllm-3", "10.0.0.4"))
	w.await("a fourth worker", func() bool { return w.catalog.CountSchedulable() == 4 })
	w.lostNone()
}

// TestProxy: a kubeconfig may name the proxy to its API server.
func TestProxy(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.Method + " " + r.Host:
		default:
		}
		w.WriteHeader(http.StatusBadGateway)
	}))
	t.Cleanup(proxy.Close)
	api := kubetest.New(t)
	path := api.Kubeconfig(t)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	with := regexp.MustCompile(`server: "?https://`).ReplaceAllString(string(text), "proxy-url: "+proxy.URL+", $0")
	if err := os.WriteFile(path, []byte(with), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	w := startWith(t, api, client, pool())
	if got := <-asked; !strings.HasPrefix(got, "CONNECT 127.0.0.1:") {
		t.Errorf("the proxy was asked: %s", got)
	}
	w.state(0, kubernetes.Unreachable)
}

// TestPeers: replicas are followed while their Service has them, also those that are not ready;
// the index comes from those that serve; a list that fails changes nothing (scenario 30).
func TestPeers(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	is := func(serving bool) kubetest.Object { return kubetest.Object{"ready": serving, "serving": serving} }
	put := func(endpoints ...kubetest.Object) {
		api.Put("endpointslices", kubetest.Slice("llm", "p", "peers", "IPv4", map[string]int{"http": 8092, "replica-agg": 9092}, endpoints...))
	}
	put(kubetest.Endpoint("llm", "a", "10.0.0.1", is(true)), kubetest.Endpoint("llm", "b", "10.0.0.2", is(true)), kubetest.Endpoint("llm", "c", "10.0.0.3", is(false)))
	var mu sync.Mutex
	followed := map[string]bool{}
	config := kubernetes.PeersConfig{
		Service: "peers", Namespace: "llm", Self: netip.MustParseAddr("10.0.0.1"), SyncPort: 1, HTTPPort: 2, Scheme: "http",
		Follow: func(endpoint string) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			followed[endpoint] = true
			return true, nil
		},
		Unfollow: func(endpoint string) error {
			mu.Lock()
			defer mu.Unlock()
			delete(followed, endpoint)
			return nil
		},
	}
	client, err := kubernetes.Dial(api.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	w := startConfig(t, api, client, kubernetes.Config{Peers: &config})
	if urls := w.d.ServingPeers(t.Context()); !slices.Equal(urls, []string{"http://10.0.0.2:8092"}) {
		t.Errorf("serving %v", urls)
	}
	follows := func(want ...string) {
		t.Helper()
		w.await("following "+strings.Join(want, " "), func() bool {
			mu.Lock()
			defer mu.Unlock()
			if len(followed) != len(want) {
				return false
			}
			return !slices.ContainsFunc(want, func(e string) bool { return !followed[e] })
		})
	}
	follows("tcp://10.0.0.2:9092", "tcp://10.0.0.3:9092")
	api.Answer(func(rw http.ResponseWriter, _ *http.Request) bool {
		kubetest.Fail(rw, http.StatusForbidden, "Forbidden", "no")
		return true
	})
	api.CutWatches()
	w.await("denied", func() bool { return w.d.Status().Peers.State == kubernetes.Forbidden })
	follows("tcp://10.0.0.2:9092", "tcp://10.0.0.3:9092")
	put(kubetest.Endpoint("llm", "a", "10.0.0.1", is(true)), kubetest.Endpoint("llm", "d", "10.0.0.4", is(true)))
	api.Answer(nil)
	follows("tcp://10.0.0.4:9092")
	if !w.d.Listed() {
		t.Error("without sources there is nothing to wait for")
	}
}

// TestRandomHistories: after any history of pods, pools and cuts the workers are those that a
// plain reading of the objects gives, and none was lost on the way that should have stayed
// (scenario 33).
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	steps := 120
	if testing.Short() {
		steps = 25
	}
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 1))
			api := kubetest.New(t)
			api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", 8000))
			w := start(t, api, pool(func(e *mapping.Entry) { e.NotReadyGrace = 0 }))
			for range steps {
				name := fmt.Sprint("p-", random.IntN(6))
				change := []func(kubetest.Object){
					kubetest.UID(fmt.Sprint(name, random.IntN(2))), kubetest.Ready(random.IntN(4) > 0),
					kubetest.Labels("app", []string{"vllm", "vllm", "vllm", "other"}[random.IntN(4)]),
				}
				switch random.IntN(10) {
				case 0:
					api.Delete("pods", "llm", name)
				case 1:
					change = append(change, kubetest.Deleted(time.Now().Add(time.Hour)))
					api.Put("pods", kubetest.Pod("llm", name, "10.0.0.1", change...))
				case 2:
					api.CutWatches()
				case 3:
					api.Compact()
					api.CutWatches()
				case 4:
					api.Put("inferencepools", kubetest.Pool("llm", "llm", []string{"vllm", "other"}[random.IntN(2)], 8000))
				default:
					api.Put("pods", kubetest.Pod("llm", name, fmt.Sprint("10.0.0.", random.IntN(9)+1), change...))
				}
			}
			w.await("the workers of the objects", func() bool { return sameAsObjects(w.catalog, api) })
		})
	}
}

// sameAsObjects reports whether the schedulable workers are the ready pods of the pool.
func sameAsObjects(workers *catalog.Catalog, api *kubetest.Server) bool {
	app := api.Get("inferencepools", "llm", "llm")["spec"].(kubetest.Object)["selector"].(kubetest.Object)["matchLabels"].(kubetest.Object)["app"]
	got := map[string]string{}
	for _, x := range workers.List(nil, nil) {
		if x.Lifecycle == catalog.Schedulable {
			got[x.Source.Pod] = x.Source.UID + *x.Endpoint
		}
	}
	n := 0
	for i := range 6 {
		name := fmt.Sprint("p-", i)
		o := api.Get("pods", "llm", name)
		if o == nil {
			continue
		}
		meta, status := o["metadata"].(kubetest.Object), o["status"].(kubetest.Object)
		if meta["labels"].(kubetest.Object)["app"] != app || meta["deletionTimestamp"] != nil ||
			status["conditions"].([]kubetest.Object)[0]["status"] != "True" {
			continue
		}
		n++
		if got[name] != fmt.Sprintf("%shttp://%s:8000", meta["uid"], status["podIP"]) {
			return false
		}
	}
	return n == len(got)
}
