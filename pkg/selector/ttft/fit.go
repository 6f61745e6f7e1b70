package ttft

import (
	"math"
	"math/bits"
)

// vector has one number per coefficient, in units that make the features about 1.
type vector [3]float64

// The units of the features: 10,000 tokens, and 10^8 pairs of tokens.
const (
	tokenUnit   = 1e4
	contextUnit = 1e8
)

func features(u, prompt float64) vector {
	return vector{1, u / tokenUnit, context(u, prompt) / contextUnit}
}

func (v vector) dot(o vector) float64 { return v[0]*o[0] + v[1]*o[1] + v[2]*o[2] }

// fit is a least-squares fit whose coefficients are not negative. It forgets: each
// sample weighs forgetting times as much as the next one. It keeps the sums of the
// normal equations. That is recursive least squares without the running inverse, in
// which rounding errors could build up.
type fit struct {
	products [3][3]float64 // Σ f·fᵀ
	times    vector        // Σ f·y
	theta    vector
}

const (
	forgetting = 0.998
	// priorWeight is the weight of the default parameters, for each coefficient.
	priorWeight = 0.01
	// inertia holds a coefficient in place if recent samples say nothing about it.
	inertia = 1e-6
)

func newFit() fit {
	f := fit{theta: vector{0, tokenUnit / defaultRate, 0}}
	for i := range f.theta {
		f.products[i][i] = priorWeight
		f.times[i] = priorWeight * f.theta[i]
	}
	return f
}

// add takes a sample: a prefill with the features x took y seconds, with a standard
// deviation of deviation seconds. Times vary in proportion to themselves, so samples of
// every size weigh about the same.
func (f *fit) add(x vector, y, deviation float64) {
	y /= deviation
	for i := range x {
		x[i] /= deviation
	}
	for i := range x {
		for j := range x {
			f.products[i][j] = f.products[i][j]*forgetting + x[i]*x[j]
		}
		f.times[i] = f.times[i]*forgetting + x[i]*y
	}
	f.solve()
}

// solve sets theta to the best solution without negative coefficients. It tries every
// set of coefficients that are not 0.
func (f *fit) solve() {
	a, b := f.products, f.times
	for i := range b {
		a[i][i] += inertia
		b[i] += inertia * f.theta[i]
	}
	if theta, ok := solveFor(a, b, 7); ok && min(theta[0], theta[1], theta[2]) >= 0 {
		f.theta = theta // the best solution without bounds is within them
		return
	}
	best, least := vector{}, 0.0 // the zero vector and its loss
	for set := uint(1); set < 7; set++ {
		theta, ok := solveFor(a, b, set)
		if !ok || min(theta[0], theta[1], theta[2]) < 0 {
			continue
		}
		if loss := -theta.dot(b); loss < least { // θᵀaθ − 2θᵀb, of which the first term is θᵀb
			best, least = theta, loss
		}
	}
	f.theta = best
}

// solveFor solves a·θ = b for the coefficients in set, a bit for each; the others are 0.
func solveFor(a [3][3]float64, b vector, set uint) (theta vector, ok bool) {
	var index [3]int
	n := 0
	for s := set; s != 0; s &= s - 1 {
		index[n] = bits.TrailingZeros(s)
		n++
	}
	var root [3][3]float64 // Cholesky: a = root·rootᵀ
	for i := range n {
		for j := range i + 1 {
			sum := a[index[i]][index[j]]
			for k := range j {
				sum -= root[i][k] * root[j][k]
			}
			switch {
			case i != j:
				root[i][j] = sum / root[j][j]
			case sum > 0:
				root[i][i] = math.Sqrt(sum)
			default:
				return vector{}, false
			}
		}
	}
	var y [3]float64
	for i := range n {
		sum := b[index[i]]
		for k := range i {
			sum -= root[i][k] * y[k]
		}
		y[i] = sum / root[i][i]
	}
	for i := n - 1; i >= 0; i-- {
		sum := y[i]
		for k := i + 1; k < n; k++ {
			sum -= root[k][i] * theta[index[k]]
		}
		theta[index[i]] = sum / root[i][i]
	}
	return theta, true
}

// Upper bounds of the coefficients: no engine is slower.
const (
	maxBase       = 60.0 // seconds
	maxPerToken   = 1.0  // seconds per token
	maxPerContext = 1e-3 // seconds per pair of tokens
)

func (f *fit) parameters() Parameters {
	return Parameters{
		Base:       min(f.theta[0], maxBase),
		PerToken:   min(max(f.theta[1]/tokenUnit, MinPerToken), maxPerToken),
		PerContext: min(f.theta[2]/contextUnit, maxPerContext),
	}
}
