//go:build race

package replicasync

// raceEnabled: the simulation is one goroutine, in which the race detector finds
// nothing and takes five times as long.
const raceEnabled = true
