package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/indexer"
)

var (
	conductorFamilies metrics.Families

	conductorPublishers   = conductorFamilies.Gauge("conductor_publishers", "KV event publishers registered through the Conductor API.")
	conductorSpaces       = conductorFamilies.Gauge("conductor_spaces", "Indexes of the Conductor API: one for each tenant, model, block size and hash seed in use.")
	conductorNamespaces   = conductorFamilies.Gauge("conductor_namespaces", "LoRA adapters and salts in use in the indexes of the Conductor API.")
	conductorOwners       = conductorFamilies.Gauge("conductor_owners", "Owners of blocks in the indexes of the Conductor API.")
	conductorIndexBlocks  = conductorFamilies.Gauge("conductor_index_blocks", "Blocks in the indexes of the Conductor API by storage tier, counted once for each owner; a medium without a tier of its own counts under one that its owner has free.", "tier")
	conductorIndexUnique  = conductorFamilies.Gauge("conductor_index_unique_blocks", "Distinct blocks in the indexes of the Conductor API.")
	conductorIndexOrphans = conductorFamilies.Gauge("conductor_index_orphan_blocks", "Blocks of the Conductor API kept out of answers until their parent comes.")
	conductorIndexBytes   = conductorFamilies.Gauge("conductor_index_bytes", "Memory of the indexes of the Conductor API.")
	conductorBlocks       = conductorFamilies.Counter("conductor_blocks_total", "Blocks that publishers of the Conductor API announced, by what their hashes are known to be; without tokens, unverified ones may never match a query.", "hashes")
	conductorGaps         = conductorFamilies.Counter("conductor_event_id_gaps_total", "Jumps in the event ids of publishers of the Conductor API.")
	conductorMissed       = conductorFamilies.Counter("conductor_event_ids_missed_total", "Event ids left out by those jumps.")
	conductorLate         = conductorFamilies.Counter("conductor_late_events_total", "Events dropped because their event id was not above the last one of their stream.")
	conductorRestarts     = conductorFamilies.Counter("conductor_stream_restarts_total", "Streams of event ids found to have started anew; their blocks were dropped.")
	conductorMismatches   = conductorFamilies.Counter("conductor_base_mismatches_total", "Events whose base_block_idx contradicts the depth known of their blocks.")
)

// Conductor collects metrics of the Conductor API's publishers and their index.
type Conductor struct{ Registry *conductor.Registry }

// Describe implements prometheus.Collector.
func (Conductor) Describe(ch chan<- *prometheus.Desc) { conductorFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (c Conductor) Collect(ch chan<- prometheus.Metric) {
	st := c.Registry.Stats()
	metrics.Send(ch, conductorPublishers, st.Publishers)
	metrics.Send(ch, conductorSpaces, st.Spaces)
	metrics.Send(ch, conductorNamespaces, st.Namespaces)
	metrics.Send(ch, conductorOwners, st.Owners)
	sendByTier(ch, conductorIndexBlocks, st.Index.Blocks)
	metrics.Send(ch, conductorIndexUnique, st.Index.Unique)
	metrics.Send(ch, conductorIndexOrphans, st.Index.Orphans)
	metrics.Send(ch, conductorIndexBytes, st.Index.Bytes)
	metrics.Send(ch, conductorBlocks, st.Tokens, "tokens")
	metrics.Send(ch, conductorBlocks, st.Confirmed, "standard")
	metrics.Send(ch, conductorBlocks, st.Resolved, "own")
	metrics.Send(ch, conductorBlocks, st.Unverified, "unverified")
	metrics.Send(ch, conductorGaps, st.Gaps)
	metrics.Send(ch, conductorMissed, st.Missed)
	metrics.Send(ch, conductorLate, st.Late)
	metrics.Send(ch, conductorRestarts, st.Restarts)
	metrics.Send(ch, conductorMismatches, st.BaseMismatches)
}

// sendByTier sends a number of blocks for each tier.
func sendByTier(ch chan<- prometheus.Metric, f metrics.Family, blocks [indexer.NumTiers]int) {
	for t, n := range blocks {
		metrics.Send(ch, f, n, indexer.Tier(t).String())
	}
}
