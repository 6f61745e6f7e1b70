package policies

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/demo/sim/stats"
	"github.com/select-service/select-service/internal/simulation/workload"
)

var (
	whole     = flag.Bool("whole", false, "play all rules on all workloads, and print the tables")
	onlyRules = flag.String("rules", "", "of these rules (a list)")
	onlyLoads = flag.String("workloads", "", "of these workloads (a list of chats, agents, mooncake, agentic)")
	firstSeed = flag.Uint64("seed", 11, "first of the three seeds; rules are tuned on seeds below 11")
	seeds     = flag.Uint64("seeds", 1, "number of seeds of the plays with targets")
	requested = flag.Int("requests", 5000, "of a play; with much fewer, sessions begin within a shorter time than they last")
	mooncake  = flag.String("mooncake", "", "file with Mooncake's conversation trace")
	results   = flag.String("results", "", "file for the figures of plays, one a line; those that it has are not played again")
	agentic   = flag.String("agentic", "", "file with a trace of agents, see make traces-agents")
)

// TestPlay proves that a play in a closed loop answers all requests, that the same play gives the same figures, and that the
// rules that know caches find more in them than turns do.
func TestPlay(t *testing.T) {
	requests := workload.DefaultAgents().Generate(1, 120)
	outcomes := make(map[string]Outcome)
	for _, r := range rules {
		o := Play(t, equal(4, 4096), requests, r.start)
		outcomes[r.name] = o
		if len(o.TTFT) < len(requests)/2 || len(o.TTLT) != len(o.TTFT) || len(o.Session) == 0 || o.Session[0] <= 0 {
			t.Errorf("%s: %d first tokens, %d answers, %d sessions", r.name, len(o.TTFT), len(o.TTLT), len(o.Session))
		}
		t.Logf("%-16s TTFT %.0f ms, p99 %.0f, session %.1f s, hit rate %.2f, work %.2f, %v", r.name, 1000*stats.Mean(o.TTFT), 1000*tail(o.TTFT), stats.Mean(o.Session), o.HitRate, o.Work, o.Placed)
	}
	for _, name := range []string{"predicted-ttft", "dynamo", "ramjet", "llm-d", "hard-sessions"} {
		if outcomes[name].HitRate <= outcomes["round-robin"].HitRate {
			t.Errorf("%s: hit rate %.2f", name, outcomes[name].HitRate)
		}
	}
	if !reflect.DeepEqual(Play(t, equal(4, 4096), requests, service("predicted-ttft")), outcomes["predicted-ttft"]) {
		t.Error("another play with the same seed")
	}
}

func equal(engines, blocks int) Fleet {
	return Fleet{Speeds: slices.Repeat([]float64{1}, engines), CacheBlocks: blocks}
}

// TestWhole plays all cells and prints the tables of docs/figures/policies-compared.md with -whole.
func TestWhole(t *testing.T) {
	onlyWhole(t)
	all, played := workloads(t), keptResults(t)
	t.Run("plays", func(t *testing.T) {
		for _, l := range all {
			for _, f := range fleets {
				for i := range l.seeds {
					t.Run(l.name+", "+f.Name, func(t *testing.T) {
						t.Parallel()
						playFleet(t, l, i, f, played)
					})
				}
			}
		}
	})
	if !t.Failed() {
		printTables(all, played)
	}
}

