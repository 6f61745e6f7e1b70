package scopes_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/reservations"
)

// world is a registry as the reconciler of a catalog.
type world struct {
	*scopes.Registry
	catalog *catalog.Catalog
	ledger  *reservations.Ledger
	told    []string // what the replica was told of new ranks
	loads   []string // calls of scopes.Loads
}

func newWorld(s scopes.Settings) *world {
	w := &world{ledger: reservations.New(1, time.Now, nil)}
	s.Ledger, s.Replica, s.Log = w.ledger, w, zerolog.Nop()
	s.Streams = kvevents.NewSubscribers(noWildcards{}, kvevents.DefaultConfig(1), new(kvevents.Counters))
	w.Registry = scopes.New(s)
	w.catalog = catalog.New(catalog.Settings{KVEvents: true}, w.Registry)
	w.Attach(w.catalog, w)
	return w
}

// Follow implements scopes.Loads. Nothing can be bound.
func (w *world) Follow(worker uint64, was, wanted []catalog.LoadStream) error {
	for _, st := range wanted {
		if strings.Contains(st.Endpoint, "*") {
			return errors.New("address already in use")
		}
	}
	w.loads = append(w.loads, fmt.Sprintf("%d follows %v instead of %v", worker, wanted, was))
	return nil
}

// Read implements scopes.Loads.
func (w *world) Read(worker uint64, pages []catalog.LoadPage) {
	w.loads = append(w.loads, fmt.Sprintf("%d has %d pages", worker, len(pages)))
}

// RanksAdded implements scopes.Replica.
func (w *world) RanksAdded() {
	size := uint32(0)
	snap := w.catalog.Snapshot(sc)
	if snap != nil {
		size = snap.BlockSize
	}
	w.told = append(w.told, fmt.Sprint(size, snap != nil, len(w.ledger.Loads(sc))))
}

// ReservationsDropped implements scopes.Replica.
func (w *world) ReservationsDropped(int) {}

// do makes a change of the catalog.
func (w *world) do(t *testing.T, step change) {
	t.Helper()
	var err error
	w.Change(func() { err = step(w.catalog) })
	if err != nil {
		t.Fatal(err)
	}
}

// change is a change of the catalog.
type change func(*catalog.Catalog) error

// TestReservedSlots: what is stored for a rank before its worker comes is seen by
// no one, is the worker's when it comes, and goes when it does not. From outside
// this takes another replica to recover from.
func TestReservedSlots(t *testing.T) {
	tests := map[string]struct {
		then   change
		blocks uint32 // of the prompt, on the rank's slot in the pool of the end
		pools  int
	}{
		"nothing happens":                            {func(*catalog.Catalog) error { return nil }, 3, 1},
		"its worker comes":                           {register(1, 4, "tcp://w:1"), 3, 1},
		"its worker comes with another size":         {register(1, 8, "tcp://w:1"), 0, 1},
		"another worker comes with another":          {register(2, 8, "tcp://w:1"), 0, 1},
		"another worker comes":                       {register(2, 4, "tcp://w:1"), 3, 1},
		"its worker's socket cannot be bound":        {register(1, 4, "tcp://*:1"), 3, 1},
		"it can be later":                            {inTurn(register(1, 4, "tcp://*:1"), register(1, 4, "tcp://w:1")), 3, 1},
		"its worker comes and goes":                  {inTurn(register(1, 4, "tcp://w:1"), remove(1)), 0, 0},
		"its incomplete worker goes":                 {inTurn(register(1, 0, "tcp://w:1"), remove(1)), 0, 0},
		"another worker comes and goes":              {inTurn(register(2, 4, "tcp://w:1"), remove(2)), 3, 1},
		"the slot tracker registers it":              {track(1, 4), 0, 1},
		"the slot tracker registers another":         {track(2, 4), 3, 1},
		"... and its worker comes with other hashes": {inTurn(track(2, 4), eagle), 3, 1},
		"no worker comes":                            {releaseSlots, 0, 0},
		"no one comes while another is there":        {inTurn(register(2, 4, "tcp://w:1"), releaseSlots), 0, 1},
		"its worker comes too late":                  {inTurn(releaseSlots, register(1, 4, "tcp://w:1")), 0, 1},
		"its worker comes with one rank more":        {inTurn(register(1, 4, "tcp://w:1"), grow), 3, 1},
		"its worker is attached without rank 0":      {shifted, 0, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(scopes.Settings{})
			slot, ok := w.catalog.ReserveSlot(sc, 4, rank)
			if !ok {
				t.Fatal("no slot")
			}
			p := w.Of(sc)
			p.Space.Store(&indexer.Store{Slot: slot, EngineHashes: []uint64{1, 2, 3}, Local: []uint64{11, 12, 13}})
			if len(w.Known()) != 0 || w.catalog.Snapshot(sc) != nil {
				t.Error("the scope of a reserved slot is visible")
			}
			w.do(t, tc.then)
			pools := w.All()
			if len(pools) != tc.pools {
				t.Fatalf("%d pools, want %d", len(pools), tc.pools)
			}
			if tc.pools == 0 {
				return
			}
			var o indexer.Overlap
			p = pools[sc]
			p.Space.Overlap([]uint64{11, 12, 13}, &o)
			if n, _, _ := o.At(slot); n != tc.blocks {
				t.Errorf("slot %d has %d blocks, want %d", slot, n, tc.blocks)
			}
			if again, ok := w.catalog.ReserveSlot(sc, p.BlockSize, rank); ok && tc.blocks > 0 && again != slot {
				t.Errorf("the slot is %d now, was %d", again, slot)
			}
		})
	}
}

