package selection_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// hinted makes a worker with one rank take hints of a type, and be a source at "control".
func hinted(kind string) func(*catalog.Record) {
	return func(r *catalog.Record) {
		r.RouterHintWorkerType, r.RouterHintSourceControlEndpoints = &kind, map[uint32]string{0: "control"}
	}
}

// askHint is a request for a booking on worker 1 that wants a hint.
func askHint(tokens []uint32) *selection.SelectRequest {
	r := servicetest.Ask(tokens)
	r.Hint, r.Pinned = selection.HintInAnswer, &catalog.Rank{Worker: 1}
	return r
}

// TestHintSources: which rank is named. The rules without a comment are those of dynamo-kv-router 1.6.1, which
// test/others/peers/test_hints.py compares with random states.
func TestHintSources(t *testing.T) {
	type change = func(*catalog.Record)
	with := func(more ...change) change {
		return func(r *catalog.Record) {
			for _, f := range more {
				f(r)
			}
		}
	}
	place := func(domain, at, enforcement string) change {
		return func(r *catalog.Record) {
			r.KVTransferDomain, r.TopologyDomains, r.KVTransferEnforcement = &domain, map[string]string{domain: at}, &enforcement
		}
	}
	revision := func(name string) change { return func(r *catalog.Record) { r.Revision = &name } }
	all := hinted("decode")
	for _, tt := range []struct {
		name   string
		target change
		source change // of worker 2, which has all 8 blocks; worker 3 has 6 and is a source
		want   uint64 // the source; 0: none
		blocks int
	}{
		{"the longest", all, all, 2, 8},
		{"the target takes none", with(), all, 0, 0},
		{"an empty type", hinted(""), hinted(""), 0, 0},
		{"another type", all, hinted("prefill"), 3, 6},
		{"no type", all, with(), 3, 6},
		{"no control endpoint", all, with(all, func(r *catalog.Record) { r.RouterHintSourceControlEndpoints = map[uint32]string{1: "x"} }), 3, 6},
		{"an empty control endpoint", all, with(all, func(r *catalog.Record) { r.RouterHintSourceControlEndpoints = map[uint32]string{0: ""} }), 3, 6},
		{"events of a state agent", all, with(all, func(r *catalog.Record) { r.KVEventSourceMode = new("state_agent_v2") }), 3, 6},
		{"other events", all, with(all, func(r *catalog.Record) { r.KVEventSourceMode = new("engine") }), 2, 8},
		// Ours: it may be gone before the engine asks it.
		{"draining", all, with(all, func(r *catalog.Record) { r.Draining = "leaves" }), 3, 6},
		// Ours: caches of another revision or place are of no use, as for pairs.
		{"another revision", all, with(all, revision("v2")), 3, 6},
		{"the target's revision", with(all, revision("v2")), with(all, revision("v2")), 2, 8},
		{"another place", with(all, place("rack", "a", "required")), with(all, place("rack", "b", "required")), 3, 6},
		{"another place, which is only preferred", with(all, place("rack", "a", "preferred")), with(all, place("rack", "b", "preferred")), 2, 8},
		{"the same place", with(all, place("rack", "a", "required")), with(all, place("rack", "a", "required")), 2, 8},
		{"another domain", with(all, place("rack", "a", "required")), with(all, place("zone", "a", "required")), 3, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := servicetest.Start(t)
			w.Put(servicetest.Record(1, 1, tt.target))
			put := servicetest.Record(2, 1, tt.source)
			if _, err := w.PutWorker(put); err != nil {
				t.Fatal(err)
			}
			w.Put(servicetest.Record(3, 1, all))
			prompt := servicetest.Prompt(1, 8*servicetest.BlockSize)
			for id, blocks := range map[uint64]int{1: 3, 2: 8, 3: 6} {
				e := w.Engine(id, 0)
				e.NameSalt = id // each engine has names of its own
				e.Publish(0, e.Stored(prompt[:blocks*servicetest.BlockSize], servicetest.BlockSize, nil))
			}
			w.Settle()
			got, err := w.Select(t.Context(), askHint(prompt), true)
			if err != nil {
				t.Fatal(err)
			}
			if tt.want == 0 {
				if got.Fetch != nil {
					t.Fatalf("got %+v", got.Fetch)
				}
				return
			}
			e := w.Engine(tt.want, 0)
			e.NameSalt = tt.want
			if f := got.Fetch; f == nil || f.Source.Worker != tt.want || f.Endpoint != "control" ||
				!slices.Equal(f.Hashes, e.Names(prompt, servicetest.BlockSize)[:tt.blocks]) {
				t.Fatalf("got %+v, want worker %d", f, tt.want)
			}
			w.WantSeries(`kv_hints_total{model_name="m",result="given"} 1`)
		})
	}
}

