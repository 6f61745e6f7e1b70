package workers

import (
	"context"

	"github.com/select-service/select-service/pkg/catalog"
)

// Fake is a source for tests: it has the workers that Apply gives it.
type Fake struct {
	kind  catalog.SourceKind
	calls chan fakeCall
}

type fakeCall struct {
	set    catalog.Set
	answer chan<- fakeAnswer
}

type fakeAnswer struct {
	changed catalog.Difference
	err     error
}

// NewFake returns a source of a kind. Until the first Apply it has not listed its workers.
func NewFake(kind catalog.SourceKind) *Fake { return &Fake{kind, make(chan fakeCall)} }

// Kind is part of Source.
func (f *Fake) Kind() catalog.SourceKind { return f.kind }

// Run is part of Source.
func (f *Fake) Run(ctx context.Context, apply Apply) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case call := <-f.calls:
			d, err := apply(call.set)
			call.answer <- fakeAnswer{d, err}
		}
	}
}

// Apply makes these the workers of the source, and returns what Run was told. Run must be
// running.
func (f *Fake) Apply(set catalog.Set) (catalog.Difference, error) {
	answer := make(chan fakeAnswer, 1)
	f.calls <- fakeCall{set, answer}
	a := <-answer
	return a.changed, a.err
}
