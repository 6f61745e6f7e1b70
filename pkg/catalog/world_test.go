package catalog_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/catalog"
)

// world is a Reconciler that keeps what is in force and holds every call
// against the contract of the interface. Binding a wildcard endpoint that is
// bound already fails.
type world struct {
	t        *testing.T
	catalog  *catalog.Catalog
	inForce  map[key]*catalog.Attachment
	reserved map[catalog.Scope]*reserved
	// calls has one line for each call since it was last cleared.
	calls []string
	// during, if set, is called in every call of Reconcile.
	during func()
}

// key: a worker of the slot tracker may have the id of one in another scope.
type key struct {
	catalog.Scope
	id uint64
}

func keyOf(a *catalog.Attachment) key { return key{a.Scope, a.Worker} }

// reserved is what a scope holds for ranks that are not attached.
type reserved struct {
	block uint32
	slots map[catalog.Rank]uint32
}

func newWorld(t *testing.T, s catalog.Settings) (*catalog.Catalog, *world) {
	w := &world{t: t, inForce: map[key]*catalog.Attachment{}, reserved: map[catalog.Scope]*reserved{}}
	w.catalog = catalog.New(s, w)
	return w.catalog, w
}

func (w *world) Reconcile(before, after *catalog.Attachment) error {
	w.t.Helper()
	w.calls = append(w.calls, describe(before)+" -> "+describe(after))
	if before == nil && after == nil {
		w.t.Fatal("Reconcile(nil, nil)")
	}
	if w.during != nil {
		w.during()
	}
	some := before
	if some == nil {
		some = after
	}
	if d := cmp.Diff(w.inForce[keyOf(some)], before, attachments); d != "" {
		w.t.Fatalf("before is not what is in force (-in force +before):\n%s", d)
	}
	if before != nil && after != nil && (before.Scope != after.Scope || before.Worker != after.Worker ||
		before.BlockSize != after.BlockSize || before.Eagle != after.Eagle) {
		w.t.Fatalf("%s -> %s: different worlds in one call", describe(before), describe(after))
	}
	w.checkView(before, after)
	if after == nil {
		delete(w.inForce, keyOf(before))
		return nil
	}
	w.checkSlots(before, after)
	if h := w.reserved[after.Scope]; h != nil && h.block != after.BlockSize {
		w.t.Fatalf("%s while ranks with blocks of %d are reserved", describe(after), h.block)
	}
	if err := w.bind(after); err != nil {
		return err
	}
	w.inForce[keyOf(after)] = after
	for _, r := range after.Ranks() {
		w.release(after.Scope, catalog.Rank{Worker: after.Worker, DP: r.DP})
	}
	return nil
}

func (w *world) ReserveSlot(sc catalog.Scope, block uint32, r catalog.Rank, slot uint32) {
	w.calls = append(w.calls, fmt.Sprintf("reserve %d/%d@%s/%s block=%d :%d", r.Worker, r.DP, sc.Model, sc.Tenant, block, slot))
	h := w.reserved[sc]
	if h == nil {
		h = &reserved{block: block, slots: map[catalog.Rank]uint32{}}
		w.reserved[sc] = h
	}
	if _, twice := h.slots[r]; twice || rankOf(w.inForce[key{sc, r.Worker}], r.DP) != nil || h.block != block {
		w.t.Fatalf("wrong %s", w.calls[len(w.calls)-1])
	}
	if want := w.lowest(w.used(sc)); slot != want {
		w.t.Fatalf("%s, want slot %d", w.calls[len(w.calls)-1], want)
	}
	h.slots[r] = slot
}

func (w *world) ReleaseSlot(sc catalog.Scope, r catalog.Rank, slot uint32) {
	w.calls = append(w.calls, fmt.Sprintf("release %d/%d@%s/%s :%d", r.Worker, r.DP, sc.Model, sc.Tenant, slot))
	if h := w.reserved[sc]; h == nil {
		w.t.Fatalf("nothing to %s", w.calls[len(w.calls)-1])
	} else if was, ok := h.slots[r]; !ok || was != slot {
		w.t.Fatalf("nothing to %s", w.calls[len(w.calls)-1])
	}
	w.release(sc, r)
}

func (w *world) release(sc catalog.Scope, r catalog.Rank) {
	if h := w.reserved[sc]; h != nil {
		delete(h.slots, r)
		if len(h.slots) == 0 {
			delete(w.reserved, sc)
		}
	}
}

