package httpapi

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/internal/selection/fairness"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

const maxU64, maxU32 = math.MaxUint64, math.MaxUint32

// TestAnswers compares one answer of every kind with its golden file, in every
// dialect and by every way to it: the prefix and the contract of the process are
// independent.
func TestAnswers(t *testing.T) {
	scope := catalog.Scope{Model: "m", Tenant: `t"1`}
	rank := catalog.Rank{Worker: maxU64, DP: maxU32}
	chosen := selection.Selection{
		SelectionID: ptr("s\n1"), ReservationID: ptr("r/ü"), Scope: scope, Rank: rank, Endpoint: "http://w:8000", BlockSize: 16,
		Overlap: selection.OverlapSummary{LongestMatched: 128, GPU: 64, CPU: 96, Disk: 128, DP: []selection.RankTokens{{DP: 0, Tokens: 64}, {DP: 1, Tokens: 32}}},

		EffectivePrefillTokens: maxU64,
		SequenceHashes:         []uint64{1, maxU64}, ISLTokens: maxU64, TrackPrefill: true, PotentialDecodeBlocks: maxU64,
		DecodeBusy: ptr(false), Lease: 30 * time.Second,
	}
	advisory := chosen
	advisory.ReservationID, advisory.SequenceHashes, advisory.DecodeBusy, advisory.Lease = nil, nil, nil, 0
	advisory.WorkerLoad = &selection.WorkerLoad{ActivePrefillTokens: maxU64, PrefillTokenCapacity: 10_000_000, TotalKVBlocks: ptr[uint64](0), PrefillBusy: ptr(true)}
	bareLoad := advisory
	bareLoad.WorkerLoad = &selection.WorkerLoad{PrefillTokenCapacity: 1}
	hinted := chosen
	hinted.Fetch = &selection.Fetch{Source: catalog.Rank{Worker: 2}, Endpoint: `tcp://"a":1`, Hashes: []uint64{0, maxU64}}
	placed := selection.Selection{
		SelectionID: ptr("s"), ReservationID: ptr("r"), Scope: scope, Rank: rank, Endpoint: "http://w:8000", Lease: 100 * time.Millisecond,
		Repeated: true, PlacementOnly: true,
	}
	anonymous := chosen
	anonymous.SelectionID, anonymous.ReservationID, anonymous.Overlap, anonymous.Lease = nil, nil, selection.OverlapSummary{}, 0
	anonymous.DecodeBusy = nil
	loads := []selection.RankLoad{
		{Rank: catalog.Rank{Worker: 1}, PrefillTokens: 4, DecodeBlocks: 2, Requests: 1},
		{Rank: rank, PrefillTokens: maxU64, DecodeBlocks: maxU64, Requests: maxU64},
	}
	for _, tc := range []struct {
		golden               string
		fake                 fake
		method, target, body string
		status               int
	}{
		{"health", fake{}, "GET", "/health", "", 200},
		{"selection", fake{selection: chosen}, "POST", "/select_and_reserve", "{}", 200},
		{"selection_hinted", fake{selection: hinted}, "POST", "/select_and_reserve", "{}", 200},
		{"selection_anonymous", fake{selection: anonymous}, "POST", "/select", "{}", 200},
		{"selection_advisory", fake{selection: advisory}, "POST", "/select", "{}", 200},
		{"selection_advisory_bare", fake{selection: bareLoad}, "POST", "/select", "{}", 200},
		{"selection_placed", fake{selection: placed}, "POST", "/select_and_reserve", "{}", 200},
		{"pair", fake{pair: selection.Pair{ID: "p", Decode: chosen, Prefill: &chosen, Reason: counts.Paired}}, "POST", "/select_pair", "{}", 200},
		{"pair_alone", fake{pair: selection.Pair{ID: "p", Decode: anonymous, Reason: counts.PromptShort}}, "POST", "/select_pair", "{}", 200},
		{"pair_placed", fake{pair: selection.Pair{ID: "p", Decode: placed, Prefill: &placed}}, "POST", "/select_pair", "{}", 200},
		{"reservation", fake{}, "POST", "/reservations", `{"reservation_id":"r","worker_id":1}`, 201},
		{"reservation_leased", fake{}, "POST", "/reservations", `{"reservation_id":"r","worker_id":1,"lease_seconds":12.3456789}`, 201},
		{"reservation_repeated", fake{repeated: true}, "POST", "/reservations", `{"reservation_id":"r","worker_id":1,"if_exists":"return"}`, 200},
		{"renew", fake{}, "POST", "/reservations/r/renew", "any body", 200},
		{"prefill_complete", fake{}, "POST", "/reservations/r/prefill_complete", "", 200},
		{"output_block", fake{}, "POST", "/reservations/r/output_block", "{}", 200},
		{"free", fake{}, "DELETE", "/reservations/r", "", 200},
		{"loads", fake{scopes: []selection.ScopeLoads{
			{Scope: scope, Loads: loads, PendingCount: 3, PendingISLTokens: 77}, {Scope: defaultScope},
		}}, "GET", "/loads", "", 200},
		{"policies", fake{policies: []selection.ScopePolicy{
			{Scope: scope, Name: "fast", Type: "predicted-ttft", DecidedBy: policies.ByFile, Shadow: []string{"default"}, Learned: &selection.LearnedPrefills{
				Parameters: ttft.Parameters{Base: 0.02, PerToken: 8e-5, PerContext: 3e-9, PerAttended: 4.5e-8, Output: 320, Learned: true}, Samples: 500,
				Calibration: ttft.Calibration{Samples: 480, Q50: 1, Q90: 1.25},
				Compared:    ttft.Compared{Predictions: 256, Held: 0.875, Deciles: []ttft.Decile{{Predicted: 0.5, Observed: 0.75}}},
				Flow:        ttft.Flow{Arrivals: 3.5, Work: 1},
				Ranks:       []selection.RankQueue{{Rank: rank, Queue: ttft.Queue{Speed: 1.5, Prefills: 2}, Wait: 0.25, PerOutput: 0.0125}},
				Rails: []ttft.RailState{
					{Rail: ttft.LateRank, Engaged: true, Ranks: []catalog.Rank{rank}, Engagements: 2}, {Rail: ttft.LateScope},
				},
			}},
			{Scope: defaultScope, Name: "default", DecidedBy: policies.ByContract},
		}}, "GET", "/policies", "", 200},
		{"loads_none", fake{}, "GET", "/loads", "", 200},
		{"potential_loads", fake{loads: loads}, "POST", "/potential_loads", "{}", 200},
		{"overlap_scores", fake{scores: selection.OverlapScores{BlockSize: 4, NumBlocks: 4, Rows: []selection.OverlapRow{
			{Rank: catalog.Rank{Worker: 1}, Device: 1, Host: 1, Disk: 2, RouterCredit: 2.25},
			{Rank: rank, Device: maxU32, Host: maxU32, Disk: maxU32},
		}}}, "POST", "/overlap_scores", "{}", 200},
		{"explain", fake{explanation: selection.Explanation{
			Scope: catalog.Scope{Model: "m", Tenant: "t"}, Policy: "p", Type: "lmetric", DecidedBy: policies.ByFile, Size: selector.Prompt{Tokens: 40, Blocks: 2, BlockSize: 16},
			Chosen: &catalog.Rank{Worker: 1, DP: 3}, ChosenHeader: selection.RankHeader{Form: "local", Local: 1},
			Session: "child", Group: "root", Home: &catalog.Rank{Worker: 2, DP: 1}, MovedBecause: "filtered", Candidates: []selection.ExplainedRank{{
				Rank: catalog.Rank{Worker: 1, DP: 3}, Header: selection.RankHeader{Form: "local", Local: 1}, Cost: 8, Requests: 3, Predicted: ttft.Cost{Wait: 0.5, Prefill: 0.25},
				Reasons: selector.Reasons{Unit: "tokens", Device: 32, Uncached: 8, Prefill: 8, Decode: 1, Answer: 0.25, Speed: 1, Taint: 1, Source: selector.Default},
			}},
			Excluded: []selection.ExcludedRank{{Rank: catalog.Rank{Worker: 2, DP: 1}, Why: selection.MissingTaint}},
			Shadows:  []selection.ShadowChoice{{Policy: "default", Rank: catalog.Rank{Worker: 1}, Same: true}},
		}}, "POST", "/explain", "{}", 200},
		{"explain_target", fake{explanation: selection.Explanation{
			Policy: "default", DecidedBy: policies.ByContract,
			Target: &selection.TargetEffect{Predicted: 0.5, Within: 0.25, Margin: 1.125, WouldRefuse: true},
		}}, "POST", "/explain", "{}", 200},
		{"explain_none", fake{explanation: selection.Explanation{Policy: "default", DecidedBy: policies.ByContract, Refusal: "no"}}, "POST", "/explain", "{}", 200},
		{"sessions", fake{sessions: selection.SessionList{
			Sessions: []selection.ListedSession{
				{
					Scope: scope, Name: "child", Kind: selection.ClientsName, Parent: "root", Group: "root", Home: rank, Endpoint: "http://a", Bound: selection.SoftBinding, Class: "sub-agent",
					Turns: 3, Tokens: 9000, Seen: time.Unix(1_700_000_000, 0), Elsewhere: true, Chance: 0.5, Expected: time.Unix(1_700_000_010, 0),
				},
				{Scope: defaultScope, Name: strings.Repeat("n", 300), Kind: selection.TenantsName, Bound: selection.HardBinding, Class: "chat", Turns: 1, Running: 1, Seen: time.Unix(1_700_000_000, 0), Chance: 1},
			}, Total: 7, Next: &selection.SessionCursor{Seen: 255, Serial: 16},
		}}, "GET", "/sessions", "", 200},
		{"fairness", fake{fair: selection.FairnessList{
			Consumers: []selection.Consumer{
				{
					Scope: scope, PolicyClass: "default", Waiting: 3,
					Use: fairness.Use{Tenant: "gold", Program: strings.Repeat("p", 300), Weight: 3, Seconds: 12.5, Share: 0.75, Running: 2, Outcomes: [3]uint64{9, 1, 4}},
				},
				{Scope: defaultScope, PolicyClass: "default", Use: fairness.Use{Tenant: "b", Weight: 1}},
			}, Total: 7,
			Classes: []selection.FairClass{{
				Scope: scope, PolicyClass: "default", Rules: fairness.Rules{By: fairness.Program, HalfLife: 60},
				Evenness: fairness.Evenness{Tenants: 2, Programs: 3, OfTenants: 1, OfPrograms: 0.5},
			}},
		}}, "GET", "/fairness?by=program", "", 200},
		{"fairness_none", fake{}, "GET", "/fairness", "", 200},
		{"sessions_none", fake{}, "GET", "/sessions", "", 200},
		{"overlap_scores_none", fake{}, "POST", "/overlap_scores", "{}", 200},
		{"peers", fake{peers: []string{"tcp://a:1", "tcp://b:2"}}, "GET", "/replica_sync/peers", "", 200},
		{"peers_none", fake{}, "GET", "/replica_sync/peers", "", 200},
		{"peer_new", fake{newPeer: true}, "POST", "/replica_sync/register_peer", `{"endpoint":"tcp://a:1"}`, 201},
		{"peer_known", fake{}, "POST", "/replica_sync/register_peer", `{"endpoint":"tcp://a:1"}`, 200},
		{"peer_removed", fake{}, "POST", "/replica_sync/deregister_peer", `{"endpoint":"tcp://a:1"}`, 200},
		{"dump", fake{dump: `{"default:default":{"block_size":4,"events":[]}}`}, "GET", "/dump", "", 200},
		{"error_scope", fake{err: &contract.Error{
			Kind: contract.NotFound, Text: "no pending selection x", Scope: &scope, Tail: " (expired, already used, or never selected)",
		}}, "POST", "/reservations", `{"reservation_id":"x","worker_id":1}`, 404},
		{"diagnosis", fake{conductorFake: conductorFake{diagnosis: diagnosis()}}, "POST", "/diagnose", `{"token_ids":[1]}`, 200},
		{"slots_workers_max", fake{slotsWorkers: []node.SlotsWorker{{Worker: maxU64, Scope: scope, BlockSize: maxU32, DPStart: 3, DPSize: 2}}}, "GET", "/slots/workers", "", 200},
		{"slots_loads_max", fake{slotsLoads: []node.SlotsLoad{{Scope: scope, Load: loads[1]}}}, "GET", "/slots/loads", "", 200},
		{"error", fake{err: &contract.Error{Kind: contract.NotFound, Text: "reservation \"x\"\x01 not found"}}, "DELETE", "/reservations/x", "", 404},
	} {
		for _, s := range speakers(&tc.fake) {
			w := call(t, s, tc.method, s.prefix+tc.target, tc.body, nil)
			if w.Code != tc.status || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s %s: status %d, want %d; Content-Type %q", s.name, tc.golden, w.Code, tc.status, w.Header().Get("Content-Type"))
			}
			s.golden(t, tc.golden, w)
		}
	}
	if w := call(t, newHandler(&fake{}), http.MethodGet, "/metrics", "", nil); w.Body.String() != "# metrics\n" {
		t.Errorf("metrics = %q", w.Body)
	}
}

