package config

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"
)

// durations are the durations that a setting takes. Every setting takes a number with units, such as 30s or
// 1h30m, and a bare number, which has the unit of its Dynamo variable, or seconds. They are rounded to
// milliseconds.
type durations struct {
	unit  time.Duration // of a bare number, which the file has; 0: seconds, and the file has units
	whole bool          // only whole units
	// low and high are the bounds, inclusive. What is below 0 and not below low counts as 0.
	low, high time.Duration
}

// maxDuration bounds the durations of the configuration. A higher value is surely a mistake.
const maxDuration = 30 * 24 * time.Hour

var (
	duration   = durations{low: time.Millisecond, high: maxDuration}
	delay      = durations{high: maxDuration} // 0 is none
	seconds    = durations{unit: time.Second, high: maxDuration}
	anySeconds = durations{unit: time.Second, low: math.MinInt64, high: math.MaxInt64}
)

func wholeSeconds(low, high time.Duration) durations {
	return durations{unit: time.Second, whole: true, low: low, high: high}
}

// of is a duration.
func (d durations) of(field *time.Duration) value {
	return typed[time.Duration]{field: field, parse: d.parse, render: d.show}
}

// orNone is a duration or "none". 0 is a duration.
func (d durations) orNone(field **time.Duration) value {
	v := optional(field, d.parse)
	v.render = func(p *time.Duration) any {
		if p == nil {
			return nil
		}
		return d.show(*p)
	}
	return v
}

func (d durations) parse(text string) (time.Duration, error) {
	v, err := time.ParseDuration(text)
	if n, notNumber := parseFloat(text); notNumber == nil {
		v, err = inMilliseconds(n*float64(cmp.Or(d.unit, time.Second))), nil
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a duration such as 30s or 10m", text)
	case v < d.low || v > d.high:
		return 0, fmt.Errorf("%s is not in [%v, %v]", text, d.show(d.low), d.show(d.high))
	case d.whole && v%d.unit != 0:
		return 0, fmt.Errorf("%s is not a multiple of %v", text, d.unit)
	}
	return inMilliseconds(max(float64(v), 0)), nil
}

// inMilliseconds rounds nanoseconds, those above 0 to at least a millisecond.
func inMilliseconds(n float64) time.Duration {
	ms := math.Round(n / float64(time.Millisecond))
	if n > 0 {
		ms = max(ms, 1)
	}
	const most = float64(math.MaxInt64 / int64(time.Millisecond))
	return time.Duration(min(max(ms, -most), most)) * time.Millisecond
}

func (d durations) show(v time.Duration) any {
	switch {
	case d.unit == 0:
		return showDuration(v)
	case v%d.unit == 0:
		return int(v / d.unit)
	}
	return float64(v) / float64(d.unit)
}

func showDuration(d time.Duration) string {
	s := d.String() // of 10m: 10m0s
	if short, ok := strings.CutSuffix(s, "m0s"); ok {
		s = short + "m"
	}
	if short, ok := strings.CutSuffix(s, "h0m"); ok {
		s = short + "h"
	}
	return s
}
