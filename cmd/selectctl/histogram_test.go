package main

import (
	"bytes"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"
)

// TestHistogram: quantiles are those of the sorted durations to three digits, at any scale, and the text says
// the same: values and percentiles rise, and the last line has all.
func TestHistogram(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, scale := range []float64{1, 1e3, 1e6, 1e9, 1e11} {
		var h histogram
		var all []time.Duration
		for range 3000 {
			d := time.Duration(rnd.ExpFloat64() * scale)
			all = append(all, d)
			h.add(d)
		}
		slices.Sort(all)
		for _, share := range []float64{0, 0.001, 0.5, 0.9, 0.99, 1} {
			want := all[max(0, int(math.Ceil(share*float64(len(all))))-1)]
			if got := h.at(share); got < want || float64(got-want) > 0.001*float64(want) {
				t.Errorf("scale %g: %v of all are up to %v, want %v", scale, share, got, want)
			}
		}
		var text bytes.Buffer
		if err := h.write(&text); err != nil {
			t.Fatal(err)
		}
		value, percentile, lines := -1.0, -1.0, regexp.MustCompile(`(?m)^ *([\d.]+) ([\d.]+) +(\d+)`).FindAllStringSubmatch(text.String(), -1)
		for _, line := range lines {
			v, _ := strconv.ParseFloat(line[1], 64)
			p, _ := strconv.ParseFloat(line[2], 64)
			if v < value || p <= percentile {
				t.Errorf("scale %g: %q after %g %g", scale, line[0], value, percentile)
			}
			value, percentile = v, p
		}
		if len(lines) < 40 || percentile != 1 || lines[len(lines)-1][3] != "3000" {
			t.Errorf("scale %g: %d lines, the last is %q", scale, len(lines), lines[len(lines)-1])
		}
	}
	var none bytes.Buffer
	if err := new(histogram).write(&none); err != nil || none.Len() == 0 {
		t.Errorf("without any: %v %q", err, &none)
	}
}
