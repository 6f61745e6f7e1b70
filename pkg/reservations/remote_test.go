package reservations

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// remote returns a reservation of another process on worker 0 of the test scope.
func remote(process, sequence uint64, id string) Reservation {
	return Reservation{
		Origin: Origin{Process: process, Sequence: sequence}, Scope: testScope, ID: id, Hashes: []uint64{1, 2},
		PrefillTokens: 10, TrackPrefill: true,
	}
}

// refTo names a reservation as the process does that accepted it.
// span is a range of sequence numbers.
func span(from, to uint64) history.Range { return history.Range{From: from, To: to} }

func refTo(b Reservation) Ref {
	return Ref{Origin: b.Origin, Scope: b.Scope, ID: b.ID, Rank: b.Rank}
}

func wantResult(t *testing.T, what string, got, want ApplyResult) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func wantLoad(t *testing.T, l *Ledger, tokens, blocks uint64, requests uint32) {
	t.Helper()
	if got, want := l.Loads(testScope)[0], (Load{PrefillTokens: tokens, Blocks: blocks, Requests: requests}); got != want {
		t.Errorf("load %+v, want %+v", got, want)
	}
}

// TestAnyOrder proves that reservation, completed prefill and end of a process that
// numbers its reservations give the same in every order, from events and snapshots,
// however often they come.
func TestAnyOrder(t *testing.T) {
	b := remote(2, 7, "x")
	done := b
	done.PrefillDone = true
	steps := map[string]func(*Ledger){
		"booked":   func(l *Ledger) { l.ApplyBooked(b) },
		"merged":   func(l *Ledger) { l.MergeReservation(b) },
		"complete": func(l *Ledger) { l.ApplyPrefillCompleted(refTo(b)) },
		"done":     func(l *Ledger) { l.MergeReservation(done) },
		"freed":    func(l *Ledger) { l.ApplyFreed(refTo(b)) },
		"ended":    func(l *Ledger) { l.MergeEnded(2, history.EndedSet{Ranges: []history.Range{span(7, 7)}}) },
	}
	for _, tc := range []struct {
		of   []string
		want Load
	}{
		{[]string{"booked", "merged"}, Load{PrefillTokens: 10, Blocks: 2, Requests: 1}},
		{[]string{"booked", "complete", "merged"}, Load{Blocks: 2, Requests: 1}},
		{[]string{"merged", "done", "booked"}, Load{Blocks: 2, Requests: 1}},
		{[]string{"booked", "complete", "freed"}, Load{}},
		{[]string{"booked", "merged", "ended"}, Load{}},
	} {
		permute(tc.of, func(order []string) {
			l, _ := withRanks(1, nil)
			for range 2 {
				for _, name := range order {
					steps[name](l)
				}
			}
			if got := l.Loads(testScope)[0]; got != tc.want {
				t.Errorf("%v: load %+v, want %+v", order, got, tc.want)
			}
		})
	}
}

func permute(s []string, f func([]string)) {
	if len(s) < 2 {
		f(s)
		return
	}
	for i := range s {
		rest := append(slices.Clone(s[:i]), s[i+1:]...)
		permute(rest, func(p []string) { f(append([]string{s[i]}, p...)) })
	}
}

