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
	"github.com/select-service/select-service/test/length"
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

func (h *randomRun) put(p place, r catalog.Rank) {
	if old, ok := h.model.ranks[p]; ok && old != r {
		h.model.removeRank(p)
	}
	h.model.ranks[p] = r
	h.led.PutRank(p.scope, p.slot, r)
}

func (h *randomRun) step() {
	switch op := h.next(26); op {
	case 0, 1, 2, 3, 4, 5:
		h.book()
	case 6:
		id := h.id()
		h.same("free "+id, h.led.Free(id), h.model.free(id, nil))
	case 7:
		id, sc := h.id(), h.place().scope
		h.same("free in "+id, h.led.FreeIn(sc, id), h.model.free(id, &sc))
	case 8:
		id, sc := h.id(), h.place().scope
		if h.next(2) == 0 {
			h.same("prefill_complete "+id, h.led.PrefillComplete(id), h.model.prefillComplete(id, nil))
		} else {
			h.same("prefill_complete in "+id, h.led.PrefillCompleteIn(sc, id), h.model.prefillComplete(id, &sc))
		}
	case 9, 10, 11:
		id := h.id()
		var parts *int
		var fraction *float64
		if n := h.next(2 * unit); n <= unit {
			f := float64(n) / unit
			parts, fraction = &n, &f
		}
		h.same("output_block "+id, h.led.OutputBlock(id, fraction), h.model.output(id, parts))
	case 12:
		if h.next(4) == 0 {
			p := h.place()
			if got, want := h.led.RemoveRank(p.scope, p.slot), h.model.removeRank(p); got != want {
				h.Fatalf("RemoveRank(%v) = %d, model %d", p, got, want)
			}
		}
	case 13, 14:
		p := h.place()
		worker := uint64(p.slot)
		if h.next(16) == 0 {
			worker += 1000 // another rank takes the slot over
		}
		h.put(p, catalog.Rank{Worker: worker})
	case 15:
		d := time.Duration(h.next(16)) * 2 * time.Second
		h.clock.advance(d)
		h.model.now += d
		h.expire()
	case 16:
		id := h.id()
		h.same("renew "+id, h.led.Renew(id), h.model.renew(id))
	case 17:
		h.find(h.id())
	default:
		h.remote()
		h.expire() // a greater age may have put a deadline into the past
	}
}

// expire ends what is overdue. Without it the model would not know what the next
// reservation ends.
func (h *randomRun) expire() {
	h.Helper()
	got := h.led.ExpireDue()
	if h.next(2) == 0 {
		rest, _ := h.led.Expire()
		got += rest
	}
	if want := h.model.expire(); got != want {
		h.Fatalf("%d have expired, in the model %d", got, want)
	}
}

// find compares what is found under an id, including the caller state.
func (h *randomRun) find(id string) {
	h.Helper()
	got, ok := h.led.Find(id)
	want, wantOK := h.model.holding(id)
	if wantOK && !want.Remote && got.CallerState != h.model.find(id, nil).end {
		h.Fatalf("find %s: another one's caller state", id)
	}
	got.CallerState = nil
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" || ok != wantOK {
		h.Fatalf("find %s: %v, model says %v: -model +ledger\n%s", id, ok, wantOK, d)
	}
}

// countedEnd is a caller state that counts its ends.
type countedEnd struct{ n int }

// ReservationEnded is part of CallerState.
func (c *countedEnd) ReservationEnded() { c.n++ }

// leaseOf is none for most.
func (h *randomRun) lease() time.Duration {
	return []time.Duration{0, 0, 0, time.Second, 8 * time.Second, 20 * time.Second, 400 * time.Second}[h.next(7)]
}

func (h *randomRun) id() string { return fmt.Sprint("r", h.next(120)) }

func (h *randomRun) book() {
	id, p, hashes := h.id(), h.place(), h.prompt()
	tokens := uint64(h.next(100))
	if tokens == 99 {
		tokens = math.MaxUint64
	}
	rank, ok := h.model.ranks[p]
	if !ok {
		rank = catalog.Rank{Worker: uint64(p.slot)}
	}
	b := &modelEntry{place: p, id: id, rank: rank, perScope: h.next(4) == 0, tokens: tokens, track: h.next(8) != 0}
	b.lease.length, b.end = h.lease(), &countedEnd{}
	b.queued.uncached, b.queued.prompt = uint64(h.next(3))*50, uint64(h.next(200))
	h.ends = append(h.ends, b.end)
	req := Request{
		ID: id, PerScope: b.perScope, Hashes: slices.Clone(hashes), TrackPrefill: b.track,
		Lease: b.lease.length, CallerState: b.end, Prompt: b.queued.prompt,
	}
	_, err := h.led.Book(p.scope, req, func(*View) (Placement, error) {
		return Placement{Slot: p.slot, Rank: rank, PrefillTokens: tokens, Uncached: b.queued.uncached}, nil
	})
	h.same("book "+id, err, h.model.book(b, hashes))
}

func (h *randomRun) same(what string, got, want error) {
	h.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		h.Fatalf("%s: error %v, model says %v", what, got, want)
	}
}

