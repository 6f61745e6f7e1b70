package catalog_test

import (
	"errors"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

var everywhere = catalog.ScopeFilter{}

// TestDrainKeepsTheWorker: a draining worker stays attached as it is, known and bookable, and none of its
// ranks is a candidate. When it drains no more, nothing is rebuilt.
func TestDrainKeepsTheWorker(t *testing.T) {
	c, world := newWorld(t, eventsOff)
	reconcile(t, c, record(1, size(2)), record(2))
	world.took()
	check := func(step string, w *catalog.Worker, candidates, draining int, reasons ...string) {
		t.Helper()
		snap := c.Snapshot(m1)
		bookable := 0
		for _, e := range snap.Known() {
			if _, ok := snap.Bookable(e.Rank); ok {
				bookable++
			}
		}
		if len(snap.Ranks()) != candidates || snap.NumRanks != candidates || snap.NumDraining != draining || bookable != 3 || !snap.TakesBookings(1) {
			t.Errorf("%s: %d candidates, %d draining, %d bookable", step, len(snap.Ranks()), snap.NumDraining, bookable)
		}
		equal(t, step+": reasons", w.Explain(), reasons)
		if calls := world.took(); len(calls) > 0 {
			t.Errorf("%s: calls %v", step, calls)
		}
	}
	w, err := c.Drain(everywhere, 1, catalog.Drain{})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "lifecycle", w.Lifecycle, catalog.Draining)
	check("drained", w, 1, 2, "drained over the API")

	reconcile(t, c, record(1, size(2)), record(2))
	patch(t, c, 1, catalog.Patch{TotalKVBlocks: new(uint64(9))})
	w, err = c.Put(record(1, size(2), func(r *catalog.Record) { r.Draining = "its file says so" }))
	if err != nil {
		t.Fatal(err)
	}
	check("its record replaced", w, 1, 2, "its file says so", "drained over the API")

	if w, err = c.Undrain(everywhere, 1); err != nil {
		t.Fatal(err)
	}
	check("still by its source", w, 1, 2, "its file says so")
	if w, err = c.Put(record(1, size(2))); err != nil {
		t.Fatal(err)
	}
	check("drains no more", w, 3, 0)
	if w, err = c.Undrain(everywhere, 1); err != nil {
		t.Fatal(err)
	}
	check("again", w, 3, 0)
}

// TestDrainOfTheIncomplete: a worker that cannot be attached is incomplete, with all reasons,
// and drains as soon as it can be.
func TestDrainOfTheIncomplete(t *testing.T) {
	c, _ := newWorld(t, eventsOff)
	reconcile(t, c, record(1), record(2, blocks(8)), record(3, blocks(0)))
	for id, want := range map[uint64][]string{
		2: {"reconciliation failed: block_size mismatch for model=m tenant=t: existing=4 requested=8", "drained over the API"},
		3: {"block_size must be greater than 0", "drained over the API"},
	} {
		w, err := c.Drain(everywhere, id, catalog.Drain{})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "lifecycle", w.Lifecycle, catalog.Incomplete)
		equal(t, "reasons", w.Explain(), want)
	}
	patch(t, c, 3, catalog.Patch{BlockSize: new(uint32(4))})
	equal(t, "lifecycle", c.List(nil, nil)[2].Lifecycle, catalog.Draining)
}

// TestDrainDeadline: a repeated drain can bring the deadline forward, but not put it off.
func TestDrainDeadline(t *testing.T) {
	c, _ := newWorld(t, eventsOff)
	reconcile(t, c, record(1))
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	for _, tt := range []struct{ given, want time.Time }{
		{time.Time{}, time.Time{}}, {at(20), at(20)}, {at(30), at(20)}, {time.Time{}, at(20)}, {at(10), at(10)},
	} {
		drain := func(at time.Time) (d catalog.Drain) {
			if !at.IsZero() {
				d = catalog.Drain{Deadline: at, Within: time.Duration(at.Unix())}
			}
			return d
		}
		w, err := c.Drain(everywhere, 1, drain(tt.given))
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "drain", *w.Drain, drain(tt.want))
	}
	if _, err := c.Undrain(everywhere, 1); err != nil {
		t.Fatal(err)
	}
	w, err := c.Drain(everywhere, 1, catalog.Drain{Deadline: at(50)})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "deadline after Undrain", w.Drain.Deadline, at(50))
}

// TestDrainRefused: who may drain, and which drained workers may be removed.
func TestDrainRefused(t *testing.T) {
	c, _ := newWorld(t, eventsOff)
	reconcile(t, c, record(1), record(2, inFile))
	fromPods(t, c, record(3, pod("a", "u")))
	other := catalog.ScopeFilter{Model: new("other")}
	for _, id := range []uint64{1, 2, 3} {
		if _, err := c.Drain(other, id, catalog.Drain{}); !errors.Is(err, catalog.ErrNotFound) {
			t.Errorf("Drain(%d) in another scope: %v", id, err)
		}
		w, err := c.Drain(everywhere, id, catalog.Drain{})
		if err != nil {
			t.Fatal(err)
		}
		if c.RemoveDrained(&catalog.Worker{Record: w.Record}) {
			t.Errorf("worker %d was removed although it is another one", id)
		}
		if got := c.RemoveDrained(w); got != (id == 1) {
			t.Errorf("worker %d removed: %t", id, got)
		}
		if _, err := c.Undrain(other, id); !errors.Is(err, catalog.ErrNotFound) {
			t.Errorf("Undrain(%d) in another scope: %v", id, err)
		}
	}
	if _, err := c.Drain(everywhere, 1, catalog.Drain{}); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("Drain of a removed worker: %v", err)
	}
	c.Close()
	if _, err := c.Drain(everywhere, 2, catalog.Drain{}); !errors.Is(err, catalog.ErrShuttingDown) {
		t.Errorf("Drain after Close: %v", err)
	}
}
