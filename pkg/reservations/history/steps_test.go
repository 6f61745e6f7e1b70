package history

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestLeave proves what a reservation may become after each kind of end: an event
// never brings it back, a snapshot that knows of a renewal does so after the lease
// has run out only.
func TestLeave(t *testing.T) {
	lease := Lease{Accepted: 0, Longest: 20 * time.Second}
	for name, tt := range map[string]struct {
		leave          func(*Numbered, Origin)
		event, renewed Verdict
		told           []Range // of the process
	}{
		"freed":         {func(n *Numbered, o Origin) { n.Leave(o, Freed) }, HasEnded, HasEnded, []Range{{7, 7}}},
		"rank removed":  {func(n *Numbered, o Origin) { n.Leave(o, RankRemoved) }, HasEnded, HasEnded, nil},
		"lease expired": {func(n *Numbered, o Origin) { n.LeaveLeased(o, LeaseExpired, lease, time.Second) }, HasEnded, MayLive, nil},
		"lease freed":   {func(n *Numbered, o Origin) { n.LeaveLeased(o, Freed, lease, time.Second) }, HasEnded, HasEnded, []Range{{7, 7}}},
	} {
		t.Run(name, func(t *testing.T) {
			o := Origin{2, 7}
			n := NewNumbered(1)
			if s, _ := n.Admit(o, 0, false); s != MayLive || n.Live(2) != 1 {
				t.Fatalf("before: %v, %d live", s, n.Live(2))
			}
			tt.leave(n, o)
			if got := n.Missing(o); got != tt.renewed {
				t.Errorf("a renewal: %v, want %v", got, tt.renewed)
			}
			if d := cmp.Diff(tt.told, n.Ended()[2].Ranges); d != "" {
				t.Errorf("told: -want +got\n%s", d)
			}
			if got, _ := n.Admit(o, 0, false); got != tt.event {
				t.Errorf("an event: %v, want %v", got, tt.event)
			}
			if got, _ := n.Admit(o, 0, true); got != tt.renewed {
				t.Errorf("a snapshot: %v, want %v", got, tt.renewed)
			}
		})
	}
}

// TestLongLease proves that the end of a lease that outlasts the memory of numbers
// is remembered by itself and told to others, as long as the lease could run.
func TestLongLease(t *testing.T) {
	n, o := NewNumbered(1), Origin{2, 1}
	n.Admit(o, 0, true)
	n.LeaveLeased(o, Freed, Lease{Longest: time.Hour}, time.Minute)
	n.Forget(minRetention) // counts as seen from now on
	n.Forget(2 * minRetention)
	set := n.Ended()[2]
	if want := (EndedSet{Ranges: []Range{{1, 1}}, Assumed: 1, Leases: []Range{{1, 1}}}); !cmp.Equal(set, want) {
		t.Errorf("told %+v, want %+v", set, want)
	}
	if !set.Has(1, true) || !set.Has(1, false) || set.Has(2, true) || set.Has(2, false) {
		t.Errorf("%+v has the wrong numbers", set)
	}
	if s, _ := n.Admit(o, 2*minRetention, true); s != HasEnded {
		t.Errorf("within the hour: %v", s)
	}
	n.Forget(2 * time.Hour)
	if s, _ := n.Admit(o, 2*time.Hour, true); s != MayLive {
		t.Errorf("later: %v", s)
	}
}

// TestPrefillBeforeReservation proves that a completed prefill is remembered for a
// reservation that comes later, also if its lease ran out in between.
func TestPrefillBeforeReservation(t *testing.T) {
	n, o := NewNumbered(1), Origin{2, 5}
	if n.Complete(o, Origin{2, 6}, 0) {
		t.Error("ended before it came")
	}
	if _, completed := n.Admit(o, 0, false); !completed {
		t.Error("the prefill is not complete")
	}
	n.LeaveLeased(o, LeaseExpired, Lease{PrefillDone: true}, 0)
	if s, completed := n.Admit(o, 0, true); s != MayLive || !completed {
		t.Errorf("back again: %v, prefill complete: %t", s, completed)
	}
	n.Leave(o, Freed)
	if !n.Complete(o, Origin{}, 0) || !n.End(o, Origin{}, 0) {
		t.Error("it has not ended")
	}
}

