package reservations

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// TestOldNumbersEnd proves that numbers heard of more than 600 s ago end, so
// that a slow process does not leave millions of single numbers in Ended.
func TestOldNumbersEnd(t *testing.T) {
	l, clock := withRanks(1, nil)
	for n := uint64(2); n < 4_000; n += 2 {
		l.MergeEnded(2, history.EndedSet{Ranges: []history.Range{span(n, n)}})
		clock.advance(time.Second)
		l.Expire()
	}
	if got := l.Ended()[2].Ranges; got[0].To < 2_300 || len(got) > 900 {
		t.Errorf("%d ranges from %v on", len(got), got[0])
	}
	b := remote(2, 501, "x")
	wantResult(t, "old", l.ApplyBooked(b), Ended)
	b.Origin.Sequence = 3_999
	wantResult(t, "young", l.ApplyBooked(b), Applied)
}

// TestProcessesBounded proves that at most 256 processes are remembered, that
// the one unheard of for longest goes first, and that none goes which has a live
// reservation.
func TestProcessesBounded(t *testing.T) {
	l, clock := withRanks(1, nil)
	for n := range uint64(history.MaxProcesses) {
		clock.advance(time.Millisecond)
		b := remote(100+n, 1, "x")
		wantResult(t, "book", l.ApplyBooked(b), Applied)
	}
	wantResult(t, "one more", l.ApplyBooked(remote(99, 1, "x")), Full)
	l.ApplyFreed(refTo(remote(99, 2, "x"))) // cannot be noted
	for _, n := range []uint64{150, 120} {
		clock.advance(time.Millisecond)
		wantResult(t, "free", l.ApplyFreed(refTo(remote(n, 1, "x"))), Applied)
	}
	wantResult(t, "in place of 150", l.ApplyBooked(remote(99, 1, "x")), Applied)
	wantResult(t, "120 is remembered", l.ApplyBooked(remote(120, 1, "x")), Ended)
	wantResult(t, "in place of 120", l.ApplyBooked(remote(150, 2, "x")), Applied)
}

// TestEarlyFree proves for a process that does not number its reservations that a
// free which came first eats one reservation, within 10 s, and that calls do not ask.
func TestEarlyFree(t *testing.T) {
	l, clock := withRanks(1, nil)
	b := remote(9, 0, "x")
	wantResult(t, "free", l.ApplyFreed(refTo(b)), UnknownID)
	wantResult(t, "not from a snapshot before", l.MergeReservation(b), Ended)
	wantResult(t, "eaten", l.ApplyBooked(b), Ended)
	wantResult(t, "nor from one after", l.MergeReservation(b), Ended)
	wantResult(t, "free", l.ApplyFreed(refTo(b)), UnknownID)
	bookOn(t, l, testScope, "x", 0, nil)
	if err := l.Free("x"); err != nil {
		t.Fatal(err)
	}
	other := b
	other.Origin.Process = 8
	wantResult(t, "another process's", l.ApplyBooked(other), Applied)
	wantResult(t, "and eaten nevertheless", l.ApplyBooked(b), Ended)
	wantResult(t, "its id is live", l.ApplyBooked(b), Known)
	wantResult(t, "free", l.ApplyFreed(refTo(other)), Applied)
	wantResult(t, "free", l.ApplyFreed(refTo(b)), UnknownID)
	clock.advance(history.EarlyFor)
	wantResult(t, "too late", l.ApplyBooked(b), Applied)
}

