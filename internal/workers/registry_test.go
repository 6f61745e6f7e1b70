package workers_test

import (
	"errors"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
)

type noScopes struct{}

func (noScopes) Change(change func())                                    { change() }
func (noScopes) Reconcile(_, _ *catalog.Attachment) error                { return nil }
func (noScopes) ReserveSlot(catalog.Scope, uint32, catalog.Rank, uint32) {}
func (noScopes) ReleaseSlot(catalog.Scope, catalog.Rank, uint32)         {}

// away is the store of a fleet that cannot be reached.
type away struct{ workers.Store }

var errAway = errors.New("away")

func (away) Edit(workers.Change) (*catalog.Worker, error)        { return nil, errAway }
func (away) Replace(catalog.Set) (catalog.Difference, error)     { return catalog.Difference{}, errAway }
func (away) Compare(catalog.Set) (d catalog.Difference, _ error) { return d, errAway }

// TestDiscoveredNeedsNoStore: workers that belong to a source of this process are found, drained and undrained here
// although the store of the fleet cannot be reached, and those of the API and of the file are not. Source:
// docs/run/fleet.md, "discovered workers stay each replica's own, and so do operators' drains of them".
func TestDiscoveredNeedsNoStore(t *testing.T) {
	c := catalog.New(catalog.Settings{Now: time.Now}, noScopes{})
	r := workers.NewRegistry(away{workers.NewAlone()}, workers.NewChanges(c, noScopes{}, func(string) {}, func() {}), workers.Given{})
	record := func(id uint64) catalog.Record {
		return catalog.Record{ID: id, Scope: catalog.Scope{Model: "m", Tenant: "t"}, Endpoint: new("http://w"), BlockSize: new(uint32(16))}
	}
	pod := record(1)
	pod.Source = catalog.Source{Kind: catalog.SourceKubernetes, Namespace: "n", Pod: "p", UID: "u"}
	if d, err := r.ReplaceWorkers(catalog.Set{Kind: catalog.SourceKubernetes, Records: []catalog.Record{pod}}); err != nil || len(d.Added) != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	if w, err := r.DrainWorkerIn(catalog.ScopeFilter{}, 1, nil); err != nil || w.Drain == nil {
		t.Errorf("drain: %v, %v", w, err)
	}
	if w, err := r.UndrainWorkerIn(catalog.ScopeFilter{}, 1); err != nil || w.Drain != nil {
		t.Errorf("undrain: %v, %v", w, err)
	}
	for name, call := range map[string]func() error{
		"put":         func() error { _, err := r.PutWorker(record(2)); return err },
		"drain":       func() error { _, err := r.DrainWorkerIn(catalog.ScopeFilter{}, 2, nil); return err },
		"set":         func() error { _, err := r.ReconcileWorkers(nil, catalog.ScopeFilter{}); return err },
		"set of file": func() error { _, err := r.ReplaceWorkers(catalog.Set{Kind: catalog.SourceFile}); return err },
		"compare":     func() error { _, err := r.CompareWorkers(nil, catalog.ScopeFilter{}); return err },
	} {
		if err := call(); !errors.Is(err, errAway) {
			t.Errorf("%s: %v, want the store's error", name, err)
		}
	}
}
