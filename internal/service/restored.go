package service

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/hashset"
	"github.com/select-service/select-service/internal/statefile"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/kvevents"
)

// restoredRanks are the ranks of a snapshot whose engines have not proved yet that
// they are the same. Their blocks are in the file alone: no query, dump or metric
// can show them, and they take no memory. When an engine is proved, its blocks go
// into the index as if it announced them, before any of its later messages; if it is
// refuted, or the time is over, they are dropped.
//
// A nil restoredRanks has none.
type restoredRanks struct {
	log zerolog.Logger
	// replaying counts the pending ranks whose streams are about to ask for a replay.
	// Until readyBy, Ready waits for them. Both are set before the service runs.
	replaying atomic.Int64
	readyBy   time.Time

	// mu guards what follows. It is taken by apply workers under a subscription's
	// lock, and held while a rank's blocks are read and stored.
	mu      sync.Mutex
	file    *statefile.File // nil: no rank is pending
	pending map[rankKey]pendingRank
	seen    hashset.Set // scratch: the hashes of one piece

	proved, refuted, expired uint64
}

// pendingRank is a rank in the file.
type pendingRank struct {
	number    int
	replaying bool // it is counted in replaying
}

// proofWait is how long Ready waits for replays: with it the first requests find the
// index that the process before had.
const proofWait = 1500 * time.Millisecond

// awaited reports whether Ready waits.
func (r *restoredRanks) awaited() bool {
	return r != nil && r.replaying.Load() > 0 && time.Now().Before(r.readyBy)
}

// rankKey is a rank of a scope.
type rankKey struct {
	scope catalog.Scope
	rank  catalog.Rank
}

// use takes the ranks of a file over, and returns how many there are, and how many
// (tier, block) entries they have. If there is none it does not take the file.
func (r *restoredRanks) use(f *statefile.File) (ranks int, entries uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = make(map[rankKey]pendingRank)
	r.readyBy = time.Now().Add(proofWait)
	for n := range f.Ranks() {
		if saved, held, ok := f.Rank(n); ok {
			r.pending[rankKey{saved.Scope, saved.Rank}] = pendingRank{number: n}
			entries += held
		}
	}
	if len(r.pending) > 0 {
		r.file = f
	}
	return len(r.pending), entries
}

// resume returns from where a stream that is about to be opened may go on, nil if
// nothing is known of its rank.
func (r *restoredRanks) resume(sc catalog.Scope, layout hashing.Layout, c *kvevents.StreamConfig) *kvevents.Resume {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := rankKey{sc, c.Rank}
	at, ok := r.pending[key]
	if !ok {
		return nil
	}
	saved, _, _ := r.file.Rank(at.number)
	if int(saved.BlockSize) != layout.BlockSize || saved.Eagle != layout.Eagle || saved.From.Endpoint != c.Endpoint {
		r.dropLocked(key, &r.refuted)
		return nil
	}
	if c.Replay != "" && !at.replaying {
		at.replaying = true
		r.pending[key] = at
		r.replaying.Add(1)
	}
	applier := c.Applier.(*kvevents.IndexApplier)
	return &kvevents.Resume{
		From:    saved.From,
		Restore: func() { r.restore(key, applier) },
		Discard: func() { r.drop(key) },
	}
}

// restore puts the blocks of a rank whose engine is proved into the index.
func (r *restoredRanks) restore(key rankKey, to *kvevents.IndexApplier) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.pending[key]
	if !ok {
		return // it took too long
	}
	blocks := 0
	err := r.file.Blocks(at.number, func(p *statefile.Piece) {
		if r.seen.ChainRepeats(p.Parent, p.HasParent, p.EngineHashes) {
			return // no engine's: the index does not take it
		}
		ev := p.Store(to.Slot)
		blocks += to.Index.Store(&ev).Stored
	})
	r.log.WithLevel(levelOf(err)).Err(err).Str("model", key.scope.Model).Str("tenant_id", key.scope.Tenant).
		Stringer("rank", key.rank).Int("blocks", blocks).Msg("the engine is the same: blocks of the snapshot are back")
	r.dropLocked(key, &r.proved)
}

// drop drops a rank whose engine is another one, or has sent messages that cannot be
// had any more.
func (r *restoredRanks) drop(key rankKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.pending[key]; !ok {
		return
	}
	r.log.Info().Str("model", key.scope.Model).Str("tenant_id", key.scope.Tenant).Stringer("rank", key.rank).
		Msg("the engine is another one, or messages are missing: blocks of the snapshot are dropped")
	r.dropLocked(key, &r.refuted)
}

func (r *restoredRanks) dropLocked(key rankKey, counter *uint64) {
	if r.pending[key].replaying {
		r.replaying.Add(-1)
	}
	delete(r.pending, key)
	*counter++
	r.closeIfEmptyLocked()
}

func (r *restoredRanks) closeIfEmptyLocked() {
	if len(r.pending) == 0 && r.file != nil {
		_ = r.file.Close() // it was read only
		r.file = nil
	}
}

// expire drops all ranks that are left.
func (r *restoredRanks) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.pending)
	if n == 0 {
		return
	}
	r.expired += uint64(n)
	clear(r.pending)
	r.closeIfEmptyLocked()
	r.log.Info().Int("ranks", n).Msg("blocks of the snapshot dropped: their engines have not proved to be the same")
}

// close forgets what is left without counting it.
func (r *restoredRanks) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.pending)
	r.closeIfEmptyLocked()
}

// carry copies the ranks that are still pending to the next snapshot, and returns
// them.
func (r *restoredRanks) carry(ctx context.Context, w *statefile.Writer, p *pacer) (map[rankKey]struct{}, error) {
	r.mu.Lock()
	keys := slices.Collect(maps.Keys(r.pending))
	r.mu.Unlock()
	carried := make(map[rankKey]struct{})
	for _, key := range keys {
		ok, err := r.carryRank(key, w)
		if err != nil {
			return nil, err
		}
		if ok {
			carried[key] = struct{}{}
		}
		if err := p.rest(ctx); err != nil {
			return nil, err
		}
	}
	return carried, nil
}

func (r *restoredRanks) carryRank(key rankKey, w *statefile.Writer) (carried bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.pending[key]
	if !ok {
		return false, nil // decided meanwhile
	}
	saved, _, _ := r.file.Rank(at.number)
	number, err := w.Rank(*saved)
	if err != nil {
		return false, err
	}
	return true, r.file.RawBlocks(at.number, func(encoded []byte) error { return w.Blocks(number, encoded) })
}

// counts returns how many ranks of the snapshot are in which state.
func (r *restoredRanks) counts() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return map[string]uint64{
		"pending": uint64(len(r.pending)), "proved": r.proved, "refuted": r.refuted, "expired": r.expired,
	}
}
