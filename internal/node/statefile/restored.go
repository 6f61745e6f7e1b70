package statefile

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/container/hashset"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/kvevents"
)

// restoredRanks has the ranks of a snapshot whose engines have not yet proved to be the same
// ones. Their blocks are only in the file: no query, dump or metric shows them, and they take
// no memory. When an engine has proved it, its blocks enter the index as if the engine
// announced them, before any of its later messages. If it turns out to be another engine, or
// does not prove it in time, the blocks are dropped.
type restoredRanks struct {
	log zerolog.Logger
	// replaying counts the pending ranks whose streams are about to request a replay. Ready
	// waits for them until readyBy. Both are set before the service runs.
	replaying atomic.Int64
	readyBy   time.Time

	// mu guards the fields below. Apply workers take it under a subscription's lock. It is held
	// while a rank's blocks are read from disk and stored.
	mu      sync.Mutex
	file    *file // nil: no rank is pending
	pending map[rankKey]pendingRank
	seen    hashset.Set // scratch: the hashes of one piece

	proved, refuted, expired uint64
}

// pendingRank is a rank of the file.
type pendingRank struct {
	number    int
	replaying bool // counted in restoredRanks.replaying
}

// proofWait is how long Ready waits for replays, so that the first requests find the index that
// the previous process had.
const proofWait = 1500 * time.Millisecond

// awaited reports whether Ready waits.
func (r *restoredRanks) awaited() bool {
	return r.replaying.Load() > 0 && time.Now().Before(r.readyBy)
}

// rankKey is a rank of a scope.
type rankKey struct {
	scope catalog.Scope
	rank  catalog.Rank
}

// use takes over the ranks of a file. It returns how many there are, and their number of (tier,
// block) entries. If there are none, it does not take ownership of the file.
func (r *restoredRanks) use(f *file) (ranks int, entries uint64) {
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

// Resume implements scopes.Restored.
func (r *restoredRanks) Resume(sc catalog.Scope, layout hashing.Layout, c *kvevents.StreamConfig) *kvevents.Resume {
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

// restore stores the blocks of a rank whose engine has proved to be the same.
func (r *restoredRanks) restore(key rankKey, to *kvevents.IndexApplier) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.pending[key]
	if !ok {
		return // expired
	}
	blocks := 0
	err := r.file.Blocks(at.number, func(p *piece) {
		if r.seen.ChainRepeats(p.Parent, p.HasParent, p.EngineHashes) {
			return // no engine stores such a chain, and the index refuses it
		}
		ev := p.Store(to.Slot)
		blocks += to.Index.Store(&ev).Stored
	})
	r.log.WithLevel(levelOf(err)).Err(err).Str("model", key.scope.Model).Str("tenant_id", key.scope.Tenant).
		Stringer("rank", key.rank).Int("blocks", blocks).Msg("the engine is the same: blocks of the snapshot are back")
	r.dropLocked(key, &r.proved)
}

// drop drops a rank whose engine is another one, or some of whose messages are lost for good.
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

// expire drops all ranks that are still pending.
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

// close drops the pending ranks without counting them.
func (r *restoredRanks) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.pending)
	r.closeIfEmptyLocked()
}

// carry copies the ranks that are still pending to the next snapshot, and returns them.
func (r *restoredRanks) carry(ctx context.Context, w *writer, p *pacer) (map[rankKey]struct{}, error) {
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

func (r *restoredRanks) carryRank(key rankKey, w *writer) (carried bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.pending[key]
	if !ok {
		return false, nil // no longer pending
	}
	saved, _, _ := r.file.Rank(at.number)
	number, err := w.Rank(*saved)
	if err != nil {
		return false, err
	}
	return true, r.file.RawBlocks(at.number, func(encoded []byte) error { return w.Blocks(number, encoded) })
}

// counts returns the number of the snapshot's ranks by state.
func (r *restoredRanks) counts() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return map[string]uint64{
		"pending": uint64(len(r.pending)), "proved": r.proved, "refuted": r.refuted, "expired": r.expired,
	}
}
