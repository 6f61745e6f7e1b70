package node

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"

	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/recovery"
	"github.com/select-service/select-service/pkg/replicasync"
)

// RecoveryConfig says from where the index is recovered at the start. Without peers, or without
// KV events, it starts empty.
type RecoveryConfig struct {
	Peers []string // base URLs, asked in order
	// Find returns further peers, asked after those; nil: there are none. It is called once, and its
	// context ends at the deadline.
	Find func(ctx context.Context) []string
	// GivenUp, if set, reports whether Ready no longer waits for Find, which waits for somebody who is away.
	GivenUp func() bool
	Fetch   recovery.Fetcher
	// Deadline is how long Ready waits for the recovery and for the reservations of other
	// replicas. The recovery itself continues.
	Deadline time.Duration
	// Grace is how long after the recovery the blocks of ranks are kept whose workers
	// have not registered; 0: DefaultRecoveryGrace.
	Grace time.Duration
}

// DefaultRecoveryGrace is longer than an orchestrator takes to list all workers after a start, and
// short enough that the blocks of workers that have gone meanwhile do not stay.
const DefaultRecoveryGrace = 10 * time.Minute

// RecoveryStage is the state of a recovery.
type RecoveryStage uint8

// The stages of a recovery.
const (
	RecoveryFetching RecoveryStage = iota // Ready waits
	RecoveryDeadline                      // still fetching, but Ready no longer waits
	RecoveryApplied                       // the peers' blocks are in the index
	RecoveryEmpty                         // no peer had blocks
	numRecoveryStages
)

// String gives the stage's name on the wire.
func (s RecoveryStage) String() string {
	if s < numRecoveryStages {
		return [numRecoveryStages]string{"fetching", "deadline", "applied", "empty"}[s]
	}
	return "unknown"
}

// RecoveryStatus is the progress of the index's recovery. Counts are totals over all peers.
type RecoveryStatus struct {
	Stage   RecoveryStage
	Peer    string // the peer that is being read, or was read last
	Entries uint64 // events read
	Blocks  uint64 // blocks that were new
	Skipped uint64 // entries, events and orphaned blocks that could not be used
	// Complete: the whole dump of a peer was used. Otherwise the recovery has not ended, or
	// blocks may be missing.
	Complete bool
	// Loads is the state of the other replicas' reservations.
	Loads LoadsStage
}

// LoadsStage is the state of other replicas' reservations during the start.
type LoadsStage uint8

// The stages of other replicas' reservations.
const (
	LoadsUnshared LoadsStage = iota // replicas do not share reservations
	LoadsAwaited                    // Ready waits
	LoadsDeadline                   // not complete, but Ready no longer waits
	LoadsApplied                    // complete, in the ledger
)

// String gives the stage's name on the wire.
func (s LoadsStage) String() string {
	if s <= LoadsApplied {
		return [...]string{"unshared", "awaited", "deadline", "applied"}[s]
	}
	return "unknown"
}

// indexRecovery is the recovery of the index at the start of the service.
type indexRecovery struct {
	config  RecoveryConfig
	catalog *catalog.Catalog
	scopes  *scopes.Registry
	replica *replicasync.Replica // nil: reservations are not shared
	log     zerolog.Logger

	begin  time.Time
	over   chan struct{} // closed when the recovery has ended
	finds  atomic.Bool   // Config.Find was called, and has not returned
	tracer *tracing.Tracer
	loads  atomic.Uint32 // LoadsStage

	// mu guards the fields below.
	mu     sync.Mutex
	status RecoveryStatus
	past   recovery.Report // totals of the earlier peers
	now    recovery.Report // counts of the current peer
}

// recovers reports whether the index is recovered from peers at the start.
func (c *Config) recovers() bool {
	return (len(c.Recovery.Peers) > 0 || c.Recovery.Find != nil) && c.Recovery.Fetch != nil && c.KVEvents
}

// newRecovery returns the recovery of the index, nil if none is configured. replica is nil if reservations are
// not shared.
func newRecovery(config *Config, c *core, replica *replicasync.Replica) *indexRecovery {
	if !config.recovers() {
		return nil
	}
	r := &indexRecovery{
		config: config.Recovery, catalog: c.catalog, scopes: c.scopes, log: c.log, replica: replica,
		begin: time.Now(), over: make(chan struct{}), tracer: config.Tracer,
	}
	if replica != nil {
		r.loads.Store(uint32(LoadsAwaited))
	}
	return r
}

// loadsApplied reports whether no reservation of another replica is known to be on
// its way. It is asked after the number of schedulable workers: a registration is
// under way until the replica knows of the worker's ranks.
func (r *indexRecovery) loadsApplied() bool { return !r.scopes.Changing() && r.replica.CaughtUp() }

// awaited reports whether Ready waits: for the index, then for the reservations of other
// replicas. Reservations can only be applied once there are workers. With the first workers
// this wait is over for good, so that a later worker never makes a serving replica unready.
func (r *indexRecovery) awaited(schedulable int) bool {
	switch {
	case r == nil:
		return false
	case r.show().Stage == RecoveryFetching:
		if !r.finds.Load() || r.config.GivenUp == nil || !r.config.GivenUp() {
			return true
		}
		r.passDeadline()
	}
	switch LoadsStage(r.loads.Load()) {
	case LoadsUnshared, LoadsApplied:
		return false
	case LoadsAwaited, LoadsDeadline:
	}
	switch {
	case r.loadsApplied():
		if schedulable > 0 {
			r.loads.Store(uint32(LoadsApplied))
		}
		return false
	case time.Since(r.begin) >= r.config.Deadline:
		r.loads.Store(uint32(LoadsDeadline))
		return false
	}
	return true
}

