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
func (h *randomRun) remote() {
	switch op := h.next(11); op {
	case 0, 1, 2:
		h.deliver(h.accept())
	case 3: // known to be booked, but only by what comes after it
		h.accept()
	case 4, 5:
		if m, ok := h.earlier(); ok {
			h.deliver(m)
		}
	case 6, 7:
		ref := h.ref()
		h.sameResult("freed", ref, h.led.ApplyFreed(ref), h.model.applyFreed(ref))
	case 8:
		ref := h.ref()
		h.sameResult("prefill", ref, h.led.ApplyPrefillCompleted(ref), h.model.applyPrefillCompleted(ref))
	case 9:
		process := []uint64{1, 2, 3}[h.next(3)]
		ended := h.ranges(process)
		merged, doubtful := history.EndedSet{Ranges: ended}, []history.Range(nil)
		if h.next(2) == 0 { // old ones, or from one who knows of no leases
			merged = history.EndedSet{Ranges: ended, Assumed: math.MaxUint64, Leases: ended[:h.next(1+len(ended))]}
			ended, doubtful = nil, ended
		}
		if got, want := h.led.MergeEnded(process, merged), h.model.mergeEnded(process, ended, doubtful, merged.Leases); got != want {
			h.Fatalf("MergeEnded(%d, %v) = %d, model %d", process, merged, got, want)
		}
	case 10:
		ref := h.ref()
		ref.Event = Origin{}
		h.sameResult("renewed", ref, h.led.ApplyRenewed(ref), h.model.applyRenewed(ref))
	}
}

// accept makes a reservation of another process: 2 and 3 number them, 9 does not.
func (h *randomRun) accept() message {
	p := h.place()
	b := Reservation{
		Origin: Origin{Process: []uint64{2, 3, 9}[h.next(3)]},
		Scope:  p.scope, ID: h.id(), Rank: catalog.Rank{Worker: uint64(p.slot)},
		PerScope: h.next(4) == 0, Hashes: h.prompt(), PrefillTokens: uint64(h.next(100)),
		TrackPrefill: h.next(8) != 0, Lease: h.lease(), Prompt: uint64(h.next(200)),
	}
	if b.PrefillTokens == 99 {
		b.PrefillTokens = ^uint64(0)
	}
	if b.Origin.Process != 9 {
		h.last += 1 + uint64(h.next(3))
		b.Origin.Sequence = h.last
	}
	m := message{b, h.model.now - time.Duration(h.next(320))*time.Second}
	h.sent = append(h.sent, m)
	return m
}

// earlier returns one of the latest reservations of others, or one of its own that
// comes back.
func (h *randomRun) earlier() (message, bool) {
	if n := len(h.model.live); n > 0 && h.next(8) == 0 {
		b := h.model.live[h.next(n)]
		return message{Reservation{
			Origin: b.origin, Scope: b.scope, ID: b.id, Rank: b.rank, PerScope: b.perScope,
			Hashes: b.chain, PrefillTokens: b.tokens, TrackPrefill: b.track, Lease: b.lease.length,
		}, b.at}, true
	}
	if len(h.sent) == 0 {
		return message{}, false
	}
	m := h.sent[max(0, len(h.sent)-1-h.next(60))]
	// What is older than that, Stale keeps out in life.
	return m, h.model.now-m.born < 400*time.Second
}

// deliver applies a reservation as an event or from a snapshot.
func (h *randomRun) deliver(m message) {
	b := m.Reservation
	b.Hashes = slices.Clone(b.Hashes)
	b.Age = h.model.now - m.born
	b.PrefillDone = h.next(4) == 0
	if h.next(8) == 0 {
		b.Lease = 0 // the sender knows of none
	}
	if h.next(2) == 0 {
		b.Renewed = time.Duration(h.next(16)) * b.Age / 15
		h.sameResult("merged", b, h.led.MergeReservation(h.prefixed(b)), h.model.apply(b, true))
		return
	}
	h.sameResult("booked", b, h.led.ApplyBooked(h.prefixed(b)), h.model.apply(b, false))
}

