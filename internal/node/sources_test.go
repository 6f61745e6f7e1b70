package node_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func discovers(c *node.Config) { c.Discovers = []catalog.SourceKind{catalog.SourceKubernetes} }

// pods are discovered workers with these ids.
func pods(ids ...uint64) (set catalog.Set) {
	set.Kind = catalog.SourceKubernetes
	for _, id := range ids {
		r := servicetest.Record(id, 1)
		r.Source = catalog.Source{Kind: catalog.SourceKubernetes, Namespace: "llm", Pod: "vllm", UID: "u"}
		set.Records = append(set.Records, r)
	}
	return set
}

// TestManagedWorker: what refuses a call about a worker of another source is a kind of its own.
func TestManagedWorker(t *testing.T) {
	w := servicetest.Start(t, discovers)
	if _, err := w.ReplaceWorkers(pods(7)); err != nil {
		t.Fatal(err)
	}
	for call, err := range map[string]error{
		"POST":   second(w.PutWorker(servicetest.Record(7, 1))),
		"PATCH":  second(w.PatchWorker(7, catalog.Patch{})),
		"DELETE": second(w.DeleteWorker(7)),
		"PUT":    second(w.ReconcileWorkers([]catalog.Record{servicetest.Record(7, 1)}, catalog.ScopeFilter{})),
	} {
		if e, ok := errors.AsType[*contract.Error](err); !ok || e.Kind != contract.Managed {
			t.Errorf("%s: %v", call, err)
		}
	}
	if d, err := w.ReconcileWorkers(nil, catalog.ScopeFilter{}); err != nil || len(d.Removed) > 0 {
		t.Errorf("PUT of no workers removed %v: %v", d.Removed, err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestSourcesAreRestored: workers come back as of their sources. A discovered one drains, with its
// load and blocks, until its source has listed it; one that its source does not list goes, and
// without a source of the kind there are none.
func TestSourcesAreRestored(t *testing.T) {
	path := t.TempDir()
	w := startAt(t, path, discovers)
	w.Put(servicetest.Record(1, 1))
	file := servicetest.Record(2, 1)
	file.Source.Kind = catalog.SourceFile
	if _, err := w.ReplaceWorkers(catalog.Set{Kind: catalog.SourceFile, Records: []catalog.Record{file, servicetest.Record(1, 1)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ReplaceWorkers(pods(7, 8)); err != nil {
		t.Fatal(err)
	}
	tokens := servicetest.Prompt(1, 12)
	engine := w.Engine(7, 0)
	engine.Publish(0, engine.Stored(tokens, servicetest.BlockSize, nil))
	w.Settle()
	w.save()

	again := startAt(t, path, discovers)
	want := map[uint64]string{
		1: "api schedulable []", 2: "file schedulable []",
		7: "kubernetes draining [restored from disk: its source has not listed it yet]",
		8: "kubernetes draining [restored from disk: its source has not listed it yet]",
	}
	wantWorkers(again.World, want)
	next := again.Engine(7, 0)
	next.Seq = engine.Seq
	next.Deliver(servicetest.Batch(0)) // the engine is the same
	again.Settle()
	again.WantDevice(tokens, "1/0:0 2/0:0 7/0:3")
	if d, err := again.ReplaceWorkers(pods(7)); err != nil || !slices.Equal(d.Removed, []uint64{8}) {
		t.Errorf("%+v, %v", d, err)
	}
	delete(want, 8)
	want[7] = "kubernetes schedulable []"
	wantWorkers(again.World, want)
	again.WantDevice(tokens, "1/0:0 2/0:0 7/0:3")
	again.save()

	delete(want, 7)
	wantWorkers(startAt(t, path).World, want)
}

// wantWorkers compares source, lifecycle and reasons of all workers.
func wantWorkers(w *servicetest.World, want map[uint64]string) {
	w.T.Helper()
	got := map[uint64]string{}
	for _, wk := range w.Workers(nil, nil) {
		got[wk.ID] = fmt.Sprint(wk.Source.KindOrAPI(), " ", wk.Lifecycle, " ", wk.Explain())
	}
	if !maps.Equal(got, want) {
		w.T.Errorf("the workers are %v, want %v", got, want)
	}
}
