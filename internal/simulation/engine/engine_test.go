package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// An engine of round numbers: 100 prompt tokens a second, an output token each
// 100 ms.
func testConfig() Config {
	return Config{BlockSize: 4, CacheBlocks: 12, PrefillRate: 100, DecodeRate: 10, HashSeed: 1}
}

func tokens(from, n int) []uint32 {
	ts := make([]uint32, n)
	for i := range ts {
		ts[i] = uint32(from + i)
	}
	return ts
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// seenUpdate is an Update without its cache events.
type seenUpdate struct {
	At           time.Duration
	ID           string
	Kind         UpdateKind
	Cached       int
	Queued, TTFT time.Duration
	Tokens       int
}

func drain(e *Engine, until time.Duration) []seenUpdate {
	var seen []seenUpdate
	for _, u := range e.Advance(until) {
		if u.Request != "" {
			seen = append(seen, seenUpdate{u.At, u.Request, u.Kind, u.Cached, u.Queued, u.TTFT, u.Tokens})
		}
	}
	return seen
}

func submit(t *testing.T, e *Engine, at time.Duration, id string, prompt, output []uint32) {
	t.Helper()
	e.Advance(at)
	if err := e.Submit(at, Request{ID: id, Prompt: prompt, Output: output}); err != nil {
		t.Fatal(err)
	}
}

// TestEachToken proves that every token is reported once, at its time, and the last one as the end.
func TestEachToken(t *testing.T) {
	for _, chunked := range []bool{false, true} {
		conf := testConfig()
		conf.EachToken, conf.Chunked = true, chunked
		e := New(conf)
		submit(t, e, 0, "a", tokens(1, 8), tokens(100, 9))
		seen := drain(e, time.Minute)
		for i, u := range seen {
			if u.Tokens != i+1 || (u.Kind == Done) != (i == 8) || i > 0 && u.At <= seen[i-1].At {
				t.Errorf("chunked %t: update %d is %+v", chunked, i, u)
			}
		}
		if len(seen) != 9 {
			t.Errorf("chunked %t: %d updates", chunked, len(seen))
		}
	}
}

// TestTimeline proves the model on figures that can be checked by hand: prefill
// is first come first served, decoding runs beside it, and a hit saves its time.
func TestTimeline(t *testing.T) {
	e := New(testConfig())
	submit(t, e, 0, "a", tokens(0, 10), tokens(100, 8))
	if err := e.Submit(ms(20), Request{ID: "b", Prompt: tokens(0, 9), Output: tokens(200, 1)}); err != nil {
		t.Fatal(err)
	}
	want := []seenUpdate{
		// 10 tokens at 100/s. 10 tokens fill 2 blocks.
		{At: ms(100), ID: "a", Kind: FirstToken, TTFT: ms(100), Tokens: 1},
		// b waited for a and hits 2 blocks: 1 token to compute. Its answer has
		// one token, so it is done with the first.
		{At: ms(110), ID: "b", Kind: FirstToken, Cached: 8, Queued: ms(80), TTFT: ms(90), Tokens: 1},
		{At: ms(110), ID: "b", Kind: Done, Tokens: 1},
		// Output token k comes at 100 + 100*(k-1) ms. Block 3 is full when its
		// 12th token is computed: with output token 3 made.
		{At: ms(300), ID: "a", Kind: OutputBlock, Tokens: 3},
		{At: ms(700), ID: "a", Kind: OutputBlock, Tokens: 7},
		{At: ms(800), ID: "a", Kind: Done, Tokens: 8},
	}
	if diff := cmp.Diff(want, drain(e, time.Second)); diff != "" {
		t.Errorf("updates (-want +got):\n%s", diff)
	}
	wantTotals := Totals{
		Requests: 2, PromptTokens: 19, CachedTokens: 8, OutputTokens: 9, PrefillBusy: ms(110),
		TTFT: []time.Duration{ms(100), ms(90)}, Queued: []time.Duration{0, ms(80)},
		TPOT: []time.Duration{ms(100)}, Total: []time.Duration{ms(90), ms(800)},
	}
	if diff := cmp.Diff(wantTotals, e.Totals()); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
}

// TestSpeed proves that an engine of half the speed takes twice as long for
// everything, and that a change of speed acts on what runs.
func TestSpeed(t *testing.T) {
	cfg := testConfig()
	cfg.Speed = 0.5
	e := New(cfg)
	submit(t, e, 0, "a", tokens(0, 10), tokens(100, 8))
	e.Advance(ms(100)) // half of the prefill
	e.SetSpeed(ms(100), 4)
	got := drain(e, ms(250))
	e.SetSpeed(ms(250), 1)
	got = append(got, drain(e, time.Minute)...)
	want := []seenUpdate{
		{At: ms(125), ID: "a", Kind: FirstToken, TTFT: ms(125), Tokens: 1},
		{At: ms(225), ID: "a", Kind: OutputBlock, Tokens: 3},
		// 25 ms at double speed make half of a token, the other 3.5 take 200 ms each.
		{At: ms(950), ID: "a", Kind: OutputBlock, Tokens: 7},
		{At: ms(1150), ID: "a", Kind: Done, Tokens: 8},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("updates (-want +got):\n%s", diff)
	}
}

// TestChunks proves the chunked scheduler on figures that can be checked by hand: a
// long prompt takes several steps, a short one behind it shares the last of them, and
// an answer that runs gets its tokens with each step, as late as the step is long.
func TestChunks(t *testing.T) {
	e := New(Config{BlockSize: 16, CacheBlocks: 4096, PrefillRate: 1, DecodeRate: 1, Chunked: true, Speed: 1})
	for _, r := range []Request{
		{ID: "first", Prompt: tokens(0, 100), Output: tokens(100_000, 5)},
		{ID: "long", Prompt: tokens(1000, 12_000), Output: tokens(200_000, 1)},
	} {
		if err := e.Submit(0, r); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Duration(0)
	step := func(prompt int, pairs float64, answers, context int) time.Duration {
		at += time.Duration(stepTime(prompt, pairs, answers, context))
		return at
	}
	one := step(8192, 100*50+8092*4046, 0, 0)
	e.Advance(one / 2)
	if err := e.Submit(one/2, Request{ID: "short", Prompt: tokens(1000, 40), Output: tokens(300_000, 2)}); err != nil {
		t.Fatal(err)
	}
	// The short prompt is in the cache only when the long one is finished.
	two := step(3908+40, 3908*(8092+1954)+40*20, 1, 100)
	got := drain(e, two)
	three := step(0, 0, 2, 101+40)
	four := step(0, 0, 1, 102)
	five := step(0, 0, 1, 103)
	got = append(got, drain(e, time.Minute)...)
	want := []seenUpdate{
		{At: one, ID: "first", Kind: FirstToken, TTFT: one, Tokens: 1},
		{At: two, ID: "long", Kind: FirstToken, TTFT: two, Tokens: 1},
		{At: two, ID: "long", Kind: Done, Tokens: 1},
		{At: two, ID: "short", Kind: FirstToken, Queued: one - one/2, TTFT: two - one/2, Tokens: 1},
		{At: three, ID: "short", Kind: Done, Tokens: 2},
		{At: five, ID: "first", Kind: Done, Tokens: 5},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("updates (-want +got):\n%s", diff)
	}
	wantTPOT := []time.Duration{three - two, (five - one) / 4}
	if diff := cmp.Diff(wantTPOT, e.Totals().TPOT); diff != "" {
		t.Errorf("time per output token (-want +got):\n%s", diff)
	}
	if got, want := e.Totals().Work, five-5*6*time.Millisecond; (got - want).Abs() > time.Microsecond {
		t.Errorf("%v of %v were work, not %v", got, five, want)
	}
	if _, some := e.Next(); some || e.Running()+e.Waiting() != 0 || e.Totals().PrefillBusy != two || five <= four {
		t.Errorf("the engine is not idle: %d run, %d wait; %v in prefill of %v", e.Running(), e.Waiting(), e.Totals().PrefillBusy, two)
	}
}

// TestAnswersAreCached proves that the next turn of a chat finds the answer of
// the one before, all but the last token, whose KV entry is never computed.
func TestAnswersAreCached(t *testing.T) {
	e := New(testConfig())
	prompt, answer := tokens(0, 6), tokens(50, 6)
	submit(t, e, 0, "turn 1", prompt, answer)
	e.Advance(time.Minute)
	chat := append(append([]uint32{}, prompt...), answer...) // 12 tokens, 11 computed
	submit(t, e, time.Minute, "turn 2", append(chat, 7, 7), tokens(90, 1))
	got := drain(e, 2*time.Minute)
	if got[0].Cached != 8 {
		t.Errorf("%d tokens cached, want 8", got[0].Cached)
	}
}

// TestMemoryHoldsBack proves that a request waits until its blocks find room,
// and that those behind it wait too.
func TestMemoryHoldsBack(t *testing.T) {
	e := New(testConfig())                                   // 12 blocks
	submit(t, e, 0, "large", tokens(0, 20), tokens(100, 12)) // 8 blocks
	submit(t, e, 0, "next", tokens(200, 16), tokens(300, 4)) // 5 blocks
	submit(t, e, 0, "small", tokens(400, 4), tokens(500, 1)) // 2 blocks, would fit
	got := drain(e, time.Minute)
	order := []string{}
	for _, u := range got {
		if u.Kind == FirstToken {
			order = append(order, fmt.Sprint(u.ID, " ", u.At))
		}
	}
	// large: prefill to 200 ms, then 12 tokens until 200+1100 ms.
	want := []string{"large 200ms", "next 1.46s", "small 1.5s"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("first tokens (-want +got):\n%s", diff)
	}
}

func TestSubmitRefuses(t *testing.T) {
	e := New(testConfig())
	tests := map[string]struct {
		r    Request
		want error
	}{
		"too long":  {Request{Prompt: tokens(0, 48), Output: tokens(0, 1)}, ErrTooLong},
		"no prompt": {Request{Output: tokens(0, 1)}, ErrEmpty},
		"no answer": {Request{Prompt: tokens(0, 1)}, ErrEmpty},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if err := e.Submit(0, tc.r); !errors.Is(err, tc.want) {
				t.Errorf("err = %v, want %v", err, tc.want)
			}
		})
	}
	if _, ok := e.Next(); ok || e.Waiting() != 0 {
		t.Error("a refused request is queued")
	}
}

