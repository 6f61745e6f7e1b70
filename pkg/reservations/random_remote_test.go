package reservations

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// message is a reservation of another process, and when that accepted it.
type message struct {
	Reservation
	born time.Duration
}

// remote does something that other processes said.
func (run *randomRun) remote() {
	switch op := run.next(11); op {
	case 0, 1, 2:
		run.deliver(run.accept())
	case 3: // known to be booked, but only by what comes after it
		run.accept()
	case 4, 5:
		if m, ok := run.earlier(); ok {
			run.deliver(m)
		}
	case 6, 7:
		ref := run.ref()
		run.sameResult("freed", ref, run.led.ApplyFreed(ref), run.model.applyFreed(ref))
	case 8:
		ref := run.ref()
		run.sameResult("prefill", ref, run.led.ApplyPrefillCompleted(ref), run.model.applyPrefillCompleted(ref))
	case 9:
		process := []uint64{1, 2, 3}[run.next(3)]
		ended := run.ranges(process)
		merged, doubtful := history.EndedSet{Ranges: ended}, []history.Range(nil)
		if run.next(2) == 0 { // old ones, or from one who knows of no leases
			merged = history.EndedSet{Ranges: ended, Assumed: math.MaxUint64, Leases: ended[:run.next(1+len(ended))]}
			ended, doubtful = nil, ended
		}
		if got, want := run.led.MergeEnded(process, merged), run.model.mergeEnded(process, ended, doubtful, merged.Leases); got != want {
			run.Fatalf("MergeEnded(%d, %v) = %d, model %d", process, merged, got, want)
		}
	case 10:
		ref := run.ref()
		ref.Event = Origin{}
		run.sameResult("renewed", ref, run.led.ApplyRenewed(ref), run.model.applyRenewed(ref))
	}
}

// accept makes a reservation of another process: 2 and 3 number them, 9 does not.
func (run *randomRun) accept() message {
	p := run.place()
	b := Reservation{
		Origin: Origin{Process: []uint64{2, 3, 9}[run.next(3)]},
		Scope:  p.scope, ID: run.id(), Rank: catalog.Rank{Worker: uint64(p.slot)},
		PerScope: run.next(4) == 0, Hashes: run.prompt(), PrefillTokens: uint64(run.next(100)),
		TrackPrefill: run.next(8) != 0, Lease: run.lease(), Prompt: uint64(run.next(200)),
	}
	if b.PrefillTokens == 99 {
		b.PrefillTokens = ^uint64(0)
	}
	if b.Origin.Process != 9 {
		run.last += 1 + uint64(run.next(3))
		b.Origin.Sequence = run.last
	}
	m := message{b, run.model.now - time.Duration(run.next(320))*time.Second}
	run.sent = append(run.sent, m)
	return m
}

// earlier returns one of the latest reservations of others, or one of its own that
// comes back.
func (run *randomRun) earlier() (message, bool) {
	if n := len(run.model.live); n > 0 && run.next(8) == 0 {
		b := run.model.live[run.next(n)]
		return message{Reservation{
			Origin: b.origin, Scope: b.scope, ID: b.id, Rank: b.rank, PerScope: b.perScope,
			Hashes: b.chain, PrefillTokens: b.tokens, TrackPrefill: b.track, Lease: b.lease.length,
		}, b.at}, true
	}
	if len(run.sent) == 0 {
		return message{}, false
	}
	m := run.sent[max(0, len(run.sent)-1-run.next(60))]
	// What is older than that, Stale keeps out in life.
	return m, run.model.now-m.born < 400*time.Second
}

// deliver applies a reservation as an event or from a snapshot.
func (run *randomRun) deliver(m message) {
	b := m.Reservation
	b.Hashes = slices.Clone(b.Hashes)
	b.Age = run.model.now - m.born
	b.PrefillDone = run.next(4) == 0
	if run.next(8) == 0 {
		b.Lease = 0 // the sender knows of none
	}
	if run.next(2) == 0 {
		b.Renewed = time.Duration(run.next(16)) * b.Age / 15
		run.sameResult("merged", b, run.led.MergeReservation(run.prefixed(b)), run.model.apply(b, true))
		return
	}
	run.sameResult("booked", b, run.led.ApplyBooked(run.prefixed(b)), run.model.apply(b, false))
}

// prefixed sometimes says the same of a prompt by a prefix.
func (run *randomRun) prefixed(b Reservation) Reservation {
	if len(run.model.live) == 0 {
		return b
	}
	o := run.model.live[run.next(len(run.model.live))]
	if o.scope != b.Scope || !o.origin.Numbered() || run.model.now > o.deadline() {
		return b
	}
	n := 0
	for n < min(len(b.Hashes), len(o.chain)) && b.Hashes[n] == o.chain[n] {
		n++
	}
	if n == 0 {
		return b
	}
	n = 1 + run.next(n)
	b.Prefix = Prefix{Origin: o.origin, ID: o.id, Blocks: n, Digest: DigestOf(b.Hashes[:n])}
	b.Hashes = b.Hashes[n:]
	return b
}

