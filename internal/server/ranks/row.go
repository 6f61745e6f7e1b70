package ranks

import (
	"time"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/reservations"
)

// State is what a rank does for new requests.
type State uint8

// The states.
const (
	Ready      State = iota // it may be chosen
	Draining                // it gets no new requests
	Overloaded              // its worker is above a busy threshold
	Stalled                 // its engine has unfinished work and gives no sign of life
	Silent                  // its engine gives no sign of life
	Incomplete              // its worker cannot be chosen: something is missing or in conflict
	// NumStates counts the states.
	NumStates = int(iota)
)

// String returns the state as answers name it.
func (s State) String() string {
	return [NumStates]string{"ready", "draining", "overloaded", "stalled", "silent", "incomplete"}[s]
}

// Stream is the state of a rank's KV events.
type Stream struct {
	Known bool // false: KV events are off, or none are followed for the rank
	State kvevents.StreamState
	Lag   int    // messages that are not applied yet
	Lost  uint64 // messages so far
}

// Reported is what a rank's engine says of its load.
type Reported struct {
	Known            bool
	Source           load.Source
	Stale            bool
	Last             int64 // when a stale report came, in Unix seconds
	Running, Waiting load.Amount
	// UsedBlocks and TotalBlocks are in blocks of the scope's size.
	UsedBlocks, TotalBlocks load.Amount
}

// Row is a rank.
type Row struct {
	Rank   catalog.Rank
	Source string // of the worker's record
	State  State
	Reason string // why it is not Ready
	Stream Stream

	Requests         uint32 // live reservations
	ActiveBlocks     uint64 // of these
	PrefillTokens    uint64 // of these, still to be computed
	CachedBlocks     int    // on its device, as the index knows
	TotalBlocks      uint64 // it has room for; 0: not known
	MaxBatchedTokens uint64 // 0: not known
	Hits             Rate
	Reported         Reported
	Foreign          reservations.Foreign
	Drained          bool  // by an operator
	DrainDeadline    int64 // in Unix seconds; 0: none
}

// Rate is a hit rate in hundredths; the zero Rate is not known.
type Rate uint8

// Get returns the rate, 0 to 1; known is false without prompts.
func (r Rate) Get() (rate float64, known bool) { return float64(r-1) / 100, r > 0 }

// rateOf returns the rate of cached blocks.
func rateOf(cached, blocks float64) Rate {
	const least = 0.5 // blocks; less is the rest of prompts long ago
	if blocks < least {
		return 0
	}
	return Rate(1 + min(100, max(0, 100*cached/blocks+0.5)))
}

// describe fills in what a worker's record says.
func (r *Row) describe(w *catalog.Worker) {
	r.Source = string(w.Source.KindOrAPI())
	if w.Tracked {
		r.Source = "slots"
	}
	capacity := selection.CapacityOf(w)
	r.TotalBlocks, r.MaxBatchedTokens, r.Drained = capacity.KVBlocks, capacity.BatchedTokens, w.Drain != nil
	if w.Drain != nil && !w.Drain.Deadline.IsZero() {
		r.DrainDeadline = w.Drain.Deadline.Unix()
	}
	if why := w.Explain(); len(why) > 0 {
		r.Reason = why[0]
	}
}

// The reasons of states that a worker's record does not explain.
const (
	reasonOverloaded = "all ranks of the worker are above a busy threshold"
	reasonStalled    = "the engine has unfinished work and gives no sign of life"
	reasonSilent     = "the engine gives no sign of life"
	reasonLeaving    = "its ranks are being taken away"
)

// judge sets the state, and its reason if the record does not say it.
func (r *Row) judge(of *versionedRow, c *carried, excluded *reports.Exclusion) {
	w := of.worker
	why := ""
	switch {
	case w.Tracked && of.attached:
		r.State = Ready // for the slot tracker's callers, which choose by themselves
		r.Reason = ""
		return
	case w.Lifecycle == catalog.Incomplete:
		r.State = Incomplete
	case w.Lifecycle == catalog.Draining, !w.HasRank(r.Rank.DP):
		r.State, why = Draining, reasonLeaving
	case excluded != nil && excluded.State == reports.Silent:
		r.State, why = Silent, reasonSilent
	case excluded != nil:
		r.State, why = Stalled, reasonStalled
	case c.overloaded:
		r.State, why = Overloaded, reasonOverloaded
	default:
		r.State = Ready
	}
	if r.State == Ready || r.State != Incomplete && len(w.Reasons) == 0 {
		r.Reason = why
	}
}

// readStream reads the state of the KV events.
func (r *Row) readStream(streams *kvevents.Subscribers) {
	if streams == nil {
		return
	}
	if st, ok := streams.Stream(r.Rank); ok {
		r.Stream = Stream{Known: true, State: st.State, Lag: st.Pending + st.Held, Lost: st.Lost}
	}
}

// readReport reads what the engine says.
func (r *Row) readReport(p *node.Parts, sc catalog.Scope, blockSize uint32, now time.Time) {
	st, ok := p.Reports.Status(sc, r.Rank)
	if !ok {
		return
	}
	r.Reported = Reported{
		Known: true, Source: st.Source, Stale: st.Stale, Running: st.Running, Waiting: st.Waiting,
		UsedBlocks: inBlocks(st.KVTokensUsed, blockSize), TotalBlocks: inBlocks(st.KVTokensTotal, blockSize),
	}
	if st.Stale {
		r.Reported.Last = now.Add(-st.Age).Unix()
	}
}

// inBlocks returns the blocks of a number of tokens.
func inBlocks(tokens load.Amount, blockSize uint32) load.Amount {
	n, known := tokens.Get()
	if !known || blockSize == 0 {
		return load.Amount{}
	}
	return load.Known((n + uint64(blockSize) - 1) / uint64(blockSize))
}
