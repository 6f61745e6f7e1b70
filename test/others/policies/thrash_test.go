package policies

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/select-service/select-service/demo/sim/stats"
	"github.com/select-service/select-service/internal/selection/pauses"
	"github.com/select-service/select-service/internal/simulation/workload"
)

// thrash are sessions that begin half a second apart and have a head in common. Each turn comes 3 s after the answer before it
// and says all of that again and a little more, until another turn would be the turns-th. With a seed pauses are log-normal: 3 s is
// the median, and they deviate as those of agents do.
func thrash(seed uint64, sessions, turns, head, own, more int) (all []workload.Request) {
	random, sigma := rand.New(rand.NewPCG(seed, 0x7a05e)), pauses.Prior(pauses.Agent, time.Hour).Sigma
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
				if seed != 0 {
					r.Pause = time.Duration(float64(r.Pause) * math.Exp(sigma*random.NormFloat64()))
				}
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

// TestThrash: four engines hold 18 sessions together, but what a hash binds to one of them is more than that one holds. Soft
// sessions find within 3 points of what the best rule finds in the caches, and those of the hash do not. It is so too with 36
// sessions, which all caches together do not hold, if pauses vary as those of agents do. With -whole it plays the cells of the page:
// all rules, numbers of sessions, prompts that take a quarter of the time, pauses of 3 s and by three seeds.
func TestThrash(t *testing.T) {
	type played struct {
		seeds            []uint64 // 0: pauses of 3 s
		tokens, sessions int
	}
	within := []played{{[]uint64{0}, 20_000, 18}, {[]uint64{11}, 20_000, 36}}
	cells, of := within, slices.DeleteFunc(slices.Clone(rules), func(r contestant) bool {
		return !slices.Contains([]string{"predicted-ttft", "with-sessions", "lmetric", "preble"}, r.name)
	})
	if *whole {
		cells, of = nil, contestants()
		for _, seeds := range [][]uint64{{0}, {*firstSeed, *firstSeed + 1, *firstSeed + 2}} {
			for _, tokens := range []int{20_000, 5000} {
				for _, sessions := range []int{14, 18, 22, 26, 30, 36} {
					cells = append(cells, played{seeds, tokens, sessions})
				}
			}
		}
	}
	for _, c := range cells {
		best, hits := 0.0, make(map[string]float64)
		for _, r := range append([]contestant{{"hash", startHash}}, of...) {
			var rates, means []float64
			for _, seed := range c.seeds {
				o := Play(t, equal(4, 4096*c.tokens/20_000), thrash(seed, c.sessions, 30, c.tokens, c.tokens, c.tokens*7/200), r.start)
				rates, means = append(rates, o.HitRate), append(means, stats.Mean(o.TTFT))
			}
			hits[r.name] = stats.Mean(rates)
			best = max(best, hits[r.name])
			t.Logf("%+v: %-16s hit rate %.3f, TTFT %.2f s", c, r.name, hits[r.name], stats.Mean(means))
		}
		if !slices.ContainsFunc(within, func(w played) bool {
			return w.tokens == c.tokens && w.sessions == c.sessions && (w.seeds[0] == 0) == (c.seeds[0] == 0)
		}) {
			continue
		}
		for _, name := range []string{"predicted-ttft", "with-sessions"} {
			if best-hits[name] > 0.03 {
				t.Errorf("%+v: %s: hit rate %.3f, the best %.3f", c, name, hits[name], best)
			}
		}
		if best-hits["hash"] <= 0.03 {
			t.Errorf("%+v: a hash finds %.3f, the best rule %.3f", c, hits["hash"], best)
		}
	}
}
