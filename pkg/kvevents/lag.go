package kvevents

import "time"

// MaxLag is the longest lag that is told of: beyond it a clock is wrong.
const MaxLag = time.Hour

// Times from 1973 to the year 5138, in seconds and in milliseconds, cannot be
// taken for each other. Other numbers are none that a publisher's clock says.
const (
	minSeconds = 1e8
	minMillis  = 1e11
	maxMillis  = 1e14
)

// lagOf returns the time from what a batch states, in seconds as engines do or
// in milliseconds as standard publishers do, to when it was received, in Unix
// nanoseconds. A batch that is not even sent then has no lag, as clocks differ.
// ok is false if the batch states no time.
func lagOf(received int64, stated float64) (lag time.Duration, ok bool) {
	if !(stated >= minSeconds && stated < maxMillis) { // NaN too
		return 0, false
	}
	if stated >= minMillis {
		stated /= 1000
	}
	seconds := float64(received)/1e9 - stated
	return time.Duration(min(max(seconds, 0), MaxLag.Seconds()) * 1e9), true
}
