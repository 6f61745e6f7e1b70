package prometheus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/kubetest"
)

const (
	model     = "org/model"
	noisy     = "noisy" // its only engine loses events
	blockSize = 16
	kvBlocks  = 64 // of a rank
	batched   = 2048
	namespace = "llm"  // of the pods
	pool      = "pods" // and their model
)

type object = e2e.Object

// service is a running select-service.
type service struct {
	*e2e.Service
	t    *testing.T
	name string
}

func start(t *testing.T, name string, port int, args ...string) *service {
	t.Helper()
	return startWith(t, nil, name, port, args...)
}

func startWith(t *testing.T, env map[string]string, name string, port int, args ...string) *service {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", port)
	command := append([]string{e2e.Binary(t), "--listen", "127.0.0.1", "--port", strconv.Itoa(port)}, args...)
	s := &service{e2e.New(t, e2e.Options{Command: command, Env: env, Address: address}), t, name}
	s.Run()
	return s
}

func (s *service) url(path string) string { return s.URL() + path }

// call sends a request, see e2e.Call.
func (s *service) call(method, path string, body any) (e2e.Answer, error) {
	return e2e.Call(s.t.Context(), client, method, s.url(path), body)
}

// must sends a request that has to be answered with a status.
func (s *service) must(status int, method, path string, body any) {
	s.t.Helper()
	if got, err := s.call(method, path, body); err != nil || got.Status != status {
		s.t.Fatalf("%s: %s %s: want status %d, got %v (%v)", s.name, method, path, status, got, err)
	}
}

// metrics is the answer to a scrape.
func (s *service) metrics() []byte {
	s.t.Helper()
	got, err := s.call("GET", "/metrics", nil)
	if err != nil || got.Status != http.StatusOK {
		s.t.Fatalf("%s: GET /metrics: %d %v", s.name, got.Status, err)
	}
	return got.Body
}

// register adds an engine as a worker.
func (s *service) register(id int, model, events, replay string) {
	s.t.Helper()
	record := object{
		"worker_id": id, "model_name": model, "endpoint": fmt.Sprintf("http://w%d:8000", id), "block_size": blockSize,
		"total_kv_blocks": kvBlocks, "max_num_batched_tokens": batched, "kv_events_endpoint": events,
	}
	if replay != "" {
		record["replay_endpoint"] = replay
	}
	s.must(http.StatusCreated, "POST", "/workers", record)
}

// loadPage serves a page of metrics as vLLM writes it, of an engine that does nothing.
func loadPage(t *testing.T) (url string) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"0\"} 0\n")
	}))
	t.Cleanup(page.Close)
	return page.URL
}

// spanStore takes spans and drops them: what comes to a real collector is no matter of the metrics.
func spanStore(t *testing.T) (url string) {
	store := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(store.Close)
	return store.URL
}

// pods are what the stand-in of an API server has: a pod that comes and goes, one whose engine does
// not answer, one at an address that no pod has, and for moments an object that is none.
type pods struct {
	*kubetest.Server
	port string // of an engine's events
}

func startPods(t *testing.T, e engine) *pods {
	t.Helper()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(e.Events, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	p := &pods{kubetest.New(t), port}
	p.Put("inferencepools", kubetest.Pool(namespace, pool, "vllm", 8000))
	p.Put("pods", kubetest.Pod(namespace, "elsewhere", "169.254.0.1"))
	p.Put("pods", kubetest.Pod(namespace, "mute", "127.0.0.2"))
	p.change(true)
	return p
}

// env is that of a replica in a pod beside them.
func (p *pods) env() map[string]string {
	return map[string]string{"POD_IP": "127.0.0.1", "SELECT_SERVICE_KUBE_ALLOW_LOOPBACK": "true"}
}

// change sets whether the pod is ready.
func (p *pods) change(ready bool) {
	known := kubetest.Annotations("select-service/model", pool, "select-service/block-size", strconv.Itoa(blockSize), "select-service/kv-events-port", p.port)
	p.Put("pods", kubetest.Pod(namespace, "engine", "127.0.0.1", known, kubetest.Ready(ready)))
}

// spoil sends an object that is no pod, and takes it back.
func (p *pods) spoil() {
	const name = "broken"
	p.Put("pods", kubetest.Pod(namespace, name, "10.1.0.1", func(o kubetest.Object) { o["spec"] = "none" }))
	p.Delete("pods", namespace, name)
}

// engine is a simulated engine.
type engine struct{ e2e.Engine }

// startEngines starts simulated engines that are fast, with little memory, so
// that they soon drop blocks.
func startEngines(t *testing.T, n int) (all []engine) {
	t.Helper()
	_, engines := e2e.Engines(t, n, "--block-size", strconv.Itoa(blockSize), "--cache-blocks", strconv.Itoa(kvBlocks), "--speedup", "100")
	for _, e := range engines {
		all = append(all, engine{e})
	}
	return all
}

// subscribed waits until so many follow the engine's events.
func (e engine) subscribed(t *testing.T, n int) {
	t.Helper()
	e2e.Eventually(t, "the engine's events are followed", func() error {
		var info simapi.Info
		if err := get(e.URL+simapi.PathInfo, &info); err != nil {
			return err
		}
		if info.Subscribers < n {
			return fmt.Errorf("%d of %d subscribers", info.Subscribers, n)
		}
		return nil
	})
}

// generate lets the engine compute a prompt, and waits for the end.
func (e engine) generate(t *testing.T, id string, prompt []uint32) {
	t.Helper()
	body, err := json.Marshal(simapi.GenerateRequest{RequestID: id, TokenIDs: prompt, OutputTokenIDs: []uint32{1, 2, 3}})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Post(e.URL+simapi.PathGenerate, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if steps, err := io.ReadAll(resp.Body); err != nil || !bytes.Contains(steps, []byte(`"`+simapi.EventDone+`"`)) {
		t.Fatalf("generate: %s %s (%v)", resp.Status, steps, err)
	}
}

// clear drops the engine's cache.
func (e engine) clear(t *testing.T) {
	t.Helper()
	resp, err := client.Post(e.URL+simapi.PathClear, "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("clear: %s", resp.Status)
	}
}

// policy lets one request wait for each worker, and any load make a rank busy.
const policy = `
default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: only, policy_family: f, cache_bucket: all, quantum: 1, prefill_busy_threshold: 0, request_queue_limit_per_worker: 1}
`

func policyFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
