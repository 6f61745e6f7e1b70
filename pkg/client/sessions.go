package client

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

// Session is a session, or a group of sessions, with its home.
type Session struct {
	Model        string `json:"model_name"`
	RoutingGroup string `json:"routing_group"`
	Name         string `json:"session"`
	// NameOf is what Name is: client, as the client sends it, and so are Parent and Group; tenant or group, a hash.
	NameOf string `json:"name_of"`
	Parent string `json:"parent"` // the session that has started it; empty: not known, or it is a group
	// Group is the session that has started those that are kept together, as Explanation has it: itself and others, or those that a
	// group consists of; empty: none, or not known.
	Group    string `json:"group"`
	Home     Rank   `json:"home"`
	Endpoint string `json:"endpoint"` // of the home's worker; empty: that is not registered
	Bound    string `json:"bound"`    // hard; soft: it may move; or none: its home is where its last request went
	Class    string `json:"class"`    // how it pauses between turns: chat, agent or sub-agent
	// Turns are its requests that the replica has placed, Running those that have not ended, Tokens the length of all their prompts.
	Turns     uint32    `json:"turns"`
	Running   uint32    `json:"running"`
	Tokens    uint64    `json:"tokens"`
	LastSeen  time.Time `json:"last_seen"`
	Elsewhere bool      `json:"elsewhere"` // another replica has used it last
	// ReturnChance is the chance that it sends another turn, and ExpectedReturn when, if it does; nil: one is under way, or it
	// is overdue.
	ReturnChance   float64    `json:"return_chance"`
	ExpectedReturn *time.Time `json:"expected_return"`
}

// SessionPage is a page of the sessions of a service, those that were seen last first.
type SessionPage struct {
	Sessions []Session `json:"sessions"`
	Total    uint64    `json:"total"` // on all pages
	Next     string    `json:"next"`  // for SessionQuery.After; empty: this is the last page
}

// SessionQuery says which sessions are listed.
type SessionQuery struct {
	Scope
	Worker *uint64 // only those whose home is on this worker
	After  string  // Next of the page before
	Limit  int     // of the page; 0: the service's
}

// Sessions lists sessions.
func (c *Client) Sessions(ctx context.Context, q SessionQuery) (SessionPage, error) {
	worker := ""
	if q.Worker != nil {
		worker = strconv.FormatUint(*q.Worker, 10)
	}
	var page SessionPage
	query := q.queryWith("worker_id", worker, "after", q.After, "limit", limitText(q.Limit))
	err := c.do(ctx, call{method: http.MethodGet, path: "/sessions" + query, repeatable: true}, &page)
	return page, err
}
