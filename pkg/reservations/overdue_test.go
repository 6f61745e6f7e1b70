package reservations

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

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
	free("booked anew", l.Free("b"), true, 2)
	free("that which expired", l.Free("b"), false, 3)

	book("gone", true)
	expire()
	l.RemoveRank(testScope, 0)
	free("the scope is gone", l.FreeIn(testScope, "gone"), false, 4)

	l.PutRank(testScope, 0, catalog.Rank{})
	book("old", false)
	expire()
	clock.advance(history.ExpiredFor)
	free("after too long", l.Free("old"), false, 4)
}

// TestLateIsBounded proves that of any number of expired reservations the newest
// 65,536 are remembered.
func TestLateIsBounded(t *testing.T) {
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
