package statefile

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/select-service/select-service/internal/selection/pauses"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/pkg/reservations"
)

// Sessions have the ranks that sessions are bound to, and the homes of sessions and groups, as replicas have
// them.
type Sessions interface {
	// SessionsAfter and ApplyBound are those of replicasync.Sessions. Without a peer, what is applied is as what
	// was used here.
	SessionsAfter(cursor uint64, limit int) (page []replicasync.Session, next uint64, more bool)
	ApplyBound(peer string, s replicasync.Session) reservations.ApplyResult
}

// session is a session in a file.
type session struct {
	Scope            catalog.Scope
	Name             []byte // clients' names may be no UTF-8
	Rank             catalog.Rank
	Sequence, Writer uint64
	Home             bool
	Used             int64 // Unix time in nanoseconds
	Idle             time.Duration
}

func toSession(r *replicasync.Session, at time.Time) *session {
	return &session{
		Scope: r.Scope, Name: []byte(r.ID), Rank: r.Rank, Sequence: r.Sequence, Writer: r.Writer, Home: r.Home,
		Used: at.Add(-r.Idle).UnixNano(), Idle: r.Idle,
	}
}

// shared returns the session at the time at. It has been idle for at least as long as when it was written, in case
// the clock was set back.
func (s *session) shared(at time.Time) replicasync.Session {
	return replicasync.Session{
		Scope: s.Scope, ID: string(s.Name), Rank: s.Rank, Sequence: s.Sequence, Writer: s.Writer, Home: s.Home,
		Idle: min(max(s.Idle, at.Sub(time.Unix(0, s.Used))), maxAge),
	}
}

// ok reports whether the session can have been written by this program.
func (s *session) ok() bool {
	return len(s.Name) > 0 && len(s.Name) <= replicasync.MaxSessionID && bounded(s.Idle) && s.Sequence < 1<<63
}

// pageSessions is how many sessions are read from the table at a time.
const pageSessions = 256

// writeSessions writes all sessions. Those that are used while it runs may be as they were before.
func (s *State) writeSessions(ctx context.Context, w *writer, p *pacer) error {
	var at uint64
	for more := true; more; {
		var page []replicasync.Session
		page, at, more = s.parts.Sessions.SessionsAfter(at, pageSessions)
		now := time.Now()
		for i := range page {
			if err := s.leaveOut(w.json(sessionKind, toSession(&page[i], now))); err != nil {
				return err
			}
		}
		if err := p.rest(ctx); err != nil {
			return err
		}
	}
	return nil
}

// restoreSessions restores the sessions whose ranks have come back.
func (s *State) restoreSessions(f *file) (restored int, err error) {
	now := time.Now()
	for _, at := range f.sessions {
		if err := f.again(at); err != nil {
			return restored, err
		}
		var one session
		if err := json.Unmarshal(f.payload, &one); err != nil {
			return restored, err
		}
		if s.parts.Sessions.ApplyBound("", one.shared(now)) == reservations.Applied {
			restored++
		}
	}
	return restored, nil
}

// writePauses writes what is known of the pauses of the sessions.
func (s *State) writePauses(w *writer) error {
	if s.parts.Pauses == nil {
		return nil
	}
	for sc, known := range s.parts.Pauses.Kept(time.Now()) {
		if err := s.leaveOut(w.json(pausesKind, learnedPauses{sc, known})); err != nil {
			return err
		}
	}
	return nil
}

// restorePauses passes what a file knows of the sessions' pauses to the learner, for scopes that have come back. What no longer fits
// is learned again.
func (s *State) restorePauses(f *file) {
	if s.parts.Pauses == nil {
		return
	}
	var bad error
	for _, at := range f.pauses {
		var one learnedPauses
		err := f.decode(at, &one)
		if err == nil && s.parts.Catalog.Snapshot(one.Scope) != nil {
			err = s.parts.Pauses.Restore(one.Scope, one.State)
		}
		if bad == nil && !errors.Is(err, pauses.ErrHorizon) { // then an option has changed
			bad = err
		}
	}
	if bad != nil {
		s.failures[faultRefused].Add(1)
		s.log.Warn().Err(bad).Msg("what was learned of the pauses of sessions is not used")
	}
}
