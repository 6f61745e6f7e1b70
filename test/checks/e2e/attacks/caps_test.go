package attacks

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// limitRefused is the count of requests that a limit has refused.
func limitRefused(t *testing.T, s *e2e.Service, limit string) int {
	t.Helper()
	return s.Metric(t, `select_service_limit_refused_total{limit="`+limit+`"}`)
}

// TestLargeValues: texts of 2 MB and prompts of 2^64-1 tokens are refused with the
// limit's name, on every route that takes one.
func TestLargeValues(t *testing.T) {
	s := e2e.Serve(t, nil, "--use-kv-events=false")
	s.Must(t, http.StatusCreated, "POST", "/workers", e2e.Object{"worker_id": 1, "endpoint": "http://w", "block_size": 16}, nil)
	long := strings.Repeat("x", 2_000_000)
	tokens := []int{1}
	for i, c := range []struct {
		path string
		body e2e.Object
	}{
		{"/select", e2e.Object{"block_hashes": []int{1}, "sequence_hashes": []int{1}, "isl_tokens": uint64(1<<64 - 1)}},
		{"/v1.6/select_and_reserve", e2e.Object{"block_hashes": []int{1}, "sequence_hashes": []int{1}, "isl_tokens": uint64(1<<48 + 1)}},
		{"/reservations", e2e.Object{"reservation_id": "r", "worker_id": 1, "isl_tokens": uint64(1<<64 - 1)}},
		{"/potential_loads", e2e.Object{"block_hashes": []int{1}, "sequence_hashes": []int{1}, "isl_tokens": uint64(1<<64 - 1)}},
		{"/select_and_reserve", e2e.Object{"token_ids": tokens, "reservation_id": long}},
		{"/v1.6/select_and_reserve", e2e.Object{"token_ids": tokens, "selection_id": long}},
		{"/v1.6/select", e2e.Object{"token_ids": tokens, "session_id": long}},
		{"/reservations", e2e.Object{"token_ids": tokens, "worker_id": 1, "reservation_id": long}},
		{"/slots/free", e2e.Object{"model_name": "m", "request_id": long}},
		{"/workers", e2e.Object{"worker_id": 2, "endpoint": "http://" + long}},
		{"/workers", e2e.Object{"worker_id": 2, "endpoint": "http://" + long[:5000]}},
		{"/workers", e2e.Object{"worker_id": 2, "taints": []string{long[:2000]}}},
		{"/workers", e2e.Object{"worker_id": 2, "kv_events_endpoints": e2e.Object{"0": "tcp://" + long[:5000]}}},
	} {
		a, err := s.Call(t.Context(), "POST", c.path, c.body)
		if err != nil || a.Status/100 != 4 || !strings.Contains(string(a.Body), "the maximum is") {
			t.Errorf("%d: %s: %v %v", i, c.path, a, err)
		}
	}
	if n := limitRefused(t, s, "isl_tokens"); n != 4 {
		t.Errorf("%d refusals because of isl_tokens", n)
	}
	if n := limitRefused(t, s, "text_bytes"); n != 9 {
		t.Errorf("%d refusals because of text_bytes", n)
	}
}

// TestManyRanks: workers with as many ranks as a registration may have, by each
// contract, complete or not: no registration keeps more than a
// hundred times its bytes and 64 KiB, and beyond --max-ranks they are refused.
func TestManyRanks(t *testing.T) {
	const each, most = 4096, 64
	for name, c := range map[string]struct {
		args []string
		path string
		body func(id int) e2e.Object
	}{
		"complete": {[]string{"--use-kv-events=false"}, "/workers", func(id int) e2e.Object {
			return e2e.Object{"worker_id": id, "endpoint": "http://w", "block_size": 16, "data_parallel_size": each}
		}},
		"complete, predicted caches": {[]string{"--use-kv-events=false", "--contract", "1.6"}, "/workers", func(id int) e2e.Object {
			return e2e.Object{"worker_id": id, "endpoint": "http://w", "block_size": 16, "data_parallel_size": each}
		}},
		"incomplete": {nil, "/workers", func(id int) e2e.Object {
			return e2e.Object{"worker_id": id, "endpoint": "http://w", "block_size": 16, "data_parallel_size": each}
		}},
		"slot tracker": {nil, "/slots/register", func(id int) e2e.Object {
			return e2e.Object{"worker_id": id, "model_name": "m", "block_size": 16, "dp_start": 0, "dp_size": each}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			port := e2e.FreePort(t)
			s := e2e.Serve(t, nil, append(c.args, "--max-ranks", strconv.Itoa(each*most), "--debug-listen", "127.0.0.1:"+strconv.Itoa(port))...)
			debug := s.At(port)
			before := debug.InUse(t)
			accepted := 0
			for id := range most + 20 {
				a, err := s.Call(t.Context(), "POST", c.path, c.body(id))
				switch {
				case err == nil && a.Status == http.StatusCreated:
					accepted++
				case err != nil || a.Status != http.StatusConflict || !strings.Contains(string(a.Body), "--max-ranks"):
					t.Fatalf("worker %d: %v %v", id, a, err)
				}
			}
			if accepted != most {
				t.Errorf("%d workers were accepted, want %d", accepted, most)
			}
			grown := (debug.InUse(t) - before) >> 10
			t.Logf("%d KiB for each of %d workers", grown/most, most)
			if grown > most*(64+15)+2<<10 { // and what requests leave
				t.Errorf("%d workers took %d KiB", most, grown)
			}
		})
	}
}

