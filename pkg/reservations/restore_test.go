package reservations_test

import (
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// TestRestore: what a ledger lists, another one restores with the age that it has
// meanwhile; then it ends when it would have ended, or by its caller.
func TestRestore(t *testing.T) {
	sc, rank := catalog.Scope{Model: "m"}, catalog.Rank{Worker: 1}
	now := time.Unix(1e9, 0)
	clock := func() time.Time { return now }
	book := func(l *reservations.Ledger, id string, lease time.Duration) {
		t.Helper()
		req := reservations.Request{ID: id, Hashes: []uint64{1, 2, 3}, TrackPrefill: true, Lease: lease}
		if _, err := l.Book(sc, req, func(*reservations.View) (reservations.Placement, error) {
			return reservations.Placement{Rank: rank, PrefillTokens: 48}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	old := reservations.New(1, clock, nil)
	old.PutRank(sc, 0, rank)
	book(old, "aged", 0)
	book(old, "leased", 20*time.Second)
	book(old, "renewed", 20*time.Second)
	now = now.Add(10 * time.Second)
	if err := old.Renew("renewed"); err != nil {
		t.Fatal(err)
	}
	if err := old.PrefillComplete("aged"); err != nil {
		t.Fatal(err)
	}
	saved, _, _ := old.Reservations(reservations.Cursor{}, 10)

	down := 15 * time.Second
	now = now.Add(down)
	l := reservations.New(2, clock, nil)
	restore := func(want map[string]reservations.ApplyResult) {
		t.Helper()
		for _, b := range saved {
			b.Age += down
			if got := l.Restore(b); got != want[b.ID] {
				t.Errorf("%s: %v, want %v", b.ID, got, want[b.ID])
			}
		}
	}
	restore(map[string]reservations.ApplyResult{"aged": reservations.UnknownScope, "leased": reservations.UnknownScope, "renewed": reservations.UnknownScope})
	l.PutRank(sc, 1, catalog.Rank{Worker: 2})
	restore(map[string]reservations.ApplyResult{"aged": reservations.UnknownRank, "leased": reservations.Stale, "renewed": reservations.UnknownRank})
	l.PutRank(sc, 0, rank)
	restore(map[string]reservations.ApplyResult{"aged": reservations.Applied, "leased": reservations.Stale, "renewed": reservations.Applied})
	restore(map[string]reservations.ApplyResult{"aged": reservations.Known, "leased": reservations.Stale, "renewed": reservations.Known})

	want := reservations.Load{Rank: rank, PrefillTokens: 48, Blocks: 3, Requests: 2}
	if got := l.Loads(sc)[0]; got != want {
		t.Errorf("load %+v, want %+v", got, want)
	}
	now = now.Add(5*time.Second + 1) // 20 s after the renewal
	if n, _ := l.Expire(); n != 1 {
		t.Errorf("%d leases ended, want 1", n)
	}
	if err := l.Free("aged"); err != nil {
		t.Errorf("free: %v", err)
	}
	if st := l.Stats(); st.Live != 0 || st.Booked != 2 || st.LeasesExpired != 1 {
		t.Errorf("stats %+v", st)
	}
	restore(map[string]reservations.ApplyResult{"aged": reservations.Applied, "leased": reservations.Stale, "renewed": reservations.Applied})
	now = now.Add(275 * time.Second) // 300 s after it was accepted, as its age says
	if n, _ := l.Expire(); n != 1 {  // the lease
		t.Errorf("%d ended, want 1", n)
	}
	now = now.Add(1)
	if n, _ := l.Expire(); n != 1 {
		t.Errorf("%d ended, want 1", n)
	}
}
