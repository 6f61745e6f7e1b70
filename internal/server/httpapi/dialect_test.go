package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestGroupNames: every body that names a scope takes both names of what it has
// beside the model, in either order and both dialects. Two that differ, one that
// comes twice and null are refused.
func TestGroupNames(t *testing.T) {
	f := &fake{worker: &catalog.Worker{}}
	bodies := []struct {
		method, path, rest string
		got                func() string
	}{
		{"POST", "/workers", `"worker_id":1`, func() string { return f.record.Scope.Tenant }},
		{"POST", "/select", `"token_ids":[]`, func() string { return f.selected.Scope.Tenant }},
		{"POST", "/select_and_reserve", `"token_ids":[]`, func() string { return f.selected.Scope.Tenant }},
		{"POST", "/reservations", `"reservation_id":"r","worker_id":1`, func() string { return f.booked.Scope.Tenant }},
		{"POST", "/overlap_scores", `"token_ids":[]`, func() string { return f.projected.Scope.Tenant }},
		{"POST", "/potential_loads", `"token_ids":[]`, func() string { return f.projected.Scope.Tenant }},
		{"POST", "/diagnose", `"token_ids":[]`, func() string { return f.diagnosed.Scope.Tenant }},
		{"POST", "/slots/register", `"worker_id":1,"model_name":"m","block_size":1,"dp_start":0,"dp_size":1`, func() string { return f.slotsWorker.Scope.Tenant }},
		{"POST", "/slots/unregister", `"worker_id":1,"model_name":"m"`, func() string { return f.scope.Tenant }},
		{"POST", "/slots/add", `"model_name":"m","request_id":"r","worker_id":1,"dp_rank":0,"sequence_hashes":[]`, func() string { return f.slotsBooking.Scope.Tenant }},
		{"POST", "/slots/prefill_complete", `"model_name":"m","request_id":"r"`, func() string { return f.scope.Tenant }},
		{"POST", "/slots/free", `"model_name":"m","request_id":"r"`, func() string { return f.scope.Tenant }},
		{"POST", "/slots/potential_loads", `"model_name":"m","sequence_hashes":[]`, func() string { return f.slotsProject.Scope.Tenant }},
	}
	for _, s := range speakers(f) {
		own, other := s.d.tenantKey(), s.d.other().tenantKey()
		differ := "`" + own + "` and `" + other + "` differ"
		for _, b := range bodies {
			for _, tc := range []struct {
				members string
				want    string // the tenant, or with a status the error
				status  int
			}{
				{`"x":1`, "default", 0},
				{`"tenant_id":"a"`, "a", 0},
				{`"routing_group":"a"`, "a", 0},
				{`"tenant_id":"","routing_group":""`, "", 0},
				{`"routing_group":"ü","tenant_id":"\u00fc"`, "ü", 0},
				{`"tenant_id":"a","routing_group":"b"`, "routing_group: " + differ, 422},
				{`"routing_group":"b","tenant_id":"a"`, "tenant_id: " + differ, 422},
				{`"tenant_id":"default","routing_group":"b"`, "routing_group: " + differ, 422},
				{`"tenant_id":"a","tenant_id":"a"`, "duplicate field `tenant_id`", 422},
				{`"routing_group":"a","routing_group":"a"`, "duplicate field `routing_group`", 422},
				{`"routing_group":"a","tenant_id":"a","routing_group":"a"`, "duplicate field `routing_group`", 422},
				{`"routing_group":null`, "routing_group: invalid type: null", 422},
				{`"tenant_id":"a","routing_group":null`, "routing_group: invalid type: null", 422},
				{`"tenant_id":7`, "tenant_id: invalid type: number", 422},
			} {
				name := s.name + " " + b.path + " " + tc.members
				w := call(t, s, b.method, s.prefix+b.path, "{"+b.rest+","+tc.members+"}", nil)
				switch {
				case tc.status == 0 && (w.Code >= 300 || b.got() != tc.want):
					t.Errorf("%s: %d %s, tenant %q", name, w.Code, w.Body, b.got())
				case tc.status != 0 && (w.Code != tc.status || !strings.HasPrefix(errorText(t, w), shapePrefix+tc.want)):
					t.Errorf("%s: %d %s, want %d %s", name, w.Code, w.Body, tc.status, tc.want)
				}
			}
		}
	}
}

