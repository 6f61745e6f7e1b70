//go:build race

package e2e

// buildFlags gives the service the race detector when the tests have it.
var buildFlags = []string{"-race"}

// Race tells that the tests, and so the program, run under the race detector,
// which needs several times the memory.
const Race = true
