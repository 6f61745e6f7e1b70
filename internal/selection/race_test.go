//go:build race

package selection_test

const raceEnabled = true
