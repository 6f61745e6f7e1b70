//go:build !race

package conductor

const raceEnabled = false
