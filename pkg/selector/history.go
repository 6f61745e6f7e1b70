package selector

import (
	"sync"
	"sync/atomic"
)

// historyLength is the number of latest decisions over which the share of a class is
// taken (as in Dynamo's lmetric).
const historyLength = 1000

// noClass stands in the history for prompts that are too short for a class: they are part of the
// requests of which a class has its share.
const noClass = 0

// History remembers the earlier decisions of a policy. Each policy has one per scope.
// The zero History is empty; it is safe for concurrent use.
type History struct {
	turn atomic.Uint64

	mu sync.Mutex // guards the fields below
	// recent is a ring of the classes of the last decisions; next is the oldest one's index.
	recent  []uint64
	next    int
	classes map[uint64]*classCount
}

type classCount struct{ decisions, streak int }

// Fill sets those facts of d that needs asks for and that come from earlier decisions.
// class is the prompt's [Class].Hash; known is false if the prompt is too short for one.
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

// Decided records that p has made the decision d, for which Fill was called.
func (h *History) Decided(d *Decision, p Policy) {
	needs := p.Needs()
	if needs.Has(NeedTurn) {
		h.turn.Add(1)
	}
	m, is := p.(LMetric)
	if !is || !needs.Has(NeedClass) {
		return
	}
	if !d.Class.Known {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.note(noClass)
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

// note counts a decision for a class and, once recent is full, forgets the oldest one.
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
