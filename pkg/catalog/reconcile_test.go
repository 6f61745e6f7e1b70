package catalog_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/length"
)

func reconcile(t *testing.T, c *catalog.Catalog, records ...catalog.Record) catalog.Difference {
	t.Helper()
	d, err := c.Reconcile(catalog.Set{Records: records})
	if err != nil {
		t.Fatalf("Reconcile: %v", err)
	}
	return d
}

// TestReconcile: what each set changes of the one before, and which of it reaches
// the Reconciler: new ranks come before old ones go.
func TestReconcile(t *testing.T) {
	c, world := newWorld(t, eventsOff)
	steps := []struct {
		name  string
		set   []catalog.Record
		want  catalog.Difference
		calls []string
	}{
		{
			"all are new",
			[]catalog.Record{record(2), record(1), record(3, in(m2))},
			catalog.Difference{Added: []uint64{1, 2, 3}},
			[]string{"nothing -> 1@m/t block=4 0:0", "nothing -> 2@m/t block=4 0:1", "nothing -> 3@m2/t block=4 0:0"},
		},
		{"the same again", []catalog.Record{record(1), record(2), record(3, in(m2))}, catalog.Difference{Unchanged: 3}, nil},
		{
			"no attachment changes",
			[]catalog.Record{record(1), record(2, func(r *catalog.Record) { r.Taints = []string{"y", "x", "y"} }), record(3, in(m2))},
			catalog.Difference{Changed: []uint64{2}, Unchanged: 2},
			nil,
		},
		{
			"taints in another order",
			[]catalog.Record{record(1), record(2, func(r *catalog.Record) { r.Taints = []string{"x", "y"} }), record(3, in(m2))},
			catalog.Difference{Unchanged: 3},
			nil,
		},
		{
			"one comes, one goes, one has another rank",
			[]catalog.Record{record(1), record(4), record(3, in(m2), start(1))},
			catalog.Difference{Added: []uint64{4}, Changed: []uint64{3}, Removed: []uint64{2}, Unchanged: 1},
			[]string{
				"nothing -> 4@m/t block=4 0:2",
				"3@m2/t block=4 0:0 -> 3@m2/t block=4 0:0 1:1",
				"3@m2/t block=4 0:0 1:1 -> 3@m2/t block=4 1:1",
				"2@m/t block=4 0:1 -> nothing",
			},
		},
		{
			"one moves: it leaves first",
			[]catalog.Record{record(1), record(4, in(m2)), record(3, in(m2), start(1))},
			catalog.Difference{Changed: []uint64{4}, Unchanged: 2},
			[]string{"4@m/t block=4 0:2 -> nothing", "nothing -> 4@m2/t block=4 0:0"},
		},
		{
			"a whole scope changes its block size, another has a new flag",
			[]catalog.Record{record(1, eagle), record(4, in(m2), blocks(8)), record(3, in(m2), blocks(8))},
			catalog.Difference{Changed: []uint64{1, 3, 4}},
			[]string{
				"1@m/t block=4 0:0 -> nothing", "3@m2/t block=4 1:1 -> nothing", "4@m2/t block=4 0:0 -> nothing",
				"nothing -> 1@m/t block=4 eagle 0:0", "nothing -> 3@m2/t block=8 0:0", "nothing -> 4@m2/t block=8 0:1",
			},
		},
		{
			"incomplete",
			[]catalog.Record{record(1, eagle), {ID: 5, Scope: m1}, record(3, in(m2), blocks(8)), record(4, in(m2), blocks(8), func(r *catalog.Record) { r.Endpoint = nil })},
			catalog.Difference{Added: []uint64{5}, Changed: []uint64{4}, Unchanged: 2},
			nil,
		},
		{
			"nobody", nil,
			catalog.Difference{Removed: []uint64{1, 3, 4, 5}},
			[]string{"1@m/t block=4 eagle 0:0 -> nothing", "3@m2/t block=8 0:0 -> nothing", "4@m2/t block=8 0:1 -> nothing"},
		},
	}
	for _, s := range steps {
		equal(t, s.name+": the difference", reconcile(t, c, s.set...), s.want)
		equal(t, s.name+": calls", world.took(), s.calls)
		world.checkSnapshots()
	}
	if n := len(c.List(nil, nil)); n > 0 {
		t.Errorf("%d workers are left", n)
	}
}

