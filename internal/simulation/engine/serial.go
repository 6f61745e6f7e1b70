package engine

import "container/heap"

// serial prefills one request at a time. Prefill and decoding do not slow each other down.
type serial struct {
	e       *Engine
	prefill *decode // nil when idle
	running decodes
	orders  int
}

// decode is a request with the moment of its next step.
type decode struct {
	*job
	since work // when the first token came
	next  work
	order int // breaks ties between equal times
}

func (s *serial) begin() []Update {
	e := s.e
	// Advance calls begin right after each step, so the prefill begins now or when the request
	// arrives.
	at, some := e.ready()
	if s.prefill != nil || !some {
		return nil
	}
	j, ok := e.admit(at)
	if !ok {
		return nil
	}
	s.orders++
	cost := seconds(float64(len(j.Prompt)-j.known()) / e.cfg.PrefillRate)
	s.prefill = &decode{job: j, next: e.clock.workAt(j.started) + cost, order: s.orders}
	return []Update{{At: j.started, Events: e.cache.TakeEvents()}}
}

func (s *serial) fork(e *Engine, f forked) scheduler {
	same := func(d *decode) *decode { return &decode{f.job(d.job), d.since, d.next, d.order} }
	copied := &serial{e: e, orders: s.orders}
	if s.prefill != nil {
		copied.prefill = same(s.prefill)
	}
	for _, d := range s.running {
		copied.running = append(copied.running, same(d)) // a heap in the same order
	}
	return copied
}

func (s *serial) next() (work, bool) {
	if d := s.first(); d != nil {
		return d.next, true
	}
	return 0, false
}

func (s *serial) first() *decode {
	d := s.prefill
	if len(s.running) > 0 && (d == nil || s.running[0].before(d)) {
		d = s.running[0]
	}
	return d
}

func (s *serial) step() []Update {
	d := s.first()
	if d == s.prefill {
		s.prefill = nil
		d.took = s.e.now - d.started // decoding slows nobody down
		s.e.totals.PrefillBusy += d.took
		d.since = d.next
		u := s.e.firstToken(d.job)
		s.schedule(d)
		return []Update{u}
	}
	heap.Pop(&s.running)
	u := s.e.progress(d.job)
	if u.Kind != Done {
		s.schedule(d)
	}
	return []Update{u}
}

func (s *serial) schedule(d *decode) {
	d.made = s.e.visible(d.job)
	d.next = d.since + seconds(float64(d.made-1)/s.e.cfg.DecodeRate)
	heap.Push(&s.running, d)
}

func (s *serial) prefilling() int {
	if s.prefill != nil {
		return 1
	}
	return 0
}

func (s *serial) decoding() int { return len(s.running) }

// decodes is a heap of decoding requests by the time of their next step.
type decodes []*decode

func (d *decode) before(o *decode) bool {
	if d.next != o.next {
		return d.next < o.next
	}
	return d.order < o.order
}

func (de decodes) Len() int           { return len(de) }
func (de decodes) Less(a, b int) bool { return de[a].before(de[b]) }
func (de decodes) Swap(a, b int)      { de[a], de[b] = de[b], de[a] }
func (de *decodes) Push(x any)        { *de = append(*de, x.(*decode)) }

func (de *decodes) Pop() any {
	old := *de
	d := old[len(old)-1]
	old[len(old)-1] = nil
	*de = old[:len(old)-1]
	return d
}
