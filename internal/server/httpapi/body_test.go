package httpapi

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/gin-gonic/gin"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

func ptr[T any](v T) *T { return &v }

var defaultScope = catalog.Scope{Model: "default", Tenant: "default"}

// equal compares requests; slices that are kept for reuse are empty, not nil.
func equal(t *testing.T, name string, got, want any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, append(options, cmpopts.EquateEmpty())...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// TestSelectBody: every member arrives where it belongs, null and absence mean
// the same for members that may be null, and a body leaves nothing behind for
// the next one.
func TestSelectBody(t *testing.T) {
	f := &fake{}
	h := newHandler(f)
	full := `{"model_name":"m","tenant_id":"t","selection_id":"s","reservation_id":"r",
		"token_ids":[1,2,4294967295],"block_mm_infos":[null,{"mm_objects":[{"mm_hash":18446744073709551615,"offsets":[[0,2],[3,4]],"x":1},{"mm_hash":7,"offsets":[]}]},{"mm_objects":[]}],
		"mm_routing_info":{"routing_token_ids":[5,6],"block_mm_infos":[{"mm_objects":[{"mm_hash":9,"offsets":[]}]}]},
		"block_hashes":[-1,18446744073709551615],"sequence_hashes":[-9223372036854775808,3],"isl_tokens":281474976710656,
		"lora_name":"l","cache_salt":"c","is_eagle":true,
		"router_config_override":{"overlap_score_credit":1,"prefill_load_scale":100,"router_temperature":0,"assume_kv_reuse":false,
			"track_prefill_tokens":true,"shared_cache_multiplier":0.5,"overlap_score_weight":0,"unknown":3},
		"expected_output_tokens":4294967295,"priority_jump":-5.5,"strict_priority":3,
		"pinned_worker":{"worker_id":18446744073709551615,"dp_rank":4294967295},"allowed_worker_ids":[1,18446744073709551615],
		"routing_constraints":{"required_taints":["a","b"],"preferred_taints":{"c":0.5,"d":-1}},"unknown":{"token_ids":"x"}}`
	want := selection.SelectRequest{
		Scope:         catalog.Scope{Model: "m", Tenant: "t"},
		SelectionID:   ptr("s"),
		ReservationID: ptr("r"),
		Prompt: selection.Prompt{
			TokenIDs: []uint32{1, 2, 1<<32 - 1}, HasTokenIDs: true,
			MM:          [][]uint64{nil, {1<<64 - 1, 7}, nil},
			Routing:     &selection.Routing{TokenIDs: []uint32{5, 6}, MM: [][]uint64{{9}}},
			BlockHashes: []uint64{1<<64 - 1, 1<<64 - 1}, HasBlockHashes: true,
			SequenceHashes: []uint64{1 << 63, 3}, HasSequenceHashes: true,
			ISLTokens: 1 << 48, HasISLTokens: true,
			LoRA: "l", CacheSalt: "c", Eagle: ptr(true),
		},
		Override: selector.Override{
			OverlapCredit: ptr(1.0), PrefillScale: ptr(100.0), Temperature: ptr(0.0), SharedCacheMultiplier: ptr(0.5),
			TrackPrefill: ptr(true), AssumeKVReuse: ptr(false), OverlapWeight: ptr(0.0),
		},
		ExpectedOutputTokens: ptr[uint32](1<<32 - 1), PriorityJump: -5.5, StrictPriority: 3, PolicyClass: "latency",
		Constraints: selection.Constraints{
			Pinned:         &catalog.Rank{Worker: 1<<64 - 1, DP: 1<<32 - 1},
			AllowedWorkers: []uint64{1, 1<<64 - 1}, HasAllowedWorkers: true,
			RequiredTaints: []string{"a", "b"}, PreferredTaints: map[string]float32{"c": 0.5, "d": -1},
		},
	}
	header := http.Header{"Content-Type": {"application/json"}, "X-Dynamo-Meta-Policy-Class": {"  latency\t"}}
	f.call = func() { equal(t, "full body", f.selected, want) } // inside the call: afterwards the slices are reused
	if w := call(t, h, "POST", "/select_and_reserve", full, header); w.Code != 200 || !f.reserve {
		t.Fatalf("status %d, reserve %t: %s", w.Code, f.reserve, w.Body)
	}
	want.ReservationID = nil
	if w := call(t, h, "POST", "/select", strings.Replace(full, `"reservation_id":"r"`, `"reservation_id":[7]`, 1), header); w.Code != 200 || f.reserve {
		t.Fatalf("status %d, reserve %t: %s", w.Code, f.reserve, w.Body)
	}

	empty := selection.SelectRequest{Scope: defaultScope}
	nulls := `{"selection_id":null,"reservation_id":null,"token_ids":null,"block_mm_infos":null,"mm_routing_info":null,"block_hashes":null,
		"sequence_hashes":null,"isl_tokens":null,"lora_name":null,"cache_salt":null,"is_eagle":null,"router_config_override":null,
		"expected_output_tokens":null,"priority_jump":null,"strict_priority":null,"pinned_worker":null,"allowed_worker_ids":null,
		"routing_constraints":{}}`
	for _, body := range []string{`{}`, nulls, `{"router_config_override":{"overlap_score_credit":null,"track_prefill_tokens":null}}`} {
		f.call = func() { equal(t, body, f.selected, empty) }
		for _, path := range []string{"/select", "/select_and_reserve"} {
			accepted(t, h, path, body)
		}
	}

	empty.Prompt.HasTokenIDs, empty.Prompt.HasBlockHashes, empty.Prompt.HasSequenceHashes = true, true, true
	empty.HasAllowedWorkers = true
	empty.Prompt.Routing = &selection.Routing{}
	f.call = func() { equal(t, "empty lists", f.selected, empty) }
	accepted(t, h, "/select", `{"token_ids":[],"block_hashes":[],"sequence_hashes":[],"allowed_worker_ids":[],
		"mm_routing_info":{"routing_token_ids":[]},"routing_constraints":{"required_taints":[],"preferred_taints":{}}}`)
}

// accepted posts a body that must reach the service.
func accepted(t *testing.T, h http.Handler, target, body string) {
	t.Helper()
	if w := call(t, h, "POST", target, body, nil); w.Code/100 != 2 {
		t.Errorf("%s %s: %d %s", target, body, w.Code, w.Body)
	}
}

// TestRefusedBodies lists bodies of the wrong shape by route.
func TestRefusedBodies(t *testing.T) {
	prompt := []string{
		`{"model_name":null}`, `{"tenant_id":null}`, `{"model_name":5}`, `{"model_name":"a","model_name":"a"}`,
		`{"token_ids":"abc"}`, `{"token_ids":[-1]}`, `{"token_ids":[4294967296]}`, `{"token_ids":[1.0]}`, `{"token_ids":{}}`,
		`{"token_ids":[1],"token_ids":[1]}`, `{"token_ids":null,"token_ids":null}`,
		`{"block_hashes":[18446744073709551616]}`, `{"block_hashes":[-9223372036854775809]}`, `{"block_hashes":[1.5]}`, `{"block_hashes":["1"]}`,
		`{"sequence_hashes":[null]}`, `{"sequence_hashes":1}`, `{"isl_tokens":-4}`, `{"isl_tokens":1e2}`, `{"isl_tokens":"4"}`,
		`{"mm_routing_info":{}}`, `{"mm_routing_info":[]}`, `{"mm_routing_info":{"routing_token_ids":null}}`,
		`{"mm_routing_info":{"routing_token_ids":[],"block_mm_infos":null}}`,
		`{"block_mm_infos":[{}]}`, `{"block_mm_infos":[[]]}`, `{"block_mm_infos":[{"mm_objects":null}]}`,
		`{"block_mm_infos":[{"mm_objects":[{"mm_hash":1}]}]}`, `{"block_mm_infos":[{"mm_objects":[{"offsets":[]}]}]}`,
		`{"block_mm_infos":[{"mm_objects":[{"mm_hash":-1,"offsets":[]}]}]}`, `{"block_mm_infos":[{"mm_objects":[{"mm_hash":1,"offsets":[[1]]}]}]}`,
		`{"block_mm_infos":[{"mm_objects":[{"mm_hash":1,"offsets":[[1,2,3]]}]}]}`,
		`{"lora_name":1}`, `{"cache_salt":[]}`, `{"is_eagle":"true"}`, `{"is_eagle":0}`,
		`{"router_config_override":[]}`, `{"router_config_override":{"overlap_score_credit":1.5}}`, `{"router_config_override":{"overlap_score_credit":-0.1}}`,
		`{"router_config_override":{"prefill_load_scale":-1}}`, `{"router_config_override":{"router_temperature":-1}}`,
		`{"router_config_override":{"shared_cache_multiplier":2}}`, `{"router_config_override":{"overlap_score_weight":-1}}`,
		`{"router_config_override":{"assume_kv_reuse":"x"}}`, `{"router_config_override":{"track_prefill_tokens":1}}`,
		`{"router_config_override":{"router_temperature":1,"router_temperature":1}}`,
	}
	chosen := append([]string{
		`{"selection_id":1}`, `{"expected_output_tokens":4294967296}`, `{"strict_priority":-1}`, `{"strict_priority":1.0}`, `{"priority_jump":"1"}`,
		`{"pinned_worker":{"worker_id":1}}`, `{"pinned_worker":{"dp_rank":1}}`, `{"pinned_worker":[1,0]}`,
		`{"pinned_worker":{"worker_id":1,"dp_rank":null}}`, `{"allowed_worker_ids":[-1]}`, `{"allowed_worker_ids":["1"]}`,
		`{"routing_constraints":null}`, `{"routing_constraints":{"required_taints":null}}`, `{"routing_constraints":{"required_taints":[1]}}`,
		`{"routing_constraints":{"preferred_taints":[]}}`, `{"routing_constraints":{"preferred_taints":{"a":"1"}}}`,
		`{"routing_constraints":{"preferred_taints":{"a":1e39}}}`,
	}, prompt...)
	reserving := []string{`{}`, `{"worker_id":1}`, `{"reservation_id":"a"}`, `{"reservation_id":null,"worker_id":1}`, `{"reservation_id":"a","worker_id":null}`}
	for _, member := range append([]string{
		`{"dp_rank":-1}`, `{"dp_rank":4294967296}`, `{"effective_prefill_tokens":-1}`, `{"effective_prefill_tokens":1.5}`, `{"expected_output_tokens":-1}`,
	}, prompt...) {
		reserving = append(reserving, `{"reservation_id":"a","worker_id":1,`+member[1:])
	}
	settings := []string{
		`{"endpoint":1}`, `{"block_size":-1}`, `{"block_size":4294967296}`, `{"data_parallel_size":1.5}`, `{"data_parallel_start_rank":"0"}`,
		`{"max_num_batched_tokens":-1}`, `{"total_kv_blocks":18446744073709551616}`, `{"is_eagle":1}`, `{"rank_header":"rank"}`, `{"prefill_rank_header":"true"}`, `{"taints":"a"}`, `{"taints":[null]}`,
		`{"topology_domains":{"a":1}}`, `{"topology_domains":[]}`, `{"kv_transfer_enforcement":"maybe"}`, `{"kv_transfer_preferred_weight":"1"}`,
		`{"kv_transfer_preferred_weight":1e39}`, `{"kv_events_endpoints":{"0":1}}`, `{"kv_events_endpoints":{"-1":"x"}}`,
		`{"kv_events_endpoints":{"4294967296":"x"}}`, `{"replay_endpoints":{"1.5":"x"}}`, `{"taints":[],"taints":[]}`,
	}
	registration := []string{
		`{}`, `{"worker_id":-1}`, `{"worker_id":"1"}`, `{"worker_id":1.5}`, `{"worker_id":18446744073709551616}`, `{"worker_id":null}`,
		`{"worker_id":1,"worker_id":2}`, `{"worker_id":1,"model_name":null}`, `{"worker_id":1,"taints":null}`,
		`{"worker_id":1,"topology_domains":null}`, `{"worker_id":1,"kv_events_endpoints":null}`, `{"worker_id":1,"replay_endpoints":null}`,
	}
	for _, member := range settings {
		registration = append(registration, `{"worker_id":1,`+member[1:])
	}
	h := newHandler(&fake{call: func() { t.Error("the service was called") }})
	for _, tc := range []struct {
		method, path string
		bodies       []string
	}{
		{"POST", "/select", chosen},
		{"POST", "/select_and_reserve", append([]string{`{"reservation_id":1}`}, chosen...)},
		{"POST", "/reservations", reserving},
		{"POST", "/potential_loads", prompt},
		{"POST", "/overlap_scores", prompt},
		{"POST", "/workers", registration},
		{"PATCH", "/workers/1", settings},
	} {
		for _, body := range tc.bodies {
			w := call(t, h, tc.method, tc.path, body, nil)
			if w.Code != 422 || !strings.HasPrefix(errorText(t, w), shapePrefix) {
				t.Errorf("%s %s %s: %d %s, want 422", tc.method, tc.path, body, w.Code, w.Body)
			}
		}
	}
	// A number that no float64 comes near is no JSON, wherever it stands.
	for _, number := range []string{"1e400", "-1.8e308", "1" + strings.Repeat("0", 309)} {
		for _, tc := range [][3]string{
			{"POST", "/select", `{"priority_jump":N}`},
			{"POST", "/select", `{"token_ids":[1,N]}`},
			{"POST", "/select", `{"token_ids":[1],"unknown":{"a":[N]}}`},
			{"POST", "/select", `{"token_ids":[1],"model_name":N}`},
			{"POST", "/select_and_reserve", `{"lease_seconds":N}`},
			{"POST", "/overlap_scores", `{"router_config_override":{"router_temperature":N}}`},
			{"POST", "/reservations", `{"reservation_id":"a","worker_id":1,"pinned_worker":N}`},
			{"POST", "/workers", `{"worker_id":N}`},
			{"PUT", "/workers", `{"workers":[],"unknown":N}`},
			{"PATCH", "/workers/1", `{"kv_transfer_preferred_weight":N}`},
			{"POST", "/reservations/x/output_block", `{"decay_fraction":N}`},
		} {
			body := strings.Replace(tc[2], "N", number, 1)
			if w := call(t, h, tc[0], tc[1], body, nil); w.Code != 400 || !strings.HasPrefix(errorText(t, w), syntaxPrefix) {
				t.Errorf("%s %s %.60s: %d %s, want 400", tc[0], tc[1], body, w.Code, w.Body)
			}
		}
	}
	// A map's name that is no number is no JSON of serde's, either.
	for _, key := range []string{"x", "", "01", "1 ", "+1"} {
		if w := call(t, h, "POST", "/workers", `{"worker_id":6,"kv_events_endpoints":{"`+key+`":"tcp://a:1"}}`, nil); w.Code != 400 {
			t.Errorf("endpoint of rank %q: %d %s, want 400", key, w.Code, w.Body)
		}
	}
	// Nor is, where one of several names is due, a value that is no string.
	for _, value := range []string{"7", "true", "[]", "{}"} {
		for _, r := range [][2]string{{"POST", "/workers"}, {"PATCH", "/workers/1"}} {
			w := call(t, h, r[0], r[1], `{"worker_id":6,"kv_transfer_enforcement":`+value+`}`, nil)
			if w.Code != 400 || !strings.HasPrefix(errorText(t, w), syntaxPrefix+"kv_transfer_enforcement: ") {
				t.Errorf("%s with enforcement %s: %d %s, want 400", r[1], value, w.Code, w.Body)
			}
		}
		w := call(t, h, "POST", "/v1.6/select", `{"session_context":{"session_id":"a","input_trigger":`+value+`}}`, nil)
		if w.Code != 400 || !strings.HasPrefix(errorText(t, w), syntaxPrefix+"session_context.input_trigger: ") {
			t.Errorf("input_trigger %s: %d %s, want 400", value, w.Code, w.Body)
		}
	}
	// Faults name the value, but never repeat text of the body.
	w := call(t, h, "POST", "/select", `{"token_ids":"my secret prompt"}`, nil)
	if got := errorText(t, w); got != shapePrefix+"token_ids: invalid type: string, expected an array at line 1 column 14" {
		t.Errorf("text = %q", got)
	}
	w = call(t, h, "POST", "/select", `{"router_config_override":{"router_temperature":-1,"overlap_score_credit":2}}`, nil)
	if got := errorText(t, w); strings.Contains(got, "\n") || !strings.Contains(got, "router_temperature") || !strings.Contains(got, "overlap_score_credit") {
		t.Errorf("text = %q", got)
	}
}

// TestReserveBody: an empty id is an id, the rank defaults to 0, and the rest
// of a body leaves nothing behind.
func TestReserveBody(t *testing.T) {
	f := &fake{}
	h := newHandler(f)
	f.call = func() {
		equal(t, "reservation", f.booked, selection.ReserveRequest{
			Scope: defaultScope, ID: "", Rank: catalog.Rank{Worker: 1}, Prompt: selection.Prompt{HasSequenceHashes: true, HasISLTokens: true},
		})
	}
	accepted(t, h, "/reservations", `{"reservation_id":"","worker_id":1,"dp_rank":null,"sequence_hashes":[],"isl_tokens":0,"overlap":"any"}`)
	f.call = func() {
		equal(t, "reservation", f.booked, selection.ReserveRequest{
			Scope: catalog.Scope{Model: "m", Tenant: "t"}, ID: "r", Rank: catalog.Rank{Worker: 1, DP: 2},
			Prompt:               selection.Prompt{SequenceHashes: []uint64{7}, HasSequenceHashes: true},
			Override:             selector.Override{TrackPrefill: ptr(false)},
			ExpectedOutputTokens: ptr[uint32](9), EffectivePrefillTokens: ptr[uint64](0),
		})
	}
	accepted(t, h, "/reservations", `{"model_name":"m","tenant_id":"t","reservation_id":"r","worker_id":1,"dp_rank":2,"sequence_hashes":[7],
		"router_config_override":{"track_prefill_tokens":false},"expected_output_tokens":9,"effective_prefill_tokens":0}`)
}

// TestProjectBody: both projections take the same body.
func TestProjectBody(t *testing.T) {
	f := &fake{}
	h := newHandler(f)
	f.call = func() {
		equal(t, "projection", f.projected, selection.ProjectRequest{
			Scope: defaultScope, Prompt: selection.Prompt{TokenIDs: []uint32{1}, HasTokenIDs: true}, Override: selector.Override{OverlapCredit: ptr(0.5)},
		})
	}
	for _, path := range []string{"/overlap_scores", "/potential_loads"} {
		accepted(t, h, path, `{"token_ids":[1],"router_config_override":{"overlap_score_credit":0.5}}`)
	}
}

// TestBrokenBody: a body that is late or malformed is the client's fault; if the
// client has gone, it is no error of the service.
func TestBrokenBody(t *testing.T) {
	const text = "Failed to buffer the request body: "
	late := &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
	for _, tc := range []struct {
		err    error
		status int
		text   string
	}{
		{io.ErrUnexpectedEOF, statusClientGone, errClientGone.text},
		{&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}, statusClientGone, errClientGone.text},
		{late, 400, text + late.Error()},
		{errors.New("malformed chunked encoding"), 400, text + "malformed chunked encoding"},
	} {
		r, err := http.NewRequest("POST", "/select", io.MultiReader(strings.NewReader("{"), iotest.ErrReader(tc.err)))
		if err != nil {
			t.Fatal(err)
		}
		c, _ := gin.CreateTestContext(httptest.NewRecorder())
		c.Request = r
		err = new(incoming).read(c, maxBody)
		if p := problemOf(err, dialect13); p.status != tc.status || p.text != tc.text {
			t.Errorf("%v: %+v", tc.err, p)
		}
	}
}

