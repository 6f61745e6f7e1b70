package metrics

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Bounds of histograms: the largest value of each bucket, ascending. One more bucket has the
// values above the last bound. Bounds must not be changed.
var (
	// OverlapRatioBounds are bounds of shares, 0 to 1.
	OverlapRatioBounds = []float64{0, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1}
	// ForegoneBounds are bounds in blocks, up to 4,096.
	ForegoneBounds = append([]float64{0}, Doubling(1, 13)...)
	// CostSpreadBounds are bounds in blocks, up to 65,536.
	CostSpreadBounds = append([]float64{0}, Doubling(1, 17)...)
	// WaitBounds are bounds in seconds, 1 ms to 131 s.
	WaitBounds = Doubling(.001, 18)
	// ErrorRatioBounds are bounds of ratios of an observed to a predicted time.
	ErrorRatioBounds = []float64{0.1, 0.25, 0.5, 0.75, 0.9, 1.1, 1.5, 2, 4, 10}
	// LagBounds are bounds in seconds, 0.5 ms to 65.5 s.
	LagBounds = Doubling(.0005, 18)

	// RequestBounds are bounds in seconds, 0.1 ms to 52 s, as in dynamo.indexer 1.6.1.
	RequestBounds = Doubling(.0001, 20)
)

// Doubling returns n numbers, each twice the one before.
func Doubling(first float64, n int) []float64 {
	all := make([]float64, n)
	for i := range all {
		all[i] = math.Ldexp(first, i)
	}
	return all
}

// Histogram counts values by size. Observe takes no lock and allocates nothing. Unlike
// prometheus.Histogram it has no name and no labels; a collector adds them.
type Histogram struct {
	bounds []float64
	counts []atomic.Uint64 // by bucket, one more than bounds
	sum    atomic.Uint64   // bits of a float64
	// examples has the latest Example of each bucket, nil before the first.
	examples atomic.Pointer[[]atomic.Pointer[example]]
}

// Example names the trace of an observed value, in hexadecimal. The zero value is none.
type Example struct{ TraceID, SpanID string }

// example is a value with its trace.
type example struct {
	Example
	value float64
	at    time.Time
}

// NewHistogram returns an empty histogram. It keeps bounds.
func NewHistogram(bounds []float64) *Histogram {
	return &Histogram{bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1)}
}

// Observe counts a value, which must not be NaN.
func (h *Histogram) Observe(v float64) {
	i, _ := slices.BinarySearch(h.bounds, v)
	h.counts[i].Add(1)
	h.addSum(v)
}

// ObserveExample counts a value, and keeps the trace that it is from, if there is one, as its
// bucket's exemplar.
func (h *Histogram) ObserveExample(v float64, of Example) {
	h.Observe(v)
	if of.TraceID == "" {
		return
	}
	all := h.examples.Load()
	if all == nil {
		h.examples.CompareAndSwap(nil, new(make([]atomic.Pointer[example], len(h.counts))))
		all = h.examples.Load()
	}
	i, _ := slices.BinarySearch(h.bounds, v)
	(*all)[i].Store(&example{of, v, time.Now()})
}

// exemplars returns the latest examples in Prometheus' form, at most one for each bucket.
func (h *Histogram) exemplars() (found []prometheus.Exemplar) {
	all := h.examples.Load()
	if all == nil {
		return nil
	}
	for i := range *all {
		if e := (*all)[i].Load(); e != nil {
			found = append(found, prometheus.Exemplar{
				Value: e.value, Timestamp: e.at, Labels: prometheus.Labels{"trace_id": e.TraceID, "span_id": e.SpanID},
			})
		}
	}
	return found
}

func (h *Histogram) addSum(v float64) {
	for {
		old := h.sum.Load()
		if h.sum.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v)) {
			return
		}
	}
}

// Add adds the counts of o, which has the same bounds.
func (h *Histogram) Add(o *Histogram) {
	for i := range o.counts {
		h.counts[i].Add(o.counts[i].Load())
	}
	h.addSum(math.Float64frombits(o.sum.Load()))
}

// Count returns how many values were observed.
func (h *Histogram) Count() uint64 {
	count, _, _ := h.read()
	return count
}

// Sum returns the sum of the observed values.
func (h *Histogram) Sum() float64 { return math.Float64frombits(h.sum.Load()) }

// read returns the histogram in Prometheus' form: count and sum of all values, and for each
// bound how many values are not above it. While values are being observed, the sum may be ahead
// of or behind the counts.
func (h *Histogram) read() (count uint64, sum float64, upTo map[float64]uint64) {
	upTo = make(map[float64]uint64, len(h.bounds))
	for i, b := range h.bounds {
		count += h.counts[i].Load()
		upTo[b] = count
	}
	count += h.counts[len(h.bounds)].Load()
	return count, math.Float64frombits(h.sum.Load()), upTo
}
