package httpapi

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

var naturalMedia = []string{"GPU", "CPU", "DISK"}

// hits is the answer of the API's description, with further instances.
func hits() conductor.Answer {
	return conductor.Answer{Media: append(naturalMedia[:3:3], "DP", `N"PU`), Instances: []conductor.InstanceMatch{
		{Instance: "", Media: []uint64{0, 0, 0, 0, 0}},
		{
			Instance: "vllm-prefill-node1", Longest: 256, Media: []uint64{128, 256, 0, 7, 64},
			Ranks: []conductor.RankMatch{{Rank: 0, Tokens: 128}, {Rank: 1, Tokens: 256}},
		},
		{
			Instance: "z\n", Longest: maxU64, Media: []uint64{maxU64, maxU64, maxU64, 1, maxU64},
			Ranks: []conductor.RankMatch{{Rank: maxU32, Tokens: maxU64}},
		},
	}}
}

// TestConductorAnswers compares one answer of every kind, on both listeners,
// with its golden file.
func TestConductorAnswers(t *testing.T) {
	full := conductor.Registration{
		Type: conductor.Standard, Identity: conductor.Identity{Tenant: "t", Model: `m"`, LoRA: "l", Salt: "s", BlockSize: 64},
		Instance: "i", Rank: maxU32, Endpoint: "tcp://a:1", Replay: "tcp://a:2", HashSeed: maxU64,
	}
	bare := conductor.Registration{
		Type: conductor.VLLM, Identity: conductor.Identity{Tenant: "default", Model: "m", BlockSize: 16}, Instance: "i", Endpoint: "tcp://b:1", HashSeed: 1337,
	}
	services := []conductor.Service{
		{Registration: full, State: kvevents.Live, Last: maxU64, HasLast: true, Lost: 15, Restarts: 16, Status: conductor.Status{
			Blocks:      []conductor.MediumBlocks{{Medium: "GPU", Blocks: 1}, {Medium: "CPU", Blocks: 2}, {Medium: "DISK", Blocks: 3}, {Medium: `N"PU`, Blocks: 4}},
			LastEventID: maxU64, HasEventID: true, Streams: 5, EventGaps: 6, EventsMissed: 7, LateEvents: 8, Restarts: 9, BaseMismatches: 10,
			Stale: true, Hashes: diagnose.HashesOwn, TokenBlocks: 11, Confirmed: 12, Resolved: 13, Unverified: 14,
			Undecodable: 17, Unused: []conductor.UnusedEvents{{Reason: kvevents.UnknownRank, Events: maxU64}, {Reason: kvevents.BlockSizeMismatch, Events: 18}},
		}},
		{Registration: bare},
	}
	const question = `{"model":"m","block_size":64,"token_ids":[]}`
	for _, tc := range []struct {
		golden             string
		fake               fake
		method, path, body string
	}{
		{"conductor_registered", fake{}, "POST", "/register", `{"endpoint":"tcp://a:1","type":"vLLM","modelname":"m","instance_id":"i\"1","block_size":4,"dp_rank":0}`},
		{"conductor_unregistered", fake{conductorFake: conductorFake{removed: []string{"i|default|0", `i"|t|1`}}}, "POST", "/unregister", `{"instance_id":"i"}`},
		{"conductor_hits", fake{conductorFake: conductorFake{answer: hits()}}, "POST", "/query", `{"model":"m","block_size":64,"token_ids":[],"tenant_id":"t\"1"}`},
		{"conductor_hits", fake{conductorFake: conductorFake{answer: hits()}}, "POST", "/query_by_hash", `{"model":"m","block_size":64,"seq_hashes":[],"tenant_id":"t\"1"}`},
		{"conductor_hits_none", fake{conductorFake: conductorFake{answer: conductor.Answer{Media: naturalMedia}}}, "POST", "/query", question},
		{"conductor_services", fake{conductorFake: conductorFake{services: services, selectionWorkers: 1}}, "GET", "/services", ""},
		{"conductor_services_none", fake{}, "GET", "/services", ""},
		{"health", fake{}, "GET", "/health", ""},
		{"diagnosis", fake{conductorFake: conductorFake{diagnosis: diagnosis()}}, "POST", "/diagnose", question},
		{"diagnosis_none", fake{}, "POST", "/diagnose", question},
	} {
		for prefix, h := range conductorHandlers(&tc.fake) {
			w := call(t, h, tc.method, prefix+tc.path, tc.body, nil)
			if w.Code != 200 || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s: status %d; Content-Type %q", tc.golden, w.Code, w.Header().Get("Content-Type"))
			}
			golden(t, tc.golden, w)
		}
	}
}

// TestHitsAreUnique: no member of an answer stands twice, even if a publisher
// calls a medium like another member.
func TestHitsAreUnique(t *testing.T) {
	a := hits()
	out := appendHits(nil, "t", &a)
	var tenants map[string]map[string]map[string]json.RawMessage
	if err := json.Unmarshal(out, &tenants); err != nil {
		t.Fatal(err)
	}
	again := 0
	for _, m := range tenants["t"] {
		again += len(m)
	}
	if want := 3 * 6; again != want { // longest_matched, DP and all media but one
		t.Errorf("%d members in %s, want %d", again, out, want)
	}
}

