package fleet

import (
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/fleet/bus"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/settings"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestShared proves that a change on any replica is on all of them when it is answered; that a
// refused one changes nothing; that sources are kept and discovered workers stay out; that a replica
// that joins has all.
func TestShared(t *testing.T) {
	m := newMemory()
	a, b := m.join(t, "a"), m.join(t, "b")
	pod := worker(9, func(r *catalog.Record) { r.Source = catalog.Source{Kind: catalog.SourceKubernetes, Pod: "p"} })
	if _, err := a.local.Reconcile(catalog.Set{Kind: catalog.SourceKubernetes, Records: []catalog.Record{pod}}); err != nil {
		t.Fatal(err)
	}
	edit := func(r *testReplica, change Change) {
		t.Helper()
		if behind, err := r.Edit(change); err != nil || behind != nil {
			t.Fatalf("behind %v, %v", behind, err)
		}
	}
	edit(a, put(worker(1)))
	if b.local.WorkerIn(catalog.ScopeFilter{}, 1) == nil {
		t.Error("b does not know what a has acknowledged")
	}
	edit(b, put(worker(2, func(r *catalog.Record) { r.Source.Kind = catalog.SourceFile })))
	edit(b, func(c *catalog.Catalog) error {
		_, err := c.Patch(1, catalog.Patch{Taints: []string{"x"}})
		return err
	})
	edit(a, func(c *catalog.Catalog) error {
		_, err := c.Drain(catalog.ScopeFilter{}, 2, catalog.Drain{})
		return err
	})
	w := b.local.WorkerIn(catalog.ScopeFilter{}, 2)
	if w.Lifecycle != catalog.Draining || w.Source.Kind != catalog.SourceFile {
		t.Errorf("b has %v of %v", w.Lifecycle, w.Source)
	}
	before := b.Status().Version
	var managed *catalog.ManagedError
	if _, err := a.Edit(put(worker(9))); !errors.As(err, &managed) {
		t.Errorf("a pod is registered over the API: %v", err)
	}
	if _, err := b.Edit(func(c *catalog.Catalog) error {
		_, err := c.Delete(7)
		return err
	}); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("an unknown worker is deleted: %v", err)
	}
	edit(a, put(worker(1, func(r *catalog.Record) { r.Taints = []string{"x"} }))) // as it is
	if v := b.Status().Version; v != before {
		t.Errorf("version %d after changes of nothing, %d before", v, before)
	}
	edit(b, func(c *catalog.Catalog) error {
		_, err := c.Undrain(catalog.ScopeFilter{}, 2)
		return err
	})
	if w := a.local.WorkerIn(catalog.ScopeFilter{}, 2); w.Lifecycle != catalog.Schedulable {
		t.Errorf("a has %v", w.Lifecycle)
	}
	c := m.join(t, "c")
	agree(t, b, c)
	if got := c.lists(); strings.Contains(got, "http://w9") || strings.Count(got, "\n") != 2 {
		t.Errorf("c has\n%s", got)
	}
	m.locked(func() { c.version = 0 })
	c.stop() // but it is still heard
	behind, err := a.Edit(put(worker(3)))
	if err != nil || !slices.Equal(behind, []string{"c"}) {
		t.Errorf("behind %v, %v", behind, err)
	}
}

