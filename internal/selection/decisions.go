package selection

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// decisions has the most recent choices and their outcomes. Under high load only a part of them
// is kept, so that keeping them costs next to nothing.
type decisions struct {
	limit  int64              // bytes; 0 keeps none
	errors *metrics.Histogram // observed over predicted time to first token

	next atomic.Int64 // when the next decision is due if there were no bursts, in Unix ns
	seed maphash.Seed
	byID [decisionIDs]atomic.Pointer[Decision] // by hash of the id; the latest of each hash only

	mu     sync.Mutex // guards the fields below, Decision.Outcome, and Decision.decided, which is nil once it has left recent
	recent []*Decision
	oldest int // index in recent of the oldest kept decision
	bytes  int64
}

const (
	decisionIDs = 1 << 12
	// decisionBurst decisions may be kept at once, then one each decisionGap.
	decisionBurst = 100
	decisionGap   = 10 * time.Millisecond
	// Keeping a decision copies all its ranks, so the gap grows by one decisionGap for each
	// decisionRanks ranks.
	decisionRanks = 500
)

// Decision is a choice that was made, with its outcome.
type Decision struct {
	*decided
	At                         time.Time
	SelectionID, ReservationID string // "": none
	TraceID                    string // of the request's trace, in hexadecimal; "": it is not traced
	Reserved                   bool   // booked in the same step
	// Cached is how many blocks of the prompt the chosen rank had cached, MostCached the
	// highest such count among the ranks that could be chosen.
	Cached, MostCached uint64
	PredictedTTFT      float64 // seconds
	Outcome            Outcome

	times *scopes.FirstTokens // of the scope
}

// Outcome is what callers have reported about a choice since.
type Outcome struct {
	TTFT  time.Duration // from the choice to its prefill_complete; 0: not reported
	Freed time.Duration // from the choice to the call that freed it; 0: not freed
	// Gone: the reservation ended without being freed: it expired, its rank left, or
	// another replica ended it.
	Gone bool
}

// Explain returns why the rank was chosen.
func (d *Decision) Explain() *Explanation { return d.explain() }

// Outline is Explain without candidates, excluded ranks and shadows, of which there may be thousands.
func (d *Decision) Outline() *Explanation {
	x, _ := d.outline()
	return x
}

// Scope returns the scope of the choice.
func (d *Decision) Scope() catalog.Scope { return d.scope }

// due reports whether a decision among the given number of ranks may be kept now, and if so
// counts it.
func (d *decisions) due(now time.Time, ranks int) bool {
	at := now.UnixNano()
	next := max(d.next.Load(), at-int64(decisionBurst*decisionGap))
	if next > at {
		return false
	}
	d.next.Store(next + int64(decisionGap)*int64(1+ranks/decisionRanks))
	return true
}

// sampled says whether an attempt's decision is among those that are kept.
type sampled struct {
	asked bool
	at    time.Time // of the decision; zero: it is not kept
}

// is reports whether the decision about a request is to be kept. It asks once.
func (s *sampled) is(of *scope) bool {
	if d := &of.api.decisions; !s.asked && d.limit > 0 && !of.Advisory && !of.ExplainOnly {
		if now := time.Now(); d.due(now, of.snapshot.NumRanks) {
			s.at = now
		}
	}
	s.asked = true
	return !s.at.IsZero()
}

// keepDecision keeps the decision of the attempt.
func (a *attempt) keepDecision() {
	id := ""
	if a.reserve {
		if id = a.retry.id; a.pair != nil {
			id = reservations.DecodeID(id)
		}
	}
	a.keep(&a.choice, a.choice.sampled.at, id)
}

