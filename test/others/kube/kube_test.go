// Package kube_test starts the program with workers that are pods of a stand-in of an API server.
package kube_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/kubetest"
)

func TestMain(m *testing.M) { e2e.Main(m) }

// engineAt answers what discovery asks of a vLLM, at a port of all addresses.
func engineAt(t *testing.T, model string) int {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"parent":null},{"id":"lora","parent":%q}]}`, model, model)
		case "/metrics":
			fmt.Fprintf(w, "vllm:cache_config_info{block_size=\"32\",engine=\"0\",num_gpu_blocks=\"1000\"} 1.0\n")
		default:
			http.NotFound(w, r)
		}
	}))
	_ = server.Listener.Close()
	var err error
	if server.Listener, err = net.Listen("tcp", ":0"); err != nil {
		t.Fatal(err)
	}
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().(*net.TCPAddr).Port
}

type worker struct {
	ID        uint64            `json:"worker_id"`
	Endpoint  string            `json:"endpoint"`
	Model     string            `json:"model_name"`
	Lifecycle string            `json:"lifecycle"`
	Reasons   []string          `json:"reasons"`
	BlockSize int               `json:"block_size"`
	Adapters  []string          `json:"adapters"`
	Source    map[string]string `json:"source"`
}

// TestPods: without a line about engines, the pods of a pool are served as they say themselves;
// health, readiness and GET /kubernetes tell; nobody else may change them (scenarios 1, 6, 11, 17,
// 19, 32, 37).
func TestPods(t *testing.T) {
	api := kubetest.New(t)
	refuse := true
	api.Answer(func(w http.ResponseWriter, _ *http.Request) bool {
		if refuse {
			kubetest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable", "starting")
		}
		return refuse
	})
	health := e2e.FreePort(t)
	s := e2e.Serve(t, map[string]string{"SELECT_SERVICE_KUBE_ALLOW_LOOPBACK": "true", "POD_NAMESPACE": "llm"},
		"--kubeconfig", api.Kubeconfig(t), "--kube-inference-pool", "llm", "--gateway-port", strconv.Itoa(e2e.FreePort(t)),
		"--gateway-self-signed", "--gateway-health-port", strconv.Itoa(health))
	conn, err := grpc.NewClient(fmt.Sprint("127.0.0.1:", health), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	is := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, name := range []string{"", "readiness", "liveness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension"} {
			expect := want
			if name == "liveness" {
				expect = healthpb.HealthCheckResponse_SERVING
			}
			e2e.Eventually(t, "health of "+name, func() error {
				got, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
				if err == nil && got.GetStatus() != expect {
					err = fmt.Errorf("%s", got.GetStatus())
				}
				return err
			})
		}
	}
	is(healthpb.HealthCheckResponse_NOT_SERVING)
	api.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", engineAt(t, "m")))
	api.Put("pods", kubetest.Pod("llm", "vllm-0", "127.0.0.1"))
	api.Answer(nil)
	var all []worker
	e2e.Eventually(t, "a schedulable worker", func() error {
		if err := s.Do(t.Context(), "GET", "/workers", nil, &all); err != nil {
			return err
		}
		if len(all) != 1 || all[0].Lifecycle != "schedulable" {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
	if w := all[0]; w.ID != 1943803597606491 || w.Model != "m" || w.BlockSize != 32 || len(w.Adapters) != 1 ||
		w.Source["kind"] != "kubernetes" || w.Source["pod"] != "vllm-0" || w.Source["uid"] != "vllm-0-uid" {
		t.Errorf("worker %+v", w)
	}
	is(healthpb.HealthCheckResponse_SERVING)
	var ready struct {
		Kubernetes struct {
			Synced  bool
			Sources []struct{ Name, State string }
		}
	}
	s.Must(t, http.StatusOK, "GET", "/ready", nil, &ready)
	if !ready.Kubernetes.Synced || len(ready.Kubernetes.Sources) != 1 || ready.Kubernetes.Sources[0].State != "synced" {
		t.Errorf("ready: %+v", ready)
	}
	for _, change := range []struct {
		method, path string
		body         any
		status       int
	}{
		{"POST", "/workers", map[string]any{"worker_id": all[0].ID}, http.StatusConflict},
		{"DELETE", fmt.Sprint("/workers/", all[0].ID), nil, http.StatusConflict},
		{"PUT", "/workers", map[string]any{"workers": []any{}}, http.StatusOK},
	} {
		answer, err := s.Call(t.Context(), change.method, change.path, change.body)
		if err != nil || answer.Status != change.status {
			t.Errorf("%s %s: %v, %v", change.method, change.path, answer, err)
		}
	}
	var status struct {
		Enabled bool
		Sources []struct {
			State       string
			Schedulable int
		}
	}
	s.Must(t, http.StatusOK, "GET", "/kubernetes", nil, &status)
	if !status.Enabled || len(status.Sources) != 1 || status.Sources[0].Schedulable != 1 {
		text, _ := json.Marshal(status)
		t.Errorf("kubernetes: %s", text)
	}
	if n := s.Metric(t, `select_service_worker_info{namespace="llm",pod="vllm-0",pool="llm",worker_id="1943803597606491"}`); n != 1 {
		t.Errorf("worker_info %d", n)
	}
	api.Delete("inferencepools", "llm", "llm")
	is(healthpb.HealthCheckResponse_NOT_SERVING)
	e2e.Eventually(t, "it drains", func() error {
		if err := s.Do(context.Background(), "GET", "/workers", nil, &all); err != nil {
			return err
		}
		if len(all) != 1 || all[0].Lifecycle != "draining" {
			return errors.New(fmt.Sprint(all))
		}
		return nil
	})
}
