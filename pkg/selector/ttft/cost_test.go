package ttft

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// booking is an unfinished prefill of a queue that is walked.
type booking struct{ tokens, prompt uint64 }

// queueOf adds up what a queue says of its bookings, the oldest first.
func queueOf(all []booking) (q Queue) {
	for i, b := range all {
		u := float64(b.tokens)
		q.Prefills++
		q.Tokens += u
		q.Context += u * (float64(b.prompt) - u/2)
		if i == 0 {
			q.HeadTokens, q.HeadPrompt = b.tokens, b.prompt
		}
	}
	return q
}

// reference computes a cost from the bookings one by one, by the formula.
func reference(p *Parameters, u, prompt float64, all []booking, q *Queue, lambda, busy float64, ranks int) float64 {
	m := q.Speed
	if q.Late {
		m = 1
	}
	x := func(u, prompt float64) float64 {
		return m * (p.Base + p.PerToken*u + p.PerContext*u*(prompt-u/2))
	}
	wait, slow := 0.0, 1.0
	for i, b := range all {
		t := x(float64(b.tokens), float64(b.prompt))
		switch {
		case i > 0:
			wait += t * slow
		case q.Late:
			wait = t
		case p.Mature && q.Elapsed > 1.5*t+0.05:
			slow = math.Min(q.Elapsed/(1.5*t+0.05), 20)
			wait = 0.3 * q.Elapsed
		default:
			wait = math.Max(0, t-q.Elapsed)
		}
	}
	own := x(u, prompt) * slow
	rho := math.Min(busy/float64(ranks), 0.8)
	delaying := own
	if long := 8 * busy / lambda; own > long { // other ranks take their share of the rest
		delaying = long + (own-long)/float64(ranks)
	}
	rate := (lambda/float64(ranks)/(1-rho) + q.Flow.Arrivals/(1-math.Min(q.Flow.Work, 0.8))) / 2
	answer := 0.1 * math.Max(0, p.Output*p.PerAttended*m*(q.Prompts+prompt*float64(len(all)+int(q.Decoding)))-10)
	return wait + own + delaying*rate*(wait+delaying/2) + 0.1*own*float64(q.Decoding) + answer
}

// drawn is a random rank as a decision sees it.
func drawn(rnd *rand.Rand) (p Parameters, all []booking, q Queue, f Flow, u, prompt float64) {
	p = Parameters{Base: rnd.Float64() / 10, PerToken: MinPerToken + rnd.Float64()/1000, PerContext: rnd.Float64() / 1e8, Learned: true, Mature: rnd.IntN(2) == 0}
	for range rnd.IntN(6) {
		prompt := 1 + rnd.Uint64N(30000)
		all = append(all, booking{1 + rnd.Uint64N(prompt), prompt})
	}
	q = queueOf(all)
	q.Elapsed, q.Speed, q.Late = rnd.ExpFloat64(), 0.5+3.5*rnd.Float64(), rnd.IntN(4) == 0
	q.Decoding, q.Prompts = rnd.Uint32N(50), 1e6*rnd.Float64()
	if rnd.IntN(2) == 0 {
		p.PerAttended, p.Output = rnd.Float64()/1e7, 1000*rnd.Float64()
	}
	q.Flow = Flow{Arrivals: 10 * rnd.Float64(), Work: 2 * rnd.Float64()}
	prompt = float64(1 + rnd.Uint64N(30000))
	return p, all, q, Flow{Arrivals: 30 * rnd.Float64(), Work: 10 * rnd.Float64()}, 1 + math.Floor(prompt*rnd.Float64()), prompt
}

func TestCostIsTheFormula(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 20000 {
		p, all, q, f, u, prompt := drawn(rnd)
		u = min(u, prompt)
		c := p.Cost(u, prompt, &q, f.Crowding(8))
		want := reference(&p, u, prompt, all, &q, f.Arrivals, f.Work, 8)
		if got := c.Total(); math.Abs(got-want) > 1e-9*want {
			t.Fatalf("%+v %+v %v: %g, not %g", p, q, all, got, want)
		}
	}
}