// speaker is a handler that speaks a dialect below a prefix.
type speaker struct {
	http.Handler
	name, prefix string
	d            dialect
}

// golden compares an answer with the file of its dialect. The 1.6 dialect has
// files of its own only for answers that differ.
func (s speaker) golden(t *testing.T, name string, w *httptest.ResponseRecorder) {
	t.Helper()
	own := filepath.Join("v1.6", name)
	_, err := os.Stat(filepath.Join("testdata", own+".json"))
	if s.d == dialect16 && err == nil {
		name = own
	}
	golden(t, name, w)
}

// speakers are all ways to the selection service's routes in each dialect.
func speakers(f *fake) []speaker {
	var all []speaker
	for _, process := range dialects {
		h := New(f, f.conductor(), Options{Log: zerolog.Nop(), Contract: contract.Version(process)})
		all = append(all, speaker{h, "unprefixed " + contract.Version(process).String(), "", process})
		for _, d := range dialects {
			all = append(all, speaker{h, d.prefix() + " of " + contract.Version(process).String(), d.prefix(), d})
		}
	}
	return all
}

// TestAppendString: what is written reads back the same, and is what serde_json
// would write.
func TestAppendString(t *testing.T) {
	for in, want := range map[string]string{
		"":                `""`,
		"plain ü 😀 <&>'/": `"plain ü 😀 <&>'/"`,
		"\"\\\n\r\t":      `"\"\\\n\r\t"`,
		"\x00\x1f\x7f":    "\"\\u0000\\u001f\x7f\"",
		"\u2028":          "\"\u2028\"",
		"a\xffb\xc3":      `"a` + "\ufffd" + `b` + "\ufffd" + `"`,
	} {
		got := string(appendString(nil, in))
		if got != want {
			t.Errorf("appendString(%q) = %s, want %s", in, got, want)
		}
		var back string
		if err := json.Unmarshal([]byte(got), &back); err != nil || back != strings.ToValidUTF8(strings.ReplaceAll(in, "\xff", "\ufffd"), "\ufffd") {
			t.Errorf("%s reads back as %q, %v", got, back, err)
		}
	}
}

