package selection

import (
	"context"
	"encoding/hex"
	"slices"
	"time"
	"unicode/utf8"

	"lukechampine.com/blake3"

	"github.com/select-service/select-service/internal/selection/affinity"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/internal/selection/identity"
	"github.com/select-service/select-service/internal/selection/pauses"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
)

// Sessions (dynamo-kv-router 1.6.1, hard mode): the first reservation of a session binds it
// to a rank, which gets the session's further reservations. A selection without a reservation
// only follows the binding. If the rank is gone or its worker is overloaded, another rank is
// chosen and bound. If the request's own filter excludes the rank, the request is refused and
// the binding ends; with FilterBeforeSession the request is instead served as one without a session,
// and the binding stays.

// sessions has the bindings of all sessions.
type sessions struct {
	*affinity.Table // nil: sessions are off
	catalog         *catalog.Catalog
	pauses          *pauses.Learner // of the sessions; nil: they are off
}

// session is an attempt's use of the session that its request names.
type session struct {
	*request
	scope *scope
	claim *affinity.Claim // nil: no session, not claimed yet, or the reservation has it
	keys  sessionKeys
	kept  kept
}

// sessionKeys are the keys of a request's session, of the group that it belongs to, and of the session that has
// started it.
type sessionKeys struct{ own, group, parent affinity.Key }

// named returns the name of the request's session, "" if it has no effect: a request with a pinned
// worker or an affinity target names its rank itself.
func (s *session) named() string {
	kept := s.api.config.SessionTTL
	if s.SessionMode != HardSessions {
		kept = s.api.config.HomeTTL
	}
	if kept == 0 || s.Pinned != nil || s.Target != nil {
		return ""
	}
	return s.Session
}

// name is named for hard sessions alone.
func (s *session) name() string {
	if s.SessionMode != HardSessions {
		return ""
	}
	return s.named()
}

// groups reports whether the session belongs to a group.
func (r *request) groups() bool {
	return r.Parent != "" && (r.Groups || r.SessionMode == HardSessions && r.api.config.SessionGroups)
}

// key returns the key that a hard session is bound by: that of its group, if it belongs to one, as in Dynamo.
func (s *session) key() affinity.Key {
	s.setKeys()
	if s.groups() {
		return s.keys.group
	}
	return s.keys.own
}

// setKeys sets the keys. They have the snapshot's strings for the scope, since the request's own would be kept
// once per session.
func (s *session) setKeys() {
	if s.keys.own.Session != "" {
		return
	}
	s.keys.own = sessionKey(s.scope.snapshot.Scope, s.SessionTenant, s.Session)
	if s.groups() {
		s.keys.parent = sessionKey(s.scope.snapshot.Scope, s.SessionTenant, s.Parent)
		s.keys.group = groupKey(s.keys.parent)
	}
}

// groupKey names the group of the sessions that another one, parent, has started. Without a tenant it is Dynamo's.
func groupKey(parent affinity.Key) affinity.Key {
	sum := blake3.Sum256([]byte(parent.Session))
	return affinity.Key{Scope: parent.Scope, Session: affinity.GroupPrefix + hex.EncodeToString(sum[:])}
}

// tenantPrefix begins the names of tenants' sessions. No client may give such a name, so that nobody follows or ends the
// session of another tenant.
const tenantPrefix = "\x02"

// sessionKey names a session of a tenant. Without a tenant it is the session's own name, as in 1.6.1, if that is UTF-8, as all texts
// that replicas exchange: a header's value may be none.
func sessionKey(sc catalog.Scope, tenant, session string) affinity.Key {
	if tenant != "" || !utf8.ValidString(session) {
		session = tenantPrefix + hashed(tenant, session)
	}
	return affinity.Key{Scope: sc, Session: session}
}

