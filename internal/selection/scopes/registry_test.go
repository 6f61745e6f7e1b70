package scopes_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/selection/approximate"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/recovery"
)

// noWorkers is the reconciler of a catalog that stays empty.
type noWorkers struct{}

func (noWorkers) Reconcile(_, _ *catalog.Attachment) error         { return nil }
func (noWorkers) Hold(catalog.Scope, uint32, catalog.Rank, uint32) {}
func (noWorkers) Unhold(_ catalog.Scope, _ catalog.Rank, _ uint32) {}
func newRegistry(s scopes.Settings) *scopes.Registry {
	r := scopes.New(s)
	r.Attach(catalog.New(catalog.Settings{}, noWorkers{}))
	return r
}

var (
	sc   = catalog.Scope{Model: "m", Tenant: "t"}
	rank = catalog.Rank{Worker: 1}
)

// TestLifetime: a scope has one state from its first worker or held rank to its
// last. It is known, also afterwards, if a worker was complete.
func TestLifetime(t *testing.T) {
	r := newRegistry(scopes.Settings{})
	first := r.AddWorker(sc, 4)
	if r.AddWorker(sc, 4) != first || r.Of(sc) != first || len(r.All()) != 1 || len(r.Known()) != 0 {
		t.Fatal("two workers of a scope have one state, which is not known yet")
	}
	r.MarkServed(sc)
	r.HoldRank(sc, 4, rank, 7)
	r.RemoveWorker(sc)
	r.RemoveWorker(sc)
	if r.Of(sc) != first || first.Gone() {
		t.Error("the state ended with a rank held")
	}
	r.UnholdRank(sc, 7)
	if r.Of(sc) != nil || !first.Gone() {
		t.Error("the state outlived its last rank")
	}
	if known := r.Known(); len(known) != 1 || known[0] != sc {
		t.Errorf("known scopes: %v", known)
	}
	if again := r.AddWorker(sc, 4); again == first {
		t.Error("a state that has ended came back")
	}
}

// TestHeldSlot: a held slot keeps its blocks when its rank leaves, until its hold
// ends.
func TestHeldSlot(t *testing.T) {
	r := newRegistry(scopes.Settings{})
	state := r.AddWorker(sc, 4)
	r.HoldRank(sc, 4, rank, 0)
	state.Gate.Store(&indexer.Store{Slot: 0, EngineHashes: []uint64{1}, Local: []uint64{11}})
	state.ReleaseSlot(0)
	if state.Space.Empty(0) {
		t.Error("a held slot lost its blocks")
	}
	state.EndHold(0)
	state.ReleaseSlot(0)
	if !state.Space.Empty(0) {
		t.Error("the slot kept the blocks of a rank that left")
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
			r := newRegistry(scopes.Settings{Merging: true})
			index := r.AddWorker(sc, 4).Space
			if tt.ended {
				r.EndMerging()
			}
			r.RemoveWorker(sc)
			if got := r.AddWorker(sc, tt.blockSize).Space == index; got != tt.want {
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
		"beside predictions":  {Beside: true},
		"watched beside them": {Beside: true, WatchStored: true},
	} {
		t.Run(name, func(t *testing.T) {
			settings.Merging = true
			if settings.Beside {
				settings.Approximate = approximate.New(time.Minute, 1<<10, nil, time.Now)
			}
			state := newRegistry(settings).AddWorker(sc, 4)
			state.AssignSlot(0, rank)
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

// TestPastScopes: of the scopes without workers the last 1,024 stay known.
func TestPastScopes(t *testing.T) {
	r := newRegistry(scopes.Settings{})
	for i := range 1030 {
		s := catalog.Scope{Model: fmt.Sprint(i)}
		r.AddWorker(s, 4)
		r.MarkServed(s)
		r.RemoveWorker(s)
	}
	known := r.Known()
	if len(known) != 1024 || known[0].Model != "6" {
		t.Errorf("%d known, the oldest is %v", len(known), known[0])
	}
}

// TestUnavailable: the error says whether no worker is there at all, or the
// service is shutting down.
func TestUnavailable(t *testing.T) {
	r := newRegistry(scopes.Settings{})
	r.AddWorker(sc, 4)
	_, _, err := r.Schedulable(sc)
	if contract.KindOf(err) != contract.Unavailable || err.Error() != "no schedulable workers are available" {
		t.Errorf("without workers: %v", err)
	}
	r.RefuseNew()
	if _, _, err := r.Schedulable(sc); !errors.Is(err, contract.ErrShuttingDown) || !r.Closing() {
		t.Errorf("after RefuseNew: %v, closing %t", err, r.Closing())
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
