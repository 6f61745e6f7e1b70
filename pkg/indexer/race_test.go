//go:build race

package indexer_test

// raceEnabled: histories, which have one goroutine, are some ten times slower.
const raceEnabled = true