// TestReconcileFilter: with names only the scopes that have them are touched.
func TestReconcileFilter(t *testing.T) {
	other := catalog.Scope{Model: "m", Tenant: "u"}
	tests := map[string]struct {
		filter catalog.ScopeFilter
		set    []catalog.Record
		want   catalog.Difference
	}{
		"model":  {catalog.ScopeFilter{Model: new("m")}, []catalog.Record{record(1)}, catalog.Difference{Removed: []uint64{2}, Unchanged: 1}},
		"tenant": {catalog.ScopeFilter{Tenant: new("t")}, []catalog.Record{record(1)}, catalog.Difference{Removed: []uint64{3}, Unchanged: 1}},
		"both":   {catalog.ScopeFilter{Model: new("m"), Tenant: new("u")}, nil, catalog.Difference{Removed: []uint64{2}}},
		"nobody has them": {
			catalog.ScopeFilter{Model: new("new")},
			[]catalog.Record{record(9, in(catalog.Scope{Model: "new", Tenant: "t"}))},
			catalog.Difference{Added: []uint64{9}},
		},
		"within": {catalog.ScopeFilter{Model: new("m")}, []catalog.Record{record(1, in(other)), record(2, in(other))}, catalog.Difference{Changed: []uint64{1}, Unchanged: 1}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, world := newWorld(t, eventsOff)
			put(t, c, record(1))
			put(t, c, record(2, in(other)))
			put(t, c, record(3, in(m2)))
			if _, err := c.PutTracked(tracked(1, m2, 4, 0, 1)); err != nil {
				t.Fatal(err)
			}
			got, err := c.Reconcile(catalog.Set{Records: tt.set, Scope: tt.filter})
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "difference", got, tt.want)
			world.checkSnapshots()
			if _, ok := world.inForce[key{m2, 1}]; !ok {
				t.Error("the worker of the slot tracker is gone")
			}
		})
	}
}

// TestReconcileRefuses: one bad entry is named and changes nothing.
func TestReconcileRefuses(t *testing.T) {
	model := func(m string) catalog.ScopeFilter { return catalog.ScopeFilter{Model: &m} }
	tests := map[string]struct {
		set    []catalog.Record
		filter catalog.ScopeFilter
		want   string
		exists bool
	}{
		"invalid":          {[]catalog.Record{record(9), record(8, size(5000))}, model("m"), "workers[1]: data_parallel_size 5000 exceeds the maximum 4096", false},
		"twice":            {[]catalog.Record{record(9), record(8), record(9)}, model("m"), "workers[2]: worker_id 9 is given twice", false},
		"twice, elsewhere": {[]catalog.Record{record(9), record(9, in(m2))}, catalog.ScopeFilter{}, "workers[1]: worker_id 9 is given twice", false},
		"tracked":          {[]catalog.Record{record(9), record(7)}, model("m"), "workers[1]: worker 7 already registered for model=m tenant=t", true},
		"of another scope": {[]catalog.Record{record(2)}, model("m"), "workers[0]: worker 2 already registered for model=m2 tenant=t", true},
		"another model":    {[]catalog.Record{record(2, in(m2))}, model("m"), `workers[0]: model_name "m2" is not that of the set, "m"`, false},
		"another tenant":   {[]catalog.Record{record(1)}, catalog.ScopeFilter{Tenant: new("u")}, `workers[0]: tenant_id "t" is not that of the set, "u"`, false},
		"a long name": {
			[]catalog.Record{record(1, in(catalog.Scope{Model: strings.Repeat("x", 1025)}))},
			catalog.ScopeFilter{},
			"workers[0]: model_name has 1025 bytes, the maximum is 1024", false,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, world := newWorld(t, eventsOff)
			put(t, c, record(1))
			put(t, c, record(2, in(m2)))
			if _, err := c.PutTracked(tracked(7, m1, 4, 0, 1)); err != nil {
				t.Fatal(err)
			}
			world.took()
			before := world.print()
			d, err := c.Reconcile(catalog.Set{Records: tt.set, Scope: tt.filter})
			var entry *catalog.EntryError
			var exists *catalog.ExistsError
			if !errors.As(err, &entry) || err.Error() != tt.want || errors.As(err, &exists) != tt.exists {
				t.Fatalf("error is %v, want %s", err, tt.want)
			}
			equal(t, "difference", d, catalog.Difference{})
			equal(t, "state", world.print(), before)
			equal(t, "calls", world.took(), nil)
		})
	}
	c, _ := newWorld(t, eventsOff)
	c.Close()
	if _, err := c.Reconcile(catalog.Set{}); !errors.Is(err, catalog.ErrShuttingDown) {
		t.Errorf("after Close: %v", err)
	}
}

