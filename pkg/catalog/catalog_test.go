package catalog_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/catalog"
)

var (
	m1 = catalog.Scope{Model: "m", Tenant: "t"}
	m2 = catalog.Scope{Model: "m2", Tenant: "t"}

	events     = catalog.Settings{KVEvents: true}
	eventsOff  = catalog.Settings{}
	everything = catalog.Settings{KVEvents: true, Queueing: true}
)

// record is a worker that is complete while events are off.
func record(id uint64, change ...func(*catalog.Record)) catalog.Record {
	r := catalog.Record{ID: id, Scope: m1, Endpoint: new("http://w"), BlockSize: new(uint32(4))}
	for _, c := range change {
		c(&r)
	}
	return r
}

func blocks(n uint32) func(*catalog.Record) { return func(r *catalog.Record) { r.BlockSize = &n } }
func size(n uint32) func(*catalog.Record)   { return func(r *catalog.Record) { r.Size = &n } }
func start(n uint32) func(*catalog.Record)  { return func(r *catalog.Record) { r.StartRank = &n } }
func eagle(r *catalog.Record)               { r.IsEagle = new(true) }
func in(s catalog.Scope) func(*catalog.Record) {
	return func(r *catalog.Record) { r.Scope = s }
}

func stream(endpoint string) func(*catalog.Record) {
	return func(r *catalog.Record) { r.KVEventsEndpoint = &endpoint }
}

func streams(m map[uint32]string) func(*catalog.Record) {
	return func(r *catalog.Record) { r.KVEventsEndpoints = m }
}

func replay(endpoint string) func(*catalog.Record) {
	return func(r *catalog.Record) { r.ReplayEndpoint = &endpoint }
}

func peer(at string) func(*catalog.Record) {
	return func(r *catalog.Record) { r.KVPeerEndpoint = &at }
}

func rankEndpoints(m map[uint32]string) func(*catalog.Record) {
	return func(r *catalog.Record) { r.RankEndpoints = m }
}

func replays(m map[uint32]string) func(*catalog.Record) {
	return func(r *catalog.Record) { r.ReplayEndpoints = m }
}

// engineKey is a CURVE key.
const engineKey = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"

func serverKey(key string) func(*catalog.Record) {
	return func(r *catalog.Record) { r.KVEventsServerKey = &key }
}

func put(t *testing.T, c *catalog.Catalog, r catalog.Record) *catalog.Worker {
	t.Helper()
	w, err := c.Put(r)
	if err != nil {
		t.Fatalf("Put(%d): %v", r.ID, err)
	}
	return w
}

func patch(t *testing.T, c *catalog.Catalog, id uint64, p catalog.Patch) *catalog.Worker {
	t.Helper()
	w, err := c.Patch(id, p)
	if err != nil {
		t.Fatalf("Patch(%d): %v", id, err)
	}
	return w
}

func remove(t *testing.T, c *catalog.Catalog, id uint64) *catalog.Worker {
	t.Helper()
	w, err := c.Delete(id)
	if err != nil {
		t.Fatalf("Delete(%d): %v", id, err)
	}
	return w
}

