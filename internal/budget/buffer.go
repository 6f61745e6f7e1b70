package budget

import (
	"math/bits"
	"sync"
)

// Buffer is the memory of one message, and what is reserved for it in an account. It
// has one owner at a time. The last one releases it, once; then it becomes the memory
// of another message, and nobody may use Bytes any more. A nil Buffer has no bytes.
type Buffer struct {
	// Bytes has no bytes, and a capacity of at least the size that was asked for. What
	// is appended is in what append returns.
	Bytes    []byte
	Reserved int64 // bytes

	kept bool
}

// Released buffers of smallestBuffer to largestBuffer bytes are kept for the next
// messages: most are of these sizes, and a large one would lie about for long. The
// collector empties the pools, and they hold no more than the messages that were in
// memory at a time, which accounts bound.
const (
	smallestBuffer = 128
	largestBuffer  = 256 << 10
)

// released has a pool for each capacity: four for each power of two, so that at most a
// fifth of a buffer is unused.
var released [4*11 + 1]sync.Pool

// bufferClass returns the pool of buffers for size bytes, nil for none, and their
// capacity.
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

// Keep leaves the bytes to those who hold them: Release will not reuse them.
func (b *Buffer) Keep() {
	if b != nil {
		b.kept = true
	}
}

// Release returns what is reserved to account, and the memory for another message.
func (b *Buffer) Release(account *Account) {
	if b == nil {
		return
	}
	account.Release(b.Reserved)
	b.Reserved = 0
	if b.kept {
		return
	}
	spoil(b.Bytes[:cap(b.Bytes)])
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