// TestApplyResults proves what each message is answered, one after the other.
func TestApplyResults(t *testing.T) {
	l, clock := withRanks(2, nil)
	b, dynamo := remote(2, 7, "x"), remote(9, 0, "d")
	elsewhere, lost, old, aged := b, b, b, b
	elsewhere.Scope.Model = "unknown"
	lost.Rank.Worker, lost.Origin.Sequence = 99, 8
	old.Origin.Sequence, old.Age = 9, lifetime
	aged.Origin.Sequence, aged.Age = 10, lifetime-1
	done := b
	done.PrefillDone = true
	wrong := refTo(dynamo)
	wrong.Rank.Worker = 1

	wantResult(t, "unknown scope", l.ApplyBooked(elsewhere), UnknownScope)
	wantResult(t, "unknown rank", l.ApplyBooked(lost), UnknownRank)
	wantResult(t, "too old", l.MergeReservation(old), Stale)
	wantResult(t, "just young enough", l.MergeReservation(aged), Applied)
	wantResult(t, "first", l.ApplyBooked(b), Applied)
	wantResult(t, "again", l.ApplyBooked(b), Known)
	wantResult(t, "from a snapshot", l.MergeReservation(b), Known)
	wantResult(t, "complete", l.MergeReservation(done), Updated)
	wantResult(t, "complete again", l.ApplyPrefillCompleted(refTo(b)), Known)
	wantResult(t, "free", l.ApplyFreed(refTo(b)), Applied)
	wantResult(t, "free again", l.ApplyFreed(refTo(b)), Ended)
	wantResult(t, "complete late", l.ApplyPrefillCompleted(refTo(b)), Ended)
	wantResult(t, "book late", l.ApplyBooked(b), Ended)
	wantResult(t, "free in no scope", l.ApplyFreed(refTo(elsewhere)), UnknownScope)

	bookOn(t, l, testScope, "own", 0, nil)
	own := remote(1, 1, "own")
	wantResult(t, "own", l.MergeReservation(own), Known)
	if err := l.Free("own"); err != nil {
		t.Fatal(err)
	}
	wantResult(t, "own, freed here", l.MergeReservation(own), Ended)
	wantResult(t, "free it once more", l.ApplyFreed(refTo(own)), Ended)
	wantResult(t, "complete it late", l.ApplyPrefillCompleted(refTo(own)), Ended)

	wantResult(t, "Dynamo's", l.ApplyBooked(dynamo), Applied)
	wantResult(t, "the wrong rank", l.ApplyFreed(wrong), WrongRank)
	wantResult(t, "complete on the wrong rank", l.ApplyPrefillCompleted(wrong), WrongRank)
	wantResult(t, "its prefill", l.ApplyPrefillCompleted(refTo(dynamo)), Applied)
	wantResult(t, "its end", l.ApplyFreed(refTo(dynamo)), Applied)
	wantResult(t, "not from a snapshot", l.MergeReservation(dynamo), Ended)
	wantResult(t, "but from an event", l.ApplyBooked(dynamo), Applied)
	clock.advance(time.Second)
	l.RemoveRank(testScope, 0)
	l.PutRank(testScope, 0, catalog.Rank{})
	wantResult(t, "dropped with its rank", l.MergeReservation(dynamo), Ended)
	clock.advance(lifetime)
	wantResult(t, "which is forgotten in time", l.MergeReservation(dynamo), Applied)

	if got := ApplyResult(200).String() + Full.String(); got != "invalidfull" {
		t.Errorf("names %q", got)
	}
}

// TestDroppedStaysAway proves that a reservation that went with its rank is not
// taken again, and that others are told that it ended only by the process that
// accepted it.
func TestDroppedStaysAway(t *testing.T) {
	l, _ := withRanks(1, nil)
	bookOn(t, l, testScope, "own", 0, nil)
	l.ApplyBooked(remote(2, 7, "x"))
	own := remote(1, 1, "own")
	l.RemoveRank(testScope, 0)
	l.PutRank(testScope, 0, catalog.Rank{})
	wantResult(t, "merge", l.MergeReservation(remote(2, 7, "x")), Ended)
	wantResult(t, "merge own", l.MergeReservation(own), Ended)
	bookOn(t, l, testScope, "next", 0, nil)
	if err := l.Free("next"); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[uint64]history.EndedSet{1: {Ranges: []history.Range{span(1, 2)}}}, l.Ended()); d != "" {
		t.Errorf("ended: -want +got\n%s", d)
	}
	l.ApplyFreed(refTo(remote(2, 7, "x")))
	l.ApplyFreed(refTo(own))
	if d := cmp.Diff(map[uint64]history.EndedSet{1: {Ranges: []history.Range{span(1, 2)}}, 2: {Ranges: []history.Range{span(7, 7)}}}, l.Ended()); d != "" {
		t.Errorf("ended: -want +got\n%s", d)
	}
}