// TestContradictions proves that replicas with different histories attach the same workers: those that
// agree with the one that was first; and that who changes its block size comes last.
func TestContradictions(t *testing.T) {
	m := newMemory()
	a, b := m.join(t, "a"), m.join(t, "b")
	r := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		id := r.Uint64N(6)
		of := []*testReplica{a, b}[r.IntN(2)]
		_, err := of.Edit(func(c *catalog.Catalog) error {
			if r.IntN(4) == 0 {
				_, _ = c.Delete(id) // perhaps there is none
				return nil
			}
			_, err := c.Put(worker(id, blockSize(16<<r.IntN(2))))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	all := func(records ...catalog.Record) Change {
		return func(c *catalog.Catalog) error {
			_, err := c.Reconcile(catalog.Set{Kind: catalog.SourceAPI, Records: records})
			return err
		}
	}
	for _, change := range []Change{all(), all(worker(1), worker(2), worker(3, blockSize(32))), func(c *catalog.Catalog) error {
		_, err := c.Patch(1, catalog.Patch{BlockSize: new(uint32(32))})
		return err
	}} {
		if _, err := a.Edit(change); err != nil {
			t.Fatal(err)
		}
		late := m.join(t, "late")
		agree(t, a, b, late)
		m.leave(late)
	}
	states := func() (s []string) {
		for _, w := range b.local.List(nil, nil) {
			s = append(s, w.Lifecycle)
		}
		return s
	}
	if got, want := states(), []string{catalog.Incomplete, catalog.Schedulable, catalog.Incomplete}; !slices.Equal(got, want) {
		t.Errorf("worker 1 changed its block size, 3 never fitted: %v, want %v\n%s", got, want, b.lists())
	}
	if _, err := b.Edit(func(c *catalog.Catalog) error {
		_, err := c.Delete(2)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got, want := states(), []string{catalog.Schedulable, catalog.Schedulable}; !slices.Equal(got, want) {
		t.Errorf("without the first one: %v, want %v\n%s", got, want, b.lists())
	}
}

// TestAway proves what a replica does without the bucket: it keeps its workers and refuses changes;
// the set of a file waits; a start has the cached workers, and is not awaited unless that is wished;
// and that what was lost with the servers is written again.
func TestAway(t *testing.T) { synctest.Test(t, testAway) }

func testAway(t *testing.T) {
	m := newMemory()
	cache := func(c *Config) { c.Cache = filepath.Join(t.TempDir(), "fleet") }
	file := ""
	a := m.join(t, "a", cache, func(c *Config) { file = c.Cache })
	if _, err := a.Edit(put(worker(1))); err != nil {
		t.Fatal(err)
	}
	m.locked(func() { m.away = true })
	if _, err := a.Edit(put(worker(2))); !errors.Is(err, ErrAway) {
		t.Errorf("a change without a bucket: %v", err)
	}
	if st := a.Status(); st.State != Stale || st.Fault == "" || st.Version != 1 || a.lists() == "" {
		t.Errorf("status %+v, workers\n%s", st, a.lists())
	}
	m.leave(a)
	same := func(c *Config) { c.Cache = file }
	b := m.join(t, "b", same)
	awaits(t, "the cached workers are there", func() bool { return b.Status().State == Cached })
	if got := b.lists(); !strings.Contains(got, "http://w1") {
		t.Errorf("b has %q", got)
	}
	c := m.join(t, "c", func(c *Config) { c.Required = true })
	b.begin, c.begin = time.Now().Add(-startTime), time.Now().Add(-startTime)
	if b.Awaited() || !c.Awaited() || !b.GivenUp() || c.GivenUp() {
		t.Error("who is awaited, and who given up, after startTime")
	}
	c.NoteVersion(1)
	fromFile := make(chan error, 1)
	go func() {
		_, err := c.EditFile("1", put(worker(5)))
		fromFile <- err
	}()
	m.locked(func() { m.away, m.values, m.revision = false, map[string][]byte{}, map[string]uint64{} })
	if err := <-fromFile; err != nil {
		t.Fatal(err)
	}
	awaits(t, "the bucket has both", func() bool { return strings.Count(c.lists(), "\n") == 2 })
	agree(t, b, c)
	if b.Awaited() || c.Awaited() || b.GivenUp() {
		t.Error("the bucket was read, but is awaited")
	}
}

// TestEmptied proves that a bucket that was lost gets what the replica with the newest version has,
// though one with an old copy starts meanwhile; that no change is made to less before; and that who says
// that it has more, and does not write it, is not waited for for ever.
func TestEmptied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		cache := func(c *Config) { c.Cache = filepath.Join(t.TempDir(), "fleet") }
		old := ""
		stale := m.join(t, "stale", cache, func(c *Config) { old = c.Cache })
		newest := m.join(t, "newest")
		edit := func(r *testReplica, id uint64) {
			t.Helper()
			for range 10 {
				if _, err := r.Edit(put(worker(id))); err == nil {
					return
				} else if !errors.Is(err, ErrAway) {
					t.Error(err)
				}
			}
			t.Errorf("%s cannot change the catalog", r.name)
		}
		edit(newest, 1)
		m.leave(stale)
		edit(newest, 2)
		m.locked(func() { m.values, m.revision = map[string][]byte{}, map[string]uint64{} })
		stale = m.join(t, "stale", func(c *Config) { c.Cache = old })
		unread := m.join(t, "unread")
		unread.NoteVersion(2)
		time.AfterFunc(time.Second, func() { stale.NoteVersion(2) }) // as often as replicas announce themselves
		for i, r := range []*testReplica{stale, unread, newest} {
			edit(r, uint64(3+i))
		}
		agree(t, stale, unread, newest)
		if got := newest.lists(); strings.Count(got, "\n") != 5 {
			t.Errorf("workers are lost:\n%s", got)
		}
		m.locked(func() { m.values, m.revision = map[string][]byte{}, map[string]uint64{} })
		liar := time.NewTicker(time.Second)
		defer liar.Stop()
		began := time.Now()
		for v := newest.Status().Version; newest.Status().Version == v; <-liar.C {
			newest.NoteVersion(1000)
			if time.Since(began) > time.Minute {
				t.Fatal("who says that it has more is waited for")
			}
		}
	})
}

// TestRefusedWrites proves that a change that the bucket refuses again and again, though nobody else has
// written, is tried now and then and given up in time, and leaves nothing in the bucket.
func TestRefusedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a := m.join(t, "a")
		if _, err := a.Edit(put(worker(1))); err != nil {
			t.Fatal(err)
		}
		tried := 0
		m.replace = func(bool) error {
			if tried++; tried > 1000 {
				return errNoAnswer
			}
			return bus.ErrRevision
		}
		began := time.Now()
		if _, err := a.Edit(put(worker(2))); !errors.Is(err, ErrAway) || time.Since(began) > editTime+time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if most := int(editTime/retryEvery) + 2; tried > most {
			t.Errorf("tried %d times in %v", tried, editTime)
		}
		m.locked(func() { m.replace = nil })
		time.Sleep(sweepEvery + 2*pollEvery)
		m.locked(func() {
			if n := len(m.values); n != 2 { // the head and the shard of worker 1
				t.Errorf("%d keys", n)
			}
		})
	})
}

// TestSweep proves that a shard that no head names is removed, but not one that a head on its way will name: a
// replica that stood still between its shard and the head, for however long, cannot write that head any more; and that
// a head's shards stay.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		const stray = shardPrefix + ".STRAY"
		m.locked(func() { m.set(stray, nil) })
		a := m.join(t, "a")
		stopped := false
		b := m.join(t, "b", func(c *Config) {
			c.Bucket.(*cuttable).delay = func(access, _ string) {
				if access == "replace" && !stopped {
					stopped = true
					time.Sleep(3 * time.Hour)
				}
			}
		})
		if _, err := a.Edit(put(worker(1))); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Edit(put(worker(2))); !stopped || !errors.Is(err, ErrAway) {
			t.Errorf("a change whose head comes after three hours: %v", err)
		}
		if _, err := b.Edit(put(worker(2))); err != nil {
			t.Error(err)
		}
		time.Sleep(sweepEvery + 2*pollEvery)
		agree(t, a, b, m.join(t, "late"))
		m.locked(func() {
			if _, is := m.values[stray]; is || len(m.values) != 3 { // the head and its shards
				t.Errorf("keys %v", slices.Collect(maps.Keys(m.values)))
			}
		})
	})
}

// TestSweptEarly proves that many changes at once do not leave more than maxReplaced shards that no head names.
func TestSweptEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a := m.join(t, "a")
		synctest.Wait()
		const left = 20 // until there are too many
		a.replaced = maxReplaced - left
		most := 0
		for i := range left + 10 {
			if _, err := a.Edit(put(worker(1, func(r *catalog.Record) { r.Taints = []string{fmt.Sprint(i)} }))); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			m.locked(func() { most = max(most, len(m.values)) })
		}
		m.locked(func() {
			if most < left || most > left+4 || len(m.values) > 12 {
				t.Errorf("%d keys at most, %d in the end", most, len(m.values))
			}
		})
	})
}

