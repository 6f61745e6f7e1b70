package reservations

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/catalog"
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

// history plays a tape on the ledger and on the model.
type history struct {
	*testing.T
	tape
	led   *Ledger
	model *model
	clock *fakeClock
	// What other processes have booked, and the last sequence number.
	sent []message
	last uint64
}

func replay(t *testing.T, data []byte, look int) {
	clock := newFakeClock()
	h := &history{T: t, tape: tape{data}, led: New(1, clock.now, nil), model: newModel(), clock: clock}
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

func (h *history) put(p place, r catalog.Rank) {
	if old, ok := h.model.ranks[p]; ok && old != r {
		h.model.removeRank(p)
	}
	h.model.ranks[p] = r
	h.led.PutRank(p.scope, p.slot, r)
}

func (h *history) step() {
	switch op := h.next(24); op {
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
		if got, _ := h.led.Expire(); got != h.model.expire() {
			h.Fatalf("Expire ended %d, the model another number", got)
		}
	default:
		h.remote()
	}
}

func (h *history) id() string { return fmt.Sprint("r", h.next(120)) }

func (h *history) book() {
	id, p, hashes := h.id(), h.place(), h.prompt()
	tokens := uint64(h.next(100))
	if tokens == 99 {
		tokens = math.MaxUint64
	}
	rank, ok := h.model.ranks[p]
	if !ok {
		rank = catalog.Rank{Worker: uint64(p.slot)}
	}
	b := &booking{place: p, id: id, rank: rank, perScope: h.next(4) == 0, tokens: tokens, track: h.next(8) != 0}
	req := Request{ID: id, PerScope: b.perScope, Hashes: slices.Clone(hashes), TrackPrefill: b.track}
	_, err := h.led.Book(p.scope, req, func(*View) (Placement, error) {
		return Placement{Slot: p.slot, Rank: rank, PrefillTokens: tokens}, nil
	})
	h.same("book "+id, err, h.model.book(b, hashes))
}

func (h *history) same(what string, got, want error) {
	h.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		h.Fatalf("%s: error %v, model says %v", what, got, want)
	}
}

// compare asks both for everything that can be asked.
func (h *history) compare() {
	h.Helper()
	prompt := h.prompt()
	for _, scope := range []catalog.Scope{{Model: "m", Tenant: "a"}, {Model: "m", Tenant: "b"}} {
		got, want := make(map[uint32]answer), make(map[uint32]answer)
		var loads []Load
		for p := range h.model.ranks {
			if p.scope == scope {
				l := h.model.load(p)
				want[p.slot] = answer{l, h.model.shared(p, prompt)}
				loads = append(loads, l)
			}
		}
		h.led.Look(scope, prompt, func(v *View) {
			for slot := range uint32(len(v.Blocks)) {
				if r, ok := h.model.ranks[place{scope, slot}]; ok && v.Known(slot, r) {
					got[slot] = answer{Load{r, v.Prefill[slot], v.Blocks[slot], v.Requests[slot]}, v.Shared[slot]}
				} else if v.Requests[slot] != 0 || v.Blocks[slot] != 0 || v.Prefill[slot] != 0 || v.Shared[slot] != 0 {
					h.Errorf("slot %d of %v has load and no rank", slot, scope)
				}
			}
		})
		if d := cmp.Diff(want, got); d != "" {
			h.Fatalf("Look(%v, %v): -model +ledger\n%s", scope, prompt, d)
		}
		slices.SortFunc(loads, func(a, b Load) int { return a.Rank.Compare(b.Rank) })
		if d := cmp.Diff(loads, h.led.Loads(scope)); d != "" && len(loads) > 0 {
			h.Fatalf("Loads(%v): -model +ledger\n%s", scope, d)
		}
	}
	if got := h.led.Stats(); got.Live != uint64(len(h.model.live)) || got.Late != h.model.late {
		h.Fatalf("%d live, %d freed late; model says %d and %d", got.Live, got.Late, len(h.model.live), h.model.late)
	}
	h.compareBookings()
	h.compareEnded()
}

type answer struct {
	Load
	Shared uint32
}

// checkEmptied removes everything and looks for what is left behind.
func (h *history) checkEmptied() {
	scopes := make([]*scope, 0, 2)
	for _, s := range h.led.scopes {
		scopes = append(scopes, s)
	}
	for p := range h.model.ranks {
		h.led.RemoveRank(p.scope, p.slot)
	}
	for _, s := range scopes {
		for _, b := range []*holders{&s.blocks.byHash, &s.blocks.byPath} {
			if b.table.live != 0 || b.pairs.live != 0 {
				h.Errorf("%d blocks and %d pairs left", b.table.live, b.pairs.live)
			}
			for _, c := range b.sets.chunks {
				if c.live != 0 {
					h.Errorf("%d owner sets left", c.live)
				}
			}
		}
		if len(s.deadlines) != 0 || len(s.slots) != 0 || len(s.roll.lines) != s.roll.gone {
			h.Errorf("%d deadlines, %d ranks, %d lines left", len(s.deadlines), len(s.slots), len(s.roll.lines)-s.roll.gone)
		}
	}
	if n := len(h.led.scopes); n != 0 {
		h.Errorf("%d scopes left", n)
	}
	for i := range h.led.ids.shards {
		if n := len(h.led.ids.shards[i].live); n != 0 {
			h.Errorf("%d ids left", n)
		}
	}
	for process, x := range h.led.pasts.of {
		if x.live != 0 {
			h.Errorf("%d bookings of process %d counted as live", x.live, process)
		}
	}
}

// TestHistories proves that for long random histories every answer equals the
// naive model's, and that nothing is left when all ranks are gone.
func TestHistories(t *testing.T) {
	for seed := range uint64(8) {
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
