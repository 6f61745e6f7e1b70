package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
)

// Ready reports whether the service can select, and lists the workers. A service that
// is not ready is an answer, not an error.
func (c *Client) Ready(ctx context.Context) (Readiness, error) {
	var r Readiness
	err := c.do(ctx, call{method: http.MethodGet, path: "/ready", repeatable: true, okStatus: http.StatusServiceUnavailable}, &r)
	return r, err
}

// Health returns nil if the service answers.
func (c *Client) Health(ctx context.Context) error {
	return c.do(ctx, call{method: http.MethodGet, path: "/health", repeatable: true}, nil)
}

// Loads lists the load of every rank of a scope.
func (c *Client) Loads(ctx context.Context, scope Scope) ([]ScopeLoads, error) {
	var list []ScopeLoads
	err := c.do(ctx, call{method: http.MethodGet, path: "/loads" + scope.query(), repeatable: true}, &list)
	return list, err
}

// PotentialLoads lists the load that every rank would have with the prompt.
func (c *Client) PotentialLoads(ctx context.Context, req ProjectRequest) ([]RankLoad, error) {
	var list []RankLoad
	err := c.do(ctx, call{method: http.MethodPost, path: "/potential_loads", body: &req, prompt: &req.Prompt, repeatable: true}, &list)
	return list, err
}

// OverlapScores lists what every rank has cached of the prompt.
func (c *Client) OverlapScores(ctx context.Context, req ProjectRequest) (OverlapScores, error) {
	var s OverlapScores
	err := c.do(ctx, call{method: http.MethodPost, path: "/overlap_scores", body: &req, prompt: &req.Prompt, repeatable: true}, &s)
	return s, err
}

// Diagnose explains which rank has which blocks of a prompt, and why a match ends. The
// answer is JSON as the OpenAPI document describes it.
func (c *Client) Diagnose(ctx context.Context, req DiagnoseRequest) (json.RawMessage, error) {
	var answer json.RawMessage
	err := c.do(ctx, call{method: http.MethodPost, path: "/diagnose", body: req, repeatable: true}, &answer)
	return answer, err
}

// Metrics returns the metrics of the service in Prometheus' text format.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	return c.text(ctx, "/metrics")
}

// OpenAPI returns the service's OpenAPI 3.1 document as YAML, of the contract that it
// was started with.
func (c *Client) OpenAPI(ctx context.Context) (string, error) {
	return c.text(ctx, "/openapi.yaml")
}

func (c *Client) text(ctx context.Context, path string) (string, error) {
	var text string
	err := c.do(ctx, call{method: http.MethodGet, path: path, noDialect: true, repeatable: true}, &text)
	return text, err
}

// Dump returns a stream of the whole index, in JSON, which the caller must close. It is
// not retried.
func (c *Client) Dump(ctx context.Context) (io.ReadCloser, error) {
	return c.open(ctx, call{method: http.MethodGet, path: "/dump"}, content{})
}

// BusyThresholds lists the thresholds of all models.
func (c *Client) BusyThresholds(ctx context.Context) ([]Thresholds, error) {
	var answer struct {
		Thresholds []Thresholds `json:"thresholds"`
	}
	err := c.do(ctx, call{method: http.MethodGet, path: "/busy_threshold", repeatable: true}, &answer)
	return answer.Thresholds, err
}

// SetBusyThresholds sets those thresholds of a model that are not nil, and returns all
// thresholds of the model.
func (c *Client) SetBusyThresholds(ctx context.Context, t Thresholds) (Thresholds, error) {
	var answer Thresholds
	err := c.do(ctx, call{method: http.MethodPost, path: "/busy_threshold", body: t, repeatable: true}, &answer)
	return answer, err
}

// UnsetBusyThreshold unsets one threshold of a model, by its name such as
// DecodeBlocksThreshold, and returns the others.
func (c *Client) UnsetBusyThreshold(ctx context.Context, model, name string) (Thresholds, error) {
	path := "/busy_threshold?" + url.Values{"model": {model}, "threshold": {name}}.Encode()
	var answer Thresholds
	err := c.do(ctx, call{method: http.MethodDelete, path: path, repeatable: true}, &answer)
	return answer, err
}

// UnsetBusyThresholds unsets all thresholds of a model.
func (c *Client) UnsetBusyThresholds(ctx context.Context, model string) error {
	path := "/busy_threshold?" + url.Values{"model": {model}}.Encode()
	return c.do(ctx, call{method: http.MethodDelete, path: path, repeatable: true}, nil)
}
