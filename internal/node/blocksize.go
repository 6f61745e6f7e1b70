package node

import (
	"context"
	"sync"

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

// noteBlockSize is kvevents.Config.OtherBlockSize.
func (s *Service) noteBlockSize(of catalog.Rank, registered, size uint32) {
	b := s.blockSizes
	b.mu.Lock()
	b.seen[of.Worker] = seenSize{registered, size}
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default: // it will
	}
}

// correctBlockSizes corrects workers until ctx ends.
func (s *Service) correctBlockSizes(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.blockSizes.wake:
		}
		s.blockSizes.mu.Lock()
		seen := s.blockSizes.seen
		s.blockSizes.seen = make(map[uint64]seenSize)
		s.blockSizes.mu.Unlock()
		for worker, of := range seen {
			s.correctBlockSize(worker, of)
		}
	}
}

// correctBlockSize gives a worker the block size of its engine's events if the engine has told the
// other one. One that is given stays: lists of workers and the doctor say so as long as it is so.
func (s *Service) correctBlockSize(worker uint64, seen seenSize) {
	w, size := s.catalog.Latest(worker), seen.size
	if w == nil || w.BlockSize == nil || *w.BlockSize != seen.registered {
		return // another rank's events were first, or it is another worker now
	}
	var changed bool
	if w.Source.KindOrAPI() == catalog.SourceKubernetes {
		changed = s.config.CorrectDiscovered != nil && s.config.CorrectDiscovered(w, size)
	} else {
		changed = s.CorrectBlockSize(w, size)
	}
	if !changed {
		return
	}
	s.log.Info().Uint64("worker_id", w.ID).Str("model_name", catalog.Clip(w.Scope.Model)).Uint32("block_size", *w.BlockSize).Uint32("events", size).
		Msg("the KV events of an engine have another block size than it tells; they count")
}
