package reservations

import (
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// reservation is one booking. The fields of the first group never change; the
// others are guarded by scope.mu.
type reservation struct {
	id       string
	scope    *scope
	slot     uint32
	rank     catalog.Rank
	hashes   []uint64      // distinct prompt blocks
	deadline time.Duration // since Ledger.start

	prefill uint64 // tokens counted in the rank's sum
	// Output blocks have random identities, so nobody else ever holds them:
	// two numbers stand for them. plain ones have full weight, the aged ones
	// share one deficit.
	plain, aged uint64
	agedDeficit uint32
	ended       bool
	inHeap      int // index in scope.deadlines
	inRank      int // index in load.held
}

func (r *reservation) event() Event {
	return Event{Scope: r.scope.name, ID: r.id, Rank: r.rank}
}
