package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Scope limits a call to a model, a routing group or both; nil matches all.
type Scope struct {
	Model        *string `json:"model_name,omitempty"`
	RoutingGroup *string `json:"routing_group,omitempty"`
}

func (s Scope) query() string { return s.queryWith() }

// limitText returns a limit for a query, empty for none.
func limitText(limit int) string {
	if limit <= 0 {
		return ""
	}
	return strconv.Itoa(limit)
}

// queryWith returns the query of the scope and further names, each followed by its value unless that is empty.
func (s Scope) queryWith(more ...string) string {
	q := url.Values{}
	for i := 0; i < len(more); i += 2 {
		if more[i+1] != "" {
			q.Set(more[i], more[i+1])
		}
	}
	if s.Model != nil {
		q.Set("model_name", *s.Model)
	}
	if s.RoutingGroup != nil {
		q.Set("routing_group", *s.RoutingGroup)
	}
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// PutWorker registers a worker or replaces its whole record. An incomplete
// record is registered, too: Lifecycle and NotSchedulableReasons of the answer show
// its state.
func (c *Client) PutWorker(ctx context.Context, w Worker) (Worker, error) {
	var answer Worker
	err := c.do(ctx, call{method: http.MethodPost, path: "/workers", body: w, repeatable: true}, &answer)
	return answer, err
}

// PatchWorker changes fields of a worker: nil keeps a field; an empty list or map that
// is not nil clears it. Other fields cannot be cleared, and Model and RoutingGroup
// cannot be changed.
func (c *Client) PatchWorker(ctx context.Context, w Worker) (Worker, error) {
	var answer Worker
	err := c.do(ctx, call{method: http.MethodPatch, path: worker(w.ID), body: w, repeatable: true}, &answer)
	return answer, err
}

// DeleteWorker removes a worker with its blocks and reservations.
func (c *Client) DeleteWorker(ctx context.Context, id uint64) error {
	return c.do(ctx, call{method: http.MethodDelete, path: worker(id), repeatable: true, goneIsDone: true}, nil)
}

// DrainWorker gives a worker no new work; what it has goes on. A worker that was registered over
// the API is removed once it is empty, and at the latest after within; 0: there is no such limit.
// A repeated call can bring the deadline forward, but not put it off.
func (c *Client) DrainWorker(ctx context.Context, id uint64, within time.Duration) (Worker, error) {
	var body struct {
		Seconds *float64 `json:"deadline_seconds,omitempty"`
	}
	if within > 0 {
		body.Seconds = new(within.Seconds())
	}
	var answer Worker
	err := c.do(ctx, call{method: http.MethodPost, path: worker(id) + "/drain", body: body, repeatable: true}, &answer)
	return answer, err
}

// UndrainWorker takes DrainWorker back. The worker may still drain by the word of its source.
func (c *Client) UndrainWorker(ctx context.Context, id uint64) (Worker, error) {
	var answer Worker
	err := c.do(ctx, call{method: http.MethodDelete, path: worker(id) + "/drain", repeatable: true}, &answer)
	return answer, err
}

// ReportLoad says what load the ranks of a worker's engine have. Send it again and again: a report
// is used for a few seconds. Ranks that are left out keep their report.
func (c *Client) ReportLoad(ctx context.Context, id uint64, ranks map[uint32]LoadReport) error {
	body := struct {
		Ranks map[uint32]LoadReport `json:"ranks"`
	}{ranks}
	if ranks == nil {
		body.Ranks = map[uint32]LoadReport{}
	}
	return c.do(ctx, call{method: http.MethodPut, path: worker(id) + "/load", body: body, repeatable: true}, nil)
}

// Workers lists the registered workers of a scope.
func (c *Client) Workers(ctx context.Context, scope Scope) ([]Worker, error) {
	var list []Worker
	err := c.do(ctx, call{method: http.MethodGet, path: "/workers" + scope.query(), repeatable: true}, &list)
	return list, err
}

// ReplaceWorkers replaces all workers of the catalog, or those of scope, by these, in one
// step. If one of them is invalid, nothing changes.
func (c *Client) ReplaceWorkers(ctx context.Context, scope Scope, workers []Worker) (Difference, error) {
	return c.putWorkers(ctx, "/workers", scope, workers)
}

// CompareWorkers returns what ReplaceWorkers would, and changes nothing.
func (c *Client) CompareWorkers(ctx context.Context, scope Scope, workers []Worker) (Difference, error) {
	return c.putWorkers(ctx, "/workers?dry_run=true", scope, workers)
}

func (c *Client) putWorkers(ctx context.Context, path string, scope Scope, workers []Worker) (Difference, error) {
	body := struct {
		Scope
		Workers []Worker `json:"workers"`
	}{scope, workers}
	if workers == nil {
		body.Workers = []Worker{}
	}
	var d Difference
	err := c.do(ctx, call{method: http.MethodPut, path: path, body: body, repeatable: true}, &d)
	return d, err
}

func worker(id uint64) string { return "/workers/" + strconv.FormatUint(id, 10) }
