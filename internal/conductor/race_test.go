//go:build race

package conductor

// raceEnabled: the race detector makes pools lose memory on purpose.
const raceEnabled = true
