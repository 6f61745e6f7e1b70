package httpapi

import (
	"fmt"
	"math"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
)

// sessionLister lists the sessions that are kept.
type sessionLister interface {
	ListSessions(q *selection.SessionQuery) selection.SessionList
}

type sessionRoutes struct {
	svc sessionLister
	d   dialect
}

func (r sessionRoutes) addTo(to router) { to.get(access.Read, "/sessions", to.api.narrowed(r.list)) }

// Sizes of a page of sessions.
const (
	maxSessions     = 1000
	defaultSessions = 100
)

func (r sessionRoutes) list(c request, f catalog.ScopeFilter, out []byte) ([]byte, error) {
	q := selection.SessionQuery{Of: f}
	limit, err := queryUint(c.Request, "limit", 1, maxSessions, defaultSessions)
	if err != nil {
		return nil, err
	}
	q.Limit = int(limit)
	worker, err := queryValue(c.Request, "worker_id")
	if err == nil && worker != nil {
		var id uint64
		id, err = queryUint(c.Request, "worker_id", 0, math.MaxUint64, 0)
		q.Worker = &id
	}
	if err != nil {
		return nil, err
	}
	after, err := queryValue(c.Request, "after")
	if err != nil {
		return nil, err
	}
	if after != nil {
		if q.After, err = parseCursor(*after); err != nil {
			return nil, err
		}
	}
	return r.d.appendSessions(out, r.svc.ListSessions(&q)), nil
}

// cursorForm is how a query has the place of a page.
const cursorForm = "%x-%x"

func parseCursor(text string) (c selection.SessionCursor, err error) {
	if n, _ := fmt.Sscanf(text, cursorForm, &c.Seen, &c.Serial); n != 2 || fmt.Sprintf(cursorForm, c.Seen, c.Serial) != text {
		return c, badRequest(queryPrefix + "after: expected `next` of a page of sessions")
	}
	return c, nil
}

func (d dialect) appendSessions(out []byte, l selection.SessionList) []byte {
	out = appendList(appendKey(append(out, '{'), "sessions"), l.Sessions, d.appendSession)
	out = appendUintField(out, "total", uint64(l.Total))
	if l.Next != nil {
		out = appendStringField(out, "next", fmt.Sprintf(cursorForm, l.Next.Seen, l.Next.Serial))
	}
	return append(out, '}')
}

func (d dialect) appendSession(out []byte, s selection.ListedSession) []byte {
	out = d.appendScope(append(out, '{'), s.Scope)
	out = appendStringField(out, "session", catalog.Clip(s.Name))
	out = appendStringField(out, "name_of", string(s.Kind))
	if s.Parent != "" {
		out = appendStringField(out, "parent", catalog.Clip(s.Parent))
	}
	if s.Group != "" {
		out = appendStringField(out, "group", catalog.Clip(s.Group))
	}
	out = append(appendRank(append(appendKey(out, "home"), '{'), s.Home), '}')
	if s.Endpoint != "" {
		out = appendStringField(out, "endpoint", s.Endpoint)
	}
	out = appendStringField(out, "bound", string(s.Bound))
	out = appendStringField(out, "class", s.Class)
	out = appendUintField(out, "turns", uint64(s.Turns))
	out = appendUintField(out, "running", uint64(s.Running))
	out = appendUintField(out, "tokens", s.Tokens)
	out = appendTime(out, "last_seen", s.Seen)
	if s.Elsewhere {
		out = appendBoolField(out, "elsewhere", true)
	}
	out = appendFloatField(out, "return_chance", s.Chance)
	if !s.Expected.IsZero() {
		out = appendTime(out, "expected_return", s.Expected)
	}
	return append(out, '}')
}
