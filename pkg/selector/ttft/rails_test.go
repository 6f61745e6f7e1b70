package ttft

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// caller books requests one after the other on the ranks in turn.
type caller struct {
	l     *Learner
	ranks int
	at    time.Duration
	next  int
}

func (c *caller) turn() (slot uint32, r catalog.Rank, booked time.Duration) {
	n := c.next % c.ranks
	c.next++
	c.at += time.Second
	c.l.Booked(c.at, uint32(n), rankOf(n), 1000, 2000)
	booked = c.at
	return uint32(n), rankOf(n), booked
}

// inTime reports a request as it should be: prefill complete after 100 ms, freed later.
func (c *caller) inTime() {
	slot, r, booked := c.turn()
	done := booked + 100*time.Millisecond
	c.l.Completed(done, slot, r, 1000, 2000, booked, booked, 0)
	c.at = done + 2*time.Second
	c.l.Freed(c.at, slot, r, booked, done, 0, false)
}

// withEnd reports prefill_complete together with the end.
func (c *caller) withEnd() { c.before(2 * time.Millisecond) }

// farAway does so where each call takes 40 ms.
func (c *caller) farAway() { c.before(40 * time.Millisecond) }

// before reports prefill_complete so long before the end.
func (c *caller) before(end time.Duration) {
	slot, r, booked := c.turn()
	done := booked + 3*time.Second
	c.l.Completed(done, slot, r, 1000, 2000, booked, booked, 0)
	c.at = done + end
	c.l.Freed(c.at, slot, r, booked, done, 0, false)
}

// silent reports nothing but output and the end.
func (c *caller) silent() {
	slot, r, _ := c.turn()
	c.at += time.Second
	c.l.Unreported(c.at, slot, r)
}

func (c *caller) engaged() (names []string) {
	for _, s := range c.l.States() {
		if s.Engaged {
			names = append(names, fmt.Sprint(s.Rail, len(s.Ranks)))
		}
	}
	return names
}

func repeat(n int, f func()) {
	for range n {
		f()
	}
}

func (c *caller) expect(t *testing.T, when string, want ...string) {
	t.Helper()
	if got := c.engaged(); !slices.Equal(got, want) {
		t.Errorf("%s: engaged %v, not %v", when, got, want)
	}
}

// expectChanges checks what the log would say.
func (c *caller) expectChanges(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, x := range c.l.Changes() {
		s := fmt.Sprint(x.Rail, " ", x.Engaged)
		if x.Rail.OfRank() {
			s = fmt.Sprint(x.Rail, " ", x.Rank.Worker, " ", x.Engaged)
		}
		got = append(got, s)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("changes %q, not %q", got, want)
	}
}

func TestLateReports(t *testing.T) {
	for name, late := range map[string]func(*caller){"with the end": (*caller).withEnd, "with the end, far away": (*caller).farAway, "never": (*caller).silent} {
		t.Run(name, func(t *testing.T) {
			c := &caller{l: NewLearner(), ranks: 2}
			repeat(400, c.inTime)
			c.expect(t, "all in time")
			learned, samples := c.l.Model().Parameters, c.l.Samples()
			repeat(20, func() { late(c) })
			c.expect(t, "20 late of 400", "nothing_to_learn 0")
			late(c)
			late(c)
			c.expect(t, "11 late of the last 200 of each rank", "nothing_to_learn 0", "late_rank 2")
			if speed, late := c.l.Rank(0, rankOf(0)); speed != 1 || !late {
				t.Errorf("speed %g, late %v", speed, late)
			}
			repeat(100, func() { late(c) })
			c.expect(t, "122 late of the last 200", "nothing_to_learn 0", "late_rank 2", "late_scope 0")
			if !c.l.Model().Fallback {
				t.Error("the scope has no fallback")
			}
			if c.l.Samples() != samples || c.l.Model().Parameters != learned {
				t.Error("late reports were learned from")
			}
			c.expectChanges(t, "nothing_to_learn true", "late_rank 1 true", "late_rank 2 true", "late_scope true")

			repeat(160, c.inTime)
			c.expect(t, "40 late of the last 200", "late_rank 2")
			if c.l.Model().Fallback {
				t.Error("the scope still has a fallback")
			}
			repeat(400, c.inTime)
			c.expect(t, "all in time again")
			if _, late := c.l.Rank(0, rankOf(0)); late {
				t.Error("the rank is still late")
			}
			c.expectChanges(t, "nothing_to_learn false", "late_rank 1 false", "late_rank 2 false", "late_scope false")
		})
	}
}

