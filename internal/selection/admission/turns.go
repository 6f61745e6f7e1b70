package admission

import "github.com/select-service/select-service/internal/selection/fairness"

// turns are the waiters of one lane of a class. Without fairness they are one heap. With it, they are a heap of tenants,
// of which each has a heap of waiters or, by program, of programs with their waiters. Of equal strict priority, the tenant
// with the least key goes first, then the tenant's program with the least key, then the program's first waiter.
//
// The keys are of one moment, see Queue.rekey: between two moments only those change that have got a turn.
type turns struct {
	waiters heap[*Waiter]
	tenants heap[*share]
	of      map[*fairness.Account]*share
}

// share is a tenant or a program with waiters.
type share struct {
	account  *fairness.Account
	parent   *share // of a program
	programs heap[*share]
	waiters  heap[*Waiter]
	since    float64 // when its turn began to be due: its last turn, or its first waiter if that came later
	key      float64
	place    int
}

func (s *share) first() *Waiter {
	if len(s.programs) > 0 {
		return s.programs[0].first()
	}
	return s.waiters[0]
}

func (s *share) empty() bool { return len(s.programs)+len(s.waiters) == 0 }

func (s *share) before(o *share) bool {
	a, b := s.first(), o.first()
	switch {
	case a.StrictPriority != b.StrictPriority:
		return a.StrictPriority > b.StrictPriority
	case s.key != o.key:
		return s.key < o.key
	}
	return a.before(b)
}

func (s *share) moved(place int) { s.place = place }

// first returns the waiter whose turn is next.
func (t *turns) first() *Waiter {
	if len(t.tenants) > 0 {
		return t.tenants[0].first()
	}
	return t.waiters[0]
}

func (t *turns) empty() bool { return len(t.tenants)+len(t.waiters) == 0 }

// beforeOther reports whether the next waiter of t goes before that of another lane of the class.
func (t *turns) beforeOther(o *turns) bool {
	a, b := t.first(), o.first()
	if len(t.tenants) == 0 || a.StrictPriority != b.StrictPriority {
		return a.before(b)
	}
	for x, y := t.tenants[0], o.tenants[0]; ; x, y = x.programs[0], y.programs[0] {
		if x.key != y.key {
			return x.key < y.key
		}
		if len(x.programs) == 0 {
			return a.before(b)
		}
	}
}

func (t *turns) add(w *Waiter, class *fairness.Class, now float64) {
	if class == nil {
		t.waiters.push(w)
		return
	}
	if t.of == nil {
		t.of = make(map[*fairness.Account]*share)
	}
	open := func(a *fairness.Account, in *heap[*share], parent *share, below func(*share)) *share {
		if s := t.of[a]; s != nil {
			below(s)
			in.fix(s.place)
			return s
		}
		s := &share{account: a, parent: parent, since: now}
		s.key = class.Key(a, s.since, now)
		t.of[a] = s
		below(s)
		in.push(s)
		return s
	}
	push := func(s *share) {
		w.share = s
		s.waiters.push(w)
	}
	if w.account == w.account.Tenant() {
		open(w.account, &t.tenants, nil, push)
		return
	}
	open(w.account.Tenant(), &t.tenants, nil, func(tenant *share) {
		open(w.account, &tenant.programs, tenant, push)
	})
}

func (t *turns) remove(w *Waiter) {
	s := w.share
	if s == nil {
		t.waiters.remove(w.place)
		return
	}
	w.share = nil
	s.waiters.remove(w.place)
	for ; s != nil; s = s.parent {
		if s.empty() {
			t.in(s).remove(s.place)
			delete(t.of, s.account)
		} else {
			t.in(s).fix(s.place)
		}
	}
}

// in returns the heap that a share is in.
func (t *turns) in(s *share) *heap[*share] {
	if s.parent != nil {
		return &s.parent.programs
	}
	return &t.tenants
}

// fix restores the order after the place of a waiter in its line has changed.
func (t *turns) fix(w *Waiter) {
	if w.share == nil {
		t.waiters.fix(w.place)
		return
	}
	w.share.waiters.fix(w.place)
	for s := w.share; s != nil; s = s.parent {
		t.in(s).fix(s.place)
	}
}

// served gives those who have paid for a turn their new places.
func (t *turns) served(a *fairness.Account, class *fairness.Class, epoch, now float64) {
	for _, a := range []*fairness.Account{a, a.Tenant()} {
		if s := t.of[a]; s != nil {
			s.since = now
			s.key = class.Key(a, s.since, epoch)
			t.in(s).fix(s.place)
		}
	}
}

// rekey orders the lane as of a moment.
func (t *turns) rekey(class *fairness.Class, now float64) {
	for _, s := range t.of {
		s.since = min(s.since, now) // the clock may have jumped back
		s.key = class.Key(s.account, s.since, now)
	}
	for _, s := range t.tenants {
		s.programs.order()
	}
	t.tenants.order()
}

// count adds how many requests of each tenant and program wait.
func (t *turns) count(in map[*fairness.Account]int) {
	for a, s := range t.of {
		in[a] += len(s.waiters)
		if s.parent != nil {
			in[s.parent.account] += len(s.waiters)
		}
	}
}

// each calls f for every waiter, in no order, until it returns false.
func (t *turns) each(f func(*Waiter) bool) bool {
	for _, w := range t.waiters {
		if !f(w) {
			return false
		}
	}
	for _, s := range t.of {
		for _, w := range s.waiters {
			if !f(w) {
				return false
			}
		}
	}
	return true
}
