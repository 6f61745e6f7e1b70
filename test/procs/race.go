//go:build race

package procs

// buildFlags gives the service the race detector when the tests have it.
var buildFlags = []string{"-race"}