func TestConfigValidate(t *testing.T) {
	if err := testConfig().Validate(); err != nil {
		t.Errorf("a good configuration: %v", err)
	}
	err := Config{}.Validate()
	if err == nil {
		t.Fatal("the zero configuration is accepted")
	}
	if joined, ok := err.(interface{ Unwrap() []error }); !ok || len(joined.Unwrap()) != 4 {
		t.Errorf("not all four faults are named: %v", err)
	}
}

// TestStepsDoNotMatter proves that an engine of either kind does the same at the same
// model times whether it is advanced often or seldom, also when its speed changes:
// real time has no influence. It
// also checks, over random workloads, that every request ends, that the events
// rebuild the cache, and that nothing stays pinned.
func TestStepsDoNotMatter(t *testing.T) {
	for seed := range uint64(20) {
		cfg := testConfig()
		cfg.Chunked = seed%2 == 1
		rnd := rand.New(rand.NewPCG(seed, 2))
		type arrival struct {
			at time.Duration
			r  Request
		}
		var arrivals []arrival
		at := time.Duration(0)
		for i := range 60 {
			at += time.Duration(rnd.IntN(400)) * time.Millisecond
			prompt := tokens(rnd.IntN(3), 1+rnd.IntN(30))
			r := Request{ID: fmt.Sprint(i), Prompt: prompt, Output: tokens(rnd.IntN(2), 1+rnd.IntN(12))}
			if rnd.IntN(3) == 0 {
				r.Transfer = Transfer{Tokens: rnd.IntN(31), Link: Link{Setup: ms(rnd.IntN(500)), PerToken: ms(rnd.IntN(20))}}
			}
			arrivals = append(arrivals, arrival{at, r})
		}
		play := func(every time.Duration) []seenUpdate {
			e, seen, view := New(cfg), []seenUpdate(nil), &mirror{t: t, prefix: map[uint64][]uint32{}}
			advance := func(to time.Duration) {
				for _, u := range e.Advance(to) {
					view.apply(u.Events)
					if u.Request != "" {
						seen = append(seen, seenUpdate{u.At, u.Request, u.Kind, u.Cached, u.Queued, u.TTFT, u.Tokens})
					}
				}
			}
			now := time.Duration(0)
			for i, a := range arrivals {
				for ; every > 0 && now+every < a.at; now += every {
					advance(now)
				}
				advance(a.at)
				if i == 20 || i == 40 {
					e.SetSpeed(a.at, []float64{1, 0.3}[i/20%2])
				}
				if err := e.Submit(a.at, a.r); err != nil {
					t.Fatal(err)
				}
			}
			advance(time.Hour)
			if n := e.Totals().Requests; n != len(arrivals) {
				t.Fatalf("seed %d: %d of %d requests ended", seed, n, len(arrivals))
			}
			if e.cache.Pinned() != 0 || len(view.prefix) != e.CacheLen() {
				t.Fatalf("seed %d: %d pinned, %d blocks cached, %d by the events", seed, e.cache.Pinned(), e.CacheLen(), len(view.prefix))
			}
			return seen
		}
		if diff := cmp.Diff(play(0), play(7*time.Millisecond)); diff != "" {
			t.Fatalf("seed %d: (-seldom +often)\n%s", seed, diff)
		}
	}
}

