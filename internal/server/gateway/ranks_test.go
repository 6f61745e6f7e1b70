package gateway_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

const rankHeader, prefillRank = "x-data-parallel-rank", "x-prefiller-data-parallel-rank"

func startRank(n uint32) func(*catalog.Record) {
	return func(r *catalog.Record) {
		r.StartRank, r.KVEventsEndpoints = &n, make(map[uint32]string)
		for i := range r.RankCount() {
			r.KVEventsEndpoints[n+i] = servicetest.Endpoint(r.ID, n+i)
		}
	}
}

func told(form string) func(*catalog.Record) { return func(r *catalog.Record) { r.RankHeader = &form } }

func at1(r *catalog.Record) { r.Endpoint = new("http://" + at(1)) }

func obeys(r *catalog.Record) { r.PrefillRankHeader = new(true) }

// announce has the rank of a worker store blocks of a prompt.
func (w *world) announce(worker uint64, dp uint32, ids []uint32) {
	e := w.Engine(worker, dp)
	e.Publish(dp, e.Stored(ids, servicetest.BlockSize, nil))
	w.Settle()
}

// TestRankHeader: the engine is told the rank in its frontend's form, which may change with the
// catalog; a client's own header never arrives.
func TestRankHeader(t *testing.T) {
	w := start(t)
	ids := servicetest.Prompt(7, 16)
	w.put(1, 2, startRank(2))
	w.announce(1, 3, ids)
	check := func(when, want string) {
		t.Helper()
		e, p := w.post(chatPath, chat(ids, ""), rankHeader, "9", prefillRank, "9")
		if p.destination != at(1) || p.headers[rankHeader] != want || slices.Contains(p.removed, rankHeader) != (want == "") || !slices.Contains(p.removed, prefillRank) {
			t.Errorf("%s: %+v", when, p)
		}
		e.close()
	}
	check("alone at its endpoint", "1")
	w.put(2, 1, at1, role("prefill"))
	w.Remove(2)
	check("alone again", "1")
	w.put(3, 2, at1, func(r *catalog.Record) {
		r.Adapters = []string{"only"}
		r.Role = new("decode")
		r.Scope.Tenant = "other"
	})
	check("beside another", "3")
	for form, want := range map[string]string{"local": "1", "global": "3", "none": ""} {
		w.put(1, 2, startRank(2), told(form))
		check(form, want)
	}
}

// TestPrefillRank: a sidecar that obeys is told the booked prefill rank in the form of that worker,
// and the decode rank stays; without it neither engine is told a rank, the least loaded rank is
// booked, and no more overlap is promised than the worker's worst rank has.
func TestPrefillRank(t *testing.T) {
	ids := servicetest.Prompt(1, 16)
	own := func(r *catalog.Record) {
		r.RankEndpoints = map[uint32]string{2: "http://10.0.0.9:1", 3: "http://10.0.0.9:2"}
	}
	for name, tc := range map[string]struct {
		prefill, decode   func(*catalog.Record)
		destination, rank string
		decodeRank        bool
		loads             string
	}{
		"obeys, local":     {told("local"), obeys, at(1), "1", true, "1/2: 0 0 0; 1/3: 8 4 1"},
		"obeys, global":    {told("global"), obeys, at(1), "3", true, "1/2: 0 0 0; 1/3: 8 4 1"},
		"obeys, default":   {func(*catalog.Record) {}, obeys, at(1), "1", true, "1/2: 0 0 0; 1/3: 8 4 1"},
		"obeys, own ports": {own, obeys, "10.0.0.9:2", "", true, "1/2: 0 0 0; 1/3: 8 4 1"},
		"own ports":        {own, func(*catalog.Record) {}, "10.0.0.9:2", "", false, "1/2: 0 0 0; 1/3: 8 4 1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			w.put(1, 2, startRank(2), role("prefill"), tc.prefill)
			w.put(2, 2, role("decode"), tc.decode)
			w.announce(1, 3, ids[:8])
			e, p := w.post(chatPath, chat(ids, `,"stream":true`), prefillRank, "9")
			if p.headers[prefiller] != tc.destination || p.headers[prefillRank] != tc.rank || (p.headers[rankHeader] != "") != tc.decodeRank {
				t.Errorf("%+v", p)
			}
			if slices.Contains(p.removed, prefillRank) != (tc.rank == "") {
				t.Errorf("removed: %v", p.removed)
			}
			if got := w.loads(); got[:len(tc.loads)] != tc.loads {
				t.Errorf("loads are %s", got)
			}
			e.close()
		})
	}
	for name, decode := range map[string]func(*catalog.Record){"forwards": func(*catalog.Record) {}, "none": obeys} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			form := told("local")
			if name == "none" {
				form = told("none")
			}
			w.put(1, 2, startRank(2), role("prefill"), form)
			w.put(2, 2, role("decode"), decode)
			w.announce(1, 3, ids[:8])
			w.Burden("load", 1, 3, 1, 4) // the rank with the blocks has more to do
			e, p := w.post(chatPath, chat(ids, `,"stream":true`))
			if p.headers[prefiller] != at(1) || p.headers[prefillRank] != "" || (p.headers[rankHeader] != "") != (name == "none") {
				t.Errorf("%+v", p)
			}
			if got, want := w.loads(), "1/2: 16 4 1; "; got[:len(want)] != want {
				t.Errorf("loads are %s", got)
			}
			e.close()
		})
	}
}

