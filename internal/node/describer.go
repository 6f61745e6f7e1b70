package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/engines/describe"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/memory"
)

// Times of questions to the engines that describe their workers.
const (
	firstRetry   = time.Second
	lastRetry    = 30 * time.Second
	refreshEvery = 60 * time.Second // ± 10 %
	// askedAtOnce bounds the engines that are asked at the same time, besides those of requests.
	askedAtOnce = 16
	// requestPatience is how long a registration waits for its engine's answers.
	requestPatience = 10 * time.Second
)

// AskEngine asks the engine at a URL what it says of itself, see describe.Client.Describe.
type AskEngine func(ctx context.Context, url, engine string) (*catalog.Description, error)

// describer asks the engines of the workers that wish it: when they are registered, until they
// answer; every minute; and when an event stream of theirs connects, since they may be others.
type describer struct {
	ask     AskEngine
	catalog *catalog.Catalog
	// apply gives an answer to the catalog, see workers.Registry.Describe.
	apply func(w *catalog.Worker, told *catalog.Description, fault string) (now *catalog.Worker, changed bool)
	// described is Config.Described; nil: nobody is told.
	described func()
	log       zerolog.Logger
	wake      chan struct{} // workers have changed, or a stream has connected

	// mu guards connected: it is innermost, and held by the callbacks of sockets.
	mu        sync.Mutex
	connected map[string]struct{} // endpoints whose streams have connected since the last look

	// Only run uses these.
	engines map[uint64]*describedEngine // by worker
	asking  int

	asked [numAskOutcomes]atomic.Uint64
}

// describedEngine is what is known of a worker's engine besides its description.
type describedEngine struct {
	url, engine string
	turn        uint64 // see catalog.Describe
	due         time.Time
	delay       time.Duration // before the next question if there is no answer; 0: the last one was answered
	asking      bool
	warned      bool // that the record's capacity is not the engine's
}

// answer is what has come of one question.
type answer struct {
	worker *catalog.Worker // as it was asked about
	told   *catalog.Description
	err    error
}

// askOutcome is what became of a question, for metrics.
type askOutcome uint8

const (
	askAnswered askOutcome = iota
	askAway                // the engine does not run, or is too busy
	askRefused             // it does not answer such questions, or says something impossible
	numAskOutcomes
)

func outcomeOf(err error) askOutcome {
	e, ok := errors.AsType[*describe.Error](err)
	switch {
	case err == nil:
		return askAnswered
	case ok && e.Away:
		return askAway
	}
	return askRefused
}

func newDescriber(ask AskEngine, log zerolog.Logger) *describer {
	if ask == nil {
		return nil
	}
	return &describer{
		ask: ask, log: log, wake: make(chan struct{}, 1),
		connected: make(map[string]struct{}), engines: make(map[uint64]*describedEngine),
	}
}

// look makes run look at the workers. A nil describer has none.
func (d *describer) look() {
	if d == nil {
		return
	}
	select {
	case d.wake <- struct{}{}:
	default: // it will
	}
}

// streamUp notes that the stream of an endpoint has connected.
func (d *describer) streamUp(endpoint string) {
	d.mu.Lock()
	d.connected[endpoint] = struct{}{}
	d.mu.Unlock()
	d.look()
}

// watchedSource tells a describer which streams connect.
type watchedSource struct {
	kvevents.Source
	up func(endpoint string)
}

func (s watchedSource) Subscribe(
	endpoint string, offer func([][]byte, time.Time) bool, message func([][]byte, *memory.Buffer, time.Time) bool, status func(bool),
) (uint64, error) {
	return s.Source.Subscribe(endpoint, offer, message, func(up bool) {
		status(up)
		if up {
			s.up(endpoint)
		}
	})
}

// run asks until ctx ends.
func (d *describer) run(ctx context.Context) error {
	var questions sync.WaitGroup
	defer questions.Wait()
	answers := make(chan answer, askedAtOnce) // has room for all, so that none is stuck at the end
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case a := <-answers:
			d.note(a)
		case <-d.wake:
			d.sync()
		case <-next.C:
		}
		next.Reset(d.start(ctx, &questions, answers))
	}
}

// asks reports whether a worker's engine is asked. That of a pod that does not serve is not.
func asks(w *catalog.Worker) bool {
	return w.Describe != nil && !w.Tracked && (w.Draining == "" || !w.Source.KindOrAPI().Discovered())
}

