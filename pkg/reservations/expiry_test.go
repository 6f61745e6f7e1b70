package reservations

import (
	"fmt"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestExpireIn: all stale bookings of the scope end, however many, and nobody
// else's; a scope that is not there is no fault.
func TestExpireIn(t *testing.T) {
	l, clock := withRanks(2, nil)
	other := catalog.Scope{Model: testScope.Model, Tenant: "other"}
	l.PutRank(other, 0, catalog.Rank{})
	for i := range 3 * sweepPerLock {
		bookOn(t, l, testScope, fmt.Sprint("a", i), 0, []uint64{uint64(i)})
	}
	bookOn(t, l, other, "b", 0, []uint64{1})
	clock.advance(1)
	bookOn(t, l, testScope, "young", 1, []uint64{1 << 40})

	live := func(want uint64) {
		t.Helper()
		if got := l.Stats().Live; got != want {
			t.Errorf("%d live, want %d", got, want)
		}
	}
	clock.advance(lifetime - 1)
	l.ExpireIn(testScope) // none is older than its lifetime
	live(3*sweepPerLock + 2)
	clock.advance(1)
	l.ExpireIn(testScope)
	l.ExpireIn(catalog.Scope{Model: "nobody"})
	live(2)
	if n := l.Stats().Expired; n != 3*sweepPerLock {
		t.Errorf("%d expired", n)
	}
}
