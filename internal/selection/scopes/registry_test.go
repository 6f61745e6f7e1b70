package scopes_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/selection/approximate"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/recovery"
	"github.com/select-service/select-service/pkg/selector"
)

var (
	sc   = catalog.Scope{Model: "m", Tenant: "t"}
	rank = catalog.Rank{Worker: 1}
)

// TestLifetime: a scope has one state from its first worker or reserved slot to its last. It is known,
// also afterwards, if a worker was complete.
func TestLifetime(t *testing.T) {
	w := newWorld(scopes.Settings{})
	w.do(t, register(1, 4, "tcp://*:1"))
	if len(w.Known()) != 0 {
		t.Error("the scope of a worker that could not be attached is known")
	}
	w.do(t, register(1, 4, "tcp://w:1"))
	first := w.Of(sc)
	w.do(t, register(2, 4, "tcp://w:2"))
	if first == nil || w.Of(sc) != first || len(w.All()) != 1 {
		t.Fatal("two workers of a scope have one state")
	}
	w.catalog.ReserveSlot(sc, 4, catalog.Rank{Worker: 3})
	w.do(t, inTurn(remove(1), remove(2)))
	if w.Of(sc) != first || first.Gone() {
		t.Error("the state ended with a slot reserved")
	}
	w.do(t, releaseSlots)
	if w.Of(sc) != nil || !first.Gone() {
		t.Error("the state outlived its last rank")
	}
	if known := w.Known(); len(known) != 1 || known[0] != sc {
		t.Errorf("known scopes: %v", known)
	}
	if w.do(t, register(1, 4, "tcp://w:1")); w.Of(sc) == first {
		t.Error("a state that has ended came back")
	}
}

// TestRetained: while dumps are merged a scope that comes back has its index, if
// its blocks have the same size; after that a new one.
func TestRetained(t *testing.T) {
	for _, tt := range []struct {
		name      string
		blockSize uint32
		ended     bool
		want      bool
	}{
		{"merging", 4, false, true},
		{"blocks of another size", 8, false, false},
		{"no longer merging", 4, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(scopes.Settings{Merging: true})
			w.do(t, register(1, 4, "tcp://w:1"))
			index := w.Of(sc).Space
			if tt.ended {
				w.EndMerging()
			}
			w.do(t, inTurn(remove(1), register(1, tt.blockSize, "tcp://w:1")))
			if got := w.Of(sc).Space == index; got != tt.want {
				t.Errorf("the same index: %t, want %t", got, tt.want)
			}
		})
	}
}

// TestReplayReplacesDump: a replay from an engine's first message replaces what a dump has
// brought for the rank, whoever else follows the rank's events.
func TestReplayReplacesDump(t *testing.T) {
	for name, settings := range map[string]scopes.Settings{
		"events alone":        {},
		"watched":             {WatchStored: true},
		"beside predictions":  {KVEvents: true},
		"watched beside them": {KVEvents: true, WatchStored: true},
	} {
		t.Run(name, func(t *testing.T) {
			settings.Merging = true
			if settings.KVEvents {
				settings.Approximate = approximate.New(time.Minute, 1<<10, nil, time.Now)
			}
			w := newWorld(settings)
			w.do(t, register(1, 4, "tcp://w:1"))
			state := w.Of(sc)
			dumped := &indexer.Store{Slot: 0, EngineHashes: []uint64{1}, Local: []uint64{11}}
			if _, res := state.Gate.Merge(rank, dumped); res != recovery.Applied || state.Space.Empty(0) {
				t.Fatalf("the dump was not merged: %d", res)
			}
			applier := kvevents.IndexApplier{Index: state.Events(), Slot: 0}
			applier.Replayed()
			if !state.Space.Empty(0) {
				t.Error("the rank kept the blocks of the dump")
			}
			if _, res := state.Gate.Merge(rank, dumped); res != recovery.Superseded {
				t.Errorf("the rest of the dump: %d, want %d", res, recovery.Superseded)
			}
		})
	}
}

// TestPastScopes (decision D18): of the scopes without workers the last 1,024 stay known; one that
// comes back counts again.
func TestPastScopes(t *testing.T) {
	w := newWorld(scopes.Settings{})
	visit := func(i int) {
		model := func(r *catalog.Record) { r.Scope.Model = fmt.Sprint(i) }
		w.do(t, inTurn(put(1, 4, "tcp://w:1", model), remove(1)))
	}
	for i := range 1030 {
		visit(i)
	}
	visit(6) // the oldest that is known
	visit(1030)
	known := w.Known()
	if len(known) != 1024 || known[0].Model != "8" || known[1022].Model != "6" {
		t.Errorf("%d known, the oldest is %v, the last but one %v", len(known), known[0], known[len(known)-2])
	}
}

// TestUnavailable: the error says whether no worker is there at all, or the
// service is shutting down.
func TestUnavailable(t *testing.T) {
	r := newWorld(scopes.Settings{})
	r.catalog.ReserveSlot(sc, 4, rank)
	_, _, err := r.Schedulable(sc)
	if contract.KindOf(err) != contract.Unavailable || err.Error() != "no schedulable workers are available" {
		t.Errorf("without workers: %v", err)
	}
	r.RefuseNew()
	if _, _, err := r.Schedulable(sc); !errors.Is(err, contract.ErrShuttingDown) || !r.Closing() {
		t.Errorf("after RefuseNew: %v, closing %t", err, r.Closing())
	}
}

// TestClosedQueueStays proves that policies that are set when a shutdown has closed the queues open no new one.
func TestClosedQueueStays(t *testing.T) {
	delaying, err := policies.Parse([]byte(`{"aggregated":"p","instances":[{"name":"p","type":"predicted-ttft","parameters":{"hold_seconds":1}}]}`), policies.Settings{Weights: selector.DefaultWeights()})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(scopes.Settings{Policies: delaying})
	w.do(t, register(1, 4, "tcp://w:1"))
	queue := w.Of(sc).Rules().Queue
	w.RefuseNew()
	w.CloseQueues()
	if w.SetPolicies(delaying); w.Of(sc).Rules().Queue != queue {
		t.Error("a new queue after CloseQueues")
	}
}

// TestSeedNames: a seed stands for the adapter that events named it for, and only
// that there is a salt is kept.
func TestSeedNames(t *testing.T) {
	var names scopes.SeedNames
	if _, _, ok := names.SeedName(5); ok {
		t.Error("a seed is named before any event")
	}
	names.NameSeed(5, "lora", "salt")
	names.NameSeed(6, "", "")
	names.NameSeed(7, strings.Repeat("x", 1<<20), "")
	if _, _, ok := names.SeedName(7); ok {
		t.Error("a name of 1 MiB is kept")
	}
	if lora, salted, ok := names.SeedName(5); lora != "lora" || !salted || !ok {
		t.Errorf("seed 5: %q %t %t", lora, salted, ok)
	}
	if lora, salted, ok := names.SeedName(6); lora != "" || salted || !ok {
		t.Errorf("seed 6: %q %t %t", lora, salted, ok)
	}
}
