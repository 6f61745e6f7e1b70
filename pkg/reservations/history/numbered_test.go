package history

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/test/helpers/length"
)

// TestWindow proves that what lies far behind the latest number of a process
// counts as ended, and that memory follows the window.
func TestWindow(t *testing.T) {
	n := NewNumbered(1)
	admit := func(what string, number uint64, want Verdict) {
		t.Helper()
		if got, _ := n.Admit(Origin{2, number}, 0, false); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	admit("first", 5, MayLive)
	admit("far ahead", Window+100, MayLive)
	admit("below the window", 100, HasEnded)
	admit("in the window", 101, MayLive)
	if d := cmp.Diff(map[uint64]EndedSet{2: {Ranges: []Range{{1, 100}}, Assumed: 100}}, n.Ended()); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	for number := uint64(1); number < 4*Window; number += 5001 { // a page for nearly every number
		n.End(Origin{2, number}, Origin{}, 0)
		n.Complete(Origin{2, number + 1}, Origin{}, 0)
	}
	x := n.byProcess[2]
	for _, b := range []bitmap{x.ended, x.completed} {
		if pages := len(b); pages > Window>>pageShift+1 {
			t.Errorf("%d pages", pages)
		}
	}
}

// TestProcessesBounded proves that no more than MaxProcesses are remembered, that
// the one unheard of for longest makes room, and that none with a live reservation
// does.
func TestProcessesBounded(t *testing.T) {
	n := NewNumbered(1)
	for i := range uint64(MaxProcesses) {
		n.Admit(Origin{100 + i, 1}, time.Duration(i), false)
	}
	if s, _ := n.Admit(Origin{99, 1}, 500, false); s != NoRoom {
		t.Errorf("one more: %v", s)
	}
	if s := n.Missing(Origin{99, 1}); s != NoRoom {
		t.Errorf("a renewal of one more: %v", s)
	}
	n.Merge(99, EndedSet{Ranges: []Range{{1, 1}}}, 500) // cannot be noted
	n.Leave(Origin{150, 1}, Freed)
	n.Leave(Origin{120, 1}, RankRemoved)
	n.End(Origin{120, 1}, Origin{}, 600)
	n.End(Origin{99, 1}, Origin{}, 601)
	if _, there := n.byProcess[150]; there || len(n.byProcess) != MaxProcesses || n.Live(150) != 0 {
		t.Errorf("%d processes, 150 among them: %t", len(n.byProcess), there)
	}
	if s, _ := n.Admit(Origin{120, 1}, 602, false); s != HasEnded {
		t.Errorf("120 is remembered: %v", s)
	}
}

// TestOwnProcess proves that of the own process everything that is not live has
// ended, without memory.
func TestOwnProcess(t *testing.T) {
	n, own := NewNumbered(1), Origin{1, 7}
	n.Merge(1, EndedSet{Ranges: []Range{{1, 9}}}, 0)
	if !n.End(own, own, 0) || !n.Complete(own, own, 0) || n.Missing(own) != HasEnded || len(n.byProcess) != 0 {
		t.Errorf("%d processes are remembered", len(n.byProcess))
	}
}

// TestWideLeaseEnds proves that what another replica tells of ends costs no more
// than what is remembered of them, however wide and many its ranges, and that no
// number follows the last one.
func TestWideLeaseEnds(t *testing.T) {
	const last = uint64(math.MaxUint64)
	wide := make([]Range, 3000)
	for i := range wide {
		wide[i] = Range{uint64(i)<<40 + 1, uint64(i)<<40 + 2*maxEndedLeases}
	}
	for name, tt := range map[string]struct {
		leases  []Range
		want    int
		has     []uint64
		hasNone []uint64
	}{
		"few":        {[]Range{{1, 2}, {7, 7}}, 3, []uint64{1, 2, 7}, []uint64{3}},
		"wide":       {wide, maxEndedLeases, []uint64{1, maxEndedLeases}, []uint64{maxEndedLeases + 1, 1<<40 + 1}},
		"everything": {[]Range{{0, last}}, maxEndedLeases, []uint64{0, maxEndedLeases - 1}, []uint64{maxEndedLeases, last}},
		"the end":    {[]Range{{last - 1, last}}, 1, []uint64{last - 1}, []uint64{0, 1, last}},
	} {
		t.Run(name, func(t *testing.T) {
			n := NewNumbered(1)
			n.Merge(2, EndedSet{Leases: tt.leases}.Normalized(), 0)
			got := n.byProcess[2].leases
			if len(got) != tt.want {
				t.Errorf("%d are remembered, want %d", len(got), tt.want)
			}
			for want, numbers := range map[bool][]uint64{true: tt.has, false: tt.hasNone} {
				for _, number := range numbers {
					if _, has := got[number]; has != want {
						t.Errorf("%d is remembered: %t, want %t", number, has, want)
					}
				}
			}
		})
	}
}

// TestEndedLeasesBounded proves that of any number of ended long leases those are
// remembered that matter longest.
func TestEndedLeasesBounded(t *testing.T) {
	length.Sequential(t)
	c := make(endedLeases)
	const added = maxEndedLeases * 3 / 2
	for number := range uint64(added) {
		c.put(number, endedLease{until: time.Duration(number)})
	}
	if _, newest := c[added-1]; len(c) > maxEndedLeases || len(c) < maxEndedLeases/2 || !newest {
		t.Errorf("%d entries, the newest among them: %v", len(c), newest)
	}
	c = c.dropOld(added)
	if len(c) != 0 {
		t.Errorf("%d entries left", len(c))
	}
}

// TestTexts proves that every reason and verdict has a text, and that other values
// do not panic.
func TestTexts(t *testing.T) {
	for value, want := range map[fmt.Stringer]string{
		Freed: "freed", RankRemoved: "rank removed", LeaseExpired: "lease expired", Displaced: "displaced", EndReason(9): "invalid",
		MayLive: "may live", HasEnded: "has ended", NoRoom: "no room", Verdict(9): "invalid",
	} {
		if got := value.String(); got != want {
			t.Errorf("%#v is %q, want %q", value, got, want)
		}
	}
}