// prefixed sometimes says the same of a prompt by a prefix.
func (h *randomRun) prefixed(b Reservation) Reservation {
	if len(h.model.live) == 0 {
		return b
	}
	o := h.model.live[h.next(len(h.model.live))]
	if o.scope != b.Scope || !o.origin.Numbered() || h.model.now > o.deadline() {
		return b
	}
	n := 0
	for n < min(len(b.Hashes), len(o.chain)) && b.Hashes[n] == o.chain[n] {
		n++
	}
	if n == 0 {
		return b
	}
	n = 1 + h.next(n)
	b.Prefix = Prefix{Origin: o.origin, ID: o.id, Blocks: n, Digest: DigestOf(b.Hashes[:n])}
	b.Hashes = b.Hashes[n:]
	return b
}

// ref names a reservation, live or not, of whatever process.
func (h *randomRun) ref() Ref {
	m, ok := h.earlier()
	if !ok || h.next(4) == 0 {
		p := h.place()
		return Ref{Origin: Origin{Process: 9}, Scope: p.scope, ID: h.id(), Rank: catalog.Rank{Worker: uint64(p.slot)}}
	}
	ref := Ref{Origin: m.Origin, Scope: m.Scope, ID: m.ID, Rank: m.Rank}
	switch h.next(4) {
	case 0:
		ref.Origin = Origin{Process: 9}
	case 1:
		h.last++
		ref.Event = Origin{Process: uint64(2 + h.next(2)), Sequence: h.last}
	}
	return ref
}

// ranges returns up to three short ranges in any order.
func (h *randomRun) ranges(process uint64) (out []history.Range) {
	last := h.last
	if process == 1 {
		last = h.model.past.own
	}
	if last == 0 {
		return nil
	}
	for range h.next(4) {
		to := last - min(last-1, uint64(h.next(60)))
		out = append(out, span(max(2, to-min(to-1, uint64(h.next(3)))), to)) // from 1 on: see TestAssumed
	}
	return out
}

func (h *randomRun) sameResult(what string, of any, got, want ApplyResult) {
	h.Helper()
	if got != want {
		h.Fatalf("%s %+v: %v, model says %v", what, of, got, want)
	}
}

// compareReservations pages through all reservations.
func (h *randomRun) compareReservations() {
	h.Helper()
	var got, want []Reservation
	limit := 1 + h.next(200)
	var at Cursor
	for more := true; more; {
		var page []Reservation
		text, _ := at.MarshalText()
		if err := at.UnmarshalText(text); err != nil {
			h.Fatal(err)
		}
		if page, at, more = h.led.Reservations(at, limit); len(page) > limit {
			h.Fatalf("a page of %d, limit %d", len(page), limit)
		}
		got = append(got, page...)
	}
	h.compareListed(got, limit)
	for _, b := range h.model.live {
		line := Reservation{
			Origin: b.origin, Scope: b.scope, ID: b.id, Rank: b.rank, PerScope: b.perScope, Hashes: b.chain,
			PrefillTokens: b.tokens, TrackPrefill: b.track, PrefillDone: b.done, Age: h.model.now - b.at,
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
		h.Fatalf("reservations: -model +ledger\n%s", d)
	}
}

// compareListed proves that pages with common beginnings once are of the same reservations.
func (h *randomRun) compareListed(want []Reservation, limit int) {
	h.Helper()
	var got []Reservation
	var at Cursor
	for more := true; more; {
		var page []ListedReservation
		page, at, more = h.led.ListedReservations(at, limit)
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
		h.Fatalf("pages with common beginnings once: -whole +these\n%s", d)
	}
}

// compareEnded compares the latest numbers: older ones may count as ended.
func (h *randomRun) compareEnded() {
	h.Helper()
	ended := h.led.Ended()
	for process, last := range map[uint64]uint64{1: h.model.past.own, 2: h.last, 3: h.last} {
		for n := last - min(last, 40) + 1; n <= last; n++ {
			o := Origin{Process: process, Sequence: n}
			if got, want := ended[process].Has(n, false), h.model.hasEnded(o); got != want {
				h.Fatalf("%v ended: %v, model says %v", o, got, want)
			}
		}
	}
	for _, process := range slices.Sorted(maps.Keys(ended)) {
		set := ended[process]
		if d := gocmp.Diff(set.Normalized(), set, cmpopts.EquateEmpty()); d != "" {
			h.Fatalf("the ranges of %d are not ascending: -want +got\n%s", process, d)
		}
	}
}
