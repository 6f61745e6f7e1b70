package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/select-service/select-service/internal/simulation/engine"
	"github.com/select-service/select-service/internal/simulation/workload"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/selector"
)

// replayed are the policies that a trace is played with. Predicted TTFT is none of them: what it
// learns is of real engines.
var replayed = []replayedPolicy{
	{"default", nil},
	{"two-tier", selector.DefaultTwoTier()},
	{"lmetric", selector.LMetric{}},
	{"least-loaded", selector.LeastLoaded{}},
	{"power-of-two-choices", selector.PowerOfTwoChoices{}},
	{"round-robin", selector.RoundRobin{}},
	{"random", selector.Random{}},
}

type replayedPolicy struct {
	name   string
	policy selector.Policy // nil: the built-in cost
}

// outcome is what a policy has made of a trace.
type outcome struct {
	Policy       string  `json:"policy"`
	Requests     int     `json:"requests"`
	CachedTokens int     `json:"cached_tokens"`
	PromptTokens int     `json:"prompt_tokens"`
	TTFT         float64 `json:"ttft_seconds"`
	TTFT99       float64 `json:"ttft_p99_seconds"`
	Latency      float64 `json:"latency_seconds"`
	// Busiest is the share of the requests that the worker with the most got, 0 to 1.
	Busiest float64 `json:"busiest_share"`
}

func (a *app) trace() *cobra.Command {
	cmd := &cobra.Command{Use: "trace", Short: "play a trace of requests without engines"}
	cmd.AddCommand(a.replay())
	return cmd
}

func (a *app) replay() *cobra.Command {
	var (
		workers, most int
		chosen        []string
	)
	config := engine.Config{Chunked: true}
	cmd := &cobra.Command{
		Annotations: map[string]string{offline: "its engines are simulated"},
		Use:         "replay FILE", Short: "what each policy would have done with a trace", Args: cobra.ExactArgs(1),
		Long: "Plays a Mooncake trace (a JSON object a line: timestamp, input_length, output_length, hash_ids)\n" +
			"on simulated engines, once for each policy, in the time that the simulation takes. It asks no\n" +
			"service. The engines are a model: compare policies, and trust no figure by itself.",
		Example: "  selectctl trace replay trace.jsonl --workers 4",
		RunE: func(_ *cobra.Command, args []string) error {
			if workers < 1 || most < 1 {
				return usageError{errors.New("--workers and --requests must be at least 1")}
			}
			if err := config.Validate(); err != nil {
				return usageError{err}
			}
			for _, name := range chosen {
				if !slices.ContainsFunc(replayed, func(p replayedPolicy) bool { return p.name == name }) {
					return usageError{fmt.Errorf("there is no policy %q to replay", name)}
				}
			}
			f, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("read the trace: %w", err)
			}
			defer f.Close()
			requests, err := workload.ReadTrace(f, most)
			if err != nil {
				return fmt.Errorf("read %s: %w", args[0], err)
			}
			var all []outcome
			for _, p := range replayed {
				if len(chosen) > 0 && !slices.Contains(chosen, p.name) {
					continue
				}
				o, err := play(requests, workers, config, p.policy)
				if err != nil {
					return fmt.Errorf("policy %s: %w", p.name, err)
				}
				o.Policy = p.name
				all = append(all, o)
			}
			return a.show(all, outcomes(all))
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&workers, "workers", 4, "engines")
	flags.IntVar(&most, "requests", 10000, "requests that are read at most")
	flags.StringSliceVar(&chosen, "policy", nil, "policies; all if none is named")
	flags.IntVar(&config.BlockSize, "block-size", 64, "tokens of a block")
	flags.IntVar(&config.CacheBlocks, "cache-blocks", 8192, "blocks that an engine holds")
	flags.Float64Var(&config.PrefillRate, "prefill-rate", 20000, "prompt tokens that an engine computes a second")
	flags.Float64Var(&config.DecodeRate, "decode-rate", 50, "output tokens of a request a second")
	return cmd
}

func outcomes(all []outcome) *table {
	t := &table{columns: []string{"POLICY", "REQUESTS", "CACHED", "TTFT", "TTFT P99", "LATENCY", "BUSIEST"}}
	for _, o := range all {
		t.add(o.Policy, o.Requests, fmt.Sprintf("%.1f %%", 100*float64(o.CachedTokens)/float64(max(o.PromptTokens, 1))),
			fmt.Sprintf("%.3f s", o.TTFT), fmt.Sprintf("%.3f s", o.TTFT99), fmt.Sprintf("%.3f s", o.Latency), fmt.Sprintf("%.1f %%", 100*o.Busiest))
	}
	return t
}

// simulated is an engine with the load that is booked on it.
type simulated struct {
	*engine.Engine
	requests int               // all that it got
	prefill  map[string]uint64 // tokens that unfinished prefills are expected to compute
	holds    map[string][]uint64
	active   map[uint64]int // requests of each active block
}

