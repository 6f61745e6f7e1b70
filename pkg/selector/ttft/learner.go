package ttft

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// Learner learns the model of one scope from its reservations, and watches its guard
// rails. Its memory is bounded by the number of the scope's ranks. All methods are safe
// for concurrent use; Model and Rank, which a decision calls, take no lock. Times are
// since a start that the caller chooses.
type Learner struct {
	model atomic.Pointer[Model]
	ranks atomic.Pointer[[]*rankState] // by slot

	// Probes are some of the requests that are refused because of the scope's predictions, PrefixProbes those of them that would
	// not wait, and PairProbes some of those that for this reason get no rank that prefills for another one.
	Probes, PairProbes Probes
	PrefixProbes       PrefixProbes

	// mu guards the fields below, and what is not atomic in the states of the ranks.
	mu          sync.Mutex
	fit         fit
	samples     uint64
	medianSpeed float64                // median speed of the ranks: the coefficients are those of a rank of this speed
	recent      window                 // of all ranks
	silent      int                    // number of latest reservations, in a row, that brought nothing to learn
	restored    map[catalog.Rank]known // from an earlier process, of ranks not seen yet
	errors      errorQuantiles         // of all ranks
	outputs     outputTimes            // likewise
	answers     answerTimes            // likewise
	inStep      stepError              // likewise, of those that callers report in time
	recently    predictions
	rails       [rails]RailState // without Ranks
	changes     []Change
}

// Model is what a decision reads of a scope. It is immutable.
type Model struct {
	Parameters
	// Fallback: Dynamo's cost decides, because of FallbackRail, which is LateScope or Untracked.
	Fallback     bool
	FallbackRail Rail
	// Calibration is that of all ranks together.
	Calibration Calibration
	// PerOutput is the time per output token of all ranks together, in seconds, 0 if too little is known: see
	// Learner.PerOutput.
	PerOutput float64
	traffic   traffic
	first     time.Duration // time of the first reservation, if began
	began     bool
}

// traffic has the sums of which a Flow is the average. They decay with the time constant flowTime: what
// is added later than since weighs more by as much as the rest has decayed, so that one factor brings the
// sums of all ranks up to date. It is immutable.
type traffic struct {
	sums  Flow
	since time.Duration
}

// decay returns what is left of a sum after a time. It is above 1 for a time before.
func decay(after time.Duration) float64 { return math.Exp(-float64(after) / float64(flowTime)) }

// of returns the same traffic with sums of another time.
func (t traffic) of(since time.Duration) traffic {
	if since == t.since {
		return t
	}
	left := decay(since - t.since)
	return traffic{Flow{Arrivals: t.sums.Arrivals * left, Work: t.sums.Work * left}, since}
}

// with returns the traffic after another reservation.
func (t traffic) with(at time.Duration, work float64) traffic {
	weight := decay(t.since - at)
	return traffic{Flow{Arrivals: t.sums.Arrivals + weight, Work: t.sums.Work + weight*work}, t.since}
}

// flowTime is the time constant of the average that Flow is. Shortly after the first
// reservation the average is over the time since then, at least leastFlowTime. No sum is of a time more
// than longestSince ago, so that the weights stay small numbers.
const (
	flowTime      = 30 * time.Second
	leastFlowTime = time.Second
	longestSince  = 10 * flowTime
)

// defaultPrompt is the length of a prompt, in tokens, that is assumed until reservations show one.
const defaultPrompt = 1024

// Untold returns the seconds that a rank of speed 1 takes for the prefills of n requests of which
// nothing is known: each takes what those of the scope's reservations lately take in the mean.
func (m *Model) Untold(n float64) float64 {
	if sums := m.traffic.sums; sums.Arrivals > 0 {
		return n * sums.Work / sums.Arrivals
	}
	return n * m.Prefill(defaultPrompt, defaultPrompt)
}

// Flow returns the scope's traffic as of a time.
func (m *Model) Flow(at time.Duration) Flow {
	return m.traffic.average(m.factor(at))
}

// factor returns what turns sums since Model.traffic.since into averages as of a time.
func (m *Model) factor(at time.Duration) float64 {
	over := flowTime.Seconds() * (1 - decay(max(leastFlowTime, at-m.first)))
	return decay(max(0, at-m.traffic.since)) / over
}

