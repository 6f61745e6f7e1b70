package fairness

import (
	"math"
	"slices"
)

// Replicas tell each other what they have served to each account, all in all and discounted by its age: see package replicasync.

const (
	// tellings is how often a change is told, so that two messages in a row may be lost. A value is that of its telling.
	tellings = 3
	// maxReplicas bounds the processes whose shares are kept of one account. Beyond it the least of them is forgotten.
	maxReplicas = 64
	// negligible seconds are forgotten.
	negligible = 1e-3
)

// elsewhere is what another process has served to an account.
type elsewhere struct {
	process, version uint64
	seconds, at      float64
}

// State is what this process has served to an account.
type State struct {
	Tenant, Program string
	OfProgram       bool    // of the program alone, else of the tenant as a whole
	Seconds         float64 // those of the past discounted by their age
}

// Share makes the class note which accounts change, for Changed.
func (c *Class) Share() {
	c.service.mu.Lock()
	defer c.service.mu.Unlock()
	c.shared = true
}

// noteChange notes that a has changed.
func (c *Class) noteChange(a *Account) {
	if !c.shared {
		return
	}
	if a.tell == 0 {
		c.changed = append(c.changed, a)
	}
	a.tell = tellings
}

// Changed returns up to limit of the accounts that have changed since they were told, those that have waited longest first.
func (c *Class) Changed(limit int, now float64) (all []State) {
	c.service.mu.Lock()
	defer c.service.mu.Unlock()
	n := min(limit, len(c.changed))
	rest := c.changed[n:]
	for _, a := range c.changed[:n] {
		s := State{Tenant: a.name, Seconds: a.own * c.decay(a.ownAt, now)}
		if a.tenant != nil {
			s.Tenant, s.Program, s.OfProgram = a.tenant.name, a.name, true
		}
		all = append(all, s)
		if a.tell--; a.tell > 0 {
			rest = append(rest, a)
		}
	}
	c.changed = slices.Clone(rest) // a part of the former memory would grow without end
	return all
}

// ServedElsewhere replaces what another process has served to an account, unless a later version is known. A new account is
// opened if there is room.
func (c *Class) ServedElsewhere(process, version uint64, s *State, now float64) {
	c.service.mu.Lock()
	defer c.service.mu.Unlock()
	if s.OfProgram && c.rules.By != Program || math.IsNaN(s.Seconds) {
		return
	}
	if c.full(roomOfPrograms) {
		c.forget(now)
	}
	a := c.open(c.tenants, s.Tenant, roomOfTenants, now)
	if a != nil && s.OfProgram {
		tenant := a
		if tenant.programs == nil {
			tenant.programs = make(map[string]*Account)
		}
		if a = c.open(tenant.programs, s.Program, roomOfPrograms, now); a != nil {
			a.tenant = tenant
		}
	}
	if a == nil {
		return
	}
	i := slices.IndexFunc(a.others, func(e elsewhere) bool { return e.process == process })
	if i >= 0 && version <= a.others[i].version {
		return
	}
	before := 0.0
	if i >= 0 {
		before = a.others[i].seconds * c.decay(a.others[i].at, now)
	} else {
		i = c.otherOf(a, now)
	}
	seconds := min(max(0, s.Seconds), mostServed)
	a.others[i] = elsewhere{process, version, seconds, now}
	a.add(seconds-before, now, c.rules.HalfLife)
}

// otherOf returns a place for another process.
func (c *Class) otherOf(a *Account, now float64) int {
	was := len(a.others)
	defer func() { c.count(otherBytes * int64(len(a.others)-was)) }()
	a.others = slices.DeleteFunc(a.others, func(e elsewhere) bool { return e.seconds*c.decay(e.at, now) < negligible })
	if len(a.others) < maxReplicas {
		a.others = append(a.others, elsewhere{})
		return len(a.others) - 1
	}
	least := 0
	for i := range a.others {
		if a.others[i].seconds < a.others[least].seconds {
			least = i
		}
	}
	a.add(-a.others[least].seconds*c.decay(a.others[least].at, now), now, c.rules.HalfLife)
	return least
}

// decay is what is left now of a second that was served at a time.
func (c *Class) decay(at, now float64) float64 { return left(at, now, c.rules.HalfLife) }

func left(at, now, halfLife float64) float64 { return math.Exp2(min(1, (at-now)/halfLife)) }
