package service

import (
	"context"
	"io"
	"maps"
	"slices"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/recovery"
)

// Dump writes the whole index as it is while it is written; see
// recovery.Writer. It is in the form of the given contract. Events received before the call are in it, and ranks whose
// workers are still awaited after a recovery. A rank that comes or goes meanwhile
// may be in it in part.
func (s *Service) Dump(ctx context.Context, w io.Writer, form contract.Version) error {
	if err := s.streams.Barrier(ctx); err != nil {
		return err
	}
	pools := s.scopes.All()
	d := recovery.NewWriter(w)
	d.ResidencyDomain = form == contract.V16
	for _, sc := range slices.SortedFunc(maps.Keys(pools), catalog.Scope.Compare) {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := pools[sc]
		// The walk begins before the ranks are asked for. Each of them has then had
		// its slot since, and where it loses it the index forgets the slot before
		// another rank gets it; what is forgotten is not in a walk any more.
		walk := p.Space.Walk()
		err := d.Scope(ctx, recovery.Source{
			Scope:     sc,
			BlockSize: p.BlockSize,
			Ranks:     p.Gate.Ranks(),
			Runs:      walk.Runs,
		})
		if err != nil {
			return err
		}
	}
	return d.Close()
}
