package catalog_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// pod makes a record one of a pod.
func pod(name, uid string) func(*catalog.Record) {
	return func(r *catalog.Record) {
		r.Source = catalog.Source{Kind: catalog.SourceKubernetes, Namespace: "llm", Pod: name, UID: uid, Pool: "p"}
	}
}

func inFile(r *catalog.Record) { r.Source.Kind = catalog.SourceFile }

// fromPods reconciles the set of discovered workers.
func fromPods(t *testing.T, c *catalog.Catalog, records ...catalog.Record) catalog.Difference {
	t.Helper()
	d, err := c.Reconcile(catalog.Set{Kind: catalog.SourceKubernetes, Records: records})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestManaged: the API cannot change a discovered worker, and is told whose it is.
func TestManaged(t *testing.T) {
	c, _ := newWorld(t, eventsOff)
	fromPods(t, c, record(7, pod("vllm-0", "a")))
	reconcile(t, c, record(8))
	const want = "worker 7 is managed by Kubernetes (pod llm/vllm-0)"
	check := func(call, want string, err error) {
		t.Helper()
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", call, err, want)
		}
		if _, ok := errors.AsType[*catalog.ManagedError](err); !ok {
			t.Errorf("%s: %v is no ManagedError", call, err)
		}
	}
	_, err := c.Put(record(7))
	check("Put", want, err)
	_, err = c.Patch(7, catalog.Patch{})
	check("Patch", want, err)
	_, err = c.Delete(7)
	check("Delete", want, err)
	for _, kind := range []catalog.SourceKind{catalog.SourceAPI, catalog.SourceFile} {
		_, err = c.Reconcile(catalog.Set{Kind: kind, Records: []catalog.Record{record(8), record(7)}})
		check("Reconcile", "workers[1]: "+want, err)
	}
	if w := c.List(nil, nil); len(w) != 2 || w[0].Source.Pod != "vllm-0" {
		t.Errorf("the workers are %v", w)
	}
	for _, tt := range []struct {
		source catalog.Source
		want   string
	}{
		{catalog.Source{}, "the API"},
		{catalog.Source{Kind: catalog.SourceFile}, "the workers file"},
		{catalog.Source{Kind: catalog.SourceKubernetes, Pool: "p", UID: "u"}, "Kubernetes (pool p)"},
		{catalog.Source{Kind: catalog.SourceKubernetes}, "Kubernetes"},
	} {
		equal(t, "the text", tt.source.String(), tt.want)
	}
}

// TestExcluded: records of a discovered set that cannot be used are named, one by one, and the
// others are used. Limits count for new workers, whatever the order of the set.
func TestExcluded(t *testing.T) {
	c, _ := newWorld(t, catalog.Settings{Limits: catalog.Limits{Workers: 5, Scopes: 1}})
	reconcile(t, c, record(1), record(2, inFile))
	if _, err := c.PutTracked(catalog.TrackedRecord{ID: 3, Scope: m1, BlockSize: 4, Size: 1}); err != nil {
		t.Fatal(err)
	}
	p := pod("a", "u")
	wantExcluded := func(d catalog.Difference, want ...string) {
		t.Helper()
		var got []string
		for _, e := range d.Excluded {
			got = append(got, e.Error())
		}
		equal(t, "excluded", got, want)
	}
	d := fromPods(t, c, record(1, p), record(2, p), record(3, p), record(4, p, size(5000)), record(6, p), record(6, p), record(7, p, in(m2)))
	equal(t, "added", d.Added, []uint64{6})
	wantExcluded(d,
		"workers[0]: worker 1 is managed by the API",
		"workers[1]: worker 2 is managed by the workers file",
		"workers[2]: worker 3 already registered for model=m tenant=t",
		"workers[3]: data_parallel_size 5000 exceeds the maximum 4096",
		"workers[5]: worker_id 6 is given twice",
		"workers[6]: the limit of 1 models is reached",
	)
	d = fromPods(t, c, record(8, p), record(9, p), record(6, p)) // room for one beside worker 6
	equal(t, "difference", d, catalog.Difference{
		Added: []uint64{8}, Unchanged: 1, Excluded: d.Excluded,
	})
	wantExcluded(d, "workers[1]: the limit of 5 workers is reached")
	remove(t, c, 1)
	d = fromPods(t, c, record(1, p), record(6, p), record(8, p)) // taken over
	equal(t, "difference", d, catalog.Difference{Added: []uint64{1}, Unchanged: 2})
}

