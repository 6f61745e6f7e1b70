package blackbox_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/test/checks/conformance"
	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

const seed = 20250711

// mutations is the number of broken messages, and of broken bodies.
func mutations() int {
	if testing.Short() {
		return 800
	}
	return 10_000
}

// TestMutations proves that nothing a client or an engine sends takes the
// service down: after thousands of broken bodies and messages, none of which is
// answered with an internal error, the valid scenarios still pass on the same
// process. There is one process for each environment that scenarios have.
func TestMutations(t *testing.T) {
	t.Parallel()
	scenarios, err := conformance.LoadDir("../../../../testdata/conformance/selection")
	if err != nil {
		t.Fatal(err)
	}
	queue := map[string]string{"DYN_ROUTER_QUEUE_THRESHOLD": "16"}
	tests := map[string]struct {
		env    map[string]string
		events bool
	}{
		"defaults":          {map[string]string{}, true},
		"queue":             {queue, true},
		"events off":        {eventsOff(), false},
		"queue, events off": {eventsOff("DYN_ROUTER_QUEUE_THRESHOLD", "16"), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := start(t, tc.env)
			m := newMutator(seed)
			s.sendBroken(t, m, requestsOf(t, scenarios), mutations()/len(tests))
			if tc.events {
				s.publishBroken(t, m, mutations()/2)
			}
			s.cutOff(t)
			s.playAll(t, scenarios, tc.env)
		})
	}
}

// request is a valid request with a body.
type request struct {
	method, path string
	body         []byte
}

var placeholder = regexp.MustCompile(`\{(pub|replay|peer|var|port)[^}]*\}`)

// requestsOf collects the requests with bodies of all scenarios. Their events
// come from a place where nobody is.
func requestsOf(t *testing.T, scenarios []*conformance.Scenario) []request {
	t.Helper()
	var requests []request
	add := func(r *conformance.Request) {
		if r.Body != nil {
			body := placeholder.ReplaceAll(r.Body, []byte("tcp://127.0.0.1:9"))
			requests = append(requests, request{r.Method, placeholder.ReplaceAllString(r.Path, "x"), body})
		}
	}
	for _, sc := range scenarios {
		for i := range sc.Steps {
			add(&sc.Steps[i].Request)
			if w := sc.Steps[i].WaitUntil; w != nil {
				add(&w.Request)
			}
		}
	}
	if len(requests) < 300 {
		t.Fatalf("only %d requests in the scenarios", len(requests))
	}
	return requests
}

// sendBroken sends n broken bodies.
func (s *service) sendBroken(t *testing.T, m *mutator, requests []request, n int) {
	t.Helper()
	keep := s.HTTP
	s.HTTP = &http.Client{Timeout: e2e.Patience} // keeps its connection
	defer func() {
		s.HTTP.CloseIdleConnections()
		s.HTTP = keep
	}()
	for i := range n {
		if i%100 == 0 {
			s.clear(t)
			s.register(t, 2)
		}
		r := pick(m, requests)
		body := m.json(r.body)
		ctx, cancel := t.Context(), func() {}
		if strings.HasPrefix(r.path, "/select") {
			// A body that turned out valid may wait in the queue.
			ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
		}
		a, err := s.Call(ctx, r.method, r.path, body)
		cancel()
		waited := errors.Is(err, context.DeadlineExceeded) && strings.HasPrefix(r.path, "/select")
		switch {
		case err != nil && !waited:
			t.Fatalf("mutation %d: %s %s %.300q: %v", i, r.method, r.path, body, err)
		case err == nil && a.Status >= 500 && a.Status != http.StatusServiceUnavailable:
			t.Errorf("mutation %d: %s %s %.300q: %v", i, r.method, r.path, body, a)
		case err == nil && a.Status >= 300 && !json.Valid(a.Body):
			t.Errorf("mutation %d: %s %s %.300q: the error is not JSON: %v", i, r.method, r.path, body, a)
		}
	}
	s.clear(t)
}

