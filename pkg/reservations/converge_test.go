package reservations

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
	"github.com/select-service/select-service/test/helpers/length"
)

// TestConvergence proves for random operations on several replicas, with events
// and snapshots lost, repeated, late and in any order, with expiry, restarts and
// clashing ids, that every replica always has live what the naive rule says (what
// it ever heard of, less what it ever heard to have ended), and that all agree
// after they have exchanged their snapshots.
func TestConvergence(t *testing.T) {
	seeds := uint64(length.Of(40, 16, 4))
	for seed := range seeds {
		converge(t, seed)
	}
}

// FuzzConvergence is TestConvergence for as many runs as there is time.
func FuzzConvergence(f *testing.F) {
	f.Add(uint64(1000))
	f.Fuzz(converge)
}

func converge(t *testing.T, seed uint64) {
	w := newFleet(t, seed)
	for range 250 {
		w.step()
	}
	w.agree()
	if t.Failed() {
		t.Fatalf("seed %d", seed)
	}
}

// fleet is a few replicas and what is under way between them.
type fleet struct {
	*testing.T
	rnd      *rand.Rand
	clock    *fakeClock
	replicas []*replica
	mail     []letter
	process  uint64 // last one given
}

// replica is a ledger and the naive state beside it.
type replica struct {
	*fleet
	led     *Ledger
	process uint64
	seq     uint64
	naive   naive
}

// naive is all that a replica ever heard, in sets that only grow; but for leases
// that run out on a replica which did not grant them: it forgets the reservation, of
// which it then takes no event.
type naive struct {
	own    uint64
	known  map[Origin]*naiveEntry
	done   map[Origin]bool
	ended  map[Origin]bool
	lapsed map[Origin]bool
}

type naiveEntry struct {
	id       string
	accepted time.Time     // the earliest that was heard of
	lease    time.Duration // 0: none
	renewed  time.Duration // the latest that was heard of in snapshots, since accepted
	touched  time.Time     // the latest renewal here and in events
}

func newNaive(own uint64) naive {
	return naive{own, make(map[Origin]*naiveEntry), make(map[Origin]bool), make(map[Origin]bool), make(map[Origin]bool)}
}

// last is the last renewal.
func (n *naiveEntry) last() time.Time {
	if last := n.accepted.Add(n.renewed); last.After(n.touched) {
		return last
	}
	return n.touched
}

// over: the reservation ends by age or with its lease.
func (n *naive) over(o Origin, now time.Time) bool {
	b := n.known[o]
	switch {
	case b.lease == 0:
		return now.Sub(b.accepted) > 300*time.Second
	case o.Process == n.own:
		return now.Sub(b.last()) > b.lease
	}
	return now.Sub(b.last()) > b.lease+max(5*time.Second, b.lease/2)
}

// letter is an event or a snapshot.
type letter struct {
	from *replica
	sent time.Time

	kind   string // of an event
	booked Reservation
	ref    Ref

	reservations []Reservation
	ended        map[uint64]history.EndedSet
	dead         map[Origin]bool // ended, naively
}

func newFleet(t *testing.T, seed uint64) *fleet {
	w := &fleet{T: t, rnd: rand.New(rand.NewPCG(seed, 1)), clock: newFakeClock()}
	for range 3 {
		w.replicas = append(w.replicas, w.start())
	}
	return w
}

var fleetScopes = []catalog.Scope{{Model: "a"}, {Model: "b"}}

// start returns a replica that knows nothing but its ranks. Their slots differ
// from replica to replica.
func (f *fleet) start() *replica {
	f.process++
	r := &replica{fleet: f, process: f.process, naive: newNaive(f.process)}
	r.led = New(r.process, f.clock.now, r)
	for _, sc := range fleetScopes {
		for i, slot := range f.rnd.Perm(3) {
			r.led.PutRank(sc, uint32(slot), catalog.Rank{Worker: uint64(i)})
		}
	}
	return r
}

// The replica counts all events that it sends.
func (r *replica) Booked(e Event) uint64 {
	r.seq++
	b := Reservation{
		Origin: Origin{Process: r.process, Sequence: r.seq}, Scope: e.Scope, ID: e.ID, Rank: e.Rank, PerScope: e.PerScope, Hashes: e.Hashes,
		PrefillTokens: e.PrefillTokens, TrackPrefill: e.TrackPrefill, Lease: e.Lease,
	}
	r.naive.hear(b, r.clock.t)
	r.send(letter{kind: "booked", booked: b})
	return r.seq
}