// TestManyRegistrations: workers and models beyond their number are refused, and
// thousands of changes leave nothing behind.
func TestManyRegistrations(t *testing.T) {
	s := e2e.Serve(t, nil, "--use-kv-events=false", "--max-workers", "20", "--max-models", "5")
	put := func(id int, model string) int {
		a, err := s.Call(t.Context(), "POST", "/workers", e2e.Object{"worker_id": id, "model_name": model, "endpoint": "http://w", "block_size": 16})
		if err != nil {
			t.Fatal(err)
		}
		return a.Status
	}
	for id := range 20 {
		if got := put(id, fmt.Sprint("m", id%5)); got != http.StatusCreated {
			t.Fatalf("worker %d: %d", id, got)
		}
	}
	if put(20, "m0") != http.StatusConflict || put(3, "another") != http.StatusConflict {
		t.Error("a worker, or a model, beyond the limit is taken")
	}
	for i := range 2000 {
		if got := put(3, fmt.Sprint("m", i%5)); got != http.StatusCreated {
			t.Fatalf("move %d: %d", i, got)
		}
	}
	if workers, models := limitRefused(t, s, "workers"), limitRefused(t, s, "models"); workers != 1 || models != 1 {
		t.Errorf("%d and %d refusals are counted", workers, models)
	}
}

// TestManyStreams: event streams that lead nowhere are bounded in number, those of
// workers that leave make room, and none keeps more than its registration may: a
// hundred times its bytes and 64 KiB for each worker, beside the row of each rank that operators
// are shown and its hour of history. When the workers have gone, that is back, but for what the runtime never gives back and tables that do not shrink.
func TestManyStreams(t *testing.T) {
	// base is of code and of what requests leave, and left what a stream leaves: half of it
	// is a goroutine's descriptor, of which there are as many as timers have ever rung at the
	// same time. KiB.
	// history is of all ranks together (fleet.MaxHistory), a row takes up to 1 KiB.
	const each, workers, base, left, history, row = 4096, 4, 10 << 10, 1, 16 << 10, 1
	for name, c := range map[string]struct {
		events, replay string // with a number for %d
	}{
		"closed ports":  {"tcp://127.0.0.1:%d", ""},
		"with replays":  {"tcp://127.0.0.1:%d", "tcp://127.0.0.2:%d"},
		"far away":      {"tcp://10.255.255.1:%d", ""},
		"no such names": {"tcp://nowhere.invalid:%d", ""},
	} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			port := e2e.FreePort(t)
			s := e2e.Serve(t, nil, "--max-streams", strconv.Itoa(each*workers), "--debug-listen", "127.0.0.1:"+strconv.Itoa(port))
			debug := s.At(port)
			body := func(id int) e2e.Object {
				o := e2e.Object{"worker_id": id, "endpoint": "http://w", "block_size": 16, "data_parallel_size": each}
				for member, endpoint := range map[string]string{"kv_events_endpoints": c.events, "replay_endpoints": c.replay} {
					if endpoint == "" {
						continue
					}
					of := e2e.Object{}
					for dp := range each {
						of[strconv.Itoa(dp)] = fmt.Sprintf(endpoint, 1+dp)
					}
					o[member] = of
				}
				return o
			}
			register := func(id int) e2e.Answer {
				a, err := s.Call(t.Context(), "POST", "/workers", body(id))
				if err != nil {
					t.Fatal(err)
				}
				return a
			}
			before := debug.InUse(t)
			grown := func(when string, most int) { // KiB
				var kib int
				e2e.Eventually(t, fmt.Sprintf("%s, at most %d KiB", when, most), func() error {
					if kib = (debug.InUse(t) - before) >> 10; kib > most {
						return fmt.Errorf("%d KiB", kib)
					}
					return nil
				})
				t.Logf("%s: %d KiB, may be %d", when, kib, most)
			}
			for id := range workers {
				if a := register(id); a.Status != http.StatusCreated {
					t.Fatalf("worker %d: %v", id, a)
				}
			}
			if a := register(9); a.Status != http.StatusConflict || !strings.Contains(string(a.Body), "--max-streams") {
				t.Errorf("beyond the limit: %v", a)
			}
			if n := limitRefused(t, s, "streams"); n != 1 {
				t.Errorf("%d refusals are counted", n)
			}
			posted, err := json.Marshal(body(0))
			if err != nil {
				t.Fatal(err)
			}
			grown("registered", base+history+workers*(100*len(posted)>>10+64+each*row))
			s.Must(t, http.StatusOK, "DELETE", "/workers/0", nil, nil)
			if a := register(9); a.Status != http.StatusCreated {
				t.Errorf("after a worker left: %v", a)
			}
			for _, id := range []int{1, 2, 3, 9} {
				s.Must(t, http.StatusOK, "DELETE", "/workers/"+strconv.Itoa(id), nil, nil)
			}
			grown("removed", base+workers*each*left)
		})
	}
}

