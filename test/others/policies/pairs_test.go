package policies

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/demo/sim/stats"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/simulation/engine"
	"github.com/select-service/select-service/internal/simulation/workload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/test/helpers/length"
)

var prefillers = flag.Int("prefillers", 4, "engines that prefill, of the eight in plays of pairs")

// The links between engines, by the 131 kB that an 8B model's cache has for a token: 200 Gb/s at three quarters of the rate within
// a place, and 25 Gb/s at four fifths between two.
var (
	within  = engine.Link{Setup: 5 * time.Millisecond, PerToken: 7 * time.Microsecond}
	between = engine.Link{Setup: 20 * time.Millisecond, PerToken: 52 * time.Microsecond}
)

// pairRule is a Rule that may set the engine of a request's prefill.
type pairRule interface {
	Rule
	// HandedOver is called when that engine has computed the prompt, before the transfer.
	HandedOver(r *Request)
}

// prefillElsewhere has the prompt of a request computed, and returns how it comes to the engine that decodes.
func (w *world) prefillElsewhere(r *Request, counts bool) simapi.Transfer {
	steps, err := w.nodes[r.prefill].Generate(simapi.GenerateRequest{RequestID: r.Name, TokenIDs: r.Prompt, OutputTokenIDs: r.Output[:1]})
	if err != nil {
		w.t.Error(err)
		return simapi.Transfer{}
	}
	cached := 0
	for s := range steps {
		if s.Event == simapi.EventFirstToken {
			cached = s.CachedTokens
		}
	}
	w.settle(r.Request)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rule.(pairRule).HandedOver(r)
	link := within
	if w.fleet.Places != nil && w.fleet.Places[r.prefill] != w.fleet.Places[r.engine] {
		link = between
	}
	if counts {
		w.prompts, w.cached = w.prompts+len(r.Prompt), w.cached+cached
		if w.outcome.Pairs++; link == between {
			w.outcome.Far++
		}
	}
	return simapi.Transfer{Tokens: len(r.Prompt), SetupMS: 1e3 * link.Setup.Seconds(), PerTokenUS: 1e6 * link.PerToken.Seconds()}
}

// inPlaces says where the workers are, and that the first ones prefill.
func (o ours) inPlaces(f Fleet, prefillers int, enforcement string) {
	for i := range f.Speeds {
		p := catalog.Patch{Role: new(catalog.RoleDecode)}
		if i < prefillers {
			p.Role = new(catalog.RolePrefill)
		}
		if f.Places != nil {
			p.KVTransferDomain, p.KVTransferEnforcement = new("rack"), &enforcement
			p.TopologyDomains = map[string]string{"rack": f.Places[i]}
		}
		o.Patch(uint64(i), p)
	}
}

// pairs has the service choose both engines in one step.
type pairs struct{ ours }

func startPairs(prefillers int, enforcement string) func(*world) Rule {
	return func(w *world) Rule {
		p := pairs{service("predicted-ttft")(w).(ours)}
		p.inPlaces(w.fleet, prefillers, enforcement)
		return p
	}
}

func (p pairs) Place(r *Request) int {
	pair, err := p.SelectPair(context.Background(), &selection.PairRequest{SelectRequest: *p.ask(r)})
	if err != nil {
		p.T.Fatal(err)
	}
	if pair.Prefill != nil {
		r.prefill = int(pair.Prefill.Rank.Worker)
	}
	return int(pair.Decode.Rank.Worker)
}

func (p pairs) HandedOver(r *Request) { _ = p.PrefillComplete(r.Name + ".prefill") }

// twoCalls has it choose the engines by two requests that know nothing of each other: the one that prefills for the prompt, and
// the one that decodes as of a prompt that costs nothing.
type twoCalls struct {
	ours
	prefill, decode []uint64 // workers
}

func startTwoCalls(prefillers int) func(*world) Rule {
	return func(w *world) Rule {
		c := twoCalls{ours: service("predicted-ttft")(w).(ours)}
		for i := range w.fleet.Speeds {
			if i < prefillers {
				c.prefill = append(c.prefill, uint64(i))
			} else {
				c.decode = append(c.decode, uint64(i))
			}
		}
		return c
	}
}

func (c twoCalls) Place(r *Request) int {
	first, second := c.ask(r), c.ask(r)
	first.ReservationID, first.ExpectedOutputTokens = new(r.Name+"-prefill"), new(uint32(1)) // so that its end is no late report
	first.HasAllowedWorkers, first.AllowedWorkers = true, c.prefill
	r.prefill = c.book(first)
	second.HasAllowedWorkers, second.AllowedWorkers = true, c.decode
	second.Override = selector.Override{TrackPrefill: new(false), OverlapWeight: new(0.0)}
	return c.book(second)
}

func (c twoCalls) HandedOver(r *Request) { _ = c.PrefillComplete(r.Name + "-prefill") }

// Prefilled ends the first reservation, not at once with its prefill: that would be a late report, see ttft.LateRank.
func (c twoCalls) Prefilled(r *Request) {
	_ = c.Free(r.Name + "-prefill")
	c.ours.Prefilled(r)
}

// pairing are the contestants of a fleet. Engines that do both pass on nothing, so that it does not matter where they are.
func pairing(f Fleet, prefillers int) []contestant {
	all := []contestant{{"pairs", startPairs(prefillers, "required")}}
	if f.Places != nil {
		all = append(all, contestant{"pairs, preferred", startPairs(prefillers, "preferred")})
	}
	all = append(all, contestant{"two calls", startTwoCalls(prefillers)})
	if f.Places == nil {
		all = append(all, contestant{"aggregated", service("predicted-ttft")})
	}
	return all
}