// playFleet plays a seed of a workload on a fleet by all contestants, at all loads, but for what has been played.
func playFleet(t *testing.T, l load, seed int, f Fleet, played *resultsFile) {
	f.CacheBlocks = l.blocks
	c := cell{Workload: l.name, Requests: *requested, Seed: *firstSeed + uint64(seed), Fleet: f.Name}
	most, known := played.get(c)
	if !known {
		most.Rate = capacity(t, f, l.seeds[seed])
		if err := played.put(c, most); err != nil {
			t.Fatal(err)
		}
	}
	for _, c.Load = range loads {
		for _, r := range contestants() {
			if c.Rule = r.name; played.has(c) {
				continue
			}
			o := Play(t, f, faster(l.seeds[seed], most.Rate*c.Load), r.start)
			if err := played.put(c, figuresOf(&o)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// fleets are eight engines, without their caches.
var fleets = []Fleet{
	{Name: "equal", Speeds: []float64{1, 1, 1, 1, 1, 1, 1, 1}},
	{Name: "one slow", Speeds: []float64{0.5, 1, 1, 1, 1, 1, 1, 1}},
}

// loads are shares of what the engines can bear, see capacity.
var loads = []float64{0.60, 0.85, 0.95}

// measures are what the tables show.
var measures = []struct {
	name string
	of   func(f figures) float64
}{
	{"mean time to first token", func(f figures) float64 { return f.TTFT }},
	{"99th percentile of it", func(f figures) float64 { return f.P99 }},
	{"mean time to last token", func(f figures) float64 { return f.TTLT }},
	{"mean time of a session", func(f figures) float64 { return f.Session }},
}

// printTables prints the tables of the page: the loads, and for each workload and measure seconds of the first rule, and of the
// others how many times that.
func printTables(all []load, played *resultsFile) {
	printLoads(all, played)
	for _, l := range all {
		mean := func(c cell) figures {
			c.Workload, c.Requests = l.name, *requested
			return played.mean(c, *firstSeed, len(l.seeds))
		}
		for _, m := range measures {
			if m.of(mean(cell{Fleet: fleets[0].Name, Rule: rules[0].name, Load: loads[0]})) == 0 {
				continue // its requests are of no sessions
			}
			printTable(l.name+": "+m.name, func(c cell) string {
				x := m.of(mean(c))
				if c.Rule == rules[0].name {
					return fmt.Sprintf("%.2f s", x)
				}
				c.Rule = rules[0].name
				base := m.of(mean(c))
				if x < 0.98*base {
					return fmt.Sprintf("**%.2f**", x/base)
				}
				return fmt.Sprintf("%.2f", x/base)
			})
		}
		printTable(l.name+": share of the prompts' tokens found in caches", func(c cell) string {
			return fmt.Sprintf("%.1f %%", 100*mean(c).HitRate)
		})
	}
}

// printLoads prints what the first rule meets in each cell: how much faster than in the workload sessions begin, the requests
// that count, and the share of the engines' time that is work.
func printLoads(all []load, played *resultsFile) {
	fmt.Printf("\n### Loads\n\n| |%s\n|%s\n", columns(), separator())
	for _, l := range all {
		fmt.Printf("| %s", l.name)
		for _, f := range fleets {
			c := cell{Workload: l.name, Requests: *requested, Fleet: f.Name}
			most := played.mean(c, *firstSeed, len(l.seeds)).Rate
			c.Rule = rules[0].name
			for _, c.Load = range loads {
				o := played.mean(c, *firstSeed, len(l.seeds))
				fmt.Printf(" | %.1f ×, %d, %.0f %%", most*c.Load, o.Counted, 100*o.Work)
			}
		}
		fmt.Println(" |")
	}
}

// printTable prints a table with a row for each contestant, and a column for each fleet and load.
func printTable(heading string, text func(cell) string) {
	fmt.Printf("\n### %s\n\n| |%s\n|%s\n", heading, columns(), separator())
	for _, r := range contestants() {
		fmt.Printf("| %s", r.name)
		for _, f := range fleets {
			for _, load := range loads {
				fmt.Printf(" | %s", text(cell{Fleet: f.Name, Rule: r.name, Load: load}))
			}
		}
		fmt.Println(" |")
	}
}

// columns are the headings of the columns, and separator is the line below them.
func columns() (line string) {
	for _, f := range fleets {
		for _, load := range loads {
			line += fmt.Sprintf(" %s, %.0f %% |", f.Name, 100*load)
		}
	}
	return line
}

func separator() string { return strings.Repeat("---|", 1+len(fleets)*len(loads)) }

// contestants are the rules that are asked for; the first one is always among them.
func contestants() []contestant {
	if *onlyRules == "" {
		return rules
	}
	return slices.DeleteFunc(slices.Clone(rules), func(r contestant) bool {
		return r.name != rules[0].name && !slices.Contains(strings.Split(*onlyRules, ","), r.name)
	})
}

// kinds are the workloads that -workloads may name. A trace needs its file.
func kinds() []string {
	all := []string{"chats", "agents"}
	if *mooncake != "" {
		all = append(all, "mooncake")
	}
	if *agentic != "" {
		all = append(all, "agentic")
	}
	return all
}

// checkNames returns an error if a list names what there is not.
func checkNames(list string, known []string) error {
	if list == "" {
		return nil
	}
	for _, name := range strings.Split(list, ",") {
		if !slices.Contains(known, name) {
			return fmt.Errorf("%q is none of %s", name, strings.Join(known, ","))
		}
	}
	return nil
}

// onlyWhole skips a test without -whole, and fails it if what is chosen of the whole is not there.
func onlyWhole(t *testing.T) {
	t.Helper()
	if !*whole {
		t.Skip("only with -whole")
	}
	if err := checkChoice(); err != nil {
		t.Fatal(err)
	}
}

// keptResults opens the file of -results until the end of the test.
func keptResults(t *testing.T) *resultsFile {
	t.Helper()
	r, err := openResults(*results)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// checkChoice returns an error if -rules or -workloads names what there is not.
func checkChoice() error {
	var names []string
	for _, r := range rules {
		names = append(names, r.name)
	}
	if err := checkNames(*onlyRules, names); err != nil {
		return fmt.Errorf("-rules: %w", err)
	}
	if err := checkNames(*onlyLoads, kinds()); err != nil {
		return fmt.Errorf("-workloads: %w (mooncake needs -mooncake FILE, agentic -agentic FILE)", err)
	}
	return nil
}

// TestNames proves that a name that chooses nothing is an error that says what there is.
func TestNames(t *testing.T) {
	known := []string{"chats", "agents"}
	for list, want := range map[string]string{
		"": "", "chats": "", "agents,chats": "",
		"mooncake": `"mooncake" is none of chats,agents`, "chats,": `"" is none of chats,agents`,
	} {
		if err := checkNames(list, known); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%q: %v, not %q", list, err, want)
		}
	}
	if err := checkChoice(); err != nil {
		t.Error(err)
	}
}

// load is a workload with several seeds.
type load struct {
	name   string
	seeds  [][]workload.Request
	blocks int // of an engine's cache
}

func workloads(t *testing.T) (all []load) {
	asked := func(kind string) bool {
		return slices.Contains(kinds(), kind) && (*onlyLoads == "" || slices.Contains(strings.Split(*onlyLoads, ","), kind))
	}
	if asked("chats") {
		chats := load{name: "Chats", blocks: 8192}
		for seed := range uint64(3) {
			chats.seeds = append(chats.seeds, workload.DefaultChats().Generate(*firstSeed+seed, *requested))
		}
		all = append(all, chats)
	}
	if asked("agents") {
		for seed := *firstSeed; seed < *firstSeed+3; seed++ {
			requests := workload.DefaultAgents().Generate(seed, *requested)
			all = append(all, load{fmt.Sprintf("Agents, seed %d", seed), [][]workload.Request{requests}, 8192})
		}
	}
	if asked("mooncake") {
		all = append(all, load{"Mooncake's conversations", [][]workload.Request{read(t, *mooncake)}, 16384})
	}
	if asked("agentic") {
		all = append(all, load{"Agentic code", [][]workload.Request{workload.Start(read(t, *agentic), 1, *firstSeed)}, 16384})
	}
	return all
}

// read reads a trace.
func read(t *testing.T, file string) []workload.Request {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	requests, err := workload.ReadTrace(f, *requested)
	if err != nil {
		t.Fatal(err)
	}
	return requests
}

// faster has sessions, and requests without one, begin at so many times their rate.
func faster(requests []workload.Request, rate float64) []workload.Request {
	all := slices.Clone(requests)
	for i := range all {
		if len(all[i].After) == 0 {
			all[i].At = time.Duration(float64(all[i].At) / rate)
		}
	}
	return all
}

// capacity returns how many times as fast the sessions of a workload may begin for the engines to have work for all of their
// time under predicted-ttft, by how much they have at 60 % of that rate. A play near the capacity itself would not tell: it
// ends long before the sessions that pile up are as many as they come to.
func capacity(t *testing.T, f Fleet, requests []workload.Request) float64 {
	const load = 0.6
	rate := 1.0
	for range 4 {
		o := Play(t, f, faster(requests, load*rate), service("predicted-ttft"))
		rate *= load / o.Work
	}
	return rate
}
