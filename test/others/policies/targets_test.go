package policies

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
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

// good returns how many requests a second had their first token within a target.
func (o *Outcome) good(target time.Duration) float64 {
	return float64(o.within(target)) / o.Seconds
}

// within returns how many requests had their first token within a target.
func (o *Outcome) within(target time.Duration) int {
	return sort.Search(len(o.TTFT), func(i int) bool { return o.TTFT[i] > target.Seconds() })
}

// playTargets plays the contestants by targets of so many times the median of the first one that does not know targets.
func playTargets(t *testing.T, f Fleet, requests []workload.Request, before int, times []float64, knowing, plain []contestant) (rows []targetRow) {
	var without []Outcome
	for _, c := range plain {
		without = append(without, PlayFor(t, f, requests, before, 0, c.start))
	}
	usual := stats.Quantile(without[0].TTFT, 0.5)
	for _, x := range times {
		row := targetRow{times: x, target: time.Duration(x * usual * float64(time.Second))}
		for _, c := range knowing {
			row.outcomes = append(row.outcomes, PlayFor(t, f, requests, before, row.target, c.start))
		}
		row.outcomes = append(row.outcomes, without...)
		rows = append(rows, row)
	}
	return rows
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

// targetRow has the outcomes of a cell and a target, by contestant.
type targetRow struct {
	times    float64
	target   time.Duration
	outcomes []Outcome
}

// TestTargetsPlay is a short form of the whole: with targets that half of the first tokens would hold without them, more hold
// theirs where the others are refused. It is too short to tell how many were refused though they could have been served in time.
func TestTargetsPlay(t *testing.T) {
	length.Sequential(t)
	f := equal(2, 8192)
	before, requests := workload.DefaultChats().Generate(2, 220), workload.DefaultChats().Generate(1, 250)
	rows := playTargets(t, f, after(before, faster(requests, 3), 220), 220, []float64{1}, knowing[:1], plain[:1])
	with, without, target := &rows[0].outcomes[0], &rows[0].outcomes[1], rows[0].target
	t.Logf("within %v: %.2f a second, %.2f without targets; %d of %d refused, %d of %d could have been served", target, with.good(target),
		without.good(target), with.Refused, with.Refused+len(with.TTFT), with.Servable, with.Refused)
	if with.good(target) <= without.good(target) || with.Refused == 0 {
		t.Error("targets do not help")
	}
}

// TestTargetsWhole plays all cells and prints the table of docs/figures/targets-compared.md with -whole.
func TestTargetsWhole(t *testing.T) {
	if !*whole {
		t.Skip("only with -whole")
	}
	if err := checkChoice(); err != nil {
		t.Fatal(err)
	}
	type cell struct {
		workload, fleet string
		load            float64
	}
	results := make(map[cell][][]targetRow) // by seed
	var cells []cell
	var mu sync.Mutex // guards results
	t.Run("plays", func(t *testing.T) {
		for _, l := range targetLoadsOf() {
			for _, f := range fleets {
				f.Speeds, f.CacheBlocks = f.Speeds[:4], 8192 // of few engines the same number of requests lasts longer
				for _, load := range targetLoads {
					cells = append(cells, cell{l.name, f.Name, load})
				}
				for _, requests := range l.seeds {
					t.Run(l.name+", "+f.Name, func(t *testing.T) {
						t.Parallel()
						most := capacity(t, f, requests)
						for _, load := range targetLoads {
							rows := playTargets(t, f, after(faster(requests, most/2), faster(requests, most*load), learnedFrom), learnedFrom, targetTimes, knowing, plain)
							t.Logf("%.0f %%: %s", 100*load, rowsText(rows))
							mu.Lock()
							c := cell{l.name, f.Name, load}
							results[c] = append(results[c], rows)
							mu.Unlock()
						}
					})
				}
			}
		}
	})
	if t.Failed() {
		return
	}
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
	for _, c := range cells {
		if results[c] == nil {
			continue // -test.run has left it out
		}
		for k, x := range targetTimes {
			goods, targets := make([][]float64, len(targeted)), []float64{}
			var no, of, wrong int
			for _, rows := range results[c] {
				targets = append(targets, rows[k].target.Seconds())
				for i := range targeted {
					goods[i] = append(goods[i], rows[k].outcomes[i].good(rows[k].target))
				}
				o := &rows[k].outcomes[0]
				no, of, wrong = no+o.Refused, of+o.Refused+len(o.TTFT), wrong+o.Servable
			}
			best := slices.MaxFunc(goods, func(a, b []float64) int { return cmp.Compare(median(a), median(b)) })
			fmt.Printf("| %s, %s, %.0f %% | %g × median, %.2f s |", c.workload, c.fleet, 100*c.load, x, median(targets))
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
	fmt.Printf("\nRefused: %d of %d requests, of which %d could have been served in time.\n", refused, asked, servable)
}

// median returns the median of values in any order.
func median(of []float64) float64 { return stats.Quantile(slices.Sorted(slices.Values(of)), 0.5) }

// rowsText has the requests within the target a second, by contestant, of each row.
func rowsText(rows []targetRow) string {
	var text strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&text, "within %v", r.target.Round(time.Millisecond))
		for i := range r.outcomes {
			fmt.Fprintf(&text, " %.2f", r.outcomes[i].good(r.target))
		}
		fmt.Fprintf(&text, ", %d of %d refused ones are servable. ", r.outcomes[0].Servable, r.outcomes[0].Refused)
	}
	return text.String()
}

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
