package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/select-service/select-service/test/e2e"
	"github.com/select-service/select-service/test/kubetest"
)

// engineEnds is how long an engine still accepts requests when its pod is being deleted, as its
// preStop hook sees to.
const engineEnds = 2 * time.Second

// podEngine is an engine in a pod.
type podEngine struct {
	*backend
	pod, ip string
	last    time.Duration // from the begin of its end to its last request
	object  func(change ...func(kubetest.Object)) kubetest.Object
}

func newPodEngine(t *testing.T, name, ip string, port int) *podEngine {
	t.Helper()
	e := &podEngine{backend: newBackendAt(t, net.JoinHostPort(ip, strconv.Itoa(port)), name, 0, 1, nil), pod: name, ip: ip}
	info := e.ranks[0].Info()
	portOf := func(endpoint string) string { return endpoint[strings.LastIndexByte(endpoint, ':')+1:] }
	annotations := kubetest.Annotations("select-service/kv-events-port", portOf(info.KVEventsEndpoint), "select-service/kv-replay-port", portOf(info.ReplayEndpoint))
	e.object = func(change ...func(kubetest.Object)) kubetest.Object {
		return kubetest.Pod("llm", name, ip, append(change, annotations)...)
	}
	return e
}

// late returns how long after a moment the last request came, 0 if none did.
func (e *podEngine) late(since time.Time) (after time.Duration) {
	for _, s := range e.takeSeen() {
		if s.path == chats {
			after = max(after, s.at.Sub(since))
		}
	}
	return after
}

// TestRollingUpdate: engines are pods, which are replaced one by one while requests come all the
// time, and half way the API server is away for a while. No request fails, and no engine gets a
// request a second after its pod has begun to end (scenario 28). It runs on the real API server
// where kubetest.BinariesEnv is set.
func TestRollingUpdate(t *testing.T) {
	if os.Getenv(envoyEnv) == "" {
		t.Skipf("needs Envoy: make test-gateway sets %s", envoyEnv)
	}
	pods, rate, outage := 100, 50, time.Minute
	if testing.Short() {
		pods, rate, outage = 3, 20, time.Second
	}
	api := kubetest.Any(t)
	port := e2e.FreePort(t)
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", port))
	// The addresses of the old engines, then those of the new ones.
	at := func(i int) string { return fmt.Sprintf("127.9.%d.%d", i/200, i%200+1) }
	var old []*podEngine
	var listed []*backend
	for i := range 2 * pods {
		if i < pods {
			e := newPodEngine(t, fmt.Sprint("old-", i), at(i), port)
			old = append(old, e)
			api.Put("pods", e.object())
		}
		listed = append(listed, &backend{address: net.JoinHostPort(at(i), strconv.Itoa(port))})
	}
	b := &bed{t: t, gateway: e2e.FreePort(t)}
	b.picker = e2e.Serve(t, map[string]string{"SELECT_SERVICE_KUBE_ALLOW_LOOPBACK": "true"}, "--gateway-port", strconv.Itoa(b.gateway),
		"--kubeconfig", api.Kubeconfig(t), "--kube-namespace", "llm", "--kube-inference-pool", "llm", "--kube-block-size", strconv.Itoa(blockSize))
	b.awaitSchedulable(pods)
	b.envoy = startEnvoy(t, b.gateway, listed)

	var requests sync.WaitGroup
	var sent atomic.Int64
	var failed failures
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	requests.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for ctx.Err() == nil {
			n := uint32(sent.Add(1))
			requests.Go(func() {
				a, err := b.send(t.Context(), http.MethodPost, chats, chat(words(n%20, 200), streamed, object{"max_tokens": 20}))
				if err == nil && (a.status != http.StatusOK || !strings.HasSuffix(strings.TrimSpace(a.body), "data: [DONE]")) {
					err = fmt.Errorf("%v", a)
				}
				if err != nil {
					failed.add(err)
				}
			})
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})

	var ending sync.WaitGroup
	ended := make(chan *podEngine, pods)
	var worst time.Duration
	remove := func() {
		for len(ended) > 0 {
			e := <-ended
			api.Delete("pods", "llm", e.pod)
			worst = max(worst, e.last)
		}
	}
	for i, e := range old {
		if i == pods/2 {
			api.Kill()
			pause(ctx, outage)
			api.Start()
		}
		next := newPodEngine(t, fmt.Sprint("new-", i), at(pods+i), port)
		api.Put("pods", next.object(kubetest.Ready(false)))
		api.Put("pods", next.object())
		b.awaitSchedulable(pods + 1)
		e.takeSeen()
		begin := time.Now()
		api.Put("pods", e.object(kubetest.Deleted(begin.Add(30*time.Second))))
		ending.Go(func() {
			pause(ctx, engineEnds)
			_ = e.http.Shutdown(t.Context()) // what is running ends
			e.last = e.late(begin)
			e.end()
			ended <- e
		})
		b.awaitSchedulable(pods)
		remove()
	}
	ending.Wait()
	remove()
	stop()
	requests.Wait()
	t.Logf("%d requests while %d pods were replaced; the last pick of an ending pod came after %v", sent.Load(), pods, worst)
	if len(failed.by) > 0 {
		t.Errorf("failed: %v", failed.by)
	}
	if worst > time.Second && (e2e.Alone() || worst > engineEnds) {
		t.Errorf("a pod was picked %v after it had begun to end", worst)
	}
	b.idle()
}

// awaitSchedulable waits until so many pods get requests.
func (b *bed) awaitSchedulable(n int) {
	b.t.Helper()
	e2e.Eventually(b.t, fmt.Sprint(n, " pods are schedulable"), func() error {
		var status struct{ Sources []struct{ Schedulable int } }
		if err := b.picker.Do(b.t.Context(), http.MethodGet, "/kubernetes", nil, &status); err != nil {
			return err
		}
		if len(status.Sources) != 1 || status.Sources[0].Schedulable != n {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
}
