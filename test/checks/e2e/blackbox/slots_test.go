package blackbox_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/test/checks/e2e"
)

// slotsLoad is a row of the slot tracker's /loads.
type slotsLoad struct {
	WorkerID uint64 `json:"worker_id"`
	Rank     uint32 `json:"dp_rank"`
	Prefill  uint64 `json:"active_prefill_tokens"`
	Decode   uint64 `json:"active_decode_blocks"`
}

// slotTracker is a process of the subcommand, with the PUB endpoint that it
// tells others.
type slotTracker struct {
	*service
	endpoint string
}

func startSlots(t *testing.T, peers ...string) slotTracker {
	t.Helper()
	port, pub := e2e.FreePort(t), e2e.FreePort(t)
	endpoint := fmt.Sprintf("tcp://127.0.0.1:%d", pub)
	args := []string{
		"slots", "--port", strconv.Itoa(port), "--replica-sync-bind", fmt.Sprintf("tcp://*:%d", pub), "--replica-sync-advertise", endpoint,
	}
	if len(peers) > 0 {
		args = append(args, "--replica-sync-peers", strings.Join(peers, ","))
	}
	s := slotTracker{launch(t, port, nil, args...), endpoint}
	s.Must(t, http.StatusCreated, "POST", "/register", object{"worker_id": 7, "model_name": "m", "block_size": 16, "dp_start": 0, "dp_size": 1}, nil)
	return s
}

// carries waits until the only rank has this load.
func (s slotTracker) carries(t *testing.T, what string, prefill, decode uint64) {
	t.Helper()
	want := []slotsLoad{{WorkerID: 7, Prefill: prefill, Decode: decode}}
	e2e.Eventually(t, what, func() error {
		var got []slotsLoad
		s.Must(t, http.StatusOK, "GET", "/loads", nil, &got)
		if diff := cmp.Diff(want, got); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

func (s slotTracker) add(t *testing.T, id string, tokens int, hashes ...int64) {
	t.Helper()
	s.Must(t, http.StatusCreated, "POST", "/add", object{
		"model_name": "m", "request_id": id, "worker_id": 7, "dp_rank": 0, "sequence_hashes": hashes, "new_isl_tokens": tokens,
	}, nil)
}

// TestSlotTrackers proves that slot trackers alone share their bookings in both
// directions, that one which starts late knows what was booked before, and that
// each can end what another has booked.
func TestSlotTrackers(t *testing.T) {
	t.Parallel()
	a := startSlots(t)
	b := startSlots(t, a.endpoint)
	a.Must(t, http.StatusBadRequest, "POST", "/register_peer", object{"url": a.endpoint}, nil)
	a.Must(t, http.StatusCreated, "POST", "/register_peer", object{"url": b.endpoint}, nil)

	a.add(t, "one", 48, 101, -22, 303)
	b.carries(t, "what the first accepted", 48, 3)
	b.add(t, "two", 0, 101, 404)
	a.carries(t, "what the second accepted", 48, 4)

	c := startSlots(t, a.endpoint, b.endpoint)
	c.carries(t, "what was booked before its start", 48, 4)
	for _, s := range []slotTracker{a, b} {
		s.Must(t, http.StatusCreated, "POST", "/register_peer", object{"url": c.endpoint}, nil)
	}
	c.Must(t, http.StatusOK, "POST", "/prefill_complete", object{"model_name": "m", "request_id": "one"}, nil)
	c.Must(t, http.StatusOK, "POST", "/free", object{"model_name": "m", "request_id": "two"}, nil)
	for _, s := range []slotTracker{a, b, c} {
		s.carries(t, "what is left", 0, 3)
	}
	var health e2e.Answer
	health, err := c.Call(t.Context(), "GET", "/health", nil)
	if err != nil || health.Status != http.StatusOK || len(health.Body) > 0 {
		t.Errorf("GET /health: %v, %v", health, err)
	}
	c.Must(t, http.StatusNotFound, "GET", "/metrics", nil, nil)
}

// TestSlotsBesideSelection proves that the slot tracker's own listener, its
// prefix on the main one and the selection contract show one account (S4).
func TestSlotsBesideSelection(t *testing.T) {
	t.Parallel()
	slotsPort := e2e.FreePort(t)
	main := start(t, eventsOff(), "--slots-port", strconv.Itoa(slotsPort))
	own := &service{main.At(slotsPort)}
	main.register(t, 1)
	own.Must(t, http.StatusCreated, "POST", "/add", object{
		"model_name": "default", "request_id": "r", "worker_id": 1, "dp_rank": 0, "sequence_hashes": []int64{1, 2}, "new_isl_tokens": 8,
	}, nil)
	if got, want := main.loads(t).Loads, []load{{WorkerID: 1, Prefill: 8, Decode: 2, Requests: 1}}; !cmp.Equal(got, want) {
		t.Errorf("/loads of the selection contract: %+v, want %+v", got, want)
	}
	for _, s := range []struct {
		*service
		path string
	}{{own, "/loads"}, {main, "/slots/loads"}} {
		var got []slotsLoad
		s.Must(t, http.StatusOK, "GET", s.path, nil, &got)
		if want := []slotsLoad{{WorkerID: 1, Prefill: 8, Decode: 2}}; !cmp.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", s.path, got, want)
		}
	}
	main.Must(t, http.StatusOK, "POST", "/slots/free", object{"model_name": "default", "request_id": "r"}, nil)
	if got, want := main.loads(t).Loads, []load{{WorkerID: 1}}; !cmp.Equal(got, want) {
		t.Errorf("/loads after the free: %+v, want %+v", got, want)
	}
}

// TestReplicaPortTaken proves that a taken PUB port and a taken slots port end
// the start with an error that names them.
func TestReplicaPortTaken(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--port", "0", "--replica-sync-port", port}, "failed to bind replica publisher to `tcp://*:" + port + "`"},
		{[]string{"--port", "0", "--slots-port", port}, "listen on 0.0.0.0:" + port},
		{[]string{"slots", "--port", port}, "listen on 0.0.0.0:" + port},
		{[]string{"slots", "--port", "0", "--replica-sync-bind", "tcp://127.0.0.1:" + port}, "failed to bind replica publisher to `tcp://127.0.0.1:" + port + "`"},
	} {
		code, out := runToEnd(t, nil, tc.args...)
		if code != 1 || !strings.Contains(out, tc.want) {
			t.Errorf("%v: exit status %d, output %s, want 1 and %s", tc.args, code, out, tc.want)
		}
	}
}