// clear deletes all workers, and so all reservations.
func (s *service) clear(t *testing.T) {
	t.Helper()
	var workers []struct {
		ID uint64 `json:"worker_id"`
	}
	s.Must(t, http.StatusOK, "GET", "/workers", nil, &workers)
	for _, w := range workers {
		s.Must(t, http.StatusOK, "DELETE", fmt.Sprintf("/workers/%d", w.ID), nil, nil)
	}
}

// publishBroken sends n broken messages on the live stream of one worker, and
// then expects that a valid one still counts.
func (s *service) publishBroken(t *testing.T, m *mutator, n int) {
	t.Helper()
	payloads := validPayloads(t)
	pub := zmqtest.NewPublisher(t, "")
	defer pub.Close()
	s.putRange(t, 1, []*zmqtest.Publisher{pub})
	pub.Subscribers(1)
	for i := range n {
		pub.Send(m.message(uint64(i), pick(m, payloads))...)
		if i%1000 == 0 {
			s.Must(t, http.StatusOK, "GET", "/health", nil, nil)
		}
	}
	// Broken events may have told of a further attention group, without which a prompt
	// hits nothing. A new engine, which begins with 0, has not told of any.
	seq := uint64(0)
	e2e.Eventually(t, "a valid event counts", func() error {
		pub.Publish(seq, stored(t, 0, 900001, 9001, 9002, 9003, 9004))
		seq++
		if got := s.device(t, 9001, 9002, 9003, 9004); got != 1 {
			return fmt.Errorf("%d ranks have the block, want 1", got)
		}
		return nil
	})
	s.clear(t)
	if peak, err := s.Status("VmHWM"); err != nil || peak > 1<<20 {
		t.Errorf("memory peak %d KiB (%v), want less than 1 GiB", peak, err)
	}
}

