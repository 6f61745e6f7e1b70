package policies

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/select-service/select-service/demo/sim/stats"
	"github.com/select-service/select-service/internal/simulation/workload"
	"github.com/select-service/select-service/test/helpers/length"
)

// knowing are the contestants that know the targets of requests, plain those that do not.
var (
	knowing = []contestant{
		{"targets, refuse", withTargets(true)},  // select-service with on_miss: refuse
		{"targets, place", withTargets(false)},  // with on_miss: place
		{"targets, least cost", startLeastCost}, // the same, but what no engine is predicted to hold goes where it costs least
		{"headroom, sheds", startHeadroom(true)},
		{"headroom", startHeadroom(false)},
	}
	plain = []contestant{
		{"predicted-ttft", service("predicted-ttft")}, // select-service without targets
		{"default", service("")},
	}
)

var (
	targetLoads = []float64{0.6, 0.9, 1.2} // shares of capacity
	targetTimes = []float64{0.5, 1, 2}     // times the median time to first token without targets in the same cell
)

// figuresWithin are the figures of a play whose requests want their first token within a target.
func figuresWithin(o *Outcome, target time.Duration) figures {
	f := figuresOf(o)
	f.Within, f.Refused, f.Servable = target.Seconds(), o.Refused, o.Servable
	f.Good = float64(sort.Search(len(o.TTFT), func(i int) bool { return o.TTFT[i] > f.Within })) / o.Seconds
	return f
}

// playTargets plays the contestants in a cell, by targets of so many times the median of the first one that does not know targets,
// but for what has been played.
func playTargets(t *testing.T, f Fleet, requests []workload.Request, before int, c cell, times []float64, knowing, plain []contestant, played *resultsFile) {
	put := func(o *Outcome, target time.Duration) {
		if err := played.put(c, figuresWithin(o, target)); err != nil {
			t.Fatal(err)
		}
	}
	targets := make([]time.Duration, len(times))
	for i, p := range plain {
		c.Rule = p.name
		if slices.ContainsFunc(times, func(x float64) bool { c.Target = x; return !played.has(c) }) {
			o := PlayFor(t, f, requests, before, 0, p.start)
			for k, x := range times {
				if i == 0 {
					targets[k] = time.Duration(x * stats.Quantile(o.TTFT, 0.5) * float64(time.Second))
				}
				c.Target = x
				put(&o, targets[k])
			}
		}
		for k, x := range times {
			c.Target = x
			known, _ := played.get(c)
			targets[k] = time.Duration(math.Round(known.Within * float64(time.Second)))
		}
	}
	for k, x := range times {
		for _, p := range knowing {
			if c.Rule, c.Target = p.name, x; !played.has(c) {
				o := PlayFor(t, f, requests, before, targets[k], p.start)
				put(&o, targets[k])
			}
		}
	}
}

// learnedFrom is the number of requests that precede a play with targets: predictions are trusted after 200.
const learnedFrom = 300

// after returns the first n of some requests, and after them all of others, with a minute between.
func after(some, others []workload.Request, n int) []workload.Request {
	all := slices.Clone(some[:n])
	last := time.Duration(0)
	for i := range all {
		all[i].Session = "before " + all[i].Session
		if len(all[i].After) == 0 {
			last = max(last, all[i].At)
		}
	}
	for _, r := range others {
		r.ID += n
		r.At += last + time.Minute
		r.After = slices.Clone(r.After)
		for k := range r.After {
			r.After[k] += n
		}
		all = append(all, r)
	}
	return all
}

// TestTargetsPlay is a short form of the whole: with targets that half of the first tokens would hold without them, more hold
// theirs where the others are refused. What was played is not played again. The play is too short to tell how many were refused though they could have been served in time.
func TestTargetsPlay(t *testing.T) {
	length.Sequential(t)
	f := equal(2, 8192)
	before, requests := workload.DefaultChats().Generate(2, 220), workload.DefaultChats().Generate(1, 250)
	played, err := openResults("")
	if err != nil {
		t.Fatal(err)
	}
	playTargets(t, f, after(before, faster(requests, 3), 220), 220, cell{}, []float64{1}, knowing[:1], plain[:1], played)
	with, _ := played.get(cell{Rule: knowing[0].name, Target: 1})
	without, _ := played.get(cell{Rule: plain[0].name, Target: 1})
	t.Logf("within %.3f s: %.2f a second, %.2f without targets; %d of %d refused, %d of %d could have been served", with.Within, with.Good,
		without.Good, with.Refused, with.Refused+with.Counted, with.Servable, with.Refused)
	if with.Good <= without.Good || with.Refused == 0 {
		t.Error("targets do not help")
	}
	never := func(*world) Rule { panic("a play that is known is played again") }
	playTargets(t, f, nil, 0, cell{}, []float64{1}, []contestant{{knowing[0].name, never}}, []contestant{{plain[0].name, never}}, played)
}