// TestEarlyPrefill proves for a process that does not number its reservations that a
// completed prefill which came first counts for one reservation, within 10 s; that one
// which came last counts for none; and that calls do not ask.
func TestEarlyPrefill(t *testing.T) {
	l, clock := withRanks(1, nil)
	b := remote(9, 0, "x")
	b.PrefillTokens, b.TrackPrefill = 16, true
	prefill := func(what string, want uint64) {
		t.Helper()
		if got := l.Loads(testScope)[0].PrefillTokens; got != want {
			t.Errorf("%s: %d prefill tokens, want %d", what, got, want)
		}
	}
	free := func() { t.Helper(); wantResult(t, "free", l.ApplyFreed(refTo(b)), Applied) }

	wantResult(t, "first", l.ApplyPrefillCompleted(refTo(b)), UnknownID)
	wantResult(t, "its reservation", l.ApplyBooked(b), Applied)
	prefill("overtaken", 0)
	free()
	wantResult(t, "last", l.ApplyPrefillCompleted(refTo(b)), UnknownID)
	wantResult(t, "the next with the id", l.ApplyBooked(b), Applied)
	prefill("the one before was completed", 16)
	free()

	clock.advance(history.EarlyFor)
	wantResult(t, "first", l.ApplyPrefillCompleted(refTo(b)), UnknownID)
	wantResult(t, "and freed", l.ApplyFreed(refTo(b)), UnknownID)
	wantResult(t, "its reservation", l.ApplyBooked(b), Ended)
	wantResult(t, "last, again", l.ApplyPrefillCompleted(refTo(b)), UnknownID)
	wantResult(t, "the next with the id", l.ApplyBooked(b), Applied)
	prefill("both ends went with the one before", 16)
	free()

	clock.advance(lifetime)
	wantResult(t, "first", l.ApplyPrefillCompleted(refTo(b)), UnknownID)
	wantResult(t, "from a snapshot", l.MergeReservation(b), Applied)
	prefill("a snapshot before the event", 0)
	wantResult(t, "its event", l.ApplyBooked(b), Known)
	free()

	clock.advance(history.EarlyFor)
	wantResult(t, "first", l.ApplyPrefillCompleted(refTo(b)), UnknownID)
	bookOn(t, l, testScope, "x", 0, nil)
	prefill("a call", 100)
	if err := l.Free("x"); err != nil {
		t.Fatal(err)
	}
	clock.advance(history.EarlyFor)
	wantResult(t, "too late", l.ApplyBooked(b), Applied)
	prefill("10 s later", 16)
}

// TestRefusedLeavesTrace proves that what came before a reservation is remembered until
// its event could be taken, and not for the next life of its id.
func TestRefusedLeavesTrace(t *testing.T) {
	l, _ := withRanks(1, nil)
	b := remote(9, 0, "x")
	b.Rank = catalog.Rank{Worker: 7}
	wantResult(t, "free", l.ApplyFreed(refTo(b)), UnknownID)
	wantResult(t, "no rank", l.ApplyBooked(b), UnknownRank)
	l.PutRank(testScope, 7, b.Rank)
	wantResult(t, "still freed", l.ApplyBooked(b), Ended)

	c := remote(9, 0, "y")
	c.PrefillTokens, c.TrackPrefill = 16, true
	wantResult(t, "completed", l.ApplyPrefillCompleted(refTo(c)), UnknownID)
	wantResult(t, "from a snapshot", l.MergeReservation(c), Applied)
	wantResult(t, "free", l.ApplyFreed(refTo(c)), Applied)
	wantResult(t, "the next with the id", l.ApplyBooked(c), Applied)
	if got := l.Loads(testScope)[0].PrefillTokens; got != 16 {
		t.Errorf("%d prefill tokens, want 16", got)
	}
}

// TestWhoseID proves which reservation is meant by an event without origin, and
// that no second reservation is made with an id that is live.
func TestWhoseID(t *testing.T) {
	l, _ := withRanks(2, nil)
	b := func(process, sequence, worker uint64) Reservation {
		b := remote(process, sequence, "x")
		b.Rank = catalog.Rank{Worker: worker}
		return b
	}
	wantResult(t, "2's", l.ApplyBooked(b(2, 1, 0)), Applied)
	wantResult(t, "3's", l.ApplyBooked(b(3, 1, 0)), Applied)
	wantResult(t, "Dynamo's, the id is live", l.ApplyBooked(b(9, 0, 0)), Known)
	wantResult(t, "Dynamo's, known elsewhere", l.MergeReservation(b(9, 0, 0)), Applied)
	wantResult(t, "another Dynamo's", l.MergeReservation(b(8, 0, 1)), Applied)
	left := func() (out []uint64) {
		page, _, _ := l.Reservations(Cursor{}, 10)
		for _, b := range page {
			out = append(out, b.Origin.Process)
		}
		return out
	}
	for _, want := range [][]uint64{{2, 3, 8}, {3, 8}, {8}, {8}} {
		v := l.ApplyFreed(refTo(b(9, 0, 0)))
		if d := cmp.Diff(want, left()); d != "" {
			t.Errorf("%v: -want +got\n%s", v, d)
		}
	}
}
