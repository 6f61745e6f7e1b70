package catalog_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

func tracked(id uint64, sc catalog.Scope, block, start, size uint32) catalog.TrackedRecord {
	return catalog.TrackedRecord{ID: id, Scope: sc, BlockSize: block, StartRank: start, Size: size}
}

// TestTrackedErrors fixes what the slot tracker refuses, the texts, and which
// fault is named first.
func TestTrackedErrors(t *testing.T) {
	const top = 1<<32 - 1
	tests := map[string]struct {
		record catalog.TrackedRecord
		want   string
	}{
		"no block size goes first":        {tracked(1, m1, 0, 0, 0), "block_size must be greater than 0"},
		"no ranks":                        {tracked(1, m1, 4, 0, 0), "dp_size must be greater than 0"},
		"too many ranks, before overflow": {tracked(1, m1, 4, top, 4097), "dp_size 4097 exceeds the maximum 4096"},
		"the last rank is not usable":     {tracked(1, m1, 4, top, 1), "dp range overflows u32: start=4294967295 size=1"},
		"overflow":                        {tracked(1, m1, 4, top-1, 2), "dp range overflows u32: start=4294967294 size=2"},
		"the last but one is":             {tracked(3, m1, 4, top-1, 1), ""},
		"most ranks":                      {tracked(3, m1, 4, 0, 4096), ""},
		"invalid before mismatch":         {tracked(1, m1, 8, 0, 0), "dp_size must be greater than 0"},
		"mismatch before duplicate":       {tracked(1, m1, 8, 0, 1), "block_size mismatch for model=m tenant=t: existing=4, requested=8"},
		"mismatch with a selection's":     {tracked(2, m1, 8, 0, 1), "block_size mismatch for model=m tenant=t: existing=4, requested=8"},
		"the same again":                  {tracked(1, m1, 4, 0, 1), "worker 1 already registered for model=m tenant=t"},
		"other ranks":                     {tracked(1, m1, 4, 5, 1), "worker 1 already registered for model=m tenant=t"},
		"a selection worker's id":         {tracked(2, m1, 4, 0, 1), "worker 2 already registered for model=m tenant=t"},
		"an incomplete one's id":          {tracked(4, m1, 4, 0, 1), "worker 4 already registered for model=m tenant=t"},
		"the same id elsewhere":           {tracked(1, m2, 8, 0, 1), ""},
		"a selection's id elsewhere":      {tracked(2, m2, 8, 0, 1), ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, world := newWorld(t, eventsOff)
			if _, err := c.PutTracked(tracked(1, m1, 4, 0, 1)); err != nil {
				t.Fatal(err)
			}
			put(t, c, record(2))
			put(t, c, record(4, blocks(0)))
			before := world.print()
			_, err := c.PutTracked(tc.record)
			if got := fmt.Sprint(err); err != nil && got != tc.want || err == nil && tc.want != "" {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if err != nil && world.print() != before {
				t.Error("a refused call changed something")
			}
			world.checkSnapshots()
		})
	}
}

// TestTrackedWorker: it is listed as incomplete, its ranks are known and carry
// load, it is never schedulable, and the selection contract cannot touch it.
func TestTrackedWorker(t *testing.T) {
	c, world := newWorld(t, events)
	w, err := c.PutTracked(tracked(7, m1, 4, 3, 2))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "calls", world.took(), []string{"nothing -> 7@m/t block=4 tracked 3:0 4:1"})
	want := &catalog.Worker{
		Record:    catalog.Record{ID: 7, Scope: m1, BlockSize: new(uint32(4)), StartRank: new(uint32(3)), Size: new(uint32(2))},
		Lifecycle: catalog.Incomplete,
		Reasons:   []string{"registered through the slot tracker: its load is tracked, it is never selected"},
		Tracked:   true,
	}
	equal(t, "worker", w, want)
	equal(t, "list", c.List(nil, nil), []*catalog.Worker{want})
	snap := c.Snapshot(m1)
	if len(snap.Ranks()) != 0 || len(snap.Workers) != 0 || len(snap.Known()) != 2 || !snap.Known()[0].CarriesLoad || c.CountSchedulable() != 0 {
		t.Errorf("snapshot %+v, %d ready", snap, c.CountSchedulable())
	}

	var exists *catalog.ExistsError
	if _, err := c.Put(record(7)); !errors.As(err, &exists) {
		t.Errorf("Put: %v", err)
	}
	if _, err := c.Patch(7, catalog.Patch{Endpoint: new("http://x")}); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("Patch: %v", err)
	}
	if _, err := c.Delete(7); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("Delete: %v", err)
	}
	put(t, c, record(7, in(m2), stream("tcp://h:1"))) // the id is free in every other scope
	if _, err := c.Put(record(7, stream("tcp://h:1"))); !errors.As(err, &exists) {
		t.Errorf("a move into the scope: %v", err)
	}
	if err := c.DeleteTracked(m2, 7); !errors.Is(err, catalog.ErrNotFound) || err.Error() != "worker 7 not found for model=m2 tenant=t" {
		t.Errorf("DeleteTracked of a selection worker: %v", err)
	}
	c.Close()
	if _, err := c.PutTracked(tracked(8, m1, 4, 0, 1)); !errors.Is(err, catalog.ErrShuttingDown) {
		t.Errorf("after Close: %v", err)
	}
	if err := c.DeleteTracked(m1, 7); err != nil {
		t.Error(err)
	}
	if c.Snapshot(m1) != nil || len(c.List(&m1.Model, nil)) != 0 {
		t.Error("something is left")
	}
}

// TestTrackedAndSelected: the two contracts fix each other's block size. What
// waits for it is attached once the slot tracker's last worker is gone; is_eagle
// does not concern the tracker.
func TestTrackedAndSelected(t *testing.T) {
	c, world := newWorld(t, eventsOff)
	if _, err := c.PutTracked(tracked(1, m1, 8, 0, 1)); err != nil {
		t.Fatal(err)
	}
	w := put(t, c, record(2, eagle))
	equal(t, "reasons", w.Explain(), []string{"reconciliation failed: block_size mismatch for model=m tenant=t: existing=8 requested=4"})
	world.took()
	if err := c.DeleteTracked(m1, 1); err != nil {
		t.Fatal(err)
	}
	equal(t, "calls", world.took(), []string{"1@m/t block=8 tracked 0:0 -> nothing", "nothing -> 2@m/t block=4 eagle 0:0"})
	if _, err := c.PutTracked(tracked(1, m1, 4, 0, 1)); err != nil {
		t.Fatal(err)
	}
	if s := c.Snapshot(m1); !s.Eagle || len(s.Known()) != 2 || len(s.Ranks()) != 1 {
		t.Errorf("snapshot %+v", s)
	}
	w = patch(t, c, 2, catalog.Patch{IsEagle: new(false)}) // requests on their way were cut the other way
	equal(t, "reasons", w.Explain(), []string{"reconciliation failed: is_eagle mismatch for model=m tenant=t: existing=true requested=false"})
}

// TestReconcilerRefusesTracked: then nothing is registered.
func TestReconcilerRefusesTracked(t *testing.T) {
	no := errors.New("no")
	c := catalog.New(eventsOff, reconcilerFunc(func(_, _ *catalog.Attachment) error { return no }))
	if _, err := c.PutTracked(tracked(1, m1, 4, 0, 1)); !errors.Is(err, no) {
		t.Errorf("error %v", err)
	}
	if len(c.List(nil, nil)) != 0 || c.Snapshot(m1) != nil || c.DeleteTracked(m1, 1) == nil {
		t.Error("something is left")
	}
}