func TestCostIsMonotone(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 1))
	for range 20000 {
		p, all, q, f, u, prompt := drawn(rnd)
		u = min(u, prompt)
		crowding := f.Crowding(8)
		base := p.Cost(u, prompt, &q, crowding)
		more := p.Cost(min(u+rnd.Float64()*1000, prompt), prompt, &q, crowding)
		if more.Total() < base.Total() {
			t.Fatalf("%+v %+v: less cached costs less", p, q)
		}
		longer := all
		if len(all) > 0 {
			longer = append(longer, booking{1 + rnd.Uint64N(1000), 1000})
			q2 := queueOf(longer)
			q2.Elapsed, q2.Speed, q2.Late, q2.Decoding, q2.Prompts, q2.Flow = q.Elapsed, q.Speed, q.Late, q.Decoding, q.Prompts, q.Flow
			if c := p.Cost(u, prompt, &q2, crowding); c.Total() < base.Total() {
				t.Fatalf("%+v %+v: more waiting work costs less", p, q)
			}
		}
		q.Decoding++
		if c := p.Cost(u, prompt, &q, crowding); c.Total() < base.Total() {
			t.Fatalf("%+v %+v: one more request that decodes costs less", p, q)
		}
		q.Prompts += 1000
		if c := p.Cost(u, prompt, &q, crowding); c.Total() < base.Total() {
			t.Fatalf("%+v %+v: longer prompts there cost less", p, q)
		}
		crowding.Rate *= 2
		if c := p.Cost(u, prompt, &q, crowding); c.Total() < base.Total() {
			t.Fatalf("%+v %+v: more arrivals cost less", p, q)
		}
		base = p.Cost(u, prompt, &q, crowding)
		q.Flow.Arrivals++
		if c := p.Cost(u, prompt, &q, crowding); c.Total() < base.Total() {
			t.Fatalf("%+v %+v: more arrivals at the rank cost less", p, q)
		}
	}
}

// TestCostHasNoUnit: engines that are c times slower, for requests that come c times
// less often, cost c times more.
func TestCostHasNoUnit(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 1))
	for range 5000 {
		p, _, q, f, u, prompt := drawn(rnd)
		p.Mature, p.PerAttended = false, 0 // the slacks of stalls and answers are in seconds
		c := 0.1 + 10*rnd.Float64()
		slow, later := p, q
		slow.Base, slow.PerToken, slow.PerContext = c*p.Base, c*p.PerToken, c*p.PerContext
		later.Elapsed *= c
		later.Flow.Arrivals /= c
		base := p.Cost(u, prompt, &q, f.Crowding(4))
		scaled := slow.Cost(u, prompt, &later, Flow{f.Arrivals / c, f.Work}.Crowding(4))
		if got, want := scaled.Total(), c*base.Total(); math.Abs(got-want) > 1e-9*want {
			t.Fatalf("%g, not %g", got, want)
		}
	}
}

func TestCostIsFinite(t *testing.T) {
	most := uint64(math.MaxUint64)
	for _, p := range []Parameters{Default(), {Base: maxBase, PerToken: maxPerToken, PerContext: maxPerContext, PerAttended: maxPerAttended, Output: maxTokens, Learned: true, Mature: true}} {
		for _, elapsed := range []float64{-1e18, 0, 1e18} {
			q := Queue{
				Prefills: math.MaxUint32, Tokens: 1e30, Context: 1e60, HeadTokens: most, HeadPrompt: 1,
				Elapsed: elapsed, Decoding: math.MaxUint32, Prompts: float64(most), Speed: maxSpeed,
			}
			for _, u := range []float64{0, 1, float64(most)} {
				c := p.Cost(u, 0, &q, Flow{1e18, 1e18}.Crowding(0))
				if v := c.Total(); math.IsNaN(v) || math.IsInf(v, 0) || v <= 0 {
					t.Errorf("%+v, %g tokens, elapsed %g: %g", p, u, elapsed, v)
				}
			}
		}
	}
}

// recursive is the textbook form of the fit, with an inverse, without bounds on the
// coefficients.
type recursive struct {
	theta      vector
	covariance [3][3]float64
}

