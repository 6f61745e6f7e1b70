package replicasync

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// Sessions are shared as dynamo-kv-router 1.6.1 does it: at each use of a session a
// replica publishes the rank that the session is bound to, and receivers merge that by
// the version of the binding. These messages have no numbers. A lost one is repaired by
// the next use, or by the next snapshot that is read for another reason.

// Session is the binding of one session to a rank, as replicas exchange it.
type Session struct {
	Scope catalog.Scope
	ID    string // at most MaxSessionID bytes
	Rank  catalog.Rank
	// AnyDP: the sender names no DP rank; any one of the worker is meant.
	AnyDP bool
	// Sequence and Writer are the version of the binding, which orders the bindings of
	// one session. A received Sequence is at most maxAhead beyond this replica's clock.
	Sequence, Writer uint64
	Idle             time.Duration // time since the last use ended; in snapshots only
	// Home: the session may be moved from the rank, which is a wish, not a binding. It is a key that
	// Dynamo's replicas skip: to them it is a binding that is replaced when the session moves.
	Home bool
}

// Sessions are the sessions of this replica. All methods are safe for concurrent use.
// They are called without a lock of the Replica.
type Sessions interface {
	// ApplyBound joins a binding that a peer reports. The result is Applied, Known (the
	// same or a newer binding is here), UnknownScope, UnknownRank or Full.
	ApplyBound(peer string, s Session) reservations.ApplyResult
	// ApplyUnbound ends a binding that a peer has ended: Applied, Known or UnknownScope.
	ApplyUnbound(peer string, s Session) reservations.ApplyResult
	// SessionsAfter returns a page of at most limit bindings after a cursor, which is 0
	// for the first page, and the cursor of the next one.
	SessionsAfter(cursor uint64, limit int) (page []Session, next uint64, more bool)
}

const (
	// MaxSessionID bounds the name of a session in bytes, as in dynamo-kv-router 1.6.1.
	MaxSessionID = 256
	// maxAhead is how far the sequence of a version may be beyond this replica's clock,
	// in nanoseconds. A replica's sequences begin at its clock (Unix nanoseconds) when it
	// starts, and rise more slowly than the clock. A larger one comes from no honest
	// replica, and taking it over would leave no room for larger ones.
	maxAhead = uint64(24 * time.Hour)
)

// SessionBound publishes that a session is bound to a rank and in use. It never waits
// for a peer.
func (r *Replica) SessionBound(s *Session) { r.enqueueSession(sessionBound, s) }

// SessionUnbound publishes that a binding has ended.
func (r *Replica) SessionUnbound(s *Session) { r.enqueueSession(sessionUnbound, s) }

func (r *Replica) enqueueSession(k kind, s *Session) {
	e := event{kind: k, sender: s.Writer, sequence: s.Sequence, scope: s.Scope, id: s.ID, rank: s.Rank, home: s.Home}
	if !r.outbox.queue.put(e, weight(&e)) {
		r.counts.drop(dropSendQueueFull)
	}
}

// session writes the message of a binding or of its end.
func (e *encoder) session(ev *event) {
	n := 7
	if ev.home {
		n++
	}
	e.fields(n)
	e.string("model_name", ev.scope.Model)
	e.string("routing_group", ev.scope.Tenant)
	e.string("session_id", ev.id)
	e.uint("worker_id", ev.rank.Worker)
	e.uint("dp_rank", uint64(ev.rank.DP))
	e.uint("sequence", ev.sequence)
	e.uint("writer_id", ev.sender)
	if ev.home {
		e.bool("home", true)
	}
}

// sessionFields are the fields of a session message. Those of Dynamo come first, and are required; dp_rank may be
// nil. A message without keys has these alone.
var sessionFields = []string{"model_name", "routing_group", "session_id", "worker_id", "dp_rank", "sequence", "writer_id", "home"}

const dynamoSessionFields = 7

// session decodes what a peer published on TopicSessions or TopicSessionEnds.
func (r *reader) session(payload []byte) (s Session, err error) {
	if len(payload) > maxAnnouncement {
		return Session{}, errOversized
	}
	r.reset(payload)
	names := sessionFields
	if r.IsArray() {
		names = names[:dynamoSessionFields]
	}
	err = r.fields(names, dynamoSessionFields, func(name string) (err error) {
		switch name {
		case "model_name":
			s.Scope.Model, err = r.text()
		case "routing_group":
			s.Scope.Tenant, err = r.text()
		case "session_id":
			s.ID, err = r.text()
		case "worker_id":
			s.Rank.Worker, err = r.uint(math.MaxUint64)
		case "dp_rank":
			if s.AnyDP = r.Nil(); !s.AnyDP {
				s.Rank.DP, err = r.uint32()
			}
		case "sequence":
			s.Sequence, err = r.uint(math.MaxUint64)
		case "writer_id":
			s.Writer, err = r.uint(math.MaxUint64)
		case "home":
			s.Home, err = r.bool()
		}
		return err
	})
	if err != nil {
		return Session{}, err
	}
	return s, s.check()
}

