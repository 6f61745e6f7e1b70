package admission

// robin is deficit round robin over the classes: on its turn a class earns its
// quantum, and serves as long as it can pay its next waiter's uncached tokens.
// A class whose waiters are all blocked keeps what it has and earns nothing.
type robin struct {
	turn   int  // the class whose turn it is
	earned bool // whether it got this turn's quantum
	heads  []*Waiter
}

// next returns the waiter to serve and charges its class, or nil if no class
// has a waiter that can run.
func (r *robin) next(classes []*backlog, canRun func(*Waiter) bool) *Waiter {
	r.heads = append(r.heads[:0], make([]*Waiter, len(classes))...)
	defer clear(r.heads)
	if w := r.round(classes, func(i int) *Waiter {
		r.heads[i] = classes[i].first(canRun)
		return r.heads[i]
	}); w != nil {
		return w
	}
	// Every class with a waiter that can run has earned once and still cannot pay. The numbers
	// tell which class can pay first: skip to that round.
	rounds, found := uint64(0), false
	for i, head := range r.heads {
		if head == nil {
			continue
		}
		needed := divCeil(head.cost()-classes[i].deficit, classes[i].class.Quantum)
		if !found || needed < rounds {
			rounds, found = needed, true
		}
	}
	if !found {
		return nil
	}
	for i, head := range r.heads {
		if head != nil {
			classes[i].earn(rounds - 1)
		}
	}
	return r.round(classes, func(i int) *Waiter { return r.heads[i] })
}

// round gives each class one turn, and ends at the first that can pay: it is
// charged and keeps its turn.
func (r *robin) round(classes []*backlog, head func(int) *Waiter) *Waiter {
	for range classes {
		b := classes[r.turn]
		if w := head(r.turn); w != nil {
			if b.deficit < w.cost() && !r.earned {
				b.earn(1)
				r.earned = true
			}
			if b.deficit >= w.cost() {
				b.deficit -= w.cost()
				return w
			}
		}
		r.turn, r.earned = (r.turn+1)%len(classes), false
	}
	return nil
}

// earn adds the quanta of some rounds to the deficit.
func (b *backlog) earn(rounds uint64) {
	// Rounds are only as many as a waiter needs to pay, so this is at most a
	// quantum above its cost, but both come from outside.
	b.deficit = addSaturating(b.deficit, mulSaturating(b.class.Quantum, rounds))
}

// divCeil is a/b rounded up; b > 0.
func divCeil(a, b uint64) uint64 {
	n := a / b
	if a%b != 0 {
		n++
	}
	return n
}