// TestGroupNamesInQueries: the same for filters, where two names that differ are
// a fault of the query.
func TestGroupNamesInQueries(t *testing.T) {
	f := &fake{}
	for _, s := range speakers(f) {
		for _, path := range []string{"/workers", "/loads", "/slots/workers", "/slots/loads"} {
			for query, want := range map[string]string{
				"routing_group=a": "a", "tenant_id=a": "a", "tenant_id=a&routing_group=a": "a", "routing_group=&tenant_id": "",
				"routing_group=a&tenant_id=b":     "`tenant_id` and `routing_group` differ",
				"tenant_id=&routing_group=a":      "`tenant_id` and `routing_group` differ",
				"routing_group=a&routing_group=a": "duplicate field `routing_group`",
				"tenant_id=a&tenant_id=a":         "duplicate field `tenant_id`",
			} {
				f.tenant = nil
				w := call(t, s, "GET", s.prefix+path+"?"+query, "", nil)
				switch {
				case w.Code == 200 && f.tenant != nil && *f.tenant == want:
				case w.Code == 400 && errorText(t, w) == queryPrefix+want:
				default:
					t.Errorf("%s %s?%s: %d %s", s.name, path, query, w.Code, w.Body)
				}
			}
		}
	}
}

// TestErrorsByDialect: statuses and texts follow the dialect of the request, not
// the contract of the process.
func TestErrorsByDialect(t *testing.T) {
	scope := catalog.Scope{Model: "m", Tenant: "t"}
	for _, tc := range []struct {
		err    error
		status [2]int
		text   [2]string
	}{
		{
			&contract.Error{Kind: contract.Unavailable, Text: "no schedulable workers", Scope: &scope},
			[2]int{503, 503},
			[2]string{"no schedulable workers for model=m tenant=t", "no schedulable workers for model=m routing_group=t"},
		},
		{&contract.Error{Kind: contract.QueueRejected, Text: "full"}, [2]int{503, 429}, [2]string{"full", "full"}},
		{&contract.Error{Kind: contract.TooMany, Text: "many"}, [2]int{429, 429}, [2]string{"many", "many"}},
		{fmt.Errorf("on the way: %w", errors.New("lost")), [2]int{500, 500}, [2]string{"internal error", "internal error"}},
	} {
		for _, s := range speakers(&fake{err: tc.err}) {
			w := call(t, s, "POST", s.prefix+"/select_and_reserve", "{}", nil)
			if w.Code != tc.status[s.d] || errorText(t, w) != tc.text[s.d] {
				t.Errorf("%s: %d %s, want %d %s", s.name, w.Code, w.Body, tc.status[s.d], tc.text[s.d])
			}
		}
	}
}

// TestReasonsByDialect: why a worker is not schedulable is told in the words of
// the dialect, in every answer that has its record.
func TestReasonsByDialect(t *testing.T) {
	const (
		failed = "reconciliation failed: "
		why    = ": invalid ZMQ endpoint `nope`: missing scheme"
	)
	own := map[uint32]string{7: "nope"}
	for _, tc := range []struct {
		replays map[uint32]string // of ranks
		reason  string
		want    string // in the 1.6 dialect
	}{
		{nil, "endpoint is required", "endpoint is required"},
		{
			nil, "block_size 4 differs from 8 for model=m tenant=t",
			"block_size 4 differs from 8 for model=m routing_group=t",
		},
		{
			nil, failed + "invalid replay endpoint for worker 1 dp_rank 0" + why,
			failed + "invalid replay endpoint for worker 1" + why,
		},
		{
			own, failed + "invalid replay endpoint for worker 1 dp_rank 0" + why,
			failed + "invalid replay endpoint for worker 1" + why,
		},
		{
			own, failed + "invalid replay endpoint for worker 1 dp_rank 7" + why,
			failed + "invalid replay endpoint for worker 1 dp_rank 7" + why,
		},
		{
			nil, failed + "invalid kv_events endpoint for worker 1 dp_rank 0" + why,
			failed + "invalid kv_events endpoint for worker 1 dp_rank 0" + why,
		},
		{
			nil, failed + "invalid replay endpoint for worker 1 dp_rank x",
			failed + "invalid replay endpoint for worker 1 dp_rank x",
		},
	} {
		w := catalog.Worker{Lifecycle: catalog.Incomplete, Reasons: []string{tc.reason}}
		w.ID, w.Scope, w.ReplayEndpoints = 1, catalog.Scope{Model: "m", Tenant: "t"}, tc.replays
		for _, s := range speakers(&fake{worker: &w}) {
			want := tc.reason
			if s.d == dialect16 {
				want = tc.want
			}
			answer := call(t, s, "PATCH", s.prefix+"/workers/1", "{}", nil)
			if !strings.Contains(answer.Body.String(), `"not_schedulable_reasons":["`+want+`"]`) {
				t.Errorf("%s: %s, want %s", s.name, answer.Body, want)
			}
		}
	}
}

