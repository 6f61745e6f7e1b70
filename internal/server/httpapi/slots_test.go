package httpapi

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
)

// slotsHandlers are the two places of the slot tracker's routes, by prefix.
func slotsHandlers(f *fake) map[string]http.Handler {
	return map[string]http.Handler{"": NewSlots(f, Options{Log: zerolog.Nop()}), "/slots": newHandler(f)}
}

// TestSlotsBodies: every member arrives where it belongs, on both listeners, and
// a body leaves nothing behind for the next one.
func TestSlotsBodies(t *testing.T) {
	f := &fake{}
	scope := catalog.Scope{Model: "m", Tenant: "t"}
	short := catalog.Scope{Model: "", Tenant: "default"}
	for prefix, h := range slotsHandlers(f) {
		post := func(path, body string, status int) {
			t.Helper()
			if w := call(t, h, "POST", prefix+path, body, nil); w.Code != status || w.Body.String() != `{"status":"ok"}` {
				t.Errorf("%s %s: %d %s", path, body, w.Code, w.Body)
			}
		}
		post("/register", `{"worker_id":18446744073709551615,"model_name":"m","tenant_id":"t","block_size":4294967295,"dp_start":3,"dp_size":2,"x":[]}`, 201)
		equal(t, "register", f.slotsWorker, node.SlotsWorker{Worker: maxU64, Scope: scope, BlockSize: maxU32, DPStart: 3, DPSize: 2})
		post("/register", `{"worker_id":1,"model_name":"","block_size":0,"dp_start":0,"dp_size":0}`, 201)
		equal(t, "register", f.slotsWorker, node.SlotsWorker{Worker: 1, Scope: short})
		post("/unregister", `{"worker_id":7,"model_name":"m","tenant_id":"t"}`, 200)
		if f.workerID != 7 || f.scope != scope {
			t.Errorf("unregister: worker %d of %v", f.workerID, f.scope)
		}
		post("/unregister", `{"worker_id":7,"model_name":""}`, 200)
		if f.scope != short {
			t.Errorf("unregister: scope %v", f.scope)
		}

		post("/add", `{"model_name":"m","tenant_id":"t","request_id":"r","worker_id":7,"dp_rank":1,"sequence_hashes":[101,-22,18446744073709551615],"new_isl_tokens":48}`, 201)
		kept := f.slotsBooking
		equal(t, "add", kept, node.SlotsReservation{
			Scope: scope, ID: "r", Rank: catalog.Rank{Worker: 7, DP: 1}, SequenceHashes: []uint64{101, maxU64 - 21, maxU64}, NewISLTokens: 48,
		})
		post("/add", `{"model_name":"","request_id":"","worker_id":0,"dp_rank":0,"sequence_hashes":[1,2,3]}`, 201)
		equal(t, "add", f.slotsBooking, node.SlotsReservation{Scope: short, SequenceHashes: []uint64{1, 2, 3}})
		if want := []uint64{101, maxU64 - 21, maxU64}; !slices.Equal(kept.SequenceHashes, want) {
			t.Errorf("the next request overwrote the hashes of a reservation: %v", kept.SequenceHashes)
		}

		for _, path := range []string{"/prefill_complete", "/free"} {
			f.scope, f.id = catalog.Scope{}, ""
			post(path, `{"model_name":"m","tenant_id":"t","request_id":"r"}`, 200)
			if f.scope != scope || f.id != "r" {
				t.Errorf("%s: %q of %v", path, f.id, f.scope)
			}
			post(path, `{"request_id":"","model_name":""}`, 200)
			if f.scope != short || f.id != "" {
				t.Errorf("%s: %q of %v", path, f.id, f.scope)
			}
		}

		f.call = func() { // the hashes are lent
			equal(t, "potential_loads", f.slotsProject, node.SlotsProjection{Scope: scope, SequenceHashes: []uint64{5}, NewISLTokens: 9})
		}
		accepted(t, h, prefix+"/potential_loads", `{"model_name":"m","tenant_id":"t","sequence_hashes":[5],"new_isl_tokens":9}`)
		f.call = func() { equal(t, "potential_loads", f.slotsProject, node.SlotsProjection{Scope: short}) }
		accepted(t, h, prefix+"/potential_loads", `{"model_name":"","sequence_hashes":[]}`)
		f.call = nil

		for i, path := range []string{"/register_peer", "/deregister_peer"} {
			f.peer, f.notSelf = "", false
			post(path, `{"url":"tcp://a:1"}`, 200)
			if f.peer != "tcp://a:1" || f.notSelf != (i == 0) {
				t.Errorf("%s: %q, itself refused: %t", path, f.peer, f.notSelf)
			}
		}
	}
}