// TestNoHint: kinds of requests that get none, although another rank has more of the prompt.
func TestNoHint(t *testing.T) {
	prompt := servicetest.Prompt(1, 4*servicetest.BlockSize)
	start := func(t *testing.T, change ...func(*node.Config)) *servicetest.World {
		w := servicetest.Start(t, change...)
		for id := range uint64(2) {
			w.Put(servicetest.Record(id+1, 1, hinted("decode")))
		}
		if e := w.Engine(2, 0); e != nil {
			e.Publish(0, e.Stored(prompt, servicetest.BlockSize, nil))
			w.Settle()
		}
		return w
	}
	w := start(t)
	for name, change := range map[string]func(*selection.SelectRequest){
		"not asked for":        func(r *selection.SelectRequest) { r.Hint = selection.NoHint },
		"the source is chosen": func(r *selection.SelectRequest) { r.Pinned.Worker = 2 },
		"another prompt":       func(r *selection.SelectRequest) { r.Prompt = servicetest.Ask(servicetest.Prompt(9, 16)).Prompt },
		"the engine may take another rank": func(r *selection.SelectRequest) {
			r.SharesFrontend = func(catalog.Entry) bool { return true }
		},
	} {
		req := askHint(prompt)
		change(req)
		if got, err := w.Select(t.Context(), req, true); err != nil || got.Fetch != nil {
			t.Errorf("%s: got %+v, %v", name, got.Fetch, err)
		}
	}
	if got, err := w.Select(t.Context(), askHint(prompt), false); err != nil || got.Fetch != nil {
		t.Errorf("not booked: got %+v, %v", got.Fetch, err)
	}
	again := func() selection.Selection {
		req := askHint(prompt)
		req.ReservationID, req.IfExists = new("again"), selection.ReturnFirst
		got, err := w.Select(t.Context(), req, true)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if first, repeated := again(), again(); first.Fetch == nil || repeated.Fetch != nil || !repeated.Repeated {
		t.Errorf("first %+v, repeated %+v", first.Fetch, repeated.Fetch)
	}
	// Blocks that are only predicted need not be there.
	w = start(t, predictedFor(time.Minute))
	if got, err := w.Select(t.Context(), askHint(prompt), true); err != nil || got.Fetch != nil {
		t.Errorf("with predictions: got %+v, %v", got.Fetch, err)
	}
}

// TestPairHint: the side that computes the prompt gets the hint.
func TestPairHint(t *testing.T) {
	w := servicetest.Start(t)
	for id, of := range []string{1: catalog.RolePrefill, 2: catalog.RolePrefill, 3: catalog.RoleDecode} {
		if of != "" {
			w.Put(servicetest.Record(uint64(id), 1, role(of), hinted(of)))
		}
	}
	prompt := servicetest.Prompt(1, 4*servicetest.BlockSize)
	e := w.Engine(2, 0)
	e.Publish(0, e.Stored(prompt, servicetest.BlockSize, nil))
	w.Settle()
	for _, alone := range []bool{false, true} {
		got, err := w.SelectPair(t.Context(), askPair("", prompt, func(r *selection.PairRequest) {
			r.Hint, r.Prefill.Pinned = selection.HintInAnswer, &catalog.Rank{Worker: 1}
			if alone {
				r.Prefill.Pinned = &catalog.Rank{Worker: 9}
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		if alone { // no other rank for decodes has anything
			if got.Prefill != nil || got.Decode.Fetch != nil {
				t.Errorf("alone: got %+v", got)
			}
			continue
		}
		if f := got.Prefill.Fetch; f == nil || f.Source.Worker != 2 || len(f.Hashes) != 4 || got.Decode.Fetch != nil {
			t.Errorf("got %+v", f)
		}
	}
}

// TestLongHint: a hint has at most 4,096 hashes.
func TestLongHint(t *testing.T) {
	w := servicetest.Start(t)
	for id := range uint64(2) {
		w.Put(servicetest.Record(id+1, 1, hinted("decode")))
	}
	prompt := servicetest.Prompt(1, 5000*servicetest.BlockSize)
	e := w.Engine(2, 0)
	e.Publish(0, e.Stored(prompt, servicetest.BlockSize, nil))
	w.Settle()
	got, err := w.Select(t.Context(), askHint(prompt), true)
	if err != nil || got.Fetch == nil || !slices.Equal(got.Fetch.Hashes, e.Names(prompt, servicetest.BlockSize)[:selection.MaxFetchHashes]) {
		t.Fatalf("got %v", err)
	}
}

// TestHintsInRequests: what a gateway is told depends on the chosen worker's record. Peers are those of llm-d's
// p2p-source-producer, whose header names another endpoint with more of the prompt than the chosen one.
func TestHintsInRequests(t *testing.T) {
	peer := func(at string) func(*catalog.Record) { return func(r *catalog.Record) { r.KVPeerEndpoint = &at } }
	inBody := func(r *catalog.Record) { hinted("decode")(r); r.KVHintsInBody = new(true) }
	both := func(at string) func(*catalog.Record) {
		return func(r *catalog.Record) { inBody(r); peer(at)(r) }
	}
	for name, tt := range map[string]struct {
		target, source func(*catalog.Record)
		want           *selection.Fetch // but for its hashes, if it has any
	}{
		"a peer":                {peer("10.0.0.1:8000"), peer("10.0.0.2:8000"), &selection.Fetch{Endpoint: "10.0.0.2:8000", Peer: true}},
		"no sidecar":            {peer(""), peer("10.0.0.2:8000"), nil},
		"no peer":               {peer("10.0.0.1:8000"), peer(""), nil},
		"itself":                {peer("10.0.0.1:8000"), peer("10.0.0.1:8000"), nil},
		"in the body":           {inBody, hinted("decode"), &selection.Fetch{Endpoint: "control"}},
		"not read in the body":  {hinted("decode"), inBody, nil},
		"a sidecar comes first": {both("10.0.0.1:8000"), both("10.0.0.2:8000"), &selection.Fetch{Endpoint: "10.0.0.2:8000", Peer: true}},
	} {
		t.Run(name, func(t *testing.T) {
			w := servicetest.Start(t)
			w.Put(servicetest.Record(1, 1, tt.target))
			w.Put(servicetest.Record(2, 1, tt.source))
			prompt := servicetest.Prompt(1, 4*servicetest.BlockSize)
			e := w.Engine(2, 0)
			e.Publish(0, e.Stored(prompt, servicetest.BlockSize, nil))
			w.Settle()
			req := askHint(prompt)
			req.Hint = selection.HintInRequest
			got, err := w.Select(t.Context(), req, true)
			if err != nil {
				t.Fatal(err)
			}
			if tt.want != nil {
				if tt.want.Source.Worker = 2; !tt.want.Peer {
					tt.want.Hashes = e.Names(prompt, servicetest.BlockSize)
				}
			}
			if d := cmp.Diff(tt.want, got.Fetch); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}