// TestDumpForm: a dump is in the form of the dialect that asks for it.
func TestDumpForm(t *testing.T) {
	f := &fake{dump: "{}"}
	for _, s := range speakers(f) {
		if w := call(t, s, "GET", s.prefix+"/dump", "", nil); w.Code != 200 || f.form != contract.Version(s.d) {
			t.Errorf("%s: %d, form %s", s.name, w.Code, f.form)
		}
	}
}

// TestPrefixedRoutesAreCounted: labels name the prefix, and the number of routes
// bounds them.
func TestPrefixedRoutesAreCounted(t *testing.T) {
	rec := newRecorder()
	opt := Options{Log: zerolog.Nop(), Requests: rec}
	selection, slots := New(&fake{}, (&fake{}).conductor(), opt), NewSlots(&fake{}, opt)
	for _, tc := range []struct {
		h              http.Handler
		method, target string
		want           seen
	}{
		{selection, "POST", "/v1.6/select", seen{"POST", "/v1.6/select", 200}},
		{selection, "POST", "/v1.3/reservations/a%2Fb/renew", seen{"POST", "/v1.3/reservations/:reservation_id/renew", 200}},
		{selection, "GET", "/v1.6/slots/workers", seen{"GET", "/v1.6/slots/workers", 200}},
		{selection, "GET", "/v1.6/nope", seen{"", "", 404}},
		{selection, "GET", "/v1.6/metrics", seen{"", "", 404}},
		{selection, "GET", "/openapi.yaml", seen{"GET", "/openapi.yaml", 200}},
		{slots, "GET", "/v1.6/workers", seen{"GET", "/v1.6/workers", 200}},
		{slots, "GET", "/v1.3/replica_sync/peers", seen{"GET", "/v1.3/replica_sync/peers", 200}},
		{slots, "GET", "/v1.6/slots/workers", seen{"", "", 404}},
	} {
		call(t, tc.h, tc.method, tc.target, "{}", nil)
		equal(t, tc.target, rec.take(t), []seen{tc.want}, exportAll)
	}
}

// TestSlotsListenerDialects: the slot tracker's own listener speaks the contract
// of the process, and either dialect under its prefix.
func TestSlotsListenerDialects(t *testing.T) {
	f := &fake{slotsWorkers: []node.SlotsWorker{{Scope: defaultScope}}}
	for _, process := range dialects {
		h := NewSlots(f, Options{Log: zerolog.Nop(), Contract: contract.Version(process)})
		for prefix, d := range map[string]dialect{"": process, "/v1.3": dialect13, "/v1.6": dialect16} {
			w := call(t, h, "GET", prefix+"/workers", "", nil)
			if !strings.Contains(w.Body.String(), `"`+d.tenantKey()+`"`) || strings.Contains(w.Body.String(), `"`+d.other().tenantKey()+`"`) {
				t.Errorf("%s%s/workers: %s", contract.Version(process), prefix, w.Body)
			}
		}
	}
}
