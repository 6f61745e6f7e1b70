package contract

import (
	"fmt"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// The limits that refuse requests (decision X2), by their labels of the counter of refusals.
// Comments say what each limits.
const (
	LimitWorkers           = catalog.LimitWorkers           // registered (--max-workers)
	LimitRanks             = catalog.LimitRanks             // of all workers (--max-ranks)
	LimitStreams           = catalog.LimitStreams           // of KV events of all workers (--max-streams)
	LimitModels            = catalog.LimitModels            // of tenants, that have workers (--max-models)
	LimitText              = catalog.LimitText              // of an id, a name or another text
	LimitEntries           = catalog.LimitEntries           // of a list or map of a worker
	LimitISLTokens         = "isl_tokens"                   // of a prompt
	LimitReservations      = reservations.LimitReservations // live (--max-reservations)
	LimitReservationBlocks = reservations.LimitBlocks       // of one reservation (MaxReservationBlocks)
	LimitMemory            = reservations.LimitMemory       // an account of --max-memory
	LimitThresholds        = "thresholds"                   // models with busy thresholds of their own
	LimitPublishers        = "publishers"                   // of the Conductor API
	LimitPeers             = "peers"                        // whose reservations are followed (--max-peers)
	LimitDumpReaders       = "dump_readers"                 // at a time
	LimitSnapshotReaders   = "snapshot_readers"             // at a time
	LimitBatch             = "batch"                        // requests of a batch
)

// Limits lists all limits.
var Limits = []string{
	LimitWorkers, LimitRanks, LimitStreams, LimitModels, LimitText, LimitEntries, LimitISLTokens,
	LimitReservations, LimitReservationBlocks, LimitMemory, LimitThresholds, LimitPublishers,
	LimitPeers, LimitDumpReaders, LimitSnapshotReaders, LimitBatch,
}

const (
	// MaxText is the longest id, name or other text of a request in bytes,
	// inclusive. Workers and their scopes have lower limits of their own: see
	// catalog.MaxName.
	MaxText = 64 << 10
	// MaxISLTokens is the longest prompt of a selection in tokens, inclusive: far
	// above every context window, and sums of a million of them do not saturate.
	MaxISLTokens = 1 << 48
	// MaxReservationBlocks is the most prompt blocks of a reservation: no body of 8 MiB has more.
	MaxReservationBlocks = 4_194_304
)

// LimitErrorf is Errorf for a request that the named limit refuses.
func LimitErrorf(k Kind, limit, format string, args ...any) *Error {
	e := Errorf(k, format, args...)
	e.Limit = limit
	return e
}

// limitFlags are the flags that set limits.
var limitFlags = map[string]string{
	LimitWorkers: "--max-workers", LimitRanks: "--max-ranks", LimitStreams: "--max-streams", LimitModels: "--max-models",
	LimitReservations: "--max-reservations", LimitMemory: "--max-memory",
}

// flagOf returns the flag that sets a limit as the end of a text, "" if none does.
func flagOf(limit string) string {
	if flag := limitFlags[limit]; flag != "" {
		return " (" + flag + ")"
	}
	return ""
}

// CatalogLimit converts a limit error of the catalog: reaching a maximum count is a Conflict
// for operators (decision X2).
func CatalogLimit(e *catalog.LimitError) *Error {
	out := &Error{Kind: BadRequest, Text: e.Reason, Limit: e.Limit, Err: e}
	if e.Full {
		out.Kind, out.Reason = Conflict, "limit_reached"
		out.Text += flagOf(e.Limit)
	}
	return out
}

// LedgerLimit converts a limit error of the ledger: if there are too many live reservations,
// callers should come back later (decision X2).
func LedgerLimit(e *reservations.LimitError) *Error {
	out := &Error{Kind: BadRequest, Text: e.Reason + flagOf(e.Limit), Limit: e.Limit, Err: e}
	if e.Full {
		out.Kind, out.Reason = Exhausted, "limit_reached"
	}
	return out
}

// CheckText returns an error of kind BadRequest for an id that is longer than
// MaxText.
func CheckText(name, text string) error {
	if len(text) <= MaxText {
		return nil
	}
	return LimitErrorf(BadRequest, LimitText, "%s", TooLong(name, len(text), MaxText))
}

// TooLong returns the error text for a text with too many bytes.
func TooLong(name string, n, limit int) string {
	return fmt.Sprintf("%s has %d bytes, the maximum is %d", name, n, limit)
}
