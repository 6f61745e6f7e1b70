//go:build race

package indexer_test

// raceEnabled: the race detector allocates, and takes memory and time of its own.
const raceEnabled = true
