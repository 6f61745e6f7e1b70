package kube_test

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/kubetest"
)

// TestReplicas: two replicas that start together find each other by their Service, are ready
// without waiting for each other's index, and share bookings (scenario 30).
func TestReplicas(t *testing.T) {
	api := kubetest.New(t)
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", engineAt(t, "m")))
	api.Put("pods", kubetest.Pod("llm", "vllm-0", "127.0.0.1"))
	port, sync := e2e.FreePort(t), e2e.FreePort(t)
	starting := kubetest.Object{"ready": false, "serving": false}
	api.Put("endpointslices", kubetest.Slice("llm", "peers-1", "peers", "IPv4", map[string]int{"http": port, "replica-agg": sync},
		kubetest.Endpoint("llm", "a", "127.0.0.1", starting), kubetest.Endpoint("llm", "b", "127.0.0.2", starting)))
	var all []*e2e.Service
	for _, ip := range []string{"127.0.0.1", "127.0.0.2"} {
		s := e2e.New(t, e2e.Options{
			Command: []string{
				e2e.Binary(t), "--listen", ip, "--port", strconv.Itoa(port), "--kubeconfig", api.Kubeconfig(t), "--kube-inference-pool", "llm",
				"--kube-peer-service", "peers", "--replica-sync-bind", fmt.Sprintf("tcp://%s:%d", ip, sync),
			},
			Env:     map[string]string{"POD_NAMESPACE": "llm", "POD_IP": ip, "SELECT_SERVICE_KUBE_ALLOW_LOOPBACK": "true"},
			Address: fmt.Sprintf("%s:%d", ip, port),
		})
		s.Run()
		all = append(all, s)
	}
	for i, s := range all {
		e2e.Eventually(t, fmt.Sprintf("replica %d is ready and follows the other", i), func() error {
			var status struct {
				Peers struct{ Replicas []struct{ Endpoint string } }
			}
			if err := s.Do(t.Context(), "GET", "/kubernetes", nil, &status); err != nil {
				return err
			}
			if len(status.Peers.Replicas) != 1 {
				return fmt.Errorf("%+v", status)
			}
			return s.Do(t.Context(), "GET", "/ready", nil, nil)
		})
	}
	e2e.Eventually(t, "a booking at one is seen at the other", func() error {
		answer, err := all[0].Call(t.Context(), http.MethodPost, "/select_and_reserve", e2e.Object{
			"model_name": "m", "token_ids": []int{1, 2, 3, 4}, "reservation_id": fmt.Sprint(t.Name(), "-r"),
		})
		if err != nil || answer.Status != http.StatusOK && answer.Status != http.StatusConflict {
			return fmt.Errorf("%v, %w", answer, err)
		}
		loads, err := all[1].Loads(t.Context())
		if err != nil {
			return err
		}
		for _, sc := range loads {
			for _, l := range sc.Loads {
				if l.Carries() {
					return nil
				}
			}
		}
		return errors.New("no load yet")
	})
}