// TestRestart proves that a fresh ledger takes its former reservations over from a
// peer, ends them by id, tells the observer whose they were, and lets none live
// longer than 300 s from its acceptance, however often it changes hands.
func TestRestart(t *testing.T) {
	first, clock := withRanks(1, nil)
	for _, id := range []string{"a", "b"} {
		bookOn(t, first, testScope, id, 0, []uint64{1})
	}
	from := first
	var rec recorder
	var last *Ledger
	for life := range uint64(4) {
		clock.advance(50 * time.Second)
		var obs Observer
		if life == 3 {
			obs = &rec
		}
		last = New(10+life, clock.now, obs)
		last.PutRank(testScope, 5, catalog.Rank{})
		page, _, _ := from.Reservations(Cursor{}, 10)
		for _, b := range page {
			wantResult(t, "merge", last.MergeReservation(b), Applied)
		}
		from = last
	}
	if err := last.PrefillComplete("a"); err != nil {
		t.Error(err)
	}
	if err := last.Free("a"); err != nil {
		t.Error(err)
	}
	event := Event{Scope: testScope, ID: "a", Origin: Origin{Process: 1, Sequence: 1}}
	if d := cmp.Diff([]step{{"prefill", event}, {"freed", event}}, rec.steps); d != "" {
		t.Errorf("events -want +got\n%s", d)
	}
	clock.advance(100 * time.Second)
	if n, _ := last.Expire(); n != 0 {
		t.Errorf("%d expired at 300 s", n)
	}
	clock.advance(1)
	if n, _ := last.Expire(); n != 1 {
		t.Errorf("%d expired after 300 s, want 1", n)
	}
	if got, want := last.Stats(), (Stats{Booked: 2, Freed: 1, Expired: 1, Remote: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestGreatestAge proves that a reservation ends when it does where its age is known
// best, even if that is past.
func TestGreatestAge(t *testing.T) {
	l, clock := withRanks(1, nil)
	b := remote(2, 7, "x")
	l.ApplyBooked(b)
	for _, age := range []time.Duration{100 * time.Second, 20 * time.Second, -5 * time.Second} {
		b.Age = age
		wantResult(t, fmt.Sprint(age), l.MergeReservation(b), Known)
	}
	if page, _, _ := l.Reservations(Cursor{}, 1); page[0].Age != 100*time.Second {
		t.Errorf("age %v, want 100 s", page[0].Age)
	}
	b.Age = math.MaxInt64
	l.MergeReservation(b)
	clock.advance(1)
	if n, _ := l.Expire(); n != 1 {
		t.Errorf("%d expired, want 1", n)
	}
}

// TestCutOff proves that an id that two replicas took while they did not see
// each other counts twice, and that each frees its own.
func TestCutOff(t *testing.T) {
	clock := newFakeClock()
	ledgers := []*Ledger{New(1, clock.now, nil), New(2, clock.now, nil)}
	for i, l := range ledgers {
		l.PutRank(testScope, uint32(i), catalog.Rank{})
		_, err := l.Book(testScope, Request{ID: "x", TrackPrefill: true}, func(v *View) (Placement, error) {
			slot, ok := v.Slot(catalog.Rank{})
			if _, found := v.Slot(catalog.Rank{Worker: 9}); !ok || found {
				t.Error("the wrong ranks are known")
			}
			return Placement{Slot: slot, PrefillTokens: uint64(i + 1)}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	a, b := ledgers[0], ledgers[1]
	exchange := func() {
		for i, l := range ledgers {
			other := ledgers[1-i]
			for process, ranges := range other.Ended() {
				l.MergeEnded(process, ranges)
			}
			page, _, _ := other.Reservations(Cursor{}, 10)
			for _, b := range page {
				l.MergeReservation(b)
			}
		}
	}
	exchange()
	wantLoad(t, a, 3, 0, 2)
	wantLoad(t, b, 3, 0, 2)
	if err := b.Free("x"); err != nil {
		t.Fatal(err)
	}
	exchange()
	wantLoad(t, a, 1, 0, 1)
	wantLoad(t, b, 1, 0, 1)
	if err := b.FreeIn(testScope, "x"); err != nil { // a's, which is left
		t.Fatal(err)
	}
	exchange()
	wantLoad(t, a, 0, 0, 0)
	if st := a.Stats(); st.Freed != 2 {
		t.Errorf("%+v, want two freed", st)
	}
}

// TestIDsInScopes proves which ids may live side by side and which of them a
// call means.
func TestIDsInScopes(t *testing.T) {
	var rec recorder
	l := New(1, newFakeClock().now, &rec)
	scopes := []catalog.Scope{{Model: "a"}, {Model: "b"}, {Model: "c"}}
	for _, sc := range scopes {
		l.PutRank(sc, 0, catalog.Rank{})
	}
	book := func(sc int, perScope bool) bool {
		_, err := l.Book(scopes[sc], Request{ID: "x", PerScope: perScope}, func(*View) (Placement, error) {
			return Placement{}, nil
		})
		return err == nil
	}
	foreign := remote(2, 7, "x")
	foreign.Scope = scopes[2]
	for i, ok := range []bool{
		book(0, true), !book(0, true), !book(0, false), // taken in the scope
		book(1, false),  // beside an id per scope
		!book(2, false), // taken service-wide
		l.ApplyBooked(foreign) == Applied,
		!book(2, true),
	} {
		if !ok {
			t.Errorf("step %d", i)
		}
	}
	// Service-wide before per scope, own before others'.
	for range 3 {
		if err := l.Free("x"); err != nil {
			t.Fatal(err)
		}
	}
	var freed []string
	for _, s := range rec.steps {
		if s.Kind == "freed" {
			freed = append(freed, s.Scope.Model)
		}
	}
	if d := cmp.Diff([]string{"b", "c", "a"}, freed); d != "" {
		t.Errorf("freed: -want +got\n%s", d)
	}
	for _, err := range []error{
		l.Free("x"), l.FreeIn(scopes[0], "x"), l.FreeIn(catalog.Scope{}, "x"), l.PrefillCompleteIn(scopes[0], "x"),
	} {
		if err != ErrNotFound { //nolint:errorlint // returned as it is
			t.Errorf("error %v, want ErrNotFound", err)
		}
	}
}

// TestCallInScopeMeansOwn proves that a call in one scope means what this ledger
// accepted there, whatever another one accepted under the same id.
func TestCallInScopeMeansOwn(t *testing.T) {
	for _, perScope := range []bool{true, false} {
		var rec recorder
		l := New(1, newFakeClock().now, &rec)
		l.PutRank(testScope, 0, catalog.Rank{})
		_, err := l.Book(testScope, Request{ID: "x", PerScope: perScope}, func(*View) (Placement, error) { return Placement{}, nil })
		if err != nil {
			t.Fatal(err)
		}
		for process, others := range map[uint64]bool{2: false, 3: true} {
			b := remote(process, 7, "x")
			b.Rank, b.PerScope = catalog.Rank{}, others
			wantResult(t, "merge", l.MergeReservation(b), Applied)
		}
		for range 3 {
			if err := l.FreeIn(testScope, "x"); err != nil {
				t.Fatal(err)
			}
		}
		var freed []uint64
		for _, s := range rec.steps {
			if s.Kind == "freed" {
				freed = append(freed, s.Origin.Process)
			}
		}
		if d := cmp.Diff([]uint64{1, 3, 2}, freed); d != "" {
			t.Errorf("own per scope %t: freed: -want +got\n%s", perScope, d)
		}
	}
}

// TestHugeNumbers proves that no number in a message does harm.
func TestHugeNumbers(t *testing.T) {
	l, _ := withRanks(1, nil)
	for n, seq := range []uint64{1, math.MaxUint64 - 1, math.MaxUint64} {
		b := remote(uint64(n+2), seq, fmt.Sprint(n))
		b.PrefillTokens = math.MaxUint64
		l.ApplyBooked(b)
	}
	wantLoad(t, l, math.MaxUint64, 2, 2) // the last number names nothing
	for _, ranges := range [][]history.Range{{span(0, math.MaxUint64)}, {span(math.MaxUint64, math.MaxUint64), span(9, 3)}, nil} {
		for n := range uint64(3) {
			l.MergeEnded(n+1, history.EndedSet{Ranges: ranges})
		}
	}
	wantLoad(t, l, 0, 0, 0)
	if d := cmp.Diff([]history.Range{span(1, math.MaxUint64-1)}, l.Ended()[3].Ranges); d != "" {
		t.Errorf("ended: -want +got\n%s", d)
	}
	wantResult(t, "free", l.ApplyFreed(Ref{Origin: Origin{Process: 4, Sequence: math.MaxUint64}, Scope: testScope}), Ended)
}

// TestFreedByRightName proves that a reservation ends by its full name, own or not,
// whatever wrong names of the same number come with it, and no other way.
func TestFreedByRightName(t *testing.T) {
	for _, wrongFirst := range []bool{true, false} {
		l, _ := withRanks(1, nil)
		if _, err := l.Book(testScope, Request{ID: "own"}, func(*View) (Placement, error) { return Placement{}, nil }); err != nil {
			t.Fatal(err)
		}
		other := remote(2, 7, "x")
		wantResult(t, "booked", l.ApplyBooked(other), Applied)
		page, _, _ := l.Reservations(Cursor{}, 10)
		var right, wrong []history.Name
		for i := range page {
			right = append(right, page[i].name())
			wrong = append(wrong, history.Name{Origin: page[i].Origin, Hash: 4711})
		}
		if freed, _ := l.MergeFreed(3, wrong); freed != 0 || len(right) != 2 {
			t.Fatalf("%d of %d end by wrong names", freed, len(right))
		}
		for i := range wrong {
			wrong[i].Hash++
		}
		names := slices.Concat(right, wrong)
		if wrongFirst {
			names = slices.Concat(wrong, right)
		}
		if freed, _ := l.MergeFreed(3, names); freed != 2 {
			t.Errorf("wrong names first: %v: %d end, want 2", wrongFirst, freed)
		}
	}
}

// TestCompletedBeforeRelayed proves that a completed prefill of which a process has
// told itself is known when another one tells of the reservation.
func TestCompletedBeforeRelayed(t *testing.T) {
	l, _ := withRanks(1, nil)
	b := remote(2, 7, "x")
	wantResult(t, "completed", l.ApplyPrefillCompleted(refTo(b)), UnknownID)
	b.Authority = Relayed
	wantResult(t, "relayed", l.MergeReservation(b), Applied)
	wantLoad(t, l, 0, 2, 1)
}
