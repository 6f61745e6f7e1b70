package replicasync

import "sync"

// queue is a bounded FIFO queue between goroutines. What does not fit is
// refused: producers never wait.
type queue[T any] struct {
	// ready has one element whenever the queue may have become non-empty.
	ready chan struct{}

	// mu guards what follows. It is never held while anything else is called.
	mu       sync.Mutex
	ring     []T
	head, n  int
	maxItems int
	bytes    int
	maxBytes int
}

// ringMin is the smallest memory of a queue, in items.
const ringMin = 64

func newQueue[T any](maxItems, maxBytes int) *queue[T] {
	return &queue[T]{ready: make(chan struct{}, 1), maxItems: maxItems, maxBytes: maxBytes}
}

// put appends an item of that many bytes, or reports that the queue is full.
func (q *queue[T]) put(item T, bytes int) bool {
	q.mu.Lock()
	ok := q.putLocked(item, bytes)
	q.mu.Unlock()
	return ok
}

func (q *queue[T]) putLocked(item T, bytes int) bool {
	if q.n >= q.maxItems || q.bytes > q.maxBytes-bytes {
		return false
	}
	if q.n == len(q.ring) {
		q.resize(max(ringMin, 2*q.n))
	}
	q.ring[(q.head+q.n)%len(q.ring)] = item
	q.n++
	q.bytes += bytes
	if q.n == 1 {
		select {
		case q.ready <- struct{}{}:
		default:
		}
	}
	return true
}

// take moves up to cap(buf) items into buf. bytes tells an item's size as put
// was told. An empty answer means that ready will tell of the next item.
func (q *queue[T]) take(buf []T, bytes func(*T) int) []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	buf = buf[:0]
	var zero T
	for q.n > 0 && len(buf) < cap(buf) {
		item := &q.ring[q.head]
		q.bytes -= bytes(item)
		buf = append(buf, *item)
		*item = zero
		q.head = (q.head + 1) % len(q.ring)
		q.n--
	}
	if len(q.ring) > ringMin && 8*q.n < len(q.ring) {
		q.resize(max(ringMin, len(q.ring)/2))
	}
	return buf
}

func (q *queue[T]) resize(size int) {
	ring := make([]T, size)
	for i := range q.n {
		ring[i] = q.ring[(q.head+i)%len(q.ring)]
	}
	q.ring, q.head = ring, 0
}

// at is the i-th item that waits. It needs q.mu.
func (q *queue[T]) at(i int) *T { return &q.ring[(q.head+i)%len(q.ring)] }

// len is how many items wait.
func (q *queue[T]) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n
}
