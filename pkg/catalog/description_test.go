package catalog_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

const engineURL = "http://gpu-1:8000"

// told is what an engine with these ranks says.
func told(ranks uint32, change ...func(*catalog.Description)) *catalog.Description {
	d := &catalog.Description{
		Engine: "sglang", Model: "m1", Adapters: []string{"sql"}, BlockSize: 4, Size: ranks, TotalKVBlocks: 100, MaxNumBatchedTokens: 2048,
		KVEventsEndpoints: map[uint32]string{}, ReplayEndpoints: map[uint32]string{},
		From: map[string]string{
			"model_name": "/v1/models", "adapters": "/v1/models", "block_size": "/info", "data_parallel_size": "/info", "data_parallel_start_rank": "/info",
			"kv_events_endpoints": "/info", "replay_endpoints": "/info",
		},
		Unknown: map[string]string{},
	}
	for dp := range ranks {
		d.KVEventsEndpoints[dp] = fmt.Sprintf("tcp://gpu-1:%d", 5557+dp)
		d.ReplayEndpoints[dp] = fmt.Sprintf("tcp://gpu-1:%d", 6557+dp)
	}
	for _, f := range change {
		f(d)
	}
	return d
}

// asked is a record that the engine is to describe.
func asked(change ...func(*catalog.Record)) catalog.Record {
	r := catalog.Record{ID: 1, Scope: catalog.Scope{Model: "default", Tenant: "default"}, Endpoint: new(engineURL), Describe: &catalog.Describe{Model: true}}
	for _, f := range change {
		f(&r)
	}
	return r
}

// shown is what readers see of a described worker.
func shown(w *catalog.Worker) string {
	text := fmt.Sprintf("%s %s", w.Lifecycle, w.Scope.Model)
	if w.BlockSize != nil {
		text += fmt.Sprintf(" blocks of %d", *w.BlockSize)
	}
	text += fmt.Sprintf(" ranks %d+%d", w.FirstRank(), w.RankCount())
	if w.KVEventsEndpoint != nil {
		text += " events " + *w.KVEventsEndpoint
	}
	if len(w.KVEventsEndpoints) > 0 {
		text += fmt.Sprint(" events ", w.KVEventsEndpoints)
	}
	if w.ReplayEndpoint != nil {
		text += " replay " + *w.ReplayEndpoint
	}
	if len(w.ReplayEndpoints) > 0 {
		text += fmt.Sprint(" replays ", w.ReplayEndpoints)
	}
	if len(w.Adapters) > 0 {
		text += fmt.Sprint(" adapters ", w.Adapters)
	}
	if w.LoadEndpoint != nil {
		text += " load " + *w.LoadEndpoint
	}
	if w.Role != nil {
		text += " role " + *w.Role
	}
	if w.IsEagle != nil {
		text += fmt.Sprint(" eagle ", *w.IsEagle)
	}
	return strings.Join(append([]string{text}, w.Explain()...), "; ")
}

