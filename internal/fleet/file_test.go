package fleet

import (
	"context"
	"errors"
	"testing"

	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
)

// appliedBy is a source that applies one set.
type appliedBy func(workers.Apply) error

func (appliedBy) Kind() catalog.SourceKind { return catalog.SourceFile }

func (a appliedBy) Run(_ context.Context, apply workers.Apply) error { return a(apply) }

// TestSharedFile: a picker is ready with the workers of the last time, as GET /ready is (docs/run/fleet.md: a start
// without NATS is ready after 5 s), although the set of a workers file waits for NATS; and it stays so when NATS
// is back and the set is about to be applied.
func TestSharedFile(t *testing.T) {
	serves, away := false, errors.New("away")
	once := appliedBy(func(apply workers.Apply) error {
		_, err := apply(catalog.Set{})
		return err
	})
	f := &sharedFile{Source: once, serves: func() bool { return serves }}
	var refused error
	m := workers.NewManager(func(catalog.Set) (catalog.Difference, error) { return catalog.Difference{}, refused }, nil, f)
	want := func(when string, want bool) {
		t.Helper()
		if got := m.Listed(); got != want {
			t.Errorf("%s: %v", when, got)
		}
	}
	want("at first", false)
	refused = away
	if err := m.Run(t.Context()); !errors.Is(err, away) {
		t.Error(err)
	}
	want("refused", false)
	serves = true
	want("those of the last time serve", true)
	serves = false
	want("NATS is back", true)

	f.known.Store(false)
	refused = nil
	if err := m.Run(t.Context()); err != nil {
		t.Error(err)
	}
	want("applied", true)
}
