package fleet

import (
	"context"
	"sync/atomic"

	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
)

// sharedFile is a workers file whose set the fleet has, so that it cannot be applied while NATS is away. Its workers
// are known once it was applied, or once the workers of the last time serve instead.
type sharedFile struct {
	workers.Source
	// serves reports whether the workers of the last time serve, and nobody waits for NATS.
	serves func() bool
	known  atomic.Bool // also if NATS is back and the set is just being applied
}

// File returns a workers file whose set the fleet has. schedulable returns how many workers serve now. The
// source of a replica of no fleet is the file's own.
func (m *Member) File(source workers.Source, schedulable func() int) workers.Source {
	if m == nil {
		return source
	}
	return &sharedFile{Source: source, serves: func() bool { return m.catalog.GivenUp() && schedulable() > 0 }}
}

// Run is part of workers.Source.
func (f *sharedFile) Run(ctx context.Context, apply workers.Apply) error {
	return f.Source.Run(ctx, func(set catalog.Set) (catalog.Difference, error) {
		d, err := apply(set)
		if err == nil {
			f.known.Store(true)
		}
		return d, err
	})
}

// Listed is part of workers.Lister.
func (f *sharedFile) Listed() bool {
	if !f.known.Load() && f.serves() {
		f.known.Store(true)
	}
	return f.known.Load()
}
