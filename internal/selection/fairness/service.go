package fairness

import (
	"strings"
	"sync"

	"github.com/select-service/select-service/pkg/catalog"
)

// By says between whom the requests of a class are fair.
type By uint8

// The levels of fairness.
const (
	None    By = iota // requests go in the order of their class
	Tenant            // tenants take turns
	Program           // tenants take turns, and the programs of each tenant do
)

// Rules are the fairness of a class. They do not change.
type Rules struct {
	By       By
	HalfLife float64            // seconds after which half of what was served is forgotten, above 0
	HeadWait float64            // weight of the wait for a turn against what was served, above 0 and below 1
	Weights  map[string]float64 // share of a tenant relative to others, above 0; 1 for those that are not named
}

// The defaults of Rules, which are llm-d's.
const (
	DefaultHalfLife = 60
	DefaultHeadWait = 0.2
)

// MaxAccounts bounds the tenants and programs that are told apart in one class of a scope. Beyond them a program counts as
// its tenant, and a tenant as the one without a name. Programs leave an eighth to tenants, so that no tenant keeps others from
// being told apart by the programs that it makes up.
const MaxAccounts = 1 << 16

const (
	// forgetAfter is the number of half-lives after which an account without requests is forgotten: then it has less than
	// a sixty-thousandth of what it was served.
	forgetAfter = 16
	// maxSeconds bounds what is observed of one request: a clock may have jumped.
	maxSeconds = 3600
	// mostServed bounds what an account was served, so that sums stay finite.
	mostServed = 1e9
)

// Account has what a tenant or a program was served.
type Account struct {
	name     string
	tenant   *Account // of a program; nil for a tenant
	weight   float64
	programs map[string]*Account
	served   float64 // seconds, as of at, those of other replicas included
	at       float64
	own      float64 // the part of served that this process has served, as of ownAt
	ownAt    float64
	others   []elsewhere // the parts of other processes
	tell     int         // how often own is still to be told
	seen     float64     // when it last had a request
	running  int         // requests that are charged, and have not ended
	outcomes [NumOutcomes]uint64
}

// Tenant returns the account of a program's tenant, or a itself.
func (a *Account) Tenant() *Account {
	if a.tenant != nil {
		return a.tenant
	}
	return a
}

// Outcome is what has come of what a request wanted of its times.
type Outcome uint8

// The outcomes.
const (
	Attained    Outcome = iota // it came in time
	Missed                     // it came later, or had not come in time when the request ended
	Refused                    // the request was refused, because it was predicted to come later
	NumOutcomes = int(iota)
)

// String returns the outcome's name.
func (o Outcome) String() string { return [NumOutcomes]string{"attained", "missed", "refused"}[o] }

// Class has the accounts of a class of requests.
type Class struct {
	service  *Service
	rules    Rules
	tenants  map[string]*Account
	accounts int
	swept    float64 // when idle accounts were last looked for
	shared   bool
	changed  []*Account // that are to be told, if shared
}

// Service has what the requests of a scope were served. All methods are safe for concurrent use.
type Service struct {
	mu      sync.Mutex
	engines map[catalog.Rank]*engine
	sweep   int     // size of engines from which on idle ones are looked for
	bytes   int64   // of the accounts of all classes, approximately
	memory  *Memory // nil: there is no bound
	decode  float64 // mean of the observed decodes, in seconds: what a new one is predicted to take
}

// NewService returns the service of a scope, in which nothing was served.
func NewService() *Service { return &Service{engines: make(map[catalog.Rank]*engine)} }

// NewClass returns the accounts of another class of the scope's requests.
func (s *Service) NewClass(rules Rules) *Class {
	return &Class{service: s, rules: rules, tenants: make(map[string]*Account)}
}

// Rules returns the rules of the class.
func (c *Class) Rules() Rules { return c.rules }

// Account returns the account that pays for a request: that of the program with Program, else that of the tenant. A
// program "" is the tenant's own. The names are copied.
func (c *Class) Account(tenant, program string, now float64) *Account {
	c.service.mu.Lock()
	defer c.service.mu.Unlock()
	switch c.rules.By {
	case None:
		tenant, program = "", ""
	case Tenant:
		program = ""
	}
	if c.full(roomOfPrograms) {
		c.forget(now)
	}
	t := c.open(c.tenants, tenant, roomOfTenants, now)
	if t == nil {
		if t = c.tenants[""]; t == nil { // it is one more than the bound
			t = c.add(c.tenants, "", now)
		}
	}
	if c.rules.By != Program {
		return t
	}
	if t.programs == nil {
		t.programs = make(map[string]*Account)
	}
	p := c.open(t.programs, program, roomOfPrograms, now)
	if p == nil {
		if p = t.programs[""]; p == nil { // at most one more for each tenant
			p = c.add(t.programs, "", now)
		}
	}
	p.tenant = t
	return p
}