// Unasked reports whether an engine that is asked has neither answered yet nor failed to.
func (r *describedRegistry) Unasked() bool {
	return r.describer != nil && slices.ContainsFunc(r.describer.catalog.List(nil, nil), func(w *catalog.Worker) bool {
		return asks(w) && w.Describe.Told == nil && w.Describe.Fault == catalog.NotAsked
	})
}

// sync adapts engines to the workers of the catalog.
func (d *describer) sync() {
	d.mu.Lock()
	connected := d.connected
	d.connected = make(map[string]struct{})
	d.mu.Unlock()
	now := time.Now()
	gone := maps.Clone(d.engines)
	for _, w := range d.catalog.List(nil, nil) {
		if !asks(w) {
			continue
		}
		discovered := w.Source.KindOrAPI().Discovered()
		delete(gone, w.ID)
		e := d.engines[w.ID]
		if e == nil || e.url != w.Address() || e.engine != w.Describe.Engine {
			e = &describedEngine{url: w.Address(), engine: w.Describe.Engine, turn: w.Describe.Turn, due: now}
			if w.Describe.Told != nil && !discovered { // it was just asked
				e.due = now.Add(refreshIn())
			}
			d.engines[w.ID] = e
			continue
		}
		if w.Describe.Told == nil && e.delay == 0 || w.Describe.Turn != e.turn || hasAny(w, connected) {
			e.due, e.delay, e.turn = now, 0, w.Describe.Turn
		}
	}
	for id := range gone {
		delete(d.engines, id)
	}
}

// hasAny reports whether one of the endpoints is an event endpoint of the worker.
func hasAny(w *catalog.Worker, endpoints map[string]struct{}) bool {
	if len(endpoints) == 0 {
		return false
	}
	has := func(at string) bool {
		_, ok := endpoints[at]
		return ok
	}
	if w.KVEventsEndpoint != nil && has(*w.KVEventsEndpoint) {
		return true
	}
	return slices.ContainsFunc(slices.Collect(maps.Values(w.KVEventsEndpoints)), has)
}

func refreshIn() time.Duration {
	return time.Duration((0.9 + 0.2*rand.Float64()) * float64(refreshEvery))
}

// start asks the engines that are due, as far as there is room, and returns the time until the
// next is due.
func (d *describer) start(ctx context.Context, questions *sync.WaitGroup, answers chan<- answer) time.Duration {
	now, next := time.Now(), refreshEvery
	var workers map[uint64]*catalog.Worker
	for id, e := range d.engines {
		wait := e.due.Sub(now)
		if e.asking || wait > 0 || d.asking == askedAtOnce {
			if !e.asking && wait > 0 {
				next = min(next, wait)
			}
			continue // an answer makes room for those that are due
		}
		if workers == nil {
			workers = d.workers()
		}
		w := workers[id]
		if w == nil || w.Address() != e.url {
			continue // sync is about to see that
		}
		e.asking = true
		d.asking++
		questions.Go(func() {
			told, err := d.ask(ctx, e.url, e.engine)
			answers <- answer{w, told, err}
		})
	}
	return next
}

// workers returns the described workers by id.
func (d *describer) workers() map[uint64]*catalog.Worker {
	byID := make(map[uint64]*catalog.Worker)
	for _, w := range d.catalog.List(nil, nil) {
		if w.Describe != nil && !w.Tracked {
			byID[w.ID] = w
		}
	}
	return byID
}

// note applies an answer, and says when the engine is asked again.
func (d *describer) note(a answer) {
	d.asking--
	e := d.engines[a.worker.ID]
	if e == nil {
		return
	}
	e.asking, e.due = false, time.Now().Add(firstRetry)
	d.count(a.err)
	fault := ""
	if a.err != nil {
		fault = a.err.Error()
	}
	now, changed := d.apply(a.worker, a.told, fault)
	if changed && d.described != nil && a.worker.Source.KindOrAPI().Discovered() {
		d.described()
	}
	if now == nil || now.Address() != e.url {
		return // another engine by now, or the service is shutting down
	}
	first := e.delay == 0
	switch {
	case a.err != nil, now.Lifecycle == catalog.Incomplete:
		e.delay = min(max(firstRetry, 2*e.delay), lastRetry)
		e.due = time.Now().Add(e.delay)
	default:
		e.delay, e.due = 0, time.Now().Add(refreshIn())
	}
	if a.worker.Describe.Turn != e.turn { // it may be another one since it was asked
		e.due = time.Now()
	}
	d.report(e, now, a, changed, first)
}

