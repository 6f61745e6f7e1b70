package overload_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"testing"
	"time"
)

// ratiosEnv, set to anything, says that nothing else runs on the machine, so that
// rates and latencies are compared. `make test-overload` sets it. Without it, in
// the middle of other tests, everything else is proved, and the ratios are only
// shown.
const ratiosEnv = "OVERLOAD_RATIOS"

func judgeRatios() bool { return os.Getenv(ratiosEnv) != "" }

// rounds is how often a comparison is tried on a machine that stalls.
const rounds = 3

// judged runs a comparison until the machine lets it. A round says whether the
// client was late by itself, apart from any answer, and what is wrong with the
// ratios.
func judged(t *testing.T, round func(t *testing.T) (late bool, faults []string)) {
	t.Helper()
	for n := range rounds {
		var (
			late   bool
			faults []string
		)
		t.Run(fmt.Sprint("round ", n+1), func(t *testing.T) { late, faults = round(t) })
		switch {
		case t.Failed():
			return
		case !judgeRatios():
			t.Logf("not judged without %s: %q", ratiosEnv, faults)
			return
		case !late:
			for _, f := range faults {
				t.Error(f)
			}
			return
		}
		t.Logf("the machine was too busy, once more: %q", faults)
	}
	t.Error("the machine is too busy, nothing can be compared")
}

// quantile returns the value that a share q of all is not above; 0 of none.
func quantile[T int | float64 | time.Duration](all []T, q float64) T {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// above is what the quantile q of the population that all is a sample of is not
// above, with three standard deviations of certainty: the rank of a quantile in
// a sample of n is binomial.
func above(all []time.Duration, q float64) time.Duration {
	n := float64(len(all))
	return quantile(all, q+3*math.Sqrt(q*(1-q)/max(n, 1)))
}