// TestTargetsWhole plays all cells and prints the table of docs/figures/targets-compared.md with -whole.
func TestTargetsWhole(t *testing.T) {
	onlyWhole(t)
	played := keptResults(t)
	t.Run("plays", func(t *testing.T) {
		for _, l := range targetLoadsOf() {
			for _, f := range targetFleets() {
				for i := range l.seeds {
					t.Run(l.name+", "+f.Name, func(t *testing.T) {
						t.Parallel()
						playTargetLoads(t, l, i, f, played)
					})
				}
			}
		}
	})
	if !t.Failed() {
		printTargets(played)
	}
}

// playTargetLoads plays a seed of a workload on a fleet, at all loads.
func playTargetLoads(t *testing.T, l load, seed int, f Fleet, played *resultsFile) {
	c, requests := cell{Workload: l.name, Requests: *requested, Seed: *firstSeed + uint64(seed), Fleet: f.Name}, l.seeds[seed]
	most, known := played.get(c)
	if !known {
		most.Rate = capacity(t, f, requests)
		if err := played.put(c, most); err != nil {
			t.Fatal(err)
		}
	}
	for _, c.Load = range targetLoads {
		asked := after(faster(requests, most.Rate/2), faster(requests, most.Rate*c.Load), learnedFrom)
		playTargets(t, f, asked, learnedFrom, c, targetTimes, knowing, plain, played)
	}
}

// targetFleets are four engines, on which the same number of requests lasts longer than on eight.
func targetFleets() []Fleet {
	four := slices.Clone(fleets)
	for i := range four {
		four[i].Speeds, four[i].CacheBlocks = four[i].Speeds[:4], 8192
	}
	return four
}

// printTargets prints the table. A play that -test.run has left out is left out of it, too.
func printTargets(played *resultsFile) {
	targeted := slices.Concat(knowing, plain)
	fmt.Print("\n| workload, engines, load | target |")
	for _, c := range targeted {
		fmt.Printf(" %s |", c.name)
	}
	fmt.Print(" refused | of these servable |\n|")
	for range len(targeted) + 4 {
		fmt.Print("---|")
	}
	fmt.Println()
	var refused, asked, servable int
	for _, l := range targetLoadsOf() {
		for _, f := range targetFleets() {
			for _, c := range targetCells(l.name, f.Name) {
				var within []float64
				goods := make([][]float64, len(targeted))
				var no, of, wrong int
				for c.Seed = *firstSeed; c.Seed < *firstSeed+*seeds; c.Seed++ {
					for i := range targeted {
						c.Rule = targeted[i].name
						x, known := played.get(c)
						if !known {
							continue
						}
						goods[i] = append(goods[i], x.Good)
						if i == 0 {
							within = append(within, x.Within)
							no, of, wrong = no+x.Refused, of+x.Refused+x.Counted, wrong+x.Servable
						}
					}
				}
				if within == nil {
					continue
				}
				best := slices.MaxFunc(goods, func(a, b []float64) int { return cmp.Compare(median(a), median(b)) })
				fmt.Printf("| %s, %s, %.0f %% | %g × median, %.2f s |", c.Workload, c.Fleet, 100*c.Load, c.Target, median(within))
				for _, g := range goods {
					text := fmt.Sprintf("%.1f ±%.1f", median(g), (slices.Max(g)-slices.Min(g))/2)
					if median(g) == median(best) {
						text = "**" + text + "**"
					}
					fmt.Printf(" %s |", text)
				}
				fmt.Printf(" %d of %d | %d |\n", no, of, wrong)
				refused, asked, servable = refused+no, asked+of, servable+wrong
			}
		}
	}
	fmt.Printf("\nRefused: %d of %d requests, of which %d could have been served in time.\n", refused, asked, servable)
}

// targetCells are the rows of a workload on a fleet, without seeds and rules.
func targetCells(workload, fleet string) (all []cell) {
	for _, load := range targetLoads {
		for _, x := range targetTimes {
			all = append(all, cell{Workload: workload, Requests: *requested, Fleet: fleet, Load: load, Target: x})
		}
	}
	return all
}

// median returns the median of values in any order.
func median(of []float64) float64 { return stats.Quantile(slices.Sorted(slices.Values(of)), 0.5) }

// targetLoadsOf returns the workloads that are asked for, with one or more seeds each.
func targetLoadsOf() (all []load) {
	for _, kind := range []string{"chats", "agents"} {
		if *onlyLoads != "" && *onlyLoads != kind {
			continue
		}
		l := load{name: kind}
		for seed := *firstSeed; seed < *firstSeed+*seeds; seed++ {
			if kind == "chats" {
				l.seeds = append(l.seeds, workload.DefaultChats().Generate(seed, *requested))
			} else {
				l.seeds = append(l.seeds, workload.DefaultAgents().Generate(seed, *requested))
			}
		}
		all = append(all, l)
	}
	return all
}
