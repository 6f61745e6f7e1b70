package selection

import (
	"strings"
	"time"

	"github.com/select-service/select-service/internal/selection/affinity"
	"github.com/select-service/select-service/pkg/catalog"
)

// SessionQuery says which sessions are listed.
type SessionQuery struct {
	Of     catalog.ScopeFilter
	Worker *uint64 // whose home is on this worker; nil: any
	After  SessionCursor
	Limit  int // at most so many
}

// SessionCursor is a place in the list of sessions; the zero value is before the first one.
type SessionCursor = affinity.Cursor

// SessionList is a page of the sessions, those that were seen last first.
type SessionList struct {
	Sessions []ListedSession
	Total    int            // on all pages
	Next     *SessionCursor // of the next page; nil: this is the last one
}

// NameKind says what the name of a listed session is.
type NameKind string

// The kinds.
const (
	ClientsName NameKind = "client" // as the client has sent it
	TenantsName NameKind = "tenant" // a hash of the tenant of the gateway whose session it is, if it has one, and of the client's name
	GroupsName  NameKind = "group"  // a hash of the name of the session that has started those of the group
)

// Binding says how firmly a session's requests go home.
type Binding string

// The bindings.
const (
	HardBinding Binding = "hard" // whatever that costs
	SoftBinding Binding = "soft" // as long as that pays
	NoBinding   Binding = "none" // where the caches and loads want them, as far as is known: home is where the last one went
)

// ListedSession is a session, or a group of sessions, with its home.
type ListedSession struct {
	Scope    catalog.Scope
	Name     string
	Kind     NameKind
	Parent   string // name of the session that has started it, of the same kind; "": not known, or it is a group
	Group    string // name of the session that has started those that are kept together: this one and others, or those of this group; "": none
	Home     catalog.Rank
	Endpoint string // of the home's worker; "": it is not registered
	Bound    Binding
	Class    string // how it pauses: chat, agent or sub-agent
	// Turns are its requests that this replica has placed, Running those of them that have not ended, and Tokens the
	// length of all their prompts.
	Turns, Running uint32
	Tokens         uint64
	Seen           time.Time // when its last turn was placed, or ended
	Elsewhere      bool      // another replica has used it last, or this one before its start
	// Chance is the chance that it comes back, 1 while a turn is under way, and Expected when, if it does; zero: not known.
	Chance   float64
	Expected time.Time
}

// nameOf returns what people see of the name of a session's key.
func nameOf(key string) (string, NameKind) {
	if hash, is := strings.CutPrefix(key, affinity.GroupPrefix); is {
		return hash, GroupsName
	}
	if hash, is := strings.CutPrefix(key, tenantPrefix); is {
		return hash, TenantsName
	}
	return key, ClientsName
}

// ListSessions lists sessions.
func (a *API) ListSessions(q *SessionQuery) SessionList {
	var list SessionList
	if a.sessions.Table == nil {
		return list
	}
	rows, total := a.sessions.List(q.After, q.Limit+1, func(s *affinity.Session) bool {
		return s.Scope.Matches(q.Of.Model, q.Of.Tenant) && (q.Worker == nil || s.Rank.Worker == *q.Worker)
	})
	list.Total = total
	if len(rows) > q.Limit {
		rows = rows[:q.Limit]
		list.Next = new(rows[len(rows)-1].Cursor())
	}
	now := time.Now()
	for i := range rows {
		list.Sessions = append(list.Sessions, a.listed(&rows[i], now))
	}
	return list
}

func (a *API) listed(s *affinity.Session, now time.Time) ListedSession {
	l := ListedSession{
		Scope: s.Scope, Home: s.Rank, Bound: SoftBinding, Class: s.Class.String(), Turns: s.Turns, Running: s.Running, Tokens: s.Tokens,
		Seen: s.Seen, Elsewhere: s.Elsewhere, Chance: 1,
	}
	l.Name, l.Kind = nameOf(s.Session)
	switch l.Parent, _ = nameOf(s.Parent); {
	case l.Kind == GroupsName:
		l.Parent, l.Group = "", l.Parent
	case l.Parent != "":
		if _, _, kept := a.sessions.Home(groupKey(affinity.Key{Scope: s.Scope, Session: s.Parent})); kept {
			l.Group = l.Parent
		}
	}
	switch {
	case s.Bound:
		l.Bound = HardBinding
	case a.config.FrontSessions == LooseSessions && l.Group == "": // see findHome
		l.Bound = NoBinding
	}
	if snap := a.catalog.Snapshot(s.Scope); snap != nil {
		l.Endpoint = endpointOf(snap, s.Rank)
	}
	if s.Running > 0 {
		return l
	}
	p, idle := a.sessions.pauses.Pauses(s.Scope, s.Class, now), now.Sub(s.Seen)
	l.Chance = p.Chance(idle)
	if pause, ok := p.Expected(idle); ok {
		l.Expected = s.Seen.Add(pause)
	}
	return l
}
