package reservations

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// generatedTold writes down the answers that an observer is told of.
type generatedTold struct {
	prefillsTold
	answers []Generated
}

func (g *generatedTold) Generated(_ uint32, _ catalog.Rank, of Generated) {
	g.answers = append(g.answers, of)
}

// TestGenerated: the observer is told, at the free, of how many blocks an answer was, and which time it took: not before the
// free, no time of one block, of blocks that came all at once, or of an answer that had begun before there was an observer, and
// nothing where nothing was reported.
func TestGenerated(t *testing.T) {
	clock := newFakeClock()
	l := New(1, clock.now, nil)
	var told *generatedTold
	l.SetPrefills(func(catalog.Scope) PrefillObserver {
		if told == nil {
			return nil
		}
		return told
	})
	l.PutRank(testScope, 0, catalog.Rank{})
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	answer := func(id string, track bool, pauses ...time.Duration) {
		t.Helper()
		_, err := l.Book(testScope, Request{ID: id, TrackPrefill: track}, func(*View) (Placement, error) {
			return Placement{PrefillTokens: 5}, nil
		})
		do(err)
		for _, pause := range pauses {
			clock.advance(pause)
			do(l.OutputBlock(id, nil))
		}
	}
	answer("before", true, time.Second)
	told = new(generatedTold)
	l.RenewPrefills()
	answer("none", true)
	answer("one", true, time.Second)
	answer("at once", true, time.Second, 0, 0)
	answer("three", true, time.Second, 100*time.Millisecond, 300*time.Millisecond)
	answer("of another prefill", false, time.Second, 200*time.Millisecond)
	clock.advance(time.Minute) // after the last block the caller takes its time
	do(l.OutputBlock("before", nil))
	if len(told.answers) > 0 {
		t.Errorf("told %v before the end", told.answers)
	}
	for _, id := range []string{"before", "none", "one", "at once", "three", "of another prefill"} {
		do(l.Free(id))
	}
	want := []Generated{
		{Blocks: 2}, {Blocks: 1}, {Blocks: 3}, {Blocks: 3, Took: 400 * time.Millisecond}, {Blocks: 2, Took: 200 * time.Millisecond},
	}
	for i := range told.answers {
		told.answers[i].Attended, told.answers[i].Computed = 0, 0 // see TestAttended
	}
	if !slices.Equal(told.answers, want) {
		t.Errorf("told of %+v, want %+v", told.answers, want)
	}
}

// TestAttended: of an answer is told what its rank's answers attended to between its first and its last block, in the mean, and
// what was computed of prompts there meanwhile. Nothing is told of the side of a pair that prefills, and of a request without an
// answer.
func TestAttended(t *testing.T) {
	clock := newFakeClock()
	l := New(1, clock.now, nil)
	told := new(generatedTold)
	l.SetPrefills(func(catalog.Scope) PrefillObserver { return told })
	l.PutRank(testScope, 0, catalog.Rank{})
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	book := func(id string, uncached, prompt uint64) {
		t.Helper()
		_, err := l.Book(testScope, Request{ID: id, TrackPrefill: true, Prompt: prompt}, func(*View) (Placement, error) {
			return Placement{PrefillTokens: uncached, Uncached: uncached}, nil
		})
		do(err)
	}
	prompts := func(want uint64) {
		t.Helper()
		l.Look(testScope, nil, func(v *View) {
			if got := v.Queue(0).Prompts; got != want {
				t.Errorf("prompts of %d tokens, not %d", got, want)
			}
		})
	}
	book("a", 10, 100)
	do(l.PrefillComplete("a"))
	clock.advance(time.Second)
	book("early", 5, 7)
	do(l.PrefillComplete("early"))
	do(l.OutputBlock("a", nil)) // the first block: 107 tokens are attended to
	book("b", 20, 1000)         // which waits
	prompts(1107)
	clock.advance(2 * time.Second)
	do(l.PrefillComplete("b")) // 1107
	clock.advance(time.Second)
	do(l.FreeAfter("early", Answer{Tokens: 3})) // 1100
	clock.advance(time.Second)
	do(l.OutputBlock("a", nil)) // the last block
	book("c", 30, 5000)
	do(l.PrefillComplete("c"))
	clock.advance(time.Minute)
	do(l.Free("a"))
	do(l.FreeAfter("b", Answer{None: true}))
	do(l.BookPair(testScope, Request{ID: "pair"}, func(*View) (PairPlacement, error) {
		return PairPlacement{Prefill: &Side{TrackPrefill: true}}, nil
	}))
	do(l.PrefillComplete(PrefillID("pair")))
	do(l.Free(PrefillID("pair")))
	do(l.Free(DecodeID("pair")))
	do(l.Free("c"))
	prompts(0)
	want := []Generated{
		{Answer: Answer{Tokens: 3}},
		{Blocks: 2, Took: 4 * time.Second, Attended: (2*107 + 1107 + 1100) / 4.0, Computed: told.Computing(20, 1000)},
		{},
	}
	for i := range told.answers {
		told.answers[i].Computed = told.answers[i].Computed.Round(10 * time.Nanosecond) // it is kept with seven digits
	}
	if !slices.Equal(told.answers, want) {
		t.Errorf("told of %+v, want %+v", told.answers, want)
	}
}

// TestAttendedGrows: from when on an untracked prefill has more to compute than its prompt was known to have, the answers of its rank
// attend to so much, and not before.
func TestAttendedGrows(t *testing.T) {
	clock := newFakeClock()
	l := New(1, clock.now, nil)
	told := new(generatedTold)
	l.SetPrefills(func(catalog.Scope) PrefillObserver { return told })
	l.PutRank(testScope, 0, catalog.Rank{})
	state := new(countedEnd)
	_, err := l.Book(testScope, Request{ID: "a", Prompt: 100, CallerState: state}, func(*View) (Placement, error) {
		return Placement{PrefillTokens: 100, Uncached: 100}, nil
	})
	clock.advance(time.Second)
	if err = errors.Join(err, l.OutputBlock("a", nil)); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Second)
	if !l.SetUncached("a", state, 1000, nil) {
		t.Fatal("it has ended")
	}
	clock.advance(time.Second)
	if err = errors.Join(l.OutputBlock("a", nil), l.Free("a")); err != nil {
		t.Fatal(err)
	}
	if len(told.answers) != 1 || told.answers[0].Attended != 550 {
		t.Errorf("told of %+v, want 550 tokens", told.answers)
	}
}
