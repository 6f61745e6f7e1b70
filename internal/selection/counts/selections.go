package counts

import (
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/identity"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

// The families with Dynamo's names are from its documentation of request rejection and from its
// frontend.
var (
	// Families has the metric families of the collector.
	Families metrics.Families

	selectionsTotal = Families.Counter("selections_total", "Selections by outcome; without a model_name those for models that have no worker, or that are too many to have one.", "model_name", "outcome")
	rejectionsTotal = Families.Counter("rejections_total", "Selections rejected because all workers were overloaded or the wait queue was full, by cause; one may count under several causes.", "model_name", "cause")
	tasksIssued     = Families.Counter("dynamo_tasks_issued_total", "Selections asked for, but for malformed ones; one that waits counts from then on, others when they are answered.", "model", "endpoint")
	tasksRejected   = Families.Counter("dynamo_tasks_rejected_total", "Selections rejected because every worker that could serve them was overloaded.", "model", "endpoint")
	tasksQueued     = Families.Gauge("dynamo_queued_requests", "Selections that wait for a rank that is not busy.", "model", "endpoint")
	modelRejections = Families.Counter("dynamo_frontend_model_rejection_total", "The same as dynamo_tasks_rejected_total.", "model", "endpoint")
	modelQueued     = Families.Gauge("dynamo_frontend_queued_requests", "The same as dynamo_queued_requests, endpoints together.", "model")
	overlapRatio    = Families.Histogram("selection_overlap_ratio", "Share of the prompt's complete blocks that the chosen rank had cached, in all tiers together; prompts without a complete block do not count.", "model_name")
	overlapForegone = Families.Histogram("selection_overlap_foregone_blocks", "Blocks of the prompt that the chosen rank had cached fewer than the eligible rank with the most, overloaded workers included.", "model_name")
	costSpread      = Families.Histogram("selection_cost_spread_blocks", "Highest cost less lowest cost among the ranks that were compared, in blocks.", "model_name")
	namesIgnored    = Families.Counter("session_names_ignored_total", "Names of sessions, and of the sessions that have started them, that were not used, by why: too_long (256 bytes), control_character, or reserved (they begin with one, as names of the service's own do).", "reason")
	pairsTotal      = Families.Counter("pairs_total", "Requests for which a pair was asked, by what they got: `pair` is two ranks, with the other reasons the rank that decodes prefills. Models without any have no series.", "model_name", "reason")
	hintsTotal      = Families.Counter("kv_hints_total", "Bookings on ranks whose engines take hints where to fetch KV caches from, by what came of it: `given`, `no_source` (no other rank has more of the prompt) or `source_lost` (the source has just lost it). With --kv-fetch priced also `source_stalled`, `source_busy` (longer than the time it saves), `dearer` (computing is sooner) and `learning` (what computing or the link takes is not known yet, and the request does not try it). Models without any have no series.", "model_name", "result")
	hintTokens      = Families.Counter("kv_hint_tokens_total", "Tokens of prompts that the sources of given hints had beyond the chosen ranks. Models without any hint have no series.", "model_name")
	targetsTotal    = Families.Counter("request_targets_total", "Selections that say when they want their first token or their answer, by what came of it.", "model_name", "outcome")
	queueWait       = Families.Histogram("queue_wait_seconds", "Time in the wait queue of the selections that had to wait, however they ended.", "model_name")
)

// Route is the kind of call that asked for a selection, as a label.
type Route uint8

// The routes.
const (
	RouteSelect  Route = iota // does not book
	RouteReserve              // books
	numRoutes    = int(iota)
)

// String gives the route's label.
func (r Route) String() string { return [numRoutes]string{"select", "select_and_reserve"}[r] }

// RouteOf returns the route of a selection that books (reserve) or does not.
func RouteOf(reserve bool) Route {
	if reserve {
		return RouteReserve
	}
	return RouteSelect
}

// PairReason says why a request got a pair, or why it got none.
type PairReason uint8

// The reasons. But for Paired, the rank that decodes prefills too: it has most of the prompt, or the
// prompt is short (see selection.Conditional), or no rank for the prefill could be chosen.
const (
	ReasonUnknown PairReason = iota
	Paired
	PrefillCached
	PromptShort
	NoPrefillWorker
	numPairReasons = int(iota)
)

// String gives the reason as answers and metrics have it, "" if it is unknown.
func (r PairReason) String() string {
	return [numPairReasons]string{"", "pair", "cached", "short", "no_prefill_worker"}[r]
}

// Hint is what came of a booking whose engine takes hints where to fetch KV caches from, as a label.
type Hint uint8

// What comes of it.
const (
	HintGiven Hint = iota
	NoHintSource
	HintSourceLost
	// With priced fetching.
	HintSourceStalled
	HintSourceBusy
	HintDearer
	HintLearning
	numHints = int(iota)
)

// String gives the label.
func (h Hint) String() string {
	return [numHints]string{"given", "no_source", "source_lost", "source_stalled", "source_busy", "dearer", "learning"}[h]
}

// Outcome is how a selection ended.
type Outcome uint8

// The outcomes of a selection.
const (
	Selected    Outcome = iota // by /select
	Reserved                   // by /select_and_reserve
	NotReady                   // no schedulable workers in the scope, or shutting down
	NoEndpoint                 // the request's filters left none
	QueueFull                  // its class of the wait queue is full
	IDTaken                    // the reservation id is live
	Invalid                    // the request is invalid in itself
	Failed                     // anything else: the worker left
	Refused                    // every worker that it could use is overloaded
	Abandoned                  // the client went away
	Repeated                   // a retry that got the first answer
	TooLate                    // no worker is predicted to hold its target
	numOutcomes = int(iota)
)

// String gives the outcome's label.
func (o Outcome) String() string {
	return [numOutcomes]string{
		"selected", "reserved", "not_ready", "no_endpoint", "queue_full", "id_taken", "invalid", "failed", "overloaded", "cancelled", "repeated", "target_missed",
	}[o]
}

// OutcomeOf returns the outcome of a selection that ended with err.
func OutcomeOf(err error, r Route) Outcome {
	switch {
	case err == nil && r == RouteReserve:
		return Reserved
	case err == nil:
		return Selected
	case errors.Is(err, selector.ErrNoEndpoints):
		return NoEndpoint
	}
	e, ok := errors.AsType[*contract.Error](err)
	if !ok {
		return Failed
	}
	switch e.Kind {
	case contract.BadRequest:
		return Invalid
	case contract.Conflict:
		return IDTaken
	case contract.Overloaded:
		return Refused
	case contract.Cancelled:
		return Abandoned
	case contract.QueueRejected:
		return QueueFull
	case contract.TargetMissed:
		return TooLate
	case contract.Unavailable:
		if e.Err == nil {
			return NotReady
		}
	}
	return Failed
}

// Target is what came of a selection's target or deadline.
type Target uint8

// What comes of them.
const (
	TargetIgnored    Target = iota // they have no effect, by an option
	TargetOnlyQueued               // what follows from them is at most the order of the wait queue
	TargetHeld                     // placed, and predicted to hold them
	TargetMissed                   // placed all the same
	TargetRefused                  // refused, because no rank was predicted to hold them
	TargetProbe                    // placed although it would be refused, as a probe: see ttft.Probes
	numTargets       = int(iota)
)

// String gives the label.
func (t Target) String() string {
	return [numTargets]string{"ignored", "only_queued", "held", "missed", "refused", "probe"}[t]
}

// The causes of a rejection: the thresholds, and the wait queue's limits.
const (
	queueLimit = overload.NumThresholds + iota
	// NumCauses is the number of causes.
	NumCauses
)

// CauseLabel names a cause of a rejection.
func CauseLabel(cause int) string {
	if cause == queueLimit {
		return "queue_limit"
	}
	return strings.Replace(overload.Threshold(cause).String(), "_threshold", "", 1)
}

// maxSpread bounds the observed cost spread, in blocks. Requests may have weights that make
// costs arbitrarily high, and these would dominate the histogram's sum.
const maxSpread = 1 << 20

// ModelSelections counts the selections of one model. But for Promises, its methods take no lock.
type ModelSelections struct {
	outcomes         [numOutcomes]atomic.Uint64
	issued, rejected [numRoutes]atomic.Uint64
	queued           [numRoutes]atomic.Int64 // requests waiting now
	causes           [NumCauses]atomic.Uint64
	pairs            [numPairReasons]atomic.Uint64
	hints            [numHints]atomic.Uint64
	hintTokens       atomic.Uint64
	targets          [numTargets]atomic.Uint64
	promises         promises

	// Of answered selections:

	ratio, foregone, spread *metrics.Histogram

	wait *metrics.Histogram // seconds in the queue, of the requests that waited
}

func newModelSelections() *ModelSelections {
	return &ModelSelections{
		ratio:    metrics.NewHistogram(metrics.OverlapRatioBounds),
		foregone: metrics.NewHistogram(metrics.ForegoneBounds),
		spread:   metrics.NewHistogram(metrics.CostSpreadBounds),
		wait:     metrics.NewHistogram(metrics.WaitBounds),
	}
}

// Issued counts a selection when it is asked for. Every selection is counted once, before its
// outcome; only invalid ones may be left out.
func (m *ModelSelections) Issued(r Route) { m.issued[r].Add(1) }

// Queued is called with by 1 when a selection begins to wait, and with by -1 when it has waited.
func (m *ModelSelections) Queued(r Route, by int64) { m.queued[r].Add(by) }

// Waited counts how long a selection was in the queue. of is its trace.
func (m *ModelSelections) Waited(d time.Duration, of metrics.Example) {
	m.wait.ObserveExample(d.Seconds(), of)
}

// Targeted counts what came of a selection's target or deadline.
func (m *ModelSelections) Targeted(t Target) { m.targets[t].Add(1) }

// Ended counts a selection that is over, with the error that it ended with.
func (m *ModelSelections) Ended(o Outcome, r Route, err error) {
	m.outcomes[o].Add(1)
	switch o {
	case QueueFull:
		m.causes[queueLimit].Add(1)
	case Refused:
		m.rejected[r].Add(1)
		if over, ok := errors.AsType[*contract.OverloadError](err); ok {
			for t := range overload.Threshold(overload.NumThresholds) {
				if over.Causes.Has(t) {
					m.causes[t].Add(1)
				}
			}
		}
	default:
	}
}

// Chosen counts a choice for a prompt. blocks is the number of its complete blocks, cached how many
// of them the chosen rank has from the first one on, on all tiers together, and most the highest
// such number of the eligible ranks. spread is the highest minus the lowest cost of the compared
// ranks, in blocks.
func (m *ModelSelections) Chosen(cached, most, blocks uint64, spread float64) {
	m.spread.Observe(min(spread, maxSpread))
	m.foregone.Observe(float64(most - cached))
	if blocks > 0 {
		m.ratio.Observe(float64(cached) / float64(blocks))
	}
}

// Paired counts the answer to a request for a pair.
func (m *ModelSelections) Paired(r PairReason) { m.pairs[r].Add(1) }

// Hinted counts what came of a booking whose engine takes hints.
func (m *ModelSelections) Hinted(h Hint) { m.hints[h].Add(1) }

// HintGiven counts a hint for as many tokens.
func (m *ModelSelections) HintGiven(tokens uint64) {
	m.Hinted(HintGiven)
	m.hintTokens.Add(tokens)
}

// sendPairs sends the counts of pairs, if there are any.
func (m *ModelSelections) sendPairs(ch chan<- prometheus.Metric, model string) {
	sendIfAny(ch, pairsTotal, m.pairs[:], model, func(r int) string { return PairReason(r).String() })
}

// sendHints sends the counts of hints, if there are any.
func (m *ModelSelections) sendHints(ch chan<- prometheus.Metric, model string) {
	sendIfAny(ch, hintsTotal, m.hints[:], model, func(h int) string { return Hint(h).String() })
	if m.hints[HintGiven].Load() > 0 {
		metrics.Send(ch, hintTokens, m.hintTokens.Load(), model)
	}
}

// sendIfAny sends the counters of a family of a model, unless all are 0.
func sendIfAny(ch chan<- prometheus.Metric, of metrics.Family, counters []atomic.Uint64, model string, label func(int) string) {
	values, some := make([]uint64, len(counters)), false
	for i := range counters {
		values[i] = counters[i].Load()
		some = some || values[i] > 0
	}
	for i := 0; some && i < len(values); i++ {
		if l := label(i); l != "" { // the zero value is no reason
			metrics.Send(ch, of, values[i], model, l)
		}
	}
}

// send sends the series of a model. Histograms of the others are left out while they are empty,
// as they nearly always are: they have values only when there are too many models.
func (m *ModelSelections) send(ch chan<- prometheus.Metric, model string) {
	for o := range m.outcomes { // read before issued, so that it is not above it; invalid ones aside
		metrics.Send(ch, selectionsTotal, m.outcomes[o].Load(), model, Outcome(o).String())
	}
	queued := int64(0)
	for r := range Route(numRoutes) {
		endpoint := r.String()
		rejected := m.rejected[r].Load() // read before issued, so that it is not above it
		metrics.Send(ch, tasksRejected, rejected, model, endpoint)
		metrics.Send(ch, modelRejections, rejected, model, endpoint)
		metrics.Send(ch, tasksIssued, m.issued[r].Load(), model, endpoint)
		waiting := m.queued[r].Load()
		metrics.Send(ch, tasksQueued, waiting, model, endpoint)
		queued += waiting
	}
	metrics.Send(ch, modelQueued, queued, model)
	for c := range m.causes {
		metrics.Send(ch, rejectionsTotal, m.causes[c].Load(), model, CauseLabel(c))
	}
	m.sendPairs(ch, model)
	m.sendHints(ch, model)
	for t := range m.targets {
		metrics.Send(ch, targetsTotal, m.targets[t].Load(), model, Target(t).String())
	}
	m.promises.send(ch, model)
	for _, h := range []struct {
		metrics.Family
		*metrics.Histogram
	}{{overlapRatio, m.ratio}, {overlapForegone, m.foregone}, {costSpread, m.spread}, {queueWait, m.wait}} {
		if model != "" || h.Count() > 0 {
			metrics.SendHistogram(ch, h.Family, h.Histogram, model)
		}
	}
}

// Tally has the counts of one model at a moment, for the log.
type Tally struct {
	Issued, Refused, Unserved uint64
	Causes                    [NumCauses]uint64
}

// Tally reads the counts.
func (m *ModelSelections) Tally() (t Tally) {
	t.Refused = m.outcomes[Refused].Load() + m.outcomes[QueueFull].Load()
	t.Unserved = m.outcomes[NotReady].Load()
	for r := range m.issued {
		t.Issued += m.issued[r].Load()
	}
	for c := range m.causes {
		t.Causes[c] = m.causes[c].Load()
	}
	return t
}

// maxModels bounds the models with counters of their own.
const maxModels = 1024

// Selections counts the selections of every model, and collects the counts. Readers never wait.
// Counts outlive a model's workers, so that they do not restart at 0 when the model comes back.
type Selections struct {
	Turns Turns // of sessions

	catalog *catalog.Catalog
	byModel atomic.Pointer[map[string]*ModelSelections] // replaced under mu
	mu      sync.Mutex
	// others counts the selections for models that the catalog does not have, or that have no
	// counters of their own.
	others  *ModelSelections
	ignored [identity.NumFaults]atomic.Uint64 // names, by fault
	// unserved is a scope without schedulable workers that a selection asked for since the
	// field was last taken; nil: none.
	unserved atomic.Pointer[catalog.Scope]
}

// NewSelections returns counters at 0 for the models of a catalog.
func NewSelections(c *catalog.Catalog) *Selections {
	s := &Selections{catalog: c, others: newModelSelections()}
	s.byModel.Store(&map[string]*ModelSelections{})
	return s
}

// Of returns the counters of a model, those of Others if it has none of its own.
func (s *Selections) Of(model string) *ModelSelections {
	if m := (*s.byModel.Load())[model]; m != nil {
		return m
	}
	return s.others
}

// Others returns the counts of the models that the catalog does not have.
func (s *Selections) Others() *ModelSelections { return s.others }

// Models returns the counters of the models that have their own. The map must not be changed.
func (s *Selections) Models() map[string]*ModelSelections { return *s.byModel.Load() }

// Add gives a model of the catalog counters of its own. If there are too many, it drops those of
// a model that has left the catalog; if there is none, the model is counted among the others.
func (s *Selections) Add(model string) {
	if model == "" || (*s.byModel.Load())[model] != nil {
		return // the empty label is that of the others
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := *s.byModel.Load()
	if all[model] != nil || !s.catalog.HasModel(model) {
		return
	}
	next := maps.Clone(all)
	if len(next) >= maxModels {
		maps.DeleteFunc(next, func(name string, _ *ModelSelections) bool { return !s.catalog.HasModel(name) })
	}
	if len(next) >= maxModels {
		return
	}
	next[model] = newModelSelections()
	s.byModel.Store(&next)
}

// Ignored counts names of one request that were not used.
func (s *Selections) Ignored(faults identity.Faults) {
	for bit := 0; faults != 0; bit, faults = bit+1, faults>>1 {
		s.ignored[bit].Add(uint64(faults & 1))
	}
}

// NoteUnserved remembers a scope that had no worker for a selection, unless one is
// remembered already.
func (s *Selections) NoteUnserved(sc catalog.Scope) {
	if s.unserved.Load() == nil {
		s.unserved.CompareAndSwap(nil, &catalog.Scope{Model: catalog.Clip(sc.Model), Tenant: catalog.Clip(sc.Tenant)})
	}
}

// TakeUnserved returns the scope that NoteUnserved remembered and forgets it; nil: none.
func (s *Selections) TakeUnserved() *catalog.Scope { return s.unserved.Swap(nil) }

// Describe implements prometheus.Collector.
func (s *Selections) Describe(ch chan<- *prometheus.Desc) { Families.Describe(ch) }

// Collect implements prometheus.Collector. Models come from the catalog, not from requests, so
// that clients cannot create series.
func (s *Selections) Collect(ch chan<- prometheus.Metric) {
	s.Turns.collect(ch)
	s.others.send(ch, "")
	all := *s.byModel.Load()
	for _, model := range s.catalog.Models() {
		if m := all[model]; m != nil {
			m.send(ch, model)
		}
	}
	for bit := range s.ignored {
		metrics.Send(ch, namesIgnored, s.ignored[bit].Load(), identity.FaultLabel(bit))
	}
}