// TestLateFromTheStart: a scope whose callers all report late never predicts.
func TestLateFromTheStart(t *testing.T) {
	c := &caller{l: NewLearner(), ranks: 4}
	repeat(leastReservations, c.withEnd)
	c.expect(t, "the first 20 late", "nothing_to_learn 0", "late_scope 0")
	if m := c.l.Model(); m.Learned || !m.Fallback {
		t.Errorf("%+v", m)
	}
}

// TestOneLateRank: the other ranks are not concerned.
func TestOneLateRank(t *testing.T) {
	c := &caller{l: NewLearner(), ranks: 4}
	repeat(100, func() {
		c.inTime()
		c.inTime()
		c.inTime()
		c.withEnd()
	})
	c.expect(t, "one of four", "late_rank 1")
	if _, late := c.l.Rank(3, rankOf(3)); !late {
		t.Error("the late rank is not late")
	}
}

// TestShortAnswers: an answer of a few tokens is not late because its end comes soon
// after its first token.
func TestShortAnswers(t *testing.T) {
	c := &caller{l: NewLearner(), ranks: 1}
	repeat(300, func() {
		slot, r, booked := c.turn()
		done := booked + 100*time.Millisecond
		c.l.Completed(done, slot, r, 1000, 2000, booked, booked, 0)
		c.at = done + 15*time.Millisecond
		c.l.Freed(c.at, slot, r, booked, done, 0, false)
	})
	c.l.Settle(c.at + time.Second)
	c.expect(t, "short answers")
	if c.l.Samples() != 300 {
		t.Errorf("%d samples", c.l.Samples())
	}
}

// TestBriefAnswers: an answer ends soon after its first token, or with it, if it has few tokens. Where it is known how many,
// that is not taken for a late report, and the first token teaches. Where only the pieces are known that it came in, it
// teaches nothing. What has more tokens than an engine generates in that time came all at once.
func TestBriefAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		tokens  uint64
		pieces  bool
		end     time.Duration
		samples uint64
		late    bool
	}{
		"one token":                     {1, false, 0, 100, false},
		"two tokens":                    {2, false, 20 * time.Millisecond, 100, false},
		"two tokens at once":            {2, false, 0, 100, false},
		"three tokens":                  {3, false, 40 * time.Millisecond, 100, false},
		"twenty tokens, 2 ms each":      {20, false, 38 * time.Millisecond, 100, false},
		"twenty tokens at once":         {20, false, 5 * time.Millisecond, 0, true},
		"a call of a tool in one piece": {1, true, 0, 0, false},
		"two pieces":                    {2, true, 10 * time.Millisecond, 0, false},
		"two hundred pieces at once":    {200, true, 40 * time.Millisecond, 0, true},
		"of unknown length":             {0, false, 20 * time.Millisecond, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := &caller{l: NewLearner(), ranks: 2}
			repeat(100, func() {
				slot, r, booked := c.turn()
				done := booked + time.Second
				c.l.Completed(done, slot, r, 1000, 2000, booked, booked, 0)
				c.at = done + tt.end
				c.l.Freed(c.at, slot, r, booked, done, tt.tokens, tt.pieces)
			})
			c.l.Settle(c.at + time.Second)
			if got := c.l.Samples(); got != tt.samples {
				t.Errorf("%d samples, want %d", got, tt.samples)
			}
			var want []string
			if tt.samples == 0 {
				want = append(want, "nothing_to_learn 0")
			}
			if tt.late {
				want = append(want, "late_rank 2", "late_scope 0")
			}
			c.expect(t, name, want...)
		})
	}
}