func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if d := cmp.Diff(want, got, attachments); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// TestReasons fixes every reason that comes from the record alone: its text and
// the order.
func TestReasons(t *testing.T) {
	const (
		noEndpoint = "endpoint is required"
		noBlocks   = "block_size must be greater than 0"
		noSize     = "data_parallel_size must be greater than 0"
		noBatch    = "max_num_batched_tokens is required while queueing is enabled"
		noEvents   = "kv_events endpoint is required for dp_rank "
		failed     = "reconciliation failed: "
	)
	bare := func(r *catalog.Record) { r.Endpoint, r.BlockSize = nil, nil }
	batch := func(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(8)) }
	tests := map[string]struct {
		settings catalog.Settings
		record   catalog.Record
		want     []string
	}{
		"complete, events off":     {eventsOff, record(1), nil},
		"complete, all on":         {everything, record(1, batch, stream("tcp://h:1")), nil},
		"nothing given":            {everything, record(1, bare), []string{noEndpoint, noBlocks, noBatch, noEvents + "0"}},
		"empty endpoint":           {eventsOff, record(1, func(r *catalog.Record) { r.Endpoint = new("") }), []string{noEndpoint}},
		"block size 0":             {eventsOff, record(1, blocks(0)), []string{noBlocks}},
		"size 0":                   {everything, record(1, size(0), stream("tcp://h:1")), []string{noSize, noBatch}},
		"queueing off":             {events, record(1, stream("tcp://h:1")), nil},
		"single endpoint, size 2":  {events, record(1, size(2), stream("tcp://h:1")), []string{noEvents + "0", noEvents + "1"}},
		"single endpoint, start 5": {events, record(1, start(5), stream("tcp://h:1")), nil},
		"map with a hole":          {events, record(1, size(2), streams(map[uint32]string{0: "tcp://h:1"})), []string{noEvents + "1"}},
		"map keys are global":      {events, record(1, start(5), streams(map[uint32]string{0: "tcp://h:1"})), []string{noEvents + "5"}},
		"map hides the endpoint":   {events, record(1, stream("tcp://h:1"), streams(map[uint32]string{1: "tcp://h:2"})), []string{noEvents + "0"}},
		"empty event endpoint":     {events, record(1, stream("")), []string{noEvents + "0"}},
		"empty map":                {events, record(1, stream("tcp://h:1"), streams(map[uint32]string{})), nil},
		"extra rank":               {events, record(1, streams(map[uint32]string{0: "tcp://h:1", 9: "tcp://h:2"})), nil},
		"wildcard is bound":        {events, record(1, stream("tcp://*:1")), nil},
		"one replay, two ranks":    {events, record(1, size(2), streams(map[uint32]string{0: "tcp://h:1", 1: "tcp://h:2"}), replay("tcp://h:3")), nil},
		"last rank of u32":         {eventsOff, record(1, start(1<<32-1)), nil},
		"bad event endpoint": {
			events, record(7, stream("h:1")),
			[]string{failed + "invalid kv_events endpoint for worker 7 dp_rank 0: invalid ZMQ endpoint `h:1`: missing scheme"},
		},
		"bad event endpoint of an extra rank": {
			events, record(7, streams(map[uint32]string{0: "tcp://h:1", 3: ""})),
			[]string{failed + "invalid kv_events endpoint for worker 7 dp_rank 3: invalid ZMQ endpoint ``: missing scheme"},
		},
		"bad replay endpoint": {
			events, record(7, stream("tcp://h:1"), replay("tcp://h")),
			[]string{failed + "invalid replay endpoint for worker 7 dp_rank 0: invalid ZMQ endpoint `tcp://h`: missing TCP port"},
		},
		"bad replay endpoint in the map": {
			events, record(7, stream("tcp://h:1"), replay("tcp://h:2"), replays(map[uint32]string{0: "x://h"})),
			[]string{failed + "invalid replay endpoint for worker 7 dp_rank 0: invalid ZMQ endpoint `x://h`: unsupported scheme `x`"},
		},
		"wildcard replay": {
			events, record(7, stream("tcp://h:1"), replay("tcp://*:2")),
			[]string{failed + "invalid replay endpoint for worker 7 dp_rank 0: invalid ZMQ endpoint `tcp://*:2`: wildcard host"},
		},
		"endpoints do not matter with events off": {eventsOff, record(1, stream("x"), replay("x")), nil},
		"scope refused": {
			catalog.Settings{CheckScope: func(s catalog.Scope) error { return errors.New("no policy for " + s.Model) }},
			record(1),
			[]string{failed + "no policy for m"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, _ := newWorld(t, tc.settings)
			w := put(t, c, tc.record)
			equal(t, "Reasons", w.Explain(), tc.want)
			lifecycle, ready := catalog.Schedulable, 1
			if tc.want != nil {
				lifecycle, ready = catalog.Incomplete, 0
			}
			if w.Lifecycle != lifecycle || c.CountSchedulable() != ready {
				t.Errorf("lifecycle %s, Ready %d, want %s, %d", w.Lifecycle, c.CountSchedulable(), lifecycle, ready)
			}
		})
	}
}

// TestServerKey: a record of an earlier release with the CURVE key of an engine is registered, but
// its streams are not followed in plain text, until it is registered without the key.
func TestServerKey(t *testing.T) {
	for _, settings := range []catalog.Settings{events, eventsOff} {
		c, _ := newWorld(t, settings)
		for key, want := range map[string]catalog.Lifecycle{engineKey: catalog.Incomplete, "": catalog.Schedulable} {
			w := put(t, c, record(1, serverKey(key), streams(map[uint32]string{0: "tcp://h:1"})))
			equal(t, "lifecycle with "+key, w.Lifecycle, want)
			if want == catalog.Incomplete {
				equal(t, "reasons", w.Explain(), []string{"kv_events_server_key: CURVE towards engines has been removed, register without this key"})
				w, err := c.Patch(1, catalog.Patch{Taints: []string{"x"}})
				if err != nil || w.Lifecycle != catalog.Incomplete {
					t.Errorf("patched: %v, %v", w, err)
				}
			}
		}
	}
}