// TestReconcileFailure: a worker that cannot be attached is incomplete, the others
// are not held up, and the same set again tries it again.
func TestReconcileFailure(t *testing.T) {
	c, world := newWorld(t, events)
	put(t, c, record(9, in(m2), stream("tcp://*:1")))
	only := catalog.ScopeFilter{Model: new("m")}
	set := []catalog.Record{record(1, stream("tcp://*:1")), record(2, stream("tcp://h:2"))}
	run := func(want catalog.Difference, reason string) {
		t.Helper()
		d, err := c.Reconcile(catalog.Set{Records: set, Scope: only})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "difference", d, want)
		if got := strings.Join(c.List(new("m"), nil)[0].Explain(), ";"); got != reason {
			t.Errorf("reason is %q, want %q", got, reason)
		}
		if c.List(new("m"), nil)[1].Lifecycle != catalog.Schedulable {
			t.Error("the other worker is held up")
		}
	}
	run(catalog.Difference{Added: []uint64{1, 2}}, "reconciliation failed: bind tcp://*:1: address already in use")
	run(catalog.Difference{Unchanged: 2}, "reconciliation failed: bind tcp://*:1: address already in use")
	world.checkSnapshots()
	delete(world.inForce, key{m2, 9}) // the address becomes free without a call
	run(catalog.Difference{Unchanged: 2}, "")
}

// TestAddressIsHandedOn: a new worker can have the address of a worker that is no
// longer in the set.
func TestAddressIsHandedOn(t *testing.T) {
	c, world := newWorld(t, events)
	put(t, c, record(1, stream("tcp://*:1")))
	equal(t, "difference", reconcile(t, c, record(2, stream("tcp://*:1"))), catalog.Difference{Added: []uint64{2}, Removed: []uint64{1}})
	if c.CountSchedulable() != 1 || c.List(nil, nil)[0].ID != 2 {
		t.Errorf("workers are %s", world.print())
	}
}

// TestReconcileIsSequence: sets whose workers do not contradict each other lead to
// the same end as a Delete and a Put for each worker.
func TestReconcileIsSequence(t *testing.T) {
	histories := length.Of(40, 12, 4)
	rnd := rand.New(rand.NewPCG(3, 4))
	for history := range histories {
		at, one := newWorld(t, eventsOff)
		by, single := newWorld(t, eventsOff)
		was := map[uint64]catalog.Record{}
		for step := range 25 {
			size4 := map[catalog.Scope]uint32{m1: pick(rnd, uint32(4), 4, 8), m2: 4}
			set, now := []catalog.Record{}, map[uint64]catalog.Record{}
			for id := range uint64(8) {
				if rnd.IntN(4) == 0 {
					continue
				}
				r := record(id, in(pick(rnd, m1, m1, m1, m2)), start(rnd.Uint32N(2)), size(rnd.Uint32N(3)))
				if old, ok := was[id]; ok && rnd.IntN(2) == 0 {
					r = old
				}
				r.BlockSize = new(size4[r.Scope])
				set, now[id] = append(set, r), r
			}
			reconcile(t, at, set...)
			for id := range was {
				if _, stays := now[id]; !stays {
					remove(t, by, id)
				}
			}
			for _, r := range set {
				put(t, by, r)
			}
			was = now
			if got, want := one.print(), single.print(); got != want {
				t.Fatalf("history %d step %d\ngot:\n%s\nwant:\n%s", history, step, got, want)
			}
			one.checkSnapshots()
		}
	}
}

