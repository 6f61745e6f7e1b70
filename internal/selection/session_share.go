package selection

import (
	"hash/fnv"

	"github.com/select-service/select-service/internal/selection/affinity"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/pkg/reservations"
)

// sharedSessions connects the tables of sessions and of owners with the replicas: it publishes changes
// made here and applies those of peers.
type sharedSessions struct {
	*sessions
	owners  *affinity.Table // nil: there are none
	replica *replicasync.Replica
}

// table returns the table that has a name, nil if it is not kept here.
func (s *sharedSessions) table(name string) *affinity.Table {
	if isOwner(name) {
		return s.owners
	}
	return s.Table
}

var (
	_ affinity.Publisher   = (*sharedSessions)(nil)
	_ replicasync.Sessions = (*sharedSessions)(nil)
)

// SessionBound is part of affinity.Publisher.
func (s *sharedSessions) SessionBound(b affinity.Binding) { s.replica.SessionBound(new(toSession(&b))) }

// SessionUnbound is part of affinity.Publisher.
func (s *sharedSessions) SessionUnbound(b affinity.Binding) {
	s.replica.SessionUnbound(new(toSession(&b)))
}

// ApplyBound is part of replicasync.Sessions. It refuses a binding to a rank that is not
// registered here: the next request would drop it.
func (s *sharedSessions) ApplyBound(peer string, received replicasync.Session) reservations.ApplyResult {
	table := s.table(received.ID)
	if table == nil {
		return reservations.Known
	}
	snap := s.catalog.Snapshot(received.Scope)
	if snap == nil {
		return reservations.UnknownScope
	}
	if received.AnyDP {
		ranks := snap.RanksOf(received.Rank.Worker)
		if len(ranks) == 0 {
			return reservations.UnknownRank
		}
		received.Rank = ranks[pickDP(received.ID, len(ranks))].Rank
	}
	if _, ok := snap.KnownEntry(received.Rank); !ok {
		return reservations.UnknownRank
	}
	return resultOf(table.Apply(peer, toBinding(snap, &received)))
}

// ApplyUnbound is part of replicasync.Sessions.
func (s *sharedSessions) ApplyUnbound(_ string, received replicasync.Session) reservations.ApplyResult {
	table := s.table(received.ID)
	if table == nil {
		return reservations.Known
	}
	snap := s.catalog.Snapshot(received.Scope)
	if snap == nil {
		return reservations.UnknownScope
	}
	return resultOf(table.ApplyUnbound(toBinding(snap, &received)))
}

// ownersFrom marks the cursors of pages of owners, which come after those of the sessions.
const ownersFrom = 1 << 63

// SessionsAfter is part of replicasync.Sessions.
func (s *sharedSessions) SessionsAfter(cursor uint64, limit int) (page []replicasync.Session, next uint64, more bool) {
	of, base := s.Table, uint64(0)
	if cursor >= ownersFrom || of == nil {
		of, base, cursor = s.owners, ownersFrom, cursor&^ownersFrom
	}
	if of == nil {
		return nil, 0, false
	}
	bindings, next, more := of.Bindings(cursor, limit)
	page = make([]replicasync.Session, len(bindings))
	for i := range bindings {
		page[i] = toSession(&bindings[i])
	}
	if !more && base == 0 && s.owners != nil {
		return page, ownersFrom, true
	}
	return page, base + next, more
}

// pickDP picks one of a worker's n ranks for a session that is bound to the worker as a whole.
// All replicas pick the same.
func pickDP(session string, n int) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(session))
	return int(h.Sum64() % uint64(n))
}

func toSession(b *affinity.Binding) replicasync.Session {
	return replicasync.Session{
		Scope: b.Scope, ID: b.Session, Rank: b.Rank, Sequence: b.Sequence, Writer: b.Writer, Idle: b.Idle, Home: b.Home,
	}
}

// toBinding returns a peer's session as a binding. It has the snapshot's strings for the scope,
// which all sessions share.
func toBinding(snap *catalog.Snapshot, s *replicasync.Session) affinity.Binding {
	return affinity.Binding{
		Key: affinity.Key{Scope: snap.Scope, Session: s.ID}, Rank: s.Rank,
		Version: affinity.Version{Sequence: s.Sequence, Writer: s.Writer}, Idle: s.Idle, Home: s.Home,
	}
}

func resultOf(r affinity.Result) reservations.ApplyResult {
	switch r {
	case affinity.Applied:
		return reservations.Applied
	case affinity.Full:
		return reservations.Full
	}
	return reservations.Known
}
