package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/select-service/select-service/demo/sim/plot"
)

// The policies, in the order of the table. "select-service/NAME" is the service
// with the engines registered under the model NAME, for which it may have a policy
// of its own.
const (
	selectService = "select-service"
	roundRobin    = "round-robin"
	randomly      = "random"
	leastLoaded   = "least-loaded"
)

var allPolicies = []string{selectService, roundRobin, randomly, leastLoaded}

// The built-in workloads.
const (
	chats  = "chats"
	agents = "agents"
	// longAgents are agents with contexts of 50,000 to 200,000 tokens.
	longAgents = "long-agents"
)

// When the service is told that a prefill is complete.
const (
	streamed = "stream" // at the first token, then of every output block
	late     = "late"   // at the end, as from a caller that does not stream; no output blocks
)

type config struct {
	Targets   []string `json:"targets"`
	Engines   []string `json:"engines"`
	Policies  []string `json:"-"`
	Seed      uint64   `json:"seed"`
	Requests  int      `json:"requests"`
	Workload  string   `json:"workload"`
	Trace     string   `json:"trace,omitempty"`
	Rate      float64  `json:"rate"`
	Closed    bool     `json:"closed_loop,omitempty"`
	Sessions  float64  `json:"sessions_per_sec,omitempty"`
	Rounds    int      `json:"rounds"`
	Warm      bool     `json:"warm,omitempty"`
	Again     int      `json:"again,omitempty"`
	Speedup   float64  `json:"speedup"`
	Model     string   `json:"model"`
	Tenant    string   `json:"tenant"`
	Lifecycle string   `json:"lifecycle"`
	Slow      []string `json:"slow,omitempty"`
	Decisions int      `json:"-"`
	JSON      string   `json:"-"`
	Disturb   string   `json:"disturb,omitempty"`
	Replay    bool     `json:"replay"`
	Fleet     bool     `json:"fleet,omitempty"`

	WriteTrace string `json:"-"`
	Keep       bool   `json:"-"`
}

func defaults() config {
	return config{
		Targets: []string{"http://127.0.0.1:8092"}, Policies: []string{"all"}, Workload: chats, Seed: 1, Requests: 1000, Rate: 1, Rounds: 1,
		Model: "sim", Tenant: "default", Lifecycle: streamed, Decisions: 8, Replay: true,
	}
}

func (c *config) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("sim-player", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringSliceVar(&c.Targets, "target", c.Targets, "URL of the selection service; replicas of one take turns")
	f.StringSliceVar(&c.Engines, "engines", c.Engines, "URLs of the engines (required)")
	f.StringSliceVar(&c.Policies, "policies", c.Policies, "policies to play: all, or some of "+strings.Join(allPolicies, ", ")+"; select-service/NAME registers the engines under the model NAME, for which the service may have another policy")
	f.StringVar(&c.Workload, "workload", c.Workload, "built-in workload: chats, agents (tool calls, sub-agents, document lookups), or long-agents (contexts of 50,000 to 200,000 tokens)")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "seed of the built-in workload and of random choices")
	f.IntVar(&c.Requests, "requests", c.Requests, "requests to play")
	f.StringVar(&c.Trace, "trace", c.Trace, "play a trace in Mooncake's format, or in that of aiperf's agents, instead of the built-in workload")
	f.StringVar(&c.WriteTrace, "write-trace", c.WriteTrace, "only write the workload to this file, in Mooncake's format")
	f.Float64Var(&c.Rate, "rate", c.Rate, "let requests arrive so many times as fast, for another load")
	f.BoolVar(&c.Closed, "closed-loop", c.Closed, "let the requests of a session wait for the answers before them, so that slow answers delay what follows; a trace of sessions is always played so")
	f.Float64Var(&c.Sessions, "sessions-per-sec", c.Sessions, "let the sessions of a trace begin at random times with this mean rate, in place of the times in the trace")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "times to play all policies in turn; the table has medians")
	f.BoolVar(&c.Warm, "warm", c.Warm, "keep what the service has learned from round to round; without, each play has a tenant of its own")
	f.IntVar(&c.Again, "again", c.Again, "times to play again what came too late because the machine was busy")
	f.Float64Var(&c.Speedup, "speedup", c.Speedup, "model seconds per second, for arrivals and engines alike; 0 lets the arrivals take 16 s, but is 20 at most")
	f.StringVar(&c.Model, "model", c.Model, "model name to register the engines under")
	f.StringVar(&c.Tenant, "tenant", c.Tenant, "tenant to register the engines under")
	f.StringVar(&c.Lifecycle, "lifecycle", c.Lifecycle, "when the service is told: stream (prefill complete at the first token, output blocks as they fill) or late (prefill complete with the end, no output blocks)")
	f.StringSliceVar(&c.Slow, "slow", c.Slow, "slow an engine for a part of the arrivals: 1:0.3:0.33-0.67 is engine 1 at 0.3 of its speed in the middle third")
	f.IntVar(&c.Decisions, "decisions", c.Decisions, "choices of the selection service to show while playing")
	f.StringVar(&c.Disturb, "disturb", c.Disturb, "shell command to run when half of the requests are sent; select-service's results are then given before, during and after it, and have to come back")
	f.BoolVar(&c.Replay, "replay", c.Replay, "register the engines with their replay endpoints; without, a service that starts late learns of their caches from its peers only")
	f.BoolVar(&c.Fleet, "fleet", c.Fleet, "register the engines with the first replica only, and never again: the others have its workers")
	f.BoolVar(&c.Keep, "keep", c.Keep, "then let requests go on under the service's policy, at twice real time at most, until interrupted")
	f.StringVar(&c.JSON, "json", c.JSON, "also write the results to this file, and a plot of them beside it (.svg)")
	return f
}

