//go:build unix && !race

package indexer

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func mapBytes(n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		// As with the heap: no caller can handle a lack of memory.
		panic(fmt.Sprintf("indexer: map %d bytes: %v", n, err))
	}
	return b
}

func unmapBytes(b []byte) {
	if err := unix.Munmap(b); err != nil {
		panic(fmt.Sprintf("indexer: unmap %d bytes: %v", len(b), err))
	}
}