// compare asks both for everything that can be asked.
func (h *randomRun) compare() {
	h.Helper()
	prompt := h.prompt()
	for _, scope := range []catalog.Scope{{Model: "m", Tenant: "a"}, {Model: "m", Tenant: "b"}} {
		got, want := make(map[uint32]answer), make(map[uint32]answer)
		var loads []Load
		for p := range h.model.ranks {
			if p.scope == scope {
				l := h.model.load(p)
				want[p.slot] = answer{l, h.model.shared(p, prompt), h.model.queue(p)}
				loads = append(loads, l)
			}
		}
		h.led.Look(scope, prompt, func(v *View) {
			for slot := range uint32(v.Slots()) {
				if r, ok := h.model.ranks[place{scope, slot}]; ok && v.Known(slot, r) {
					got[slot] = answer{Load{r, v.Load(slot).PrefillTokens, v.Load(slot).Blocks, v.Load(slot).Requests}, v.Shared(slot), v.Queue(slot)}
				} else if v.Load(slot) != (SlotLoad{}) || v.Shared(slot) != 0 || v.Queue(slot) != (Queue{}) {
					h.Errorf("slot %d of %v has load and no rank", slot, scope)
				}
			}
		})
		if d := cmp.Diff(want, got, cmpopts.EquateApprox(1e-12, 0)); d != "" {
			h.Fatalf("Look(%v, %v): -model +ledger\n%s", scope, prompt, d)
		}
		slices.SortFunc(loads, func(a, b Load) int { return a.Rank.Compare(b.Rank) })
		if d := cmp.Diff(loads, h.led.Loads(scope)); d != "" && len(loads) > 0 {
			h.Fatalf("Loads(%v): -model +ledger\n%s", scope, d)
		}
	}
	if got := h.led.Stats(); got.Live != uint64(len(h.model.live)) || got.Late != h.model.late || got.LeasesExpired != h.model.leasesExpired {
		h.Fatalf("%d live, %d freed late, %d leases expired; model says %d, %d and %d",
			got.Live, got.Late, got.LeasesExpired, len(h.model.live), h.model.late, h.model.leasesExpired)
	}
	h.checkEnds(len(h.model.live))
	if d := cmp.Diff(h.model.prefills.told, h.told); d != "" {
		h.Fatalf("what was told of prefills: -model +ledger\n%s", d)
	}
	h.compareReservations()
	h.compareEnded()
}

// checkEnds proves that each own reservation that is not live was told of its end,
// once, and no other.
func (h *randomRun) checkEnds(live int) {
	h.Helper()
	want := int(h.model.past.own)
	for _, b := range h.model.live[:live] {
		if b.end != nil {
			want--
			if b.end.n != 0 {
				h.Fatalf("%s is live and was told of its end", b.id)
			}
		}
	}
	for _, e := range h.ends {
		want -= e.n
		if e.n > 1 {
			h.Fatalf("told %d times of an end", e.n)
		}
	}
	if want != 0 {
		h.Fatalf("%d reservations were not told of their end", want)
	}
}

type answer struct {
	Load
	Shared uint32
	Queue
}

// checkEmptied removes everything and looks for what is left behind.
func (h *randomRun) checkEmptied() {
	scopes := make([]*scope, 0, 2)
	for _, s := range h.led.scopes {
		scopes = append(scopes, s)
	}
	for p := range h.model.ranks {
		h.led.RemoveRank(p.scope, p.slot)
	}
	for _, s := range scopes {
		b := &s.blocks
		if len(b.nodes) != 1+len(b.freeNodes) || b.positions.live != 0 || b.mixed.live != 0 || b.holders.pairs.live != 0 || len(b.children) != 0 {
			h.Errorf("%d nodes, %d positions, %d mixed blocks, %d pairs, %d children left",
				len(b.nodes)-1-len(b.freeNodes), b.positions.live, b.mixed.live, b.holders.pairs.live, len(b.children))
		}
		for i, c := range b.chunks.chunks {
			if c.live != 0 && (i > 0 || c.live > 1) { // chunk 0 is never used
				h.Errorf("%d chunks left", c.live)
			}
		}
		for _, c := range b.holders.sets.chunks {
			if c.live != 0 {
				h.Errorf("%d owner sets left", c.live)
			}
		}
		if len(s.pendingRenewals) != 0 {
			h.Errorf("%d renewals left", len(s.pendingRenewals))
		}
		if len(s.deadlines) != 0 || s.ranks.Len() != 0 || len(s.entries.records) != s.entries.ended {
			h.Errorf("%d deadlines, %d ranks, %d records left", len(s.deadlines), s.ranks.Len(), len(s.entries.records)-s.entries.ended)
		}
	}
	h.checkEnds(0)
	if n := len(h.led.scopes); n != 0 {
		h.Errorf("%d scopes left", n)
	}
	for i := range h.led.ids.shards {
		if n := len(h.led.ids.shards[i].live); n != 0 {
			h.Errorf("%d ids left", n)
		}
	}
	for _, process := range []uint64{2, 3} {
		if n := h.led.numbered.Live(process); n != 0 {
			h.Errorf("%d reservations of process %d are counted as live", n, process)
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