// ref names a reservation, live or not, of whatever process.
func (run *randomRun) ref() Ref {
	m, ok := run.earlier()
	if !ok || run.next(4) == 0 {
		p := run.place()
		return Ref{Origin: Origin{Process: 9}, Scope: p.scope, ID: run.id(), Rank: catalog.Rank{Worker: uint64(p.slot)}}
	}
	ref := Ref{Origin: m.Origin, Scope: m.Scope, ID: m.ID, Rank: m.Rank}
	switch run.next(4) {
	case 0:
		ref.Origin = Origin{Process: 9}
	case 1:
		run.last++
		ref.Event = Origin{Process: uint64(2 + run.next(2)), Sequence: run.last}
	}
	return ref
}

// ranges returns up to three short ranges in any order.
func (run *randomRun) ranges(process uint64) (out []history.Range) {
	last := run.last
	if process == 1 {
		last = run.model.past.own
	}
	if last == 0 {
		return nil
	}
	for range run.next(4) {
		to := last - min(last-1, uint64(run.next(60)))
		out = append(out, span(max(2, to-min(to-1, uint64(run.next(3)))), to)) // from 1 on: see TestAssumed
	}
	return out
}

func (run *randomRun) sameResult(what string, of any, got, want ApplyResult) {
	run.Helper()
	if got != want {
		run.Fatalf("%s %+v: %v, model says %v", what, of, got, want)
	}
}

// compareReservations pages through all reservations.
func (run *randomRun) compareReservations() {
	run.Helper()
	var got, want []Reservation
	limit := 1 + run.next(200)
	var at Cursor
	for more := true; more; {
		var page []Reservation
		text, _ := at.MarshalText()
		if err := at.UnmarshalText(text); err != nil {
			run.Fatal(err)
		}
		if page, at, more = run.led.Reservations(at, limit); len(page) > limit {
			run.Fatalf("a page of %d, limit %d", len(page), limit)
		}
		got = append(got, page...)
	}
	run.compareListed(got, limit)
	for _, b := range run.model.live {
		line := Reservation{
			Origin: b.origin, Scope: b.scope, ID: b.id, Rank: b.rank, PerScope: b.perScope, Hashes: b.chain,
			PrefillTokens: b.tokens, TrackPrefill: b.track, PrefillDone: b.done, Age: run.model.now - b.at,
		}
		if b.lease.length > 0 {
			line.Lease, line.Renewed = b.lease.length, b.renewed()-b.at
		}
		want = append(want, line)
	}
	byName := func(a, b Reservation) int {
		return cmp.Or(cmp.Compare(a.Origin.Process, b.Origin.Process), cmp.Compare(a.Origin.Sequence, b.Origin.Sequence),
			cmp.Compare(a.Scope.Tenant, b.Scope.Tenant), cmp.Compare(a.ID, b.ID))
	}
	slices.SortFunc(got, byName)
	slices.SortFunc(want, byName)
	if d := gocmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		run.Fatalf("reservations: -model +ledger\n%s", d)
	}
}

// compareListed proves that pages with common beginnings once are of the same reservations.
func (run *randomRun) compareListed(want []Reservation, limit int) {
	run.Helper()
	var got []Reservation
	var at Cursor
	for more := true; more; {
		var page []ListedReservation
		page, at, more = run.led.ListedReservations(at, limit)
		for i := range page {
			b := page[i].Reservation
			if n := page[i].Blocks; n > 0 {
				b.Hashes = append(slices.Clone(page[page[i].Like].Hashes[:n]), b.Hashes...)
				page[i].Hashes = b.Hashes
			}
			got = append(got, b)
		}
	}
	if d := gocmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		run.Fatalf("pages with common beginnings once: -whole +these\n%s", d)
	}
}

// compareEnded compares the latest numbers: older ones may count as ended.
func (run *randomRun) compareEnded() {
	run.Helper()
	ended := run.led.Ended()
	for process, last := range map[uint64]uint64{1: run.model.past.own, 2: run.last, 3: run.last} {
		for n := last - min(last, 40) + 1; n <= last; n++ {
			o := Origin{Process: process, Sequence: n}
			if got, want := ended[process].Has(n, false), run.model.hasEnded(o); got != want {
				run.Fatalf("%v ended: %v, model says %v", o, got, want)
			}
		}
	}
	for _, process := range slices.Sorted(maps.Keys(ended)) {
		set := ended[process]
		if d := gocmp.Diff(set.Normalized(), set, cmpopts.EquateEmpty()); d != "" {
			run.Fatalf("the ranges of %d are not ascending: -want +got\n%s", process, d)
		}
	}
}