func (t traffic) average(factor float64) Flow {
	return Flow{Arrivals: t.sums.Arrivals * factor, Work: t.sums.Work * factor}
}

// Flows has the traffic of a scope and of its ranks as of a time.
type Flows struct {
	Scope  Flow
	of     *Learner
	since  time.Duration // of sums that factor turns into averages
	factor float64
}

// Flows returns the traffic as of a time.
func (l *Learner) Flows(at time.Duration) Flows {
	m := l.Model()
	f := Flows{of: l, since: m.traffic.since, factor: m.factor(at)}
	f.Scope = m.traffic.average(f.factor)
	return f
}

// Rank returns the traffic to a rank.
func (f *Flows) Rank(slot uint32, r catalog.Rank) Flow {
	s := f.of.look(slot, r)
	if s == nil {
		return Flow{}
	}
	return s.traffic.Load().of(f.since).average(f.factor)
}

// rankState is the state of the rank in a slot.
type rankState struct {
	rank  catalog.Rank
	speed atomic.Uint64 // m, as bits of a float64
	q90   atomic.Uint64 // the ninth decile of errors, likewise; 0: there are too few
	// perOutput is the median of outputs, likewise; 0: there are too few.
	perOutput atomic.Uint64
	late      atomic.Bool
	traffic   atomic.Pointer[traffic]
	stalled   bool
	looks     int  // latest looks, in a row, that contradict stalled
	sampled   bool // ratio has a sample
	ratio     ratio
	errors    errorQuantiles
	outputs   outputTimes
	recent    window
	pending   []sample // the oldest first; younger than sameMoment, so Freed may still reject them
}

// known is what an earlier process has learned of a rank.
type known struct {
	ratio   ratio
	errors  errorQuantiles
	outputs outputTimes
}

// sample is a completed prefill.
type sample struct {
	booked, started, completed time.Duration
	tokens, prompt             uint64
	predicted                  float64 // seconds from booked on; 0: unknown
}

const (
	// learnedSamples is the number of samples from which on the learned coefficients
	// replace the defaults.
	learnedSamples = 10
	// matureSamples is the number of samples from which on a rank can count as stalled.
	matureSamples = 200
	// maxPending bounds the samples of a rank that wait.
	maxPending = 64

	// medianEvery is the number of samples after which medianSpeed is computed again.
	medianEvery = 16
	// jitter, in seconds, is the part of a time's deviation that does not depend on the time.
	jitter = 0.05

	// A sample's time is cut off at outlier times its prediction plus outlierSlack seconds.
	// The more it exceeds that bound, the less the sample weighs.
	outlier      = 10
	outlierSlack = 1.0
	// The same once the model is mature.
	matureOutlier      = 4
	matureOutlierSlack = 0.1
	// Samples of longer prompts are not used; longer times are cut off.
	maxTokens  = 1e7
	maxSeconds = 3600
)

// NewLearner returns a learner that has learned nothing.
func NewLearner() *Learner {
	l := &Learner{fit: newFit(), medianSpeed: 1, restored: make(map[catalog.Rank]known)}
	for i := range l.rails {
		l.rails[i].Rail = Rail(i)
	}
	l.model.Store(&Model{Parameters: Default(), Calibration: l.errors.calibration()})
	l.ranks.Store(new([]*rankState))
	return l
}

// Model returns the current model of the scope.
func (l *Learner) Model() *Model { return l.model.Load() }

// Rank returns the speed of a rank, its time relative to the fleet's, and whether callers
// report its prefills too late.
func (l *Learner) Rank(slot uint32, r catalog.Rank) (speed float64, late bool) {
	s := l.look(slot, r)
	if s == nil {
		return 1, false
	}
	return math.Float64frombits(s.speed.Load()), s.late.Load()
}

// look returns the state of the rank in a slot, nil if nothing is known of it.
func (l *Learner) look(slot uint32, r catalog.Rank) *rankState {
	ranks := *l.ranks.Load()
	if int(slot) >= len(ranks) || ranks[slot] == nil || ranks[slot].rank != r {
		return nil
	}
	return ranks[slot]
}

