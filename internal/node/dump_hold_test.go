package node

import (
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

// TestDumpOfHeldRank: what was recovered of a worker that has not come yet is
// there for the next replica, and is gone when it is no longer awaited.
func TestDumpOfHeldRank(t *testing.T) {
	s := New(Config{KVEvents: true, Threads: 1}, noWildcards{}, zerolog.Nop())
	sc := catalog.Scope{Model: "m", Tenant: "t"}
	slot, ok := s.catalog.Hold(sc, 4, catalog.Rank{Worker: 17})
	if !ok {
		t.Fatal("not held")
	}
	s.scopes.Of(sc).Space.Store(&indexer.Store{Slot: slot, EngineHashes: []uint64{1}, Local: []uint64{11}})
	for _, want := range []string{`{"m:t":{"block_size":4,"events":[{"worker_id":17,`, "{}"} {
		var buf strings.Builder
		if err := s.Dump(t.Context(), &buf, contract.V13); err != nil {
			t.Fatal(err)
		}
		if got := buf.String(); !strings.HasPrefix(got, want) {
			t.Errorf("dump is %s, want %s…", got, want)
		}
		s.catalog.ReleaseHolds()
	}
}