func (r *replica) PrefillCompleted(e Event) {
	r.naive.done[e.Origin] = true
	r.naive.renew(e.Origin, r.clock.t)
	r.send(letter{kind: "prefill", ref: r.ref(e)})
}

func (r *replica) Freed(e Event) {
	r.naive.ended[e.Origin] = true
	r.send(letter{kind: "freed", ref: r.ref(e)})
}

func (r *replica) Renewed(e Event) {
	r.send(letter{kind: "renewed", ref: Ref{Origin: e.Origin, Scope: e.Scope, ID: e.ID, Rank: e.Rank}})
}

func (r *replica) ref(e Event) Ref {
	r.seq++
	return Ref{Origin: e.Origin, Scope: e.Scope, ID: e.ID, Rank: e.Rank, Event: Origin{Process: r.process, Sequence: r.seq}}
}

func (r *replica) send(l letter) {
	l.from, l.sent = r, r.clock.t
	r.mail = append(r.mail, l)
}

// hear is what a reservation tells, in an event, in a snapshot or at its acceptance.
func (n *naive) hear(b Reservation, now time.Time) {
	accepted := now.Add(-b.Age)
	x := n.known[b.Origin]
	if x == nil {
		x = &naiveEntry{id: b.ID, accepted: accepted, lease: b.Lease}
		n.known[b.Origin] = x
	}
	if accepted.Before(x.accepted) {
		x.accepted = accepted
	}
	x.renewed = max(x.renewed, b.Renewed)
	if b.PrefillDone {
		n.done[b.Origin] = true
	}
}

// renew: the live reservation was renewed.
func (n *naive) renew(o Origin, now time.Time) {
	if b := n.known[o]; b != nil && !n.ended[o] {
		b.touched = now
	}
}

// live returns the ids of the live reservations and whether their prefill is done.
func (n *naive) live() map[Origin]string {
	out := make(map[Origin]string)
	for o, b := range n.known {
		if !n.ended[o] {
			out[o] = fmt.Sprint(b.id, n.done[o])
		}
	}
	return out
}

func (f *fleet) step() {
	r := f.replicas[f.rnd.IntN(len(f.replicas))]
	id, sc := fmt.Sprint("r", f.rnd.IntN(12)), fleetScopes[f.rnd.IntN(2)]
	switch f.rnd.IntN(22) {
	case 0, 1, 2, 3:
		req := Request{
			ID: id, PerScope: f.rnd.IntN(2) == 0, TrackPrefill: true,
			Hashes: chain(f.rnd.IntN(6), func(i int) uint64 { return uint64(f.rnd.IntN(2)) }),
			Lease:  []time.Duration{0, 0, 30 * time.Second, 100 * time.Second, 400 * time.Second}[f.rnd.IntN(5)],
		}
		_, _ = r.led.Book(sc, req, func(v *View) (Placement, error) {
			rank := catalog.Rank{Worker: uint64(f.rnd.IntN(3))}
			slot, _ := v.Slot(rank)
			return Placement{Slot: slot, Rank: rank, PrefillTokens: uint64(f.rnd.IntN(50))}, nil
		})
	case 4:
		_ = r.led.Free(id)
	case 5:
		_ = r.led.FreeIn(sc, id)
	case 6:
		_ = r.led.PrefillComplete(id)
	case 20, 21:
		r.renew(id)
	case 7, 8, 9, 10, 11, 12, 13:
		if len(f.mail) > 0 {
			r.receive(f.mail[f.rnd.IntN(len(f.mail))])
		}
	case 14, 15:
		f.mail = append(f.mail, r.snapshot())
	case 16, 17:
		f.mail = slices.DeleteFunc(f.mail, func(l letter) bool {
			return f.rnd.IntN(8) == 0 || f.clock.t.Sub(l.sent) > 200*time.Second
		})
	case 18:
		f.advance(time.Duration(f.rnd.IntN(40)) * time.Second)
	case 19:
		if f.rnd.IntN(6) == 0 {
			f.replicas[f.rnd.IntN(len(f.replicas))] = f.start()
		}
	}
	r.check()
}

// renew renews what a call by the id means; which one that is, model and ledger
// agree on elsewhere.
func (r *replica) renew(id string) {
	if found, _ := r.led.Find(id); r.led.Renew(id) == nil {
		r.naive.renew(found.Origin, r.clock.t)
	}
}

func (f *fleet) advance(d time.Duration) {
	f.clock.advance(d)
	for _, r := range f.replicas {
		r.expire()
	}
}

