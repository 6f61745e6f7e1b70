package catalog_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/catalog"
)

// world is a Reconciler that keeps what is in force and holds every call
// against the contract of the interface. Binding a wildcard endpoint that is
// bound already fails.
type world struct {
	t       *testing.T
	catalog *catalog.Catalog
	inForce map[uint64]*catalog.Attachment
	// calls has one line for each call since it was last cleared.
	calls []string
}

func newWorld(t *testing.T, s catalog.Settings) (*catalog.Catalog, *world) {
	w := &world{t: t, inForce: map[uint64]*catalog.Attachment{}}
	w.catalog = catalog.New(s, w)
	return w.catalog, w
}

func (w *world) Reconcile(before, after *catalog.Attachment) error {
	w.t.Helper()
	w.calls = append(w.calls, describe(before)+" -> "+describe(after))
	if before == nil && after == nil {
		w.t.Fatal("Reconcile(nil, nil)")
	}
	some := before
	if some == nil {
		some = after
	}
	if d := cmp.Diff(w.inForce[some.Worker], before); d != "" {
		w.t.Fatalf("before is not what is in force (-in force +before):\n%s", d)
	}
	if before != nil && after != nil && (before.Scope != after.Scope || before.Worker != after.Worker ||
		before.BlockSize != after.BlockSize || before.Eagle != after.Eagle) {
		w.t.Fatalf("%s -> %s: different worlds in one call", describe(before), describe(after))
	}
	w.checkView(before, after)
	if after == nil {
		delete(w.inForce, before.Worker)
		return nil
	}
	w.checkSlots(before, after)
	if err := w.bind(after); err != nil {
		return err
	}
	w.inForce[after.Worker] = after
	return nil
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
		for _, e := range snap.Known {
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

// checkSlots: kept ranks keep their slot, new ones get the lowest that nobody
// has.
func (w *world) checkSlots(before, after *catalog.Attachment) {
	used := map[uint32]bool{}
	for _, a := range w.inForce {
		if a.Scope != after.Scope {
			continue
		}
		for _, r := range a.Ranks {
			used[r.Slot] = true
		}
	}
	for i, r := range after.Ranks {
		if i > 0 && after.Ranks[i-1].DP >= r.DP {
			w.t.Fatalf("ranks out of order: %s", describe(after))
		}
		want := uint32(0)
		if old := rankOf(before, r.DP); old != nil {
			want = old.Slot
		} else {
			for used[want] {
				want++
			}
			used[want] = true
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

func (w *world) bind(after *catalog.Attachment) error {
	bound := map[string]bool{}
	for id, a := range w.inForce {
		for _, s := range a.Streams {
			bound[s.Endpoint] = bound[s.Endpoint] || id != after.Worker
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
	i := slices.IndexFunc(a.Ranks, func(r catalog.AttachedRank) bool { return r.DP == dp })
	if i < 0 {
		return nil
	}
	return &a.Ranks[i]
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
	for _, r := range a.Ranks {
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