// TestInvalid: what is refused as a whole changes nothing, and says why.
func TestInvalid(t *testing.T) {
	many := map[uint32]string{}
	for i := range uint32(catalog.MaxRanks + 1) {
		many[i] = "tcp://h:1"
	}
	tests := map[string]struct {
		record catalog.Record
		want   string
	}{
		"size":           {record(1, size(5000)), "data_parallel_size 5000 exceeds the maximum 4096"},
		"range":          {record(1, start(1<<32-1), size(2)), "data_parallel range overflows u32: start=4294967295 size=2"},
		"event streams":  {record(1, streams(many)), "kv_events_endpoints has 4097 ranks, the maximum is 4096"},
		"replays":        {record(1, replays(many)), "replay_endpoints has 4097 ranks, the maximum is 4096"},
		"copies":         {record(1, func(r *catalog.Record) { r.KVEventCopies = new("sets") }), `kv_event_copies "sets" is neither "count" nor "set"`},
		"rank of events": {record(1, func(r *catalog.Record) { r.KVEventRank = new("global") }), `kv_event_rank "global" is neither "batch" nor "stream"`},
		"role":           {record(1, func(r *catalog.Record) { r.Role = new("both") }), `role "both" is not "prefill", "decode" or "encode"`},
		"rank header":    {record(1, rankHeader("rank")), `rank_header "rank" is not "local", "global" or "none"`},
		"adapter":        {record(1, func(r *catalog.Record) { r.Adapters = []string{"a", ""} }), "adapters has an empty name"},
		"rank servers":   {record(1, rankEndpoints(many)), "rank_endpoints has 4097 ranks, the maximum is 4096"},
		"foreign rank":   {record(1, size(2), rankEndpoints(map[uint32]string{0: "http://h", 2: "http://i"})), "rank_endpoints names rank 2, which the worker does not have"},
		"no URL":         {record(1, rankEndpoints(map[uint32]string{0: "h:1"})), "rank_endpoints of rank 0: `h:1` is not an http:// or https:// URL"},
		"no peer":        {record(1, peer("10.0.0.1")), `kv_peer_endpoint "10.0.0.1" is not host:port`},
		"a header more":  {record(1, peer("h\r\nx: y:1")), `kv_peer_endpoint "h\r\nx: y:1" is not host:port`},
		"two peers":      {record(1, peer("h:1,i:2")), `kv_peer_endpoint "h:1,i:2" is not host:port`},
		"no host":        {record(1, rankEndpoints(map[uint32]string{0: "http://:1"})), "rank_endpoints of rank 0: `http://:1` has no host"},
		"a user":         {record(1, rankEndpoints(map[uint32]string{0: "http://u@h"})), "rank_endpoints of rank 0: `http://u@h` may have no more than a scheme, a host, a port and a path"},
		"one server": {
			record(1, size(2), rankEndpoints(map[uint32]string{0: "http://h", 1: "http://h"})),
			"rank_endpoints has `http://h` for the ranks 0 and 1: leave ranks out that share the worker's endpoint",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, world := newWorld(t, eventsOff)
			var invalid *catalog.InvalidError
			if _, err := c.Put(tc.record); !errors.As(err, &invalid) || err.Error() != tc.want {
				t.Errorf("Put: %v, want %s", err, tc.want)
			}
			equal(t, "List after a refused Put", len(c.List(nil, nil)), 0)

			old := put(t, c, record(1, size(2)))
			world.took()
			p := catalog.Patch{
				StartRank: tc.record.StartRank, Size: tc.record.Size,
				KVEventsEndpoints: tc.record.KVEventsEndpoints, ReplayEndpoints: tc.record.ReplayEndpoints,
				KVEventCopies: tc.record.KVEventCopies, KVEventRank: tc.record.KVEventRank,
				Role: tc.record.Role, RankEndpoints: tc.record.RankEndpoints, RankHeader: tc.record.RankHeader, Adapters: tc.record.Adapters,
				KVPeerEndpoint: tc.record.KVPeerEndpoint,
			}
			if _, err := c.Patch(1, p); !errors.As(err, &invalid) || err.Error() != tc.want {
				t.Errorf("Patch: %v, want %s", err, tc.want)
			}
			if got := c.List(nil, nil); len(got) != 1 || got[0] != old || len(world.took()) > 0 {
				t.Errorf("a refused Patch changed the catalog: %+v", got)
			}
		})
	}
	c, _ := newWorld(t, eventsOff)
	if w := put(t, c, record(1, size(catalog.MaxRanks))); w.Lifecycle != catalog.Schedulable || len(c.Snapshot(m1).Ranks()) != catalog.MaxRanks {
		t.Errorf("%d ranks are too many", catalog.MaxRanks)
	}
}

