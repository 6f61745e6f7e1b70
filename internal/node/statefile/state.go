package statefile

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"

	"github.com/select-service/select-service/internal/selection/pauses"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/reservations"
)

// Parts are what a State keeps on disk.
type Parts struct {
	Workers  Workers
	Catalog  *catalog.Catalog
	Scopes   *scopes.Registry
	Ledger   *reservations.Ledger
	Learners *policies.Learners
	Sessions Sessions
	Pauses   *pauses.Learner // of the sessions; nil: they are off
	Links    Links
	Streams  *kvevents.Subscribers
	// RestoreBlocks: the blocks of a snapshot can be used, since engines publish events and the
	// index does not come from other replicas.
	RestoreBlocks bool
	// Discovers has the kinds of the discovering sources of this process.
	Discovers []catalog.SourceKind
	Memory    *memory.Account // of the memory for writing and reading; nil: no limit
	Tracer    *tracing.Tracer // nil: no spans
	Log       zerolog.Logger
}

// Links have what is learned of how long KV caches take between workers.
type Links interface {
	// Kept has what is learned of each link, with its scope. Restore goes on with that; its error says why it is not used.
	Kept() iter.Seq2[catalog.Scope, json.RawMessage]
	Restore(sc catalog.Scope, state json.RawMessage) error
}

// Workers are the use cases by which workers come back.
type Workers interface {
	ReplaceWorkers(set catalog.Set) (catalog.Difference, error)
	PutWorker(r catalog.Record) (*catalog.Worker, error)
	PutTracked(r catalog.TrackedRecord) error
}

// State keeps workers, reservations and index of a service on disk, for a process that has no
// other replica to recover from. Restore brings back the workers and reservations of the last
// snapshot. The blocks of a rank stay in the file until its engine has proved to be the same
// one: see restoredRanks.
type State struct {
	parts    Parts
	dir      *Dir
	interval time.Duration
	restored *restoredRanks
	log      zerolog.Logger

	last     atomic.Pointer[snapshotWritten] // nil: none written yet
	failures [numSnapshotFaults]atomic.Uint64
}

// snapshotWritten is the last snapshot that was written.
type snapshotWritten struct {
	at    time.Time
	took  time.Duration
	bytes int64
}

// snapshotFault is why a snapshot, or a part of it, could not be written or used.
type snapshotFault uint8

const (
	faultDiskFull snapshotFault = iota
	faultIO
	faultMemory
	faultTooLate // not complete in time when the process stopped
	faultItem    // an item did not fit and was left out
	faultRefused // the snapshot at the start was not used
	numSnapshotFaults
)

var snapshotFaults = [numSnapshotFaults]string{"disk_full", "io", "memory", "too_late", "item_too_large", "refused"}

const (
	// proofTime is how long restored blocks wait for their engine to prove that it is the same.
	// An engine without a replay endpoint has to send a message for that.
	proofTime = 10 * time.Minute
	// lastSnapshotTime bounds the writing, without the sync, of the snapshot at the stop of the
	// process: the whole stop may take six seconds, and this does not begin at once.
	lastSnapshotTime = 3 * time.Second
	// Writing takes one part in busyShare of one core.
	busyShare = 25
	// busyFor is how long writing works until it rests. Work that took much longer, up to
	// mostBusy and beyond, was probably interrupted on a busy machine.
	busyFor  = 2 * time.Millisecond
	mostBusy = 20 * time.Millisecond
	// pageReservations is how many reservations are read from the ledger at a time.
	pageReservations = 256
)

// New returns the state in a directory, of which it writes a snapshot every interval. Without a
// directory it returns nil, whose methods do nothing. New and Restore must be called before the
// service has workers.
func New(parts Parts, dir *Dir, interval time.Duration) *State {
	if dir == nil {
		return nil
	}
	s := &State{parts: parts, dir: dir, interval: interval, restored: &restoredRanks{log: parts.Log}, log: parts.Log}
	parts.Scopes.SetRestored(s.restored)
	return s
}

// Awaited reports whether the service should not be ready yet, because engines are about to prove
// that they are those of the snapshot.
func (s *State) Awaited() bool { return s != nil && s.restored.awaited() }

