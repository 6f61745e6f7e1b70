//go:build race

package memory

// poison overwrites released memory. A use after release then shows in tests under the race
// detector, as a data race or as nonsense.
func poison(released []byte) {
	for i := range released {
		released[i] = 0xDB
	}
}