// TestFilledIn proves that an engine fills in what a record leaves out and nothing else.
func TestFilledIn(t *testing.T) {
	const single = "schedulable m1 blocks of 4 ranks 0+1 events tcp://gpu-1:5557 replay tcp://gpu-1:6557 adapters [sql]"
	const double = "schedulable m1 blocks of 4 ranks 0+2 events map[0:tcp://gpu-1:5557 1:tcp://gpu-1:5558] replays map[0:tcp://gpu-1:6557 1:tcp://gpu-1:6558] adapters [sql]"
	rows := map[string]struct {
		record catalog.Record
		told   *catalog.Description
		want   string
	}{
		"all":       {asked(), told(1), single},
		"all ranks": {asked(), told(2), double},
		"a model of its own": {
			asked(func(r *catalog.Record) { r.Scope.Model, r.Describe = "mine", new(catalog.Describe) }), told(1),
			strings.Replace(single, "m1", "mine", 1),
		},
		"a block size of its own": {asked(func(r *catalog.Record) { r.BlockSize = new(uint32(8)) }), told(1), strings.Replace(single, "of 4", "of 8", 1)},
		"adapters of its own":     {asked(func(r *catalog.Record) { r.Adapters = []string{"x"} }), told(1), strings.Replace(single, "sql", "x", 1)},
		"no adapters":             {asked(func(r *catalog.Record) { r.Adapters = []string{} }), told(1), strings.TrimSuffix(single, " adapters [sql]")},
		"sockets of its own":      {asked(func(r *catalog.Record) { r.KVEventsEndpoint = new("tcp://other:1") }), told(1), strings.Replace(single, "gpu-1:5557", "other:1", 1)},
		"the first of several ranks": {
			asked(func(r *catalog.Record) { r.KVEventsEndpoint = new("tcp://other:1") }), told(2),
			"schedulable m1 blocks of 4 ranks 0+2 events tcp://other:1 events map[0:tcp://other:1 1:tcp://other:2]" + double[strings.Index(double, " replays"):],
		},
		"load reports": {asked(), told(1, func(d *catalog.Description) {
			d.LoadEndpoints, d.From["load_endpoints"] = map[uint32]string{0: "tcp://gpu-1:7557"}, "/info"
		}), single + " load tcp://gpu-1:7557"},
		"role and eagle": {asked(), told(1, func(d *catalog.Description) {
			d.Role, d.Eagle, d.From["role"], d.From["is_eagle"] = catalog.RolePrefill, true, "/info", "/info"
		}), single + " role prefill eagle true"},
		"role and eagle of its own": {
			asked(func(r *catalog.Record) { r.Role, r.IsEagle = new(catalog.RoleDecode), new(false) }),
			told(1, func(d *catalog.Description) { d.Role, d.Eagle = catalog.RolePrefill, true }), single + " role decode eagle false",
		},
		"some of the ranks": {
			asked(func(r *catalog.Record) { r.StartRank, r.Size = new(uint32(1)), new(uint32(1)) }), told(2),
			"schedulable m1 blocks of 4 ranks 1+1 events tcp://gpu-1:5558 replay tcp://gpu-1:6558 adapters [sql]",
		},
		"the last of several engines": {asked(), told(0, func(d *catalog.Description) {
			d.StartRank, d.Size, d.KVEventsEndpoints[3] = 3, 1, "tcp://gpu-1:5560"
		}), "schedulable m1 blocks of 4 ranks 3+1 events tcp://gpu-1:5560 adapters [sql]"},
		"no sockets": {
			asked(), told(0, func(d *catalog.Description) { d.Unknown["kv_events_endpoints"] = "says nothing" }),
			"incomplete m1 blocks of 4 ranks 0+1 adapters [sql]; says nothing; kv_events endpoint is required for dp_rank 0",
		},
		"no model": {
			asked(), told(1, func(d *catalog.Description) { d.Model = "" }),
			strings.Replace(strings.Replace(single, "schedulable", "incomplete", 1), "m1", "default", 1) + "; the engine does not tell its model",
		},
		"ranks elsewhere": {asked(), told(2, func(d *catalog.Description) {
			delete(d.KVEventsEndpoints, 1)
			d.Unknown["kv_events_endpoints"] = "1 is elsewhere"
		}), strings.Replace(strings.Replace(double, "schedulable", "incomplete", 1), " 1:tcp://gpu-1:5558", "", 1) + "; 1 is elsewhere; kv_events endpoint is required for dp_rank 1"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			c, _ := newWorld(t, events)
			w, err := c.Put(row.record)
			if err != nil {
				t.Fatal(err)
			}
			if got := shown(w); !strings.Contains(got, catalog.NotAsked) || !strings.HasPrefix(got, "incomplete") {
				t.Errorf("before: %s", got)
			}
			now, changed := c.Describe(w, row.told, "")
			if got := shown(now); got != row.want || !changed {
				t.Errorf("%s\nwant %s", got, row.want)
			}
			for field := range now.Describe.Filled {
				if now.Describe.Filled[field] == "" {
					t.Errorf("%s comes from nowhere", field)
				}
			}
			direct := row.record
			d := *direct.Describe
			d.Told, direct.Describe = row.told, &d
			if w, err = c.Put(direct); err != nil || shown(w) != row.want {
				t.Errorf("registered with it: %s, %v", shown(w), err)
			}
			if got := fmt.Sprint(c.Lacking(direct)); (got == "<nil>") != (w.Lifecycle == catalog.Schedulable) {
				t.Errorf("it lacks %s", got)
			}
			if w, err = c.Put(w.Record); err != nil || shown(w) != row.want { // as after a restart
				t.Errorf("registered again: %s, %v", shown(w), err)
			}
		})
	}
}

