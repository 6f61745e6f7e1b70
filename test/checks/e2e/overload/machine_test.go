package overload_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

// rounds is how often a comparison is tried: machines stall, and a percentile of
// some hundred answers is a matter of chance, too.
const rounds = 3

// judged runs a comparison until a round stands it, where nothing else runs. A round says whether the
// client was late by itself, apart from any answer, and what is wrong with the
// ratios. Whatever else is wrong fails the test in any round.
func judged(t *testing.T, round func(t *testing.T) (late bool, faults []string)) {
	t.Helper()
	if !e2e.Alone() {
		t.Skipf("measures rates and delays: make test-overload sets %s", e2e.AloneEnv)
	}
	var (
		late   bool
		faults []string
	)
	for n := range rounds {
		t.Run(fmt.Sprint("round ", n+1), func(t *testing.T) { late, faults = round(t) })
		switch {
		case t.Failed():
			return
		case !late && len(faults) == 0:
			return
		}
		t.Logf("client late: %t; faults: %q", late, faults)
	}
	if late {
		t.Error("the machine is too busy, nothing can be compared")
	}
	for _, f := range faults {
		t.Error(f)
	}
}

// quantile returns the value that a share q of all is not above; 0 of none.
func quantile[T int | float64 | time.Duration](all []T, q float64) T {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[min(len(all)-1, int(q*float64(len(all))))]
}
