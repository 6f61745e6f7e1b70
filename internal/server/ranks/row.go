package ranks

import (
	"time"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/rankstate"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/reservations"
)

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
	rankstate.Verdict
	Reason string // why it is not ready
	Stream rankstate.Stream

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
	capacity := rankstate.CapacityOf(w)
	r.TotalBlocks, r.MaxBatchedTokens, r.Drained = capacity.KVBlocks, capacity.BatchedTokens, w.Drain != nil
	if w.Drain != nil && !w.Drain.Deadline.IsZero() {
		r.DrainDeadline = w.Drain.Deadline.Unix()
	}
}

// readStream reads the state of the KV events.
func (r *Row) readStream(streams *kvevents.Subscribers) {
	if streams == nil {
		return
	}
	if st, ok := streams.Stream(r.Rank); ok {
		r.Stream = rankstate.StreamOf(&st)
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