// TestToldAgain proves what a worker does when its engine answers again: it follows all but the
// model and the block size, and keeps what it has while there is no answer.
func TestToldAgain(t *testing.T) {
	c, _ := newWorld(t, events)
	step := func(what string, d *catalog.Description, fault, want string) {
		t.Helper()
		w := c.List(nil, nil)[0]
		now, _ := c.Describe(w, d, fault)
		if got := shown(now); got != want {
			t.Errorf("%s: %s\nwant %s", what, got, want)
		}
	}
	if _, err := c.Put(asked()); err != nil {
		t.Fatal(err)
	}
	const first = "schedulable m1 blocks of 4 ranks 0+1 events tcp://gpu-1:5557 replay tcp://gpu-1:6557 adapters [sql]"
	incomplete := strings.Replace(first, "schedulable", "incomplete", 1)
	step("away", nil, "refused", "incomplete default ranks 0+1; refused; block_size must be greater than 0; kv_events endpoint is required for dp_rank 0")
	step("there", told(1), "", first)
	step("away again", nil, "refused", first)
	step("too busy for one question", told(1, func(d *catalog.Description) {
		d.BlockSize, d.Size, d.Adapters, d.Unanswered = 0, 0, nil, true
		d.Unknown["block_size"] = "busy"
	}), "", first)
	step("another block size", told(1, func(d *catalog.Description) { d.BlockSize = 8 }), "",
		incomplete+"; the engine now has block_size 8, not 4: register the worker again")
	step("another model", told(1, func(d *catalog.Description) { d.Model = "m2" }), "",
		incomplete+`; the engine now has model "m2", not "m1": register the worker again`)
	step("away meanwhile", nil, "refused", incomplete+`; the engine now has model "m2", not "m1": register the worker again`)
	step("the old one again", told(1), "", first)
	step("other adapters and ports", told(1, func(d *catalog.Description) {
		d.Adapters, d.KVEventsEndpoints = []string{"a", "b"}, map[uint32]string{0: "tcp://gpu-1:7000"}
	}), "", strings.NewReplacer("5557", "7000", "sql", "a b").Replace(first))

	w := c.List(nil, nil)[0]
	blocks, _ := w.KVBlocks()
	tokens, _ := w.BatchTokens()
	if blocks != 100 || tokens != 2048 || w.TotalKVBlocks != nil {
		t.Errorf("capacities %d, %d, record %v", blocks, tokens, w.TotalKVBlocks)
	}
	again, err := c.Put(asked())
	if err != nil || shown(again) != shown(w) {
		t.Errorf("the same record: %s, %v", shown(again), err)
	}
	patched, err := c.Patch(1, catalog.Patch{KVEventsEndpoint: new("tcp://gpu-1:1"), Taints: []string{"x"}})
	if want := strings.NewReplacer("5557", "1", "sql", "a b").Replace(first); err != nil || shown(patched) != want {
		t.Errorf("patched: %s, %v, want %s", shown(patched), err, want)
	}
	if now, changed := c.Describe(w, told(1), ""); now == nil || !changed || *now.KVEventsEndpoint != "tcp://gpu-1:1" {
		t.Errorf("after the patch: %v", now)
	}
	moved, err := c.Patch(1, catalog.Patch{Endpoint: new("http://gpu-2:8000")})
	if err != nil || !strings.HasPrefix(shown(moved), "incomplete default ranks 0+1 events tcp://gpu-1:1; "+catalog.NotAsked) {
		t.Errorf("another engine: %s, %v", shown(moved), err)
	}
	if now, changed := c.Describe(w, told(1), ""); now != nil || changed {
		t.Errorf("the answer of the earlier engine: %s", shown(now))
	}
}

