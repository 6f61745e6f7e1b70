package node

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/node/statefile"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/approximate"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/internal/selection/fairness"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/selection/settings"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// Config has the settings of a process: those of its parts, as these have them, and its own. New fills in
// what a part's settings say about other parts.
type Config struct {
	// Process is the id of this process among the replicas, new in every life of the program.
	// 0: a random one is drawn.
	Process uint64
	// Memory has the memory accounts of the parts; nil: no limits.
	Memory *memory.Budget
	// Tracer traces events, recovery and snapshots; nil: they are not traced.
	Tracer *tracing.Tracer
	// Contract decides the substantial differences between the contracts: the approximate
	// index, and whether answers have the data that was booked.
	Contract contract.Version
	// KVEvents turns on event subscriptions. Off: workers need no event endpoints, and overlap
	// is always 0 unless it is predicted.
	KVEvents bool
	// Threads is the number of apply workers.
	Threads int

	// Selection has the settings of selections, without Approximate, ByCapacity and the memory accounts.
	Selection selection.Config
	// Scopes has Admission, Policies, HybridExact and WatchStored of the scopes, and Queues.OverlapRefresh.
	Scopes scopes.Settings
	// Predictions says which blocks are assumed to be cached.
	Predictions Predictions
	// Reports has TTL and StalledAfter of the engines' reports; 0: their defaults.
	Reports reports.Config

	// Workers keeps the workers of the API and of the workers file; nil: they are this process's own.
	Workers workers.Store
	// Given says what defines the workers beside the API.
	Given workers.Given
	// Discovers has the kinds of the discovering sources that will call ReplaceWorkers.
	Discovers []catalog.SourceKind
	// Limits bound what can be registered.
	Limits catalog.Limits
	// Endpoints is the policy for the endpoints of engines and replicas.
	Endpoints catalog.EndpointPolicy
	// Ask asks the engines of workers that wish to be described; nil: none is asked.
	Ask AskEngine
	// Described is called when the engine of a discovered worker has said something new; nil: nobody is told.
	Described func()
	// Scrape is how the metrics of engines are read; Endpoints of it is not used.
	Scrape engines.Access

	// Reservations bound what can be booked. ReservationLifetime is how long a reservation without lease
	// lives; 0: 300 s.
	Reservations        reservations.Limits
	ReservationLifetime time.Duration
	// Replication configures the sharing of reservations with other replicas; nil: they are not
	// shared.
	Replication *Replication
	// Recovery fills the index from other replicas at start.
	Recovery RecoveryConfig
}

// Predictions say how long a prompt that was sent to a rank is assumed to be cached there.
type Predictions struct {
	// ApproximateTTL is that time if the contract is 1.6 and KV events are off.
	ApproximateTTL time.Duration
	// ApproximateLRU: for ranks whose capacity in blocks is known, the assumption ends by that
	// capacity and not by time.
	ApproximateLRU bool
	// PredictedTTL is that time if KV events are on, in addition to what events report; nil: no
	// predictions.
	PredictedTTL *time.Duration
}

// core is what the use cases of this package share: the workers, their booked load, and
// the index and wait queue of each scope.
type core struct {
	log     zerolog.Logger
	catalog *catalog.Catalog
	ledger  *reservations.Ledger
	scopes  *scopes.Registry
}

// UseCases are those of one process but the Conductor API's, which conductor.API has.
type UseCases struct {
	*selection.API
	*selection.Learning
	*workers.Registry
	*describedRegistry
	*diagnose.Scopes
	*slotTracker
	*peers
	*loadSources
	*eventIndex
	*readiness
}

// Service is one process: its parts, and what they do by themselves.
type Service struct {
	core
	UseCases UseCases

	config     Config
	describer  *describer // nil: engines are not asked
	blockSizes *blockSizes
	drains     *workers.Drains
	learners   *policies.Learners
	reports    *reports.Reports
	loads      *loadSources          // deliver to reports
	streams    *kvevents.Subscribers // of the workers
	observer   telemetry.StreamObserver
	lag        *metrics.Histogram   // of their events, in seconds
	replica    *replicasync.Replica // nil: reservations are not shared
	recovery   *indexRecovery       // nil: none is configured
	conductor  *conductor.API
}