// TestHistories proves, with replicas of which each may stand still at any access of the bucket, for moments or for
// minutes, and with answers of the bucket that are lost, that the bucket always has what its head names; that no acknowledged change is lost or made twice; that
// all replicas agree in the end; and that nothing else is left in the bucket then.
func TestHistories(t *testing.T) {
	histories := uint64(20)
	if testing.Short() {
		histories = 6
	}
	for seed := range histories {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			answers := rand.New(rand.NewPCG(seed, 8))
			m.replace = func(bool) error { // before the head is written, and after that
				if answers.IntN(10) == 0 {
					return errNoAnswer
				}
				return nil
			}
			var replicas []*testReplica
			for i := range uint64(3) {
				one := make(chan struct{}, 1) // guards r: all of a process stands still
				r := rand.New(rand.NewPCG(seed, i))
				replicas = append(replicas, m.join(t, fmt.Sprint(i), func(c *Config) {
					c.Bucket.(*cuttable).delay = func(string, string) {
						one <- struct{}{}
						defer func() { <-one }()
						switch r.IntN(60) {
						case 0:
							time.Sleep(time.Duration(r.IntN(300)) * time.Second)
						case 1, 2, 3, 4, 5:
							time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
						}
					}
				}))
			}
			const edits, ids = 60, 12
			r := rand.New(rand.NewPCG(seed, 9))
			var all sync.WaitGroup
			acknowledged := make([]atomic.Bool, edits)
			for i := range edits {
				time.Sleep(time.Duration(r.IntN(20_000)) * time.Millisecond)
				all.Go(func() {
					_, err := replicas[i%3].Edit(func(c *catalog.Catalog) error {
						w := worker(uint64(i%ids), func(r *catalog.Record) { r.Taints = []string{fmt.Sprint(i)} })
						if was := c.WorkerIn(catalog.ScopeFilter{}, w.ID); was != nil {
							if slices.Contains(was.Taints, fmt.Sprint(i)) {
								t.Errorf("seed %d: change %d is made twice", seed, i)
							}
							w.Taints = append(w.Taints, was.Taints...)
						}
						_, err := c.Put(w)
						return err
					})
					acknowledged[i].Store(err == nil)
					if err != nil && !errors.Is(err, ErrAway) {
						t.Error(err)
					}
				})
			}
			all.Wait()
			time.Sleep(time.Hour)
			agree(t, replicas...)
			made := 0
			for i := range edits {
				if !acknowledged[i].Load() {
					continue
				}
				made++
				w := replicas[0].local.WorkerIn(catalog.ScopeFilter{}, uint64(i%ids))
				if w == nil || !slices.Contains(w.Taints, fmt.Sprint(i)) {
					t.Errorf("seed %d: change %d was acknowledged and is lost", seed, i)
				}
			}
			if made < edits/4 {
				t.Errorf("seed %d: %d of %d changes were made", seed, made, edits)
			}
			m.locked(func() {
				if len(m.values) > 1+ids {
					t.Errorf("seed %d: %d keys are left", seed, len(m.values))
				}
			})
		})
	}
}

// TestLateWrites proves that a change whose writes were not answered is made once, whichever of them
// arrives in the end.
func TestLateWrites(t *testing.T) {
	for late := range 3 {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			a := m.join(t, "a")
			if _, err := a.Edit(put(worker(1))); err != nil {
				t.Fatal(err)
			}
			var heads [][]byte
			m.lose = func(value []byte) bool {
				heads = append(heads, value)
				if len(heads) == 3 {
					m.set(headKey, heads[late])
				}
				return true
			}
			if _, err := a.Edit(func(c *catalog.Catalog) error {
				_, err := c.Delete(1)
				return err
			}); err != nil {
				t.Errorf("write %d of 3 has arrived: %v", late, err)
			}
			if a.lists() != "" {
				t.Error("the worker is still there")
			}
		})
	}
}

// TestCutOff proves that a replica that cannot reach the bucket acknowledges nothing from what it has of the catalog,
// whatever that says of the change, and that it answers what was only looked at, and what nobody could ever make.
// Source: docs/run/fleet.md, "NATS is away: changes are 503".
func TestCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		table := overload.NewTable(overload.Thresholds{}, func(string) bool { return true })
		shares := func(c *Config) {
			c.Thresholds, c.Policies = table, func([]byte) error { return nil }
		}
		a, b := m.join(t, "a", shares), m.join(t, "b", shares)
		edit := func(change Change) {
			t.Helper()
			if _, err := b.Edit(change); err != nil {
				t.Fatal(err)
			}
		}
		edit(put(worker(1)))
		synctest.Wait()
		a.config.Bucket.(*cuttable).cut.Store(true)
		edit(func(c *catalog.Catalog) error { _, err := c.Delete(1); return err })
		edit(put(worker(7)))
		before := a.lists()
		for name, change := range map[string]Change{
			"the same record": put(worker(1)),
			"the same set": func(c *catalog.Catalog) error {
				_, err := c.Reconcile(catalog.Set{Kind: catalog.SourceAPI, Records: []catalog.Record{worker(1)}})
				return err
			},
			"a removal of what is not known here": func(c *catalog.Catalog) error { _, err := c.Delete(7); return err },
			"a change of what is not known here": func(c *catalog.Catalog) error {
				_, err := c.Patch(7, catalog.Patch{Taints: []string{"x"}})
				return err
			},
			"the end of no drain": func(c *catalog.Catalog) error {
				_, err := c.Undrain(catalog.ScopeFilter{}, 1)
				return err
			},
		} {
			if _, err := a.Edit(change); !errors.Is(err, ErrAway) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for name, change := range map[string]func(*settings.Settings) error{
			"policies":   func(s *settings.Settings) error { s.Policies = nil; return nil },
			"thresholds": func(s *settings.Settings) error { _, err := s.Thresholds.Clear("m"); return err },
			"unknown":    func(*settings.Settings) error { return errors.New("no such threshold") },
		} {
			if _, err := a.EditSettings(change); !errors.Is(err, ErrAway) {
				t.Errorf("%s: %v", name, err)
			}
		}
		var invalid *catalog.InvalidError
		if _, err := a.Edit(put(worker(1, func(r *catalog.Record) { r.Role = new("neither") }))); !errors.As(err, &invalid) {
			t.Errorf("an invalid record: %v", err)
		}
		if err := a.Try(func(*catalog.Catalog) error { return nil }); err != nil {
			t.Errorf("a look: %v", err)
		}
		if now := a.lists(); now != before {
			t.Errorf("a has\n%s\nhad\n%s", now, before)
		}
		a.config.Bucket.(*cuttable).cut.Store(false)
		if _, err := a.Edit(func(c *catalog.Catalog) error { _, err := c.Delete(1); return err }); !errors.Is(err, catalog.ErrNotFound) {
			t.Errorf("a removal of what was removed: %v", err)
		}
		agree(t, a, b)
	})
}

