package memory

import (
	"math/bits"
	"sync"
)

// Buffer is the memory of one message, and the bytes reserved for it in an account. It has one
// owner at a time. The last owner releases it, once; from then on it belongs to another
// message, and Bytes must not be used. A nil Buffer has no bytes.
type Buffer struct {
	// Bytes has length 0 and at least the capacity that was asked for. Appending to it does not
	// change it: the data is in the slice that append returns.
	Bytes    []byte
	Reserved int64 // bytes

	kept bool
}

// Released buffers of smallestBuffer to largestBuffer bytes are pooled for the next messages.
// Most messages are of these sizes, and a larger buffer would stay unused for long. The pools
// hold no more than the messages that were in memory at one time, which accounts bound; the
// garbage collector empties them.
const (
	smallestBuffer = 128
	largestBuffer  = 1 << 20
)

// released has a pool for each capacity. There are four capacities for each power of two, so
// that at most a fifth of a buffer is unused.
var released [4*13 + 1]sync.Pool

// bufferClass returns the pool for buffers of size bytes, nil for none, and their capacity.
func bufferClass(size int) (pool *sync.Pool, capacity int) {
	if size > largestBuffer {
		return nil, size
	}
	size = max(size, smallestBuffer)
	shift := bits.Len(uint(size-1)) - 3
	quarters := (size-1)>>shift + 1 // 5 to 8
	return &released[4*(shift-4)+quarters-8], quarters << shift
}

// BufferSize returns the capacity of a buffer for size bytes.
func BufferSize(size int) int {
	_, capacity := bufferClass(size)
	return capacity
}

// NewBuffer returns a buffer for size bytes, with nothing reserved.
func NewBuffer(size int) *Buffer {
	pool, capacity := bufferClass(size)
	if pool != nil {
		if b, ok := pool.Get().(*Buffer); ok {
			return b
		}
	}
	return &Buffer{Bytes: make([]byte, 0, capacity)}
}

// Keep leaves the bytes to their current users: Release will not reuse them.
func (b *Buffer) Keep() {
	if b != nil {
		b.kept = true
	}
}

// Release returns the reserved bytes to account, and pools the memory for another message.
func (b *Buffer) Release(account *Account) {
	if b == nil {
		return
	}
	account.Release(b.Reserved)
	b.Reserved = 0
	if b.kept {
		return
	}
	poison(b.Bytes[:cap(b.Bytes)])
	if pool, _ := bufferClass(cap(b.Bytes)); pool != nil {
		pool.Put(b)
	}
}

// Size returns the bytes that are reserved.
func (b *Buffer) Size() int64 {
	if b == nil {
		return 0
	}
	return b.Reserved
}