// approximate reports whether the index is predicted from reservations, because engines
// publish no KV events.
func (c *Config) approximate() bool {
	return c.Contract == contract.V16 && !c.KVEvents && (c.Predictions.ApproximateTTL > 0 || c.Predictions.ApproximateLRU)
}

// predictsBesideEvents reports whether blocks are predicted from reservations in addition to
// the engines' events.
func (c *Config) predictsBesideEvents() bool { return c.KVEvents && c.Predictions.PredictedTTL != nil }

// New returns a service without workers. source opens the sockets of event
// streams.
func New(config Config, source kvevents.Source, log zerolog.Logger) *Service {
	config.Process = cmp.Or(config.Process, 1+rand.Uint64N(math.MaxUint64))
	if config.Workers == nil {
		config.Workers = workers.NewAlone()
	}
	if config.Selection.Settings == nil {
		config.Selection.Settings = settings.NewAlone()
	}
	s := &Service{config: config, core: core{log: log}}
	index := indexer.NewAccount(config.Memory.Account(memory.Index))

	// These parts do not know of workers: the ledger and its replica, and the event streams.
	sizes := new(scopeSizes)
	s.ledger, s.replica = newLedger(&config, sizes, log)
	predicts := config.approximate() || config.predictsBesideEvents()
	if predicts || config.Scopes.Admission.Enabled() || config.Scopes.Policies.Delays() {
		s.ledger.KeepLocalHashes() // for requests that wait, and pending selections; for policies that come later, pins copy them
	}
	s.learners = policies.NewLearners(config.Scopes.Policies, config.Selection.Weights.TrackPrefill)
	observePrefills(s.ledger, s.learners, sizes)
	s.describer, s.blockSizes, s.lag = newDescriber(config.Ask, log), newBlockSizes(), metrics.NewHistogram(metrics.LagBounds)
	streams := newStreams(&config, s.lag, s.describer, s.blockSizes, &s.observer, source)
	s.streams = streams.workers

	// The workers, and what belongs to them.
	s.scopes = newScopes(&config, &s.core, s.streams, s.replica, index, s.learners)
	s.catalog = catalog.New(catalog.Settings{
		Now:       time.Now,
		KVEvents:  config.KVEvents,
		Queueing:  config.Scopes.Admission.Enabled(),
		Limits:    config.Limits,
		Endpoints: config.Endpoints,
	}, s.scopes)
	sizes.Catalog = s.catalog
	s.reports = newReports(&config, &s.core, s.streams)
	s.loads = newLoadSources(&config, s.catalog, source, s.reports)
	s.scopes.Attach(s.catalog, s.loads)
	view := selectionView{s.catalog, s.scopes}
	s.conductor = conductor.New(streams.publishers, config.Endpoints, index, view, log)

	// The use cases of callers.
	selects := config.Selection
	selects.Approximate, selects.ByCapacity = predicts, config.approximate() && config.Predictions.ApproximateLRU
	selects.Waiting, selects.Remembered = config.Memory.Account(memory.Waiting), config.Memory.Account(memory.Remembered)
	api := selection.New(selects, s.catalog, s.scopes, s.ledger, s.reports, log)
	if s.replica != nil && (selects.SessionTTL > 0 || selects.HomeTTL > 0 || selects.Owners) {
		api.ShareSessions(config.Process, s.replica)
	}
	if s.replica != nil && config.Scopes.Admission.Fair() {
		api.ShareServed(s.replica)
	}
	registry := workers.NewRegistry(config.Workers, workers.NewChanges(s.catalog, s.scopes, api.Selections().Add, s.describer.look), config.Given)
	if s.describer != nil {
		s.describer.catalog, s.describer.apply, s.describer.described = s.catalog, registry.Describe, config.Described
	}
	s.drains = workers.NewDrains(config.Workers, s.catalog, s.ledger, func() bool { return s.replica == nil || s.replica.CaughtUp() }, log)
	learning := selection.NewLearning(selection.LearningConfig{
		Own: config.Scopes.Policies, Weights: config.Selection.Weights, Learners: s.learners, Settings: selects.Settings,
	}, s.catalog, s.scopes, s.ledger, log)
	selects.Settings.Attach(settings.Process{Thresholds: api.Thresholds(), Policies: learning.PolicySection, Apply: learning.ApplyPolicies})
	s.recovery = newRecovery(&config, &s.core, s.replica)
	s.UseCases = UseCases{
		API: api, Learning: learning, Registry: registry,
		describedRegistry: &describedRegistry{s.describer, registry},
		Scopes:            diagnose.NewScopes(view, config.eventsOf(s.streams)),
		slotTracker:       &slotTracker{core: s.core, registry: registry},
		peers:             newPeers(&config, s.replica),
		loadSources:       s.loads,
		eventIndex:        &eventIndex{s.scopes, s.streams},
		readiness:         &readiness{catalog: s.catalog, scopes: s.scopes, store: config.Workers, recovery: s.recovery},
	}
	return s
}