// TestBehindAnswer proves that a change of nothing is not acknowledged by a server that reads an earlier head, as one
// that has lost the others does: it is tried against what the catalog is.
func TestBehindAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := m.join(t, "a"), m.join(t, "b")
		if _, err := b.Edit(put(worker(1))); err != nil {
			t.Fatal(err)
		}
		a.config.Bucket.(*cuttable).freeze()
		if _, err := b.Edit(func(c *catalog.Catalog) error { _, err := c.Delete(1); return err }); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Edit(put(worker(1))); !errors.Is(err, ErrAway) {
			t.Errorf("the record of a worker that was removed: %v", err)
		}
	})
}

// TestNothingChanged proves that changes of nothing have no version, and that other replicas do not apply their
// workers for them.
func TestNothingChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := m.join(t, "a"), m.join(t, "b")
		if _, err := a.Edit(put(worker(1))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * pollEvery)
		synctest.Wait()
		applied := 0
		b.applied = func() { applied++ }
		for range 3 {
			if _, err := a.Edit(put(worker(1))); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * pollEvery)
			synctest.Wait()
		}
		if a.Status().Version != 1 || b.Status().Version != 1 || applied > 0 {
			t.Errorf("versions %d and %d, applied %d times", a.Status().Version, b.Status().Version, applied)
		}
		if _, err := b.Edit(put(worker(2))); err != nil {
			t.Fatal(err)
		}
		agree(t, a, b)
	})
}

// TestRegisteredAgain proves that a worker that was removed and registered again is another one on every replica, also
// where both are one step; that a change, and the same record again, leave it the same; and that entries of
// releases that told no registrations are those of the worker that a replica has.
func TestRegisteredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a := m.join(t, "a")
		var lost []uint64 // attachments that b has lost
		cut := &cuttable{memory: m}
		b := start(t, Config{Bucket: cut, Fleet: member{m, "b"}, Replica: "b"}, catalog.New(catalog.Settings{}, losing{quiet{}, &lost}),
			func(r *testReplica) { m.locked(func() { m.replicas = append(m.replicas, r) }) })
		edit := func(change Change) {
			t.Helper()
			if _, err := a.Edit(change); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * pollEvery)
			synctest.Wait()
		}
		remove := func(c *catalog.Catalog) error { _, err := c.Delete(1); return err }
		edit(put(worker(1)))
		edit(put(worker(2)))
		edit(put(worker(1, func(r *catalog.Record) { r.Taints = []string{"x"} })))
		edit(put(worker(1)))
		if len(lost) > 0 {
			t.Fatalf("b has lost %v without a removal", lost)
		}
		cut.cut.Store(true)
		edit(remove)
		edit(put(worker(1)))
		cut.cut.Store(false)
		time.Sleep(2 * pollEvery)
		synctest.Wait()
		if !slices.Equal(lost, []uint64{1}) {
			t.Errorf("b has lost %v, want worker 1: it was removed", lost)
		}
		a.Submit(remove, nil) // at once with what comes next
		edit(put(worker(1)))
		if !slices.Equal(lost, []uint64{1, 1}) {
			t.Errorf("b has lost %v, want worker 1 again", lost)
		}
		agree(t, a, b)
		m.locked(func() { // as an earlier release writes it
			var h head
			if err := json.Unmarshal(m.values[headKey], &h); err != nil {
				t.Fatal(err)
			}
			n := shardOf(1)
			h.Shards[n], h.Version = newKey(), h.Version+1
			value, _ := zip([]byte(`[{"created":1,"record":{"ID":1,"Scope":{"Model":"m","Tenant":"t"},"Endpoint":"http://w1","BlockSize":16}}]`))
			m.set(h.Shards[n], value)
			text, _ := json.Marshal(h)
			m.set(headKey, text)
		})
		time.Sleep(2 * pollEvery)
		synctest.Wait()
		if !slices.Equal(lost, []uint64{1, 1}) {
			t.Errorf("b has lost %v by an entry without a registration", lost)
		}
		cut.cut.Store(true)
		edit(remove)
		edit(put(worker(1)))
		cut.cut.Store(false)
		time.Sleep(2 * pollEvery)
		synctest.Wait()
		if !slices.Equal(lost, []uint64{1, 1, 1}) {
			t.Errorf("b has lost %v, want worker 1 once more", lost)
		}
	})
}

