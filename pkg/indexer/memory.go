package indexer

import (
	"sync/atomic"
	"unsafe"
)

// memory hands out zeroed flat memory and counts it, so that the bytes of an
// index are known exactly. Large pieces live outside the collector's heap: the
// collector would not scan them, but would let the heap grow to twice their
// size before it ran.
type flatMemory struct {
	bytes atomic.Int64
}

// mapAbove is the size in bytes from which a piece gets its own mapping. Smaller pieces
// are on the heap: a table that grows to this size leaves about three times as much
// behind for the next collection, in each shard of a cellTable. A mapping is given back
// at once, but wastes half a page on average, and the system limits their number.
const mapAbove = 16 << 10

func makeFlat[T any](m *flatMemory, n int) []T {
	if n == 0 {
		return nil
	}
	var zero T
	size := n * int(unsafe.Sizeof(zero))
	m.bytes.Add(int64(size))
	if size < mapAbove {
		return make([]T, n)
	}
	b := mapBytes(size)
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// freeFlat frees a piece from makeFlat; s must not be used afterwards.
func freeFlat[T any](m *flatMemory, s []T) {
	if len(s) == 0 {
		return
	}
	size := len(s) * int(unsafe.Sizeof(s[0]))
	m.bytes.Add(-int64(size))
	if size >= mapAbove {
		unmapBytes(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), size))
	}
}