// used are the slots of a scope that somebody has.
func (w *world) used(sc catalog.Scope) map[uint32]bool {
	used := map[uint32]bool{}
	for _, a := range w.inForce {
		for _, r := range a.Ranks() {
			if a.Scope == sc {
				used[r.Slot] = true
			}
		}
	}
	if h := w.reserved[sc]; h != nil {
		for _, slot := range h.slots {
			used[slot] = true
		}
	}
	return used
}

func (*world) lowest(used map[uint32]bool) (slot uint32) {
	for used[slot] {
		slot++
	}
	used[slot] = true
	return slot
}

// checkView: at the time of the call readers see no rank that is not in both,
// and no candidate that is not one in both.
func (w *world) checkView(before, after *catalog.Attachment) {
	for _, a := range []*catalog.Attachment{before, after} {
		if a == nil {
			continue
		}
		snap := w.catalog.Snapshot(a.Scope)
		if snap == nil {
			continue
		}
		for _, e := range snap.Known() {
			if e.Rank.Worker == a.Worker && (rankOf(before, e.DP) == nil || rankOf(after, e.DP) == nil) {
				w.t.Fatalf("%s is visible during %s", e.Rank, w.calls[len(w.calls)-1])
			}
		}
		for _, e := range snap.RanksOf(a.Worker) {
			if !rankOf(before, e.DP).Candidate || !rankOf(after, e.DP).Candidate {
				w.t.Fatalf("%s is a candidate during %s", e.Rank, w.calls[len(w.calls)-1])
			}
		}
	}
}

// checkSlots: kept ranks keep their slot, reserved ones get the reserved slot, new ones
// the lowest that is free.
func (w *world) checkSlots(before, after *catalog.Attachment) {
	used := w.used(after.Scope)
	for i, r := range after.Ranks() {
		if i > 0 && after.Ranks()[i-1].DP >= r.DP {
			w.t.Fatalf("ranks out of order: %s", describe(after))
		}
		var want uint32
		if old := rankOf(before, r.DP); old != nil {
			want = old.Slot
		} else if slot, ok := w.reservedSlot(after, r.DP); ok {
			want = slot
		} else {
			want = w.lowest(used)
		}
		if r.Slot != want {
			w.t.Fatalf("rank %d has slot %d, want %d: %s", r.DP, r.Slot, want, describe(after))
		}
	}
	for _, s := range after.Streams {
		if r := rankOf(after, s.DP); r == nil || r.Slot != s.Slot {
			w.t.Fatalf("stream without its rank: %s", describe(after))
		}
	}
}

func (w *world) reservedSlot(a *catalog.Attachment, dp uint32) (slot uint32, ok bool) {
	if h := w.reserved[a.Scope]; h != nil {
		slot, ok = h.slots[catalog.Rank{Worker: a.Worker, DP: dp}]
	}
	return slot, ok
}

func (w *world) bind(after *catalog.Attachment) error {
	bound := map[string]bool{}
	for k, a := range w.inForce {
		for _, s := range a.Streams {
			bound[s.Endpoint] = bound[s.Endpoint] || k != keyOf(after)
		}
	}
	for _, s := range after.Streams {
		if strings.Contains(s.Endpoint, "*") {
			if bound[s.Endpoint] {
				return fmt.Errorf("bind %s: address already in use", s.Endpoint)
			}
			bound[s.Endpoint] = true
		}
	}
	return nil
}

// took returns the calls since the last time.
func (w *world) took() []string {
	c := w.calls
	w.calls = nil
	return c
}

func rankOf(a *catalog.Attachment, dp uint32) *catalog.AttachedRank {
	if a == nil {
		return nil
	}
	r, ok := a.Rank(dp)
	if !ok {
		return nil
	}
	return &r
}

// describe prints an attachment in one line: worker@scope, block size, ranks
// with slots (in brackets if they only have events), streams.
func describe(a *catalog.Attachment) string {
	if a == nil {
		return "nothing"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d@%s/%s block=%d", a.Worker, a.Scope.Model, a.Scope.Tenant, a.BlockSize)
	if a.Eagle {
		b.WriteString(" eagle")
	}
	if a.Tracked {
		b.WriteString(" tracked")
	}
	for _, r := range a.Ranks() {
		form := " %d:%d"
		if !r.Candidate {
			form = " [%d:%d]"
		}
		fmt.Fprintf(&b, form, r.DP, r.Slot)
	}
	for _, s := range a.Streams {
		fmt.Fprintf(&b, " %d<%s", s.DP, s.Endpoint)
		if s.Replay != "" {
			b.WriteString("," + s.Replay)
		}
	}
	return b.String()
}
