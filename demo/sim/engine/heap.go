package engine

// jobHeap orders decoding requests by the time of their next step.
type jobHeap []*job

func (j *job) before(o *job) bool {
	if j.next != o.next {
		return j.next < o.next
	}
	return j.order < o.order
}

func (h jobHeap) Len() int           { return len(h) }
func (h jobHeap) Less(a, b int) bool { return h[a].before(h[b]) }
func (h jobHeap) Swap(a, b int)      { h[a], h[b] = h[b], h[a] }
func (h *jobHeap) Push(x any)        { *h = append(*h, x.(*job)) }

func (h *jobHeap) Pop() any {
	old := *h
	j := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return j
}