// state returns the state of the rank in a slot. It needs l.mu.
func (l *Learner) state(slot uint32, r catalog.Rank) *rankState {
	s := l.look(slot, r)
	if s != nil {
		return s
	}
	ranks := *l.ranks.Load()
	s = &rankState{rank: r, ratio: newRatio()}
	s.traffic.Store(&traffic{since: l.Model().traffic.since})
	if known, ok := l.restored[r]; ok {
		s.ratio, s.errors, s.outputs = known.ratio, known.errors, known.outputs
		s.perOutput.Store(math.Float64bits(s.outputs.perToken()))
		delete(l.restored, r)
	}
	s.publish()
	grown := make([]*rankState, max(len(ranks), int(slot)+1))
	copy(grown, ranks)
	if former := grown[slot]; former != nil {
		l.leave(former)
	}
	grown[slot] = s
	l.ranks.Store(&grown)
	return s
}

// leave ends the guard rails of a rank that has left its slot. It needs l.mu.
func (l *Learner) leave(s *rankState) {
	l.setRank(LateRank, s, false)
	l.setRank(StalledRank, s, false)
}

// publish makes the current speed of a rank visible to decisions.
func (s *rankState) publish() {
	speed := s.ratio.speed()
	if s.late.Load() {
		speed = 1
	}
	s.speed.Store(math.Float64bits(speed))
	if c := s.errors.calibration(); c.Samples >= calibratedRank {
		s.q90.Store(math.Float64bits(c.Q90))
	} else {
		s.q90.Store(0)
	}
}

// Measured records the prefill rate in tokens per second that the engine of a rank has measured
// itself. The rank is assumed to have the speed that follows from it until samples of its own
// prefills tell more.
func (l *Learner) Measured(slot uint32, r catalog.Rank, rate float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state(slot, r)
	if s.sampled || s.late.Load() || !(rate > 0) {
		return
	}
	m := min(max(1/(rate*l.model.Load().PerToken), minSpeed), maxSpeed)
	s.ratio = ratio{Observed: m * priorTime, Predicted: priorTime}
	s.publish()
}

// Booked records a reservation, of this process or another replica. tokens is the number
// of tokens to compute, prompt that of the whole prompt.
func (l *Learner) Booked(at time.Duration, slot uint32, r catalog.Rank, tokens, prompt uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state(slot, r)
	speed, _ := l.Rank(slot, r)
	m := *l.model.Load()
	if !m.began {
		m.began, m.first, m.traffic.since = true, at, at
	}
	if at-m.traffic.since > longestSince {
		m.traffic = m.traffic.of(at)
	}
	work := speed * m.Prefill(float64(tokens), float64(prompt))
	m.traffic = m.traffic.with(at, work)
	l.model.Store(&m)
	s.traffic.Store(new(s.traffic.Load().of(m.traffic.since).with(at, work)))
}

// Completed records an explicit prefill_complete that is the first report about a
// reservation of this process. The reservation was made at booked, its prefill could
// start at started; tokens and prompt are as for Booked. predicted is the time from booked on,
// in seconds, that was predicted for it; 0: none was.
func (l *Learner) Completed(at time.Duration, slot uint32, r catalog.Rank, tokens, prompt uint64, booked, started time.Duration, predicted float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state(slot, r)
	l.settle(s, at)
	if len(s.pending) == maxPending {
		l.accept(s, s.pending[0])
		s.pending = s.pending[:copy(s.pending, s.pending[1:])]
	}
	s.pending = append(s.pending, sample{booked: booked, started: started, completed: at, tokens: tokens, prompt: prompt, predicted: predicted})
}

// Unreported records that the first report about a reservation of this process was an
// output or its free, not a prefill_complete.
func (l *Learner) Unreported(at time.Duration, slot uint32, r catalog.Rank) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state(slot, r)
	l.settle(s, at)
	l.judge(s, true)
}

// Untold records that nobody has seen when the first token of a reservation's request came, or that none came. It says
// nothing of when callers report prefills.
func (l *Learner) Untold(at time.Duration, slot uint32, r catalog.Rank) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle(l.state(slot, r), at)
	l.learnedNothing()
}

// Freed records the free of a reservation for which Completed was called. If both came at the same moment, although the
// answer has more tokens than an engine generates in it, the prefill_complete was late and its sample is dropped. tokens is how
// many there are; 0: unknown, then there are enough. pieces: it is the number of pieces that they came in. A few of those may
// have many tokens, or not, so that the sample is dropped and says nothing of when callers report.
func (l *Learner) Freed(at time.Duration, slot uint32, r catalog.Rank, booked, completed time.Duration, tokens uint64, pieces bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state(slot, r)
	brief := tokens > 0 && at-completed >= leastSteps(tokens)
	if sameEnd(booked, completed, at) && (!brief || pieces) {
		for i, x := range s.pending {
			if x.booked == booked && x.completed == completed {
				s.pending = append(s.pending[:i], s.pending[i+1:]...)
				if brief {
					l.learnedNothing()
				} else {
					l.judge(s, true)
				}
				break
			}
		}
	}
	l.settle(s, at)
}

