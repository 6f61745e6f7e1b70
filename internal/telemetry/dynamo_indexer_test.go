package telemetry_test

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// TestIndexerLabels: the aliases of dynamo.indexer's families have the label
// values that a scrape of it shows, always all of them.
func TestIndexerLabels(t *testing.T) {
	record, err := os.ReadFile("testdata/dynamo_indexer.txt")
	if err != nil {
		t.Fatal(err)
	}
	series := func(body string) (names []string) {
		for _, found := range regexp.MustCompile(`(?m)^(dynamo_kv(?:router_kv|indexer_(?:listeners|models|workers)).*) \d+$`).FindAllStringSubmatch(body, -1) {
			names = append(names, found[1])
		}
		slices.Sort(names)
		return names
	}
	theirs, ours := series(string(record)), series(start(t).Scrape())
	if len(theirs) != 34 || !slices.Equal(theirs, ours) {
		t.Errorf("series are %q,\nwant %q", ours, theirs)
	}
}

// TestIndexerEvents: events of each kind count once, under the status that comes
// closest.
func TestIndexerEvents(t *testing.T) {
	w := start(t)
	w.Put(record(1, 2)) // nobody has heard of the second rank
	w.Net.At(endpoint(1, 0)).Connect()
	a := prompt(1, 16)
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(a[:8], blockSize, nil), e.Stored(a, blockSize, nil), e.Stored(prompt(2, 8), blockSize, dict{"parent_block_hash": 5}))
	e.Publish(0, e.Removed(a, blockSize, 3, "GPU"), e.Removed(prompt(3, 4), blockSize, 0, "GPU"), cleared())
	e.Publish(0, e.Stored(a, 5, nil), e.Stored(a, blockSize, dict{"medium": "MOON"}), e.Stored(a, blockSize, dict{"locality": "REMOTE"}))
	w.Settle()
	w.WantSeries(
		`dynamo_kvrouter_kv_cache_events_applied{event_type="stored",status="ok"} 3`,
		`dynamo_kvrouter_kv_cache_events_applied{event_type="removed",status="ok"} 2`,
		`dynamo_kvrouter_kv_cache_events_applied{event_type="cleared",status="ok"} 1`,
		`dynamo_kvrouter_kv_cache_events_applied{event_type="stored",status="invalid_block"} 1`,
		`dynamo_kvrouter_kv_cache_events_applied{event_type="stored",status="unsupported_residency_domain"} 1`,
		`dynamo_kvrouter_kv_cache_event_warnings{warning_kind="duplicate_store"} 2`,
		`dynamo_kvindexer_models 1`,
		`dynamo_kvindexer_workers 1`,
		`dynamo_kvindexer_listeners{status="active"} 1`,
		`dynamo_kvindexer_listeners{status="pending"} 1`,
	)
}
