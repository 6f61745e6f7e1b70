package node

import (
	"context"
	"sync"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
)

// blockSizes has the block sizes of KV events that are not those of their workers' records, until
// the workers are corrected.
type blockSizes struct {
	wake chan struct{} // some were seen

	// mu guards seen: it is innermost, and held by those who apply events.
	mu   sync.Mutex
	seen map[uint64]seenSize // by worker
}

// seenSize is a block size of events beside the one with which their stream was registered.
type seenSize struct{ registered, size uint32 }

func newBlockSizes() *blockSizes {
	return &blockSizes{wake: make(chan struct{}, 1), seen: make(map[uint64]seenSize)}
}

// note is kvevents.Config.OtherBlockSize.
func (b *blockSizes) note(of catalog.Rank, registered, size uint32) {
	b.mu.Lock()
	b.seen[of.Worker] = seenSize{registered, size}
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default: // it will
	}
}

// run corrects workers until ctx ends.
func (b *blockSizes) run(ctx context.Context, correct blockSizeCorrector) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.wake:
		}
		b.mu.Lock()
		seen := b.seen
		b.seen = make(map[uint64]seenSize)
		b.mu.Unlock()
		for worker, of := range seen {
			correct.worker(worker, of)
		}
	}
}

// blockSizeCorrector gives workers the block sizes of their engines' events.
type blockSizeCorrector struct {
	catalog  *catalog.Catalog
	registry *workers.Registry
	log      zerolog.Logger
}

// worker gives a worker the block size of its engine's events if the engine has told the
// other one. One that is given stays: lists of workers and the doctor say so as long as it is so.
func (c *blockSizeCorrector) worker(id uint64, seen seenSize) {
	w, size := c.catalog.Latest(id), seen.size
	if w == nil || w.BlockSize == nil || *w.BlockSize != seen.registered {
		return // another rank's events were first, or it is another worker now
	}
	if !c.registry.CorrectBlockSize(w, size) {
		return
	}
	c.log.Info().Uint64("worker_id", w.ID).Str("model_name", catalog.Clip(w.Scope.Model)).Uint32("block_size", *w.BlockSize).Uint32("events", size).
		Msg("the KV events of an engine have another block size than it tells; they count")
}
