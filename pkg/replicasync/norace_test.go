//go:build !race

package replicasync

const raceEnabled = false