// Restore reads the last snapshot. A file that is damaged, or not from this program, is ignored.
func (s *State) Restore() {
	if s == nil {
		return
	}
	began, span := time.Now(), s.parts.Tracer.Trace("restore snapshot")
	defer span.End()
	if !s.parts.Memory.Reserve(readerMemory) {
		s.failures[faultMemory].Add(1)
		s.log.Warn().Str("directory", s.dir.Path()).Msg("no memory to read the snapshot: starting empty")
		return
	}
	defer s.parts.Memory.Release(readerMemory)
	f, err := s.dir.openLast()
	switch {
	case errors.Is(err, errNone):
		s.log.Info().Str("directory", s.dir.Path()).Msg("no snapshot yet: starting empty")
		return
	case err != nil:
		s.failures[faultRefused].Add(1)
		s.log.Warn().Err(err).Str("directory", s.dir.Path()).Msg("the snapshot is not used: starting empty")
		return
	}
	ranks, entries := 0, uint64(0)
	if s.parts.RestoreBlocks {
		ranks, entries = s.restored.use(f)
	}
	err = s.restoreKeys(f)         // before there are events
	learned := s.restoreLearned(f) // before the learners get samples
	workers := 0
	if err == nil {
		workers, err = s.restoreWorkers(f)
	}
	var booked, ended, sessions int
	if err == nil {
		booked, ended, err = s.restoreReservations(f)
	}
	if err == nil {
		s.restorePauses(f)
		s.restoreLinks(f)
		sessions, err = s.restoreSessions(f)
	}
	if err != nil {
		s.failures[faultIO].Add(1)
		span.Fail(err.Error())
	}
	span.Set(attribute.Int64("select_service.snapshot.bytes", f.Bytes()), attribute.Int("select_service.snapshot.workers", workers), attribute.Int("select_service.snapshot.reservations", booked))
	if ranks == 0 {
		_ = f.Close()
	}
	s.log.WithLevel(levelOf(err)).Err(err).Time("written", f.Written()).Int64("bytes", f.Bytes()).
		Int("workers", workers).Int("reservations", booked).Int("reservations_ended", ended).Int("sessions", sessions).Int("learned_scopes", learned).
		Int("ranks_to_prove", ranks).Uint64("blocks_to_prove", entries).
		Dur("took", time.Since(began)).Msg("snapshot restored")
}

func levelOf(err error) zerolog.Level {
	if err != nil {
		return zerolog.WarnLevel
	}
	return zerolog.InfoLevel
}

// notListed is why a restored worker that was discovered drains at first.
const notListed = "restored from disk: its source has not listed it yet"

// restoreWorkers registers the workers of a file, each as of its source. Discovered ones drain
// until their source has listed them.
func (s *State) restoreWorkers(f *file) (restored int, err error) {
	workers, tracked, err := f.Workers()
	if err != nil {
		return 0, err
	}
	bySource := make(map[catalog.SourceKind][]catalog.Record)
	for _, r := range workers {
		kind := r.Source.KindOrAPI()
		if kind.Discovered() {
			r.Draining = notListed
		} else {
			kind = catalog.SourceAPI
		}
		bySource[kind] = append(bySource[kind], r)
	}
	own := bySource[catalog.SourceAPI]
	if _, err := s.parts.Workers.ReplaceWorkers(catalog.Set{Kind: catalog.SourceAPI, Records: own}); err == nil {
		restored = len(own)
	} else { // at least one is refused: register one by one
		for _, r := range own {
			if _, err := s.parts.Workers.PutWorker(r); err == nil {
				restored++
			}
		}
	}
	for _, kind := range s.parts.Discovers { // nobody would ever remove the workers of other kinds
		if d, err := s.parts.Workers.ReplaceWorkers(catalog.Set{Kind: kind, Records: bySource[kind]}); err == nil {
			restored += len(d.Added)
		}
	}
	for _, r := range tracked {
		if err := s.parts.Workers.PutTracked(r); err == nil {
			restored++
		}
	}
	return restored, nil
}

// restoreReservations books the reservations of a file, with their current ages. ended counts
// those that have expired or whose rank has gone.
func (s *State) restoreReservations(f *file) (booked, ended int, err error) {
	err = f.Reservations(time.Now(), func(r reservations.Reservation) {
		if s.parts.Ledger.Restore(r) == reservations.Applied {
			booked++
		} else {
			ended++
		}
	})
	return booked, ended, err
}

// Run writes snapshots until ctx ends, and then a last one.
func (s *State) Run(ctx context.Context) error {
	if s == nil {
		return nil
	}
	every := time.NewTicker(s.interval)
	defer every.Stop()
	proof := time.NewTimer(proofTime)
	defer proof.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSnapshotTime)
			defer cancel()
			s.save(last, &pacer{})
			s.restored.close()
			return nil
		case <-proof.C:
			s.restored.expire()
		case <-every.C:
			s.save(ctx, &pacer{paced: true, began: time.Now()})
		}
	}
}

