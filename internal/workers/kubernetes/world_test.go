package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/workers/kubernetes"
	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/kubetest"
)

// world is discovery over a stand-in of an API server, with a catalog.
type world struct {
	t       *testing.T
	api     kubetest.API
	catalog *catalog.Catalog
	d       *kubernetes.Discovery

	mu      sync.Mutex // guards the fields below
	engines map[string]answer
	asked   map[string]int
	asking  func(context.Context) error // before an engine answers
	removed map[uint64]int              // how often a worker was removed
}

// attachments takes what the catalog attaches.
type attachments struct {
	mu   sync.Mutex      // guards lost
	lost map[uint64]bool // workers that have lost their ranks, with blocks and bookings
}

func (a *attachments) Reconcile(before, after *catalog.Attachment) error {
	if after == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.lost == nil {
			a.lost = make(map[uint64]bool)
		}
		a.lost[before.Worker] = true
	}
	return nil
}
func (*attachments) ReserveSlot(catalog.Scope, uint32, catalog.Rank, uint32) {}
func (*attachments) ReleaseSlot(catalog.Scope, catalog.Rank, uint32)         {}

// pool returns an entry for an InferencePool whose engines need not be asked.
func pool(change ...func(*mapping.Entry)) mapping.Entry {
	e := mapping.Entry{
		Kind: mapping.InferencePool, Name: "llm", Namespace: "llm", Model: "m", Tenant: "default", Worker: catalog.Record{BlockSize: new(uint32(16)), TotalKVBlocks: new(uint64(100))},
		Scheme: "http", RoleLabels: []string{mapping.RoleLabelLLMD, mapping.RoleLabelDynamo}, NotReadyGrace: mapping.DefaultGrace,
	}
	for _, c := range change {
		c(&e)
	}
	return e
}

// start runs discovery until the end of the test.
func start(t *testing.T, api kubetest.API, entries ...mapping.Entry) *world {
	t.Helper()
	return startWith(t, api, dial(t, api), entries...)
}