// open returns an account of a map. It makes one if that has room in this part of all room, else it is nil.
func (c *Class) open(in map[string]*Account, name string, room, now float64) *Account {
	a := in[name]
	if a == nil {
		if c.full(room) {
			return nil
		}
		a = c.add(in, name, now)
	}
	a.seen = now
	return a
}

func (c *Class) add(in map[string]*Account, name string, now float64) *Account {
	a := &Account{name: strings.Clone(name), weight: 1, at: now, seen: now}
	if w, given := c.rules.Weights[name]; given {
		a.weight = w
	}
	in[a.name] = a
	c.account(a, 1)
	return a
}

// The parts of all room that accounts of tenants and of programs may fill.
const (
	roomOfTenants  = 1.0
	roomOfPrograms = 7.0 / 8
)

// full reports whether there is no room for another account in a part of all room.
func (c *Class) full(room float64) bool {
	return float64(c.accounts) >= room*MaxAccounts || c.service.memory.full(room)
}

// forget drops the accounts that are idle. It looks for them at most once a second.
func (c *Class) forget(now float64) {
	if now >= c.swept && now-c.swept < 1 {
		return
	}
	c.swept = now
	idle := func(a *Account) bool {
		a.seen = min(a.seen, now) // the clock may have jumped back
		return a.running == 0 && len(a.programs) == 0 && now-a.seen > forgetAfter*c.rules.HalfLife
	}
	for _, t := range c.tenants {
		for _, p := range t.programs {
			if idle(p) {
				delete(t.programs, p.name)
				c.account(p, -1)
			}
		}
		if idle(t) {
			delete(c.tenants, t.name)
			c.account(t, -1)
		}
	}
}

// Accounts returns how many tenants and programs are told apart.
func (c *Class) Accounts() int {
	c.service.mu.Lock()
	defer c.service.mu.Unlock()
	return c.accounts
}

// patience is for how many seconds an account waits for its turn before its wait counts. Those with a small share, or with long
// requests, have to wait longer for their turns than others. If that counted, they would get more than their share.
const patience = 60

// Key orders the accounts that wait for a turn: the least goes first. since is when the account's turn began to be due.
// The account counts as used at that time, so that it is not forgotten while it waits.
func (c *Class) Key(a *Account, since, now float64) float64 {
	c.service.mu.Lock()
	defer c.service.mu.Unlock()
	a.seen = max(a.seen, now)
	h := c.rules.HeadWait
	weight := 1.0
	if a.tenant == nil {
		weight = a.weight
	}
	return (1-h)*a.value(now, c.rules.HalfLife)/weight - h*max(0, now-since-patience)
}

// Served returns how many engine seconds an account was served, those of the past discounted by their age.
func (c *Class) Served(a *Account, now float64) float64 {
	c.service.mu.Lock()
	defer c.service.mu.Unlock()
	return a.value(now, c.rules.HalfLife)
}

// run counts requests of an account, and of its tenant, that begin (1) or end (-1).
func (a *Account) run(change int) {
	for ; a != nil; a = a.tenant {
		a.running += change
	}
}

func (a *Account) value(now, halfLife float64) float64 {
	return a.served * left(a.at, now, halfLife)
}

// add adds seconds, which may be negative, to what the account was served.
func (a *Account) add(seconds, now, halfLife float64) {
	a.served = min(max(0, a.value(now, halfLife)+seconds), mostServed)
	a.at = now
}

// charge adds seconds, which may be negative, to what an account and its tenant were served by this process.
func (c *Class) charge(a *Account, seconds, now float64) {
	for ; a != nil; a = a.tenant {
		a.add(seconds, now, c.rules.HalfLife)
		a.own, a.ownAt = min(max(0, a.own*c.decay(a.ownAt, now)+seconds), mostServed), now
		c.noteChange(a)
	}
}

// Charge is one request of which the engine seconds are counted. A nil Charge counts nothing.
type Charge struct {
	class            *Class
	account          *Account
	engine           *engine
	work             Work
	prefill, decode  float64 // what was charged so far
	part             float64 // what engine.look returned
	booked           float64 // when its prefill could begin
	share, prefilled float64 // those of engine when the decode began
	state            chargeState
}