// save writes a snapshot. A failure is logged and counted, and the previous snapshot stays.
func (s *State) save(ctx context.Context, p *pacer) {
	began, span := time.Now(), s.parts.Tracer.Trace("write snapshot")
	defer span.End()
	if !s.parts.Memory.Reserve(writerMemory) {
		s.fail(faultMemory, errors.New("the budget has no memory left for it"))
		return
	}
	defer s.parts.Memory.Release(writerMemory)
	bytes, err := s.dir.Write(began, func(w *writer) error { return s.fill(ctx, w, p) })
	span.Set(attribute.Int64("select_service.snapshot.bytes", bytes))
	if err != nil {
		span.Fail(err.Error())
	}
	switch {
	case err == nil:
		s.last.Store(&snapshotWritten{at: time.Now(), took: time.Since(began), bytes: bytes})
		s.log.Debug().Int64("bytes", bytes).Dur("took", time.Since(began)).Msg("snapshot written")
	case errors.Is(err, context.Canceled): // the last snapshot follows
	case errors.Is(err, context.DeadlineExceeded):
		s.fail(faultTooLate, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		s.fail(faultDiskFull, err)
	default:
		s.fail(faultIO, err)
	}
}

func (s *State) fail(why snapshotFault, err error) {
	s.failures[why].Add(1)
	s.log.Error().Err(err).Str("reason", snapshotFaults[why]).Str("directory", s.dir.Path()).
		Msg("snapshot not written: the one before stays")
}

// fill writes all parts. Reservations come last, so that they are the newest.
func (s *State) fill(ctx context.Context, w *writer, p *pacer) error {
	if err := s.writeWorkers(ctx, w, p); err != nil {
		return err
	}
	if err := s.writeLearned(w); err != nil {
		return err
	}
	for _, sc := range s.parts.Scopes.KeysShown() {
		if err := s.leaveOut(w.KeysShown(sc)); err != nil {
			return err
		}
	}
	// First the ranks that are still pending, then those of the streams: a rank whose engine is
	// proved in between is in the second part.
	carried, err := s.restored.carry(ctx, w, p)
	if err != nil {
		return err
	}
	points := s.parts.Streams.Checkpoints()
	for sc, state := range s.parts.Scopes.All() {
		if err := s.writeIndex(ctx, w, p, sc, state, points, carried); err != nil {
			return err
		}
	}
	if err := s.writePauses(w); err != nil {
		return err
	}
	if err := s.writeLinks(w); err != nil {
		return err
	}
	if err := s.writeSessions(ctx, w, p); err != nil {
		return err
	}
	return s.writeReservations(ctx, w, p)
}

func (s *State) writeWorkers(ctx context.Context, w *writer, p *pacer) error {
	for _, worker := range s.parts.Catalog.List(nil, nil) {
		var err error
		if worker.Tracked {
			err = w.Tracked(&catalog.TrackedRecord{
				ID: worker.ID, Scope: worker.Scope, BlockSize: *worker.BlockSize, StartRank: *worker.StartRank, Size: *worker.Size,
			})
		} else {
			err = w.Worker(&worker.Record)
		}
		if err := s.leaveOut(err); err != nil {
			return err
		}
		if err := p.rest(ctx); err != nil {
			return err
		}
	}
	return nil
}

// leaveOut counts an item that does not fit into a file; it returns any other error.
func (s *State) leaveOut(err error) error {
	if errors.Is(err, errTooLarge) {
		s.failures[faultItem].Add(1)
		return nil
	}
	return err
}

// savedRank is a rank whose blocks are being written.
type savedRank struct {
	rank   catalog.Rank
	number int // number of the rank in the file
}

// writeIndex writes the blocks of a scope's ranks whose checkpoints are known. The blocks are
// read after the checkpoints while events go on; the messages after the checkpoint will repeat
// the changes in between.
func (s *State) writeIndex(ctx context.Context, w *writer, p *pacer, sc catalog.Scope, state *scopes.State,
	points map[catalog.Rank]kvevents.Checkpoint, carried map[rankKey]struct{},
) error {
	snap := s.parts.Catalog.Snapshot(sc)
	if snap == nil || snap.BlockSize != state.BlockSize {
		return nil
	}
	walk := state.Space.Walk()
	slots := state.Gate.Ranks() // after Walk: see node.Service.Dump
	saved := make(map[uint32]savedRank)
	for slot, r := range slots {
		from, known := points[r]
		// A file has no blocks of further attention groups. An engine with such groups replays
		// all its events instead.
		if _, twice := carried[rankKey{sc, r}]; !known || twice || state.Space.HasGroups(slot) {
			continue
		}
		number, err := w.Rank(rankHead{Scope: sc, BlockSize: snap.BlockSize, Eagle: snap.Eagle, Rank: r, From: from})
		if errors.Is(err, errTooLarge) {
			continue
		}
		if err != nil {
			walk.Runs(func(*indexer.Run) bool { return false }) // ends the walk
			return err
		}
		saved[slot] = savedRank{r, number}
	}
	for run := range walk.Runs {
		for tier, holders := range run.Slots {
			for _, slot := range holders {
				r, ok := saved[slot]
				if !ok {
					continue
				}
				if err := w.Run(r.number, indexer.Tier(tier), run); err != nil {
					return err
				}
				if err := p.rest(ctx); err != nil {
					return err
				}
			}
		}
		if err := p.rest(ctx); err != nil {
			return err
		}
	}
	after := state.Gate.Ranks()
	for slot, r := range saved {
		if after[slot] != r.rank || state.Space.HasGroups(slot) || !s.parts.Streams.Unbroken(r.rank, points[r.rank]) {
			if err := w.Void(r.number); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *State) writeReservations(ctx context.Context, w *writer, p *pacer) error {
	var at reservations.Cursor
	for more := true; more; {
		var page []reservations.Reservation
		page, at, more = s.parts.Ledger.Reservations(at, pageReservations)
		now := time.Now()
		for i := range page {
			if err := s.leaveOut(w.Reservation(&page[i], now)); err != nil {
				return err
			}
		}
		if err := p.rest(ctx); err != nil {
			return err
		}
	}
	return nil
}

// pacer makes work rest so that it takes no more than its share of a core. The zero value never
// rests.
type pacer struct {
	paced bool
	began time.Time // when work began after the last rest
}

// rest rests if it is time to. The error is ctx's.
func (p *pacer) rest(ctx context.Context) error {
	if !p.paced {
		return ctx.Err()
	}
	busy := time.Since(p.began)
	if busy < busyFor {
		return nil
	}
	pause := time.NewTimer((busyShare - 1) * min(busy, mostBusy))
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-pause.C:
	}
	p.began = time.Now()
	return nil
}

// Collector returns the collector of the metrics.
func (s *State) Collector() telemetry.Snapshots {
	if s == nil {
		return telemetry.Snapshots{}
	}
	return telemetry.Snapshots{Read: func() (st telemetry.SnapshotStats) {
		if last := s.last.Load(); last != nil {
			st.Written, st.Age, st.Took, st.Bytes = true, time.Since(last.at), last.took, last.bytes
		}
		st.Failures = make(map[string]uint64, numSnapshotFaults)
		for why := range s.failures {
			st.Failures[snapshotFaults[why]] = s.failures[why].Load()
		}
		st.Ranks = s.restored.counts()
		return st
	}}
}

// restoreKeys tells the scopes of which a file says so that they have shown keys.
func (s *State) restoreKeys(f *file) error {
	all, err := f.KeysShown()
	for _, sc := range all {
		s.parts.Scopes.ShowKeys(sc)
	}
	return err
}

// restoreLearned passes a file's learned parameters to the learners, and returns for how many
// scopes. Parameters that no longer fit are dropped and learned again.
func (s *State) restoreLearned(f *file) (restored int) {
	all, err := f.Learned()
	for _, l := range all {
		learner := s.parts.Learners.Of(l.Scope)
		if learner == nil {
			continue // its policy no longer predicts
		}
		if bad := learner.UnmarshalJSON(l.State); bad != nil {
			err = errors.Join(err, bad)
			continue
		}
		restored++
	}
	if err != nil {
		s.failures[faultRefused].Add(1)
		s.log.Warn().Err(err).Msg("what was learned of prefill times is not used")
	}
	return restored
}

func (s *State) writeLearned(w *writer) error {
	for sc, l := range s.parts.Learners.Kept() {
		if l.Samples() == 0 {
			continue
		}
		text, err := l.MarshalJSON()
		if err != nil {
			return err
		}
		if err := s.leaveOut(w.Learned(&learned{Scope: sc, State: text})); err != nil {
			return err
		}
	}
	return nil
}

// restoreLinks passes what a file knows of links on, for scopes that have come back. What no longer fits is learned again.
func (s *State) restoreLinks(f *file) {
	var bad error
	for _, at := range f.links {
		var one learnedLink
		err := f.decode(at, &one)
		if err == nil && s.parts.Catalog.Snapshot(one.Scope) != nil {
			err = s.parts.Links.Restore(one.Scope, one.State)
		}
		if bad == nil {
			bad = err
		}
	}
	if bad != nil {
		s.failures[faultRefused].Add(1)
		s.log.Warn().Err(bad).Msg("what was learned of links between workers is not used")
	}
}

func (s *State) writeLinks(w *writer) error {
	for sc, state := range s.parts.Links.Kept() {
		if err := s.leaveOut(w.json(linkKind, learnedLink{sc, state})); err != nil {
			return err
		}
	}
	return nil
}