// validPayloads are the messages of every engine version.
func validPayloads(t *testing.T) [][]byte {
	t.Helper()
	text, err := os.ReadFile("../../../../testdata/kv_event_payloads.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Payload string `json:"payload_hex"`
		} `json:"cases"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	var payloads [][]byte
	for _, c := range file.Cases {
		p, err := hex.DecodeString(c.Payload)
		if err != nil {
			t.Fatal(err)
		}
		payloads = append(payloads, p)
	}
	return payloads
}

// stored is the message of an engine that has cached one block.
func stored(t *testing.T, rank uint32, name uint64, tokens ...uint32) []byte {
	t.Helper()
	event := []any{"BlockStored", []uint64{name}, nil, tokens, len(tokens), nil}
	payload, err := msgpack.Marshal([]any{1.5, []any{event}, rank})
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// device counts the ranks that hold the whole prompt on the device.
func (s *service) device(t *testing.T, tokens ...uint32) int {
	t.Helper()
	var scores struct {
		Blocks  int `json:"num_blocks"`
		Workers []struct {
			Device int `json:"device_blocks"`
		} `json:"workers"`
	}
	s.Must(t, http.StatusOK, "POST", "/overlap_scores", object{"token_ids": tokens}, &scores)
	n := 0
	for _, w := range scores.Workers {
		if w.Device == scores.Blocks {
			n++
		}
	}
	return n
}

// cutOff opens connections that promise more than they send, and goes away.
func (s *service) cutOff(t *testing.T) {
	t.Helper()
	heads := []string{
		"", "P", "POST /select HTTP/1.1\r\n", "POST /select HTTP/9.9\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00",
		"POST /select HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"token_ids\":[1,2",
		"POST /select HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n{",
		"POST /select HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", "GET /" + strings.Repeat("x", 100_000) + " HTTP/1.1\r\n\r\n",
	}
	for range 20 {
		for _, head := range heads {
			conn, err := net.Dial("tcp", s.Address())
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(conn, head) // the service may have closed it
			_ = conn.Close()
		}
	}
	s.Must(t, http.StatusOK, "GET", "/health", nil, nil)
}

// playAll plays the scenarios of this environment on the running process.
func (s *service) playAll(t *testing.T, scenarios []*conformance.Scenario, env map[string]string) {
	t.Helper()
	played := 0
	for _, sc := range scenarios {
		if sc.StartFails != nil || len(sc.Args) > 0 || !maps.Equal(sc.Env, env) {
			continue
		}
		own, ok := inDefaultScope(sc)
		if !ok {
			continue
		}
		played++
		t.Run(sc.Name, func(t *testing.T) {
			conformance.PlayOn(t, own, ports{}, s)
		})
		s.clear(t)
	}
	if played < 8 {
		t.Errorf("only %d scenarios were played", played)
	}
}

// inDefaultScope narrows a scenario to what it can see of a service that served
// others before: /loads and /dump name every scope that ever had a worker.
// Scenarios for which that is not enough are not played.
func inDefaultScope(sc *conformance.Scenario) (*conformance.Scenario, bool) {
	own := *sc
	own.Steps = slices.Clone(sc.Steps)
	var seesLoads, names bool
	for i := range own.Steps {
		step := &own.Steps[i]
		// Broken requests have salts and adapters. A scope that was shown one does not
		// match a block that it hears of on another medium first (docs/how-it-works/exactness.md).
		if namesOtherMedium(step.Publish) {
			return nil, false
		}
		requests := []*conformance.Request{&step.Request}
		if step.WaitUntil != nil {
			w := *step.WaitUntil
			step.WaitUntil = &w
			requests = append(requests, &w.Request)
		}
		for _, r := range requests {
			switch {
			case r.Path == "/dump", r.Path == "/loads" && string(step.Expect.JSON) == "[]":
				return nil, false
			case r.Path == "/loads":
				r.Path, seesLoads = "/loads?model_name=default&tenant_id=default", true
			case bytes.Contains(r.Body, []byte(`"model_name"`)), bytes.Contains(r.Body, []byte(`"tenant_id"`)):
				names = true
			}
		}
	}
	return &own, !seesLoads || !names
}

// quoted is a string of a JSON text that has no escapes, as names of media have none.
var quoted = regexp.MustCompile(`"([^"\\]*)"`)

// namesOtherMedium reports whether a step's events name a medium that is not the device,
// in any of the spellings that the service knows.
func namesOtherMedium(publish []byte) bool {
	return slices.ContainsFunc(quoted.FindAllSubmatch(publish, -1), func(m [][]byte) bool {
		_, tier, known := kvevents.ParseMedium(m[1])
		return known && tier != indexer.Device
	})
}

// TestOwnScenarios proves that a scenario with a block on another medium than the device
// is not played after broken requests, whatever its events call the medium: whether such
// a block counts there depends on the salts that the mutator happened to produce.
func TestOwnScenarios(t *testing.T) {
	tests := map[string]bool{"GPU": true, "gpu": true, "tape": true, "CPU": false, "Cpu": false, "cpu_pinned": false, "disk": false, "STORAGE": false, "External": false}
	for medium, want := range tests {
		event := fmt.Sprintf(`{"endpoint": "a", "dp_rank": 0, "events": [["BlockStored", [1], null, [1, 2, 3, 4], 4, null, %q, null]]}`, medium)
		sc := &conformance.Scenario{Steps: []conformance.Step{{Publish: json.RawMessage(event)}}}
		if _, own := inDefaultScope(sc); own != want {
			t.Errorf("medium %s: played %t, want %t", medium, own, want)
		}
	}
}

// ports is what a scenario needs that is played on a running service.
type ports struct{}

func (ports) FreePort(tb testing.TB) int { return e2e.FreePort(tb) }

func (ports) Start(tb testing.TB, _ map[string]string, _ []string) conformance.Server {
	tb.Fatal("the service runs already")
	return nil
}
