package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/select-service/select-service/internal/fleet/bus"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/natstest"
)

// onServer starts a replica over a real server.
func onServer(t *testing.T, server, name string, change ...func(*Config)) *testReplica {
	t.Helper()
	var r *testReplica
	conn, err := bus.Dial(bus.Config{
		Servers: []string{server}, Fleet: "f", Replica: name, Process: uint64(name[0]), URL: "http://" + name, Log: zerolog.Nop(),
		Follow: func(string) error { return nil }, Unfollow: func(string) {}, Announced: func(v uint64) { r.NoteVersion(v) },
	})
	if err != nil {
		t.Fatal(err)
	}
	config := Config{Bucket: conn.Bucket(), Fleet: conn, Replica: name}
	for _, f := range change {
		f(&config)
	}
	start(t, config, nil, func(joined *testReplica) { r = joined })
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- conn.Run(ctx) }()
	end := r.stop
	r.stop = sync.OnceFunc(func() {
		end()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// ranks are those of the workers of a large set.
func ranks(n uint32) func(*catalog.Record) {
	return func(r *catalog.Record) {
		r.Size = &n
		r.KVEventsEndpoints, r.ReplayEndpoints = make(map[uint32]string), make(map[uint32]string)
		for dp := range n {
			r.KVEventsEndpoints[dp] = fmt.Sprintf("tcp://10.0.%d.%d:%d", r.ID/256, r.ID%256, 5557+dp)
			r.ReplayEndpoints[dp] = fmt.Sprintf("tcp://10.0.%d.%d:%d", r.ID/256, r.ID%256, 6557+dp)
		}
	}
}

// TestServer proves on a real server that sets of 1,000 and 2,500 workers with 8 ranks are on every
// replica when they are acknowledged, or it is said which has not, and are never seen in part; that a replica joins with all of it;
// and that changes are refused while the server is away and made when it is back, of which nobody loses
// a worker.
func TestServer(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	server := natstest.Start(t)
	a, b, c := onServer(t, server.URL, "a"), onServer(t, server.URL, "b"), onServer(t, server.URL, "c")
	replicas := []*testReplica{a, b, c}
	awaits(t, "all are there", func() bool {
		return len(a.config.Fleet.Lagging(1, 0)) == 2 && len(b.config.Fleet.Lagging(1, 0)) == 2 && a.Settled() // before, the first change would wait
	})

	var part atomic.Pointer[string]
	watching, stop := context.WithCancel(t.Context())
	var watchers sync.WaitGroup
	for _, r := range replicas {
		watchers.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for watching.Err() == nil {
				if seen := r.local.List(nil, nil); len(seen) > 0 {
					for _, w := range seen {
						if w.Taints[0] != seen[0].Taints[0] || w.Taints[0] != fmt.Sprint(len(seen)) {
							part.Store(new(fmt.Sprintf("%s sees a worker of the set %s among %d of %s", r.name, w.Taints, len(seen), seen[0].Taints)))
						}
					}
				}
				<-tick.C
			}
		})
	}
	for _, n := range []uint64{1000, 2500, 10, 2499} {
		var records []catalog.Record
		for id := range n {
			records = append(records, worker(id, ranks(8), func(r *catalog.Record) { r.Taints = []string{fmt.Sprint(n)} }))
		}
		began := time.Now()
		behind, err := a.Edit(func(c *catalog.Catalog) error {
			_, err := c.Reconcile(catalog.Set{Kind: catalog.SourceAPI, Records: records})
			return err
		})
		if err != nil {
			t.Fatalf("%d workers: %v", n, err)
		}
		for _, r := range replicas { // on a busy machine one may be late
			if !slices.Contains(behind, r.name) && r.Status().Version != a.Status().Version {
				t.Errorf("%d workers are acknowledged as if %s had them", n, r.name)
			}
		}
		agree(t, replicas...)
		t.Logf("%d workers are everywhere after %v", n, time.Since(began))
		for _, r := range replicas {
			if got := len(r.local.List(nil, nil)); got != int(n) {
				t.Errorf("%s has %d workers of %d", r.name, got, n)
			}
		}
	}
	stop()
	watchers.Wait()
	if seen := part.Load(); seen != nil {
		t.Error(*seen)
	}
	began := time.Now()
	d := onServer(t, server.URL, "d")
	awaits(t, "a replica joins", func() bool { return d.Status().State == Current })
	t.Logf("joined after %v", time.Since(began))
	agree(t, a, d)

	var all sync.WaitGroup
	began = time.Now()
	for i := range 200 {
		all.Go(func() {
			_, err := replicas[i%3].Edit(func(c *catalog.Catalog) error {
				w := c.WorkerIn(catalog.ScopeFilter{}, uint64(i%4))
				_, err := c.Patch(w.ID, catalog.Patch{Taints: append([]string{fmt.Sprintf("%03d", i)}, w.Taints...)})
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	agree(t, append(replicas, d)...)
	for id := range uint64(4) {
		if n := len(d.local.WorkerIn(catalog.ScopeFilter{}, id).Taints); n != 51 {
			t.Errorf("worker %d has %d taints of 51", id, n)
		}
	}
	t.Logf("200 changes of 4 workers in %v", time.Since(began))

	server.Kill(t)
	if _, err := b.Edit(put(worker(5000))); !errors.Is(err, ErrAway) {
		t.Errorf("a change without a server: %v", err)
	}
	fromFile := make(chan error, 1)
	go func() {
		_, err := b.EditFile("1", put(worker(5001)))
		fromFile <- err
	}()
	awaits(t, "it is shown", func() bool { return b.Status().State == Stale })
	server.Restart(t)
	if err := <-fromFile; err != nil {
		t.Error(err)
	}
	agree(t, a, b, c, d)
	if got := d.lists(); strings.Contains(got, "http://w5000 ") || !strings.Contains(got, "http://w5001 ") || !strings.Contains(got, "http://w2498 ") {
		t.Error("workers were lost, or a refused one is there")
	}
	for _, r := range append(replicas, d) {
		r.stop()
	}
	server.Kill(t) // a goroutine waits for it
	goleak.VerifyNone(t, leaks)
}

// TestPoisonedServer proves on a real server that a head with a version at the end of the range is written again by who has
// the catalog, and one that was removed, with the next change.
func TestPoisonedServer(t *testing.T) {
	server := natstest.Start(t)
	a, b := onServer(t, server.URL, "a"), onServer(t, server.URL, "b")
	edit := func(r *testReplica, id uint64) {
		t.Helper()
		for range 5 { // each has some time
			_, err := r.Edit(put(worker(id)))
			if err == nil {
				return
			}
			if !errors.Is(err, ErrAway) {
				t.Fatal(err)
			}
		}
		t.Fatalf("worker %d cannot be registered: %+v", id, r.Status())
	}
	edit(a, 1)
	edit(b, 2)
	agree(t, a, b)
	bucket := a.config.Bucket
	value, _, err := bucket.Get(t.Context(), headKey)
	if err != nil {
		t.Fatal(err)
	}
	var h head
	if err := json.Unmarshal(value, &h); err != nil {
		t.Fatal(err)
	}
	h.Version = 1<<64 - 1
	if value, err = json.Marshal(h); err == nil {
		err = bucket.Put(t.Context(), headKey, value)
	}
	if err != nil {
		t.Fatal(err)
	}
	edit(b, 3)
	edit(a, 4)
	agree(t, a, b)
	if err := bucket.Remove(t.Context(), headKey); err != nil {
		t.Fatal(err)
	}
	edit(a, 5)
	late := onServer(t, server.URL, "c")
	agree(t, a, b, late)
	if got := late.lists(); strings.Count(got, "\n") != 5 || late.Status().Version > 20 {
		t.Errorf("version %d, workers\n%s", late.Status().Version, got)
	}
}
