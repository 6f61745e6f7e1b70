package workers

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

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

// Hearer is a Source whose workers depend on what their engines say. Heard is called when one has said
// something new.
type Hearer interface{ Heard() }

// Reporter is a Source that tells operators what it knows: GET /ready has a part of it, GET /KIND all.
type Reporter interface{ Report() Report }

// Report is what a source knows.
type Report struct {
	Kind catalog.SourceKind
	// Synced: all of Parts are known.
	Synced bool
	Parts  []Part
	// Detail is all of it, written as JSON.
	Detail any
}

// Part is a part of a source, such as a pool of pods, with how far it is known.
type Part struct {
	Name  string `json:"name"`
	State string `json:"state"`
}

// Apply replaces the workers of a source by a set, whose Kind it fills in. An error means that
// nothing has changed (see catalog.Catalog.Reconcile); the source tries again later.
type Apply func(set catalog.Set) (catalog.Difference, error)

// AnswersWithin is how long a start waits for the first answers of the engines that describe the listed workers.
const AnswersWithin = 10 * time.Second

// Manager runs the sources of a process.
type Manager struct {
	apply   Apply
	unasked func() bool
	sources []followed

	mu    sync.Mutex // guards the fields below
	known bool       // stays
	since time.Time  // all sources are listed, and engines are unasked; zero: not yet
}

// followed is a source with its state.
type followed struct {
	Source
	listed *atomic.Bool
}

// NewManager returns a manager that hands sets to apply. unasked reports whether an engine that is to describe a
// worker has neither answered yet nor failed to; nil: none is awaited.
func NewManager(apply Apply, unasked func() bool, sources ...Source) *Manager {
	m := &Manager{apply: apply, unasked: unasked}
	for _, s := range sources {
		m.sources = append(m.sources, followed{s, new(atomic.Bool)})
	}
	return m
}

// Heard tells the sources that an engine has said something new.
func (m *Manager) Heard() {
	for _, s := range m.sources {
		if h, is := s.Source.(Hearer); is {
			h.Heard()
		}
	}
}

// Reports returns what the sources know, of those that tell it.
func (m *Manager) Reports() []Report {
	var all []Report
	for _, s := range m.sources {
		if r, is := s.Source.(Reporter); is {
			all = append(all, r.Report())
		}
	}
	return all
}

// listedEvery is how often Run looks whether the sources are listed, until they are and no engine is awaited.
const listedEvery = 200 * time.Millisecond

// Run runs the sources until ctx ends, or one of them fails.
func (m *Manager) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { // the time in which engines are awaited runs, though nobody asks
		every := time.NewTicker(listedEvery)
		defer every.Stop()
		for !m.Listed() {
			select {
			case <-ctx.Done():
				return nil
			case <-every.C:
			}
		}
		return nil
	})
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

// Listed reports whether requests may come. A full set of every source, one that keeps no other workers, has been
// applied. After that each engine that describes a worker has answered once, or failed to, or it was awaited for
// AnswersWithin. An engine that is listed later is not awaited.
func (m *Manager) Listed() bool {
	return m.applied() && m.answered(time.Now())
}

// answered reports whether no first answer is awaited any more. It must be called once all sources are listed.
func (m *Manager) answered(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.known:
	case m.unasked == nil || !m.unasked():
		m.known = true
	case m.since.IsZero():
		m.since = now
	default:
		m.known = now.Sub(m.since) >= AnswersWithin
	}
	return m.known
}

func (m *Manager) applied() bool {
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
