package metrics

import "github.com/prometheus/client_golang/prometheus"

// aliases are families of dynamo.indexer 1.6.1: names, types, help texts and
// labels are its own, so that dashboards made for it work. What is not quite the
// same here:
//
//   - models are scopes of selection with workers and indexes of the Conductor
//     API; workers are those of selection and publishers of the Conductor API;
//   - a listener is pending while its publisher is not connected and else active;
//     nothing pauses one, and none fails for good;
//   - the index keeps a store whose parent is unknown, and takes a removal of
//     unknown blocks for what it is, so both are ok. Blocks that wait for a
//     parent, and unknown ones, are in select_service_kv_event_blocks_total;
//   - duplicate_store counts blocks and not events: those that an engine
//     announced although it had them.
//
// Requests are those of the Conductor API; see requestCollector.
var aliases = []family{
	{
		"dynamo_kvindexer_models", "Number of active model+routing-group indexers",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.IndexerModels },
	},
	{
		"dynamo_kvindexer_workers", "Number of registered worker instances",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.IndexerWorkers },
	},
	{
		"dynamo_kvindexer_listeners", "Number of ZMQ listeners by status",
		prometheus.GaugeValue,
		[]string{"status"},
		func(s *Sources) Samples { return s.IndexerListeners },
	},
	{
		"dynamo_kvrouter_kv_cache_events_applied", "Total number of KV cache events applied to index",
		prometheus.CounterValue,
		[]string{"event_type", "status"},
		func(s *Sources) Samples { return s.IndexerEvents },
	},
	{
		"dynamo_kvrouter_kv_cache_event_warnings", "Total number of suspicious KV cache events seen by the router indexer",
		prometheus.CounterValue,
		[]string{"warning_kind"},
		func(s *Sources) Samples { return s.IndexerWarnings },
	},
}
