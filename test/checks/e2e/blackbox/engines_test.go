package blackbox_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// TestEnginesByURL proves that the lists of engines on the command line and in the workers file
// register engines that describe themselves, also one that comes up later, at sockets that the
// operator allows only.
func TestEnginesByURL(t *testing.T) {
	t.Parallel()
	var up atomic.Bool
	vllm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			if !up.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
		case "/metrics":
			_, _ = io.WriteString(w, "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"9\"} 1.0\n")
		default:
			http.NotFound(w, r)
		}
	}))
	defer vllm.Close()
	sglang := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"n"}]}`)
		case "/server_info":
			_, _ = io.WriteString(w, `{"page_size":64,"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":9,"block_size":64,"dp_size":1}}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer sglang.Close()
	file := filepath.Join(t.TempDir(), "workers.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "engines: [%s]\n", sglang.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, map[string]string{"SELECT_SERVICE_ENGINES": "vllm=" + vllm.URL}, "--workers-file", file, "--allow-endpoints", "tcp://127.0.0.1:5557")
	want := func(model, text string) {
		t.Helper()
		e2e.Eventually(t, model+" is "+text, func() error {
			var all []object
			if err := s.Do(t.Context(), "GET", "/workers?model_name="+model, nil, &all); err != nil {
				return err
			}
			if got := fmt.Sprint(all); len(all) != 1 || !strings.Contains(got, text) || !strings.Contains(got, "source:map[kind:file]") {
				return fmt.Errorf("%s", got)
			}
			return nil
		})
	}
	want("n", "not among the allowed endpoints (--allow-endpoints)")
	want("default", "/v1/models: status 503")
	up.Store(true)
	want("m", "lifecycle:schedulable")
	s.Must(t, http.StatusOK, "POST", "/select", object{"model_name": "m", "token_ids": []int{1, 2, 3}}, nil)
}
