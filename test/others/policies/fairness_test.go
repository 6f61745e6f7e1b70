package policies

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/demo/sim/node"
	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/demo/sim/stats"
	appnode "github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/test/helpers/length"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// tenant is one of those who share the engines of a play of fairness. Each of its agents has a number of sessions at any time:
// one that has ended is followed by another. The turns of a session follow each other at once.
type tenant struct {
	name     string
	weight   float64
	agents   int
	sessions int // of each agent at a time
	shared   int // tokens with which all prompts of an agent begin
	fresh    int // mean tokens that a turn adds
	output   int // mean tokens of an answer
}

// shortSession and longSession are numbers of turns. A session has one of them with equal chances.
const (
	shortSession = 2
	longSession  = 8
)

// fairRules are how a play shares the engines.
type fairRules struct {
	by       string
	halfLife int // seconds
}

// shares is what came of a tenant in a play, of the requests and sessions that ended after its first third.
type shares struct {
	tenant
	seconds      float64   // of the engines that its requests really took
	ever         float64   // the same, those of the first third included
	charged      float64   // seconds that it was charged, those of the past discounted by their age
	short, whole []float64 // seconds of short sessions, and of all sessions
}

// fairPlay is a play of fairness under way.
type fairPlay struct {
	t       *testing.T
	seed    uint64
	service *servicetest.World
	nodes   []*node.Node
	from    time.Time

	mu     sync.Mutex // guards the fields below
	shares []shares   // by tenant
	names  int
}

// playFair lets tenants share engines for some time.
func playFair(t *testing.T, f Fleet, tenants []tenant, rules fairRules, lasts time.Duration, seed uint64) []shares {
	p := &fairPlay{seed: seed}
	for _, x := range tenants {
		p.shares = append(p.shares, shares{tenant: x})
	}
	synctest.Test(t, func(t *testing.T) {
		p.t = t
		p.service = servicetest.Start(t, servicetest.Policy(t, "predicted-ttft", ""), fairClass(t, tenants, rules), func(c *appnode.Config) {
			c.Selection.Random = servicetest.Random(1, 0xfa1)
		})
		p.nodes = f.nodes(t, p.service.PutSimulated(len(f.Speeds), blockSize), true)
		ctx, cancel := context.WithCancel(t.Context())
		var running, sessions sync.WaitGroup
		defer running.Wait()
		defer cancel()
		for _, n := range p.nodes {
			running.Go(func() { _ = n.Run(ctx) })
		}
		synctest.Wait()
		p.from = time.Now().Add(lasts / 3)
		asking, stop := context.WithTimeout(ctx, lasts)
		defer stop()
		place := 0
		for i := range tenants {
			for agent := range tenants[i].agents {
				for range tenants[i].sessions {
					place++
					s := fairSession{p, &p.shares[i], fmt.Sprint(tenants[i].name, "-", agent), rand.New(rand.NewPCG(uint64(place), seed)), time.Duration(place)}
					sessions.Go(func() { s.run(asking) })
				}
			}
		}
		sessions.Wait()
		for _, c := range p.service.Fairness(&selection.FairnessQuery{Limit: len(tenants)}).Consumers {
			for i := range p.shares {
				if p.shares[i].name == c.Tenant {
					p.shares[i].charged = c.Seconds
				}
			}
		}
	})
	return p.shares
}

// fairClass makes requests wait for a rank with more than 8,192 tokens of prefill.
func fairClass(t *testing.T, tenants []tenant, rules fairRules) func(*appnode.Config) {
	var weights []string
	for _, x := range tenants {
		weights = append(weights, fmt.Sprintf("%s: %g", x.name, x.weight))
	}
	file, err := admission.ParsePolicy(fmt.Appendf(nil, `
default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - name: c
    policy_family: f
    cache_bucket: all
    quantum: 1
    prefill_busy_threshold: 8192
    fairness: {by: %s, half_life_seconds: %d, weights: {%s}}
`, rules.by, cmp.Or(rules.halfLife, 60), strings.Join(weights, ", ")))
	if err != nil {
		t.Fatal(err)
	}
	return func(c *appnode.Config) {
		c.Scopes.Admission = admission.Config{File: file}
		c.Scopes.Queues.OverlapRefresh = 10 * time.Second // the service's default
	}
}

// fairSession has the sessions that follow each other in one place of an agent.
type fairSession struct {
	*fairPlay
	of    *shares
	agent string
	rnd   *rand.Rand
	place time.Duration // what happens at once has an order by this
}

