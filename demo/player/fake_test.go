package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/select-service/select-service/demo/sim/node"
	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/internal/simulation/engine"
)

// wire is a Publisher without sockets: it reports to the fake service how far each
// engine's event stream is.
type wire struct {
	name string
	svc  *fakeService
}

func (w *wire) Publish(payload []byte) {
	w.svc.mu.Lock()
	defer w.svc.mu.Unlock()
	w.svc.published[w.name]++
}

func (w *wire) Subscribers() int {
	w.svc.mu.Lock()
	defer w.svc.mu.Unlock()
	return w.svc.heard[w.name]
}
func (w *wire) Events() string { return w.name }
func (w *wire) Replay() string { return w.name + "/replay" }
func (w *wire) Close() error   { return nil }

// fakeService is a selection service of the same HTTP contract. It sends equal
// beginnings to the same worker and checks every call.
type fakeService struct {
	t     *testing.T
	begin sync.Once
	first chan struct{} // closed with the first reservation

	// mu guards what follows.
	mu           sync.Mutex
	workers      map[int]workerRequest
	heard        map[string]int // event endpoints ever registered, and how often
	published    map[string]int
	homes        map[uint32]int      // worker by a prompt's first token
	reservations map[string][]string // lifecycle of each reservation
	refuse       map[string]bool     // reservations to refuse
	again        bool                // a reservation may be freed twice
	models       map[string]bool     // under which engines were registered
	tenants      map[string]bool     // likewise
	slowed       []float64           // factors that engines were told, in order
	sessions     []sessionContext    // of the reservations that say one, in order
}

func newFakeService(t *testing.T) (*fakeService, string) {
	s := newFakeState(t)
	return s, s.serve("")
}

func newFakeState(t *testing.T) *fakeService {
	return &fakeService{
		t: t, first: make(chan struct{}), workers: map[int]workerRequest{}, heard: map[string]int{}, published: map[string]int{},
		homes: map[uint32]int{}, reservations: map[string][]string{}, refuse: map[string]bool{},
		models: map[string]bool{}, tenants: map[string]bool{},
	}
}

// serve adds an address, a perfect replica of the others. While the named file
// exists nothing answers there.
func (s *fakeService) serve(down string) string {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /workers", s.register)
	mux.HandleFunc("DELETE /workers/{id}", s.remove)
	mux.HandleFunc("POST /select_and_reserve", s.place)
	mux.HandleFunc("POST /reservations/{id}/{step}", s.step)
	mux.HandleFunc("DELETE /reservations/{id}", s.step)
	mux.HandleFunc("GET /ready", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /loads", s.loads)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := os.Stat(down); err == nil {
			panic(http.ErrAbortHandler)
		}
		mux.ServeHTTP(w, r)
	}))
	s.t.Cleanup(srv.Close)
	return srv.URL
}

func (s *fakeService) loads(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	live := 0
	for _, steps := range s.reservations {
		if !slices.Contains(steps, "freed") {
			live++
		}
	}
	fmt.Fprintf(w, `[{"loads":[{"active_requests":%d}]}]`, live)
}

func (s *fakeService) register(w http.ResponseWriter, r *http.Request) {
	var req workerRequest
	_ = json.NewDecoder(r.Body).Decode(&req)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers[req.WorkerID] = req
	s.heard[req.KVEventsEndpoint]++
	s.models[req.ModelName] = true
	s.tenants[req.TenantID] = true
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(workerRecord{Lifecycle: "schedulable"})
}

func (s *fakeService) remove(_ http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, _ := strconv.Atoi(r.PathValue("id"))
	delete(s.workers, id)
}

func (s *fakeService) place(w http.ResponseWriter, r *http.Request) {
	var req selectRequest
	_ = json.NewDecoder(r.Body).Decode(&req)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse[req.ReservationID] {
		http.Error(w, `{"error":"no"}`, http.StatusServiceUnavailable)
		return
	}
	home, ok := s.homes[req.TokenIDs[0]]
	if !ok {
		home = 1 + len(s.homes)%len(s.workers)
		s.homes[req.TokenIDs[0]] = home
	}
	s.reservations[req.ReservationID] = []string{"booked"}
	if req.SessionContext != nil {
		s.sessions = append(s.sessions, *req.SessionContext)
	}
	s.begin.Do(func() { close(s.first) })
	fmt.Fprintf(w, `{"worker_id":%d,"dp_rank":0,"overlap":{"longest_matched":16}}`, home)
}

func (s *fakeService) step(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, step := r.PathValue("id"), r.PathValue("step")
	if r.Method == http.MethodDelete {
		step = "freed"
	}
	if step == "freed" && len(s.reservations[id]) == 0 { // a player may not know whether it was booked
		http.Error(w, `{"error":"no"}`, http.StatusNotFound)
		return
	}
	if step == "freed" && slices.Contains(s.reservations[id], "freed") && s.again {
		return
	}
	if !slices.Contains(s.reservations[id], "booked") || slices.Contains(s.reservations[id], "freed") {
		s.t.Errorf("%s of %s after %v", step, id, s.reservations[id])
	}
	if step == "output_block" {
		var body struct {
			Fraction *float64 `json:"decay_fraction"`
		}
		if json.NewDecoder(r.Body).Decode(&body) != nil || body.Fraction == nil || *body.Fraction < 0 || *body.Fraction > 1 {
			s.t.Errorf("decay fraction of %s: %v", id, body.Fraction)
		}
	}
	s.reservations[id] = append(s.reservations[id], step)
	fmt.Fprint(w, `{"status":"ok"}`)
}

// watch notes how the engine behind h is slowed.
func (s *fakeService) watch(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == simapi.PathSlow {
			text, _ := io.ReadAll(r.Body)
			var req simapi.SlowRequest
			_ = json.Unmarshal(text, &req)
			s.mu.Lock()
			s.slowed = append(s.slowed, req.Factor)
			s.mu.Unlock()
			r.Body = io.NopCloser(bytes.NewReader(text))
		}
		h.ServeHTTP(w, r)
	})
}

// startEngines serves n engines of the given size whose events go to svc.
func startEngines(t *testing.T, svc *fakeService, n, blocks int) []string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	var urls []string
	for i := range n {
		starts := 0
		e, err := node.New(node.Options{
			Engine:  engine.Config{BlockSize: 16, CacheBlocks: blocks, PrefillRate: 12000, DecodeRate: 50},
			Speedup: 1,
			NewSeed: func() uint64 { return uint64(i) },
			Publisher: func() (node.Publisher, error) {
				starts++
				return &wire{fmt.Sprintf("tcp://engine-%d-start-%d", i+1, starts), svc}, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := e.Run(ctx); err != nil {
				t.Errorf("engine %d: %v", i+1, err)
			}
		})
		srv := httptest.NewServer(svc.watch(e.Handler()))
		t.Cleanup(srv.Close)
		urls = append(urls, srv.URL)
	}
	return urls
}