// TestPatchFields: every field can be patched, nil leaves it, collections are
// replaced as a whole.
func TestPatchFields(t *testing.T) {
	full := catalog.Patch{
		Endpoint: new("http://n"), KVEventsEndpoint: new("tcp://h:1"), KVEventsEndpoints: map[uint32]string{3: "tcp://h:2"},
		ReplayEndpoint: new("tcp://h:3"), ReplayEndpoints: map[uint32]string{3: "tcp://h:4"}, KVEventCopies: new("set"), KVEventRank: new("stream"),
		BlockSize: new(uint32(16)), StartRank: new(uint32(3)), Size: new(uint32(1)), MaxNumBatchedTokens: new(uint64(5)),
		TotalKVBlocks: new(uint64(6)), AttentionChunkSize: new(uint64(7)), StableRoutingID: new("s"), IsEagle: new(true), Taints: []string{"b", "a", "b"},
		TopologyDomains: map[string]string{"zone": "z"}, KVTransferDomain: new("d"),
		KVTransferEnforcement: new("required"), KVTransferPreferredWeight: new(float32(0.5)),
		Role: new("decode"), RankEndpoints: map[uint32]string{3: "https://h/p"}, Adapters: []string{"m", "l", "m"},
		LoadEndpoint: new("tcp://h:5"), LoadEndpoints: map[uint32]string{3: "tcp://h:6"}, LoadMetrics: &catalog.LoadMetrics{URL: new("http://h/m")},
	}
	want := catalog.Record{
		ID: 1, Scope: m1, Endpoint: full.Endpoint, KVEventsEndpoint: full.KVEventsEndpoint, KVEventsEndpoints: full.KVEventsEndpoints,
		ReplayEndpoint: full.ReplayEndpoint, ReplayEndpoints: full.ReplayEndpoints, KVEventCopies: full.KVEventCopies, KVEventRank: full.KVEventRank,
		BlockSize: full.BlockSize, StartRank: full.StartRank, Size: full.Size, MaxNumBatchedTokens: full.MaxNumBatchedTokens,
		TotalKVBlocks: full.TotalKVBlocks, AttentionChunkSize: full.AttentionChunkSize, StableRoutingID: full.StableRoutingID, IsEagle: full.IsEagle, Taints: []string{"a", "b"},
		TopologyDomains: full.TopologyDomains, KVTransferDomain: full.KVTransferDomain,
		KVTransferEnforcement: full.KVTransferEnforcement, KVTransferPreferredWeight: full.KVTransferPreferredWeight,
		Role: full.Role, RankEndpoints: full.RankEndpoints, Adapters: []string{"l", "m"},
		LoadEndpoint: full.LoadEndpoint, LoadEndpoints: full.LoadEndpoints, LoadMetrics: full.LoadMetrics,
	}
	c, _ := newWorld(t, events)
	put(t, c, record(1))
	equal(t, "full patch", patch(t, c, 1, full).Record, want)
	w := patch(t, c, 1, catalog.Patch{})
	equal(t, "empty patch", w.Record, want)
	equal(t, "patch of what no patch can change", patch(t, c, 1, catalog.Patch{
		ID: 2, Scope: catalog.Scope{Model: "other"}, Source: catalog.Source{Kind: catalog.SourceFile}, Draining: "why", Faults: []string{"why"},
		Drain: new(catalog.Drain), Registration: 2, Describe: new(catalog.Describe), KVEventsServerKey: new("key"), Aliases: []string{"a"},
	}).Record, want)
	if !w.HasTaint("a") || !w.HasTaint("b") || w.HasTaint("c") || w.HasTaint("") {
		t.Error("HasTaint is wrong")
	}

	w = patch(t, c, 1, catalog.Patch{
		Taints: []string{}, TopologyDomains: map[string]string{},
		KVEventsEndpoints: map[uint32]string{}, ReplayEndpoints: map[uint32]string{},
		RankEndpoints: map[uint32]string{}, Adapters: []string{}, LoadEndpoints: map[uint32]string{},
	})
	if n := len(w.LoadEndpoints) + len(w.RankEndpoints) + len(w.Adapters) + len(w.Taints) + len(w.TopologyDomains) + len(w.KVEventsEndpoints) + len(w.ReplayEndpoints); n > 0 {
		t.Errorf("%d entries left after clearing all collections", n)
	}
	equal(t, "upsert replaces the whole record", put(t, c, record(1)).Record, record(1))
}

