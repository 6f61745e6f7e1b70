package plot

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAxes(t *testing.T) {
	for _, tc := range []struct {
		lo, hi float64
		want   []float64
	}{
		{120, 1800, []float64{100, 200, 500, 1000, 2000}},
		{100, 1000, []float64{100, 200, 500, 1000}},
		{0, 0, []float64{1, 2}},
		{7, 8, []float64{5, 10, 20}},
	} {
		a := logAxis(tc.lo, tc.hi)
		if diff := cmp.Diff(tc.want, a.ticks()); diff != "" {
			t.Errorf("ticks of %v to %v: %s", tc.lo, tc.hi, diff)
		}
	}
	for ms, want := range map[float64]string{5: "5 ms", 500: "500 ms", 1000: "1 s", 20_000: "20 s"} {
		if got := duration(ms); got != want {
			t.Errorf("duration(%v) = %s", ms, got)
		}
	}
}
