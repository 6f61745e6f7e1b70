package selection

import (
	"context"
	"errors"
	"slices"

	"github.com/select-service/select-service/internal/selection/affinity"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
)

// Sessions (dynamo-kv-router 1.6.1, hard mode): the first reservation of a session binds it
// to a rank, which gets the session's further reservations. A selection without a reservation
// only follows the binding. If the rank is gone or its worker is overloaded, another rank is
// chosen and bound. If the request's own filter excludes the rank, the request is refused and
// the binding ends; with SoftSession the request is instead served as one without a session,
// and the binding stays.

// sessions has the bindings of all sessions.
type sessions struct {
	*affinity.Table // nil: sessions are off
	catalog         *catalog.Catalog
}

// session returns the request's session, "" if it has no effect: a request with a pinned
// worker or an affinity target names its rank itself.
func (c *selection) session() string {
	if c.api.sessions.Table == nil || c.request.Pinned != nil || c.request.Target != nil {
		return ""
	}
	return c.request.Session
}

// sessionKey returns the session's key. It has the snapshot's strings for the scope, since the
// request's own would be kept once per session.
func (c *selection) sessionKey() affinity.Key {
	return affinity.Key{Scope: c.snapshot.Scope, Session: c.request.Session}
}

// checkSession refuses names that are too long. For a reservation it also ends a binding to a
// rank that is not schedulable, even if the request is refused later.
func (c *selection) checkSession(ctx context.Context) error {
	name := c.session()
	if len(name) > affinity.MaxSession {
		return contract.Errorf(contract.BadRequest, "session affinity ID must not exceed %d bytes", affinity.MaxSession)
	}
	if name == "" || !c.reserve {
		return nil
	}
	if c.hold == nil && !c.unschedulable(c.api.sessions.Lookup(c.sessionKey())) {
		return nil
	}
	if err := c.acquireSession(ctx); err != nil {
		return err
	}
	if c.unschedulable(c.hold.Rank()) {
		c.hold.Drop()
	}
	return nil
}

// unschedulable reports whether a session is bound (ok) to a rank that is not schedulable.
func (c *selection) unschedulable(bound catalog.Rank, ok bool) bool {
	return ok && c.api.sessions.isUnschedulable(bound, c.snapshot)
}

// isUnschedulable reports whether a rank is not schedulable. A session may be bound to a rank
// newer than the snapshot, so it checks the catalog too.
func (s *sessions) isUnschedulable(r catalog.Rank, snap *catalog.Snapshot) bool {
	if _, found := snap.Entry(r); found {
		return false
	}
	now := s.catalog.Snapshot(snap.Scope)
	if now == nil {
		return true
	}
	_, found := now.Entry(r)
	return !found
}

// errSessionMoved is scopes.ErrStale for a request that waited while its session was being
// bound, or whose session is bound to a worker newer than its snapshot.
var errSessionMoved = &contract.Error{Kind: contract.Unavailable, Text: "workers changed while the session was bound", Err: scopes.ErrStale}

// acquireSession acquires the session for the reservation, see sessions.acquire.
func (c *selection) acquireSession(ctx context.Context) (err error) {
	if !c.reserve || c.hold != nil || c.session() == "" {
		return nil
	}
	c.hold, err = c.api.sessions.acquire(ctx, c.sessionKey(), func() error {
		if err := c.readPrompt(c.snapshot); err != nil {
			return err
		}
		return c.keepHashes(c.request.PolicyClass)
	})
	return err
}

// acquire acquires a session for a reservation. It waits while another first request of the
// session is being served; beforeWait is called before that, and may refuse it. Afterwards
// workers, load and limits may have changed, and a reservation that the request repeats may
// exist, so the error is errSessionMoved, beside the hold, and the request runs again.
func (s *sessions) acquire(ctx context.Context, k affinity.Key, beforeWait func() error) (*affinity.Hold, error) {
	hold, err := s.Acquire(ctx, k, beforeWait)
	switch {
	case err == nil && hold.Waited():
		return hold, errSessionMoved
	case err != nil && errors.Is(err, ctx.Err()):
		return nil, errClientGone(err)
	}
	return hold, err
}

// maxMoves bounds how often a binding that changes meanwhile is checked again.
const maxMoves = 4

// applySession narrows the ranks to the one that the session is bound to. It runs under the
// ledger's lock. excluded is the bound rank if the request's filter excludes it: then
// nothing may be booked.
func (c *selection) applySession(ranks []catalog.Entry) (narrowed []catalog.Entry, excluded *catalog.Rank, err error) {
	if c.session() == "" {
		return ranks, nil, nil
	}
	for range maxMoves {
		bound, ok := c.bound()
		if !ok {
			return ranks, nil, nil
		}
		if i := indexRank(ranks, bound); i >= 0 {
			return ranks[i : i+1], nil, nil
		}
		if !c.reserve {
			return ranks, nil, nil
		}
		_, found := c.snapshot.Entry(bound)
		switch excluded := found && indexRank(c.eligible, bound) < 0; {
		case excluded && c.request.SoftSession:
			return ranks, nil, nil
		case excluded:
			return ranks, &bound, nil
		case !found && !c.unschedulable(bound, true):
			return nil, nil, errSessionMoved
		}
		c.hold.Drop()
	}
	return ranks, nil, nil
}

// bound returns the rank that the session is bound to.
func (c *selection) bound() (catalog.Rank, bool) {
	if c.reserve {
		return c.hold.Rank()
	}
	return c.api.sessions.Lookup(c.sessionKey())
}

func indexRank(ranks []catalog.Entry, r catalog.Rank) int {
	i, ok := slices.BinarySearchFunc(ranks, r, func(e catalog.Entry, r catalog.Rank) int { return e.Compare(r) })
	if !ok {
		return -1
	}
	return i
}

// errSessionBound is the error of a reservation on another rank than the session's.
func errSessionBound(session string, bound, chosen catalog.Rank) *contract.Error {
	if bound.Worker != chosen.Worker {
		return contract.Errorf(contract.BadRequest, "session %s is bound to worker %d, not %d", session, bound.Worker, chosen.Worker)
	}
	return contract.Errorf(contract.BadRequest, "session %s is bound to DP rank %d, not %d", session, bound.DP, chosen.DP)
}
