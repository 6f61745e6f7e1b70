package gateway_test

import (
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestPolicyClass: the header with the configured prefix names the class of the wait queue, and
// goes before the one without metadata; a class without room is refused, with Retry-After as
// configured.
func TestPolicyClass(t *testing.T) {
	file, err := admission.ParsePolicy([]byte(`
default_policy_family: hasty
uncached_isl_buckets: [{min_tokens: 0, bucket: b}]
policy_classes:
  - {name: hasty, policy_family: hasty, cache_bucket: b, quantum: 1, prefill_busy_threshold: 0, request_queue_limit_per_worker: 0}
  - {name: patient, policy_family: patient, cache_bucket: b, quantum: 1, prefill_busy_threshold: 0}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, retryAfter := range []int{0, 7} {
		w := start(t, func(c *node.Config, g *settings) {
			c.Scopes.Admission = admission.Config{File: file}
			g.MetadataPrefix, g.RetryAfter = "x-mine-", retryAfter
		})
		w.put(1, 1, func(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(1000)) })
		first, _ := w.post(chatPath, chat(servicetest.Prompt(1, 16), ""))
		for name, fields := range map[string][]string{
			"the default":    nil,
			"another prefix": {"x-dynamo-meta-policy-class", "patient"},
			"before the one": {"x-dynamo-policy-class", "patient", "x-mine-policy-class", "hasty"},
		} {
			e, p := w.post(chatPath, chat(servicetest.Prompt(2, 16), ""), fields...)
			if want := map[int]string{7: "7"}[retryAfter]; p.status != 429 || p.headers["retry-after"] != want {
				t.Errorf("%s is answered %+v, want Retry-After %q", name, p, want)
			}
			e.close()
		}
		var waiting []*envoy
		for i, fields := range [][]string{
			{"x-mine-policy-class", "patient"},
			{"x-dynamo-policy-class", "patient"},
			{"x-dynamo-policy-class", "patient", "x-mine-policy-class", " "}, // an empty one is none
		} {
			e := w.open()
			e.request(chatPath, false, fields...)
			e.body(chat(servicetest.Prompt(3, 16), ""), true)
			await(t, func() string {
				if w.Loads(nil, nil)[0].PendingCount != i+1 {
					return fields[0] + " does not make the request wait"
				}
				return ""
			})
			waiting = append(waiting, e)
		}
		first.close()
		for _, e := range waiting {
			if p := e.placement(true, false); p.destination != at(1) {
				t.Errorf("answered %+v", p)
			}
			e.close()
		}
		w.wantLoads("1/0: 0 0 0")
	}
}