// play plays requests on engines that a policy chooses, nil: the built-in cost.
func play(requests []workload.Request, workers int, config engine.Config, policy selector.Policy) (o outcome, err error) {
	index, layout, weights := indexer.New(), hashing.Layout{BlockSize: config.BlockSize}, selector.DefaultWeights()
	random := rand.New(rand.NewPCG(1, 2)) // equal runs are wanted
	engines := make([]*simulated, workers)
	for i := range engines {
		config.HashSeed = uint64(i) + 1
		engines[i] = &simulated{Engine: engine.New(config), prefill: make(map[string]uint64), holds: make(map[string][]uint64), active: make(map[uint64]int)}
	}
	advance := func(now time.Duration) {
		for slot, e := range engines {
			for _, u := range e.Advance(now) {
				e.note(&u)
				for _, ev := range u.Events {
					if ev.Kind == engine.BlockStored {
						index.Store(&indexer.Store{
							Slot: uint32(slot), EngineHashes: ev.Hashes, Parent: ev.Parent, HasParent: ev.HasParent,
							Local: layout.AppendLocal(nil, ev.Tokens, hashing.Seed, nil),
						})
					} else {
						index.Remove(uint32(slot), indexer.Device, ev.Hashes)
					}
				}
			}
		}
	}
	var overlap indexer.Overlap
	candidates, costs := make([]selector.Candidate, workers), []float64(nil)
	for turn, r := range requests {
		advance(r.At)
		local := layout.AppendLocal(nil, r.Prompt, hashing.Seed, nil)
		sequence := hashing.AppendSequence(nil, local)
		size := selector.Prompt{Tokens: uint64(len(r.Prompt)), Blocks: len(local), BlockSize: uint32(config.BlockSize)}
		index.Overlap(local, &overlap)
		for slot, e := range engines {
			candidates[slot] = e.candidate(sequence)
			candidates[slot].Device, _, _ = overlap.At(uint32(slot))
		}
		temperature := weights.Temperature
		if policy == nil {
			costs = weights.Costs(size, candidates, costs)
		} else {
			d := selector.Decision{Prompt: size, Candidates: candidates, Weights: weights, Rand: random, Turn: uint64(turn)}
			costs, temperature = policy.Costs(&d, costs), policy.Temperature(&d)
		}
		at := selector.Pick(costs, temperature, random)
		e, id := engines[at], strconv.Itoa(r.ID)
		e.book(id, sequence, weights.ToCompute(size, &candidates[at]))
		if err := e.Submit(r.At, engine.Request{ID: id, Prompt: r.Prompt, Output: r.Output}); err != nil {
			return o, fmt.Errorf("request %d: %w", r.ID, err)
		}
	}
	for {
		var next time.Duration
		busy := false
		for _, e := range engines {
			if at, ok := e.Next(); ok && (!busy || at < next) {
				next, busy = at, true
			}
		}
		if !busy {
			break
		}
		advance(next)
	}
	return sum(engines), nil
}

// book books a request's load.
func (s *simulated) book(id string, sequence []uint64, compute uint64) {
	s.requests++
	s.prefill[id], s.holds[id] = compute, sequence
	for _, block := range sequence {
		s.active[block]++
	}
}

// note ends what has ended of a request's load.
func (s *simulated) note(u *engine.Update) {
	if u.Request == "" {
		return
	}
	if u.Kind == engine.FirstToken || u.Kind == engine.Done {
		delete(s.prefill, u.Request)
	}
	if u.Kind != engine.Done {
		return
	}
	for _, block := range s.holds[u.Request] {
		if s.active[block]--; s.active[block] == 0 {
			delete(s.active, block)
		}
	}
	delete(s.holds, u.Request)
}

// candidate returns the engine with its load, for a prompt.
func (s *simulated) candidate(sequence []uint64) selector.Candidate {
	c := selector.Candidate{Known: true, Active: uint64(len(s.active)), Requests: uint32(len(s.holds))}
	for _, n := range s.prefill {
		c.Prefill += n
	}
	for _, block := range sequence {
		if s.active[block] == 0 {
			break
		}
		c.Shared++
	}
	return c
}

// sum adds up what the engines have measured.
func sum(engines []*simulated) (o outcome) {
	var first, whole []time.Duration
	most := 0
	for _, e := range engines {
		t := e.Totals()
		o.Requests += t.Requests
		o.CachedTokens += t.CachedTokens
		o.PromptTokens += t.PromptTokens
		first, whole = append(first, t.TTFT...), append(whole, t.Total...)
		most = max(most, e.requests)
	}
	if len(first) == 0 {
		return o
	}
	slices.Sort(first)
	o.TTFT, o.Latency = mean(first), mean(whole)
	o.TTFT99 = first[min(len(first)-1, len(first)*99/100)].Seconds()
	o.Busiest = float64(most) / float64(max(o.Requests, 1))
	return o
}

func mean(all []time.Duration) float64 {
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	return sum.Seconds() / float64(max(len(all), 1))
}