// TestUntold: what nobody has seen is no late report.
func TestUntold(t *testing.T) {
	c := &caller{l: NewLearner(), ranks: 2}
	repeat(100, func() {
		slot, r, _ := c.turn()
		c.l.Untold(c.at, slot, r)
	})
	c.expect(t, "untold", "nothing_to_learn 0")
	repeat(10, c.inTime)
	c.expect(t, "in time again")
}

func TestUntrackedAndStalled(t *testing.T) {
	c := &caller{l: NewLearner(), ranks: 2}
	c.l.Track(true)
	c.expect(t, "tracked")
	c.l.Track(false)
	c.expect(t, "untracked", "untracked 0")
	if m := c.l.Model(); !m.Fallback || m.FallbackRail != Untracked {
		t.Error("no fallback without tracking")
	}
	c.l.Track(true)
	if c.l.Model().Fallback {
		t.Error("fallback with tracking")
	}
	repeat(210, c.inTime)
	p := c.l.Model().Parameters
	q := Queue{Prefills: 1, Tokens: 1000, Context: 1.5e6, HeadTokens: 1000, HeadPrompt: 2000, Elapsed: 0.19}
	for _, x := range []struct {
		elapsed float64
		stalled bool
	}{{0.19, false}, {0.3, true}, {0.1, false}, {0.3, true}, {1, true}, {0.1, false}, {0.3, true}, {0.1, false}, {0.1, false}} {
		q.Elapsed = x.elapsed
		_, stall := p.Wait(&q)
		if (stall > 1) != x.stalled {
			t.Errorf("elapsed %g: stall %g", x.elapsed, stall)
		}
		c.l.Watch(1, rankOf(1), stall > 1)
	}
	c.expectChanges(t, "untracked true", "untracked false", "stalled_rank 2 true", "stalled_rank 2 false")
	if s := c.l.States()[StalledRank]; s.Engagements != 1 || s.Engaged {
		t.Errorf("%+v", s)
	}
}

// TestStallNeedsAMatureModel, because the defaults may be far too low.
func TestStallNeedsAMatureModel(t *testing.T) {
	c := &caller{l: NewLearner(), ranks: 1}
	repeat(100, c.inTime)
	p := c.l.Model().Parameters
	if _, stall := p.Wait(&Queue{Prefills: 1, Tokens: 1000, HeadTokens: 1000, HeadPrompt: 1000, Elapsed: 100}); stall != 1 {
		t.Errorf("stall %g after 100 samples", stall)
	}
}

// TestReplacedRank: what was learned of a rank is not the next one's.
func TestReplacedRank(t *testing.T) {
	c := &caller{l: NewLearner(), ranks: 1}
	repeat(30, c.withEnd)
	c.expect(t, "late", "nothing_to_learn 0", "late_rank 1", "late_scope 0")
	c.l.Booked(c.at, 0, rankOf(9), 10, 10)
	if _, late := c.l.Rank(0, rankOf(9)); late {
		t.Error("a new rank is late")
	}
	if s := c.l.States()[LateRank]; s.Engaged {
		t.Errorf("%+v", s)
	}
}

func TestRailNames(t *testing.T) {
	for r := range rails {
		if s := r.String(); s == "" || s[0] == 'R' {
			t.Errorf("%d has no name", r)
		}
	}
	if got := Rail(99).String(); got != "Rail(99)" {
		t.Error(got)
	}
}

func TestBoundedMemory(t *testing.T) {
	l := NewLearner()
	for i := range 10000 {
		at := time.Duration(i)
		l.Booked(at, 0, rankOf(0), 1, 1)
		l.Completed(at, 0, rankOf(0), 1, 1, at, at, 0)
		l.Watch(0, rankOf(0), i%4 < 2)
	}
	if n := len((*l.ranks.Load())[0].pending); n > maxPending {
		t.Errorf("%d samples wait", n)
	}
	if n := len(l.Changes()); n != maxChanges {
		t.Errorf("%d changes", n)
	}
}