// leastSteps returns in which time an engine can have generated the tokens after the second one. The one before may come at
// once with the first, or be on its way together with it.
func leastSteps(tokens uint64) time.Duration {
	return time.Duration(min(tokens-min(tokens, 2), uint64(sameMoment/leastPerToken))) * leastPerToken
}

// sameEnd reports whether a prefill_complete was sent only when the request ended.
func sameEnd(booked, completed, ended time.Duration) bool {
	gap := ended - completed
	return gap < sameMoment && gap.Seconds() < sameShare*(ended-booked).Seconds()
}

// Settle learns from the samples that have waited long enough. It is to be called about
// every second, because without traffic no other call does it.
func (l *Learner) Settle(at time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range *l.ranks.Load() {
		if s != nil {
			l.settle(s, at)
		}
	}
}

// settle accepts those samples of a rank whose requests did not end at the same moment.
func (l *Learner) settle(s *rankState, at time.Duration) {
	n := 0
	for n < len(s.pending) && at-s.pending[n].completed >= sameMoment {
		l.accept(s, s.pending[n])
		n++
	}
	s.pending = s.pending[:copy(s.pending, s.pending[n:])]
}

// accept learns from a sample. It needs l.mu.
func (l *Learner) accept(s *rankState, x sample) {
	l.judge(s, false)
	took := (x.completed - x.started).Seconds()
	tokens, prompt := max(1, float64(x.tokens)), float64(max(x.tokens, x.prompt))
	if !(took > 0) || prompt > maxTokens {
		return
	}
	model := *l.model.Load()
	speed := math.Float64frombits(s.speed.Load())
	fleet := model.Prefill(tokens, prompt)
	deviation := fleet + jitter
	if !model.Learned { // the prediction by the defaults may be far too low
		deviation = max(fleet, took) + jitter
	}
	most := outlier*speed*fleet + outlierSlack
	if model.Mature {
		most = matureOutlier*speed*fleet + matureOutlierSlack
	}
	if most = min(most, maxSeconds); took > most {
		deviation *= took / most
		took = most
	}
	if model.Learned && !s.late.Load() {
		l.calibrate(s, x.predicted, (x.completed - x.booked).Seconds())
		model.Calibration = l.errors.calibration()
		s.ratio.add(took, fleet)
		s.sampled = true
		if x.started > x.booked {
			l.inStep.add(took/speed-fleet, model.Base)
		}
	}
	l.fit.add(features(tokens, prompt), took*l.medianSpeed/speed, deviation)
	s.publish()
	l.samples++
	if l.samples%medianEvery == 0 {
		l.updateMedian()
	}
	if l.samples >= learnedSamples {
		model.Parameters = l.parameters()
		l.model.Store(&model)
	}
}

// parameters returns what is learned. It needs l.mu.
func (l *Learner) parameters() Parameters {
	p := l.fit.parameters()
	p.InStep = l.inStep.sooner(p.Base)
	p.PerAttended, p.Output = l.answers.perAttended(), l.answers.output()
	p.Learned, p.Mature = true, l.samples >= matureSamples
	return p
}

// updateMedian sets medianSpeed to the median of the speeds, the faster one of two in the middle.
// Without it, after the whole fleet has become faster, every rank would stay a fast rank
// and the coefficients would not change. It needs l.mu.
func (l *Learner) updateMedian() {
	var speeds []float64
	for _, s := range *l.ranks.Load() {
		if s != nil && s.sampled && !s.late.Load() {
			speeds = append(speeds, math.Float64frombits(s.speed.Load()))
		}
	}
	l.medianSpeed = 1
	if len(speeds) > 0 {
		slices.Sort(speeds)
		l.medianSpeed = speeds[(len(speeds)-1)/2]
	}
}