func (r *recursive) add(x vector, y, deviation float64) {
	y /= deviation
	for i := range x {
		x[i] /= deviation
	}
	var px vector
	gain := forgetting
	for i := range x {
		px[i] = r.covariance[i][0]*x[0] + r.covariance[i][1]*x[1] + r.covariance[i][2]*x[2]
		gain += px[i] * x[i]
	}
	e := y - r.theta.dot(x)
	for i := range x {
		r.theta[i] += px[i] / gain * e
	}
	for i := range x {
		for j := range x {
			r.covariance[i][j] = (r.covariance[i][j] - px[i]*px[j]/gain) / forgetting
		}
	}
}

// TestFitIsRecursiveLeastSquares, as long as no coefficient would be negative.
func TestFitIsRecursiveLeastSquares(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		f := newFit()
		r := recursive{theta: f.theta}
		for i := range 3 {
			r.covariance[i][i] = 1 / priorWeight
		}
		theta := vector{0.1, 1.2, 0.4}
		compared := 0
		for n := range 1500 {
			prompt := 100 + 30000*rnd.Float64()
			x := features(prompt*rnd.Float64(), prompt)
			y := theta.dot(x) * (1 + 0.05*rnd.NormFloat64())
			deviation := 0.05 + rnd.Float64()
			f.add(x, y, deviation)
			r.add(x, y, deviation)
			if min(r.theta[0], r.theta[1], r.theta[2]) < 0 {
				continue
			}
			compared++
			for i := range 3 {
				if math.Abs(f.theta[i]-r.theta[i]) > 1e-4 {
					t.Fatalf("seed %d, sample %d: %v, not %v", seed, n, f.theta, r.theta)
				}
			}
		}
		if compared < 1000 {
			t.Errorf("seed %d: only %d comparisons", seed, compared)
		}
	}
}

// TestFitIsTheBestWithoutNegatives: no solution near it is better.
func TestFitIsTheBestWithoutNegatives(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 6))
		f := newFit()
		for range 50 {
			prompt := 100 + 30000*rnd.Float64()
			x := features(prompt*rnd.Float64(), prompt)
			f.add(x, rnd.ExpFloat64(), 1) // times that have nothing to do with the sizes
		}
		loss := func(v vector) (sum float64) {
			for i := range v {
				for j := range v {
					sum += v[i] * f.products[i][j] * v[j]
				}
				sum -= 2 * f.times[i] * v[i]
			}
			return sum
		}
		best := loss(f.theta)
		for range 300 {
			other := f.theta
			for i := range other {
				other[i] = max(0, other[i]+0.1*rnd.NormFloat64())
			}
			if l := loss(other); l < best-1e-5 {
				t.Fatalf("seed %d: %v (%g) is better than %v (%g)", seed, other, l, f.theta, best)
			}
		}
	}
}

// TestLongPrefill: a prefix that takes 5 s, of requests that come 20 times a second, is computed on a
// second rank once the first has a queue that is longer by a few times, not by ten times.
func TestLongPrefill(t *testing.T) {
	const prefix, prompt = 60_000, 60_800
	p, crowding := Default(), Flow{Arrivals: 20, Work: 4}.Crowding(8)
	elsewhere := p.Cost(prompt, prompt, &Queue{}, crowding)
	for wait, copied := range map[float64]bool{2: false, 20: true} {
		tokens := wait / p.PerToken
		cached := p.Cost(prompt-prefix, prompt, &Queue{Prefills: 1, Tokens: tokens, HeadTokens: uint64(tokens), HeadPrompt: uint64(tokens)}, crowding)
		if got := elsewhere.Total() < cached.Total(); got != copied {
			t.Errorf("behind %g s it costs %g s, elsewhere %g s", wait, cached.Total(), elsewhere.Total())
		}
	}
}

// TestSharedPrefix: where requests come to one rank for a prefix in its cache, the delay of those that
// come next counts, so that the prefix is computed on a second rank sooner than if they came evenly.
func TestSharedPrefix(t *testing.T) {
	const prefix, prompt = 20_000, 20_800
	p, crowding := Default(), Flow{Arrivals: 20, Work: 4}.Crowding(8)
	tokens := uint64(2.5 / p.PerToken) // of 2.5 s
	busy := Queue{Prefills: 1, Tokens: float64(tokens), HeadTokens: tokens, HeadPrompt: tokens}
	for name, tc := range map[string]struct {
		here, elsewhere Flow
		copied          bool
	}{
		"evenly":  {Flow{2.5, 0.5}, Flow{2.5, 0.5}, false},
		"to here": {Flow{10, 0.8}, Flow{1, 0.4}, true},
	} {
		busy.Flow = tc.here
		cached, elsewhere := p.Cost(prompt-prefix, prompt, &busy, crowding), p.Cost(prompt, prompt, &Queue{Flow: tc.elsewhere}, crowding)
		if got := elsewhere.Total() < cached.Total(); got != tc.copied {
			t.Errorf("%s: here it costs %g s, elsewhere %g s", name, cached.Total(), elsewhere.Total())
		}
	}
}

