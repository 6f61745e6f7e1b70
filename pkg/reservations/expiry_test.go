package reservations

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
	"github.com/select-service/select-service/test/helpers/length"
)

// TestExpireIn proves that all stale reservations of the scope end, however many,
// and no others; a scope that is not there is no fault.
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
	l.ExpireIn(catalog.Scope{Model: "unknown"})
	live(2)
	if n := l.Stats().Expired; n != 3*sweepPerLock {
		t.Errorf("%d expired", n)
	}
}

// TestLate proves which frees that meet no reservation count as late: those of
// own ones that expired, once each, by the name that the caller knows.
func TestLate(t *testing.T) {
	other := catalog.Scope{Model: "m", Tenant: "other"}
	l, clock := withRanks(1, nil)
	l.PutRank(other, 0, catalog.Rank{})
	book := func(id string, perScope bool) {
		t.Helper()
		req := Request{ID: id, PerScope: perScope, TrackPrefill: true}
		if _, err := l.Book(testScope, req, leastLoaded); err != nil {
			t.Fatal(err)
		}
	}
	expire := func() {
		clock.advance(lifetime + time.Second)
		l.Expire()
	}
	free := func(what string, err error, found bool, late uint64) {
		t.Helper()
		if errors.Is(err, ErrNotFound) == found {
			t.Errorf("%s: error %v", what, err)
		}
		if got := l.Stats().Late; got != late {
			t.Errorf("%s: %d late, want %d", what, got, late)
		}
	}

	book("a", false)
	book("slot", true)
	book("freed", false)
	free("in time", l.Free("freed"), true, 0)
	l.ApplyBooked(remote(2, 1, "remote"))
	expire()
	free("one that never was", l.Free("never"), false, 0)
	free("one that was freed in time", l.Free("freed"), false, 0)
	free("another process's", l.Free("remote"), false, 0)
	free("an id of a scope in all", l.Free("slot"), false, 0)
	free("an id of a scope in another", l.FreeIn(other, "slot"), false, 0)
	free("an id of a scope", l.FreeIn(testScope, "slot"), false, 1)
	free("expired", l.Free("a"), false, 2)
	free("again", l.Free("a"), false, 2)

	book("b", false)
	expire()
	book("b", false)
	free("booked again", l.Free("b"), true, 2)
	free("the one that expired", l.Free("b"), false, 3)

	book("removed", true)
	expire()
	l.RemoveRank(testScope, 0)
	free("the scope was removed", l.FreeIn(testScope, "removed"), false, 4)

	l.PutRank(testScope, 0, catalog.Rank{})
	book("old", false)
	expire()
	clock.advance(history.ExpiredFor)
	free("after too long", l.Free("old"), false, 4)
}

// TestLateIsBounded proves that of any number of expired reservations the newest
// 65,536 are remembered.
func TestLateIsBounded(t *testing.T) {
	length.Sequential(t)
	const remembered, more = 1 << 16, 100
	l, clock := withRanks(1, nil)
	for i := range remembered + more {
		if _, err := l.Book(testScope, Request{ID: fmt.Sprint(i)}, leastLoaded); err != nil {
			t.Fatal(err)
		}
		clock.advance(time.Microsecond) // they expire in this order
	}
	clock.advance(lifetime)
	l.Expire()
	for i := range remembered + more {
		_ = l.Free(fmt.Sprint(i))
	}
	if got := l.Stats().Late; got != remembered {
		t.Errorf("%d late, want %d", got, remembered)
	}
}