// TestAnotherPod: a discovered worker with another UID keeps nothing of the one before, not even
// an operator's drain; with the same UID it keeps everything.
func TestAnotherPod(t *testing.T) {
	c, world := newWorld(t, eventsOff)
	fromPods(t, c, record(1, pod("a", "u1")), record(2, pod("b", "u2")))
	if _, err := c.Drain(catalog.ScopeFilter{}, 1, catalog.Drain{}); err != nil {
		t.Fatal(err)
	}
	world.took()
	draining := func(r *catalog.Record) { r.Draining = "pod llm/b is not ready" }
	d := fromPods(t, c, record(1, pod("a", "u3")), record(2, pod("b", "u2"), draining))
	equal(t, "difference", d, catalog.Difference{Added: []uint64{1}, Changed: []uint64{2}, Removed: []uint64{1}})
	equal(t, "calls", world.took(), []string{"1@m/t block=4 0:0 -> nothing", "nothing -> 1@m/t block=4 0:0"})
	w := c.List(nil, nil)
	if w[0].Lifecycle != catalog.Schedulable || w[0].Source.UID != "u3" || w[1].Lifecycle != catalog.Draining {
		t.Errorf("the workers are %+v, %+v", *w[0], *w[1])
	}
}

// TestKeep: workers of a part that the source cannot list stay as they are.
func TestKeep(t *testing.T) {
	c, _ := newWorld(t, eventsOff)
	fromPods(t, c, record(1, pod("a", "1")), record(2, pod("b", "2")), record(3, pod("c", "3")))
	d, err := c.Reconcile(catalog.Set{
		Kind: catalog.SourceKubernetes, Records: []catalog.Record{record(3, pod("c", "3"))},
		Keep: func(w *catalog.Worker) bool { return w.Source.Pod == "a" },
	})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "difference", d, catalog.Difference{Removed: []uint64{2}, Unchanged: 1})
}

// TestSourceOfTheSame: between API and file a record that says the same is unchanged, but now of
// the source that said it last.
func TestSourceOfTheSame(t *testing.T) {
	c, world := newWorld(t, eventsOff)
	reconcile(t, c, record(1))
	world.took()
	d, err := c.Reconcile(catalog.Set{Kind: catalog.SourceFile, Records: []catalog.Record{record(1, inFile)}})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "difference", d, catalog.Difference{Unchanged: 1})
	equal(t, "kind", c.List(nil, nil)[0].Source.Kind, catalog.SourceFile)
	patch(t, c, 1, catalog.Patch{Taints: []string{"x"}})
	equal(t, "kind after a patch", c.List(nil, nil)[0].Source.Kind, catalog.SourceFile)
	if _, err := c.Put(record(1)); err != nil {
		t.Fatal(err)
	}
	equal(t, "kind after a registration", c.List(nil, nil)[0].Source.Kind, catalog.SourceKind(""))
	equal(t, "calls", len(world.took()), 0)
}

// TestSourcesProperty: after random sets of all sources and calls of the API, each worker is the
// one that a map says which knows the rules of decision W1 and nothing else.
func TestSourcesProperty(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		c, _ := newWorld(t, eventsOff)
		owner := map[uint64]string{} // kind and uid
		mine := func(id uint64, kind catalog.SourceKind) bool {
			was, ok := owner[id]
			return !ok || (was[:3] == "kub") == kind.Discovered()
		}
		for range 40 {
			id, kind := rnd.Uint64N(6), catalog.SourceKinds[rnd.IntN(3)]
			switch rnd.IntN(4) {
			case 0:
				_, err := c.Put(record(id))
				if (err == nil) != mine(id, catalog.SourceAPI) {
					t.Fatalf("seed %d: Put(%d): %v", seed, id, err)
				}
				if err == nil {
					owner[id] = "api"
				}
			case 1:
				_, known := owner[id]
				_, err := c.Delete(id)
				if (err == nil) != (known && mine(id, catalog.SourceAPI)) {
					t.Fatalf("seed %d: Delete(%d): %v", seed, id, err)
				}
				if err == nil {
					delete(owner, id)
				}
			default:
				set, refused := catalog.Set{Kind: kind}, false
				wanted := map[uint64]string{}
				for id := range uint64(6) {
					if rnd.IntN(2) == 0 {
						continue
					}
					r := record(id)
					r.Source.Kind = kind
					if kind.Discovered() {
						r.Source.UID = fmt.Sprint(rnd.IntN(2))
					}
					set.Records = append(set.Records, r)
					if !mine(id, kind) {
						refused = true
						continue
					}
					wanted[id] = string(kind) + r.Source.UID
				}
				_, err := c.Reconcile(set)
				if (err != nil) != (refused && !kind.Discovered()) {
					t.Fatalf("seed %d: Reconcile(%v): %v", seed, set.Records, err)
				}
				if err == nil {
					maps.DeleteFunc(owner, func(id uint64, _ string) bool { return mine(id, kind) })
					maps.Copy(owner, wanted)
				}
			}
			got := map[uint64]string{}
			for _, w := range c.List(nil, nil) {
				got[w.ID] = string(w.Source.KindOrAPI()) + w.Source.UID
				if w.Lifecycle != catalog.Schedulable {
					t.Fatalf("seed %d: worker %d is %s: %v", seed, w.ID, w.Lifecycle, w.Explain())
				}
			}
			equal(t, fmt.Sprintf("seed %d: workers %v", seed, slices.Sorted(maps.Keys(got))), got, owner)
		}
	}
}