// check refuses names that are too long. stale reports whether a reservation has to claim the
// session before anything else is checked, because it is bound to a rank that is not schedulable.
func (s *session) check() (stale bool, err error) {
	name := s.named()
	if len(name) > identity.MaxName {
		return false, contract.Errorf(contract.BadRequest, "session affinity ID must not exceed %d bytes", identity.MaxName)
	}
	if identity.IsReserved(name) || name != "" && identity.IsReserved(s.Parent) {
		return false, contract.Errorf(contract.BadRequest, "session affinity ID must not begin with a control character")
	}
	if name != "" && s.SessionMode != HardSessions {
		s.setKeys()
		return false, nil
	}
	if name == "" || !s.reserve {
		return false, nil
	}
	if s.claim != nil {
		return true, nil
	}
	bound, ok := s.api.sessions.Lookup(s.key())
	return ok && s.unschedulable(bound), nil
}

// dropUnschedulable ends the binding if it is to a rank that is not schedulable.
func (s *session) dropUnschedulable() {
	if bound, ok := s.claim.Rank(); ok && s.unschedulable(bound) {
		s.kept.home, s.kept.homed, s.kept.turn = bound, true, counts.TurnGone
		s.claim.Drop()
	}
}

// unschedulable reports whether a bound rank is not schedulable.
func (s *session) unschedulable(bound catalog.Rank) bool {
	return s.api.sessions.isUnschedulable(bound, s.scope.snapshot)
}

// begin claims the session for a reservation. wait is not nil if another first request of the
// session is being served: then await has the claim.
func (s *session) begin() (wait *affinity.Wait) {
	if !s.reserve || s.claim != nil || s.name() == "" {
		return nil
	}
	s.claim, wait = s.api.sessions.Claim(s.key())
	return wait
}

// await waits for the session, see sessions.await.
func (s *session) await(ctx context.Context, w *affinity.Wait) (err error) {
	s.claim, err = s.api.sessions.await(ctx, w)
	return err
}

// release ends the claim. The time that an idle session is kept restarts.
func (s *session) release() {
	s.claim.Release()
	s.claim = nil
}

// handOver leaves the claim to the reservation, whose record has it.
func (s *session) handOver() { s.claim = nil }

// turn returns what the table notes of the request; tokens is the length of its prompt.
func (s *session) turn(tokens uint64) affinity.Turn {
	turn := affinity.Turn{Tokens: tokens, Class: s.class()}
	if s.Parent != "" {
		turn.Parent = sessionKey(s.scope.snapshot.Scope, s.SessionTenant, s.Parent).Session
	}
	return turn
}

// class returns how the request's session pauses between its turns.
func (s *session) class() pauses.Class {
	switch {
	case s.Parent != "":
		return pauses.SubAgent
	case s.OfAgent:
		return pauses.Agent
	}
	return pauses.Chat
}