func (s fairSession) run(ctx context.Context) {
	time.Sleep(s.place + time.Duration(s.rnd.IntN(int(time.Second))))
	of := s.seed
	for _, c := range s.agent {
		of = 31*of + uint64(c)
	}
	shared := randomText(rand.New(rand.NewPCG(of, 0x5a2ed)), s.of.shared)
	for ctx.Err() == nil {
		turns := shortSession
		if s.rnd.IntN(2) == 0 {
			turns = longSession
		}
		began, said := time.Now(), slices.Clone(shared)
		for range turns {
			said = append(said, randomText(s.rnd, s.of.fresh/2+s.rnd.IntN(s.of.fresh))...)
			answer := randomText(s.rnd, 1+s.of.output/2+s.rnd.IntN(s.of.output))
			if !s.turn(ctx, said[:len(said):len(said)], answer) {
				return
			}
			said = append(said, answer...)
		}
		s.mu.Lock()
		if time.Now().After(s.from) {
			took := time.Since(began).Seconds()
			s.of.whole = append(s.of.whole, took)
			if turns == shortSession {
				s.of.short = append(s.of.short, took)
			}
		}
		s.mu.Unlock()
	}
}

func randomText(rnd *rand.Rand, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = rnd.Uint32N(128_000)
	}
	return tokens
}

// turn asks for one request, waits for its turn, and awaits its answer. It is false if the play is over before its turn.
func (s fairSession) turn(ctx context.Context, prompt, answer []uint32) bool {
	s.mu.Lock()
	s.names++
	id := fmt.Sprint(s.names)
	s.mu.Unlock()
	sel, err := s.service.Select(ctx, &selection.SelectRequest{
		Scope: servicetest.Scope, ReservationID: &id, Prompt: selection.Prompt{TokenIDs: prompt, HasTokenIDs: true},
		FairTenant: s.of.name, FairnessID: s.agent,
	}, true)
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		s.t.Error(err)
		return false
	}
	steps, err := s.nodes[sel.Rank.Worker].Generate(simapi.GenerateRequest{RequestID: id, TokenIDs: prompt, OutputTokenIDs: answer})
	if err != nil {
		s.t.Error(err)
		return false
	}
	for x := range steps {
		time.Sleep(s.place)
		switch x.Event {
		case simapi.EventFirstToken:
			_ = s.service.PrefillComplete(id)
		case simapi.EventBlock:
			_ = s.service.OutputBlock(id, nil)
		case simapi.EventDone:
			_ = s.service.Free(id)
			s.mu.Lock()
			s.of.ever += x.EngineMS / 1000
			if time.Now().After(s.from) {
				s.of.seconds += x.EngineMS / 1000
			}
			s.mu.Unlock()
		case simapi.EventError:
			s.t.Error(x.Error)
		}
	}
	return true
}

// fairCell is a play of fairness, of about so many sessions at a time.
type fairCell struct {
	name    string
	least   int // sessions
	tenants func(sessions int) []tenant
}

// The plays of fairness. All tenants have so many requests that they can take their share.
var (
	fiveAgents = fairCell{"five agents beside one", 25, func(n int) []tenant {
		return []tenant{{"A", 1, 5, n / 6, 3000, 9000, 5}, {"B", 1, 1, n - n/6*5, 3000, 9000, 5}}
	}}
	cacheUsers = fairCell{"a heavy cache user beside a light one", 25, func(n int) []tenant {
		return []tenant{{"A", 1, 1, n * 2 / 3, 24_000, 3000, 5}, {"B", 1, 1, n - n*2/3, 500, 9000, 5}}
	}}
	byWeights = fairCell{"weights 1, 2 and 4", 100, func(n int) []tenant {
		return []tenant{{"A", 1, 2, n / 6, 3000, 4000, 5}, {"B", 2, 1, n / 3, 3000, 4000, 5}, {"C", 4, 1, n - n/3*2, 3000, 4000, 5}}
	}}
	longAnswers = fairCell{"long answers beside long prompts", 25, func(n int) []tenant {
		return []tenant{{"A", 1, 1, 4 * n, 8000, 100, 200}, {"B", 1, 1, n / 2, 500, 9000, 5}}
	}}
)

// play plays the cell. At most four engines have all sessions.
func (c fairCell) play(t *testing.T, sessions int, rules fairRules, lasts time.Duration, seed uint64) []shares {
	return playFair(t, equal(min(4, sessions/25), 8192), c.tenants(sessions), rules, lasts, seed)
}

// off returns by how much the share of a tenant in the seconds is off from that in the weights, at most.
func off(all []shares) (most float64) {
	var seconds, weights float64
	for i := range all {
		seconds, weights = seconds+all[i].seconds, weights+all[i].weight
	}
	for i := range all {
		share := all[i].seconds / seconds * weights / all[i].weight
		most = max(most, share-1, 1-share)
	}
	return most
}

