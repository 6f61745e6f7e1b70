package selecting

import (
	"hash/fnv"

	"github.com/select-service/select-service/internal/affinity"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/pkg/reservations"
)

// ShareSessions has the sessions shared with the replicas that replica follows; process
// is its id. It comes before all use. Sessions are on.
func (a *API) ShareSessions(process uint64, replica *replicasync.Replica) {
	shared := &sharedSessions{sessions: &a.sessions, replica: replica}
	a.sessions.Share(process, shared)
	replica.AttachSessions(shared)
}

// sharedSessions are the sessions between the table and the replicas: what one tells the
// other.
type sharedSessions struct {
	*sessions
	replica *replicasync.Replica
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

// ApplyBound is part of replicasync.Sessions. A binding to a rank that is not
// registered here is refused: the next request would drop it.
func (s *sharedSessions) ApplyBound(peer string, told replicasync.Session) reservations.ApplyResult {
	snap := s.catalog.Snapshot(told.Scope)
	if snap == nil {
		return reservations.UnknownScope
	}
	if told.AnyDP {
		ranks := snap.RanksOf(told.Rank.Worker)
		if len(ranks) == 0 {
			return reservations.UnknownRank
		}
		told.Rank = ranks[pickDP(told.ID, len(ranks))].Rank
	}
	if _, ok := snap.KnownEntry(told.Rank); !ok {
		return reservations.UnknownRank
	}
	return resultOf(s.Apply(peer, toBinding(snap, &told)))
}

// ApplyUnbound is part of replicasync.Sessions.
func (s *sharedSessions) ApplyUnbound(_ string, told replicasync.Session) reservations.ApplyResult {
	snap := s.catalog.Snapshot(told.Scope)
	if snap == nil {
		return reservations.UnknownScope
	}
	return resultOf(s.Table.ApplyUnbound(toBinding(snap, &told)))
}

// SessionsAfter is part of replicasync.Sessions.
func (s *sharedSessions) SessionsAfter(cursor uint64, limit int) (page []replicasync.Session, next uint64, more bool) {
	bindings, next, more := s.Bindings(cursor, limit)
	page = make([]replicasync.Session, len(bindings))
	for i := range bindings {
		page[i] = toSession(&bindings[i])
	}
	return page, next, more
}

// pickDP picks one of a worker's n ranks for a session that is bound to the worker alone,
// the same in all replicas.
func pickDP(session string, n int) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(session))
	return int(h.Sum64() % uint64(n))
}

func toSession(b *affinity.Binding) replicasync.Session {
	return replicasync.Session{
		Scope: b.Scope, ID: b.Session, Rank: b.Rank, Sequence: b.Sequence, Writer: b.Writer, Idle: b.Idle,
	}
}

// toBinding has the snapshot's texts of the scope, which all sessions share.
func toBinding(snap *catalog.Snapshot, s *replicasync.Session) affinity.Binding {
	return affinity.Binding{
		Key: affinity.Key{Scope: snap.Scope, Session: s.ID}, Rank: s.Rank,
		Version: affinity.Version{Sequence: s.Sequence, Writer: s.Writer}, Idle: s.Idle,
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