// keep keeps a decision of the attempt, which has booked a reservation unless the id is "".
func (a *attempt) keep(c *choice, at time.Time, reservation string) {
	x := &Decision{
		decided: c.decided(), At: at, Reserved: a.reserve,
		TraceID: a.Trace.TraceID(), Cached: c.prompt.cachedBlocks(c.chosen.Slot), MostCached: c.mostCached(),
		times: c.scope.state.FirstTokens,
	}
	if id := a.SelectionID; id != nil {
		x.SelectionID = strings.Clone(*id) // the request's string is borrowed
	}
	x.ReservationID = strings.Clone(reservation)
	if x.chosen >= 0 {
		p := predict(&x.decision, x.chosen)
		x.PredictedTTFT = p.Wait + p.Prefill
	}
	a.api.decisions.keep(x)
}

func (d *decisions) keep(x *Decision) {
	id := x.ReservationID
	if id == "" {
		id = x.SelectionID
	}
	d.mu.Lock()
	d.recent = append(d.recent, x)
	d.bytes += x.size()
	for d.bytes > d.limit && d.oldest < len(d.recent) {
		gone := d.recent[d.oldest]
		d.bytes -= gone.size()
		gone.decided = nil // byID may hold the rest for long, to compare the outcome with the prediction
		d.recent[d.oldest] = nil
		d.oldest++
	}
	if d.oldest > len(d.recent)/2 {
		n := copy(d.recent, d.recent[d.oldest:])
		clear(d.recent[n:])
		d.recent, d.oldest = d.recent[:n], 0
	}
	d.mu.Unlock()
	if id != "" {
		d.latest(id).Store(x)
	}
}

// size returns the approximate memory of all kept decisions, in bytes.
func (d *decisions) size() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bytes
}

// size returns the approximate memory of the decision, in bytes.
func (d *Decision) size() int64 {
	const fixed = int64(unsafe.Sizeof(Decision{})+unsafe.Sizeof(decided{})) + 64
	perRank := int64(unsafe.Sizeof(selector.Candidate{}) + unsafe.Sizeof(selector.Queue{}) + unsafe.Sizeof(catalog.Rank{}) + 8)
	return fixed + int64(len(d.ranks))*perRank + int64(len(d.foreign))*int64(unsafe.Sizeof(reservations.Foreign{})) + int64(len(d.excluded))*int64(unsafe.Sizeof(ExcludedRank{})) +
		int64(len(d.shadows))*int64(unsafe.Sizeof(ShadowChoice{})) + int64(len(d.SelectionID)+len(d.ReservationID)+len(d.TraceID)+len(d.kept.session)+len(d.kept.group))
}

func (d *decisions) latest(id string) *atomic.Pointer[Decision] {
	return &d.byID[maphash.String(d.seed, id)%decisionIDs]
}

// of returns the decision that a reservation is from, nil if it is not kept.
func (d *decisions) of(id string) *Decision {
	if d.limit == 0 {
		return nil
	}
	x := d.latest(id).Load()
	if x == nil || x.ReservationID != id && (x.Reserved || x.SelectionID != id) {
		return nil
	}
	return x
}

// completed records the prefill_complete of a reservation.
func (d *decisions) completed(id string) {
	x := d.of(id)
	if x == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if x.Outcome.TTFT != 0 || x.Outcome.Freed != 0 {
		return
	}
	x.Outcome.TTFT = max(1, time.Since(x.At))
	if x.PredictedTTFT > 0 {
		d.errors.Observe(x.Outcome.TTFT.Seconds() / x.PredictedTTFT)
		x.times.Note(x.Outcome.TTFT.Seconds(), x.PredictedTTFT)
	}
}

// freed records that a caller freed a reservation.
func (d *decisions) freed(id string) {
	x := d.of(id)
	if x == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	x.Outcome.Freed = max(1, time.Since(x.At))
}

// list returns copies of at most limit decisions of the scopes that match own, newest first.
func (d *decisions) list(own catalog.ScopeFilter, limit int) (found []Decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := len(d.recent) - 1; i >= d.oldest && len(found) < limit; i-- {
		if x := d.recent[i]; x.scope.Matches(own.Model, own.Tenant) {
			found = append(found, *x)
		}
	}
	return found
}
