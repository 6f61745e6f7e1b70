package contract

import "fmt"

// The limits that refuse requests (decision X2), as the label of the counter of
// refusals has them.
const (
	LimitWorkers           = "workers"            // registered (--max-workers)
	LimitRanks             = "ranks"              // of all workers (--max-ranks)
	LimitScopes            = "scopes"             // that have workers (--max-models)
	LimitText              = "text_bytes"         // of an id, a name or another text
	LimitEntries           = "entries"            // of a list or map of a worker
	LimitISLTokens         = "isl_tokens"         // of a prompt
	LimitReservations      = "reservations"       // live (--max-reservations)
	LimitReservationBlocks = "reservation_blocks" // of one reservation (--max-reservation-blocks)
	LimitMemory            = "memory"             // an account of --max-memory
	LimitThresholds        = "thresholds"         // models with busy thresholds of their own
	LimitPublishers        = "publishers"         // of the Conductor API
)

// Limits has all of them.
var Limits = []string{
	LimitWorkers, LimitRanks, LimitScopes, LimitText, LimitEntries, LimitISLTokens,
	LimitReservations, LimitReservationBlocks, LimitMemory, LimitThresholds, LimitPublishers,
}

const (
	// MaxText is the longest id, name or other text of a request in bytes,
	// inclusive. Workers and their scopes have lower limits of their own: see
	// catalog.MaxName.
	MaxText = 64 << 10
	// MaxISLTokens is the longest prompt of a selection in tokens, inclusive: far
	// above every context window, and sums of a million of them do not saturate.
	MaxISLTokens = 1 << 48
)

// LimitErrorf is Errorf for a request that the named limit refuses.
func LimitErrorf(k Kind, limit, format string, args ...any) *Error {
	e := Errorf(k, format, args...)
	e.Limit = limit
	return e
}

// CheckText returns an error of kind BadRequest for an id that is longer than
// MaxText.
func CheckText(name, text string) error {
	if len(text) <= MaxText {
		return nil
	}
	return LimitErrorf(BadRequest, LimitText, "%s", TooLong(name, len(text), MaxText))
}

// TooLong says that a text has too many bytes.
func TooLong(name string, n, limit int) string {
	return fmt.Sprintf("%s has %d bytes, the maximum is %d", name, n, limit)
}
