package service

import (
	"context"
	"slices"

	"github.com/select-service/select-service/internal/affinity"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/scopes"
	"github.com/select-service/select-service/pkg/catalog"
)

// Sessions (dynamo-kv-router 1.6.1, its hard mode): the first booking of a session
// binds it to a rank, which gets the further ones. A selection without booking
// only follows the binding. A rank that is gone, or whose worker is overloaded, is
// chosen anew; but a request whose own filter excludes it is refused, and the
// session forgets it.

// session returns the request's session, "" if it is of no account: a pinned
// request names its rank itself.
func (c *selection) session() string {
	if c.service.sessions == nil || c.request.Pinned != nil {
		return ""
	}
	return c.request.Session
}

func (c *selection) sessionKey() affinity.Key {
	return affinity.Key{Scope: c.request.Scope, Session: c.request.Session}
}

// checkSession refuses names that are too long. A booking also ends a binding to a
// rank that is away, even if the request is then refused for something else.
func (c *selection) checkSession(ctx context.Context) error {
	name := c.session()
	if len(name) > affinity.MaxSession {
		return contract.Errorf(contract.BadRequest, "session affinity ID must not exceed %d bytes", affinity.MaxSession)
	}
	if name == "" || !c.reserve {
		return nil
	}
	if c.hold == nil && !c.away(c.service.sessions.Lookup(c.sessionKey())) {
		return nil
	}
	if err := c.holdSession(ctx); err != nil {
		return err
	}
	if c.away(c.hold.Rank()) {
		c.hold.Drop()
	}
	return nil
}

// away tells whether a session is bound to a rank that is not schedulable.
func (c *selection) away(bound catalog.Rank, ok bool) bool {
	return ok && c.service.isAway(bound, c.snap)
}

// isAway tells whether a rank is not schedulable. A session may be bound to a rank
// that came after the snapshot: then the catalog has it.
func (s *Service) isAway(r catalog.Rank, snap *catalog.Snapshot) bool {
	if _, there := snap.Entry(r); there {
		return false
	}
	now := s.catalog.Snapshot(snap.Scope)
	if now == nil {
		return true
	}
	_, there := now.Entry(r)
	return !there
}

// errSessionMoved is scopes.ErrStale for a request that waited while its session was
// bound, or whose session was bound by one that knew newer workers.
var errSessionMoved = &contract.Error{Kind: contract.Unavailable, Text: "workers changed while the session was bound", Err: scopes.ErrStale}

// holdSession takes the use of the session that the booking will have. It waits
// while another first request of the session is being placed. Workers, load and
// limits may be others after that, and the booking be there that the request
// repeats: it is looked at anew.
func (c *selection) holdSession(ctx context.Context) (err error) {
	if !c.reserve || c.hold != nil || c.session() == "" {
		return nil
	}
	if c.hold, err = c.service.sessions.Acquire(ctx, c.sessionKey()); err != nil {
		return clientGone(err)
	}
	if c.hold.Waited() {
		return errSessionMoved
	}
	return nil
}

// maxMoves bounds how often a session that moves meanwhile is followed.
const maxMoves = 4

// steer narrows the ranks to the one that the session is bound to. It is called
// under the ledger's lock. excluded is that rank if the request's filter excludes
// it: then nothing may be booked.
func (c *selection) steer(ranks []catalog.Entry) (narrowed []catalog.Entry, excluded *catalog.Rank, err error) {
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
		_, there := c.snap.Entry(bound)
		switch {
		case there && indexRank(c.eligible, bound) < 0:
			return ranks, &bound, nil
		case !there && !c.away(bound, true):
			return nil, nil, errSessionMoved
		}
		c.hold.Drop()
	}
	return ranks, nil, nil
}

// bound is the rank that the session is bound to.
func (c *selection) bound() (catalog.Rank, bool) {
	if c.reserve {
		return c.hold.Rank()
	}
	return c.service.sessions.Lookup(c.sessionKey())
}

func indexRank(ranks []catalog.Entry, r catalog.Rank) int {
	i, ok := slices.BinarySearchFunc(ranks, r, func(e catalog.Entry, r catalog.Rank) int { return e.Compare(r) })
	if !ok {
		return -1
	}
	return i
}

// otherRank refuses a booking on another rank than the session's.
func otherRank(session string, bound, chosen catalog.Rank) *contract.Error {
	if bound.Worker != chosen.Worker {
		return contract.Errorf(contract.BadRequest, "session %s is bound to worker %d, not %d", session, bound.Worker, chosen.Worker)
	}
	return contract.Errorf(contract.BadRequest, "session %s is bound to DP rank %d, not %d", session, bound.DP, chosen.DP)
}

// joinSession takes the use of a session for a booking on a rank that was chosen
// before. It never waits: who is choosing for the session meanwhile comes second.
// It fails if the session is bound to another rank of the scope, and forgets that.
func (s *Service) joinSession(k affinity.Key, r catalog.Rank, snap *catalog.Snapshot) (*affinity.Hold, error) {
	if s.sessions == nil || k.Session == "" {
		return nil, nil
	}
	hold := s.sessions.Join(k, r)
	for range maxMoves {
		bound, ok := hold.Rank()
		if !ok || bound == r {
			break
		}
		hold.Drop()
		if !s.isAway(bound, snap) {
			hold.Release()
			return nil, otherRank(k.Session, bound, r)
		}
	}
	return hold, nil
}