// TestCorrectedBlockSize proves that events correct the block size that an engine has told, once, and
// no other one.
func TestCorrectedBlockSize(t *testing.T) {
	c, _ := newWorld(t, events)
	capacity := func(d *catalog.Description) { d.KVTokens, d.From["total_kv_blocks"] = 400, "/metrics" }
	list := func() *catalog.Worker { return c.List(nil, nil)[0] }
	is := func(what, want string, blocks uint64) {
		t.Helper()
		w := list()
		n, _ := w.KVBlocks()
		if got := fmt.Sprintf("%s blocks of %d from %s", w.Lifecycle, *w.BlockSize, w.Describe.Filled["block_size"]); got != want || n != blocks {
			t.Errorf("%s: %s, %d in all, want %s, %d; %v", what, got, n, want, blocks, w.Explain())
		}
	}
	correct := func(size uint32, changes bool) {
		t.Helper()
		if now, changed := c.CorrectBlockSize(list(), size); now == nil || changed != changes {
			t.Errorf("to %d: %v, %t", size, now, changed)
		}
	}
	if _, err := c.Put(asked()); err != nil {
		t.Fatal(err)
	}
	before, _ := c.Describe(list(), told(1, capacity), "")
	is("told", "schedulable blocks of 4 from /info", 100)
	correct(16, true)
	is("corrected", "schedulable blocks of 16 from events", 25) // 400 tokens
	if now, changed := c.CorrectBlockSize(before, 8); now != nil || changed {
		t.Error("what was seen of the worker as it was before counts")
	}
	correct(8, false)
	is("once", "schedulable blocks of 16 from events", 25)
	c.Describe(list(), told(1, capacity), "")
	is("told again", "schedulable blocks of 16 from events", 25)
	c.Describe(list(), told(1), "")
	is("blocks of the wrong size", "schedulable blocks of 16 from events", 0)
	c.Describe(list(), told(1, func(d *catalog.Description) {
		d.BlockSize, d.TotalKVBlocks, d.Unanswered = 0, 0, true
	}), "")
	is("it is busy", "schedulable blocks of 16 from events", 0)
	if _, err := c.Put(asked()); err != nil { // as when the file is read again
		t.Fatal(err)
	}
	is("registered again", "schedulable blocks of 16 from events", 0)
	if _, err := c.Put(list().Record); err != nil { // as after a restart
		t.Fatal(err)
	}
	is("restored", "schedulable blocks of 16 from events", 0)
	c.Describe(list(), told(1, func(d *catalog.Description) { d.BlockSize = 32 }), "")
	is("another engine", "incomplete blocks of 16 from events", 0)
	c.Describe(list(), told(1, func(d *catalog.Description) { d.BlockSize, d.TotalKVBlocks = 16, 7 }), "")
	is("it tells the same", "schedulable blocks of 16 from /info", 7)

	given := asked(func(r *catalog.Record) { r.BlockSize = new(uint32(4)) })
	if _, err := c.Put(given); err != nil {
		t.Fatal(err)
	}
	c.Describe(list(), told(1), "")
	correct(16, false)
	is("given", "schedulable blocks of 4 from ", 100)
}

// TestCorrectedInScope proves that workers of one scope are corrected one after the other: a scope has
// one block size.
func TestCorrectedInScope(t *testing.T) {
	c, _ := newWorld(t, events)
	worker := func(id uint64) *catalog.Worker { return c.WorkerIn(catalog.ScopeFilter{}, id) }
	for id := range uint64(2) {
		if _, err := c.Put(asked(func(r *catalog.Record) { r.ID = id })); err != nil {
			t.Fatal(err)
		}
		c.Describe(worker(id), told(1, func(d *catalog.Description) { d.KVEventsEndpoints[0] = fmt.Sprintf("tcp://gpu-1:%d", 7000+id) }), "")
	}
	c.CorrectBlockSize(worker(0), 16)
	equal(t, "the first", strings.Join(worker(0).Explain(), "; "), "reconciliation failed: block_size mismatch for model=m1 tenant=default: existing=4 requested=16")
	equal(t, "its origin", worker(0).Describe.Filled["block_size"], catalog.FromEvents)
	c.CorrectBlockSize(worker(1), 16)
	for id := range uint64(2) {
		equal(t, "both", shown(worker(id))[:len("schedulable m1 blocks of 16")], "schedulable m1 blocks of 16")
	}
}

