package main

import (
	"fmt"
	"io"
	"math"
	"math/bits"
	"time"
)

// histogram counts durations as HdrHistogram does, with three digits: the counters of each doubling
// are as fine as a 1,024th of it. Its memory does not grow with the counts.
type histogram struct {
	counts  [(maxDoubling + 2) * half]uint64
	total   uint64
	highest time.Duration
	sum     float64 // nanoseconds
	squares float64
}

const (
	half = 1024 // counters of a doubling
	// maxDoubling is where durations end: those of 2^(maxDoubling+11) ns, 18 minutes, count as such.
	maxDoubling = 29
)

// add counts a duration.
func (h *histogram) add(d time.Duration) {
	d = max(0, min(d, 1<<(maxDoubling+11)-1))
	doubling := max(0, bits.Len64(uint64(d))-11)
	h.counts[doubling*half+int(d>>doubling)]++
	h.total++
	h.highest = max(h.highest, d)
	h.sum += float64(d)
	h.squares += float64(d) * float64(d)
}

// each yields the highest duration of each counter that has some, with how many there are up to it.
func (h *histogram) each(yield func(upTo time.Duration, count uint64) bool) {
	count := uint64(0)
	for i, n := range h.counts {
		if n == 0 {
			continue
		}
		count += n
		doubling := max(0, i/half-1)
		if !yield(min(h.highest, time.Duration(i-doubling*half+1)<<doubling-1), count) {
			return
		}
	}
}

// at returns the duration that a share of all, 0 to 1, does not exceed; 0 without any.
func (h *histogram) at(share float64) (d time.Duration) {
	wanted := uint64(max(1, math.Ceil(share*float64(h.total))))
	for upTo, count := range h.each {
		if d = upTo; count >= wanted {
			break
		}
	}
	return d
}

// write writes the distribution as HdrHistogram's programs print it, in milliseconds.
func (h *histogram) write(out io.Writer) error {
	const ticks = 5 // lines for each half of the rest
	ms := func(d time.Duration) float64 { return float64(d) / 1e6 }
	if _, err := fmt.Fprintf(out, "%12s %14s %10s %14s\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)"); err != nil {
		return err
	}
	next := 0.0 // percentile of the next line, 0 to 100
	for upTo, count := range h.each {
		reached := 100 * float64(count) / float64(h.total)
		for next <= reached && next < 100 {
			if _, err := fmt.Fprintf(out, "%12.3f %2.12f %10d %14.2f\n", ms(upTo), next/100, count, 100/(100-next)); err != nil {
				return err
			}
			if count == h.total {
				break
			}
			next += 100 / (ticks * math.Pow(2, math.Floor(math.Log2(100/(100-next)))+1))
		}
	}
	mean, deviation := 0.0, 0.0
	if n := float64(h.total); n > 0 {
		mean = h.sum / n
		deviation = math.Sqrt(max(0, h.squares/n-mean*mean))
		if _, err := fmt.Fprintf(out, "%12.3f %2.12f %10d\n", ms(h.highest), 1.0, h.total); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "#[Mean    = %12.3f, StdDeviation   = %12.3f]\n#[Max     = %12.3f, Total count    = %12d]\n#[Buckets = %12d, SubBuckets     = %12d]\n",
		mean/1e6, deviation/1e6, ms(h.highest), h.total, maxDoubling+1, 2*half)
	return err
}