// returnChance returns the chance that the session sends another request after this one.
func (s *session) returnChance() float64 {
	return s.api.sessions.pauses.Pauses(s.scope.snapshot.Scope, s.class(), time.Now()).Share
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

// await waits for the claim of a session that another request is deciding on. Afterwards workers,
// load and limits may have changed, and a reservation that the request repeats may exist, so the
// error is errSessionMoved, beside the claim, and the request runs again.
func (s *sessions) await(ctx context.Context, w *affinity.Wait) (*affinity.Claim, error) {
	claim, err := w.Await(ctx)
	if err != nil {
		return nil, errClientGone(err)
	}
	return claim, errSessionMoved
}

// maxMoves bounds how often a binding that changes meanwhile is checked again.
const maxMoves = 4

// narrow narrows the ranks to the one that the session is bound to. It runs under the
// ledger's lock. excluded is the bound rank if the request's filter excludes it: then
// nothing may be booked.
func (s *session) narrow(ranks []catalog.Entry) (narrowed []catalog.Entry, excluded *catalog.Rank, err error) {
	if s.kept.session = s.named(); s.kept.session == "" {
		return ranks, nil, nil
	}
	if s.SessionMode != HardSessions {
		return s.findHome(ranks), nil, nil
	}
	if s.groups() {
		s.kept.group = s.Parent
	}
	for range maxMoves {
		bound, ok := s.bound()
		if !ok {
			return ranks, nil, nil
		}
		if i := indexRank(ranks, bound); i >= 0 {
			s.kept.home, s.kept.homed, s.kept.turn = bound, true, counts.TurnHome
			return ranks[i : i+1], nil, nil
		}
		s.kept.home, s.kept.homed, s.kept.turn = bound, true, s.whyNot(bound)
		switch excluded := s.kept.turn == counts.TurnFiltered; {
		case !s.reserve, excluded && s.FilterBeforeSession:
			return ranks, nil, nil
		case excluded:
			return ranks, &bound, nil
		case s.kept.turn == counts.TurnGone && !s.unschedulable(bound):
			return nil, nil, errSessionMoved
		}
		if s.kept.turn == counts.TurnOverloaded {
			s.claim.Move()
		} else {
			s.claim.Drop()
		}
	}
	return ranks, nil, nil
}

// whyNot returns why a rank is not among those that may be chosen.
func (s *session) whyNot(r catalog.Rank) counts.Turn {
	if _, found := s.scope.snapshot.Entry(r); !found {
		return counts.TurnGone
	}
	if indexRank(s.scope.eligible, r) < 0 {
		return counts.TurnFiltered
	}
	return counts.TurnOverloaded
}

// bound returns the rank that the session is bound to.
func (s *session) bound() (catalog.Rank, bool) {
	if s.reserve {
		return s.claim.Rank()
	}
	return s.api.sessions.Lookup(s.key())
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

// usable reports whether sessions are on and a client may give a session this name.
func (s *sessions) usable(session string) bool {
	return s.Table != nil && session != "" && len(session) <= identity.MaxName && !identity.IsReserved(session)
}

// last is the last request of a session, which ends with the request's reservation. A nil one is of none.
type last struct {
	of  *sessions
	own affinity.Key
}

func (l *last) end() {
	if l != nil {
		l.of.end(l.own)
	}
}

// last returns what ends the request's session with its reservation; nil: the session goes on. A request that names its rank does
// not use its hard session, and does not end it either.
func (s *session) last() *last {
	if !s.Final || !s.api.sessions.usable(s.Session) || s.SessionMode == HardSessions && s.name() == "" {
		return nil
	}
	s.setKeys()
	return &last{&s.api.sessions, s.keys.own}
}

// end ends a session that sends no further request: its binding or home goes at once, and that of the sessions that it has
// started. The group that it belongs to stays for its other sessions.
func (s *sessions) end(own affinity.Key) {
	s.End(own)
	s.End(groupKey(own))
}

// CountIgnored counts names of sessions that a request has and that are not used.
func (a *API) CountIgnored(faults identity.Faults) { a.selections.Ignored(faults) }

// EndSession notes that a tenant's session sends no further request, for callers whose last request may have no reservation.
func (a *API) EndSession(sc catalog.Scope, tenant, session string) {
	if !a.sessions.usable(session) {
		return
	}
	a.sessions.end(sessionKey(sc, tenant, session))
}

// SessionRank returns the rank that a tenant's session is bound to, or its home. It does not extend the binding.
func (a *API) SessionRank(sc catalog.Scope, tenant, session string) (catalog.Rank, bool) {
	if !a.sessions.usable(session) {
		return catalog.Rank{}, false
	}
	r, _, ok := a.sessions.Home(sessionKey(sc, tenant, session))
	return r, ok
}

// bindSession binds a tenant's session that is bound to no schedulable rank, or gives it a home if it has none.
func (a *API) bindSession(snap *catalog.Snapshot, req *LoadRequest, r catalog.Rank) {
	if !a.sessions.usable(req.Session) {
		return
	}
	key := sessionKey(snap.Scope, req.SessionTenant, req.Session)
	if req.SessionMode != HardSessions {
		if home, _, ok := a.sessions.Home(key); !ok || a.sessions.isUnschedulable(home, snap) {
			_, running := a.sessions.Settle(key, r, affinity.Turn{})
			running.End() // nobody reports it
		}
		return
	}
	claim, wait := a.sessions.Claim(key)
	if wait != nil {
		wait.Leave()
		return
	}
	if bound, ok := claim.Rank(); ok && a.sessions.isUnschedulable(bound, snap) {
		claim.Drop()
	}
	claim.Bind(r)
	claim.Release()
}