// TestReadersSeeWholeSets: two sets without a worker in common take turns. At
// every moment, in particular while the Reconciler works, readers see all of one
// and nothing of the other.
func TestReadersSeeWholeSets(t *testing.T) {
	const n = 32
	c, world := newWorld(t, eventsOff)
	var sets [2][]catalog.Record
	for i := range sets {
		for id := range uint64(n) {
			sets[i] = append(sets[i], record(id+uint64(i)*100, size(uint32(i)+1)))
		}
	}
	reconcile(t, c, sets[0]...)
	look := func() {
		list, snap := c.List(nil, nil), c.Snapshot(m1)
		if len(list) != n || len(snap.Workers) != n || len(snap.Ranks()) != len(snap.Known()) {
			t.Errorf("%d workers, %d in the snapshot", len(list), len(snap.Workers))
			return
		}
		for i, w := range list {
			if w.ID/100 != list[0].ID/100 || w.Lifecycle != catalog.Schedulable {
				t.Errorf("worker %d, %s, beside worker %d", w.ID, w.Lifecycle, list[0].ID)
			}
			if snap.Workers[i].ID/100 != snap.Workers[0].ID/100 {
				t.Errorf("worker %d beside worker %d in the snapshot", snap.Workers[i].ID, snap.Workers[0].ID)
			}
		}
		if want := n * int(1+snap.Workers[0].ID/100); len(snap.Ranks()) != want {
			t.Errorf("%d ranks, want %d", len(snap.Ranks()), want)
		}
	}
	world.during = look
	var done atomic.Bool
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for !done.Load() && !t.Failed() {
				look()
			}
		})
	}
	for turn := range 20 {
		reconcile(t, c, sets[(turn+1)%2]...)
	}
	done.Store(true)
	readers.Wait()
	world.checkSnapshots()
}

// TestParallelReconciles: sets of two models and single registrations at once. In
// the end each model has exactly the last set.
func TestParallelReconciles(t *testing.T) {
	c, world := newWorld(t, eventsOff)
	var wg sync.WaitGroup
	for i, sc := range []catalog.Scope{m1, m2} {
		wg.Go(func() {
			for turn := range uint32(40) {
				var set []catalog.Record
				for id := range uint64(8) {
					if (uint64(turn)+id)%3 > 0 {
						set = append(set, record(id+uint64(i)*100, in(sc), size(1+turn%3)))
					}
				}
				if _, err := c.Reconcile(catalog.Set{Records: set, Scope: catalog.ScopeFilter{Model: &sc.Model}}); err != nil {
					t.Error(err)
				}
				readAll(t, c)
			}
		})
	}
	wg.Go(func() {
		for i := range uint64(60) {
			_, _ = c.Put(record(200+i%3, in(m1)))
			_, _ = c.PutTracked(tracked(300, m2, 4, 0, 1))
			_ = c.DeleteTracked(m2, 300)
		}
	})
	wg.Wait()
	for _, sc := range []catalog.Scope{m1, m2} {
		if _, err := c.Reconcile(catalog.Set{Scope: catalog.ScopeFilter{Model: &sc.Model}}); err != nil {
			t.Error(err)
		}
	}
	world.checkSnapshots()
	if len(c.List(nil, nil)) > 0 || len(world.inForce) > 0 {
		t.Errorf("something is left:\n%s", world.print())
	}
}

