package selector

import (
	"sync"
	"sync/atomic"
)

// historyLength is how many decisions the shares of classes are of (dynamo's lmetric).
const historyLength = 1000

// History is what a policy is told of the decisions that it has made before. Every
// scope and policy has its own. The zero History is empty; it is safe for concurrent use.
type History struct {
	turn atomic.Uint64

	mu sync.Mutex // guards the fields below
	// recent are the classes of the last decisions, a ring; next is its oldest.
	recent  []uint64
	next    int
	classes map[uint64]*classCount
}

type classCount struct{ decisions, streak int }

// Fill sets the facts of d that needs names and that are of earlier decisions. class
// is the hash that [Class] names, known if the prompt has it.
func (h *History) Fill(d *Decision, needs Needs, class uint64, known bool) {
	if needs.Has(NeedTurn) {
		d.Turn = h.turn.Load()
	}
	if !needs.Has(NeedClass) {
		return
	}
	d.Class = Class{Hash: class, Known: known}
	if !known {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	count, length := 0, len(h.recent)
	if c := h.classes[class]; c != nil {
		count, d.Class.Streak = c.decisions, c.streak
	}
	if length == historyLength {
		if h.recent[h.next] == class {
			count--
		}
		length--
	}
	d.Class.Share = float64(count+1) / float64(length+1)
}

// Decided notes a decision that d was filled in for and that p has made.
func (h *History) Decided(d *Decision, p Policy) {
	needs := p.Needs()
	if needs.Has(NeedTurn) {
		h.turn.Add(1)
	}
	m, is := p.(LMetric)
	if !is || !needs.Has(NeedClass) || !d.Class.Known {
		return
	}
	_, hot := m.hot(d, m.costs(d, nil))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.note(d.Class.Hash)
	if c := h.classes[d.Class.Hash]; hot {
		c.streak++
	} else {
		c.streak = 0
	}
}

// note counts a decision for a class, and forgets the oldest one.
func (h *History) note(class uint64) {
	if h.classes == nil {
		h.classes = make(map[uint64]*classCount)
	}
	if len(h.recent) < historyLength {
		h.recent = append(h.recent, class)
	} else {
		oldest := h.recent[h.next]
		if c := h.classes[oldest]; c.decisions > 1 {
			c.decisions--
		} else {
			delete(h.classes, oldest)
		}
		h.recent[h.next] = class
		h.next = (h.next + 1) % historyLength
	}
	c := h.classes[class]
	if c == nil {
		c = &classCount{}
		h.classes[class] = c
	}
	c.decisions++
}