// dial returns a client of an API server.
func dial(t *testing.T, api kubetest.API) *kubernetes.Client {
	t.Helper()
	var client *kubernetes.Client
	var err error
	if s, ok := api.(*kubetest.Server); ok && s.IsOffline() {
		client, err = kubernetes.Connect(s)
	} else {
		client, err = kubernetes.Dial(api.Kubeconfig(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func startWith(t *testing.T, api kubetest.API, client *kubernetes.Client, entries ...mapping.Entry) *world {
	t.Helper()
	return startConfig(t, api, client, kubernetes.Config{
		Settings: settings(), Entries: entries,
	})
}

func settings() mapping.Settings {
	return mapping.Settings{Home: "llm", KVEvents: true}
}

func newCatalog() *catalog.Catalog {
	return catalog.New(catalog.Settings{KVEvents: true}, new(attachments))
}

func startConfig(t *testing.T, api kubetest.API, client *kubernetes.Client, config kubernetes.Config) *world {
	t.Helper()
	return startAsking(t, api, client, config, nil)
}

// startAsking is startConfig where engines are asked by ask; nil is world.ask.
func startAsking(t *testing.T, api kubetest.API, client *kubernetes.Client, config kubernetes.Config, ask func(ctx context.Context, url string) (*catalog.Description, error)) *world {
	t.Helper()
	w := &world{
		t: t, api: api, engines: make(map[string]answer), asked: make(map[string]int), removed: make(map[uint64]int),
		catalog: config.Catalog,
	}
	if w.catalog == nil {
		w.catalog = newCatalog()
	}
	config.Catalog, config.Log = w.catalog, zerolog.Nop()
	w.d = kubernetes.New(config, client)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- w.d.Run(ctx, w.apply) }()
	if ask == nil {
		ask = w.ask
	}
	var describing sync.WaitGroup
	describing.Go(func() { w.describe(ctx, ask) })
	t.Cleanup(func() {
		cancel()
		describing.Wait()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) apply(set catalog.Set) (catalog.Difference, error) {
	set.Kind = catalog.SourceKubernetes
	d, err := w.catalog.Reconcile(set)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range d.Removed {
		w.removed[id]++
	}
	return d, err
}

// answer is what an engine says of itself. Its ports are those of its first rank.
type answer struct {
	Model, NoBlockSize               string
	Adapters                         []string
	BlockSize, Ranks                 uint32
	TotalKVBlocks, KVTokens          uint64
	Eagle, Unanswered                bool
	EventsPort, ReplayPort, LoadPort uint16
}

// description returns the answer of an engine at a URL as describe has it.
func (a answer) description(at string) *catalog.Description {
	host := strings.TrimPrefix(at, "http://")
	host = host[:strings.LastIndexByte(host, ':')]
	sockets := func(port uint16) map[uint32]string {
		if port == 0 {
			return nil
		}
		all := make(map[uint32]string)
		for dp := range max(a.Ranks, 1) {
			all[dp] = fmt.Sprintf("tcp://%s:%d", host, uint32(port)+dp)
		}
		return all
	}
	d := &catalog.Description{
		Engine: "vllm", Model: a.Model, Adapters: a.Adapters, BlockSize: a.BlockSize, Size: a.Ranks, TotalKVBlocks: a.TotalKVBlocks, KVTokens: a.KVTokens,
		Eagle: a.Eagle, KVEventsEndpoints: sockets(a.EventsPort), ReplayEndpoints: sockets(a.ReplayPort), LoadEndpoints: sockets(a.LoadPort),
		Unanswered: a.Unanswered, From: map[string]string{catalog.FieldBlockSize: "/metrics", catalog.FieldModel: "/v1/models"}, Unknown: make(map[string]string),
	}
	if a.NoBlockSize != "" {
		d.Unknown[catalog.FieldBlockSize] = a.NoBlockSize
	}
	return d
}

func (w *world) ask(ctx context.Context, url string) (*catalog.Description, error) {
	w.mu.Lock()
	w.asked[url]++
	asking := w.asking
	w.mu.Unlock()
	if asking != nil {
		if err := asking(ctx); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	said, ok := w.engines[url]
	if !ok {
		return nil, errors.New("GET " + url + "/v1/models: connection refused")
	}
	return said.description(url), nil
}

// describe asks the engines of pods as the service does (internal/node), until ctx ends: each at once and
// after a turn, after a second while its worker is incomplete, and every minute.
func (w *world) describe(ctx context.Context, ask func(ctx context.Context, url string) (*catalog.Description, error)) {
	type engine struct {
		of   catalog.Describe
		uid  string
		due  time.Time
		busy bool
	}
	engines := make(map[uint64]*engine)
	answers := make(chan func())
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var asking sync.WaitGroup
	defer asking.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case take := <-answers:
			take()
		case <-tick.C:
		}
		for _, x := range w.catalog.List(nil, nil) {
			if x.Describe == nil || x.Draining != "" {
				if x.Draining != "" {
					delete(engines, x.ID)
				}
				continue
			}
			e := engines[x.ID]
			if e == nil || e.uid != x.Source.UID || e.of.Turn != x.Describe.Turn && !e.busy {
				e = &engine{of: *x.Describe, uid: x.Source.UID}
				engines[x.ID] = e
			}
			if e.busy || time.Now().Before(e.due) {
				continue
			}
			e.busy = true
			asking.Go(func() {
				fault := ""
				told, err := ask(ctx, x.Address())
				if err != nil {
					fault = err.Error()
				}
				take := func() {
					e.busy, e.due = false, time.Now().Add(time.Minute)
					now, changed := w.catalog.Describe(x, told, fault)
					if changed {
						w.d.Heard()
					}
					if now != nil && (told == nil || now.Lifecycle == catalog.Incomplete) {
						e.due = time.Now().Add(time.Second)
					}
				}
				select {
				case answers <- take:
				case <-ctx.Done():
				}
			})
		}
	}
}

// asks returns how often an engine was asked.
func (w *world) asks(url string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[url]
}

// removals returns how often a worker was removed.
func (w *world) removals(id uint64) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.removed[id]
}

// lostNone fails the test if a worker was ever removed.
func (w *world) lostNone() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.removed) > 0 {
		w.t.Errorf("removed %v", w.removed)
	}
}

// says makes an engine answer.
func (w *world) says(url string, said answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.engines[url] = said
}

// patience is how long a condition is awaited: a definition of a resource that is missing is looked
// for every 30 s.
const patience = time.Minute

// await waits until a condition holds.
func (w *world) await(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			w.t.Fatalf("waited in vain: %s\nworkers:\n%s\nstatus: %+v", what, strings.Join(w.workers(), "\n"), w.d.Status())
		}
		<-time.After(5 * time.Millisecond)
	}
}

// workers lists the catalog: pod, lifecycle and reasons.
func (w *world) workers() []string {
	var lines []string
	for _, x := range w.catalog.List(nil, nil) {
		line := fmt.Sprintf("%s:%s %s", x.Source.Pod, (*x.Endpoint)[strings.LastIndexByte(*x.Endpoint, ':')+1:], x.Lifecycle)
		if why := x.Explain(); len(why) > 0 {
			line += ": " + strings.Join(why, "; ")
		}
		lines = append(lines, line)
	}
	return lines
}

// has waits for these workers, in any order.
func (w *world) has(want ...string) {
	w.t.Helper()
	w.await("workers "+strings.Join(want, " | "), func() bool {
		got := w.workers()
		if len(got) != len(want) {
			return false
		}
		for _, line := range want {
			found := false
			for _, g := range got {
				found = found || g == line
			}
			if !found {
				return false
			}
		}
		return true
	})
}

// worker returns a pod's only worker.
func (w *world) worker(pod string) *catalog.Worker {
	w.t.Helper()
	x, ok := w.find(pod)
	if !ok {
		w.t.Fatalf("no worker of pod %s", pod)
	}
	return x
}

// find returns a pod's worker, if it has one.
func (w *world) find(pod string) (*catalog.Worker, bool) {
	for _, x := range w.catalog.List(nil, nil) {
		if x.Source.Pod == pod {
			return x, true
		}
	}
	return nil, false
}

// state waits for a state of the i-th source.
func (w *world) state(i int, want kubernetes.State) {
	w.t.Helper()
	w.await("state "+string(want), func() bool { return w.d.Status().Sources[i].State == want })
}