// TestErrors: unknown workers, and the time after Close.
func TestErrors(t *testing.T) {
	c, _ := newWorld(t, eventsOff)
	put(t, c, record(1))
	if _, err := c.Patch(9, catalog.Patch{}); !errors.Is(err, catalog.ErrNotFound) || err.Error() != "worker 9 not found" {
		t.Errorf("Patch: %v", err)
	}
	if _, err := c.Delete(9); !errors.Is(err, catalog.ErrNotFound) || err.Error() != "worker 9 not found" {
		t.Errorf("Delete: %v", err)
	}
	c.Close()
	for _, id := range []uint64{1, 9} {
		if _, err := c.Put(record(id)); !errors.Is(err, catalog.ErrShuttingDown) {
			t.Errorf("Put(%d) after Close: %v", id, err)
		}
		if _, err := c.Patch(id, catalog.Patch{}); !errors.Is(err, catalog.ErrShuttingDown) {
			t.Errorf("Patch(%d) after Close: %v", id, err)
		}
	}
	if w := remove(t, c, 1); w.Lifecycle != catalog.Unschedulable || len(c.List(nil, nil)) != 0 {
		t.Errorf("Delete after Close: %+v", w)
	}
}

// TestListOrder: by model, tenant and id, whatever the order of registration.
func TestListOrder(t *testing.T) {
	c, _ := newWorld(t, eventsOff)
	for _, r := range []catalog.Record{
		record(3, in(catalog.Scope{Model: "b", Tenant: ""})), record(9), record(2, in(catalog.Scope{Model: "m", Tenant: "s"})),
		record(1), record(1<<63, in(catalog.Scope{Model: "a", Tenant: "z"})), record(8, in(catalog.Scope{Model: "a", Tenant: "y"})),
	} {
		put(t, c, r)
	}
	put(t, c, record(9, in(catalog.Scope{Model: "a", Tenant: "z"}))) // moves
	ids := func(model, tenant *string) []uint64 {
		out := []uint64{}
		for _, w := range c.List(model, tenant) {
			out = append(out, w.ID)
		}
		return out
	}
	equal(t, "all", ids(nil, nil), []uint64{8, 9, 1 << 63, 3, 2, 1})
	equal(t, "model", ids(new("m"), nil), []uint64{2, 1})
	equal(t, "tenant", ids(nil, new("z")), []uint64{9, 1 << 63})
	equal(t, "empty tenant", ids(nil, new("")), []uint64{3})
	equal(t, "both", ids(new("a"), new("")), []uint64{})
	equal(t, "scopes", c.Scopes(), []catalog.Scope{{Model: "a", Tenant: "y"}, {Model: "a", Tenant: "z"}, {Model: "b"}, {Model: "m", Tenant: "s"}, m1})
}

// TestModels: each model once and in order, however its workers are registered
// and whatever they lack, and no model without a worker.
func TestModels(t *testing.T) {
	c, _ := newWorld(t, eventsOff)
	equal(t, "at first", c.Models(), nil)
	for _, r := range []catalog.Record{
		record(1), record(2, in(catalog.Scope{Model: "m", Tenant: "s"})), record(3, in(catalog.Scope{Model: "b", Tenant: "t"}), blocks(0)),
		record(4, in(catalog.Scope{})), record(5, in(catalog.Scope{Model: "gone", Tenant: "t"})), record(6, in(m2)),
	} {
		put(t, c, r)
	}
	if _, err := c.PutTracked(tracked(7, catalog.Scope{Model: "c", Tenant: "t"}, 4, 0, 1)); err != nil {
		t.Fatal(err)
	}
	remove(t, c, 5)
	put(t, c, record(6, in(m1))) // moves
	models := []string{"", "b", "c", "m"}
	equal(t, "models", c.Models(), models)
	for _, model := range []string{"", "a", "b", "bb", "c", "gone", "m", "m2", "z"} {
		equal(t, model, c.HasModel(model), slices.Contains(models, model))
	}
}

// attachments lets equal compare workers, and the ranks of attachments.
var attachments = cmp.Exporter(func(t reflect.Type) bool {
	return t == reflect.TypeFor[catalog.Attachment]() || t == reflect.TypeFor[catalog.Worker]() || t.Name() == "rankRun"
})