// TestDescribedAgain proves that a described worker that is registered again has what its engine says then, on every
// replica, though each has asked the engine itself meanwhile; and that other changes leave what a replica knows.
// Source: the reason that a contradiction has, "register the worker again".
func TestDescribedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := m.join(t, "a"), m.join(t, "b")
		told := func(blockSize uint32) *catalog.Description {
			return &catalog.Description{BlockSize: blockSize, From: map[string]string{catalog.FieldBlockSize: "/v1"}}
		}
		register := func(told *catalog.Description, fault string) {
			t.Helper()
			if behind, err := a.Edit(put(worker(1, func(r *catalog.Record) {
				r.BlockSize, r.Describe = nil, &catalog.Describe{Told: told, Fault: fault}
			}))); err != nil || behind != nil {
				t.Fatal(behind, err)
			}
		}
		ask := func(told *catalog.Description) {
			for _, r := range []*testReplica{a, b} {
				r.local.Describe(r.local.WorkerIn(catalog.ScopeFilter{}, 1), told, "")
			}
		}
		has := func(when, lifecycle string, blockSize uint32) {
			t.Helper()
			for _, r := range []*testReplica{a, b} {
				w := r.local.WorkerIn(catalog.ScopeFilter{}, 1)
				if w.Lifecycle != lifecycle || w.BlockSize == nil || *w.BlockSize != blockSize {
					t.Errorf("%s %s has a %s worker: %v", when, r.name, w.Lifecycle, w.Explain())
				}
			}
		}
		register(told(16), "")
		has("at first", catalog.Schedulable, 16)
		ask(told(32))
		has("with another engine", catalog.Incomplete, 16)
		if _, err := b.Edit(func(c *catalog.Catalog) error {
			_, err := c.Patch(1, catalog.Patch{Taints: []string{"x"}})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		has("after a change", catalog.Incomplete, 16)
		register(told(32), "")
		has("registered again", catalog.Schedulable, 32)
		agree(t, a, b, m.join(t, "late"))

		register(nil, "away")
		ask(told(32))
		ask(told(64))
		has("with a third engine", catalog.Incomplete, 32)
		register(told(32), "") // the second one is back
		has("as it was", catalog.Schedulable, 32)
	})
}

// TestPoisonedHead proves that a head that no replica writes is survived: the workers stay, and the replica with the
// newest version writes it again; that changes are made then; that nothing is removed which is not the catalog's
// own; and that a head that is no JSON, which a later release may write, stays until an operator removes it.
func TestPoisonedHead(t *testing.T) {
	for name, tt := range map[string]struct {
		poison  func(*head)
		text    string
		old     string // a member of the head that earlier releases wrote
		removed bool   // the key is removed by hand
	}{
		"the last version":              {poison: func(h *head) { h.Version = 1<<64 - 1 }},
		"a leap":                        {poison: func(h *head) { h.Version += 1 << 40 }},
		"no version":                    {poison: func(h *head) { h.Version = 0 }},
		"a key of another":              {poison: func(h *head) { h.Version++; h.Shards[3] = "unrelated" }},
		"the last, then removed":        {poison: func(h *head) { h.Version = 1<<64 - 1 }, removed: true},
		"no JSON, then removed":         {text: "x", removed: true},
		"what earlier releases removed": {poison: func(h *head) { h.Version++ }, old: `"old":[{"key":">"},{"key":"unrelated"},{"key":"head"}],`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				a, b := m.join(t, "a"), m.join(t, "b")
				for id := range uint64(3) {
					if _, err := a.Edit(put(worker(id))); err != nil {
						t.Fatal(err)
					}
				}
				agree(t, a, b)
				kept := b.lists()
				m.locked(func() {
					m.set("unrelated", []byte("x"))
					var h head
					if err := json.Unmarshal(m.values[headKey], &h); err != nil {
						t.Fatal(err)
					}
					text := []byte(tt.text)
					if tt.poison != nil {
						tt.poison(&h)
						text, _ = json.Marshal(h)
						text = []byte("{" + tt.old + string(text[1:]))
					}
					m.set(headKey, text)
				})
				if tt.removed {
					time.Sleep(2 * pollEvery)
					if name == "no JSON, then removed" && a.Status().State != Stale {
						t.Errorf("it is %v", a.Status())
					}
					m.locked(func() { delete(m.values, headKey); delete(m.revision, headKey) })
				}
				for id := range uint64(2) {
					if _, err := []*testReplica{a, b}[id].Edit(put(worker(10 + id))); err != nil {
						t.Errorf("a change afterwards: %v", err)
					}
				}
				agree(t, a, b)
				if got := a.lists(); !strings.HasPrefix(got, kept) || strings.Count(got, "\n") != 5 {
					t.Errorf("the workers are\n%s", got)
				}
				if v := a.Status().Version; v > 10 {
					t.Errorf("version %d", v)
				}
				time.Sleep(2 * sweepEvery)
				if _, err := a.Edit(put(worker(1, func(r *catalog.Record) { r.Taints = []string{"x"} }))); err != nil {
					t.Error(err)
				}
				agree(t, a, b, m.join(t, "late"))
				m.locked(func() {
					if m.values["unrelated"] == nil || m.foreign {
						t.Error("what is not the catalog's was removed")
					}
				})
			})
		})
	}
}

// TestNewerVersions proves that a version that nobody has does not hide those that are told of after it, and
// that who changes nothing waits for nobody.
func TestNewerVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := m.join(t, "a"), m.join(t, "b")
		b.NoteVersion(1000)
		time.Sleep(time.Minute)
		synctest.Wait()
		began := time.Now()
		if behind, err := a.Edit(put(worker(1))); err != nil || behind != nil || time.Since(began) > time.Second {
			t.Errorf("after %v: behind %v, %v", time.Since(began), behind, err)
		}
		b.stop() // but it is still heard
		m.locked(func() { b.version = 0 })
		began = time.Now()
		if err := a.Try(func(*catalog.Catalog) error { return nil }); err != nil || time.Since(began) > time.Second {
			t.Errorf("who changes nothing waits %v for others: %v", time.Since(began), err)
		}
	})
}

// TestManyVersionsHeard proves that a member that tells of new versions all the time has others read the bucket fifty
// times a second at most, and that their changes are made meanwhile.
func TestManyVersionsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a := m.join(t, "a")
		if _, err := a.Edit(put(worker(1))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		bucket := a.config.Bucket.(*cuttable)
		before := bucket.gets.Load()
		for i := range uint64(1000) {
			a.NoteVersion(100 + i)
			time.Sleep(time.Millisecond)
		}
		if n := bucket.gets.Load() - before; n > 55 {
			t.Errorf("the bucket was read %d times in a second", n)
		}
		began := time.Now()
		if _, err := a.Edit(put(worker(2))); err != nil || time.Since(began) > 0 {
			t.Errorf("a change after %v: %v", time.Since(began), err)
		}
	})
}

