//go:build race

package replicasync

// raceEnabled: the simulation, which has one goroutine, is seven times slower.
const raceEnabled = true