type chargeState uint8

const (
	reserved chargeState = iota // it has not come, and may never
	charged                     // its prefill runs or waits
	decoding
	over
)

// Begin charges a request that is placed on a rank, for the work that it is predicted to be there.
func (c *Class) Begin(a *Account, r catalog.Rank, w Work, now float64) *Charge {
	c.service.mu.Lock()
	defer c.service.mu.Unlock()
	x := c.reserve(a, r, w, now)
	x.begin(now)
	return x
}

// Reserve charges a request that a rank is kept for: it may come, see Charge.Arrived, and the rank does nothing for it until then. If
// it does not, the prediction stays, since the rank was kept.
func (c *Class) Reserve(a *Account, r catalog.Rank, w Work, now float64) *Charge {
	c.service.mu.Lock()
	defer c.service.mu.Unlock()
	return c.reserve(a, r, w, now)
}

func (c *Class) reserve(a *Account, r catalog.Rank, w Work, now float64) *Charge {
	s := c.service
	e := s.engine(r, now)
	e.advance(now)
	w = w.bounded()
	x := &Charge{class: c, account: a, engine: e, work: w, prefill: bounded(w.Prefill * e.scale()), decode: s.decode, part: e.look(w)}
	e.own.Tokens, e.own.Requests, e.kept = e.own.Tokens+w.Tokens, e.own.Requests+1, e.kept+w.Tokens
	a.run(1)
	c.charge(a, x.prefill+x.decode, now)
	return x
}

// Arrived notes that the request of Reserve has come. Only the first call counts.
func (c *Charge) Arrived(now float64) {
	c.class.service.mu.Lock()
	defer c.class.service.mu.Unlock()
	if c.state == reserved {
		c.begin(now)
	}
}

// begin notes that the rank works for the request from now on.
func (c *Charge) begin(now float64) {
	e := c.engine
	e.advance(now)
	e.begin(c.work)
	e.kept -= c.work.Tokens
	c.booked, c.state = now, charged
}

// Once charges a request of which nothing will be observed. Its prefill is on the rank.
func (c *Class) Once(a *Account, r catalog.Rank, w Work, now float64) {
	s := c.service
	s.mu.Lock()
	defer s.mu.Unlock()
	prefill := w.bounded().Prefill
	if e := s.engines[r]; e != nil {
		prefill *= e.scale()
	}
	c.charge(a, bounded(prefill)+s.decode, now)
}

// PrefillEnded replaces the predicted prefill by the observed one. Only the first call counts.
func (c *Charge) PrefillEnded(now float64) {
	if c == nil {
		return
	}
	s := c.class.service
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.state != charged {
		return
	}
	e := c.engine
	e.advance(now)
	took := bounded(e.prefillEnded(c.work, c.part, c.booked, now))
	e.own.Tokens -= c.work.Tokens
	c.class.charge(c.account, took-c.prefill, now)
	c.prefill, c.share, c.prefilled, c.state = took, e.share, e.prefilled, decoding
}

// decodeRate is the weight of one decode in their mean.
const decodeRate = 0.1

// End replaces the predicted decode by the observed one. Of a request whose prefill did not end, as far as is known, the
// predictions stay. Only the first call counts.
func (c *Charge) End(now float64) { c.end(now, false) }

// Cancel takes the charge back, because the request was not placed after all.
func (c *Charge) Cancel(now float64) { c.end(now, true) }

func (c *Charge) end(now float64, cancel bool) {
	if c == nil {
		return
	}
	s := c.class.service
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.state == over {
		return
	}
	e := c.engine
	e.advance(now)
	switch c.state {
	case decoding:
		e.answerEnded(c.work)
		took := bounded(e.share - c.share + c.work.Answer*(e.prefilled-c.prefilled))
		c.class.charge(c.account, took-c.decode, now)
		s.decode += decodeRate * (took - s.decode)
	default:
		if e.own.Tokens -= c.work.Tokens; c.state == reserved {
			e.kept -= c.work.Tokens
		} else {
			e.drop(c.work)
		}
		if cancel {
			c.class.charge(c.account, -c.prefill-c.decode, now)
		}
	}
	c.state = over
	e.own.Requests--
	c.account.run(-1)
}

// bounded returns seconds that can be charged.
func bounded(seconds float64) float64 {
	if !(seconds > 0) { // NaN, too
		return 0
	}
	return min(seconds, maxSeconds)
}
