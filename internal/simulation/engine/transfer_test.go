package engine

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestTransfer proves the model on figures that can be checked by hand: the tokens that another engine has computed take the
// time of the link, but for those in the cache, requests behind begin meanwhile, and the last token is computed afterwards.
func TestTransfer(t *testing.T) {
	e := New(testConfig())
	ask := func(at time.Duration, id string, prompt []uint32, given int) {
		t.Helper()
		e.Advance(at)
		r := Request{
			ID: id, Prompt: prompt, Output: tokens(100, 1),
			Transfer: Transfer{Tokens: given, Link: Link{Setup: ms(20), PerToken: ms(2)}},
		}
		if err := e.Submit(at, r); err != nil {
			t.Fatal(err)
		}
	}
	ask(0, "a", tokens(0, 10), 10)
	e.Advance(ms(10))
	if next, _ := e.Next(); next != ms(38) || e.Waiting() != 1 || e.Pinned() != 3 {
		t.Errorf("the transfer ends at %v; %d wait, %d blocks are held", next, e.Waiting(), e.Pinned())
	}
	var got []seenUpdate
	for _, r := range []struct {
		at     time.Duration
		id     string
		prompt []uint32
		given  int
	}{{ms(15), "b", tokens(50, 2), 0}, {ms(100), "c", tokens(0, 8), 6}, {ms(200), "d", tokens(0, 8), 4}} {
		got = append(got, drain(e, r.at)...)
		ask(r.at, r.id, r.prompt, r.given)
	}
	got = append(got, drain(e, time.Second)...)
	want := []seenUpdate{
		// Two tokens, computed while a is transferred.
		{At: ms(35), ID: "b", Kind: FirstToken, TTFT: ms(20), Tokens: 1},
		{At: ms(35), ID: "b", Kind: Done, Tokens: 1},
		// Nine tokens take 20 + 9*2 ms, then the last one is computed.
		{At: ms(48), ID: "a", Kind: FirstToken, Queued: ms(38), TTFT: ms(48), Tokens: 1},
		{At: ms(48), ID: "a", Kind: Done, Tokens: 1},
		// One block is cached, two tokens take 20 + 2*2 ms, and two are computed.
		{At: ms(144), ID: "c", Kind: FirstToken, Cached: 4, Queued: ms(24), TTFT: ms(44), Tokens: 1},
		{At: ms(144), ID: "c", Kind: Done, Tokens: 1},
		// What is given is cached.
		{At: ms(240), ID: "d", Kind: FirstToken, Cached: 4, TTFT: ms(40), Tokens: 1},
		{At: ms(240), ID: "d", Kind: Done, Tokens: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("updates (-want +got):\n%s", diff)
	}
	if e.Waiting() != 0 || e.Pinned() != 0 {
		t.Errorf("at the end %d requests wait, and %d blocks are held", e.Waiting(), e.Pinned())
	}
}

// TestTransferBesideSteps proves that in an engine that computes in steps a transfer takes no time of other requests, and that its
// request joins the next step.
func TestTransferBesideSteps(t *testing.T) {
	cfg := testConfig()
	cfg.Chunked, cfg.EachToken, cfg.CacheBlocks = true, true, 2000
	alone, beside := New(cfg), New(cfg)
	for _, e := range []*Engine{alone, beside} {
		submit(t, e, 0, "a", tokens(0, 8), tokens(100, 30))
	}
	link := Link{Setup: ms(10), PerToken: 20 * time.Microsecond}
	given := Request{ID: "b", Prompt: tokens(10_000, 4000), Output: tokens(100, 1), Transfer: Transfer{Tokens: 4000, Link: link}}
	if err := beside.Submit(0, given); err != nil {
		t.Fatal(err)
	}
	want, got := drain(alone, time.Minute), drain(beside, time.Minute)
	arrives := link.Time(3999)
	for i, u := range got {
		if u.ID != "b" || u.Kind != FirstToken {
			continue
		}
		if diff := cmp.Diff(want[:i-1], got[:i-1]); diff != "" {
			t.Errorf("before the transfer's end (-alone +beside):\n%s", diff)
		}
		// It ends during a step, and its last token is computed in the next one.
		if got[i-3].At >= arrives || got[i-2].At < arrives || u.At != got[i-1].At {
			t.Errorf("the transfer ends at %v, and the first token comes at %v, steps end at %v", arrives, u.At, got[i-3:i])
		}
		return
	}
	t.Error("no first token")
}

// TestSend: an engine sends what the other one has not, one cache after the other, by the names or the tokens of blocks that it has.
func TestSend(t *testing.T) {
	e := New(testConfig())
	if err := e.Submit(0, Request{ID: "a", Prompt: tokens(0, 10), Output: tokens(100, 1)}); err != nil {
		t.Fatal(err)
	}
	var names []uint64
	for _, u := range e.Advance(ms(500)) {
		for _, ev := range u.Events {
			names = append(names, ev.Hashes...)
		}
	}
	for _, tt := range []struct {
		names []uint64
		want  int
	}{{names, 8}, {names[:1], 4}, {append([]uint64{1}, names...), 0}, {append(names[:1:1], 1, names[1]), 4}, {nil, 0}} {
		if got := e.Named(tt.names); got != tt.want {
			t.Errorf("%x: %d tokens, want %d", tt.names, got, tt.want)
		}
	}
	l := Link{Setup: ms(20), PerToken: ms(2)}
	for _, tt := range []struct {
		at   time.Duration
		has  int
		want Transfer
	}{
		{ms(500), 0, Transfer{8, l}},
		{ms(510), 8, Transfer{}},                                        // nothing is sent
		{ms(510), 4, Transfer{8, Link{Setup: ms(46), PerToken: ms(2)}}}, // until 536 the first is sent
		{ms(600), 4, Transfer{8, Link{Setup: ms(20), PerToken: ms(2)}}}, // the second until 564
		{ms(600), 0, Transfer{8, Link{Setup: ms(48), PerToken: ms(2)}}}, // the third until 628
		{ms(2000), 7, Transfer{8, Link{Setup: ms(20), PerToken: ms(2)}}},
	} {
		if got := e.Send(tt.at, 8, tt.has, l); got != tt.want {
			t.Errorf("at %v: %+v, want %+v", tt.at, got, tt.want)
		}
	}
}