// scopeSizes is replicasync.Scopes, and knows the sizes of blocks, before there is the catalog that knows them.
type scopeSizes struct{ *catalog.Catalog }

// eventsOf returns the streams of the workers, nil if KV events are off.
func (c *Config) eventsOf(streams *kvevents.Subscribers) *kvevents.Subscribers {
	if !c.KVEvents {
		return nil
	}
	return streams
}

func newReports(of *Config, c *core, streams *kvevents.Subscribers) *reports.Reports {
	config := reports.Config{
		TTL:          cmp.Or(of.Reports.TTL, reports.DefaultTTL),
		StalledAfter: cmp.Or(of.Reports.StalledAfter, reports.DefaultStalledAfter),
		Changed:      c.scopes.LoadChanged,
		FirstToken: func(v *reservations.View, e catalog.Entry) float64 {
			return firstToken(v, e, learnerOf(c.scopes, e.Worker.Scope))
		},
		Measured: func(sc catalog.Scope, e catalog.Entry, rate float64) {
			if l := learnerOf(c.scopes, sc); l != nil {
				l.Measured(e.Slot, e.Rank, rate)
			}
		},
		Now: time.Now, Log: c.log,
	}
	if of.KVEvents {
		config.Events = func(of catalog.Rank) uint64 {
			if st, ok := streams.Stream(of); ok && st.HasLast {
				return st.Last + 1
			}
			return 0
		}
	}
	return reports.New(config, c.catalog, c.ledger)
}

// learnerOf returns the learner of a scope, nil if it has none.
func learnerOf(r *scopes.Registry, sc catalog.Scope) *ttft.Learner {
	state := r.Of(sc)
	if state == nil {
		return nil
	}
	return state.Rules().Learner()
}

// firstToken returns how many seconds the oldest unfinished prefill of a rank should take. l is the learner of
// its scope, nil if it has none.
func firstToken(v *reservations.View, e catalog.Entry, l *ttft.Learner) float64 {
	if l != nil {
		if q := selection.QueueOf(v, e, l); q.Prefills > 0 {
			return q.Speed * l.Model().Prefill(float64(q.HeadTokens), float64(q.HeadPrompt))
		}
	}
	tokens := float64(v.Greater(e.Slot).PrefillTokens)
	if tokens == 0 {
		return 0
	}
	p := ttft.Default()
	return p.Prefill(tokens, tokens)
}

// observePrefills passes finished prefills and answers to the learners of their scopes.
func observePrefills(ledger *reservations.Ledger, learners *policies.Learners, sizes *scopeSizes) {
	ledger.SetPrefills(func(sc catalog.Scope) reservations.PrefillObserver {
		if l := learners.Of(sc); l != nil {
			return observedScope{l, sizes, sc}
		}
		return nil
	})
}

// observedScope is a scope as the ledger observes it for its learner.
type observedScope struct {
	*ttft.Learner
	sizes *scopeSizes
	scope catalog.Scope
}