// TestFileOfTheCopy proves that the set of a workers file that the copy of the catalog has is known to be
// there while the bucket cannot be read, and another one is not.
func TestFileOfTheCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		file := filepath.Join(t.TempDir(), "fleet")
		cache := func(c *Config) { c.Cache = file }
		a := m.join(t, "a", cache)
		if _, err := a.EditFile("1", put(worker(1))); err != nil {
			t.Fatal(err)
		}
		m.leave(a)
		m.locked(func() { m.away = true })
		b := m.join(t, "b", cache)
		if _, err := b.EditFile("1", put(worker(2))); err != nil {
			t.Error(err)
		}
		other := make(chan error, 1)
		go func() {
			_, err := b.EditFile("2", put(worker(3)))
			other <- err
		}()
		time.Sleep(time.Minute)
		select {
		case err := <-other:
			t.Errorf("another set than that of the copy: %v", err)
		default:
		}
		if got := b.lists(); strings.Count(got, "\n") != 1 {
			t.Errorf("b has\n%s", got)
		}
		m.locked(func() { m.away = false })
		if err := <-other; err != nil {
			t.Error(err)
		}
	})
}

// TestFileOnce proves that the set of a file is applied when it is another one, not at each start of a
// replica: what was changed since then stays.
func TestFileOnce(t *testing.T) {
	m := newMemory()
	a, b := m.join(t, "a"), m.join(t, "b")
	set := func(records ...catalog.Record) Change {
		return func(c *catalog.Catalog) error {
			_, err := c.Reconcile(catalog.Set{Kind: catalog.SourceFile, Records: records})
			return err
		}
	}
	for _, tt := range []struct {
		edit func() ([]string, error)
		want int
	}{
		{func() ([]string, error) { return a.EditFile("1", set(worker(1))) }, 1},
		{func() ([]string, error) { return b.Edit(put(worker(2))) }, 2},
		{func() ([]string, error) { return b.EditFile("1", set(worker(1))) }, 2},
		{func() ([]string, error) { return b.EditFile("2", set(worker(3))) }, 1},
	} {
		if _, err := tt.edit(); err != nil {
			t.Fatal(err)
		}
		agree(t, a, b)
		if got := strings.Count(a.lists(), "\n"); got != tt.want {
			t.Errorf("%d workers, want %d:\n%s", got, tt.want, a.lists())
		}
	}
}

// TestKept proves that a replica keeps in the bucket what it cannot have or read itself: workers beyond
// its limits, and members of records of a newer release; that it writes the shards of changed workers
// alone.
func TestKept(t *testing.T) {
	m := newMemory()
	a := m.join(t, "a")
	small := start(t, Config{Bucket: m, Fleet: member{m, "small"}, Replica: "small"},
		catalog.New(catalog.Settings{Limits: catalog.Limits{Workers: 2}}, quiet{}),
		func(r *testReplica) { m.locked(func() { m.replicas = append(m.replicas, r) }) })
	for id := range uint64(3) {
		if _, err := a.Edit(put(worker(id))); err != nil {
			t.Fatal(err)
		}
	}
	awaits(t, "a refused worker is shown", func() bool { return len(small.Status().Refused) == 1 })
	m.locked(func() { // as a newer release would write it
		var h head
		if err := json.Unmarshal(m.values[headKey], &h); err != nil {
			t.Fatal(err)
		}
		key := h.Shards[shardOf(0)]
		p, err := unpack(shardOf(0), key, m.values[key])
		if err != nil {
			t.Fatal(err)
		}
		p.of[0].Record = json.RawMessage(strings.Replace(string(p.of[0].Record), "{", `{"Later":[1],`, 1))
		value, err := p.pack()
		if err != nil {
			t.Fatal(err)
		}
		h.Shards[shardOf(0)], h.Version = newKey(), h.Version+1
		m.set(h.Shards[shardOf(0)], value)
		text, _ := json.Marshal(h)
		m.set(headKey, text)
	})
	a.NoteVersion(4)
	small.NoteVersion(4)
	awaits(t, "the newer one is read", func() bool { return small.Status().Version == 4 && a.Status().Version == 4 })
	puts := m.last
	if _, err := small.Edit(func(c *catalog.Catalog) error {
		_, err := c.Patch(1, catalog.Patch{Taints: []string{"x"}})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	m.locked(func() {
		if n := m.last - puts; n != 2 {
			t.Errorf("%d keys are written for one worker", n)
		}
	})
	agree(t, a)
	if got := strings.Count(a.lists(), "\n"); got != 3 {
		t.Errorf("%d workers are left:\n%s", got, a.lists())
	}
	m.locked(func() {
		var h head
		if err := json.Unmarshal(m.values[headKey], &h); err != nil {
			t.Fatal(err)
		}
		p, err := unpack(shardOf(0), h.Shards[shardOf(0)], m.values[h.Shards[shardOf(0)]])
		if err != nil {
			t.Fatal(err)
		}
		if record := string(p.of[0].Record); !strings.Contains(record, "Later") {
			t.Errorf("the record has lost a member: %s", record)
		}
	})
}

// TestHostileShards proves that a shard which no replica writes is refused, before it takes much memory,
// and that a replica keeps the workers that it has.
func TestHostileShards(t *testing.T) {
	id := func(n int) (id uint64) { // the first worker of shard n
		for shardOf(id) != n {
			id++
		}
		return id
	}
	one := fmt.Sprintf(`{"record":{"ID":%d}}`, id(0))
	var small strings.Builder // more workers than a shard has, in their order
	for n, next := 0, uint64(0); n <= maxShardWorkers; next++ {
		if shardOf(next) == 0 {
			n++
			fmt.Fprintf(&small, `,{"record":{"ID":%d}}`, next)
		}
	}
	hostile := make(map[string][]byte)
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"long":     {"[" + one + strings.Repeat(" ", maxShard) + "]", nil},
		"many":     {"[" + small.String()[1:] + "]", errLongShard},
		"lists":    {strings.Repeat("[", 1<<20), nil},
		"null":     {"[null]", nil},
		"no list":  {"7", nil},
		"nothing":  {"", nil},
		"cut off":  {"[" + one, nil},
		"twice":    {"[" + one + "," + one + "]", errWrongShard},
		"of other": {fmt.Sprintf(`[{"record":{"ID":%d}}]`, id(1)), errWrongShard},
	} {
		value, err := zip([]byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		hostile[name] = value
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err = unpack(0, name, value)
		runtime.ReadMemStats(&after)
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 8*maxShard {
			t.Errorf("%s: %d MiB were allocated for %d KiB", name, n>>20, len(value)>>10)
		}
	}
	m := newMemory()
	r := m.join(t, "a")
	if _, err := r.Edit(put(worker(id(0)))); err != nil {
		t.Fatal(err)
	}
	kept := r.lists()
	var bad head
	m.locked(func() {
		if err := json.Unmarshal(m.values[headKey], &bad); err != nil {
			t.Fatal(err)
		}
		bad.Version++
		bad.Shards[0] = newKey()
		text, _ := json.Marshal(bad)
		m.set(bad.Shards[0], hostile["long"])
		m.set(headKey, text)
	})
	r.NoteVersion(bad.Version)
	awaits(t, "the fault is shown", func() bool { return r.Status().State == Stale && strings.Contains(r.Status().Fault, bad.Shards[0]) })
	if got := r.lists(); got != kept {
		t.Errorf("the workers are\n%s", got)
	}
	c, h := New(Config{Bucket: m}), new(head) // many shards, none of which is too long
	for n := range maxCatalog/maxShard + 1 {
		h.Shards[n] = fmt.Sprint("part.1.", n)
		c.now.shards[n] = &shard{key: h.Shards[n], size: maxShard}
	}
	h.Shards[numShards-1] = "part.1.last"
	if _, err := c.fetchShards(t.Context(), h, 1); !errors.Is(err, errLarge) {
		t.Errorf("a catalog of 272 MiB: %v", err)
	}
	long := &shard{of: slices.Repeat([]*entry{{Record: json.RawMessage("{}")}}, maxShardWorkers+1)}
	if _, err := long.pack(); !errors.Is(err, errLongShard) {
		t.Errorf("a shard that nobody could read is written: %v", err)
	}
}

// TestUnmet proves that a change on a replica that does not know yet who else is there is acknowledged only
// when it does.
func TestUnmet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		first := m.join(t, "first")
		if _, err := first.Edit(put(worker(1))); err != nil {
			t.Fatal(err)
		}
		m.leave(first)
		m.unmet = true
		a := m.join(t, "a")
		began := time.Now()
		time.AfterFunc(time.Second, func() { m.locked(func() { m.unmet = false }) })
		if behind, err := a.Edit(put(worker(1))); err != nil || behind != nil {
			t.Errorf("behind %v, %v", behind, err)
		}
		if took := time.Since(began); took < time.Second || took > time.Second+2*lookEvery {
			t.Errorf("acknowledged after %v", took)
		}
	})
}