// judge records whether the prefill of a reservation was reported too late. It needs l.mu.
func (l *Learner) judge(s *rankState, late bool) {
	s.recent.add(late)
	l.recent.add(late)
	if !late {
		l.silent = 0
	}
	l.setRank(LateRank, s, s.recent.lateRank(s.late.Load()))
	l.set(LateScope, l.recent.lateScope(l.rails[LateScope].Engaged))
	if late {
		l.learnedNothing()
	} else {
		l.endSilence()
	}
}

// learnedNothing records a reservation that brought nothing to learn. It needs l.mu.
func (l *Learner) learnedNothing() {
	l.silent = min(l.silent+1, silentReservations)
	l.endSilence()
}

// endSilence engages NothingToLearn, or ends it. It needs l.mu.
func (l *Learner) endSilence() {
	if l.silent == silentReservations || l.silent == 0 && l.recent.sum*4 <= l.recent.n*3 {
		l.set(NothingToLearn, l.silent > 0)
	}
}

// Track sets whether the prefills of the scope's reservations are tracked.
func (l *Learner) Track(tracked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(Untracked, !tracked)
}

// Watch records whether a rank looks stalled now, see [Parameters.Wait]. The guard rail
// engages or ends when two calls in a row agree on it.
func (l *Learner) Watch(slot uint32, r catalog.Rank, stalled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state(slot, r)
	if stalled == s.stalled {
		s.looks = 0
	} else if s.looks++; s.looks == 2 {
		s.looks = 0
		l.setRank(StalledRank, s, stalled)
	}
}

// set engages or ends a guard rail of the scope. It needs l.mu.
func (l *Learner) set(rail Rail, engaged bool) {
	if l.rails[rail].Engaged == engaged {
		return
	}
	l.rails[rail].Engaged = engaged
	l.changed(Change{Rail: rail, Engaged: engaged})
	m := *l.model.Load()
	m.Fallback, m.FallbackRail = l.rails[LateScope].Engaged || l.rails[Untracked].Engaged, LateScope
	if l.rails[Untracked].Engaged {
		m.FallbackRail = Untracked
	}
	l.model.Store(&m)
}

// setRank engages or ends a guard rail of a rank. It needs l.mu.
func (l *Learner) setRank(rail Rail, s *rankState, engaged bool) {
	switch rail {
	case LateRank:
		if s.late.Swap(engaged) == engaged {
			return
		}
		s.ratio, s.errors = newRatio(), errorQuantiles{}
		s.publish()
	default:
		if s.stalled == engaged {
			return
		}
		s.stalled = engaged
	}
	l.changed(Change{Rail: rail, Rank: s.rank, Engaged: engaged})
}

func (l *Learner) changed(c Change) {
	if c.Engaged {
		l.rails[c.Rail].Engagements++
	}
	if len(l.changes) < maxChanges {
		l.changes = append(l.changes, c)
	}
}

// Changes returns which guard rails have engaged or ended since the last call. Those
// beyond the first 256 are left out.
func (l *Learner) Changes() []Change {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.changes
	l.changes = nil
	return c
}

// States returns the state of every guard rail.
func (l *Learner) States() []RailState {
	l.mu.Lock()
	defer l.mu.Unlock()
	states := append([]RailState(nil), l.rails[:]...)
	for _, s := range *l.ranks.Load() {
		if s == nil {
			continue
		}
		for rail, engaged := range map[Rail]bool{LateRank: s.late.Load(), StalledRank: s.stalled} {
			if engaged {
				states[rail].Engaged = true
				states[rail].Ranks = append(states[rail].Ranks, s.rank)
			}
		}
	}
	return states
}

// RankSpeed is the speed of a rank: its time relative to the fleet's, above 1 if it is
// slower; how far its predictions are off; and its time per output token.
type RankSpeed struct {
	Rank        catalog.Rank
	Speed       float64
	Calibration Calibration
	PerOutput   float64 // as Learner.PerOutput returns it
}

// Samples returns the number of completed prefills that the model was learned from.
func (l *Learner) Samples() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.samples
}

// Speeds returns the speeds of all ranks that have had a reservation, by slot.
func (l *Learner) Speeds() []RankSpeed {
	l.mu.Lock()
	defer l.mu.Unlock()
	var speeds []RankSpeed
	for slot, s := range *l.ranks.Load() {
		if s != nil {
			speeds = append(speeds, RankSpeed{s.rank, math.Float64frombits(s.speed.Load()), s.errors.calibration(), l.PerOutput(uint32(slot), s.rank)})
		}
	}
	return speeds
}
