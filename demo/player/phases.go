package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/select-service/select-service/demo/sim/stats"
)

// Bounds that a disturbed play must keep. A replica that comes back without its index knows
// little of the engines' caches, and the hit rate falls towards that of round robin, about 15
// points lower. Between the halves of an undisturbed play it differs by 2 or 3 points.
const (
	maxHitLoss = 0.05 // the most that the hit rate may fall
	minKnown   = 0.9  // the least knowledge of the caches afterwards, relative to the best replica's
)

// phases splits a play into the time before, during and after a disturbance: a command that runs
// while requests go on, and the time until all replicas are back. It is safe for concurrent use.
type phases struct {
	command string
	fleet   *replicas

	// mu guards the fields below.
	mu    sync.Mutex
	now   int
	parts [3]phaseCounts
	took  time.Duration // of the disturbance
	err   error         // of the disturbance
}

var phaseNames = [3]string{"before", "during", "after"}

// phaseCounts has the placements of one phase, by replica.
type phaseCounts struct {
	byReplica map[int]*placements
}

type placements struct {
	prompt, cached, known int // tokens
	ttft                  []float64
}

func (p *placements) add(o *placements) {
	p.prompt, p.cached, p.known = p.prompt+o.prompt, p.cached+o.cached, p.known+o.known
	p.ttft = append(p.ttft, o.ttft...)
}

// current returns the phase of a request that is placed now. A nil p is a play without a
// disturbance.
func (p *phases) current() int {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// record adds one request at its first token: the phase and replica of its placement, its
// prompt tokens, how many were cached, and how many of those the replica expected.
func (p *phases) record(phase, replica int, o placements) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	by := &p.parts[phase].byReplica
	if *by == nil {
		*by = map[int]*placements{}
	}
	if (*by)[replica] == nil {
		(*by)[replica] = &placements{}
	}
	(*by)[replica].add(&o)
}

// disturb runs the command and the phase "during".
func (p *phases) disturb(ctx context.Context) {
	p.next()
	begun := time.Now()
	text, err := exec.CommandContext(ctx, "sh", "-c", p.command).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", p.command, err, text)
	} else {
		err = p.fleet.awaitUp(ctx)
	}
	p.next()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.took, p.err = time.Since(begun), err
}

func (p *phases) next() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now++
}

// phaseResult is one line of the table, and of the file of --json.
type phaseResult struct {
	Phase      string  `json:"phase"`
	Replica    int     `json:"replica,omitempty"` // from 1; 0: all
	Requests   int     `json:"requests"`
	HitRate    float64 `json:"hit_rate"`
	Known      float64 `json:"known"` // share of the cached tokens that the replica expected
	TTFTMeanMS float64 `json:"ttft_mean_ms"`
	TTFTP99MS  float64 `json:"ttft_p99_ms"`
}

func newPhaseResult(phase, replica int, p *placements) phaseResult {
	return phaseResult{
		Phase: phaseNames[phase], Replica: replica, Requests: len(p.ttft),
		HitRate: share(p.cached, p.prompt), Known: share(p.known, p.cached),
		TTFTMeanMS: stats.Mean(p.ttft), TTFTP99MS: stats.Quantile(p.ttft, 0.99),
	}
}

func share(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// results lists each phase, all replicas together and then one by one.
func (p *phases) results(replicas int) []phaseResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []phaseResult
	for phase := range p.parts {
		var sum placements
		var each []phaseResult
		for i := range replicas {
			if o := p.parts[phase].byReplica[i]; o != nil {
				sum.add(o)
				each = append(each, newPhaseResult(phase, i+1, o))
			}
		}
		all = append(append(all, newPhaseResult(phase, 0, &sum)), each...)
	}
	return all
}

// verdict returns an error if the play has not recovered from the disturbance. In a play that came too
// late, the figures of the phases are not judged.
func (p *phases) verdict(results []phaseResult, replicas int, late bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	var before, after phaseResult
	var each []phaseResult // by replica, afterwards
	best := 0.0
	for _, r := range results {
		switch {
		case r.Replica == 0 && r.Phase == phaseNames[0]:
			before = r
		case r.Replica == 0 && r.Phase == phaseNames[2]:
			after = r
		case r.Phase == phaseNames[2]:
			each = append(each, r)
			best = max(best, r.Known)
		}
	}
	if len(each) < replicas {
		return fmt.Errorf("%d of %d replicas chose afterwards", len(each), replicas)
	}
	if late {
		return nil
	}
	for _, r := range each {
		if r.Known < minKnown*best {
			return fmt.Errorf("replica %d knew of %.1f %% of the cached tokens afterwards, another of %.1f %%", r.Replica, 100*r.Known, 100*best)
		}
	}
	if after.HitRate < before.HitRate-maxHitLoss {
		return fmt.Errorf("hit rate %.1f %% afterwards, more than %.0f points below the %.1f %% before", 100*after.HitRate, 100*maxHitLoss, 100*before.HitRate)
	}
	return nil
}

func writePhases(w io.Writer, results []phaseResult) {
	const row = "%-9s %-9s %9s %9s %9s %11s %11s\n"
	fmt.Fprintf(w, row, "phase", "replica", "requests", "hit rate", "known", "TTFT mean", "TTFT p99")
	fmt.Fprintln(w, strings.Repeat("-", 73))
	for _, r := range results {
		who := "all"
		if r.Replica > 0 {
			who = fmt.Sprint(r.Replica)
		}
		fmt.Fprintf(w, row, r.Phase, who, stats.Thousands(r.Requests),
			fmt.Sprintf("%.1f %%", 100*r.HitRate), fmt.Sprintf("%.1f %%", 100*r.Known),
			stats.Milliseconds(r.TTFTMeanMS), stats.Milliseconds(r.TTFTP99MS))
	}
	fmt.Fprint(w, "\nknown: of the prompt tokens found in the caches, those that the replica counted on\n")
}