func (r *replica) expire() {
	for o := range r.naive.known {
		switch b := r.naive.known[o]; {
		case r.naive.ended[o] || !r.naive.over(o, r.clock.t):
		case b.lease > 0 && o.Process != r.process:
			delete(r.naive.known, o)
			r.naive.lapsed[o] = true
		default:
			r.naive.ended[o] = true
		}
	}
	r.led.Expire()
}

func (r *replica) reservations() (all []Reservation) {
	var at Cursor
	for more := true; more; {
		var page []Reservation
		page, at, more = r.led.Reservations(at, 3)
		all = append(all, page...)
	}
	return all
}

func (r *replica) snapshot() letter {
	return letter{
		from: r, sent: r.clock.t, kind: "snapshot", reservations: r.reservations(),
		ended: r.led.Ended(), dead: maps.Clone(r.naive.ended),
	}
}

func (r *replica) receive(l letter) {
	if l.from == r {
		return
	}
	now := r.clock.t
	switch l.kind {
	case "booked":
		r.led.ApplyBooked(l.booked)
		if !r.naive.lapsed[l.booked.Origin] || r.naive.known[l.booked.Origin] != nil {
			r.naive.hear(l.booked, now)
		}
	case "prefill":
		r.led.ApplyPrefillCompleted(l.ref)
		r.naive.done[l.ref.Origin] = true
	case "renewed":
		r.led.ApplyRenewed(l.ref)
		r.naive.renew(l.ref.Origin, now)
	case "freed":
		r.led.ApplyFreed(l.ref)
		r.naive.ended[l.ref.Origin] = true
	case "snapshot":
		for process, ranges := range l.ended {
			r.led.MergeEnded(process, ranges)
		}
		maps.Copy(r.naive.ended, l.dead)
		for _, b := range l.reservations {
			if v := r.led.MergeReservation(b); v != Stale {
				r.naive.hear(b, now)
			}
		}
	}
}

// check compares the ledger with the naive state.
func (r *replica) check() {
	r.Helper()
	got := make(map[Origin]string)
	for _, b := range r.reservations() {
		got[b.Origin] = fmt.Sprint(b.ID, b.PrefillDone)
	}
	if d := gocmp.Diff(r.naive.live(), got); d != "" {
		r.Fatalf("process %d: -naive +ledger\n%s", r.process, d)
	}
	for process, ended := range r.led.Ended() {
		for o := range got {
			if o.Process == process && ended.Has(o.Sequence, r.naive.known[o].lease > 0) {
				r.Fatalf("process %d: %v is live and has ended", r.process, o)
			}
		}
	}
}

// agree exchanges all snapshots and compares what all replicas have.
func (f *fleet) agree() {
	f.Helper()
	// A reservation of exactly 300 s lives on where it is, but is not taken over.
	f.advance(1)
	truth := newNaive(0)
	for _, r := range f.replicas {
		for o := range r.naive.live() { // stale nowhere: every replica has expired its own
			truth.hear(Reservation{Origin: o, ID: r.naive.known[o].id}, f.clock.t)
		}
		maps.Copy(truth.ended, r.naive.ended)
		maps.Copy(truth.done, r.naive.done)
	}
	for range 2 { // what a completed prefill was early for comes with the first
		for _, from := range f.replicas {
			for _, to := range f.replicas {
				to.receive(from.snapshot())
			}
		}
	}
	for _, r := range f.replicas {
		r.check()
		if d := gocmp.Diff(truth.live(), r.naive.live()); d != "" {
			f.Errorf("process %d: -all +own\n%s", r.process, d)
		}
	}
	f.same()
}

// same compares all replicas.
func (f *fleet) same() {
	f.Helper()
	byOrigin := func(a, b Reservation) int {
		return cmp.Or(cmp.Compare(a.Origin.Process, b.Origin.Process), cmp.Compare(a.Origin.Sequence, b.Origin.Sequence))
	}
	sorted := cmpopts.SortSlices(func(a, b Reservation) bool { return byOrigin(a, b) < 0 })
	first := f.replicas[0]
	for _, r := range f.replicas[1:] {
		if d := gocmp.Diff(first.reservations(), r.reservations(), sorted, cmpopts.EquateEmpty()); d != "" {
			f.Errorf("reservations: -first +other\n%s", d)
		}
		for _, sc := range fleetScopes {
			if d := gocmp.Diff(first.led.Loads(sc), r.led.Loads(sc)); d != "" {
				f.Errorf("loads: -first +other\n%s", d)
			}
		}
	}
}