// TestMixedSidecars: where only some sidecars obey, each request is booked for the one it meets.
func TestMixedSidecars(t *testing.T) {
	w := start(t)
	w.put(1, 2, role("prefill"))
	w.put(2, 1, role("decode"), obeys)
	w.put(3, 1, role("decode"))
	ids := servicetest.Prompt(1, 16)
	w.announce(1, 1, ids[:8])
	for decode, want := range map[uint64]string{2: "1/0: 0 0 0; 1/1: 8 4 1; ", 3: "1/0: 16 4 1; "} {
		w.Burden("busy", 5-decode, 0, 100, 100)
		e, p := w.post(chatPath, chat(ids, `,"stream":true`))
		if p.destination != at(decode) || (p.headers[prefillRank] == "1") != (decode == 2) {
			t.Errorf("worker %d: %+v", decode, p)
		}
		if got := w.loads(); decode == 2 && got[:len(want)] != want {
			t.Errorf("worker %d: loads are %s", decode, got)
		}
		e.close()
		if err := w.Free("busy"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPrefillerLeaves: a request that waits for a decode worker has nothing booked; if the only prefill worker
// has left when its turn comes, the decode worker prefills, and the prompt is booked there.
func TestPrefillerLeaves(t *testing.T) {
	w := start(t, func(c *node.Config, _ *settings) { c.Scopes.Admission = admission.Config{Threshold: new(0.5)} })
	full := func(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(16)) }
	w.put(1, 1, role("prefill"))
	w.put(2, 1, role("decode"), obeys, full)
	w.put(3, 1, role("decode"), full)
	w.Burden("two", 2, 0, 4, 16)
	w.Burden("three", 3, 0, 4, 16)
	e := w.open()
	e.request(chatPath, false)
	e.body(chat(servicetest.Prompt(1, 16), `,"stream":true`), true)
	w.wantLoads("1/0: 0 0 0; 2/0: 16 4 1; 3/0: 16 4 1")
	await(t, func() string {
		if n := w.Loads(nil, nil)[0].PendingCount; n != 1 {
			return fmt.Sprintf("%d requests wait", n)
		}
		return ""
	})
	w.Remove(1)
	if err := w.Free("three"); err != nil {
		t.Fatal(err)
	}
	if p := e.placement(true, false); p.destination != at(3) || p.headers[prefiller] != "" || p.headers[prefillRank] != "" {
		t.Errorf("%+v", p)
	}
	w.wantLoads("2/0: 16 4 1; 3/0: 16 4 1")
	e.close()
}