func ExampleParameters_Cost() {
	p := Default()
	busy := Queue{Prefills: 1, Tokens: 6000, HeadTokens: 6000, HeadPrompt: 6000, Elapsed: 0.1}
	cached, elsewhere := p.Cost(1200, 6000, &busy, Crowding{}), p.Cost(6000, 6000, &Queue{}, Crowding{})
	fmt.Printf("%.2f s where it is cached, %.2f s where it is not\n", cached.Total(), elsewhere.Total())
	// Output: 0.50 s where it is cached, 0.50 s where it is not
}

func BenchmarkCost(b *testing.B) {
	p, q := Default(), Queue{Prefills: 3, Tokens: 9000, Context: 1e7, HeadTokens: 3000, HeadPrompt: 4000, Speed: 1}
	sum := 0.0
	for b.Loop() {
		c := p.Cost(2000, 4000, &q, Crowding{Rate: 0.5, Long: 1, Ranks: 8})
		sum += c.Total()
	}
}

func BenchmarkLearner(b *testing.B) {
	l := NewLearner()
	at := time.Duration(0)
	b.ReportAllocs()
	for b.Loop() {
		at += 50 * time.Millisecond
		l.Booked(at, 3, rankOf(3), 2000, 4000)
		l.Completed(at+40*time.Millisecond, 3, rankOf(3), 2000, 4000, at, at, 0.03)
	}
}

// TestSoonest: computed together, short prompts that wait take their tokens alone, and never less than nothing. Those whose tokens
// take longer than the fixed part are not computed together. What begins when its engine is ready for it ends sooner by InStep.
func TestSoonest(t *testing.T) {
	p := Parameters{Base: 0.1, PerToken: 0.001, InStep: 0.04}
	for name, tt := range map[string]struct {
		waits []booking
		queue Queue
		want  float64
	}{
		"idle":          {want: 0.11},
		"idle and slow": {queue: Queue{Speed: 2}, want: 0.22},
		"answers":       {queue: Queue{Decoding: 3}, want: 0.15},
		"not booked":    {queue: Queue{Foreign: 2}, want: 0.11 + 2},
		"three":         {waits: []booking{{100, 100}, {20, 20}, {30, 30}}, want: 0.15 + 0.15},
		"long ones":     {waits: []booking{{100, 100}, {120, 120}}, want: 0.11 + 0.42},
		"with answers":  {waits: []booking{{100, 100}, {120, 120}}, queue: Queue{Decoding: 3}, want: 0.11 + 0.42},
		"half speed":    {waits: []booking{{100, 100}, {20, 20}}, queue: Queue{Speed: 2}, want: 0.3 + 0.24},
		"nearly done":   {waits: []booking{{100, 100}}, queue: Queue{Elapsed: 0.19}, want: 0.15},
		"other work":    {waits: []booking{{100, 100}}, queue: Queue{Ahead: 1, Foreign: 2}, want: 0.15 + 0.1 + 3},
		"reported late": {waits: []booking{{100, 100}}, queue: Queue{Speed: 2, Late: true}, want: 0.15 + 0.1},
	} {
		q := queueOf(tt.waits)
		q.Speed, q.Elapsed, q.Ahead, q.Foreign, q.Late, q.Decoding = tt.queue.Speed, tt.queue.Elapsed, tt.queue.Ahead, tt.queue.Foreign, tt.queue.Late, tt.queue.Decoding
		c := p.Cost(50, 50, &q, Crowding{})
		if got := p.Soonest(&c, &q); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("%s: %g s, want %g", name, got, tt.want)
		}
	}
}