// diagnosis has every kind of row.
func diagnosis() diagnose.Diagnosis {
	engine := diagnose.CacheOwner{Instance: "i", Rank: maxU32}
	daemon := diagnose.CacheOwner{Instance: "i", Rank: 1, Backend: `daemon"0`}
	lora, salt, none := "l", "s", ""
	return diagnose.Diagnosis{
		Tenant: "t", Model: "m", LoRA: "l", Salt: "s", BlockSize: 64, HashSeed: maxU64, Registered: true,
		NumBlocks: math.MaxInt32, Truncated: true,
		Blocks: []diagnose.Block{
			{Local: maxU64, HasLocal: true, Sequence: maxU64, Owners: []diagnose.BlockOwner{{CacheOwner: engine, Medium: "GPU"}, {CacheOwner: daemon, Medium: "DISK"}}},
			{Sequence: 1 << 63},
		},
		Ranks: []diagnose.Rank{
			{CacheOwner: engine, Matched: 2, Hashes: diagnose.HashesTokens},
			{CacheOwner: daemon, Matched: 1, Break: &diagnose.Break{Index: 1, Reason: diagnose.BreakEvicted, Media: []string{"GPU", "DISK"}}},
			{CacheOwner: daemon, Break: &diagnose.Break{Reason: diagnose.BreakUnverified}},
		},
		Elsewhere: []diagnose.Elsewhere{
			{LoRA: &lora, Salt: &salt, BlockSize: 16, Registered: true, Matched: 8, Instances: []string{"i", "j"}},
			{LoRA: &none, BlockSize: 64},
			{Salt: &none, BlockSize: 64},
		},
		Findings: []string{`salt "s" matches`, "second"},
	}
}

// TestSelectionDiagnose: the body of the selection service's /diagnose arrives,
// has defaults, and is refused in the selection contract's way.
func TestSelectionDiagnose(t *testing.T) {
	f := &fake{conductorFake: conductorFake{diagnosis: diagnosis()}}
	h := newHandler(f)
	for _, tc := range []struct {
		body string
		want diagnose.Request
		max  int
	}{
		{
			`{"model_name":"m","tenant_id":"t","token_ids":[1,4294967295],"lora_name":"l","cache_salt":"s","max_blocks":4096,"x":1}`,
			diagnose.Request{Scope: catalog.Scope{Model: "m", Tenant: "t"}, Tokens: []uint32{1, maxU32}, LoRA: "l", Salt: "s"},
			4096,
		},
		{`{"block_hashes":[-1,7]}`, diagnose.Request{Scope: defaultScope, LocalHashes: []uint64{maxU64, 7}, ByHash: true}, 256},
		{
			`{"block_hashes":[],"token_ids":null,"lora_name":null,"cache_salt":null,"max_blocks":null}`,
			diagnose.Request{Scope: defaultScope, ByHash: true},
			256,
		},
		{`{"block_hashes":[7],"token_ids":[1]}`, diagnose.Request{Scope: defaultScope, Tokens: []uint32{1}, LocalHashes: []uint64{7}}, 256},
	} {
		w := call(t, h, "POST", "/diagnose", tc.body, nil)
		if w.Code != 200 || f.maxBlocks != tc.max {
			t.Errorf("%s: status %d, %d blocks", tc.body, w.Code, f.maxBlocks)
		}
		equal(t, tc.body, f.diagnosed, tc.want)
		golden(t, "diagnosis", w)
	}
	for body, status := range map[string]int{
		``: 400, `{}`: 400, `{"token_ids":null}`: 400, `[]`: 422, `{"token_ids":[-1]}`: 422, `{"block_hashes":["1"]}`: 422, `{"model_name":null}`: 422,
		`{"tenant_id":1}`: 422, `{"lora_name":1}`: 422, `{"cache_salt":1}`: 422, `{"max_blocks":0}`: 422, `{"max_blocks":4097}`: 422,
	} {
		if w := call(t, h, "POST", "/diagnose", body, nil); w.Code != status || errorText(t, w) == "" {
			t.Errorf("%s: %d %s, want %d", body, w.Code, w.Body, status)
		}
	}
	f.err = &contract.Error{Kind: contract.Unavailable, Text: "no schedulable workers", Reason: "x", Field: "y"}
	if w := call(t, h, "POST", "/diagnose", `{"token_ids":[]}`, nil); w.Code != 503 || errorText(t, w) != "no schedulable workers" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestQuestionSize: what the rows of former answers hold counts as memory of an
// idle body, also behind the end of a shorter answer.
func TestQuestionSize(t *testing.T) {
	b := newQueryBody(queryShape)
	x := b.pool.Get().(*scratch[queryBody])
	x.req.answer.Instances = []conductor.InstanceMatch{{Media: make([]uint64, 3), Ranks: make([]conductor.RankMatch, maxPooled/16)}}
	if b.release(x); b.size(&x.req) <= maxPooled {
		t.Errorf("size = %d, want more than %d", b.size(&x.req), maxPooled)
	}
	if y := b.pool.Get().(*scratch[queryBody]); y == x {
		t.Error("a huge answer went back to the pool")
	}
}
