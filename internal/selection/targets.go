package selection

import (
	"fmt"
	"math"
	"time"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// Bounds of what a request may want, in milliseconds, inclusive.
const (
	leastTarget     = 1
	mostTTFTTarget  = 3_600_000  // an hour
	mostDeadlineAge = 86_400_000 // a day: whole answers take longer than first tokens
)

// TTFTTargetOf returns the target of a request that gives it in milliseconds, by a member or header of that name. The
// error, of kind BadRequest, says which numbers are targets.
func TTFTTargetOf(name string, ms float64) (time.Duration, error) {
	return targetOf(name, ms, mostTTFTTarget)
}

// DeadlineOf returns the deadline of a request that gives it in milliseconds from now on. The error is as that of TTFTTargetOf.
func DeadlineOf(name string, ms float64, now time.Time) (time.Time, error) {
	within, err := targetOf(name, ms, mostDeadlineAge)
	if err != nil {
		return time.Time{}, err
	}
	return now.Add(within), nil
}

func targetOf(name string, ms, most float64) (time.Duration, error) {
	if ms >= leastTarget && ms <= most { // not NaN
		return time.Duration(ms * float64(time.Millisecond)), nil
	}
	return 0, contract.Errorf(contract.BadRequest, "%s must be a number of milliseconds between %d and %.0f", name, leastTarget, most)
}

// RefusesOnMiss returns what a request wants if its target cannot be held: to be placed, or to be refused. The error, of
// kind BadRequest, says which texts there are.
func RefusesOnMiss(name, text string) (refuse bool, err error) {
	switch text {
	case "place":
		return false, nil
	case "refuse":
		return true, nil
	}
	return false, &contract.Error{Kind: contract.BadRequest, Text: fmt.Sprintf("%s must be place or refuse", name)}
}

// hasTarget reports whether the request wants a first token or the whole answer by a certain time.
func (r *SelectRequest) hasTarget() bool { return r.TTFTTarget > 0 || !r.Deadline.IsZero() }

// ignoreTargets drops what the request wants, and counts that, unless it is only explained.
func (r *request) ignoreTargets() {
	r.TTFTTarget, r.Deadline, r.RefuseOnMiss, r.OddTarget = 0, time.Time{}, false, false
	if r.ExplainOnly {
		return
	}
	r.api.selections.Of(r.Scope.Model).Targeted(counts.TargetIgnored)
}

// TargetEffect is what a target or a deadline has done to a choice.
type TargetEffect struct {
	// OnlyQueued says why predictions could not be used, so that at most the order of the wait queue follows the target; "":
	// they were used.
	OnlyQueued string
	Holding    int // ranks that are predicted to hold it
	Refused    bool
	Probe      bool // it is placed although it would be refused, see ttft.Probes
	// Of the rank that the target chooses, which without any that holds it is that with the soonest first token: the predicted time to
	// first token and the time until when it has to come, in seconds from the choice, and the margin: see ttft.Learner.Margin.
	Predicted, Within, Margin float64
	// WouldRefuse: it was only explained, and would be refused otherwise.
	WouldRefuse bool
}

// outcome returns what is counted.
func (t *TargetEffect) outcome() counts.Target {
	switch {
	case t.OnlyQueued != "":
		return counts.TargetOnlyQueued
	case t.Refused:
		return counts.TargetRefused
	case t.Probe:
		return counts.TargetProbe
	case t.Holding == 0:
		return counts.TargetMissed
	}
	return counts.TargetHeld
}

// predictable returns why the times of the scored ranks cannot be compared with a target, "" if they can. A scope needs 200
// completed prefills, and predictions that were compared with what was observed.
func (c *choice) predictable() string {
	p := c.scope.rules.Policies
	switch {
	case p == nil || p.Learner == nil:
		return "no policy, not even a shadow, predicts first tokens"
	case !c.weights.TrackPrefill:
		return "the prefill of the request is not tracked"
	}
	switch m := p.Learner.Model(); {
	case m.Fallback:
		return "the guard rail " + m.FallbackRail.String() + " is engaged"
	case !m.Mature || m.Calibration.Samples < ttft.CalibratedSamples:
		return "too few first tokens were observed"
	}
	return ""
}

// pickForTarget chooses among the scored ranks for a request that has a target: of those that are predicted to hold it, with
// nine of ten such predictions, the one with the least cost; without any, the one with the least predicted time to first token.
// The request is not refused if a rank may hold the target all the same: if it is predicted to without that margin, since most of
// these are in time, or if it will where the engine computes the prompt together with those that wait, see ttft.Parameters.Soonest.
// ok is false if the target has no effect on the choice.
func (c *choice) pickForTarget(ranks []catalog.Entry) (i int, ok bool) {
	c.target = &TargetEffect{OnlyQueued: c.predictable()}
	if c.target.OnlyQueued != "" {
		return 0, false
	}
	l, within := c.scope.rules.Policies.Learner, c.wanted()
	c.holding, c.times = c.holding[:0], c.times[:0]
	mayHold := false
	for i, e := range ranks {
		of, holds := predict(&c.decision, i), 0
		first := of.Wait + of.Prefill
		if left := within.on(e, l); c.candidates[i].Known {
			mayHold = mayHold || c.decision.Model.Soonest(&of, &c.decision.Queues[i]) <= left
			if first*l.Margin(e.Slot, e.Rank) <= left {
				holds = 1
				c.target.Holding++
			}
		}
		c.holding, c.times = append(c.holding, holds), append(c.times, first)
	}
	if c.target.Holding > 0 {
		i, _ = selector.PickCounted(c.costs, c.holding, c.api.random)
	} else {
		i = selector.Pick(c.times, 0, c.api.random)
		refuses := c.RefuseOnMiss && !mayHold && !c.Advisory && !railed(l, ranks)
		c.target.Refused, c.target.WouldRefuse = refuses && !c.ExplainOnly, refuses && c.ExplainOnly
	}
	best := &ranks[i]
	c.target.Predicted, c.target.Within, c.target.Margin = c.times[i], within.on(*best, l), l.Margin(best.Slot, best.Rank)
	return i, true
}

// refuses reports whether the request, which would go to rank i of the scored ones, is refused because of its target. A probe is not:
// what comes of its reservation tells whether refusals are right. Nor is a request that contradicts its session, at any load: excluded
// is as in session.narrow.
func (a *attempt) refuses(i int, excluded *catalog.Rank) bool {
	t := a.choice.target
	if t == nil || t.OnlyQueued != "" || excluded != nil {
		return false
	}
	if !t.Refused {
		a.noteContinued(t)
	} else if a.probes(i) {
		t.Refused, t.Probe = false, true
	}
	return t.Refused
}

// noteContinued notes whether the request continues the prompt of a probe, and owes to it that it can be in time. Then it counts for
// such probes whether it is.
func (a *attempt) noteContinued(t *TargetEffect) {
	p, of := a.promised, &a.scope.rules.Policies.Learner.PrefixProbes
	if p != nil && p.prefixes == nil && of.Continues(a.prompt.sequence, t.Within) {
		p.prefixes = of
	}
}

// probes reports whether the request is let through, as a probe. Only what has a reservation is.
func (a *attempt) probes(i int) bool {
	l, p := a.scope.rules.Policies.Learner, a.promised
	switch {
	case p == nil:
		return false
	case p.probes != nil || p.prefixes != nil: // it is asked again
		return true
	case predict(&a.choice.decision, i).Wait > 0:
		if l.Probes.Due() {
			p.probes = &l.Probes
		}
	default:
		takes := a.choice.times[i]
		cost, due := l.PrefixProbes.Due(a.prompt.sequence, takes, a.choice.decision.Queues[i].Flow.Delayed(takes))
		if due {
			p.prefixes, p.prefixCost = &l.PrefixProbes, cost
		}
	}
	return p.probes != nil || p.prefixes != nil
}

// wanted is how soon a request wants its first token and its whole answer, in seconds from now; +Inf: it does not say.
type wanted struct {
	first, answer float64
	output        float64 // tokens that are expected of the answer, 0 if that is unknown
}

func (r *request) wanted() wanted {
	w := wanted{first: math.Inf(1), answer: math.Inf(1)}
	if r.TTFTTarget > 0 {
		w.first = time.Until(r.firstToken).Seconds()
	}
	if !r.Deadline.IsZero() {
		w.answer = time.Until(r.Deadline).Seconds()
	}
	if n := r.ExpectedOutputTokens; n != nil {
		w.output = float64(*n)
	}
	return w
}

// on returns in how many seconds the first token has to come on a rank: what the rank takes for the expected output counts
// against the deadline.
func (w wanted) on(e catalog.Entry, l *ttft.Learner) float64 {
	return min(w.first, w.answer-w.output*l.PerOutput(e.Slot, e.Rank))
}

// due returns in how many seconds the request wants its first token, +Inf if it does not say, until when it must have its turn
// for that, and what its first token takes at least from then on. Where times cannot be predicted, what the rest of the answer
// takes, and what is taken from the turn on, count 0: so targets and deadlines are in order all the same.
func (a *attempt) due() (due, latest, needs float64) {
	if !a.hasTarget() {
		return math.Inf(1), math.Inf(1), 0
	}
	w := a.wanted()
	if a.choice.predictable() != "" {
		due = min(w.first, w.answer)
		return due, due, 0
	}
	l := a.scope.rules.Policies.Learner
	least := a.choice.leastPrefill(l)
	due, latest, needs = math.Inf(-1), math.Inf(-1), math.Inf(1)
	for _, e := range a.scope.eligible {
		cand := candidate(e, &a.prompt.overlap, &reservations.View{})
		speed, _ := l.Rank(e.Slot, e.Rank)
		takes, by := least(&e, a.weights.ToCompute(a.prompt.size, &cand), speed), w.on(e, l)
		due, latest, needs = max(due, by), max(latest, by-takes), min(needs, takes)
	}
	return due, latest, needs
}

// targetDecides reports whether the request has a target by which ranks were compared.
func (c *choice) targetDecides() bool { return c.target != nil && c.target.OnlyQueued == "" }

// missesAt reports whether rank i of the scored ones is not predicted to hold the request's target.
func (c *choice) missesAt(i int) bool { return c.targetDecides() && c.holding[i] == 0 }

// railed reports whether a guard rail of each of the ranks is engaged.
func railed(l *ttft.Learner, ranks []catalog.Entry) bool {
	for _, e := range ranks {
		if !l.Railed(e.Slot, e.Rank) {
			return false
		}
	}
	return true
}

// missed returns the refusal of a request whose target no rank is predicted to hold, of which the best is rank i of these.
func (c *choice) missed(ranks []catalog.Entry, i int) error {
	first := c.times[i]
	over := first - max(0, c.wanted().on(ranks[i], c.scope.rules.Policies.Learner))
	return contract.NewTargetMissed(contract.TargetError{Predicted: seconds(first), Over: seconds(over)})
}

// seconds returns so many seconds as a duration, at most about a day.
func seconds(s float64) time.Duration { return time.Duration(min(s, 1e5) * float64(time.Second)) }
