package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/pkg/indexer"
)

var (
	conductorFamilies families

	conductorPublishers   = conductorFamilies.gauge("conductor_publishers", "KV event publishers registered through the Conductor API.")
	conductorSpaces       = conductorFamilies.gauge("conductor_spaces", "Indexes of the Conductor API: one for each tenant, model, block size and hash seed in use.")
	conductorNamespaces   = conductorFamilies.gauge("conductor_namespaces", "LoRA adapters and salts in use in the indexes of the Conductor API.")
	conductorOwners       = conductorFamilies.gauge("conductor_owners", "Owners of blocks in the indexes of the Conductor API.")
	conductorIndexBlocks  = conductorFamilies.gauge("conductor_index_blocks", "Blocks in the indexes of the Conductor API by storage tier, counted once for each owner; a medium without a tier of its own counts under one that its owner has free.", "tier")
	conductorIndexUnique  = conductorFamilies.gauge("conductor_index_unique_blocks", "Distinct blocks in the indexes of the Conductor API.")
	conductorIndexOrphans = conductorFamilies.gauge("conductor_index_orphan_blocks", "Blocks of the Conductor API kept out of answers until their parent comes.")
	conductorIndexBytes   = conductorFamilies.gauge("conductor_index_bytes", "Memory of the indexes of the Conductor API.")
	conductorBlocks       = conductorFamilies.counter("conductor_blocks_total", "Blocks that publishers of the Conductor API announced, by what their hashes are known to be; without tokens, unverified ones may never match a query.", "hashes")
	conductorGaps         = conductorFamilies.counter("conductor_event_id_gaps_total", "Jumps in the event ids of publishers of the Conductor API.")
	conductorMissed       = conductorFamilies.counter("conductor_event_ids_missed_total", "Event ids left out by those jumps.")
	conductorLate         = conductorFamilies.counter("conductor_late_events_total", "Events dropped because their event id was not above the last one of their stream.")
	conductorRestarts     = conductorFamilies.counter("conductor_stream_restarts_total", "Streams of event ids found to have started anew; their blocks were dropped.")
	conductorMismatches   = conductorFamilies.counter("conductor_base_mismatches_total", "Events whose base_block_idx contradicts the depth known of their blocks.")
)

// Conductor collects metrics of the Conductor API's publishers and their index.
type Conductor struct{ Registry *conductor.Registry }

// Describe implements prometheus.Collector.
func (Conductor) Describe(ch chan<- *prometheus.Desc) { conductorFamilies.describe(ch) }

// Collect implements prometheus.Collector.
func (c Conductor) Collect(ch chan<- prometheus.Metric) {
	st := c.Registry.Stats()
	send(ch, conductorPublishers, st.Publishers)
	send(ch, conductorSpaces, st.Spaces)
	send(ch, conductorNamespaces, st.Namespaces)
	send(ch, conductorOwners, st.Owners)
	sendByTier(ch, conductorIndexBlocks, st.Index.Blocks)
	send(ch, conductorIndexUnique, st.Index.Unique)
	send(ch, conductorIndexOrphans, st.Index.Orphans)
	send(ch, conductorIndexBytes, st.Index.Bytes)
	send(ch, conductorBlocks, st.Tokens, "tokens")
	send(ch, conductorBlocks, st.Confirmed, "standard")
	send(ch, conductorBlocks, st.Resolved, "own")
	send(ch, conductorBlocks, st.Unverified, "unverified")
	send(ch, conductorGaps, st.Gaps)
	send(ch, conductorMissed, st.Missed)
	send(ch, conductorLate, st.Late)
	send(ch, conductorRestarts, st.Restarts)
	send(ch, conductorMismatches, st.BaseMismatches)
}

// sendByTier sends a number of blocks for each tier.
func sendByTier(ch chan<- prometheus.Metric, f family, blocks [indexer.NumTiers]int) {
	for t, n := range blocks {
		send(ch, f, n, indexer.Tier(t).String())
	}
}
