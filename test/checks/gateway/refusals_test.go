package gateway

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// tokenizerFails: without tokens a request fails, or is placed by load alone, as the
// service is told.
func tokenizerFails(t *testing.T) {
	down := func(t *testing.T) *renderer {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		return &renderer{url: "http://" + ln.Addr().String()}
	}
	slow := func(t *testing.T) *renderer {
		return newRenderer(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	}
	missing := func(t *testing.T) *renderer {
		return newRenderer(t, says(http.StatusNotFound, `{"detail":"Not Found"}`))
	}
	for name, tc := range map[string]struct {
		tokenizer func(*testing.T) *renderer
		status    int
	}{"down": {down, 503}, "slow": {slow, 504}, "missing": {missing, 502}} {
		for _, policy := range []string{"fail", "load-only"} {
			t.Run(name+" "+policy, func(t *testing.T) {
				b := lay(t, setup{tokenizer: tc.tokenizer(t), service: []string{"--tokenizer-on-failure", policy, "--tokenizer-timeout", "1s"}})
				if policy == "fail" {
					refusal(t, b.post(tc.status, chats, chat("Hello")))
				} else {
					b.post(http.StatusOK, chats, chat("Hello"))
				}
				b.awaitMetric("select_service_gateway_tokenizer_failures_total", 1)
				b.idle()
			})
		}
	}
}

// tokenizerRefuses: what the tokenizer refuses is the client's fault, under either policy.
func tokenizerRefuses(t *testing.T) {
	r := newRenderer(t, says(http.StatusUnprocessableEntity, `{"error":{"message":"internal text"}}`))
	b := lay(t, setup{tokenizer: r, service: []string{"--tokenizer-on-failure", "load-only"}})
	if _, message := refusal(t, b.post(http.StatusBadRequest, chats, chat("Hello"))); strings.Contains(message, "internal") {
		t.Errorf("the answer has the tokenizer's text: %s", message)
	}
	b.idle()
}

// limits: what is no request, or too much, is refused with the status for it.
func limits(t *testing.T) {
	t.Run("bodies", func(t *testing.T) {
		b := lay(t, setup{})
		refusal(t, b.post(http.StatusBadRequest, chats, []byte(`{"model":"m",`)))
		refusal(t, b.post(http.StatusRequestEntityTooLarge, chats, chat(strings.Repeat("x", 17<<20))))
		b.idle()
	})
	t.Run("streams", func(t *testing.T) {
		b := lay(t, setup{engines: 1, service: []string{"--gateway-max-streams", "2"}})
		e := b.engines[0]
		e.speed(t, still)
		first, second := b.begin(chats, chat("one", streamed)), b.begin(chats, chat("two", streamed))
		full := b.post(http.StatusServiceUnavailable, chats, chat("three"))
		refusal(t, full)
		if full.header.Get("Retry-After") == "" {
			t.Errorf("no Retry-After: %v", full.header)
		}
		e.speed(t, hasty)
		first.end(t)
		second.end(t)
		b.idle()
		b.post(http.StatusOK, chats, chat("four"))
	})
	t.Run("queue", func(t *testing.T) {
		b := lay(t, setup{engines: 1, service: []string{"--router-policy-config", queueOfOne(t)}})
		e := b.engines[0]
		e.speed(t, still)
		busy := b.begin(chats, chat(words(40, 100), streamed))
		b.awaitLoad(1, 0, "is busy", func(l e2e.Load) bool { return l.Requests == 1 })
		waiting := make(chan error, 1)
		go func() {
			_, err := b.send(t.Context(), http.MethodPost, chats, chat("one"))
			waiting <- err
		}()
		b.awaitWaiting(1)
		full := b.post(http.StatusTooManyRequests, chats, chat("two"))
		refusal(t, full)
		if full.header.Get("Retry-After") == "" {
			t.Errorf("no Retry-After: %v", full.header)
		}
		e.speed(t, hasty)
		busy.end(t)
		if err := <-waiting; err != nil {
			t.Error(err)
		}
		b.idle()
	})
}

// queueOfOne is a policy file: a worker is busy with one prompt, and one request may
// wait for it.
func queueOfOne(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	err := os.WriteFile(file, []byte(`default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: only, policy_family: f, cache_bucket: all, quantum: 1, prefill_busy_threshold: 0, request_queue_limit_per_worker: 1}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return file
}
