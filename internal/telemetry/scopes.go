package telemetry

import (
	"iter"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/reservations"
)

var (
	scopeFamilies metrics.Families

	indexBlocks    = scopeFamilies.Gauge("index_blocks", "Blocks in the index by storage tier, counted once for each rank that holds them.", "tier")
	indexUnique    = scopeFamilies.Gauge("index_unique_blocks", "Distinct blocks in the index.")
	indexCopies    = scopeFamilies.Gauge("index_block_copies", "Further copies that ranks have of their blocks.")
	indexOrphans   = scopeFamilies.Gauge("index_orphan_blocks", "Blocks kept out of answers until their parent comes.")
	indexBytes     = scopeFamilies.Gauge("index_bytes", "Memory of the index.")
	hybridPrefixes = scopeFamilies.Counter("hybrid_prefixes_total", "Cached prefixes looked up on ranks whose engines have several attention groups, by whether all groups could serve what the main one has.", "outcome")
	hybridBlocks   = scopeFamilies.Counter("hybrid_shortened_blocks_total", "Blocks by which such prefixes were shorter than the main group's.")
	queuedRequests = scopeFamilies.Gauge("queued_requests", "Selections that wait for a rank that is not busy.")
	queuedTokens   = scopeFamilies.Gauge("queued_tokens", "Prompt tokens of the selections that wait.")
)

// Scopes collects the indexes and the wait queues of all scopes.
type Scopes struct{ Registry *scopes.Registry }

// Describe implements prometheus.Collector.
func (Scopes) Describe(ch chan<- *prometheus.Desc) { scopeFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (s Scopes) Collect(ch chan<- prometheus.Metric) {
	var index indexer.Stats
	var requests int
	var tokens uint64
	for _, state := range s.Registry.All() {
		st := state.Space.Stats()
		for t, n := range st.Blocks {
			index.Blocks[t] += n
		}
		index.Unique += st.Unique
		index.Orphans += st.Orphans
		index.Copies += st.Copies
		index.Bytes += st.Bytes
		r, t := state.Rules().Queue.Pending()
		requests += r
		tokens += t
	}
	sendByTier(ch, indexBlocks, index.Blocks)
	metrics.Send(ch, indexUnique, index.Unique)
	metrics.Send(ch, indexOrphans, index.Orphans)
	metrics.Send(ch, indexCopies, index.Copies)
	metrics.Send(ch, indexBytes, index.Bytes)
	hybrid := s.Registry.Hybrid()
	metrics.Send(ch, hybridPrefixes, hybrid.Whole.Load(), "whole")
	metrics.Send(ch, hybridPrefixes, hybrid.Shortened.Load(), "shortened")
	metrics.Send(ch, hybridBlocks, hybrid.Blocks.Load())
	metrics.Send(ch, queuedRequests, requests)
	metrics.Send(ch, queuedTokens, tokens)
}

var (
	reservationFamilies metrics.Families

	reservationsLive  = reservationFamilies.Gauge("reservations_live", "Reservations that are not freed.")
	reservationEvents = reservationFamilies.Counter("reservation_events_total", "Reservations booked and ended, by event; lease_expired is a part of expired, freed_late is a free that came after the reservation had expired, displaced made room for those of a replica that had told of fewer.", "event")
	rememberedEntries = reservationFamilies.Gauge("remembered_entries", "What is kept for callers that come back, by kind: first answers of live reservations, selections that wait to be booked, sessions, predicted blocks; session_groups are the groups of sessions that one session has started, session_waiters the requests that wait for the first one of their session.", "kind")
	sessionsFull      = reservationFamilies.Counter("sessions_full_total", "Sessions, and groups of them, that were not kept since there are as many as may be, or their memory is full, by what became of them: displaced made room for another one, refused found none, and count again with each request.", "outcome")
)

// Reservations collects the ledger's counts, and the amount of state kept for later requests.
type Reservations struct {
	Ledger *reservations.Ledger
	// Remembered yields how many entries of each kind are kept.
	Remembered iter.Seq2[string, int]
	// SessionsFull returns how many sessions made room for others, and how many found none.
	SessionsFull func() (displaced, refused uint64)
}

// Describe implements prometheus.Collector.
func (Reservations) Describe(ch chan<- *prometheus.Desc) { reservationFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (r Reservations) Collect(ch chan<- prometheus.Metric) {
	st := r.Ledger.Stats()
	metrics.Send(ch, reservationsLive, st.Live)
	metrics.Send(ch, reservationEvents, st.Booked, "booked")
	metrics.Send(ch, reservationEvents, st.Freed, "freed")
	metrics.Send(ch, reservationEvents, st.Expired, "expired")
	metrics.Send(ch, reservationEvents, st.LeasesExpired, "lease_expired")
	metrics.Send(ch, reservationEvents, st.Dropped, "dropped")
	metrics.Send(ch, reservationEvents, st.Displaced, "displaced")
	metrics.Send(ch, reservationEvents, st.Late, "freed_late")
	for kind, n := range r.Remembered {
		metrics.Send(ch, rememberedEntries, n, kind)
	}
	displaced, refused := r.SessionsFull()
	metrics.Send(ch, sessionsFull, displaced, "displaced")
	metrics.Send(ch, sessionsFull, refused, "refused")
}
