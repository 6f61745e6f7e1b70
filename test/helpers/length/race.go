//go:build race

package length

// Race is set in a test program with the race detector, which also allocates, and makes pools
// lose memory on purpose.
const Race = true
