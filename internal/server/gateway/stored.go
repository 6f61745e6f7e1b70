package gateway

import (
	"context"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
)

// Engines keep responses, files and batches, and only the engine that has one can answer for it. Its id is
// learnt from the answer that shows it. A request that names the id goes to that engine, which binds it more
// than a session would. If that engine is gone, or the request may not go there, it is placed as without the id.
// A request about such things that names no known id goes where its session is.

// bindTo restricts a request to the rank that has what it refers to in its target's scope, if that is known and
// can take it.
func (r *request) bindTo(ctx context.Context, id string) bool {
	if id == "" {
		return false
	}
	rank, ok := r.api.Owner(r.target.scope, r.head.tenant(), id)
	return ok && r.restrict(ctx, rank)
}

// restrict restricts a request to a rank, if that can take it. One that is draining takes what is about
// things that it has, but no new work.
func (r *request) restrict(ctx context.Context, rank catalog.Rank) bool {
	e, ok := r.pool.snapshot.Bookable(rank)
	if !ok || r.body.Model != "" && !r.pool.snapshot.IsCandidate(e) {
		return false
	}
	if r.head.Subset.given {
		_, _ = r.endpoints.of(ctx, e.Worker, e.DP)
	}
	if may := r.filter(false).eligible(r.pool.snapshot); may != nil && !may(e) {
		return false
	}
	r.only = &rank
	return true
}

// steer returns the target that has what a request of another route is about, or all targets if that is not
// known.
func (r *request) steer(ctx context.Context, targets []target) []target {
	for _, bind := range []func() bool{
		func() bool { return r.bindTo(ctx, r.head.stored.ID) },
		func() bool { return r.bindTo(ctx, r.body.Refers) },
		func() bool {
			if r.config.SessionMode == selection.LooseSessions {
				return false
			}
			rank, ok := r.api.SessionRank(r.target.scope, r.sessionTenant(), r.head.session.ID)
			return ok && r.restrict(ctx, rank)
		},
	} {
		for _, t := range targets {
			if r.target, r.pool = t, r.models.pool(t.scope); r.pool != nil && bind() {
				return []target{t}
			}
		}
	}
	return targets
}

// keeper is the rank that answers an exchange about stored things.
type keeper struct {
	scope  catalog.Scope
	rank   catalog.Rank
	at     string // its endpoint, ip:port
	known  bool
	tenant string
}

// keep notes what the answer shows of ids.
func (e *Exchange) keep() {
	for _, id := range e.response.TakeIDs() {
		if e.keeper.known {
			e.gateway.picker.api.Own(e.keeper.scope, e.keeper.tenant, id, e.keeper.rank)
		}
	}
}

// keptAt notes which endpoint answers.
func (e *Exchange) keptAt(at string) {
	if k := &e.keeper; k.known && k.at != at {
		k.rank, k.known = e.gateway.rankAt(k.scope, at)
		k.at = at
	}
}