// inTwo has engines in two places in turn, those that prefill and those that decode.
func inTwo(engines int) (places []string) {
	for i := range engines {
		places = append(places, string(rune('a'+i%2)))
	}
	return places
}

// TestPairsPlay is a short form of the whole. In two places, pairs of one step have earlier first tokens than two calls, which
// choose engines of different places for many requests, whether places are required or preferred. Beside the same number of
// engines that do both, the slowest answers come faster.
func TestPairsPlay(t *testing.T) {
	length.Sequential(t)
	f := equal(4, 8192)
	requests := faster(workload.DefaultChats().Generate(1, 500), 3)
	all := Play(t, f, requests, service("predicted-ttft"))
	t.Logf("aggregated: %s", pairText(&all))
	f.Places = inTwo(4)
	outcomes := make(map[string]*Outcome)
	for _, c := range pairing(f, 2) {
		o := Play(t, f, requests, c.start)
		outcomes[c.name] = &o
		t.Logf("%s: %s", c.name, pairText(&o))
	}
	one, preferred, two := outcomes["pairs"], outcomes["pairs, preferred"], outcomes["two calls"]
	if one.Pairs == 0 || one.Far != 0 || two.Far < two.Pairs/4 || preferred.Far > two.Far/2 || all.Pairs != 0 {
		t.Errorf("%d of %d pairs, %d of %d preferred ones and %d of %d of two calls are in two places; %d requests of engines that do both are pairs",
			one.Far, one.Pairs, preferred.Far, preferred.Pairs, two.Far, two.Pairs, all.Pairs)
	}
	if most := stats.Mean(two.TTFT); stats.Mean(one.TTFT) > most || stats.Mean(preferred.TTFT) > most {
		t.Error("first tokens do not come earlier than with two calls")
	}
	if tail(one.TPOT) > tail(all.TPOT) {
		t.Error("the slowest answers do not come faster than from engines that do both")
	}
}

func pairText(o *Outcome) string {
	return fmt.Sprintf("first token %.0f ms, p99 %.0f; per token %.1f ms, p99 %.1f; last token %.2f s; %.0f %% cached; %d of %d in two places",
		1000*stats.Mean(o.TTFT), 1000*tail(o.TTFT), 1000*stats.Mean(o.TPOT), 1000*tail(o.TPOT), stats.Mean(o.TTLT), 100*o.HitRate, o.Far, o.Pairs)
}

var pairLoads = []float64{0.4, 0.6, 0.8} // shares of capacity of the engines if each does both

// pairFleets are the engines of plays of pairs.
var pairFleets = []Fleet{
	{Name: "one place", Speeds: fleets[0].Speeds, CacheBlocks: 8192},
	{Name: "two places", Speeds: fleets[0].Speeds, CacheBlocks: 8192, Places: inTwo(8)},
}

// TestPairsWhole plays all cells and prints the tables of docs/figures/pairs-compared.md with -whole.
func TestPairsWhole(t *testing.T) {
	onlyWhole(t)
	type cell struct {
		load  float64
		fleet string
		rule  string
	}
	for _, l := range targetLoadsOf() {
		results := make(map[cell][]Outcome) // by seed
		var mu sync.Mutex                   // guards results
		t.Run(l.name, func(t *testing.T) {
			for _, requests := range l.seeds {
				t.Run("seed", func(t *testing.T) {
					t.Parallel()
					most := capacity(t, pairFleets[0], requests)
					for _, load := range pairLoads {
						for _, f := range pairFleets {
							for _, c := range pairing(f, *prefillers) {
								o := Play(t, f, faster(requests, most*load), c.start)
								mu.Lock()
								at := cell{load, f.Name, c.name}
								results[at] = append(results[at], o)
								mu.Unlock()
							}
						}
					}
				})
			}
		})
		if t.Failed() {
			return
		}
		fmt.Printf("\n### %s, %d of %d engines prefill\n\n", l.name, *prefillers, len(pairFleets[0].Speeds))
		fmt.Print("| Load | Engines | | first token, mean | p99 | time per token, mean | p99 | last token, mean | cached | between places |\n|", strings.Repeat("---|", 10), "\n")
		for _, load := range pairLoads {
			for _, f := range pairFleets {
				for _, c := range pairing(f, *prefillers) {
					of := results[cell{load, f.Name, c.name}]
					mean := func(x func(o *Outcome) float64) (sum float64) {
						for i := range of {
							sum += x(&of[i]) / float64(len(of))
						}
						return sum
					}
					fmt.Printf("| %.0f %% | %s | %s | %.2f s | %.2f s | %.1f ms | %.1f ms | %.2f s | %.0f %% | %.0f %% |\n", 100*load, f.Name, c.name,
						mean(func(o *Outcome) float64 { return stats.Mean(o.TTFT) }), mean(func(o *Outcome) float64 { return tail(o.TTFT) }),
						1000*mean(func(o *Outcome) float64 { return stats.Mean(o.TPOT) }), 1000*mean(func(o *Outcome) float64 { return tail(o.TPOT) }),
						mean(func(o *Outcome) float64 { return stats.Mean(o.TTLT) }), 100*mean(func(o *Outcome) float64 { return o.HitRate }),
						100*mean(func(o *Outcome) float64 { return float64(o.Far) / float64(max(1, o.Pairs)) }))
				}
			}
		}
	}
}