// TestSlotsEdges pins the slot tracker's HTTP layer on both listeners.
func TestSlotsEdges(t *testing.T) {
	const (
		notFound   = "route not found"
		notAllowed = "method not allowed"
		syntax     = syntaxPrefix + "*"
		shape      = shapePrefix + "*"
		register   = `{"worker_id":1,"model_name":"a","block_size":16,"dp_start":0,"dp_size":1}`
	)
	missing := func(name string) string { return shapePrefix + "missing field `" + name + "`*" }
	tests := []struct {
		method, path, body string
		status             int
		text               string // of the error; a final * stands for any tail
		allow              string
	}{
		{"GET", "/nope", "", 404, notFound, ""},
		{"GET", "/health/", "", 404, notFound, ""},
		{"GET", "/workers/1", "", 404, notFound, ""},
		{"POST", "/register/", register, 404, notFound, ""},
		{"GET", "/register", "", 405, notAllowed, "POST"},
		{"HEAD", "/add", "", 405, notAllowed, "POST"},
		{"POST", "/loads", "{}", 405, notAllowed, "GET, HEAD"},
		{"DELETE", "/peers", "", 405, notAllowed, "GET, HEAD"},
		{"GET", "/register_peer", "", 405, notAllowed, "POST"},
		{"HEAD", "/health", "", 200, "", ""},
		{"HEAD", "/workers", "", 200, "", ""},
		{"HEAD", "/loads", "", 200, "", ""},
		{"HEAD", "/peers", "", 200, "", ""},

		{"POST", "/register", "", 400, syntax, ""},
		{"POST", "/register", register + " x", 400, syntax, ""},
		{"POST", "/register", "[1,\"a\",16,0,1]", 422, shape, ""},
		{"POST", "/register", "{}", 422, missing("worker_id"), ""},
		{"POST", "/register", `{"worker_id":1,"dp_size":1}`, 422, missing("model_name"), ""},
		{"POST", "/register", `{"worker_id":1,"model_name":"a","dp_size":1}`, 422, missing("block_size"), ""},
		{"POST", "/register", `{"worker_id":1,"model_name":"a","dp_size":1,"block_size":1}`, 422, missing("dp_start"), ""},
		{"POST", "/register", `{"worker_id":1,"model_name":"a","dp_start":1,"block_size":1}`, 422, missing("dp_size"), ""},
		{"POST", "/register", `{"worker_id":-1}`, 422, shapePrefix + "worker_id: *", ""},
		{"POST", "/register", `{"worker_id":1,"tenant_id":null}`, 422, shapePrefix + "tenant_id: *", ""},
		{"POST", "/register", `{"worker_id":1,"block_size":4294967296}`, 422, shapePrefix + "block_size: *", ""},
		{"POST", "/register", `{"worker_id":1,"dp_size":1.0}`, 422, shapePrefix + "dp_size: *", ""},
		{"POST", "/register", `{"worker_id":1,"worker_id":1}`, 422, shape, ""},
		{"POST", "/unregister", "{}", 422, missing("worker_id"), ""},
		{"POST", "/unregister", `{"worker_id":1}`, 422, missing("model_name"), ""},
		{"POST", "/add", "{}", 422, missing("model_name"), ""},
		{"POST", "/add", `{"model_name":"a"}`, 422, missing("request_id"), ""},
		{"POST", "/add", `{"model_name":"a","request_id":"r"}`, 422, missing("worker_id"), ""},
		{"POST", "/add", `{"model_name":"a","request_id":"r","worker_id":1}`, 422, missing("dp_rank"), ""},
		{"POST", "/add", `{"model_name":"a","request_id":"r","worker_id":1,"dp_rank":0}`, 422, missing("sequence_hashes"), ""},
		{"POST", "/add", `{"sequence_hashes":null}`, 422, shapePrefix + "sequence_hashes: *", ""},
		{"POST", "/add", `{"sequence_hashes":[1.5]}`, 422, shapePrefix + "sequence_hashes[0]: *", ""},
		{"POST", "/add", `{"new_isl_tokens":null}`, 422, shapePrefix + "new_isl_tokens: *", ""},
		{"POST", "/free", `{"request_id":"r"}`, 422, missing("model_name"), ""},
		{"POST", "/prefill_complete", `{"model_name":"a"}`, 422, missing("request_id"), ""},
		{"POST", "/potential_loads", "{}", 422, missing("model_name"), ""},
		{"POST", "/potential_loads", `{"model_name":"a"}`, 422, missing("sequence_hashes"), ""},
		{"POST", "/register_peer", `{"endpoint":"tcp://a:1"}`, 422, missing("url"), ""},
		{"POST", "/deregister_peer", `{"url":7}`, 422, shapePrefix + "url: *", ""},

		{"GET", "/workers?model_name=a&model_name=b", "", 400, queryPrefix + "duplicate field `model_name`", ""},
		{"GET", "/loads?tenant_id=&tenant_id=", "", 400, queryPrefix + "duplicate field `tenant_id`", ""},
		{"GET", "/loads?x=1&x=2", "", 200, "", ""},

		{"POST", "/free", strings.Repeat(" ", maxSlotsBody-len(`{"model_name":"a","request_id":"r"}`)) + `{"model_name":"a","request_id":"r"}`, 200, "", ""},
		{"POST", "/free", strings.Repeat(" ", maxSlotsBody-1) + "{}", 413, errBodyTooLarge.text, ""},
		{"POST", "/register_peer", strings.Repeat(" ", maxSlotsBody-1) + "{}", 413, errBodyTooLarge.text, ""},
	}
	for prefix, h := range slotsHandlers(&fake{}) {
		for _, tc := range tests {
			name := tc.method + " " + prefix + tc.path + " " + tc.body[:min(len(tc.body), 60)]
			w := call(t, h, tc.method, prefix+tc.path, tc.body, nil)
			if w.Code != tc.status {
				t.Errorf("%s: status %d, want %d: %s", name, w.Code, tc.status, w.Body)
				continue
			}
			if got := w.Header().Get("Allow"); got != tc.allow {
				t.Errorf("%s: Allow = %q, want %q", name, got, tc.allow)
			}
			if tc.status < 300 {
				continue
			}
			got := errorText(t, w)
			if start, open := strings.CutSuffix(tc.text, "*"); got != tc.text && (!open || !strings.HasPrefix(got, start)) {
				t.Errorf("%s: error %q, want %q", name, got, tc.text)
			}
		}
		if w := call(t, h, "POST", prefix+"/add", "nonsense", http.Header{"Content-Type": {"text/plain"}}); w.Code != 415 || errorText(t, w) != errContentType.text {
			t.Errorf("%s/add as text: %d %s", prefix, w.Code, w.Body)
		}
		if w := call(t, h, "GET", prefix+"/health", "", nil); w.Code != 200 || w.Body.Len() > 0 || w.Header().Get("Content-Type") != "" {
			t.Errorf("%s/health: %d %q as %q", prefix, w.Code, w.Body, w.Header().Get("Content-Type"))
		}
	}
	own := NewSlots(&fake{}, Options{Log: zerolog.Nop(), Metrics: http.NotFoundHandler()})
	for _, path := range []string{"/metrics", "/ready", "/dump", "/slots/health"} {
		if w := call(t, own, "GET", path, "", nil); w.Code != 404 {
			t.Errorf("the slot tracker's listener has %s: %d", path, w.Code)
		}
	}
	for _, path := range []string{"/replica_sync/peers", "/replica_sync/snapshot"} {
		if w := call(t, own, "GET", path, "", nil); w.Code != 200 {
			t.Errorf("the slot tracker's listener lacks %s: %d", path, w.Code)
		}
	}
}

