//go:build !race

package e2e

var buildFlags []string

// Race tells that the tests, and so the program, run under the race detector,
// which needs several times the memory.
const Race = false
