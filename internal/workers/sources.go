package workers

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/pkg/catalog"
)

// Source finds workers and follows them.
type Source interface {
	// Kind is the kind of source that the workers have. A process has one source of a kind.
	Kind() catalog.SourceKind
	// Run calls apply with the full set of workers as soon as it is known, and again whenever
	// it has changed, until ctx ends; then it returns nil. Any other error ends the process.
	Run(ctx context.Context, apply Apply) error
}

// Lister is a Source that says itself whether its workers are known: one of several parts may
// never be.
type Lister interface{ Listed() bool }

// Apply replaces the workers of a source by a set, whose Kind it fills in. An error means that
// nothing has changed (see catalog.Catalog.Reconcile); the source tries again later.
type Apply func(set catalog.Set) (catalog.Difference, error)

// Manager runs the sources of a process.
type Manager struct {
	apply   Apply
	sources []followed
}

// followed is a source with its state.
type followed struct {
	Source
	listed *atomic.Bool
}

// NewManager returns a manager that hands sets to apply.
func NewManager(apply Apply, sources ...Source) *Manager {
	m := &Manager{apply: apply}
	for _, s := range sources {
		m.sources = append(m.sources, followed{s, new(atomic.Bool)})
	}
	return m
}

// Run runs the sources until ctx ends, or one of them fails.
func (m *Manager) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range m.sources {
		g.Go(func() error {
			err := s.Run(ctx, func(set catalog.Set) (catalog.Difference, error) {
				set.Kind = s.Kind()
				d, err := m.apply(set)
				if err == nil && set.Keep == nil {
					s.listed.Store(true)
				}
				return d, err
			})
			if ctx.Err() == nil {
				return err
			}
			return nil // a set that is refused at the end is no fault
		})
	}
	return g.Wait()
}

// Listed reports whether a full set of every source, one that keeps no other workers, has been
// applied.
func (m *Manager) Listed() bool {
	for _, s := range m.sources {
		if l, ok := s.Source.(Lister); ok {
			if !l.Listed() {
				return false
			}
		} else if !s.listed.Load() {
			return false
		}
	}
	return true
}
