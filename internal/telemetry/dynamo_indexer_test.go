package telemetry_test

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/select-service/select-service/test/helpers/servicetest"
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
	theirs, ours := series(string(record)), series(servicetest.Start(t).Scrape())
	if len(theirs) != 34 || !slices.Equal(theirs, ours) {
		t.Errorf("series are %q,\nwant %q", ours, theirs)
	}
}

// TestIndexerEvents: events of each kind count once, under the status that comes
// closest.
func TestIndexerEvents(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 2)) // nobody has heard of the second rank
	w.Net.At(servicetest.Endpoint(1, 0)).Connect()
	a := servicetest.Prompt(1, 16)
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(a[:8], servicetest.BlockSize, nil), e.Stored(a, servicetest.BlockSize, nil), e.Stored(servicetest.Prompt(2, 8), servicetest.BlockSize, servicetest.Dict{"parent_block_hash": 5}))
	e.Publish(0, e.Removed(a, servicetest.BlockSize, 3, "GPU"), e.Removed(servicetest.Prompt(3, 4), servicetest.BlockSize, 0, "GPU"), servicetest.Cleared())
	e.Publish(0, e.Stored(a, 5, nil), e.Stored(a, servicetest.BlockSize, servicetest.Dict{"medium": "MOON"}), e.Stored(a, servicetest.BlockSize, servicetest.Dict{"locality": "REMOTE"}))
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