// TestMergeAssumed proves that numbers whose end is only assumed end reservations
// without lease, and that the certain ones above end all.
func TestMergeAssumed(t *testing.T) {
	for name, from := range map[string]uint64{"from the first": 1, "from the middle": 3} {
		t.Run(name, func(t *testing.T) {
			n := NewNumbered(1)
			set := EndedSet{Ranges: []Range{{from, 8}}, Assumed: 6, Leases: []Range{{5, 5}}}
			n.Merge(2, set, 0)
			n.Merge(2, EndedSet{Ranges: []Range{{2, 4}}, Assumed: math.MaxUint64}, 0)
			for number := from; number <= 8; number++ {
				o := Origin{2, number}
				if s, _ := n.Admit(o, 0, false); s != HasEnded {
					t.Errorf("%d without lease: %v", number, s)
				}
				want := MayLive
				if number == 5 || number > 6 {
					want = HasEnded
				}
				if s := n.Missing(o); s != want {
					t.Errorf("%d with lease: %v, want %v", number, s, want)
				}
			}
		})
	}
}

// TestAllBut proves that what is not open has ended.
func TestAllBut(t *testing.T) {
	if d := cmp.Diff([]Range{{1, 2}, {4, 6}}, AllBut(7, []uint64{7, 9, 3})); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

// TestSetLifetime proves that numbers and keys are remembered for longer lifetimes,
// and numbers never for less than 600 s.
func TestSetLifetime(t *testing.T) {
	n, u := NewNumbered(1), NewUnnumbered(300*time.Second)
	n.SetLifetime(time.Second)
	if n.retention != minRetention {
		t.Errorf("numbers are remembered for %v", n.retention)
	}
	n.SetLifetime(time.Hour)
	u.SetLifetime(time.Hour)
	k := Key{Process: 9, ID: "x"}
	u.Leave(k, 0)
	if _, ended := u.Before(k, true, time.Hour-1); !ended || n.retention != 2*time.Hour {
		t.Errorf("ended: %t, numbers are remembered for %v", ended, n.retention)
	}
	u.Forget(time.Hour)
	if u.left.at != nil {
		t.Errorf("%d keys are kept", len(u.left.at))
	}
}

// TestUnnumberedSteps proves which steps count for a reservation without number that
// comes after them.
func TestUnnumberedSteps(t *testing.T) {
	k, other := Key{Process: 9, ID: "x"}, Key{Process: 8, ID: "x"}
	type step func(*Unnumbered)
	complete := func(u *Unnumbered) { u.CompletedEarly(k, 0) }
	free := func(u *Unnumbered) { u.FreedEarly(k, 0) }
	booked := func(u *Unnumbered) { u.Booked(k, 0) }
	leave := func(u *Unnumbered) { u.Leave(k, 0) }
	for name, tt := range map[string]struct {
		steps                    []step
		at                       time.Duration
		completed, ended, merged bool
	}{
		"nothing":                    {},
		"completed early":            {steps: []step{complete}, completed: true},
		"freed early":                {steps: []step{free}, ended: true, merged: true},
		"both, too long ago":         {steps: []step{complete, free}, at: EarlyFor},
		"used by the reservation":    {steps: []step{complete, booked}},
		"freed, then booked":         {steps: []step{free, booked}, merged: true},
		"was live":                   {steps: []step{complete, leave}, merged: true},
		"completed after it left":    {steps: []step{leave, complete}, merged: true},
		"was live a lifetime ago":    {steps: []step{leave}, at: time.Minute},
		"another process's, as well": {steps: []step{func(u *Unnumbered) { u.FreedEarly(other, 0) }}},
	} {
		t.Run(name, func(t *testing.T) {
			u := NewUnnumbered(time.Minute)
			for _, s := range tt.steps {
				s(u)
			}
			completed, ended := u.Before(k, false, tt.at)
			_, merged := u.Before(k, true, tt.at)
			if completed != tt.completed || ended != tt.ended || merged != tt.merged {
				t.Errorf("completed %t, ended %t, ended for a snapshot %t", completed, ended, merged)
			}
		})
	}
}