func (r *indexRecovery) show() RecoveryStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	shown, all := r.status, r.reportLocked()
	shown.Entries, shown.Blocks = all.Events, all.Blocks
	for _, n := range all.Skipped {
		shown.Skipped += n
	}
	return shown
}

// reportLocked returns the totals over all peers so far.
func (r *indexRecovery) reportLocked() recovery.Report {
	all := r.past
	all.Add(&r.now)
	return all
}

// become moves the recovery to a later stage, and reports whether it was in an earlier one.
func (r *indexRecovery) become(stage RecoveryStage, complete bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if stage <= r.status.Stage {
		return false
	}
	r.status.Stage, r.status.Complete = stage, complete
	return true
}

// run fills the index from peers. In the end it drops the blocks of ranks whose workers
// have not registered.
func (r *indexRecovery) run(ctx context.Context) error {
	begin := time.Now()
	peers := r.config.Peers
	if r.config.Find != nil {
		find, cancel := context.WithTimeout(ctx, r.config.Deadline)
		r.finds.Store(true)
		peers = append(slices.Clone(peers), r.config.Find(find)...)
		r.finds.Store(false)
		cancel()
	}
	span := r.tracer.Trace("recovery")
	sum := recovery.Recover(tracing.With(ctx, span), peers, r.config.Fetch, recoveryTarget{r}, recovery.Options{}, &recoveryObserver{indexRecovery: r, span: span})
	span.Set(attribute.Bool("select_service.recovery.complete", sum.Complete), attribute.Int64("select_service.recovery.blocks", int64(sum.Blocks)))
	span.End()
	if ctx.Err() != nil {
		return nil
	}
	r.scopes.EndMerging()
	stage := RecoveryApplied
	if sum.Answered == 0 {
		stage = RecoveryEmpty
		if len(peers) > 0 {
			r.log.Warn().Strs("peers", peers).Msg("no peer gave a dump: the index starts empty")
		}
	}
	r.become(stage, sum.Complete)
	close(r.over)
	r.log.Info().Stringer("stage", stage).Bool("complete", sum.Complete).Uint64("blocks", sum.Blocks).
		Dur("took", time.Since(begin)).Msg("index recovery is over")

	grace := time.NewTimer(cmp.Or(r.config.Grace, DefaultRecoveryGrace))
	defer grace.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-grace.C:
	}
	released := 0
	r.scopes.Change(func() { released = r.catalog.ReleaseReservedSlots() })
	if released > 0 {
		r.log.Info().Int("ranks", released).Msg("recovered blocks dropped: their workers did not come")
	}
	return nil
}

// passDeadline ends Ready's wait for the index.
func (r *indexRecovery) passDeadline() {
	if r.become(RecoveryDeadline, false) {
		r.log.Warn().Dur("after", time.Since(r.begin)).Msg("index recovery goes on behind live traffic")
	}
}

// watchDeadline ends Ready's wait at the deadline.
func (r *indexRecovery) watchDeadline(ctx context.Context) error {
	deadline := time.NewTimer(r.config.Deadline)
	defer deadline.Stop()
	select {
	case <-ctx.Done():
	case <-r.over:
	case <-deadline.C:
		r.passDeadline()
	}
	return nil
}

// recoveryObserver keeps the status up to date, and traces the recovery.
type recoveryObserver struct {
	*indexRecovery
	span  *tracing.Span
	asked time.Time // when the current peer was asked
}

func (o *recoveryObserver) Asking(peer string) {
	r := o.indexRecovery
	o.asked = time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Peer = peer
	r.past, r.now = r.reportLocked(), recovery.Report{}
}

func (o *recoveryObserver) Read(_ string, report *recovery.Report) {
	r := o.indexRecovery
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = *report
}

func (o *recoveryObserver) Answered(peer string, a recovery.Answer, err error) {
	if o.span != nil {
		o.span.Step("dump of a peer", o.asked, time.Now(), attribute.String("url.full", peer),
			attribute.Int64("select_service.recovery.events", int64(a.Events)), attribute.Int64("select_service.recovery.blocks", int64(a.Blocks)),
			attribute.Bool("select_service.recovery.sufficient", a.Sufficient()))
	}
	level := zerolog.InfoLevel
	if !a.Sufficient() {
		level = zerolog.WarnLevel
	}
	skipped := zerolog.Dict()
	for why, n := range a.Skipped {
		if n > 0 {
			skipped.Uint64(recovery.Reason(why).String(), n)
		}
	}
	o.log.WithLevel(level).Err(err).Str("peer", peer).Uint64("events", a.Events).Uint64("blocks", a.Blocks).
		Dict("skipped", skipped).Bool("recovering", a.Recovering).Msg("dump of a peer")
}

// recoveryTarget returns gates and slots for the blocks of dumps.
type recoveryTarget struct{ *indexRecovery }

func (t recoveryTarget) Fits(sc catalog.Scope, blockSize uint32) bool {
	state := t.scopes.Of(sc)
	return state == nil || state.BlockSize == blockSize
}

// ShowKeys passes on that a scope has shown keys. It may have no workers here yet.
func (t recoveryTarget) ShowKeys(sc catalog.Scope) { t.scopes.ShowKeys(sc) }

// Place reserves a slot for a rank whose worker has not registered. The scope's state may have
// been replaced since Fits; in that case the gate found may have another rank in the slot, or
// another block size.
func (t recoveryTarget) Place(sc catalog.Scope, blockSize uint32, r catalog.Rank) (*recovery.Gate, uint32, bool) {
	slot, ok := t.catalog.ReserveSlot(sc, blockSize, r)
	if !ok {
		return nil, 0, false
	}
	state := t.scopes.Of(sc)
	if state == nil || state.BlockSize != blockSize {
		return nil, 0, false
	}
	return state.Gate, slot, true
}