func inTurn(steps ...change) change {
	return func(c *catalog.Catalog) error {
		var errs []error
		for _, step := range steps {
			errs = append(errs, step(c))
		}
		return errors.Join(errs...)
	}
}

// put registers a worker with one rank and the given options.
func put(id uint64, blockSize uint32, endpoint string, options ...func(*catalog.Record)) change {
	r := catalog.Record{ID: id, Scope: sc, Endpoint: new("http://w"), BlockSize: &blockSize, KVEventsEndpoint: &endpoint}
	for _, set := range options {
		set(&r)
	}
	return func(c *catalog.Catalog) error {
		_, err := c.Put(r)
		return err
	}
}

func register(id uint64, blockSize uint32, endpoint string) change {
	return put(id, blockSize, endpoint)
}

func grow(c *catalog.Catalog) error {
	_, err := c.PatchIn(catalog.ScopeFilter{}, 1, catalog.Patch{Size: new(uint32(2)), KVEventsEndpoints: map[uint32]string{0: "tcp://w:1", 1: "tcp://w:2"}})
	return err
}

var (
	shifted = put(1, 4, "tcp://w:1", func(r *catalog.Record) { r.StartRank = new(uint32(5)) })
	eagle   = put(1, 4, "tcp://w:1", func(r *catalog.Record) { r.IsEagle = new(true) })
)

func remove(id uint64) change {
	return func(c *catalog.Catalog) error {
		_, err := c.DeleteIn(catalog.ScopeFilter{}, id)
		return err
	}
}

func track(id uint64, blockSize uint32) change {
	return func(c *catalog.Catalog) error {
		_, err := c.PutTracked(catalog.TrackedRecord{ID: id, Scope: sc, BlockSize: blockSize, Size: 1})
		return err
	}
}

func releaseSlots(c *catalog.Catalog) error {
	c.ReleaseReservedSlots()
	return nil
}

// TestRanksAdded: waiting requests learn of ranks once they can be booked on,
// whichever contract or change brought them, and not for other changes.
func TestRanksAdded(t *testing.T) {
	w := newWorld(scopes.Settings{})
	for i, step := range []struct {
		do   change
		want string
	}{
		{register(1, 4, "tcp://w:1"), "4 true 1"},
		{register(1, 4, "tcp://w:1"), ""},
		{register(3, 0, "tcp://w:3"), ""},
		{track(2, 4), "4 true 2"},
		{register(4, 8, "tcp://w:4"), ""}, // cannot come in yet
		{remove(1), ""},
		{func(c *catalog.Catalog) error { return c.DeleteTracked(sc, 2) }, "8 true 1"},
	} {
		w.told = nil
		w.do(t, step.do)
		if got := fmt.Sprint(w.told); got != "["+step.want+"]" {
			t.Errorf("step %d: told %s, want %s", i, got, step.want)
		}
	}
}

// TestLoads: the streams and pages of loads change with the record. If an event stream or a load
// stream cannot be opened, the load streams are as before, and pages as they were.
func TestLoads(t *testing.T) {
	w := newWorld(scopes.Settings{})
	loads := func(stream string, pages *catalog.LoadMetrics) func(*catalog.Record) {
		return func(r *catalog.Record) {
			r.LoadEndpoints = map[uint32]string{0: stream}
			r.LoadMetrics = pages
		}
	}
	page := &catalog.LoadMetrics{URL: new("http://w:8000/metrics")}
	for _, step := range []struct {
		what string
		do   change
		want []string
	}{
		{"a worker comes", put(1, 4, "tcp://w:1", loads("tcp://w:2", page)), []string{"1 follows [{0 tcp://w:2}] instead of []", "1 has 1 pages"}},
		{"it has another stream", put(1, 4, "tcp://w:1", loads("tcp://w:3", nil)), []string{"1 follows [{0 tcp://w:3}] instead of [{0 tcp://w:2}]", "1 has 0 pages"}},
		{"no pages, as before", put(1, 4, "tcp://w:1", loads("tcp://w:4", nil)), []string{"1 follows [{0 tcp://w:4}] instead of [{0 tcp://w:3}]"}},
		{"its event stream cannot be bound", put(1, 4, "tcp://*:1", loads("tcp://w:5", page)), []string{
			"1 follows [{0 tcp://w:5}] instead of [{0 tcp://w:4}]", "1 follows [{0 tcp://w:4}] instead of [{0 tcp://w:5}]",
		}},
		{"its load stream cannot be bound", put(1, 4, "tcp://w:1", loads("tcp://*:5", page)), nil},
		{"it goes", remove(1), []string{"1 follows [] instead of [{0 tcp://w:4}]"}},
	} {
		w.loads = nil
		w.do(t, step.do)
		if !slices.Equal(w.loads, step.want) {
			t.Errorf("%s: %q, want %q", step.what, w.loads, step.want)
		}
	}
}

// noWildcards is a network in which nothing happens, and nothing can be bound.
type noWildcards struct{}

func (noWildcards) Subscribe(endpoint string, _ func([][]byte, time.Time) bool, _ func([][]byte, *memory.Buffer, time.Time) bool, _ func(bool)) (uint64, error) {
	if strings.Contains(endpoint, "*") {
		return 0, errors.New("address already in use")
	}
	return 1, nil
}

func (noWildcards) Request(string, [][]byte, func([][]byte, *memory.Buffer) bool) (uint64, error) {
	return 1, nil
}
func (noWildcards) Resume(uint64) {}
func (noWildcards) Close(uint64)  {}