// TestBehindCopy proves that a start keeps a copy that is newer than what the bucket says for a while, if it was
// made from that: a server that is behind may have answered. If it was not, the bucket counts at once.
func TestBehindCopy(t *testing.T) {
	for name, ids := range map[string][]string{"earlier": nil, "another": {"of another fleet"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				file := filepath.Join(t.TempDir(), "fleet")
				cache := func(c *Config) { c.Cache = file }
				a := m.join(t, "a", cache)
				var first []byte
				for id := range uint64(2) {
					if _, err := a.Edit(put(worker(1 + id))); err != nil {
						t.Fatal(err)
					}
					m.locked(func() {
						if first == nil {
							first = m.values[headKey]
						}
					})
				}
				m.leave(a)
				var h head
				if err := json.Unmarshal(first, &h); err != nil {
					t.Fatal(err)
				}
				if ids != nil {
					h.IDs = ids
				}
				text, _ := json.Marshal(h)
				m.locked(func() { m.set(headKey, text) })
				late := m.join(t, "late", cache)
				time.Sleep(olderTime / 4)
				if ids == nil {
					var before, after uint64
					m.locked(func() { before = m.last })
					_, err := late.Edit(put(worker(3)))
					m.locked(func() { after = m.last })
					if !errors.Is(err, errOlder) || after != before {
						t.Errorf("a change meanwhile: %v, %d writes", err, after-before)
					}
				}
				time.Sleep(olderTime / 8)
				if kept := late.Status().Version == 2 && strings.Contains(late.lists(), "http://w2 "); kept != (ids == nil) {
					t.Errorf("version %d, workers\n%s", late.Status().Version, late.lists())
				}
				time.Sleep(olderTime)
				if late.Status().Version != 1 || strings.Contains(late.lists(), "http://w2 ") {
					t.Errorf("in the end version %d, workers\n%s", late.Status().Version, late.lists())
				}
			})
		})
	}
}

// TestTooLong proves that a change for which the bucket has no room is refused as such, and that those that
// were to be written with it are made.
func TestTooLong(t *testing.T) {
	m := newMemory()
	writing, written := make(chan struct{}, 16), make(chan struct{})
	m.most, m.replace = 4096, func(bool) error {
		writing <- struct{}{}
		<-written
		return nil
	}
	a := m.join(t, "a")
	taints := make([]string, 400)
	for i := range taints {
		taints[i] = crand.Text()
	}
	var edits sync.WaitGroup
	edit := func(r catalog.Record, refused bool) {
		edits.Go(func() {
			_, err := a.Edit(put(r))
			if _, is := errors.AsType[*catalog.LimitError](err); is != refused || (err != nil) != refused {
				t.Errorf("worker %d: %v", r.ID, err)
			}
		})
	}
	edit(worker(1), false)
	<-writing
	edit(worker(2, func(r *catalog.Record) { r.Taints = taints }), true)
	edit(worker(3), false)
	awaits(t, "others wait", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.edits) == 2
	})
	close(written)
	edits.Wait()
	if got := a.lists(); strings.Count(got, "\n") != 2 || strings.Contains(got, "http://w2 ") {
		t.Errorf("workers\n%s", got)
	}
}

