package fairness

// Note counts what has come of a request of an account.
func (c *Class) Note(a *Account, o Outcome) {
	c.service.mu.Lock()
	defer c.service.mu.Unlock()
	for ; a != nil; a = a.tenant {
		a.outcomes[o]++
	}
}

// Named reports whether the rules name a tenant.
func (c *Class) Named(tenant string) bool {
	_, named := c.rules.Weights[tenant]
	return named
}

// Use is what a tenant or a program uses of the engines.
type Use struct {
	Account         *Account
	Tenant, Program string  // Program is "" for a tenant, and for what is its own
	Weight          float64 // of the tenant
	Seconds         float64 // of engines, those of the past discounted by their age
	Share           float64 // of the seconds of all in the class, 0 to 1
	Running         int     // requests that have been placed, and have not ended
	Outcomes        [NumOutcomes]uint64
}

// Uses lists what the tenants use, or the programs of each of them, in no order.
func (c *Class) Uses(programs bool, now float64) (all []Use) {
	c.service.mu.Lock()
	defer c.service.mu.Unlock()
	sum := 0.0
	add := func(a, tenant *Account) {
		u := Use{
			Account: a, Tenant: tenant.name, Weight: tenant.weight, Seconds: a.value(now, c.rules.HalfLife), Running: a.running, Outcomes: a.outcomes,
		}
		if a != tenant {
			u.Program = a.name
		}
		sum += u.Seconds
		all = append(all, u)
	}
	for _, t := range c.tenants {
		if !programs || len(t.programs) == 0 {
			add(t, t)
			continue
		}
		for _, p := range t.programs {
			add(p, t)
		}
	}
	if sum > 0 {
		for i := range all {
			all[i].Share = all[i].Seconds / sum
		}
	}
	return all
}

// Evenness says how evenly those that are active share the engines.
type Evenness struct {
	Tenants, Programs int // active ones, which had a request within the last half-life
	// OfTenants and OfPrograms are Jain's index of what each was served over its fair share: 1 if that is the same for all,
	// 1/n if one of n has everything (Jain, Chiu and Hawe, A Quantitative Measure of Fairness, DEC-TR-301, 1984). The fair
	// share of a tenant is its weight, that of a program is an equal part of its tenant's.
	OfTenants, OfPrograms float64
}

// Evenness compares what tenants, and programs, were served.
func (c *Class) Evenness(now float64) (e Evenness) {
	c.service.mu.Lock()
	defer c.service.mu.Unlock()
	active := func(a *Account) bool { return a.running > 0 || now-a.seen <= c.rules.HalfLife }
	var tenants, programs jain
	for _, t := range c.tenants {
		if active(t) {
			tenants.add(t.value(now, c.rules.HalfLife) / t.weight)
		}
		n := 0
		for _, p := range t.programs {
			if active(p) {
				n++
			}
		}
		for _, p := range t.programs {
			if active(p) {
				programs.add(p.value(now, c.rules.HalfLife) * float64(n) / t.weight)
			}
		}
	}
	return Evenness{tenants.n, programs.n, tenants.index(), programs.index()}
}

// jain sums up values for Jain's index.
type jain struct {
	n            int
	sum, squares float64
}

func (j *jain) add(x float64) {
	j.n++
	j.sum += x
	j.squares += x * x
}

// index is 1 if there is nothing to share.
func (j *jain) index() float64 {
	if j.squares == 0 {
		return 1
	}
	return min(1, j.sum*j.sum/(float64(j.n)*j.squares)) // rounding may make it a little more
}
