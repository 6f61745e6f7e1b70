package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/memory"
)

// TestHeldRanks: what is stored for a rank before its worker comes is seen by
// no one, is the worker's when it comes, and goes when it does not. From outside
// this takes another replica to recover from.
func TestHeldRanks(t *testing.T) {
	sc := catalog.Scope{Model: "m", Tenant: "t"}
	rank := catalog.Rank{Worker: 1}
	tests := map[string]struct {
		then   func(s *Service) error
		blocks uint32 // of the prompt, on the rank's slot in the pool of the end
		pools  int
	}{
		"nothing happens":                            {func(*Service) error { return nil }, 3, 1},
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
		"no worker comes":                            {func(s *Service) error { s.catalog.ReleaseHolds(); return nil }, 0, 0},
		"no one comes while another is there":        {inTurn(register(2, 4, "tcp://w:1"), func(s *Service) error { s.catalog.ReleaseHolds(); return nil }), 0, 1},
		"its worker comes too late":                  {inTurn(func(s *Service) error { s.catalog.ReleaseHolds(); return nil }, register(1, 4, "tcp://w:1")), 0, 1},
		"its worker comes with one rank more":        {inTurn(register(1, 4, "tcp://w:1"), grow), 3, 1},
		"its worker is attached without rank 0":      {shifted, 0, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := New(Config{KVEvents: true, Threads: 1}, noWildcards{}, zerolog.Nop())
			slot, ok := s.catalog.Hold(sc, 4, rank)
			if !ok {
				t.Fatal("not held")
			}
			p := s.scopes.Of(sc)
			p.Space.Store(&indexer.Store{Slot: slot, EngineHashes: []uint64{1, 2, 3}, Local: []uint64{11, 12, 13}})
			if len(s.Loads(nil, nil)) != 0 || s.catalog.Snapshot(sc) != nil {
				t.Error("the scope of a held rank is visible")
			}
			if err := tc.then(s); err != nil {
				t.Fatal(err)
			}
			pools := s.scopes.All()
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
			if again, ok := s.catalog.Hold(sc, p.BlockSize, rank); ok && tc.blocks > 0 && again != slot {
				t.Errorf("the slot is %d now, was %d", again, slot)
			}
		})
	}
}

func inTurn(steps ...func(*Service) error) func(*Service) error {
	return func(s *Service) error {
		var errs []error
		for _, step := range steps {
			errs = append(errs, step(s))
		}
		return errors.Join(errs...)
	}
}

func register(id uint64, blockSize uint32, endpoint string) func(*Service) error {
	return func(s *Service) error {
		_, err := s.PutWorker(catalog.Record{
			ID: id, Scope: catalog.Scope{Model: "m", Tenant: "t"}, Endpoint: new("http://w"), BlockSize: &blockSize, KVEventsEndpoint: &endpoint,
		})
		return err
	}
}

func grow(s *Service) error {
	_, err := s.PatchWorker(1, catalog.Patch{Size: new(uint32(2)), KVEventsEndpoints: map[uint32]string{0: "tcp://w:1", 1: "tcp://w:2"}})
	return err
}

func shifted(s *Service) error {
	r := catalog.Record{ID: 1, Scope: catalog.Scope{Model: "m", Tenant: "t"}, Endpoint: new("http://w"), BlockSize: new(uint32(4))}
	r.StartRank, r.KVEventsEndpoint = new(uint32(5)), new("tcp://w:1")
	_, err := s.PutWorker(r)
	return err
}

func eagle(s *Service) error {
	r := catalog.Record{ID: 1, Scope: catalog.Scope{Model: "m", Tenant: "t"}, Endpoint: new("http://w"), BlockSize: new(uint32(4))}
	r.IsEagle, r.KVEventsEndpoint = new(true), new("tcp://w:1")
	_, err := s.PutWorker(r)
	return err
}

func remove(id uint64) func(*Service) error {
	return func(s *Service) error {
		_, err := s.DeleteWorker(id)
		return err
	}
}

func track(id uint64, blockSize uint32) func(*Service) error {
	return func(s *Service) error {
		return s.SlotsRegister(SlotsWorker{Worker: id, Scope: catalog.Scope{Model: "m", Tenant: "t"}, BlockSize: blockSize, DPSize: 1})
	}
}

// TestRanksAdded: waiting requests learn of ranks once they can be booked on,
// whichever contract or change brought them, and not for other changes.
func TestRanksAdded(t *testing.T) {
	sc := catalog.Scope{Model: "m", Tenant: "t"}
	s := New(Config{KVEvents: true, Threads: 1}, noWildcards{}, zerolog.Nop())
	var told []string
	s.reconciler.ranksAdded = func() {
		n, known := s.BlockSize(sc)
		told = append(told, fmt.Sprint(n, known, len(s.ledger.Loads(sc))))
	}
	for i, step := range []struct {
		do   func(*Service) error
		want string
	}{
		{register(1, 4, "tcp://w:1"), "4 true 1"},
		{register(1, 4, "tcp://w:1"), ""},
		{register(3, 0, "tcp://w:3"), ""},
		{track(2, 4), "4 true 2"},
		{register(4, 8, "tcp://w:4"), ""}, // cannot come in yet
		{remove(1), ""},
		{func(s *Service) error { return s.SlotsUnregister(sc, 2) }, "8 true 1"},
	} {
		told = nil
		if err := step.do(s); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(told); got != "["+step.want+"]" {
			t.Errorf("step %d: told %s, want %s", i, got, step.want)
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
