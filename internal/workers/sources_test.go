package workers_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
)

var _ workers.Source = (*workers.Fake)(nil)

// TestManager: sets come to the catalog as of their source, and the sources are listed once each
// has had a full set accepted.
func TestManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var applied []catalog.SourceKind
		var refuse error
		file, pods := workers.NewFake(catalog.SourceFile), workers.NewFake(catalog.SourceKubernetes)
		m := workers.NewManager(func(set catalog.Set) (catalog.Difference, error) {
			applied = append(applied, set.Kind)
			return catalog.Difference{Unchanged: len(set.Records)}, refuse
		}, nil, file, pods)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()

		apply := func(f *workers.Fake, set catalog.Set, want error, listed bool) {
			t.Helper()
			d, err := f.Apply(set)
			if !errors.Is(err, want) || d.Unchanged != len(set.Records) || applied[len(applied)-1] != f.Kind() {
				t.Errorf("applied %v: %v, %v", applied, d, err)
			}
			if m.Listed() != listed {
				t.Errorf("listed: %t", m.Listed())
			}
		}
		apply(file, catalog.Set{Kind: catalog.SourceAPI, Records: make([]catalog.Record, 2)}, nil, false)
		apply(pods, catalog.Set{Keep: func(*catalog.Worker) bool { return true }}, nil, false)
		refuse = errors.New("refused")
		apply(pods, catalog.Set{}, refuse, false)
		refuse = nil
		apply(pods, catalog.Set{}, nil, true)
		refuse = errors.New("refused")
		apply(pods, catalog.Set{}, refuse, true)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if none := workers.NewManager(nil, nil); !none.Listed() || none.Run(t.Context()) != nil {
			t.Error("without sources nothing is awaited")
		}
	})
}

// TestListedEnginesAreAwaited: requests may come once the engines of all sources have been asked, or have been awaited for
// long enough. Engines that come later do not stop them.
func TestListedEnginesAreAwaited(t *testing.T) {
	for name, row := range map[string]struct{ answers, listed time.Duration }{
		"they answer":     {30 * time.Millisecond, 30 * time.Millisecond},
		"they are silent": {time.Hour, workers.AnswersWithin},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var unasked atomic.Bool
				file, pods := workers.NewFake(catalog.SourceFile), workers.NewFake(catalog.SourceKubernetes)
				m := workers.NewManager(func(catalog.Set) (catalog.Difference, error) { return catalog.Difference{}, nil }, unasked.Load, file, pods)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- m.Run(ctx) }()
				list := func(f *workers.Fake) {
					t.Helper()
					if _, err := f.Apply(catalog.Set{}); err != nil {
						t.Fatal(err)
					}
				}
				want := func(when string, want bool) {
					t.Helper()
					if got := m.Listed(); got != want {
						t.Errorf("%s: listed %t", when, got)
					}
				}
				list(file)
				want("the first source, without engines", false)
				time.Sleep(2 * workers.AnswersWithin)
				unasked.Store(true)
				list(pods)
				want("all sources", false)
				time.AfterFunc(row.answers, func() { unasked.Store(false) })
				time.Sleep(row.listed - time.Microsecond)
				want("just before", false)
				time.Sleep(2 * time.Microsecond)
				want("just after", true)
				unasked.Store(true)
				want("another engine", true)
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				time.Sleep(row.answers) // its timer ends
			})
		})
	}
}

// TestListedTimeRuns: the time in which engines are awaited begins when all sources are listed, though nobody asks then.
func TestListedTimeRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := workers.NewFake(catalog.SourceFile)
		m := workers.NewManager(func(catalog.Set) (catalog.Difference, error) { return catalog.Difference{}, nil }, func() bool { return true }, file)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		time.Sleep(time.Hour)
		if _, err := file.Apply(catalog.Set{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(workers.AnswersWithin + time.Second)
		if !m.Listed() {
			t.Error("not listed though the engines were awaited for long enough")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// talker is a source that tells what it knows, and counts what it hears.
type talker struct {
	*workers.Fake
	heard int
}

func (t *talker) Heard() { t.heard++ }

func (*talker) Report() workers.Report {
	return workers.Report{Kind: catalog.SourceKubernetes, Parts: []workers.Part{{Name: "llm", State: "syncing"}}}
}

// TestReports: sources that can, tell what they know and hear of what engines say; others need not.
func TestReports(t *testing.T) {
	pods := &talker{Fake: workers.NewFake(catalog.SourceKubernetes)}
	m := workers.NewManager(nil, nil, workers.NewFake(catalog.SourceFile), pods)
	m.Heard()
	if all := m.Reports(); len(all) != 1 || all[0].Kind != catalog.SourceKubernetes || len(all[0].Parts) != 1 || pods.heard != 1 {
		t.Errorf("reports %+v, heard %d times", all, pods.heard)
	}
}
