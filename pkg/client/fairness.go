package client

import (
	"context"
	"net/http"
)

// Consumer is a tenant, or a program of one, that uses engines in a policy class in which tenants take turns.
type Consumer struct {
	Model        string `json:"model_name"`
	RoutingGroup string `json:"routing_group"`
	PolicyClass  string `json:"policy_class"`
	Tenant       string `json:"tenant"`
	Program      string `json:"program"` // empty: it is the tenant as a whole, or what is its own
	// EngineSeconds are those served lately: the half of them is forgotten after each half-life. Share is their part of
	// those of all in the class, 0 to 1, and Weight the tenant's.
	EngineSeconds float64 `json:"engine_seconds"`
	Share         float64 `json:"share"`
	Weight        float64 `json:"weight"`
	Running       uint64  `json:"running"` // requests that have been placed, and have not ended
	Queued        uint64  `json:"queued"`
	// Of the targets and deadlines of its requests.
	Attained uint64 `json:"attained"`
	Missed   uint64 `json:"missed"`
	Refused  uint64 `json:"refused"`
}

// FairClass is a policy class of a scope in which tenants take turns.
type FairClass struct {
	Model           string  `json:"model_name"`
	RoutingGroup    string  `json:"routing_group"`
	PolicyClass     string  `json:"policy_class"`
	By              string  `json:"by"` // tenant or program
	HalfLifeSeconds float64 `json:"half_life_seconds"`
	ActiveTenants   uint64  `json:"active_tenants"`
	ActivePrograms  uint64  `json:"active_programs"`
	// Jain's index of the engine seconds over the fair share: 1 if that is the same for all that are active.
	JainTenants  float64 `json:"jain_tenants"`
	JainPrograms float64 `json:"jain_programs"`
}

// Fairness has the greatest consumers of engine seconds, those with the most first.
type Fairness struct {
	Consumers []Consumer  `json:"consumers"`
	Total     uint64      `json:"total"` // of consumers, listed or not
	Classes   []FairClass `json:"classes"`
}

// FairnessQuery says which consumers are listed.
type FairnessQuery struct {
	Scope
	By    string // tenant (as is "") or program
	Limit int    // 0: the service's
}

// Fairness lists the greatest consumers of engine seconds.
func (c *Client) Fairness(ctx context.Context, q FairnessQuery) (Fairness, error) {
	var f Fairness
	query := q.queryWith("by", q.By, "limit", limitText(q.Limit))
	err := c.do(ctx, call{method: http.MethodGet, path: "/fairness" + query, repeatable: true}, &f)
	return f, err
}
