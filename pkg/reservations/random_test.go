package reservations

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/length"
)

// tape turns bytes into decisions; it ends when they are used up.
type tape struct{ data []byte }

func (tp *tape) next(n int) int {
	if len(tp.data) == 0 {
		return 0
	}
	x := int(tp.data[0])
	tp.data = tp.data[1:]
	return x % n
}

// prompt draws from a family of chains with shared prefixes; a few are illegal:
// hashes in any order, with repeats.
func (tp *tape) prompt() []uint64 {
	n := tp.next(14)
	out := make([]uint64, n)
	if tp.next(8) == 0 {
		for i := range out {
			out[i] = uint64(tp.next(6)) // 0 is a legal hash
		}
		return out
	}
	family, fork, branch := tp.next(3), tp.next(14), tp.next(4)
	for i := range out {
		out[i] = uint64(family)<<32 | uint64(i) + 1
		if i >= fork {
			out[i] |= uint64(branch+1) << 60
		}
	}
	return out
}

func (tp *tape) place() place {
	scope := catalog.Scope{Model: "m", Tenant: "a"}
	if tp.next(8) == 0 {
		scope.Tenant = "b"
	}
	// Most traffic on few ranks, with some on both sides of word borders.
	slot := tp.next(5)
	if slot == 4 {
		slot = tp.next(150)
	}
	return place{scope, uint32(slot)}
}

// randomRun plays a tape on the ledger and on the model.
type randomRun struct {
	*testing.T
	tape
	led   *Ledger
	model *model
	clock *fakeClock
	// What other processes have booked, and the last sequence number.
	sent []message
	last uint64
	// ends are the caller states of all own reservations, including the refused ones.
	ends []*countedEnd
	// told is what the observers of prefills were told.
	told prefillsTold
}

func replay(t *testing.T, data []byte, look int) {
	clock := newFakeClock()
	h := &randomRun{T: t, tape: tape{data}, led: New(1, clock.now, nil), model: newModel(), clock: clock}
	h.led.SetPrefills(func(catalog.Scope) PrefillObserver { return &h.told })
	for slot := range uint32(4) {
		h.put(place{catalog.Scope{Model: "m", Tenant: "a"}, slot}, catalog.Rank{Worker: uint64(slot)})
	}
	for i := 0; len(h.data) > 0; i++ {
		h.step()
		if i%look == 0 {
			h.compare()
		}
	}
	h.compare()
	h.checkEmptied()
}

func (run *randomRun) put(p place, r catalog.Rank) {
	if old, ok := run.model.ranks[p]; ok && old != r {
		run.model.removeRank(p)
	}
	run.model.ranks[p] = r
	run.led.PutRank(p.scope, p.slot, r)
}

func (run *randomRun) step() {
	switch op := run.next(26); op {
	case 0, 1, 2, 3, 4, 5:
		run.book()
	case 6:
		id := run.id()
		run.same("free "+id, run.led.Free(id), run.model.free(id, nil))
	case 7:
		id, sc := run.id(), run.place().scope
		run.same("free in "+id, run.led.FreeIn(sc, id), run.model.free(id, &sc))
	case 8:
		id, sc := run.id(), run.place().scope
		if run.next(2) == 0 {
			run.same("prefill_complete "+id, run.led.PrefillComplete(id), run.model.prefillComplete(id, nil))
		} else {
			run.same("prefill_complete in "+id, run.led.PrefillCompleteIn(sc, id), run.model.prefillComplete(id, &sc))
		}
	case 9, 10, 11:
		id := run.id()
		var parts *int
		var fraction *float64
		if n := run.next(2 * unit); n <= unit {
			f := float64(n) / unit
			parts, fraction = &n, &f
		}
		run.same("output_block "+id, run.led.OutputBlock(id, fraction), run.model.output(id, parts))
	case 12:
		if run.next(4) == 0 {
			p := run.place()
			if got, want := run.led.RemoveRank(p.scope, p.slot), run.model.removeRank(p); got != want {
				run.Fatalf("RemoveRank(%v) = %d, model %d", p, got, want)
			}
		}
	case 13, 14:
		p := run.place()
		worker := uint64(p.slot)
		if run.next(16) == 0 {
			worker += 1000 // another rank takes the slot over
		}
		run.put(p, catalog.Rank{Worker: worker})
	case 15:
		d := time.Duration(run.next(16)) * 2 * time.Second
		run.clock.advance(d)
		run.model.pass(d)
		run.expire()
	case 16:
		id := run.id()
		run.same("renew "+id, run.led.Renew(id), run.model.renew(id))
	case 17:
		if run.next(2) == 0 {
			run.find(run.id())
		} else {
			run.setUncached(run.id(), uint64(run.next(4))*60)
		}
	default:
		run.remote()
		run.expire() // a greater age may have put a deadline into the past
	}
}

