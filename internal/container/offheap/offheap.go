// Package offheap hands out memory for arrays without pointers, of which large ones live outside
// the collector's heap: the collector would not scan them, but would let the heap grow to twice
// their size before it ran.
package offheap

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// Memory counts what it hands out, so that the bytes of a structure are known exactly. The zero
// Memory is ready.
type Memory struct {
	bytes, outside atomic.Int64

	mu       sync.Mutex    // guards mappings; innermost
	mappings map[*byte]int // pieces outside the heap: where they begin, and their bytes
}

// Bytes returns how much is handed out.
func (m *Memory) Bytes() int64 { return m.bytes.Load() }

// Outside returns the part of Bytes that is outside the collector's heap.
func (m *Memory) Outside() int64 { return m.outside.Load() }

// mapped is what all Memory of the process has outside the collector's heap.
var mapped atomic.Int64

// Mapped returns how many bytes are outside the collector's heap, in the whole process.
func Mapped() int64 { return mapped.Load() }

// mapAbove is the size in bytes from which a piece gets its own mapping. Smaller pieces
// are on the heap: a table that grows to this size leaves about three times as much
// behind for the next collection, in each shard of a cellTable. A mapping is given back
// at once, but wastes half a page on average, and the system limits their number.
const mapAbove = 16 << 10

// Close gives back every piece that is outside the collector's heap. None may be used afterwards. It
// is for the cleanup (runtime.AddCleanup) of the structure that uses the pieces: nothing gives them
// back only because they are unreachable.
func (m *Memory) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for start, size := range m.mappings {
		unmapBytes(unsafe.Slice(start, size)) // as Make mapped it
	}
	outside := m.outside.Swap(0)
	m.bytes.Add(-outside)
	mapped.Add(-outside)
	m.mappings = nil
}

// Make returns n zeros. T has no pointers. They must be given to Free, or wait for Close.
func Make[T any](m *Memory, n int) []T {
	if n == 0 {
		return nil
	}
	var zero T
	size := n * int(unsafe.Sizeof(zero))
	m.bytes.Add(int64(size))
	if !maps || size < mapAbove {
		return make([]T, n)
	}
	m.outside.Add(int64(size))
	mapped.Add(int64(size))
	b := mapBytes(size)
	m.mu.Lock()
	if m.mappings == nil {
		m.mappings = make(map[*byte]int)
	}
	m.mappings[unsafe.SliceData(b)] = size
	m.mu.Unlock()
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n) // b has n of them
}

// Free frees a piece from Make; s must not be used afterwards.
func Free[T any](m *Memory, s []T) {
	if len(s) == 0 {
		return
	}
	size := len(s) * int(unsafe.Sizeof(s[0]))
	m.bytes.Add(-int64(size))
	if maps && size >= mapAbove {
		m.outside.Add(-int64(size))
		mapped.Add(-int64(size))
		start := (*byte)(unsafe.Pointer(unsafe.SliceData(s)))
		m.mu.Lock()
		delete(m.mappings, start)
		m.mu.Unlock()
		unmapBytes(unsafe.Slice(start, size)) // as Make mapped it
	}
}
