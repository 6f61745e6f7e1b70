package reservations

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

func bookLeased(t *testing.T, l *Ledger, id string, lease time.Duration, end CallerState) {
	t.Helper()
	if _, err := l.Book(testScope, Request{ID: id, Lease: lease, CallerState: end}, leastLoaded); err != nil {
		t.Fatal(err)
	}
}

// kinds are the steps that an observer was told of since the last call.
func (r *recorder) kinds() (out []string) {
	for _, s := range r.steps {
		out = append(out, s.Kind)
	}
	r.steps = nil
	return out
}

// TestLeaseExpires proves when an own lease ends, by which steps it is renewed,
// and that its end is told and counted; that of a lifetime is not told.
func TestLeaseExpires(t *testing.T) {
	obs := &recorder{}
	l, clock := withRanks(1, obs)
	end := &countedEnd{}
	bookLeased(t, l, "leased", 20*time.Second, end)
	bookLeased(t, l, "plain", 0, nil)
	if err := l.Renew("plain"); !errors.Is(err, ErrNoLease) {
		t.Errorf("renewing what has no lease: %v", err)
	}
	if err := l.Renew("unknown"); !errors.Is(err, ErrNotFound) {
		t.Errorf("renewing what is not there: %v", err)
	}
	for _, step := range []func() error{
		func() error { return l.Renew("leased") },
		func() error { return l.PrefillComplete("leased") },
		func() error { return l.OutputBlock("leased", nil) },
	} {
		clock.advance(20 * time.Second)
		if n, _ := l.Expire(); n != 0 {
			t.Fatal("expired in time")
		}
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	obs.steps = nil
	clock.advance(20*time.Second + 1)
	if n, next := l.Expire(); n != 1 || !next.Equal(l.start.Add(lifetime+1)) {
		t.Errorf("%d expired, the next one %v after the start", n, next.Sub(l.start))
	}
	if d := cmp.Diff([]string{"freed"}, obs.kinds()); d != "" || end.n != 1 {
		t.Errorf("%d ends; told: -want +got\n%s", end.n, d)
	}
	clock.advance(lifetime)
	l.Expire()
	if st := l.Stats(); st.Expired != 2 || st.LeasesExpired != 1 || st.Live != 0 || obs.steps != nil {
		t.Errorf("%+v, told %v", st, obs.steps)
	}
	_ = l.Free("leased")
	if n := l.Stats().Late; n != 1 {
		t.Errorf("%d freed late", n)
	}
}

// TestRenewalsAreRare proves that the observer is told of one renewal in a
// quarter of the lease, and that the last one is never forgotten.
func TestRenewalsAreRare(t *testing.T) {
	obs := &recorder{}
	l, clock := withRanks(1, obs)
	bookLeased(t, l, "a", 40*time.Second, nil)
	obs.steps = nil
	told := 0
	for i := range 40 {
		clock.advance(time.Second)
		if err := l.OutputBlock("a", nil); err != nil {
			t.Fatal(err)
		}
		l.Expire()
		if told += len(obs.kinds()); told != (i+1)/10 {
			t.Fatalf("told %d times in %d s", told, i+1)
		}
	}
	clock.advance(time.Second)
	if err := l.Renew("a"); err != nil { // too early
		t.Fatal(err)
	}
	clock.advance(8 * time.Second)
	l.Expire()
	if got := obs.kinds(); got != nil {
		t.Errorf("told %v too early", got)
	}
	clock.advance(time.Second)
	l.Expire()
	if d := cmp.Diff([]string{"renewed"}, obs.kinds()); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	for range 3 {
		clock.advance(10 * time.Second)
		l.Expire()
	}
	if got := obs.kinds(); got != nil {
		t.Errorf("told %v without a renewal", got)
	}
}

// TestShortLeases proves that a renewal is told at once where the next sweep might
// come too late, and only there.
func TestShortLeases(t *testing.T) {
	obs := &recorder{}
	l, clock := withRanks(1, obs)
	for i, tt := range []struct {
		lease time.Duration
		want  []string
	}{
		{100 * time.Millisecond, []string{"renewed", "renewed"}},
		{4*ExpireEvery - 1, []string{"renewed", "renewed"}},
		{4 * ExpireEvery, nil},
	} {
		id := fmt.Sprint(i)
		bookLeased(t, l, id, tt.lease, nil)
		obs.steps = nil
		for range 2 {
			clock.advance(tt.lease / 10)
			if err := l.Renew(id); err != nil {
				t.Fatal(err)
			}
		}
		if d := cmp.Diff(tt.want, obs.kinds()); d != "" {
			t.Errorf("a lease of %v: told -want +got\n%s", tt.lease, d)
		}
	}
}

// TestRemoteLease proves that another process's lease is waited for longer, that
// its end here is no end for others, and what brings it back.
func TestRemoteLease(t *testing.T) {
	obs := &recorder{}
	l, clock := withRanks(1, obs)
	b := remote(2, 7, "x")
	b.Lease = 20 * time.Second
	wantResult(t, "booked", l.ApplyBooked(b), Applied)
	clock.advance(25 * time.Second)
	wantResult(t, "renewed", l.ApplyRenewed(refTo(b)), Applied)
	clock.advance(30 * time.Second) // lease and slack
	l.Expire()
	wantLoad(t, l, 10, 2, 1)
	clock.advance(1)
	l.Expire()
	wantLoad(t, l, 0, 0, 0)
	if st := l.Stats(); st.Expired != 1 || st.LeasesExpired != 0 || obs.steps != nil {
		t.Errorf("%+v, told %v", st, obs.steps)
	}
	if ended := l.Ended(); len(ended) != 0 {
		t.Errorf("it has ended for others: %v", ended)
	}
	wantResult(t, "the event again", l.ApplyBooked(b), Ended)
	wantResult(t, "a renewal", l.ApplyRenewed(refTo(b)), UnknownID)
	b.Age, b.Renewed = 55*time.Second, 25*time.Second
	wantResult(t, "a snapshot without renewal", l.MergeReservation(b), Stale)
	b.Renewed = 50 * time.Second
	wantResult(t, "a snapshot with one", l.MergeReservation(b), Applied)
	wantResult(t, "its end", l.ApplyFreed(refTo(b)), Applied)
	wantResult(t, "after that", l.MergeReservation(b), Ended)
	wantResult(t, "a renewal after that", l.ApplyRenewed(refTo(b)), Ended)
	b.Rank.Worker, b.Origin.Sequence = 9, 8
	wantResult(t, "a renewal on another rank", l.ApplyRenewed(refTo(b)), UnknownRank)
}

// TestLongLease proves that a lease which is renewed outlives the time after which
// numbers are too old to tell apart: neither what is assumed here nor what others
// assume ends it, nor a replica that knows of no leases, and its end is
// remembered.
func TestLongLease(t *testing.T) {
	owner, clock := withRanks(1, nil)
	bookLeased(t, owner, "x", 30*time.Second, nil)
	own, _, _ := owner.Reservations(Cursor{}, 1)
	x := own[0]
	other, third := New(2, clock.now, nil), New(3, clock.now, nil)
	for _, l := range []*Ledger{other, third} {
		l.PutRank(testScope, 0, catalog.Rank{})
	}
	wantResult(t, "booked", other.ApplyBooked(x), Applied)
	step := func(n uint64) {
		clock.advance(10 * time.Second)
		if err := owner.Renew("x"); err != nil {
			t.Fatal(err)
		}
		wantResult(t, "renewed", other.ApplyRenewed(refTo(x)), Applied)
		for _, l := range []*Ledger{other, third} { // something else happens, of which only they hear
			l.ApplyFreed(Ref{Origin: Origin{Process: 1, Sequence: 2 * n}, Scope: testScope})
			l.Expire()
		}
	}
	for n := range uint64(200) {
		step(n + 2)
	}
	if e := third.Ended()[1]; e.Assumed < 100 || e.Ranges[0] != span(1, e.Assumed) && e.Ranges[0].To < e.Assumed {
		t.Errorf("%+v: want old numbers to be assumed", e)
	}
	for _, from := range []*Ledger{other, third} {
		for _, to := range []*Ledger{owner, other} {
			if n := to.MergeEnded(1, from.Ended()[1]); n != 0 {
				t.Errorf("process %d ended it on %d", from.process, to.process)
			}
			if n := to.MergeEnded(1, history.EndedSet{Ranges: []history.Range{span(1, 1)}, Assumed: math.MaxUint64}); n != 0 {
				t.Error("one who knows of no leases ended it")
			}
		}
	}
	page, _, _ := owner.Reservations(Cursor{}, 1)
	wantResult(t, "old, from a snapshot", third.MergeReservation(page[0]), Applied)
	wantResult(t, "its end", third.ApplyFreed(refTo(x)), Applied)
	wantResult(t, "not again", third.MergeReservation(page[0]), Ended)
	if e := third.Ended()[1]; !e.Has(1, true) {
		t.Errorf("%+v: want the long lease", e)
	}
	if n := other.MergeEnded(1, third.Ended()[1]); n != 1 {
		t.Errorf("%d ended", n)
	}
	wantResult(t, "not again there", other.MergeReservation(page[0]), Ended)
	if e := other.Ended()[1]; !e.Has(1, true) {
		t.Errorf("%+v: want it told by who had it live", e)
	}
	for range 10 {
		clock.advance(time.Minute)
		third.Expire()
	}
	if e := third.Ended()[1]; len(e.Leases) != 0 {
		t.Errorf("%+v is remembered for ever", e)
	}
}

// TestAssumed proves what a merge of assumed numbers means for reservations with and
// without lease.
func TestAssumed(t *testing.T) {
	l, _ := withRanks(1, nil)
	plain, leased := remote(2, 3, "plain"), remote(2, 4, "leased")
	leased.Lease = time.Minute
	for _, b := range []Reservation{plain, leased} {
		wantResult(t, b.ID, l.ApplyBooked(b), Applied)
	}
	if n := l.MergeEnded(2, history.EndedSet{Ranges: []history.Range{span(1, 8)}, Assumed: 6}); n != 1 {
		t.Errorf("%d ended, want the one without lease", n)
	}
	if d := cmp.Diff(history.EndedSet{Ranges: []history.Range{span(1, 8)}, Assumed: 6}, l.Ended()[2]); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	for n := uint64(5); n < 9; n++ {
		late := leased
		late.Origin.Sequence, late.ID = n, fmt.Sprint(n)
		wantResult(t, "an event", l.ApplyBooked(late), Ended)
		wantResult(t, "a snapshot", l.MergeReservation(late), map[bool]ApplyResult{true: Applied, false: Ended}[n <= 6])
	}
}

// TestLifetime proves that the lifetime can be set, for own and other reservations.
func TestLifetime(t *testing.T) {
	l, clock := withRanks(1, nil)
	l.SetLifetime(-1)
	l.SetLifetime(time.Hour)
	bookLeased(t, l, "a", 0, nil)
	wantResult(t, "remote", l.ApplyBooked(remote(2, 1, "b")), Applied)
	old := remote(2, 2, "c")
	old.Age = time.Hour
	wantResult(t, "too old", l.MergeReservation(old), Stale)
	clock.advance(time.Hour)
	if n, _ := l.Expire(); n != 0 {
		t.Errorf("%d expired in time", n)
	}
	if page, _, _ := l.Reservations(Cursor{}, 1); page[0].Age != time.Hour {
		t.Errorf("age %v", page[0].Age)
	}
	clock.advance(1)
	if n, _ := l.Expire(); n != 2 {
		t.Errorf("%d expired, want 2", n)
	}
}

// TestOldReplicaTold proves that a reservation which first came from a replica that
// knows of no leases gets its lease from one that does.
func TestOldReplicaTold(t *testing.T) {
	l, clock := withRanks(1, nil)
	b := remote(2, 1, "x")
	wantResult(t, "without lease", l.MergeReservation(b), Applied)
	b.Lease = 20 * time.Second
	wantResult(t, "with lease", l.MergeReservation(b), Known)
	if h, ok := l.Find("x"); !ok || h.Lease != b.Lease || !h.Remote {
		t.Errorf("%+v, %v", h, ok)
	}
	clock.advance(31 * time.Second)
	if n, _ := l.Expire(); n != 1 {
		t.Errorf("%d expired", n)
	}
}

// TestOverdueIDs proves that a reservation whose time is over has its id no more,
// in whatever scope and behind however many others that are overdue.
func TestOverdueIDs(t *testing.T) {
	l, clock := withRanks(1, nil)
	other := catalog.Scope{Model: "other", Tenant: "t"}
	l.PutRank(other, 0, catalog.Rank{})
	const n = 3 * sweepPerBook
	for i := range n {
		bookLeased(t, l, fmt.Sprint(i), time.Second, nil)
	}
	clock.advance(time.Second + 1)
	for i := range n {
		sc := testScope
		if i%2 == 0 {
			sc = other
		}
		bookOn(t, l, sc, fmt.Sprint(n-1-i), 0, nil)
	}
	if st := l.Stats(); st.Live != n || st.LeasesExpired != n {
		t.Errorf("%d live, %d expired, want %d", st.Live, st.LeasesExpired, n)
	}
	_, err := l.Book(other, Request{ID: "0"}, func(*View) (Placement, error) { return Placement{}, nil })
	if exists, ok := errors.AsType[*ExistsError](err); !ok || exists.ID != "0" {
		t.Errorf("a live id: %v", err)
	}
}

// TestLyingRenewals proves that what another replica says of a reservation's renewals
// makes it last no longer than a renewal of now does.
func TestLyingRenewals(t *testing.T) {
	l, clock := withRanks(1, nil)
	bookLeased(t, l, "own", 20*time.Second, nil)
	foreign := remote(2, 7, "foreign")
	foreign.Lease = 20 * time.Second
	wantResult(t, "booked", l.ApplyBooked(foreign), Applied)
	clock.advance(10 * time.Second)
	page, _, _ := l.Reservations(Cursor{}, 10)
	for _, b := range page {
		b.Authority, b.Age, b.Renewed = Supplementary, 1<<60, 1<<60
		wantResult(t, "a lie about "+b.ID, l.MergeReservation(b), Known)
	}
	clock.advance(20*time.Second + 1)
	l.Expire()
	wantLoad(t, l, 10, 2, 1) // others wait longer
	clock.advance(10 * time.Second)
	l.Expire()
	wantLoad(t, l, 0, 0, 0)
}