// TestFairEngineSeconds proves that tenants get seconds of saturated engines by their weights within 10 %, by what their
// requests really took, and that without fairness they do not.
func TestFairEngineSeconds(t *testing.T) {
	length.Sequential(t)
	type size struct {
		sessions int
		seed     uint64
	}
	for _, c := range []fairCell{fiveAgents, cacheUsers, byWeights} {
		sizes := []size{{c.least, 1}}
		if !testing.Short() {
			sizes = append(sizes, size{c.least, 2}, size{max(50, c.least), 3}, size{100, 4}, size{250, 5})
		}
		for _, x := range sizes {
			fair := c.play(t, x.sessions, fairRules{by: "program"}, 6*time.Minute, x.seed)
			t.Logf("%s, %d sessions: %s", c.name, x.sessions, sharesText(fair))
			if o := off(fair); o > 0.1 {
				t.Errorf("%s, %d sessions: shares are off by %.2f", c.name, x.sessions, o)
			}
		}
	}
	if arrival := fiveAgents.play(t, 25, fairRules{by: "none"}, 2*time.Minute, 1); off(arrival) < 0.4 {
		t.Errorf("by arrival: %s", sharesText(arrival))
	}
}

// TestChargedSeconds proves that what tenants are charged is within 10 % of the engine seconds that their requests really took,
// though prompts share steps with each other, and that all together are charged the time of the engine. What answers beside prompts
// are charged follows a rule of thumb, within 25 %.
func TestChargedSeconds(t *testing.T) {
	length.Sequential(t)
	for _, c := range []fairCell{fiveAgents, cacheUsers, longAnswers} {
		within := 0.1
		if c.name == longAnswers.name {
			within = 0.25
		}
		all := c.play(t, 25, fairRules{by: "program", halfLife: 86_400}, 6*time.Minute, 1)
		t.Logf("%s: %s", c.name, sharesText(all))
		var charged, took float64
		for _, s := range all {
			charged, took = charged+s.charged, took+s.ever
			if x := s.charged / s.ever; x < 1-within || x > 1+within {
				t.Errorf("%s: %s is charged %.1f s for %.1f s", c.name, s.name, s.charged, s.ever)
			}
		}
		if x := charged / took; x < 0.95 || x > 1.05 {
			t.Errorf("%s: %.1f s are charged for %.1f s", c.name, charged, took)
		}
	}
}

// sharesText has a play's figures.
func sharesText(all []shares) string {
	var text []string
	for i := range all {
		s := &all[i]
		slices.Sort(s.short)
		text = append(text, fmt.Sprintf("%s %.1f s of the engines (in all %.1f s, charged %.1f s), short sessions %.1f s (of %d), whole ones %.1f s (of %d)",
			s.name, s.seconds, s.ever, s.charged, stats.Quantile(s.short, 0.5), len(s.short), stats.Mean(s.whole), len(s.whole)))
	}
	return strings.Join(text, "; ")
}

// TestFairWhole plays all cells and prints the table of docs/figures/fairness-compared.md with -whole.
func TestFairWhole(t *testing.T) {
	if !*whole {
		t.Skip("only with -whole")
	}
	fmt.Print("\n| Play | Sessions | By | Shares of engine seconds | Median short session | Mean session |\n|---|---|---|---|---|---|\n")
	for _, c := range []fairCell{fiveAgents, cacheUsers, byWeights} {
		for _, sessions := range []int{25, 100, 250} {
			if sessions < c.least {
				continue
			}
			for _, by := range []string{"none", "tenant", "program"} {
				all := c.play(t, sessions, fairRules{by: by}, 9*time.Minute, *firstSeed)
				fmt.Printf("| %s | %d | `%s` | %s | %s | %s |\n", c.name, sessions, by, perTenant(all, func(s *shares) string {
					seconds := 0.0
					for i := range all {
						seconds += all[i].seconds
					}
					return fmt.Sprintf("%.0f %%", 100*s.seconds/seconds)
				}), perTenant(all, func(s *shares) string {
					slices.Sort(s.short)
					return figure(stats.Quantile(s.short, 0.5), len(s.short))
				}), perTenant(all, func(s *shares) string { return figure(stats.Mean(s.whole), len(s.whole)) }))
			}
		}
	}
}

// perTenant has a figure of each tenant, in their order.
func perTenant(all []shares, of func(*shares) string) string {
	var text []string
	for i := range all {
		text = append(text, all[i].name+" "+of(&all[i]))
	}
	return strings.Join(text, ", ")
}

// figure is a time in seconds, unless it is of too few sessions.
func figure(seconds float64, sessions int) string {
	if sessions < 5 {
		return "–"
	}
	return fmt.Sprintf("%.0f s", seconds)
}
