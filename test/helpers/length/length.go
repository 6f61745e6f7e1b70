// Package length says how long a random history is in each ring of tests. In one goroutine the
// race detector finds nothing and takes five times as long: what is shortened or skipped for
// that, make test-sequential plays without it.
package length

import "testing"

// Of returns one of three lengths of a history in one goroutine: full, the one with -short, and,
// for -short with the race detector, raced.
func Of(full, short, raced int) int {
	switch {
	case !testing.Short():
		return full
	case Race:
		return raced
	}
	return short
}

// Sequential skips a test in one goroutine that cannot be shortened, for -short with the race
// detector.
func Sequential(tb testing.TB) {
	tb.Helper()
	if testing.Short() && Race {
		tb.Skip("one goroutine has no races")
	}
}