// expire ends what is overdue. Without it the model would not know what the next
// reservation ends.
func (run *randomRun) expire() {
	run.Helper()
	got := run.led.ExpireDue()
	if run.next(2) == 0 {
		rest, _ := run.led.Expire()
		got += rest
	}
	if want := run.model.expire(); got != want {
		run.Fatalf("%d have expired, in the model %d", got, want)
	}
}

// find compares what is found under an id, including the caller state.
func (run *randomRun) find(id string) {
	run.Helper()
	got, ok := run.led.Find(id)
	want, wantOK := run.model.holding(id)
	if wantOK && !want.Remote && got.CallerState != run.model.find(id, nil).end {
		run.Fatalf("find %s: another one's caller state", id)
	}
	got.CallerState = nil
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" || ok != wantOK {
		run.Fatalf("find %s: %v, model says %v: -model +ledger\n%s", id, ok, wantOK, d)
	}
}

// setUncached sets it for the caller that has the id, and for one that has not.
func (run *randomRun) setUncached(id string, tokens uint64) {
	run.Helper()
	b, called := run.model.find(id, nil), false
	if run.led.SetUncached(id, &countedEnd{}, tokens, func() { called = true }) || called {
		run.Fatalf("set what is uncached of %s, which is another caller's", id)
	}
	if b == nil || b.end == nil {
		return // none, or another process's
	}
	want, of := !b.done, b.end
	if got := run.led.SetUncached(id, of, tokens, func() { called = true }); got != want || called != want {
		run.Fatalf("set what is uncached of %s: %v, called: %v, want %v", id, got, called, want)
	}
	if want {
		_, b.queued.prompt = b.sizes()
		b.queued.uncached = tokens
		_, b.queued.prompt = b.sizes()
	}
}

// countedEnd is a caller state that counts its ends.
type countedEnd struct{ n int }

// PrefillEnded is part of CallerState.
func (c *countedEnd) PrefillEnded(bool) {}

// ReservationFreed is part of CallerState.
func (c *countedEnd) ReservationFreed() {}

// ReservationEnded is part of CallerState.
func (c *countedEnd) ReservationEnded() { c.n++ }

// leaseOf is none for most.
func (run *randomRun) lease() time.Duration {
	return []time.Duration{0, 0, 0, time.Second, 8 * time.Second, 20 * time.Second, 400 * time.Second}[run.next(7)]
}

func (run *randomRun) id() string { return fmt.Sprint("r", run.next(120)) }

func (run *randomRun) book() {
	id, p, hashes := run.id(), run.place(), run.prompt()
	tokens := uint64(run.next(100))
	if tokens == 99 {
		tokens = math.MaxUint64
	}
	rank, ok := run.model.ranks[p]
	if !ok {
		rank = catalog.Rank{Worker: uint64(p.slot)}
	}
	b := &modelEntry{place: p, id: id, rank: rank, perScope: run.next(4) == 0, tokens: tokens, track: run.next(8) != 0}
	b.lease.length, b.end = run.lease(), &countedEnd{}
	b.queued.uncached, b.queued.prompt = uint64(run.next(3))*50, uint64(run.next(200))
	b.queued.predicted = float64(run.next(3)) / 4
	run.ends = append(run.ends, b.end)
	req := Request{
		ID: id, PerScope: b.perScope, Hashes: slices.Clone(hashes), TrackPrefill: b.track,
		Lease: b.lease.length, CallerState: b.end, Prompt: b.queued.prompt,
	}
	_, err := run.led.Book(p.scope, req, func(*View) (Placement, error) {
		return Placement{Slot: p.slot, Rank: rank, PrefillTokens: tokens, Uncached: b.queued.uncached, Predicted: b.queued.predicted}, nil
	})
	run.same("book "+id, err, run.model.book(b, hashes))
}

func (run *randomRun) same(what string, got, want error) {
	run.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		run.Fatalf("%s: error %v, model says %v", what, got, want)
	}
}

// compare asks both for everything that can be asked.
func (run *randomRun) compare() {
	run.Helper()
	prompt := run.prompt()
	for _, scope := range []catalog.Scope{{Model: "m", Tenant: "a"}, {Model: "m", Tenant: "b"}} {
		got, want := make(map[uint32]answer), make(map[uint32]answer)
		var loads []Load
		for p := range run.model.ranks {
			if p.scope == scope {
				l := run.model.load(p)
				want[p.slot] = answer{l, run.model.shared(p, prompt), run.model.queue(p)}
				loads = append(loads, l)
			}
		}
		run.led.Look(scope, prompt, func(v *View) {
			for slot := range uint32(v.Slots()) {
				if r, ok := run.model.ranks[place{scope, slot}]; ok && v.Known(slot, r) {
					got[slot] = answer{Load{r, v.Load(slot).PrefillTokens, v.Load(slot).Blocks, v.Load(slot).Requests}, v.Shared(slot), v.Queue(slot)}
				} else if v.Load(slot) != (SlotLoad{}) || v.Shared(slot) != 0 || v.Queue(slot) != (Queue{}) {
					run.Errorf("slot %d of %v has load and no rank", slot, scope)
				}
			}
		})
		if d := cmp.Diff(want, got, cmpopts.EquateApprox(1e-12, 0)); d != "" {
			run.Fatalf("Look(%v, %v): -model +ledger\n%s", scope, prompt, d)
		}
		slices.SortFunc(loads, func(a, b Load) int { return a.Rank.Compare(b.Rank) })
		if d := cmp.Diff(loads, run.led.Loads(scope)); d != "" && len(loads) > 0 {
			run.Fatalf("Loads(%v): -model +ledger\n%s", scope, d)
		}
	}
	if got := run.led.Stats(); got.Live != uint64(len(run.model.live)) || got.Late != run.model.late || got.LeasesExpired != run.model.leasesExpired {
		run.Fatalf("%d live, %d freed late, %d leases expired; model says %d, %d and %d",
			got.Live, got.Late, got.LeasesExpired, len(run.model.live), run.model.late, run.model.leasesExpired)
	}
	run.checkEnds(len(run.model.live))
	if d := cmp.Diff(run.model.prefills.told, run.told); d != "" {
		run.Fatalf("what was told of prefills: -model +ledger\n%s", d)
	}
	run.compareReservations()
	run.compareEnded()
}

