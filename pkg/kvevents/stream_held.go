package kvevents

// heldMessages is a queue of live messages that wait for a replay, in the order
// of their arrival.
type heldMessages struct {
	queue []message
	head  int // of queue
	bytes int // of payloads
}

func (h *heldMessages) len() int { return len(h.queue) - h.head }

func (h *heldMessages) front() message { return h.queue[h.head] }

func (h *heldMessages) push(m message) {
	h.queue = append(h.queue, m)
	h.bytes += len(m.payload)
}

func (h *heldMessages) pushFront(m message) {
	if h.head == 0 {
		h.queue = append([]message{m}, h.queue...)
	} else {
		h.head--
		h.queue[h.head] = m
	}
	h.bytes += len(m.payload)
}

func (h *heldMessages) pop() {
	h.bytes -= len(h.queue[h.head].payload)
	h.queue[h.head] = message{}
	if h.head++; h.head == len(h.queue) {
		*h = heldMessages{} // the next replay may be far off
	}
}

// highest returns the highest number, 0 if there is none.
func (h *heldMessages) highest() uint64 {
	var top uint64
	for _, m := range h.queue[h.head:] {
		top = max(top, m.seq)
	}
	return top
}

// dropBefore drops what an engine sent that has been replaced since: what came
// before the numbers first fell, seen from last. If they never fall nothing is
// known, unless a new engine cannot have reached the held numbers: then all are
// the old one's.
func (h *heldMessages) dropBefore(last uint64, unreached bool) {
	old := 0
	for i, m := range h.queue[h.head:] {
		if m.seq <= last {
			old, unreached = i, false
			break
		}
		last = m.seq
	}
	if unreached {
		old = h.len()
	}
	for range old {
		h.pop()
	}
}
