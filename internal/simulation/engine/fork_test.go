package engine

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
)

// TestFirstTokenBy proves that first tokens come when a look ahead has said, and that such looks change nothing: the engine does
// the same as one that nobody asks.
func TestFirstTokenBy(t *testing.T) {
	for _, chunked := range []bool{false, true} {
		for seed := range uint64(10) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			conf := Config{BlockSize: 4, CacheBlocks: 600, PrefillRate: 400, DecodeRate: 10, Chunked: chunked}
			asked, other := New(conf), New(conf)
			var got, want []seenUpdate
			var waits []time.Duration      // for the first token of each request, as they are said
			given := make(map[string]bool) // the requests with a transfer
			now := time.Duration(0)
			for i := range 60 {
				now += time.Duration(rnd.ExpFloat64() * float64(200*time.Millisecond))
				r := Request{ID: fmt.Sprint(i), Prompt: tokens(rnd.IntN(3)*100, 1+rnd.IntN(400)), Output: tokens(1000*i, 1+rnd.IntN(20))}
				if rnd.IntN(3) == 0 {
					given[r.ID] = true
					r.Transfer = Transfer{Tokens: rnd.IntN(len(r.Prompt) + 1), Link: Link{Setup: ms(rnd.IntN(300)), PerToken: time.Millisecond}}
				}
				got, want = append(got, drain(asked, now)...), append(want, drain(other, now)...)
				predicted, some, err := asked.FirstTokenBy(now, r, time.Hour)
				if err != nil || !some {
					t.Fatalf("no first token: %v", err)
				}
				if _, some, _ = asked.FirstTokenBy(now, r, predicted-1); some {
					t.Errorf("chunked %t, seed %d, request %d: a first token before it comes", chunked, seed, i)
				}
				waits = append(waits, predicted)
				for _, e := range []*Engine{asked, other} {
					if err := e.Submit(now, r); err != nil {
						t.Fatal(err)
					}
				}
			}
			got, want = append(got, drain(asked, now+time.Hour)...), append(want, drain(other, now+time.Hour)...)
			for _, u := range got {
				// Chunks of later prompts are computed beside those of earlier ones, and whole ones during a transfer.
				if i, _ := strconv.Atoi(u.ID); u.Kind == FirstToken && (!chunked && !given[u.ID] || i == len(waits)-1) && u.TTFT != waits[i] {
					t.Errorf("chunked %t, seed %d, request %d: first token after %v, not %v", chunked, seed, i, u.TTFT, waits[i])
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("chunked %t, seed %d: looks ahead have changed what the engine does", chunked, seed)
			}
		}
	}
}

// TestFirstTokenOfNothing proves that a request that the engine would refuse is an error.
func TestFirstTokenOfNothing(t *testing.T) {
	if _, _, err := New(testConfig()).FirstTokenBy(0, Request{ID: "a"}, time.Second); err == nil {
		t.Error("no error")
	}
}
