package selection

import (
	"context"
	"math"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/affinity"
	"github.com/select-service/select-service/internal/selection/waitqueue"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/reservations"
)

var _ waitqueue.Delayable = (*turn)(nil)

// SelectDuring is Select, stopped between its look at the workers and its choice:
// there change runs. stale is what became of the selection on what it had looked
// at; the answer and err are those of the next attempt.
func (a *API) SelectDuring(ctx context.Context, req *SelectRequest, reserve bool, change func()) (stale error, answer Selection, err error) {
	c := a.newAttempt(req, reserve)
	defer c.end()
	if err := c.admit(ctx); err != nil {
		return nil, Selection{}, err
	}
	if err := c.lookUp(); err != nil {
		return nil, Selection{}, err
	}
	change()
	stale = c.bookInTurn(ctx)
	err = c.serve(ctx)
	return stale, c.result, err
}

// CheckOverloadLate lets the selections of a scope be tested for overload under
// the ledger's lock only, or early, too, as without wait queue. Late, the scope
// gets a queue in which nothing ever waits. It must not be called while selections
// run.
func (a *API) CheckOverloadLate(sc catalog.Scope, late bool) {
	state := a.scopes.Of(sc)
	if state == nil {
		return
	}
	var policy *admission.Policy
	if late {
		policy = admission.Config{Threshold: new(math.MaxFloat64)}.ForModel(sc.Model)
	}
	state.Rules().Queue = waitqueue.New(waitqueue.Config{}, policy)
}

// Choice is what a selection has chosen, and by what.
type Choice struct {
	Rank   catalog.Rank
	ByLoad bool // most ranks were not looked at
	Costs  map[catalog.Rank]float64
	// Spread and Most are what is counted of the choice.
	Spread float64
	Most   uint64
}

// Choose chooses without booking. With all, every rank is looked at.
func (a *API) Choose(req *SelectRequest, all bool) (x Choice, err error) {
	of := *req
	of.ExplainOnly = all
	attempt := a.newAttempt(&of, false)
	defer attempt.end()
	c := &attempt.choice
	c.sampled.asked = true // it is not kept
	if err := attempt.serve(context.Background()); err != nil {
		return x, err
	}
	x.Rank, x.ByLoad, x.Most = c.chosen.Rank, c.byLoad.used, c.mostCached()
	low, high := c.costs[0], c.costs[0]
	for _, cost := range c.costs {
		low, high = min(low, cost), max(high, cost)
	}
	x.Spread = high - low
	if all {
		x.Costs = make(map[catalog.Rank]float64)
		for i, e := range c.scored {
			x.Costs[e.Rank] = c.costs[i]
		}
	}
	return x, nil
}

// Space returns the index of a scope, to be written without engines.
func (a *API) Space(sc catalog.Scope) *indexer.Space { return a.scopes.Of(sc).Space }

// RanksOf returns the ranks of a scope with their slots.
func (a *API) RanksOf(sc catalog.Scope) []catalog.Entry { return a.catalog.Snapshot(sc).Ranks() }

// SetEngineLoads sets what engines say of their load.
func (a *API) SetEngineLoads(sc catalog.Scope, loads []reservations.RankEngineLoad) {
	a.ledger.SetEngineLoads(sc, loads)
}

// GroupName returns the name of the group of the sessions that a session without a tenant has started.
func GroupName(parent string) string { return groupKey(affinity.Key{Session: parent}).Session }

// BindSession binds a session, as its first request does.
func (a *API) BindSession(sc catalog.Scope, session string, r catalog.Rank) {
	claim, _ := a.sessions.Claim(affinity.Key{Scope: sc, Session: session})
	claim.Bind(r)
	claim.Release()
}

// SettleSession gives a session a home.
func (a *API) SettleSession(sc catalog.Scope, session string, r catalog.Rank) {
	a.sessions.Settle(affinity.Key{Scope: sc, Session: session}, r, affinity.Turn{})
}

// FetchCharge returns the seconds of the fetches from a rank that go on.
func (a *API) FetchCharge(sc catalog.Scope, r catalog.Rank) float64 {
	a.fetches.mu.Lock()
	defer a.fetches.mu.Unlock()
	return a.fetches.ranks[sc][r].from
}

// Transfers returns how many transfers of pairs were learned from.
func (a *API) Transfers() (n int) {
	a.transfers.mu.Lock()
	defer a.transfers.mu.Unlock()
	for _, x := range a.transfers.byLink {
		n += x.samples
	}
	return n
}
