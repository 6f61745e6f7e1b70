package ttft

import (
	"math"
	"math/bits"
)

// vector has a number for each of the coefficients, in units in which they are about 1.
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
// sample counts forgetting times what the next one does. What it keeps are the sums of the normal
// equations, which is recursive least squares in another form, without an inverse that
// could lose its meaning.
type fit struct {
	products [3][3]float64 // Σ f·fᵀ
	times    vector        // Σ f·y
	theta    vector
}

const (
	forgetting = 0.998
	// priorWeight is that of the default parameters, in each direction.
	priorWeight = 0.01
	// inertia keeps what the samples of late say nothing about.
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

// add takes a sample: y seconds for what has these features, give or take deviation. As
// times vary by a share of themselves, no sample says much more than another, whatever
// its size.
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

// solve sets theta to the best of the solutions in which some coefficients are 0 and the
// others are not negative.
func (f *fit) solve() {
	a, b := f.products, f.times
	for i := range b {
		a[i][i] += inertia
		b[i] += inertia * f.theta[i]
	}
	if theta, ok := solveFor(a, b, 7); ok && min(theta[0], theta[1], theta[2]) >= 0 {
		f.theta = theta // nothing is better than the best without bounds
		return
	}
	best, least := vector{}, 0.0 // of the zero vector
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

// The most that is learned: no engine is slower.
const (
	maxBase       = 60.0
	maxPerToken   = 1.0
	maxPerContext = 1e-3
)

func (f *fit) parameters() Parameters {
	return Parameters{
		Base:       min(f.theta[0], maxBase),
		PerToken:   min(max(f.theta[1]/tokenUnit, MinPerToken), maxPerToken),
		PerContext: min(f.theta[2]/contextUnit, maxPerContext),
	}
}