// checkEnds proves that each own reservation that is not live was told of its end,
// once, and no other.
func (run *randomRun) checkEnds(live int) {
	run.Helper()
	want := int(run.model.past.own)
	for _, b := range run.model.live[:live] {
		if b.end != nil {
			want--
			if b.end.n != 0 {
				run.Fatalf("%s is live and was told of its end", b.id)
			}
		}
	}
	for _, e := range run.ends {
		want -= e.n
		if e.n > 1 {
			run.Fatalf("told %d times of an end", e.n)
		}
	}
	if want != 0 {
		run.Fatalf("%d reservations were not told of their end", want)
	}
}

type answer struct {
	Load
	Shared uint32
	Queue
}

// checkEmptied removes everything and looks for what is left behind.
func (run *randomRun) checkEmptied() {
	scopes := make([]*scope, 0, 2)
	for _, s := range run.led.scopes {
		scopes = append(scopes, s)
	}
	for p := range run.model.ranks {
		run.led.RemoveRank(p.scope, p.slot)
	}
	for _, s := range scopes {
		b := &s.blocks
		if len(b.nodes) != 1+len(b.freeNodes) || b.positions.live != 0 || b.mixed.live != 0 || b.holders.pairs.live != 0 || len(b.children) != 0 {
			run.Errorf("%d nodes, %d positions, %d mixed blocks, %d pairs, %d children left",
				len(b.nodes)-1-len(b.freeNodes), b.positions.live, b.mixed.live, b.holders.pairs.live, len(b.children))
		}
		for i, c := range b.chunks.chunks {
			if c.live != 0 && (i > 0 || c.live > 1) { // chunk 0 is never used
				run.Errorf("%d chunks left", c.live)
			}
		}
		for _, c := range b.holders.sets.chunks {
			if c.live != 0 {
				run.Errorf("%d owner sets left", c.live)
			}
		}
		if len(s.pendingRenewals) != 0 {
			run.Errorf("%d renewals left", len(s.pendingRenewals))
		}
		if len(s.deadlines) != 0 || s.ranks.Len() != 0 || len(s.entries.records) != s.entries.ended {
			run.Errorf("%d deadlines, %d ranks, %d records left", len(s.deadlines), s.ranks.Len(), len(s.entries.records)-s.entries.ended)
		}
	}
	run.checkEnds(0)
	if n := len(run.led.scopes); n != 0 {
		run.Errorf("%d scopes left", n)
	}
	for i := range run.led.ids.shards {
		if n := len(run.led.ids.shards[i].live); n != 0 {
			run.Errorf("%d ids left", n)
		}
	}
	for _, process := range []uint64{2, 3} {
		if n := run.led.numbered.Live(process); n != 0 {
			run.Errorf("%d reservations of process %d are counted as live", n, process)
		}
	}
}

// TestHistories proves that for long random histories every answer equals the
// naive model's, and that nothing is left when all ranks are removed.
func TestHistories(t *testing.T) {
	seeds := uint64(length.Of(8, 3, 1))
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rnd := rand.NewChaCha8([32]byte{byte(seed)})
			data := make([]byte, 12_000)
			if _, err := rnd.Read(data); err != nil {
				t.Fatal(err)
			}
			replay(t, data, 25)
		})
	}
}

// FuzzHistory is TestHistories with the tape chosen by the fuzzer.
func FuzzHistory(f *testing.F) {
	rnd := rand.NewChaCha8([32]byte{42})
	for range 4 {
		data := make([]byte, 400)
		_, _ = rnd.Read(data)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4000 {
			return
		}
		replay(t, data, 1)
	})
}

// fakeClock is the time of a test.
type fakeClock struct{ t time.Time }

func newFakeClock() *fakeClock               { return &fakeClock{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }
func (c *fakeClock) now() time.Time          { return c.t }
func (c *fakeClock) advance(d time.Duration) { c.t = c.t.Add(d) }