// TestDescribedSet proves that a set finds its workers unchanged although their engines have
// filled them in, and that an engine cannot fill in more than the limits allow.
func TestDescribedSet(t *testing.T) {
	settings := events
	settings.Limits.Ranks = 3
	c, _ := newWorld(t, settings)
	set := catalog.Set{Kind: catalog.SourceFile, Records: []catalog.Record{asked(func(r *catalog.Record) { r.Source.Kind = catalog.SourceFile })}}
	reconcile := func() catalog.Difference {
		t.Helper()
		d, err := c.Reconcile(set)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	equal(t, "first", reconcile(), catalog.Difference{Added: []uint64{1}})
	w, _ := c.Describe(c.List(nil, nil)[0], told(2), "")
	equal(t, "described", w.Lifecycle, catalog.Schedulable)
	equal(t, "again", reconcile(), catalog.Difference{Unchanged: 1})
	w, _ = c.Describe(w, told(4), "")
	equal(t, "too many ranks", shown(w), "incomplete default ranks 0+1; the limit of 3 ranks is reached; block_size must be greater than 0; kv_events endpoint is required for dp_rank 0")
	w, _ = c.Describe(w, told(1), "")
	equal(t, "fewer", w.Lifecycle, catalog.Schedulable)
	set.Records[0].BlockSize = new(uint32(8))
	equal(t, "with a block size", reconcile(), catalog.Difference{Changed: []uint64{1}})
	equal(t, "its own", *c.List(nil, nil)[0].BlockSize, uint32(8))
	set.Records[0].Describe = nil
	equal(t, "not described", reconcile(), catalog.Difference{Changed: []uint64{1}})
	equal(t, "incomplete", c.List(nil, nil)[0].Lifecycle, catalog.Incomplete)
}

// TestBadWish proves which wishes are refused.
func TestBadWish(t *testing.T) {
	for want, change := range map[string]func(*catalog.Record){
		"describe needs an endpoint: the engine's http:// or https:// URL": func(r *catalog.Record) { r.Endpoint = nil },
		"endpoint `gpu-1:8000` is not an http:// or https:// URL":          func(r *catalog.Record) { r.Endpoint = new("gpu-1:8000") },
		`describe "trt" is not true, "vllm", "sglang" or "trtllm"`:         func(r *catalog.Record) { r.Describe.Engine = "trt" },
	} {
		c, _ := newWorld(t, events)
		if _, err := c.Put(asked(change)); fmt.Sprint(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestNormalURL proves that URLs of the same place have the same form.
func TestNormalURL(t *testing.T) {
	for text, want := range map[string]string{
		"http://GPU-1:8000":      "http://gpu-1:8000",
		"HTTP://gpu-1:8000/":     "http://gpu-1:8000",
		"http://gpu-1:80":        "http://gpu-1",
		"https://gpu-1:443/a/":   "https://gpu-1/a",
		"https://gpu-1:80":       "https://gpu-1:80",
		"http://[FD00::1]:8000/": "http://[fd00::1]:8000",
		"tcp://gpu-1:8000":       "`tcp://gpu-1:8000` is not an http:// or https:// URL",
		"gpu-1:8000":             "`gpu-1:8000` is not an http:// or https:// URL",
		"http://:8000":           "`http://:8000` has no host",
		"http://gpu-1:70000":     "`http://gpu-1:70000` has a port that is not in [1, 65535]",
		"http://a:b@gpu-1":       "`http://a:b@gpu-1` may have no more than a scheme, a host, a port and a path",
		"http://gpu-1?x":         "`http://gpu-1?x` may have no more than a scheme, a host, a port and a path",
	} {
		got, err := catalog.NormalURL(text)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