// report logs what has changed; first is false while an engine goes on not answering.
func (d *describer) report(e *describedEngine, w *catalog.Worker, a answer, changed, first bool) {
	switch {
	case a.err != nil && (first || changed):
		d.log.Warn().Uint64("worker_id", w.ID).Str("endpoint", catalog.Clip(e.url)).Err(a.err).Msg("engine does not describe itself")
	case !changed:
	case w.Lifecycle == catalog.Incomplete:
		d.log.Warn().Uint64("worker_id", w.ID).Str("endpoint", catalog.Clip(e.url)).Strs("reasons", w.Explain()).Msg("engine's description leaves its worker incomplete")
	default:
		d.log.Info().Uint64("worker_id", w.ID).Str("endpoint", catalog.Clip(e.url)).Str("engine", a.told.Engine).Str("version", a.told.Version).
			Str("model_name", catalog.Clip(w.Scope.Model)).Msg("engine has described itself")
	}
	if changed && a.told != nil && len(a.told.Further) > 0 {
		further := a.told.Further[:min(8, len(a.told.Further))]
		d.log.Info().Str("engine", catalog.Clip(e.url)).Str("model", catalog.Clip(a.told.Model)).Str("further", catalog.Clip(strings.Join(further, ", "))).
			Msg("an engine lists further models, which are not served")
	}
	if a.told == nil || e.warned {
		return
	}
	for _, c := range []struct {
		field  string
		record *uint64
		told   uint64
	}{
		{catalog.FieldTotalKVBlocks, w.TotalKVBlocks, a.told.TotalKVBlocks},
		{catalog.FieldMaxNumBatchedTokens, w.MaxNumBatchedTokens, a.told.MaxNumBatchedTokens},
	} {
		if c.record == nil || c.told == 0 || !catalog.CapacityDiffers(*c.record, c.told) {
			continue
		}
		e.warned = true
		d.log.Warn().Uint64("worker_id", w.ID).Str("field", c.field).Uint64("record", *c.record).Uint64("engine", c.told).
			Msg("the record of a worker differs from what its engine says; the record counts")
	}
}

func (d *describer) count(err error) { d.asked[outcomeOf(err)].Add(1) }

// counts returns the questions so far by outcome.
func (d *describer) counts() map[string]uint64 {
	return map[string]uint64{"answered": d.asked[askAnswered].Load(), "away": d.asked[askAway].Load(), "refused": d.asked[askRefused].Load()}
}

// describedRegistry has the use case about a worker that its engine describes.
type describedRegistry struct {
	describer *describer // nil: engines are not asked
	registry  *workers.Registry
}

// DescribeWorkerIn is workers.Registry.PutWorkerIn for a worker that its engine describes: it is asked first. An
// engine that does not run, or is too busy, makes the worker incomplete, and is asked again. If
// it answers, but does not tell what the record needs, the worker is refused, with the engine's
// words.
func (r *describedRegistry) DescribeWorkerIn(ctx context.Context, own catalog.ScopeFilter, of catalog.Record) (*catalog.Worker, error) {
	if r.describer == nil {
		return nil, contract.Errorf(contract.BadRequest, "this process does not ask engines: register without describe")
	}
	if err := of.CheckDescribe(); err != nil {
		return nil, workers.AsError(err)
	}
	wish := *of.Describe
	wait, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	told, err := r.describer.ask(wait, of.Address(), wish.Engine)
	r.describer.count(err)
	of.Describe = &wish
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case outcomeOf(err) == askAway:
		wish.Fault = err.Error()
	case err != nil:
		return nil, refusedByEngine(of, err)
	default:
		wish.Told = told
		if err := r.describer.catalog.Lacking(of); err != nil && !told.Unanswered {
			return nil, refusedByEngine(of, err)
		}
	}
	return r.registry.PutWorkerIn(own, of)
}

func refusedByEngine(r catalog.Record, err error) error {
	return &contract.Error{
		Kind: contract.BadRequest, Err: err,
		Text: fmt.Sprintf("the engine at %s does not describe worker %d: %v", catalog.Clip(r.Address()), r.ID, err),
	}
}