// TestEqualThresholds proves that thresholds are on all replicas though they are those of the options of the replica
// at which they were set, or cleared. Source: docs/run/fleet.md, "a change on any replica is on all".
func TestEqualThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		tables := map[string]*overload.Table{}
		shares := func(name string, option *float64) func(*Config) {
			table := overload.NewTable(overload.Thresholds{DecodeBlocks: option}, func(string) bool { return true })
			tables[name] = table
			return func(c *Config) {
				c.Thresholds, c.Policies = table, func([]byte) error { return nil }
			}
		}
		high, none, low := m.join(t, "high", shares("high", new(0.8))), m.join(t, "none", shares("none", nil)), m.join(t, "low", shares("low", new(0.5)))
		for _, tt := range []struct {
			at  *testReplica
			set *float64 // nil: cleared
		}{{high, new(0.8)}, {high, new(0.7)}, {high, new(0.8)}, {none, new(0.7)}, {none, nil}, {low, new(0.5)}, {none, nil}, {none, nil}} {
			_, err := tt.at.EditSettings(func(s *settings.Settings) (err error) {
				if tt.set == nil {
					_, err = s.Thresholds.Clear("m")
				} else {
					_, err = s.Thresholds.Set("m", overload.Thresholds{DecodeBlocks: tt.set})
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			agree(t, high, none, low)
			for name, table := range tables {
				if got := table.Of("m"); !got.Equal(&overload.Thresholds{DecodeBlocks: tt.set}) {
					t.Errorf("%s has %v, want %v", name, got.DecodeBlocks, tt.set)
				}
			}
		}
	})
}

// TestSettings proves that thresholds and policies are those of all replicas that share them, also of one
// that starts later, without NATS; that another replica writes them as it has read them; that one that
// cannot have the policies says so, keeps its own, and is behind, as is one that shares none; and that
// values count, not versions.
func TestSettings(t *testing.T) {
	m := newMemory()
	tables := map[string]*overload.Table{}
	var mu sync.Mutex
	sections := map[string]string{} // guarded by mu
	shares := func(name string) func(*Config) {
		table := overload.NewTable(overload.Thresholds{PrefillTokens: new(uint64(7))}, func(string) bool { return true })
		tables[name] = table
		return func(c *Config) {
			c.Thresholds = table
			c.Policies = func(section []byte) error {
				mu.Lock()
				defer mu.Unlock()
				if name == "old" && section != nil {
					return errors.New("unknown type")
				}
				sections[name] = string(section)
				return nil
			}
		}
	}
	file := filepath.Join(t.TempDir(), "fleet")
	cache := func(c *Config) { c.Cache = file }
	a, b := m.join(t, "a", shares("a"), cache), m.join(t, "b", shares("b"))
	edit := func(r *testReplica, change func(*settings.Settings) error) {
		t.Helper()
		if behind, err := r.EditSettings(change); err != nil || behind != nil {
			t.Fatalf("behind %v, %v", behind, err)
		}
	}
	set := func(r *testReplica, model string, blocks float64) {
		t.Helper()
		edit(r, func(s *settings.Settings) error {
			_, err := s.Thresholds.Set(model, overload.Thresholds{DecodeBlocks: &blocks})
			return err
		})
	}
	section := `{"aggregated":"p"}`
	choose := func(r *testReplica, section []byte) {
		t.Helper()
		edit(r, func(s *settings.Settings) error {
			s.Policies = section
			return nil
		})
	}
	set(a, "m", 0.5)
	choose(b, []byte(section))
	set(b, "n", 0.25)
	choose(a, []byte(section)) // as it is
	own, old := m.join(t, "own"), m.join(t, "old", shares("old"))
	if _, err := own.Edit(put(worker(1))); err != nil {
		t.Fatal(err)
	}
	agree(t, a, b, own, old)
	section = `{"aggregated":"q"}`
	behind, err := b.EditSettings(func(s *settings.Settings) error {
		s.Policies = []byte(section)
		return nil
	})
	if err != nil || !slices.Equal(behind, []string{"own", "old"}) {
		t.Errorf("behind %v, %v", behind, err)
	}
	if st := old.Status(); len(st.Refused) != 1 || !strings.Contains(st.Refused[0], "unknown type") || st.Settings != 0 {
		t.Errorf("%v is refused, settings are of version %d", st.Refused, st.Settings)
	}
	m.leave(a)
	m.leave(own)
	m.locked(func() { m.away = true })
	late := m.join(t, "late", shares("late"), cache)
	awaits(t, "the copy is used", func() bool { return late.Status().State == Cached })
	for _, name := range []string{"a", "b", "late"} {
		for model, want := range map[string]float64{"m": 0.5, "n": 0.25} {
			if got := tables[name].Of(model); got.DecodeBlocks == nil || *got.DecodeBlocks != want || *got.PrefillTokens != 7 {
				t.Errorf("%s has %v for %s", name, got, model)
			}
		}
		mu.Lock()
		if sections[name] != section {
			t.Errorf("%s chooses by %q", name, sections[name])
		}
		mu.Unlock()
	}
	if v := late.Status().Settings; v != 5 {
		t.Errorf("the settings are of version %d, want 5", v)
	}
	m.locked(func() { m.away = false })
	awaits(t, "the bucket is read", func() bool { return late.Status().State == Current })
	choose(late, nil)
	agree(t, b, late)
	m.locked(func() {
		var h head
		if err := json.Unmarshal(m.values[headKey], &h); err != nil {
			t.Fatal(err)
		}
		h.Settings.Thresholds["m"].DecodeBlocks = new(0.75)
		text, _ := json.Marshal(h)
		m.set(headKey, text)
	})
	b.Look()
	awaits(t, "thresholds of the same version are read", func() bool { return *tables["b"].Of("m").DecodeBlocks == 0.75 })
	mu.Lock()
	defer mu.Unlock()
	for _, name := range []string{"b", "late"} {
		if sections[name] != "" {
			t.Errorf("%s still chooses by %q", name, sections[name])
		}
	}
	if st := old.Status(); len(st.Refused) != 0 {
		t.Errorf("%v is still refused", st.Refused)
	}
}
