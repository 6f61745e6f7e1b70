package policies

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/select-service/select-service/demo/sim/stats"
	"github.com/select-service/select-service/internal/simulation/workload"
)

// thrash are sessions that begin half a second apart and have a head in common. Each turn comes 3 s after the answer before it
// and says all of that again and a little more, until another turn would be the turns-th.
func thrash(sessions, turns, head, own, more int) (all []workload.Request) {
	text := func(of, n int) (tokens []uint32) {
		for i := range n {
			tokens = append(tokens, uint32(of*1_000_003+i))
		}
		return tokens
	}
	said := make([][]uint32, sessions)
	for s := range said {
		said[s] = append(text(1, head), text(100+s, own)...)
	}
	for turn := range turns {
		for s := range said {
			r := workload.Request{ID: len(all) + 1, Session: fmt.Sprint(s), At: time.Duration(s) * 500 * time.Millisecond}
			if turn > 0 {
				r.After, r.Pause = []int{r.ID - sessions}, 3*time.Second
				said[s] = append(slices.Clip(said[s]), text(10_000+100*s+turn, more)...)
			}
			r.Prompt, r.Output = said[s], text(20_000+100*s+turn, 60)
			all = append(all, r)
		}
	}
	// What is due until a session begins at the end of all counts.
	end := workload.Request{ID: len(all) + 1, Session: "last", At: time.Duration(turns) * 5 * time.Second, Prompt: text(2, 100), Output: text(3, 2)}
	return append(all, end)
}

// startHash binds half of the sessions to the first of four engines for good, as a hash may.
func startHash(w *world) Rule {
	return byBoard(func(_ *Board, r *Request) int {
		var n int
		if _, err := fmt.Sscan(r.Session, &n); err != nil || n%2 == 0 {
			return 0
		}
		return 1 + n/2%3
	}).start(w)
}

// TestThrash: four engines hold the sessions together, but what a hash binds to one of them is more than that one holds. Soft
// sessions find within 3 points of what the best rule finds in the caches, and those of the hash do not. With -whole it plays the
// cells of the page: all rules, also more sessions than all caches hold, and prompts that take a quarter of the time.
func TestThrash(t *testing.T) {
	sizes, sessions := []int{20_000}, []int{18}
	played := slices.DeleteFunc(slices.Clone(rules), func(r contestant) bool {
		return !slices.Contains([]string{"predicted-ttft", "with-sessions", "lmetric", "preble"}, r.name)
	})
	if *whole {
		sizes, sessions, played = []int{20_000, 5000}, []int{14, 18, 22, 26, 30, 36}, contestants()
	}
	for _, tokens := range sizes {
		for _, n := range sessions {
			requests := thrash(n, 30, tokens, tokens, tokens*7/200)
			best, hits := 0.0, make(map[string]float64)
			for _, r := range append([]contestant{{"hash", startHash}}, played...) {
				o := Play(t, equal(4, 4096*tokens/20_000), requests, r.start)
				hits[r.name] = o.HitRate
				best = max(best, o.HitRate)
				t.Logf("head of %d tokens, %d sessions, %-16s hit rate %.3f, TTFT %.2f s, %v", tokens, n, r.name, o.HitRate, stats.Mean(o.TTFT), o.Placed)
			}
			if n != 18 || tokens != 20_000 {
				continue
			}
			for _, name := range []string{"predicted-ttft", "with-sessions"} {
				if best-hits[name] > 0.03 {
					t.Errorf("%s: hit rate %.3f, the best %.3f", name, hits[name], best)
				}
			}
			if best-hits["hash"] <= 0.03 {
				t.Errorf("a hash finds %.3f, the best rule %.3f", hits["hash"], best)
			}
		}
	}
}
