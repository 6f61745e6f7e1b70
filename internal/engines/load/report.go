package load

import (
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// Source is the way by which a report has come.
type Source uint8

// The sources of reports. Push and Scrape beat: a report comes every Report.Interval for as long
// as the engine lives, whether or not anything has changed.
const (
	Push   Source = iota // a load stream of the engine
	Scrape               // the engine's metrics page
	Told                 // PUT /workers/{id}/load
	Sources
)

// String returns the source as metrics and answers name it.
func (s Source) String() string { return [...]string{"push", "scrape", "told"}[s] }

// MaxAmount is the greatest number that a report may have.
const MaxAmount = 1 << 48

// Amount is a number that an engine may leave out. The zero Amount is unknown.
type Amount struct {
	n     uint64 // at most MaxAmount
	known bool
}

// Known returns the Amount n, which is at most MaxAmount.
func Known(n uint64) Amount { return Amount{n, true} }

// Get returns the number, 0 if it is not known.
func (a Amount) Get() (n uint64, known bool) { return a.n, a.known }

// Or returns the number, or other if it is not known.
func (a Amount) Or(other uint64) uint64 {
	if a.known {
		return a.n
	}
	return other
}

// Report is what an engine says of one rank at one moment. Two reports can be compared by ==.
type Report struct {
	Running, Waiting Amount // requests
	// KVTokensUsed and KVTokensTotal are the content and the capacity of the KV cache in tokens,
	// the latter never 0.
	KVTokensUsed, KVTokensTotal Amount
	WaitingUncachedTokens       Amount // of the waiting requests: tokens to prefill
	TokensUsedAndQueued         Amount // KVTokensUsed and the tokens of the waiting requests
	MaxRunning                  Amount // the most requests that run at a time, never 0
	// PrefillTokens (without cached ones) and PrefillBusyMicros have grown since the engine's
	// start, from 0: what it has prefilled, and the microseconds that it was busy with that. They
	// fall when it restarts.
	PrefillTokens, PrefillBusyMicros Amount

	// Changed reports that the engine has said something else than before, here or in reports of
	// which this one is the last. Told and scraped reports leave it to be seen.
	Changed bool

	Source Source
	// Interval is the longest time between two reports of this source, 0 if it keeps none.
	Interval time.Duration
}

// Sink takes reports. Its methods are called by several goroutines, but for one rank and source
// by one at a time, must not block, and are not called before the rank is attached.
type Sink interface {
	// Report gives a report of a rank and the time at which it has arrived.
	Report(rank catalog.Rank, report Report, at time.Time)
	// Pause says that the source has failed, and is asked less often until its next report: what it
	// has reported does not show any more that the rank's engine works.
	Pause(rank catalog.Rank, source Source)
	// Remove says that the rank has the source no longer: nothing that it has reported is true
	// of the rank any more.
	Remove(rank catalog.Rank, source Source)
}