// TestManyReservations: live bookings beyond their number or their memory are 503
// with Retry-After, ends still work, and then there is room again.
func TestManyReservations(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		hashes int
		limit  string
		named  string
	}{
		"number": {[]string{"--max-reservations", "500"}, 1, "reservations", "--max-reservations"},
		"memory": {[]string{"--max-memory", "64MiB"}, 5000, "memory", "--max-memory"},
	} {
		t.Run(name, func(t *testing.T) {
			s := e2e.Serve(t, nil, append(c.args, "--use-kv-events=false")...)
			s.Must(t, http.StatusCreated, "POST", "/workers", e2e.Object{"worker_id": 1, "model_name": "m", "endpoint": "http://w", "block_size": 16}, nil)
			book := func(id int) e2e.Answer {
				hashes := make([]uint64, c.hashes)
				for i := range hashes {
					hashes[i] = rand.Uint64()
				}
				a, err := s.Call(t.Context(), "POST", "/slots/add", e2e.Object{
					"model_name": "m", "request_id": strconv.Itoa(id), "worker_id": 1, "dp_rank": 0, "sequence_hashes": hashes,
				})
				if err != nil {
					t.Fatal(err)
				}
				return a
			}
			id := 0
			for ; book(id).Status == http.StatusCreated; id++ {
				if id > 2000 {
					t.Fatal("there is no limit")
				}
			}
			a, err := s.Call(t.Context(), "POST", "/select_and_reserve", e2e.Object{"model_name": "m", "token_ids": make([]int, 16*c.hashes)})
			if err != nil || a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), c.named) {
				t.Errorf("a selection beyond the limit: %v %v", a, err)
			}
			if n := limitRefused(t, s, c.limit); n < 2 {
				t.Errorf("%d refusals are counted", n)
			}
			s.Must(t, http.StatusOK, "POST", "/select", e2e.Object{"model_name": "m", "token_ids": []int{1}}, nil)
			s.Must(t, http.StatusOK, "POST", "/slots/free", e2e.Object{"model_name": "m", "request_id": "0"}, nil)
			s.Must(t, http.StatusOK, "POST", "/slots/free", e2e.Object{"model_name": "m", "request_id": "1"}, nil)
			if a := book(id); a.Status != http.StatusCreated {
				t.Errorf("after a free: %v", a)
			}
		})
	}
}

// TestFullIndex: an engine that announces blocks without end fills its part of the
// index and no more; the other engine's events count, memory stays in its budget, and
// a clear makes room.
func TestFullIndex(t *testing.T) {
	e := serveEngines(t, "--max-memory", "64MiB")
	hostile := zmqtest.NewPublisher(t, "")
	defer hostile.Close()
	e.register(t, 2, hostile.Endpoint, "")
	hostile.Subscribers(1)
	e.hears(t)
	const blocks = 2000
	refused := func() int { return e.Metric(t, `select_service_memory_refused_total{account="index"}`) }
	sent := uint64(0)
	for ; refused() == 0; sent++ {
		if sent > 3000 {
			t.Fatal("the index has no limit")
		}
		token := uint32(sent)
		hostile.Publish(sent, stored(t, blocks, 1<<40+sent*blocks, token, token, token, token))
		if sent%50 == 49 {
			e.hears(t)
		}
	}
	for range 5 {
		e.hears(t)
	}
	t.Logf("refused after %d blocks", sent*blocks)
	if rss, err := e.Status("VmHWM"); err != nil || rss > 200<<10 {
		t.Errorf("%d KiB with --max-memory 64MiB, %v", rss, err)
	}
}