// TestEveryFieldCounts: a record that differs in any one field is changed. Its source may be
// another one between the API and the file, and Drain is not the set's to say.
func TestEveryFieldCounts(t *testing.T) {
	typ := reflect.TypeFor[catalog.Record]()
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Name == "ID" || f.Name == "Source" || f.Name == "Drain" {
			continue
		}
		c, _ := newWorld(t, eventsOff)
		r := catalog.Record{ID: 1, Scope: m1}
		reconcile(t, c, r)
		fill(reflect.ValueOf(&r).Elem().Field(i))
		for _, f := range catalog.Fields() {
			if of, is := f.Of.(catalog.Pointer[string]); is && f.Words != nil && *of(&r) != nil {
				*of(&r) = &f.Words[len(f.Words)-1]
			}
		}
		if r.RankEndpoints != nil {
			r.RankEndpoints = map[uint32]string{0: "http://h"}
		}
		if r.Describe != nil {
			r.Describe, r.Endpoint = new(catalog.Describe), new("http://h")
		}
		if r.KVPeerEndpoint != nil {
			r.KVPeerEndpoint = new("h:1")
		}
		if r.LoadEndpoints != nil {
			r.LoadEndpoints = map[uint32]string{0: "tcp://h:1"}
		}
		if r.LoadMetrics != nil {
			r.LoadMetrics = &catalog.LoadMetrics{IntervalSeconds: new(1.5)}
		}
		want := catalog.Difference{Changed: []uint64{1}}
		if f.Name == "Registration" { // it is another worker
			want = catalog.Difference{Added: []uint64{1}, Removed: []uint64{1}}
		}
		equal(t, f.Name+" is set", reconcile(t, c, r), want)
		equal(t, f.Name+" stays", reconcile(t, c, r), catalog.Difference{Unchanged: 1})
	}
}

// fill sets a field to a value that no field has by itself.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.String:
		v.SetString("other")
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(3)
	case reflect.Float32:
		v.SetFloat(0.5)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		k := reflect.New(v.Type().Key()).Elem()
		fill(k)
		v.SetMapIndex(k, k.Convert(reflect.TypeFor[string]()))
	case reflect.Struct:
		fill(v.Field(0))
	default:
		panic("no value for " + v.Kind().String())
	}
}

// BenchmarkReconcile replaces half of the workers in every second step of the ids,
// so that they come and go everywhere in the lists. The time for each worker must
// not grow with their number.
func BenchmarkReconcile(b *testing.B) {
	for _, n := range []uint64{1_000, 10_000, 40_000} {
		var sets [2][]catalog.Record
		for id := range n {
			sets[0] = append(sets[0], record(2*id))
			sets[1] = append(sets[1], record(2*id+id%2))
		}
		b.Run(fmt.Sprintf("workers=%d", n), func(b *testing.B) {
			c := catalog.New(eventsOff, reconcilerFunc(func(_, _ *catalog.Attachment) error { return nil }))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := c.Reconcile(catalog.Set{Records: sets[i%2]}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/worker")
		})
	}
}

// BenchmarkUnchanged compares a set of 5,000 workers that are as they were, each read anew, as a source
// gives them that says the same again.
func BenchmarkUnchanged(b *testing.B) {
	read := func() (set []catalog.Record) {
		for id := range uint64(5_000) {
			r := record(id)
			r.KVEventsEndpoints = map[uint32]string{0: "tcp://10.0.0.1:5557"}
			r.StableRoutingID, r.TotalKVBlocks, r.MaxNumBatchedTokens = new("pod"), new(uint64(1000)), new(uint64(8192))
			r.Adapters, r.Taints = []string{"a", "b"}, []string{"t"}
			set = append(set, r)
		}
		return set
	}
	c := catalog.New(eventsOff, reconcilerFunc(func(_, _ *catalog.Attachment) error { return nil }))
	if _, err := c.Reconcile(catalog.Set{Records: read()}); err != nil {
		b.Fatal(err)
	}
	set := read()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Reconcile(catalog.Set{Records: set}); err != nil {
			b.Fatal(err)
		}
	}
}
