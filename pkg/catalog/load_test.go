package catalog_test

import (
	"math"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

func loads(change func(*catalog.Record)) func(*catalog.Record) { return change }

// TestLoadSources: which streams and pages a record asks for, or why it may not.
func TestLoadSources(t *testing.T) {
	told := func(r *catalog.Record) { r.Describe.Told = new(catalog.Description) }
	const second = time.Second
	allowed := catalog.Settings{Endpoints: catalog.EndpointPolicy{Allowed: rules(t, "tcp://10.0.0.0/8:9000", "tcp://engines")}}
	for name, tc := range map[string]struct {
		settings catalog.Settings
		record   catalog.Record
		loads    []catalog.LoadStream
		pages    []catalog.LoadPage
		reasons  []string
	}{
		"none":                 {record: record(1)},
		"one":                  {record: record(1, loads(func(r *catalog.Record) { r.LoadEndpoint = new("tcp://h:1") })), loads: []catalog.LoadStream{{0, "tcp://h:1"}}},
		"one of another start": {record: record(1, start(5), loads(func(r *catalog.Record) { r.LoadEndpoint = new("tcp://h:1") })), loads: []catalog.LoadStream{{5, "tcp://h:1"}}},
		"an empty one":         {record: record(1, size(2), loads(func(r *catalog.Record) { r.LoadEndpoint = new("") }))},
		"one for two ranks": {
			record:  record(1, size(2), loads(func(r *catalog.Record) { r.LoadEndpoint = new("tcp://h:1") })),
			reasons: []string{"load_endpoint is for a worker with one rank: load_endpoints is required"},
		},
		"by rank, some": {record: record(1, size(3), loads(func(r *catalog.Record) {
			r.LoadEndpoint, r.LoadEndpoints = new("tcp://not:1"), map[uint32]string{2: "tcp://h:3", 0: "tcp://*:1", 1: ""}
		})), loads: []catalog.LoadStream{{0, "tcp://*:1"}, {2, "tcp://h:3"}}},
		"no endpoint": {
			record:  record(1, loads(func(r *catalog.Record) { r.LoadEndpoint = new("h:1") })),
			reasons: []string{"reconciliation failed: invalid load endpoint for worker 1 dp_rank 0: invalid ZMQ endpoint `h:1`: missing scheme"},
		},
		"not of a kind that is used": {
			record:  record(1, loads(func(r *catalog.Record) { r.LoadEndpoints = map[uint32]string{0: "inproc://x"} })),
			reasons: []string{"reconciliation failed: invalid load endpoint for worker 1 dp_rank 0: invalid ZMQ endpoint `inproc://x`: unsupported scheme `inproc`"},
		},
		"not allowed": {
			settings: allowed, record: record(1, loads(func(r *catalog.Record) { r.LoadEndpoint = new("tcp://11.0.0.1:9000") })),
			reasons: []string{"reconciliation failed: invalid load endpoint for worker 1 dp_rank 0: invalid ZMQ endpoint `tcp://11.0.0.1:9000`: not among the allowed endpoints (--allow-endpoints)"},
		},

		// trtllm-serve has its metrics there: serve/openai_server.py, mount_metrics.
		"metrics of TensorRT-LLM": {
			record: record(1, at("http://h:8000"), of(catalog.EngineTRTLLM), loads(func(r *catalog.Record) { r.LoadMetrics = new(catalog.LoadMetrics{}) }), told),
			pages:  []catalog.LoadPage{{URL: "http://h:8000/prometheus/metrics", Interval: 2 * second, Ranks: 1, BlockSize: 4}},
		},
		"metrics": {
			record: record(1, at("http://h:8000/"), size(4), start(2), loads(func(r *catalog.Record) {
				r.LoadMetrics, r.TotalKVBlocks = new(catalog.LoadMetrics{}), new(uint64(100))
			})),
			pages: []catalog.LoadPage{{URL: "http://h:8000/metrics", Interval: 2 * second, FirstRank: 2, Ranks: 4, KVTokens: 400, BlockSize: 4}},
		},
		"metrics elsewhere": {
			record: record(1, at("h"), loads(func(r *catalog.Record) {
				r.LoadMetrics = &catalog.LoadMetrics{URL: new("https://m/x"), IntervalSeconds: new(0.25)}
			})),
			pages: []catalog.LoadPage{{URL: "https://m/x", Interval: second / 4, Ranks: 1, BlockSize: 4}},
		},
		"metrics of ranks with servers of their own": {
			record: record(1, at("http://h"), size(3), loads(func(r *catalog.Record) {
				r.LoadMetrics, r.RankEndpoints = new(catalog.LoadMetrics{}), map[uint32]string{1: "http://h1", 2: "http://h2/"}
			})),
			pages: []catalog.LoadPage{
				{URL: "http://h1/metrics", Interval: 2 * second, FirstRank: 1, Ranks: 1, BlockSize: 4},
				{URL: "http://h2/metrics", Interval: 2 * second, FirstRank: 2, Ranks: 1, BlockSize: 4},
				{URL: "http://h/metrics", Interval: 2 * second, Ranks: 3, BlockSize: 4},
			},
		},
		"metrics below no URL": {
			record:  record(1, at("h:8000"), loads(func(r *catalog.Record) { r.LoadMetrics = new(catalog.LoadMetrics{}) })),
			reasons: []string{"reconciliation failed: invalid load_metrics for worker 1: `h:8000/metrics` is not an http:// or https:// URL"},
		},
		"metrics allowed":         {settings: allowed, record: record(1, at("http://10.1.1.1:80"), loads(func(r *catalog.Record) { r.LoadMetrics = new(catalog.LoadMetrics{}) })), pages: []catalog.LoadPage{{URL: "http://10.1.1.1:80/metrics", Interval: 2 * second, Ranks: 1, BlockSize: 4}}},
		"metrics allowed by name": {settings: allowed, record: record(1, at("https://engines"), loads(func(r *catalog.Record) { r.LoadMetrics = new(catalog.LoadMetrics{}) })), pages: []catalog.LoadPage{{URL: "https://engines/metrics", Interval: 2 * second, Ranks: 1, BlockSize: 4}}},
		"metrics not allowed": {
			settings: allowed, record: record(1, at("http://11.1.1.1"), loads(func(r *catalog.Record) { r.LoadMetrics = new(catalog.LoadMetrics{}) })),
			reasons: []string{"reconciliation failed: invalid load_metrics for worker 1: `http://11.1.1.1/metrics`: not among the allowed endpoints (--allow-endpoints)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, world := newWorld(t, tc.settings)
			w := put(t, c, tc.record)
			equal(t, "reasons", w.Explain(), tc.reasons)
			got := world.inForce[key{m1, 1}]
			if tc.reasons != nil {
				if got != nil {
					t.Errorf("attached: %+v", got)
				}
				return
			}
			equal(t, "streams", got.Loads, tc.loads)
			equal(t, "pages", got.Pages, tc.pages)
		})
	}
}

func rules(t *testing.T, texts ...string) (rules []catalog.EndpointRule) {
	t.Helper()
	for _, text := range texts {
		r, err := catalog.ParseEndpointRule(text)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
	}
	return rules
}

// TestBadLoadSources: what can never be right is refused, by Put and by Patch.
func TestBadLoadSources(t *testing.T) {
	many := make(map[uint32]string)
	for dp := range uint32(catalog.MaxRanks + 1) {
		many[dp] = "tcp://h:1"
	}
	for want, p := range map[string]catalog.Patch{
		"load_endpoints has 4097 ranks, the maximum is 4096":                                         {LoadEndpoints: many},
		"load_endpoints names rank 1, which the worker does not have":                                {LoadEndpoints: map[uint32]string{0: "tcp://h:1", 1: "tcp://h:2"}},
		"load_metrics.url: `ftp://h` is not an http:// or https:// URL":                              {LoadMetrics: &catalog.LoadMetrics{URL: new("ftp://h")}},
		"load_metrics.url: `http://` has no host":                                                    {LoadMetrics: &catalog.LoadMetrics{URL: new("http://")}},
		"load_metrics.interval_seconds 0.2 is not in [0.25, 3600]":                                   {LoadMetrics: &catalog.LoadMetrics{IntervalSeconds: new(0.2)}},
		"load_metrics.interval_seconds 3601 is not in [0.25, 3600]":                                  {LoadMetrics: &catalog.LoadMetrics{IntervalSeconds: new(3601.0)}},
		"load_metrics.interval_seconds -1 is not in [0.25, 3600]":                                    {LoadMetrics: &catalog.LoadMetrics{IntervalSeconds: new(-1.0)}},
		"load_metrics.interval_seconds NaN is not in [0.25, 3600]":                                   {LoadMetrics: &catalog.LoadMetrics{IntervalSeconds: new(math.NaN())}},
		"load_metrics.url: `http://a:b@h` may have no more than a scheme, a host, a port and a path": {LoadMetrics: &catalog.LoadMetrics{URL: new("http://a:b@h")}},
	} {
		c, _ := newWorld(t, eventsOff)
		put(t, c, record(1))
		if _, err := c.Patch(1, p); err == nil || err.Error() != want {
			t.Errorf("Patch: %v, want %s", err, want)
		}
		r := record(2)
		r.LoadEndpoints, r.LoadMetrics = p.LoadEndpoints, p.LoadMetrics
		if _, err := c.Put(r); err == nil || err.Error() != want {
			t.Errorf("Put: %v, want %s", err, want)
		}
	}
}

// TestLoadSourcesChange: what a patch changes is changed while the worker stays attached; an
// incomplete worker keeps the sources that its record still names, for the ranks that it keeps.
func TestLoadSourcesChange(t *testing.T) {
	c, world := newWorld(t, eventsOff)
	put(t, c, record(1, at("http://h"), size(3), loads(func(r *catalog.Record) {
		r.LoadEndpoints, r.LoadMetrics = map[uint32]string{0: "tcp://h:1", 1: "tcp://h:2"}, new(catalog.LoadMetrics{})
	})))
	check := func(what string, loads []catalog.LoadStream, pages ...catalog.LoadPage) {
		t.Helper()
		got := world.inForce[key{m1, 1}]
		equal(t, what+": streams", got.Loads, loads)
		equal(t, what+": pages", got.Pages, pages)
	}
	page := catalog.LoadPage{URL: "http://h/metrics", Interval: 2 * time.Second, Ranks: 3, BlockSize: 4}
	patch(t, c, 1, catalog.Patch{LoadEndpoints: map[uint32]string{0: "tcp://h:9", 1: "tcp://h:2"}})
	check("another endpoint", []catalog.LoadStream{{0, "tcp://h:9"}, {1, "tcp://h:2"}}, page)
	patch(t, c, 1, catalog.Patch{LoadMetrics: &catalog.LoadMetrics{IntervalSeconds: new(1.0)}})
	page.Interval = time.Second
	check("another interval", []catalog.LoadStream{{0, "tcp://h:9"}, {1, "tcp://h:2"}}, page)
	patch(t, c, 1, catalog.Patch{LoadEndpoints: map[uint32]string{0: "tcp://h:9"}, Size: new(uint32(1)), KVTransferDomain: new("x"), Endpoint: new("")})
	page.Ranks = 1
	check("incomplete", []catalog.LoadStream{{0, "tcp://h:9"}}, page)
	patch(t, c, 1, catalog.Patch{LoadEndpoints: map[uint32]string{}})
	check("incomplete, without streams", nil, page)
}

// TestLoadStreamsCount: streams of loads count against the limit of streams, also where KV
// events are off.
func TestLoadStreamsCount(t *testing.T) {
	c, _ := newWorld(t, catalog.Settings{Limits: catalog.Limits{Streams: 2}})
	put(t, c, record(1, size(2), loads(func(r *catalog.Record) { r.LoadEndpoints = map[uint32]string{0: "tcp://h:1", 1: "tcp://h:2"} })))
	put(t, c, record(2, loads(func(r *catalog.Record) { r.LoadEndpoint = new("") })))
	_, err := c.Patch(2, catalog.Patch{LoadEndpoint: new("tcp://h:3")})
	equal(t, "a third", refused(t, err), "full "+catalog.LimitStreams)
}