// validate returns the policies to play.
func (c *config) validate() ([]string, error) {
	var errs []error
	if len(c.Engines) == 0 && c.WriteTrace == "" {
		errs = append(errs, errors.New("engines: at least one URL is required"))
	}
	if len(c.Targets) == 0 {
		errs = append(errs, errors.New("target: at least one URL is required"))
	}
	if c.Requests < 1 {
		errs = append(errs, fmt.Errorf("requests: %d is below 1", c.Requests))
	}
	if !(c.Speedup >= 0) {
		errs = append(errs, fmt.Errorf("speedup: %g is below 0", c.Speedup))
	}
	if c.Workload != chats && c.Workload != agents && c.Workload != longAgents {
		errs = append(errs, fmt.Errorf("workload: %q is none of %s, %s, %s", c.Workload, chats, agents, longAgents))
	}
	if !(c.Sessions >= 0) {
		errs = append(errs, fmt.Errorf("sessions-per-sec: %g is below 0", c.Sessions))
	}
	if c.Closed && c.Disturb != "" {
		errs = append(errs, errDisturbed)
	}
	if c.Rounds < 1 {
		errs = append(errs, fmt.Errorf("rounds: %d is below 1", c.Rounds))
	}
	if c.Again < 0 {
		errs = append(errs, fmt.Errorf("again: %d is below 0", c.Again))
	}
	if !(c.Rate > 0) {
		errs = append(errs, fmt.Errorf("rate: %g is not above 0", c.Rate))
	}
	if c.Lifecycle != streamed && c.Lifecycle != late {
		errs = append(errs, fmt.Errorf("lifecycle: %q is neither %s nor %s", c.Lifecycle, streamed, late))
	}
	if _, err := c.slowdowns(); err != nil {
		errs = append(errs, err)
	}
	if slices.Equal(c.Policies, []string{"all"}) {
		return allPolicies, errors.Join(errs...)
	}
	for _, p := range c.Policies {
		if _, ok := c.modelOf(p); !ok && !slices.Contains(allPolicies, p) {
			errs = append(errs, fmt.Errorf("policies: %q is none of %s", p, strings.Join(allPolicies, ", ")))
		}
	}
	return c.Policies, errors.Join(errs...)
}

// modelOf returns the model under which a policy of the service has the engines registered, and
// false for a policy that does not use the service.
func (c *config) modelOf(policy string) (string, bool) {
	if policy == selectService {
		return c.Model, true
	}
	if name, ok := strings.CutPrefix(policy, selectService+"/"); ok && name != "" {
		return name, true
	}
	return "", false
}

// tenantOf returns the tenant of the nth play of a policy, from 1. A service learns per model
// and tenant, so a new tenant starts without knowledge.
func (c *config) tenantOf(nth int) string {
	if nth == 1 || c.Warm {
		return c.Tenant
	}
	return fmt.Sprintf("%s-%d", c.Tenant, nth)
}

// slowdowns reads --slow.
func (c *config) slowdowns() ([]plot.Slowdown, error) {
	var all []plot.Slowdown
	for _, text := range c.Slow {
		var s plot.Slowdown
		if _, err := fmt.Sscanf(text, "%d:%g:%g-%g", &s.Engine, &s.Factor, &s.From, &s.Until); err != nil {
			return nil, fmt.Errorf("slow: %q is not like 1:0.3:0.33-0.67: %w", text, err)
		}
		switch {
		case s.Engine < 1 || s.Engine > len(c.Engines):
			return nil, fmt.Errorf("slow: %q: engine %d of %d", text, s.Engine, len(c.Engines))
		case !(s.Factor > 0):
			return nil, fmt.Errorf("slow: %q: factor %g is not above 0", text, s.Factor)
		case !(0 <= s.From && s.From < s.Until && s.Until <= 1):
			return nil, fmt.Errorf("slow: %q: %g-%g is no part of 0-1", text, s.From, s.Until)
		}
		s.Engine--
		all = append(all, s)
	}
	return all, nil
}

// Bounds of the default speedup. Beyond 20 the delays of a small machine would show: 1 ms of
// real time is then 20 ms of model time.
const (
	arrivalTime = 16 * time.Second
	maxSpeedup  = 20
)

// speedupFor returns the default speedup for arrivals over span of model time.
func speedupFor(span time.Duration) float64 {
	tenths := math.Round(10 * span.Seconds() / arrivalTime.Seconds())
	return min(max(tenths/10, 1), maxSpeedup)
}