// Generated implements reservations.PrefillObserver. The ledger counts blocks, the learner counts tokens. The last block of an
// answer is half full in the mean. An answer of which nothing was reported has no whole block, or its caller reports none: its length
// is not known before the scope's callers have reported blocks.
func (s observedScope) Generated(slot uint32, r catalog.Rank, of reservations.Generated) {
	size, known := s.sizes.BlockSize(s.scope)
	if !known {
		return
	}
	a := ttft.Answer{Tokens: float64(of.Tokens), Took: of.Took.Seconds(), Attended: of.Attended, Computed: of.Computed.Seconds()}
	if (of.Tokens == 0 || of.Pieces) && (of.Blocks > 0 || s.Model().PerOutput > 0) {
		a.Tokens = max(a.Tokens, (float64(of.Blocks)+0.5)*float64(size))
	}
	if of.Blocks > 1 {
		a.Timed = float64((of.Blocks - 1) * uint64(size))
	}
	s.Learner.Generated(slot, r, a)
}

// Freed implements reservations.PrefillObserver.
func (s observedScope) Freed(at time.Duration, slot uint32, r catalog.Rank, booked, completed time.Duration, of reservations.Answer) {
	s.Learner.Freed(at, slot, r, booked, completed, of.Tokens, of.Pieces)
}

// eventStreams are the KV event streams of the workers and of the Conductor's publishers, which share their
// counters.
type eventStreams struct{ workers, publishers *kvevents.Subscribers }

func newStreams(of *Config, lag *metrics.Histogram, d *describer, sizes *blockSizes, observer *telemetry.StreamObserver, source kvevents.Source) eventStreams {
	config := kvevents.DefaultConfig(of.Threads)
	config.Streams, config.Replay = of.Memory.Account(memory.Streams), of.Memory.Account(memory.Replay)
	config.Lag = func(late time.Duration) { lag.Observe(late.Seconds()) }
	config.Watch = watchEvents(of.Tracer)
	sized := config
	sized.OtherBlockSize = sizes.note
	sized.Observe, config.Observe = observer.Worker, observer.Publisher
	counters := new(kvevents.Counters)
	own := source
	if d != nil {
		own = watchedSource{source, d.streamUp}
	}
	return eventStreams{kvevents.NewSubscribers(own, sized, counters), kvevents.NewSubscribers(source, config, counters)}
}

func newScopes(config *Config, c *core, streams *kvevents.Subscribers, replica *replicasync.Replica, index *indexer.Account, learners *policies.Learners) *scopes.Registry {
	settings := config.Scopes
	settings.Ledger, settings.Streams, settings.Log = c.ledger, streams, c.log
	settings.Memory, settings.Learners = index, learners
	settings.Queues.Started = time.Now()
	settings.Queues.FairMemory = fairness.NewMemory(config.Memory.Account(memory.Remembered).Limit() / 6) // half as much as sessions
	settings.Queues.ShareFair = config.Replication != nil
	settings.Merging = config.recovers()
	settings.KVEvents, settings.WatchStored = config.KVEvents, settings.WatchStored && config.KVEvents
	if replica != nil {
		settings.Replica = replica
	}
	account := config.Memory.Account(memory.Index)
	switch {
	case config.approximate():
		settings.Approximate = newApproximate(config.Predictions.ApproximateTTL, account, account.Limit()/4*3)
		settings.ByCapacity = config.Predictions.ApproximateLRU
	case config.predictsBesideEvents() && *config.Predictions.PredictedTTL > 0:
		// Predictions must not displace blocks that engines have announced.
		settings.Approximate = newApproximate(*config.Predictions.PredictedTTL, account, account.Limit()/8)
	}
	return scopes.New(settings)
}

// newApproximate returns an index of predictions, of at most the given bytes of account;
// without an account there is no limit.
func newApproximate(ttl time.Duration, account *memory.Account, bytes int64) *approximate.Index {
	limit := approximate.MaxBlocks
	if account != nil {
		limit = min(limit, int(bytes/approximate.BlockBytes))
	}
	return approximate.New(ttl, limit, account, time.Now)
}

