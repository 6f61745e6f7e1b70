//go:build !race

package length

// Race is set in a test program with the race detector.
const Race = false
