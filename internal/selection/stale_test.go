package selection_test

import (
	"errors"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

// TestChangeUnderWay stops a selection between its look at the workers and its
// reservation, changes the workers, and goes on: that what was looked at is gone
// is noticed, whatever has taken its slot, and the next attempt books on what is
// there now. Without the stop the test would have to win a race.
func TestChangeUnderWay(t *testing.T) {
	record := func(id uint64, size uint32) catalog.Record {
		return catalog.Record{
			ID: id, Scope: catalog.Scope{Model: "m"}, Endpoint: new("http://w"), BlockSize: &size,
		}
	}
	const old, other = 1, 2
	tests := map[string]struct {
		change func(*node.Service) (err error)
		worker uint64 // that the next attempt chooses
		blocks uint64 // that it books
	}{
		"another worker in the slot": {func(s *node.Service) error {
			_, err := s.UseCases.PutWorker(record(other, 4))
			_, gone := s.UseCases.DeleteWorker(old)
			_, again := s.UseCases.PutWorker(record(3, 4))
			_, left := s.UseCases.DeleteWorker(other)
			return errors.Join(err, gone, again, left)
		}, 3, 4},
		"the scope was empty in between": {func(s *node.Service) error {
			_, gone := s.UseCases.DeleteWorker(old)
			_, err := s.UseCases.PutWorker(record(other, 4))
			return errors.Join(gone, err)
		}, other, 4},
		"the same worker, in a new state": {func(s *node.Service) error {
			_, gone := s.UseCases.DeleteWorker(old)
			_, err := s.UseCases.PutWorker(record(old, 4))
			return errors.Join(gone, err)
		}, old, 4},
		"blocks of another size": {func(s *node.Service) error {
			_, err := s.UseCases.PatchWorker(old, catalog.Patch{BlockSize: new(uint32(8))})
			return err
		}, old, 2},
	}
	for name, tt := range tests {
		for _, reserve := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				s := node.New(node.Config{Selection: selection.Config{Weights: selector.DefaultWeights()}}, nil, zerolog.Nop())
				if _, err := s.UseCases.PutWorker(record(old, 4)); err != nil {
					t.Fatal(err)
				}
				req := &selection.SelectRequest{Scope: catalog.Scope{Model: "m"}}
				req.Prompt.TokenIDs, req.Prompt.HasTokenIDs = make([]uint32, 16), true
				for i := range req.Prompt.TokenIDs {
					req.Prompt.TokenIDs[i] = uint32(i)
				}
				var changed error
				stale, sel, err := s.UseCases.SelectDuring(t.Context(), req, reserve, func() { changed = tt.change(s) })
				if changed != nil {
					t.Fatal(changed)
				}
				if !errors.Is(stale, scopes.ErrStale) {
					t.Fatalf("on what is gone: %v, want %v", stale, scopes.ErrStale)
				}
				if err != nil {
					t.Fatalf("second attempt: %v", err)
				}
				if got := sel.Rank.Worker; got != tt.worker {
					t.Errorf("worker %d was chosen, want %d", got, tt.worker)
				}
				if !reserve {
					tt.blocks = 0
				}
				if got := s.UseCases.Loads(nil, nil)[0].Loads[0].DecodeBlocks; got != tt.blocks {
					t.Errorf("%d blocks were booked, want %d", got, tt.blocks)
				}
			})
		}
	}
}