// TestAppendFloat: floats keep a fraction and read back the same.
func TestAppendFloat(t *testing.T) {
	for want, in := range map[string]float64{
		"0.0": 0, "-0.0": math.Copysign(0, -1), "1.0": 1, "2.25": 2.25, "-1.5": -1.5, "0.1": 0.1, "1e-07": 1e-7, "1e+20": 1e20,
		"1000000.0": 1e6, "null": math.Inf(1), "1.7976931348623157e+308": math.MaxFloat64,
	} {
		if got := string(appendFloat(nil, in, 64)); got != want {
			t.Errorf("appendFloat(%g) = %s, want %s", in, got, want)
		}
		if back, err := strconv.ParseFloat(want, 64); want != "null" && (err != nil || back != in) {
			t.Errorf("%s reads back as %g", want, back)
		}
	}
	if got := string(appendFloat(nil, float64(float32(0.1)), 32)); got != "0.1" {
		t.Errorf("float32 0.1 = %s", got)
	}
}

// TestWorkerAnswers: records are echoed as they were given, with null for what
// is unset; members that Dynamo's records do not have are left out then, and so are maps.
func TestWorkerAnswers(t *testing.T) {
	bare := &catalog.Worker{Record: catalog.Record{ID: 1, Scope: defaultScope}, Lifecycle: catalog.Incomplete, Reasons: []string{
		"endpoint is required", "reconciliation failed: block_size mismatch for model=default tenant=default: existing=4 requested=8",
	}}
	full := &catalog.Worker{Record: catalog.Record{
		ID: maxU64, Scope: catalog.Scope{Model: "m", Tenant: "t"}, Endpoint: ptr(""), KVEventsEndpoint: ptr("tcp://a:1"),
		KVEventsEndpoints: map[uint32]string{10: "tcp://a:1", 9: `tcp://"b":1`}, ReplayEndpoint: ptr("tcp://a:2"), ReplayEndpoints: map[uint32]string{0: "tcp://a:3"}, KVEventCopies: ptr("set"),
		BlockSize: ptr[uint32](maxU32), StartRank: ptr[uint32](0), Size: ptr[uint32](2), MaxNumBatchedTokens: ptr[uint64](maxU64), TotalKVBlocks: ptr[uint64](0), AttentionChunkSize: ptr[uint64](8192),
		Role: ptr("decode"), RankEndpoints: map[uint32]string{1: "http://a:2", 0: "http://a:1"}, RankHeader: ptr("local"), PrefillRankHeader: ptr(false), Adapters: []string{"l", "m"},
		StableRoutingID: ptr("s"), IsEagle: ptr(false), Taints: []string{"a", "b\n"}, TopologyDomains: map[string]string{"zone": "z", "a\"b": ""},
		KVTransferDomain: ptr("zone"), KVTransferEnforcement: ptr("preferred"), KVTransferPreferredWeight: ptr[float32](0.1),
	}, Lifecycle: catalog.Schedulable}
	for _, tc := range []struct {
		golden               string
		fake                 fake
		method, target, body string
		status               int
	}{
		{"worker_put", fake{worker: full}, "POST", "/workers", `{"worker_id":1}`, 201},
		{"worker_patch", fake{worker: bare}, "PATCH", "/workers/1", "{}", 200},
		{"worker_remove", fake{worker: bare}, "DELETE", "/workers/1", "", 200},
		{"workers", fake{workers: []*catalog.Worker{bare, full}}, "GET", "/workers", "", 200},
		{"workers_none", fake{}, "GET", "/workers", "", 200},
		{"ready", fake{ready: true, workers: []*catalog.Worker{full}}, "GET", "/ready", "", 200},
		{"ready_not", fake{}, "GET", "/ready", "", 503},
	} {
		for _, s := range speakers(&tc.fake) {
			w := call(t, s, tc.method, s.prefix+tc.target, tc.body, nil)
			if w.Code != tc.status {
				t.Errorf("%s %s: status %d, want %d", s.name, tc.golden, w.Code, tc.status)
			}
			s.golden(t, tc.golden, w)
		}
	}
}