// check returns an error for a session that no replica can have.
func (s *Session) check() error {
	switch {
	case s.ID == "":
		return errors.New("session_id is empty")
	case len(s.ID) > MaxSessionID:
		return errOversized
	}
	return nil
}

// applySession decodes and applies what a peer published about a session. Any peer may
// report any session: a binding has the same version at all replicas that use it.
func (r *Replica) applySession(in *reader, peer, topic string, payload []byte) {
	s, err := in.session(payload)
	if err != nil {
		r.counts.drop(reasonOfError(err))
		return
	}
	if r.sessions == nil {
		r.counts.drop(dropUnknownID)
		return
	}
	k := sessionBound
	if topic == TopicSessionEnds {
		k = sessionUnbound
	}
	r.counts.received[k].Add(1)
	why := r.mergeSession(peer, k, s)
	if why != applied {
		r.counts.drop(why)
	}
	if why == dropUnknownScope || why == dropUnknownRank { // ask for it again when ranks are added
		r.coreMu.Lock()
		r.core.refused = true
		r.coreMu.Unlock()
	}
}

// mergeSession joins what a peer reports of a session. It returns applied, or the reason
// why it had no effect.
func (r *Replica) mergeSession(peer string, k kind, s Session) reason {
	if s.Sequence > uint64(max(0, r.now().UnixNano()))+maxAhead {
		return dropJump
	}
	if k == sessionUnbound {
		return reasonOf(r.sessions.ApplyUnbound(peer, s))
	}
	return reasonOf(r.sessions.ApplyBound(peer, s))
}

// sessionJSON is a session in a snapshot.
type sessionJSON struct {
	Model    string  `json:"model_name"`
	Group    string  `json:"routing_group"`
	ID       string  `json:"session_id"`
	Worker   uint64  `json:"worker_id"`
	DP       *uint32 `json:"dp_rank"` // null: any
	Sequence uint64  `json:"sequence"`
	Writer   uint64  `json:"writer_id"`
	IdleMS   uint64  `json:"idle_ms"` // since its last use ended, 0 if it is in use
	Home     bool    `json:"home,omitempty"`
}

// session converts and checks what a peer reports; late is the time since the page began
// to arrive, which is added to its ages.
func (j *sessionJSON) session(late time.Duration) (Session, error) {
	s := Session{
		Scope: catalog.Scope{Model: j.Model, Tenant: j.Group}, ID: j.ID, Rank: catalog.Rank{Worker: j.Worker},
		Sequence: j.Sequence, Writer: j.Writer, Idle: toDuration(j.IdleMS) + late, Home: j.Home,
	}
	if s.AnyDP = j.DP == nil; !s.AnyDP {
		s.Rank.DP = *j.DP
	}
	return s, s.check()
}

// sessionsPage bounds the sessions on a page of a snapshot. With names of 256 bytes the
// list is below 8 MiB, so that replicas that do not know sessions can skip it as one value.
const sessionsPage = 4096

// sessionCursor parses a cursor that points into the list of sessions, which comes after
// all reservations. ok is false for any other cursor.
func sessionCursor(text string) (after uint64, ok bool) {
	digits, ok := strings.CutPrefix(text, "sessions-")
	if !ok {
		return 0, false
	}
	after, err := strconv.ParseUint(digits, 10, 64)
	return after, err == nil
}

// writeSessions writes a page of the sessions and returns the cursor of the next page, ""
// if there is none.
func (p *pageWriter) writeSessions(ctx context.Context, of Sessions, after uint64, limit int) (next string, err error) {
	page, last, more := of.SessionsAfter(after, min(limit, sessionsPage))
	p.text(`,"sessions":[`)
	for i := range page {
		if err := cmp.Or(ctx.Err(), p.failed()); err != nil {
			return "", err
		}
		s := &page[i]
		line, err := json.Marshal(sessionJSON{
			Model: s.Scope.Model, Group: s.Scope.Tenant, ID: s.ID, Worker: s.Rank.Worker, DP: &s.Rank.DP,
			Sequence: s.Sequence, Writer: s.Writer, IdleMS: uint64(max(0, s.Idle) / time.Millisecond), Home: s.Home,
		})
		if err != nil {
			return "", fmt.Errorf("session: %w", err)
		}
		p.comma(i)
		_, _ = p.w.Write(line)
	}
	p.text(`]`)
	if more {
		next = "sessions-" + strconv.FormatUint(last, 10)
	}
	return next, nil
}

// onSession implements snapshotSink.
func (m *snapshotMerge) onSession(j *sessionJSON) error {
	s, err := j.session(m.replica.now().Sub(m.began))
	if err != nil {
		return err
	}
	if m.replica.sessions == nil {
		return nil
	}
	if why := m.replica.mergeSession(m.request.peer, sessionBound, s); why == dropUnknownScope || why == dropUnknownRank {
		m.result.refused = true
	}
	return nil
}
