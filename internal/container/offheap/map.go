//go:build unix && !race

package offheap

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// maps: there is memory outside the collector's heap.
const maps = true

func mapBytes(n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		// As with the heap: no caller can handle a lack of memory.
		panic(fmt.Sprintf("offheap: map %d bytes: %v", n, err))
	}
	return b
}

func unmapBytes(b []byte) {
	if err := unix.Munmap(b); err != nil {
		panic(fmt.Sprintf("offheap: unmap %d bytes: %v", len(b), err))
	}
}
