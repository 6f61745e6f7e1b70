package telemetry

import (
	"iter"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/reservations"
)

var (
	scopeFamilies families

	indexBlocks    = scopeFamilies.gauge("index_blocks", "Blocks in the index by storage tier, counted once for each rank that holds them.", "tier")
	indexUnique    = scopeFamilies.gauge("index_unique_blocks", "Distinct blocks in the index.")
	indexCopies    = scopeFamilies.gauge("index_block_copies", "Further copies that ranks have of their blocks.")
	indexOrphans   = scopeFamilies.gauge("index_orphan_blocks", "Blocks kept out of answers until their parent comes.")
	indexBytes     = scopeFamilies.gauge("index_bytes", "Memory of the index.")
	hybridPrefixes = scopeFamilies.counter("hybrid_prefixes_total", "Cached prefixes looked up on ranks whose engines have several attention groups, by whether all groups could serve what the main one has.", "outcome")
	hybridBlocks   = scopeFamilies.counter("hybrid_shortened_blocks_total", "Blocks by which such prefixes were shorter than the main group's.")
	queuedRequests = scopeFamilies.gauge("queued_requests", "Selections that wait for a rank that is not busy.")
	queuedTokens   = scopeFamilies.gauge("queued_tokens", "Prompt tokens of the selections that wait.")
)

// Scopes collects the indexes and the wait queues of all scopes.
type Scopes struct{ Registry *scopes.Registry }

// Describe implements prometheus.Collector.
func (Scopes) Describe(ch chan<- *prometheus.Desc) { scopeFamilies.describe(ch) }

// Collect implements prometheus.Collector.
func (c Scopes) Collect(ch chan<- prometheus.Metric) {
	var index indexer.Stats
	var requests int
	var tokens uint64
	for _, state := range c.Registry.All() {
		st := state.Space.Stats()
		for t, n := range st.Blocks {
			index.Blocks[t] += n
		}
		index.Unique += st.Unique
		index.Orphans += st.Orphans
		index.Copies += st.Copies
		index.Bytes += st.Bytes
		r, t := state.Queue.Pending()
		requests += r
		tokens += t
	}
	sendByTier(ch, indexBlocks, index.Blocks)
	send(ch, indexUnique, index.Unique)
	send(ch, indexOrphans, index.Orphans)
	send(ch, indexCopies, index.Copies)
	send(ch, indexBytes, index.Bytes)
	hybrid := c.Registry.Hybrid()
	send(ch, hybridPrefixes, hybrid.Whole.Load(), "whole")
	send(ch, hybridPrefixes, hybrid.Shortened.Load(), "shortened")
	send(ch, hybridBlocks, hybrid.Blocks.Load())
	send(ch, queuedRequests, requests)
	send(ch, queuedTokens, tokens)
}

var (
	reservationFamilies families

	reservationsLive  = reservationFamilies.gauge("reservations_live", "Reservations that are not freed.")
	reservationEvents = reservationFamilies.counter("reservation_events_total", "Reservations booked and ended, by event; lease_expired is a part of expired, freed_late is a free that came after the reservation had expired, displaced made room for those of a replica that had told of fewer.", "event")
	rememberedEntries = reservationFamilies.gauge("remembered_entries", "What is kept for callers that come back, by kind: first answers of live reservations, selections that wait to be booked, sessions, predicted blocks; session_waiters are the requests that wait for the first one of their session.", "kind")
)

// Reservations collects the ledger's counts, and the amount of state kept for later requests.
type Reservations struct {
	Ledger *reservations.Ledger
	// Remembered yields how many entries of each kind are kept.
	Remembered iter.Seq2[string, int]
}

// Describe implements prometheus.Collector.
func (Reservations) Describe(ch chan<- *prometheus.Desc) { reservationFamilies.describe(ch) }

// Collect implements prometheus.Collector.
func (c Reservations) Collect(ch chan<- prometheus.Metric) {
	st := c.Ledger.Stats()
	send(ch, reservationsLive, st.Live)
	send(ch, reservationEvents, st.Booked, "booked")
	send(ch, reservationEvents, st.Freed, "freed")
	send(ch, reservationEvents, st.Expired, "expired")
	send(ch, reservationEvents, st.LeasesExpired, "lease_expired")
	send(ch, reservationEvents, st.Dropped, "dropped")
	send(ch, reservationEvents, st.Displaced, "displaced")
	send(ch, reservationEvents, st.Late, "freed_late")
	for kind, n := range c.Remembered {
		send(ch, rememberedEntries, n, kind)
	}
}