// TestReleaseDropsLargeBuffers: one huge body does not stay in the pool.
func TestReleaseDropsLargeBuffers(t *testing.T) {
	b := newSelectBody(newSelectShape(dialect13))
	x := b.pool.Get().(*scratch[selectBody])
	if err := b.shape.Decode(&x.scan, bodyscan.JSON, []byte(`{"token_ids":[`+strings.Repeat("1,", maxPooled/4)+`1]}`), &x.req); err != nil {
		t.Fatal(err)
	}
	if b.release(x); b.size(&x.req) <= maxPooled {
		t.Errorf("size = %d, the test needs more than %d", b.size(&x.req), maxPooled)
	}
	if y := b.pool.Get().(*scratch[selectBody]); y == x {
		t.Error("a huge scratch went back to the pool")
	}
}

// exportAll lets cmp look into all structs.
var exportAll = cmp.Exporter(func(reflect.Type) bool { return true })

// TestServerKeyRefused: the CURVE key of an engine is 400 by its name wherever workers and
// publishers are registered or changed, whatever its value but null, and nothing is changed.
func TestServerKeyRefused(t *testing.T) {
	const why = "CURVE towards engines has been removed, register without this key"
	for _, value := range []string{`"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"`, `""`, `5`, `{"a":[]}`} {
		key := `"kv_events_server_key":` + value
		for _, tc := range []struct{ method, path, body, name string }{
			{"POST", "/workers", `{"worker_id":1,` + key + `}`, "kv_events_server_key"},
			{"POST", "/v1.6/workers", `{` + key + `,"worker_id":1}`, "kv_events_server_key"},
			{"PATCH", "/workers/1", `{"block_size":16,` + key + `}`, "kv_events_server_key"},
			{"PUT", "/workers", `{"workers":[{"worker_id":1},{"worker_id":2,` + key + `}]}`, "workers[1].kv_events_server_key"},
			{"POST", "/conductor/register", `{"dp_rank":0,"block_size":1,"instance_id":"i","modelname":"m","type":"vLLM","endpoint":"e",` + key + `}`, "kv_events_server_key"},
		} {
			f := &fake{worker: &catalog.Worker{}}
			w := call(t, newHandler(f), tc.method, tc.path, tc.body, nil)
			if text := w.Body.String(); w.Code != 400 || !strings.Contains(text, tc.name+": "+why) {
				t.Errorf("%s %s %s: %d %s", tc.method, tc.path, tc.body, w.Code, text)
			}
			if !reflect.ValueOf(f.record).IsZero() || !reflect.ValueOf(f.patch).IsZero() || f.registered.Endpoint != "" {
				t.Errorf("%s %s has changed something", tc.method, tc.path)
			}
		}
	}
}

