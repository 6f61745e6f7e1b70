package admission

// element is an element of a heap. before defines its order; moved reports its new place, so
// that it can be removed.
type element[T any] interface {
	before(T) bool
	moved(place int)
}

// heap is a binary heap; the first element is at place 0, and the children of
// place i are at 2i+1 and 2i+2.
type heap[T element[T]] []T

func (h *heap[T]) push(e T) {
	*h = append(*h, e)
	h.up(len(*h) - 1)
}

// remove takes out the element at place i, which it does not compare.
func (h *heap[T]) remove(i int) T {
	s := *h
	e, last := s[i], len(s)-1
	s[i] = s[last]
	var none T
	s[last] = none
	*h = s[:last]
	if i < last {
		h.fix(i)
	}
	return e
}

// order makes any slice a heap.
func (h *heap[T]) order() {
	for i := len(*h) - 1; i >= 0; i-- {
		h.down(i)
	}
}

// fix restores the order after the element at place i changed.
func (h *heap[T]) fix(i int) {
	if i > 0 && (*h)[i].before((*h)[(i-1)/2]) {
		h.up(i)
		return
	}
	h.down(i)
}

func (h *heap[T]) up(i int) {
	s := *h
	e := s[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(s[parent]) {
			break
		}
		s[i] = s[parent]
		s[i].moved(i)
		i = parent
	}
	s[i] = e
	e.moved(i)
}

func (h *heap[T]) down(i int) {
	s := *h
	e := s[i]
	for {
		child := 2*i + 1
		if child >= len(s) {
			break
		}
		if child+1 < len(s) && s[child+1].before(s[child]) {
			child++
		}
		if !s[child].before(e) {
			break
		}
		s[i] = s[child]
		s[i].moved(i)
		i = child
	}
	s[i] = e
	e.moved(i)
}