// KeepState returns the state of the service in a directory; see statefile.New. It must be called before Run.
func (s *Service) KeepState(dir *statefile.Dir, interval time.Duration) *statefile.State {
	s.UseCases.state = statefile.New(statefile.Parts{
		Workers: s.UseCases.Registry, Catalog: s.catalog, Scopes: s.scopes, Ledger: s.ledger, Learners: s.learners, Streams: s.streams,
		Sessions: s.UseCases.Sessions(), Pauses: s.UseCases.Pauses(), Links: s.UseCases.Links(),
		RestoreBlocks: s.config.KVEvents && !s.config.recovers(), Discovers: s.config.Discovers,
		Memory: s.config.Memory.Account(memory.Snapshots), Tracer: s.config.Tracer, Log: s.log,
	}, dir, interval)
	return s.UseCases.state
}

// Run follows the event streams and expires old state until ctx ends. When it returns, no
// goroutine of the service is left.
func (s *Service) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.streams.Run(ctx) })
	g.Go(func() error { return s.conductor.Run(ctx) })
	g.Go(func() error { return s.newWatcher().Run(ctx) })
	g.Go(func() error { return s.expire(ctx) })
	g.Go(func() error { return s.reports.Run(ctx) })
	s.loads.run(ctx, g)
	g.Go(func() error { return s.sweep(ctx) })
	if x := s.scopes.Approximate(); x != nil {
		g.Go(func() error { return x.Run(ctx) })
	}
	g.Go(func() error {
		return s.blockSizes.run(ctx, blockSizeCorrector{s.catalog, s.UseCases.Registry, s.log})
	})
	if s.describer != nil {
		g.Go(func() error { return s.describer.run(ctx) })
	}
	if s.replica != nil {
		g.Go(func() error { return s.replica.Run(ctx) })
	}
	if s.recovery != nil {
		g.Go(func() error { return s.recovery.run(ctx) })
		g.Go(func() error { return s.recovery.watchDeadline(ctx) })
	}
	return g.Wait()
}

// Close refuses new work from now on: registrations, selections and waiting requests are
// answered with "shutting down".
func (s *Service) Close() {
	s.scopes.RefuseNew()
	s.catalog.Close() // waits for a change of workers under way, which may create a queue
	s.scopes.CloseQueues()
}

// Catalog returns the catalog of workers, for reading.
func (s *Service) Catalog() *catalog.Catalog { return s.catalog }

// Reports returns what takes the engines' reports of their load.
func (s *Service) Reports() load.Sink { return s.reports }

// Conductor returns the use cases of the Conductor API.
func (s *Service) Conductor() *conductor.API { return s.conductor }

// Intervals of timers. Leases are checked often enough to end on time. State whose end has no
// visible effect (pending selections, sessions) is checked every second, and waiting requests
// at least as often as in dynamo-kv-router 1.3.1.
const (
	expireEvery   = reservations.ExpireEvery
	sweepEvery    = time.Second
	dispatchEvery = 60 * time.Second
)

// expire ends expired reservations and dispatches the waiting requests. The ledger ends some of
// them by itself, when a reservation is booked or looked up.
func (s *Service) expire(ctx context.Context) error {
	due := time.NewTicker(expireEvery)
	defer due.Stop()
	var seen uint64
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-due.C:
		}
		s.ledger.ExpireDue()
		if n := s.ledger.Stats().Expired; n != seen {
			s.scopes.LoadChanged()
			seen = n
		}
	}
}

// sweep drops expired state, and dispatches requests that wait although no event has dispatched
// them.
func (s *Service) sweep(ctx context.Context) error {
	age, dispatch := time.NewTicker(sweepEvery), time.NewTicker(dispatchEvery)
	defer age.Stop()
	defer dispatch.Stop()
	var logged reservations.Stats // counts of the last sweep
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-age.C:
			s.sweepAged(&logged)
			s.drains.Sweep(time.Now())
		case <-dispatch.C:
			s.scopes.LoadChanged()
		}
	}
}

// sweepAged drops expired state and logs how many reservations have expired since the counts in
// logged, which it updates.
func (s *Service) sweepAged(logged *reservations.Stats) {
	s.ledger.Expire()
	now := s.ledger.Stats()
	if n := now.Expired - logged.Expired; n > 0 {
		s.log.Warn().Uint64("reservations", n).Uint64("leases", now.LeasesExpired-logged.LeasesExpired).Msg("stale reservations ended")
	}
	*logged = now
	s.UseCases.API.Sweep()
	s.UseCases.Learning.Sweep()
}
