//go:build race

package selecting_test

const raceEnabled = true