// TestEngineTime proves that the requests of an engine in chunks took all of its time together, each for what it added: a long
// prompt more than a short one, and an engine of half the speed twice as much.
func TestEngineTime(t *testing.T) {
	for _, speed := range []float64{1, 0.5} {
		e := New(Config{BlockSize: 16, CacheBlocks: 4096, PrefillRate: 1, DecodeRate: 1, Chunked: true, Speed: speed})
		for i, n := range []int{10_000, 100, 3000} {
			submit(t, e, 0, fmt.Sprint(i), tokens(i<<20, n), tokens(i<<10, 5))
		}
		var end time.Duration
		took := map[string]time.Duration{}
		for _, u := range e.Advance(time.Hour) {
			if u.Kind == Done && u.Request != "" {
				took[u.Request] = u.Engine
				end = u.At
			}
		}
		all := took["0"] + took["1"] + took["2"]
		if off := all - end; off < -10 || off > 10 { // ns
			t.Errorf("speed %g: %v of %v", speed, all, end)
		}
		if alone := time.Duration(float64(stepTime(10_000, 5e7, 0, 0)) / speed); took["0"] < alone || took["0"] > alone+alone/10 || took["1"] > took["2"]/5 {
			t.Errorf("speed %g: %v", speed, took)
		}
	}
}
