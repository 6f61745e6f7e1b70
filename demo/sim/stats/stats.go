// Package stats computes the figures of samples, and writes them.
package stats

import (
	"fmt"
	"slices"
)

// Mean returns the mean of samples, 0 without any.
func Mean(xs []float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

// Quantile returns the smallest sample that at least a share of q does not exceed, 0 without any.
func Quantile(xs []float64, q float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(xs))
	rank := int(q*float64(len(sorted)) + 0.999999)
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Milliseconds formats a time in ms, rounded.
func Milliseconds(ms float64) string { return Thousands(int(ms+0.5)) + " ms" }

// Thousands formats 1234567 as 1,234,567.
func Thousands(n int) string {
	if n < 0 {
		return "-" + Thousands(-n)
	}
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", Thousands(n/1000), n%1000)
}
