package kube_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/select-service/select-service/demo/sim/kvwire"
	"github.com/select-service/select-service/internal/simulation/engine"
	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/kubetest"
	"github.com/select-service/select-service/test/helpers/kvpub"
)

// TestLife: blocks and bookings of a worker stay while its pod is not ready or without its labels,
// another address clears the blocks, another pod of the same name has neither (scenarios 4, 8, 9). What
// a stream says is its rank's, whatever rank its batches state (15).
func TestLife(t *testing.T) {
	api := kubetest.Any(t)
	port := engineAt(t, "m")
	publisher, err := kvpub.Open(kvpub.Options{Bind: "0.0.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = publisher.Close() })
	events := publisher.Events()
	put := func(ip string, change ...func(kubetest.Object)) {
		api.Put("pods", kubetest.Pod("llm", "vllm-0", ip,
			append([]func(kubetest.Object){kubetest.Annotations("select-service/kv-events-port", events[strings.LastIndexByte(events, ':')+1:])}, change...)...))
	}
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", port))
	put("127.0.0.1")
	s := e2e.Serve(t, map[string]string{"SELECT_SERVICE_KUBE_ALLOW_LOOPBACK": "true", "POD_NAMESPACE": "llm"},
		"--kubeconfig", api.Kubeconfig(t), "--kube-inference-pool", "llm")
	is := func(lifecycle, ip string) {
		t.Helper()
		e2e.Eventually(t, "the worker is "+lifecycle+" at "+ip, func() error {
			var all []worker
			if err := s.Do(t.Context(), http.MethodGet, "/workers", nil, &all); err != nil {
				return err
			}
			if len(all) != 1 || all[0].Lifecycle != lifecycle || all[0].Endpoint != fmt.Sprintf("http://%s:%d", ip, port) {
				return fmt.Errorf("%+v", all)
			}
			return nil
		})
	}
	has := func(blocks int, booked bool) {
		t.Helper()
		e2e.Eventually(t, fmt.Sprintf("it has %d blocks, booked: %t", blocks, booked), func() error {
			known, err := s.Sum(t.Context(), "select_service_index_blocks")
			if err != nil {
				return err
			}
			loads, err := s.Loads(t.Context())
			if err != nil {
				return err
			}
			carries := len(loads) == 1 && len(loads[0].Loads) == 1 && loads[0].Loads[0].Carries()
			if int(known) != blocks || carries != booked {
				return fmt.Errorf("%v blocks, loads %+v", known, loads)
			}
			return nil
		})
	}
	cache := func() {
		t.Helper()
		e2e.Eventually(t, "the service follows the engine", func() error {
			if publisher.Subscribers() != 1 {
				return errors.New("it does not")
			}
			return nil
		})
		// A rank that no worker of the test has.
		batch, err := kvwire.Batch(1, []engine.Event{{Kind: engine.BlockStored, Hashes: []uint64{1, 2}, Tokens: make([]uint32, 64)}}, 32, 9)
		if err != nil {
			t.Fatal(err)
		}
		publisher.Publish(batch)
	}
	is("schedulable", "127.0.0.1")
	cache()
	s.Must(t, http.StatusOK, http.MethodPost, "/select_and_reserve", e2e.Object{"model_name": "m", "token_ids": make([]int, 64), "reservation_id": "r"}, nil)
	has(2, true)

	put("127.0.0.1", kubetest.Ready(false))
	is("draining", "127.0.0.1")
	if a, err := s.Call(t.Context(), http.MethodPost, "/select", e2e.Object{"model_name": "m", "token_ids": []int{1}}); err != nil || a.Status != http.StatusServiceUnavailable {
		t.Errorf("a request while no pod is ready: %v, %v", a, err)
	}
	has(2, true)
	put("127.0.0.1")
	is("schedulable", "127.0.0.1")
	put("127.0.0.1", kubetest.Labels("app", "debug"))
	is("draining", "127.0.0.1")
	has(2, true)
	put("127.0.0.1")
	is("schedulable", "127.0.0.1")
	has(2, true)

	put("127.0.0.2")
	is("schedulable", "127.0.0.2")
	has(0, true)
	cache()
	has(2, true)
	put("127.0.0.2", kubetest.UID("another"))
	has(0, false)
	is("schedulable", "127.0.0.2")
}
