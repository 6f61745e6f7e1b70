package node_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// drain drains a worker, with a deadline if it is not 0.
func drain(w *servicetest.World, id uint64, within time.Duration) {
	w.T.Helper()
	deadline := &within
	if within == 0 {
		deadline = nil
	}
	if _, err := w.DrainWorkerIn(catalog.ScopeFilter{}, id, deadline); err != nil {
		w.T.Fatal(err)
	}
}

// registered reports whether a worker is in the list.
func registered(w *servicetest.World, id uint64) bool {
	for _, wk := range w.Workers(nil, nil) {
		if wk.ID == id {
			return true
		}
	}
	return false
}

// after lets time pass.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestDrainedWorkerGoes: a worker of the API goes once it has been empty for a second, and at its
// deadline with what it has; not before, not after the drain was taken back, and never if another
// source has it.
func TestDrainedWorkerGoes(t *testing.T) {
	for name, tt := range map[string]struct {
		source catalog.SourceKind
		busy   bool // a reservation is live
		within time.Duration
		undo   bool
		stays  time.Duration // it is still there then
		gone   time.Duration // and gone then; 0: it stays
	}{
		"empty":                      {gone: 3 * time.Second},
		"empty before its deadline":  {within: time.Minute, gone: 3 * time.Second},
		"at once":                    {busy: true, within: 1, gone: 2 * time.Second},
		"at its deadline":            {busy: true, within: time.Minute, stays: 59 * time.Second, gone: 62 * time.Second},
		"busy without a deadline":    {busy: true, stays: 4 * time.Minute},
		"taken back":                 {undo: true, within: time.Minute, stays: 2 * time.Minute},
		"of the file":                {source: catalog.SourceFile, within: time.Minute, stays: 2 * time.Minute},
		"discovered, at no deadline": {source: catalog.SourceKubernetes, stays: 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := servicetest.Start(t, servicetest.EventsOff, discovers)
				r := servicetest.Record(1, 1)
				r.Source.Kind = tt.source
				if _, err := w.ReplaceWorkers(catalog.Set{Kind: tt.source, Records: []catalog.Record{r}}); err != nil {
					t.Fatal(err)
				}
				if tt.busy {
					w.Book("r", servicetest.Prompt(1, 8))
				}
				drain(w, 1, tt.within)
				if tt.undo {
					if _, err := w.UndrainWorkerIn(catalog.ScopeFilter{}, 1); err != nil {
						t.Fatal(err)
					}
				}
				after(tt.stays)
				if tt.stays > 0 && !registered(w, 1) {
					t.Errorf("gone after %s", tt.stays)
				}
				if tt.gone == 0 {
					return
				}
				after(tt.gone - tt.stays)
				if registered(w, 1) {
					t.Errorf("still there after %s", tt.gone)
				}
				if tt.busy {
					if err := w.Free("r"); contract.KindOf(err) != contract.NotFound {
						t.Errorf("the reservation: %v", err)
					}
				}
			})
		})
	}
}

// TestDrainWaitsForTheLast: the worker goes when its last reservation has ended, not while one
// that names it came meanwhile.
func TestDrainWaitsForTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff)
		w.Put(servicetest.Record(1, 2))
		w.Put(servicetest.Record(2, 1))
		drain(w, 1, 0)
		after(500 * time.Millisecond)
		w.Burden("late", 1, 1, 1, 0)
		after(time.Minute)
		if !registered(w, 1) {
			t.Fatal("gone with a reservation")
		}
		if err := w.Free("late"); err != nil {
			t.Fatal(err)
		}
		after(3 * time.Second)
		if registered(w, 1) || !registered(w, 2) {
			t.Error("an empty worker is there, or another one has gone")
		}
	})
}

// sharing is the store of a fleet whose only live replica is this one.
type sharing struct {
	workers.Store
	settled  atomic.Bool
	deadline time.Time // of every drain that has one
}

func (s *sharing) Settled() bool { return s.settled.Load() }

func (s *sharing) Deadlines(drained []*catalog.Worker, now time.Time) []time.Time {
	all := s.Store.Deadlines(drained, now)
	for i := range all {
		if !all[i].IsZero() {
			all[i] = s.deadline
		}
	}
	return all
}

// TestDrainInFleet: a replica that has not heard the others, or has yet to read their reservations, removes
// no worker as empty; and a deadline is the store's, whatever the record of the worker says.
func TestDrainInFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		a := m.Start(t, "a", servicetest.EventsOff)
		a.Put(servicetest.Record(1, 1))
		a.Book("r", servicetest.Prompt(1, 8))
		a.Put(servicetest.Record(2, 1))
		f := &sharing{Store: workers.NewAlone()}
		b := m.Start(t, "b", servicetest.EventsOff, func(c *node.Config) { c.Workers = f })
		for _, id := range []uint64{1, 2, 3} {
			b.Put(servicetest.Record(id, 1))
		}
		drain(b, 1, 0)
		drain(b, 2, 0)
		has := func(when string, want ...uint64) {
			t.Helper()
			var got []uint64
			for _, w := range b.Workers(nil, nil) {
				got = append(got, w.ID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: workers %v, want %v", when, got, want)
			}
		}
		after(time.Minute)
		has("before others are heard", 1, 2, 3)
		m.ServeSnapshot("a", false)
		m.Connect(t, "b", "a")
		servicetest.Announced()
		f.settled.Store(true)
		after(time.Minute)
		has("while their reservations cannot be read", 1, 2, 3)
		m.ServeSnapshot("a", true)
		after(time.Minute)
		has("when they were read", 1, 3)

		f.deadline = time.Now().Add(time.Minute)
		if _, err := b.Catalog().Drain(catalog.ScopeFilter{}, 1, catalog.Drain{Deadline: time.Now().Add(-time.Hour), Within: time.Minute}); err != nil {
			t.Fatal(err)
		}
		b.Patch(3, catalog.Patch{Taints: []string{"x"}})
		after(58 * time.Second)
		has("before a deadline that another clock has passed", 1, 3)
		after(4 * time.Second)
		has("after the deadline", 3)
	})
}

// TestDrainIsRestored: an operator's drain and its deadline outlive the process.
func TestDrainIsRestored(t *testing.T) {
	path := t.TempDir()
	w := startAt(t, path, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	w.Book("r", servicetest.Prompt(1, 8))
	drain(w.World, 1, time.Hour)
	want := w.Workers(nil, nil)[0].Drain.Deadline
	w.save()
	again := startAt(t, path, servicetest.EventsOff)
	got := again.Workers(nil, nil)[0]
	if got.Lifecycle != catalog.Draining || !got.Drain.Deadline.Equal(want) {
		t.Errorf("restored as %+v, want the deadline %s", got, want)
	}
}