// TestSlotsAnswers compares the answers with their golden files, and what the
// service refuses with its status.
func TestSlotsAnswers(t *testing.T) {
	scope := catalog.Scope{Model: `m"`, Tenant: ""}
	rank := catalog.Rank{Worker: maxU64, DP: maxU32}
	load := selection.RankLoad{Rank: rank, PrefillTokens: maxU64, DecodeBlocks: 7, Requests: 2}
	f := &fake{
		slotsWorkers: []node.SlotsWorker{{Worker: maxU64, Scope: scope, BlockSize: maxU32, DPStart: 3, DPSize: 2}, {Scope: defaultScope}},
		slotsLoads:   []node.SlotsLoad{{Scope: scope, Load: load}, {Scope: defaultScope}},
		loads:        []selection.RankLoad{load, {}},
		newPeer:      true,
		peers:        []string{"tcp://a:1"},
	}
	for prefix, h := range slotsHandlers(f) {
		golden(t, "slots_workers", call(t, h, "GET", prefix+"/workers", "", nil))
		golden(t, "slots_loads", call(t, h, "GET", prefix+"/loads", "", nil))
		golden(t, "slots_potential_loads", call(t, h, "POST", prefix+"/potential_loads", `{"model_name":"a","sequence_hashes":[]}`, nil))
		golden(t, "slots_peers", call(t, h, "GET", prefix+"/peers", "", nil))
		if w := call(t, h, "POST", prefix+"/register_peer", `{"url":"tcp://a:1"}`, nil); w.Code != 201 {
			t.Errorf("a new peer: %d", w.Code)
		}
		call(t, h, "GET", prefix+"/workers?model_name=a", "", nil)
		if f.model == nil || *f.model != "a" || f.tenant != nil {
			t.Errorf("filters %v %v", f.model, f.tenant)
		}
	}
	f.err = &contract.Error{Kind: contract.Conflict, Text: "no"}
	for prefix, h := range slotsHandlers(f) {
		for path, body := range map[string]string{
			"/register": `{"worker_id":1,"model_name":"a","block_size":1,"dp_start":0,"dp_size":1}`, "/unregister": `{"worker_id":1,"model_name":"a"}`,
			"/add":  `{"model_name":"a","request_id":"r","worker_id":1,"dp_rank":0,"sequence_hashes":[]}`,
			"/free": `{"model_name":"a","request_id":"r"}`, "/prefill_complete": `{"model_name":"a","request_id":"r"}`,
			"/potential_loads": `{"model_name":"a","sequence_hashes":[]}`, "/register_peer": `{"url":"x"}`, "/deregister_peer": `{"url":"x"}`,
		} {
			if w := call(t, h, "POST", prefix+path, body, nil); w.Code != 409 || errorText(t, w) != "no" {
				t.Errorf("%s%s: %d %s", prefix, path, w.Code, w.Body)
			}
		}
	}
}
