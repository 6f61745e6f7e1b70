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
	"syscall"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/kubetest"
)

// engineEnds is how long an engine still accepts requests when its pod is being deleted, as its
// preStop hook sees to.
const engineEnds = 5 * time.Second

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
	b.picker = e2e.Serve(t, map[string]string{"SELECT_SERVICE_KUBE_ALLOW_LOOPBACK": "true", "DYN_KV_CACHE_BLOCK_SIZE": strconv.Itoa(blockSize)}, "--gateway-port", strconv.Itoa(b.gateway),
		"--kubeconfig", api.Kubeconfig(t), "--kube-namespace", "llm", "--kube-inference-pool", "llm")
	b.awaitSchedulable(pods)
	b.envoy = startEnvoy(t, b.gateway, listed)
	b.awaitPicked()

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	traffic := b.flow(ctx, rate)
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
			_ = e.http.Shutdown(t.Context()) //nolint:contextcheck // what is running ends, also after stop
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
	t.Logf("%d requests while %d pods were replaced; the last pick of an ending pod came after %v", traffic.ended(), pods, worst)
	if worst > time.Second && (e2e.Alone() || worst > engineEnds) {
		t.Errorf("a pod was picked %v after it had begun to end", worst)
	}
	b.idle()
}

// flow are requests that come one after the other, however long the answers take.
type flow struct {
	b      *bed
	all    sync.WaitGroup
	sent   atomic.Int64
	failed failures
}

// flow sends so many requests a second until ctx ends.
func (b *bed) flow(ctx context.Context, rate int) *flow {
	f := &flow{b: b}
	f.all.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for ctx.Err() == nil {
			n := uint32(f.sent.Add(1))
			f.all.Go(func() { //nolint:contextcheck // a request ends by itself, also after ctx
				a, err := b.send(b.t.Context(), http.MethodPost, chats, chat(words(n%20, 200), streamed, object{"max_tokens": 20}))
				if err == nil && (a.status != http.StatusOK || !strings.HasSuffix(strings.TrimSpace(a.body), "data: [DONE]")) {
					err = fmt.Errorf("%v", a)
				}
				if err != nil {
					f.failed.add(err)
				}
			})
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	return f
}

// ended waits for the last answers, all of which must be whole, and returns how many there were.
func (f *flow) ended() int64 {
	f.b.t.Helper()
	f.all.Wait()
	if len(f.failed.by) > 0 {
		f.b.t.Errorf("failed: %v", f.failed.by)
	}
	return f.sent.Load()
}

// replaced: of two pickers behind Envoy one is told to stop while requests come, as a rolling update
// of the chart's Deployment does: it says that it is not ready, waits until that is known, and then
// ends with its last answer (scenario 38).
func replaced(t *testing.T) {
	delay, rate := "5s", 50
	if testing.Short() {
		delay, rate = "3s", 20
	}
	flags := []string{"--gateway-drain-delay", delay, "--gateway-drain-timeout", "115s"}
	port := e2e.FreePort(t)
	b := lay(t, setup{service: flags, envoy: []edit{func(c config) {
		endpoints := objectAt(c.cluster("picker"), "load_assignment", "endpoints", 0)
		endpoints["lb_endpoints"] = append(endpoints["lb_endpoints"].([]any),
			object{"endpoint": object{"address": object{"socket_address": object{"address": "127.0.0.1", "port_value": port}}}})
	}}})
	second := e2e.Serve(t, nil, append([]string{"--gateway-port", strconv.Itoa(port)}, flags...)...)
	b.register(second)
	e2e.Eventually(t, "both pickers get requests", func() error {
		b.post(http.StatusOK, chats, chat("Hello"))
		if n, err := second.Sum(t.Context(), `select_service_gateway_requests_total{outcome="booked"}`); err != nil || n == 0 || b.placed() == 0 {
			return fmt.Errorf("%v, %w", n, err)
		}
		return nil
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	traffic := b.flow(ctx, rate)
	pause(ctx, time.Second)
	if err := b.picker.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, ended := b.picker.Wait(e2e.Patience); !ended || code != 0 {
		t.Errorf("the picker: code %d, ended: %t", code, ended)
	}
	pause(ctx, time.Second)
	stop()
	t.Logf("%d requests", traffic.ended())
}

// awaitPicked waits until Envoy knows that the picker is ready. It looks once a second, and the
// picker may say so some time after its workers have become schedulable.
func (b *bed) awaitPicked() {
	b.t.Helper()
	e2e.Eventually(b.t, "requests are picked", func() error {
		a, err := b.send(b.t.Context(), http.MethodPost, chats, chat(words(1, 1), object{"max_tokens": 1}))
		if err == nil && a.status != http.StatusOK {
			err = fmt.Errorf("%v", a)
		}
		return err
	})
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
