package metrics

import "github.com/prometheus/client_golang/prometheus"

// conductorFamilies are about the Conductor API.
var conductorFamilies = []family{
	{
		"conductor_publishers", "KV event publishers registered through the Conductor API.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.ConductorPublishers },
	},
	{
		"conductor_spaces", "Indexes of the Conductor API: one for each tenant, model, block size and hash seed in use.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.ConductorSpaces },
	},
	{
		"conductor_namespaces", "LoRA adapters and salts in use in the indexes of the Conductor API.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.ConductorNamespaces },
	},
	{
		"conductor_owners", "Owners of blocks in the indexes of the Conductor API.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.ConductorOwners },
	},
	{
		"conductor_index_blocks", "Blocks in the indexes of the Conductor API by storage tier, counted once for each owner; a medium without a tier of its own counts under one that its owner has free.",
		prometheus.GaugeValue,
		[]string{"tier"},
		func(s *Sources) Samples { return s.ConductorIndexBlocks },
	},
	{
		"conductor_index_unique_blocks", "Distinct blocks in the indexes of the Conductor API.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.ConductorIndexUnique },
	},
	{
		"conductor_index_orphan_blocks", "Blocks of the Conductor API kept out of answers until their parent comes.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.ConductorIndexOrphans },
	},
	{
		"conductor_index_bytes", "Memory of the indexes of the Conductor API.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.ConductorIndexBytes },
	},
	{
		"conductor_blocks_total", "Blocks that publishers of the Conductor API announced, by what their hashes are known to be; without tokens, unverified ones may never match a query.",
		prometheus.CounterValue,
		[]string{"hashes"},
		func(s *Sources) Samples { return s.ConductorBlocks },
	},
	{
		"conductor_event_id_gaps_total", "Jumps in the event ids of publishers of the Conductor API.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Samples { return s.ConductorEventGaps },
	},
	{
		"conductor_event_ids_missed_total", "Event ids left out by those jumps.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Samples { return s.ConductorEventsMissed },
	},
	{
		"conductor_late_events_total", "Events dropped because their event id was not above the last one of their stream.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Samples { return s.ConductorLateEvents },
	},
	{
		"conductor_stream_restarts_total", "Streams of event ids found to have started anew; their blocks were dropped.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Samples { return s.ConductorStreamRestarts },
	},
	{
		"conductor_base_mismatches_total", "Events whose base_block_idx contradicts the depth known of their blocks.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Samples { return s.ConductorBaseMismatches },
	},
}