// TestWorkerBodies: a registration and a patch take the same members; only the
// patch distinguishes an empty list or map from one that is left out.
func TestWorkerBodies(t *testing.T) {
	f := &fake{worker: &catalog.Worker{}}
	h := newHandler(f)
	settings := `"endpoint":"e","kv_events_endpoint":"k","kv_events_endpoints":{"0":"a","4294967295":"b"},"replay_endpoint":"r","replay_endpoints":{"7":"c"},"kv_event_copies":"count","kv_event_rank":"batch",
		"load_endpoint":"o","load_endpoints":{"1":"p"},"load_metrics":{"url":"http://m","interval_seconds":0.3},
		"block_size":16,"data_parallel_start_rank":1,"data_parallel_size":0,"max_num_batched_tokens":18446744073709551615,"total_kv_blocks":5,"attention_chunk_size":6,"max_model_len":7,
		"role":"prefill","rank_endpoints":{"1":"http://r"},"rank_header":"none","prefill_rank_header":true,"kv_events":false,"adapters":["l","a"],
		"stable_routing_id":"s","is_eagle":false,"taints":["b","a","b"],"topology_domains":{"zone":"z"},"kv_transfer_domain":"zone",
		"kv_transfer_enforcement":"required","kv_transfer_preferred_weight":0.1,"lifecycle":"draining","unknown":[]}`
	want := catalog.Patch{
		Endpoint: ptr("e"), KVEventsEndpoint: ptr("k"), KVEventsEndpoints: map[uint32]string{0: "a", 1<<32 - 1: "b"},
		ReplayEndpoint: ptr("r"), ReplayEndpoints: map[uint32]string{7: "c"}, KVEventCopies: ptr("count"), KVEventRank: ptr("batch"),
		LoadEndpoint: ptr("o"), LoadEndpoints: map[uint32]string{1: "p"}, LoadMetrics: &catalog.LoadMetrics{URL: ptr("http://m"), IntervalSeconds: ptr(0.3)},
		BlockSize: ptr[uint32](16), StartRank: ptr[uint32](1), Size: ptr[uint32](0), MaxNumBatchedTokens: ptr[uint64](1<<64 - 1), TotalKVBlocks: ptr[uint64](5), AttentionChunkSize: ptr[uint64](6), MaxModelLen: ptr[uint32](7),
		Role: ptr("prefill"), RankEndpoints: map[uint32]string{1: "http://r"}, RankHeader: ptr("none"), PrefillRankHeader: ptr(true), KVEvents: ptr(false), Adapters: []string{"l", "a"},
		StableRoutingID: ptr("s"), IsEagle: ptr(false), Taints: []string{"b", "a", "b"}, TopologyDomains: map[string]string{"zone": "z"},
		KVTransferDomain: ptr("zone"), KVTransferEnforcement: ptr("required"), KVTransferPreferredWeight: ptr[float32](0.1),
	}
	if w := call(t, h, "PATCH", "/workers/18446744073709551615", `{"worker_id":"ignored","model_name":null,`+settings, nil); w.Code != 200 || f.workerID != 1<<64-1 {
		t.Fatalf("%d for worker %d: %s", w.Code, f.workerID, w.Body)
	}
	equal(t, "patch", f.patch, want)
	if w := call(t, h, "POST", "/workers", `{"worker_id":18446744073709551615,"model_name":"m","tenant_id":"","describe":"vllm",`+settings, nil); w.Code != 201 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	registered := catalog.Record(want)
	registered.ID, registered.Scope, registered.Describe = 1<<64-1, catalog.Scope{Model: "m"}, &catalog.Describe{Engine: "vllm"}
	equal(t, "registration", f.record, registered)

	nulls := `"load_endpoint":null,"load_metrics":null,"endpoint":null,"kv_events_server_key":null,"kv_event_copies":null,"kv_event_rank":null,"kv_events":null,"kv_events_endpoint":null,"replay_endpoint":null,"block_size":null,"data_parallel_start_rank":null,"data_parallel_size":null,
		"max_num_batched_tokens":null,"total_kv_blocks":null,"attention_chunk_size":null,"max_model_len":null,"stable_routing_id":null,"is_eagle":null,"role":null,"rank_header":null,"prefill_rank_header":null,"kv_transfer_domain":null,
		"kv_transfer_enforcement":null,"kv_transfer_preferred_weight":null}`
	call(t, h, "POST", "/workers", `{"worker_id":1,`+nulls, nil)
	equal(t, "nulls", f.record, catalog.Record{ID: 1, Scope: defaultScope})
	for _, body := range []string{`{}`, `{` + nulls, `{"taints":null,"topology_domains":null,"kv_events_endpoints":null,"replay_endpoints":null,"load_endpoints":null,"rank_endpoints":null,"adapters":null}`} {
		call(t, h, "PATCH", "/workers/1", body, nil)
		if !reflect.ValueOf(f.patch).IsZero() {
			t.Errorf("%s patches %+v", body, f.patch)
		}
	}
	call(t, h, "PATCH", "/workers/1", `{"taints":[],"topology_domains":{},"kv_events_endpoints":{},"replay_endpoints":{},"load_endpoints":{},"load_metrics":{"url":null},"rank_endpoints":{},"adapters":[]}`, nil)
	if p := f.patch; p.LoadEndpoints == nil || p.LoadMetrics == nil || p.RankEndpoints == nil || p.Adapters == nil || p.Taints == nil || p.TopologyDomains == nil || p.KVEventsEndpoints == nil || p.ReplayEndpoints == nil {
		t.Errorf("empty lists and maps must replace: %+v", p)
	}
}
