package history

import (
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestRecentKeys proves that a memory holds the latest keys, in number and in time,
// and nothing in the end.
func TestRecentKeys(t *testing.T) {
	r := recentKeys{keep: 10}
	for n := range uint64(3 * maxRecent) {
		r.put(n, 0)
	}
	if r.has(2*maxRecent-1, 0) || !r.has(2*maxRecent, 0) || len(r.at) != maxRecent {
		t.Errorf("%d keys", len(r.at))
	}
	if cap(r.queue) > 8*maxRecent {
		t.Errorf("room for %d keys", cap(r.queue))
	}
	r.put(2*maxRecent, 9)
	if r.shed(10); len(r.at) != 1 || !r.has(2*maxRecent, 18) || r.has(2*maxRecent, 19) {
		t.Errorf("%d keys after a while", len(r.at))
	}
	if r.shed(19); r.at != nil || r.queue != nil {
		t.Errorf("%d keys in the end", len(r.at))
	}
}

// TestExpiredIDs proves that an expired id is taken once, by the name under which
// it was added, within ExpiredFor, and that nothing is kept in the end.
func TestExpiredIDs(t *testing.T) {
	e := NewExpiredIDs()
	slot := ExpiredID{Scope: catalog.Scope{Model: "m"}, PerScope: true, ID: "x"}
	e.Add(ExpiredID{ID: "x"}, 0)
	e.Add(slot, 0)
	e.Add(ExpiredID{ID: "old"}, 0)
	other := slot
	other.Scope.Tenant = "other"
	for _, step := range []struct {
		id   ExpiredID
		at   time.Duration
		want bool
	}{
		{other, 1, false},
		{slot, 1, true},
		{slot, 2, false},
		{ExpiredID{ID: "x"}, ExpiredFor - 1, true},
		{ExpiredID{ID: "old"}, ExpiredFor, false},
	} {
		if got := e.Take(step.id, step.at); got != step.want {
			t.Errorf("%+v at %v: %t, want %t", step.id, step.at, got, step.want)
		}
	}
	e.Forget(ExpiredFor)
	if e.recent.at != nil || e.recent.queue != nil {
		t.Errorf("%d ids are kept", len(e.recent.at))
	}
}
