package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// Examination is what the service has found wrong with itself, its engines and its replicas.
type Examination struct {
	Time      time.Time `json:"time"`
	Healthy   bool      `json:"healthy"`  // there is no finding but notes
	Findings  []Finding `json:"findings"` // the errors first
	Checks    []Check   `json:"checks"`
	Truncated bool      `json:"truncated"` // there are more findings
}

// Finding is something that is wrong.
type Finding struct {
	Check    string `json:"check"`
	Severity string `json:"severity"` // error, warning or note
	Sentence string `json:"sentence"`
	Remedy   string `json:"remedy"`
	Runbook  string `json:"runbook"` // where there is more, a path in the repository
	// The finding is about these; empty or nil if one does not apply.
	Model        string  `json:"model_name"`
	RoutingGroup string  `json:"routing_group"`
	Worker       *uint64 `json:"worker_id"`
	DPRank       *uint32 `json:"dp_rank"`
	Peer         string  `json:"peer"`
	Count        uint64  `json:"count"`
}

// Check is something that was looked at.
type Check struct {
	Check  string `json:"check"`
	Title  string `json:"title"`  // what holds if there is no finding
	Result string `json:"result"` // ok, finding or not_applicable
}

// Replicas is what a replica knows of the others.
type Replicas struct {
	Enabled bool   `json:"enabled"` // reservations are shared
	Process string `json:"process"`
	Version string `json:"version"`
	// SettingsVersion is the version of the fleet's settings that it has, 0: none.
	SettingsVersion uint64            `json:"settings_version"`
	Stats           map[string]uint64 `json:"stats"`
	Peers           []Peer            `json:"peers"`
}

// Peer is an endpoint that is followed.
type Peer struct {
	Endpoint  string        `json:"endpoint"`
	Connected bool          `json:"connected"`
	Processes []PeerProcess `json:"processes"`
}

// PeerProcess is a process that has announced itself at an endpoint. The fields after Error are those of
// its last status.
type PeerProcess struct {
	Process         string     `json:"process"`
	URL             string     `json:"url"`
	Absent          bool       `json:"absent"`          // silent for long, or replaced
	SnapshotWanted  bool       `json:"snapshot_wanted"` // its reservations are still to be read
	Error           string     `json:"error"`           // why its status could not be read
	Read            *time.Time `json:"read"`            // nil: never
	Version         string     `json:"version"`
	SettingsVersion uint64     `json:"settings_version"` // as in Replicas
	ClockAhead      float64    `json:"clock_ahead_seconds"`
	ClocksAgree     bool       `json:"clocks_agree"`
	PoliciesAgree   bool       `json:"policies_agree"`
	// ThresholdsDiffer has the models whose busy thresholds are others.
	ThresholdsDiffer []string   `json:"thresholds_differ"`
	Loads            []PeerLoad `json:"loads"`
}

// PeerLoad is the load of a scope as two replicas count it.
type PeerLoad struct {
	Model        string       `json:"model_name"`
	RoutingGroup string       `json:"routing_group"`
	Agree        bool         `json:"agree"`
	Own          ReplicaCount `json:"own"`
	Peer         ReplicaCount `json:"peer"`
}

// ReplicaCount is a load in all.
type ReplicaCount struct {
	Requests      uint64 `json:"requests"`
	Blocks        uint64 `json:"blocks"`
	PrefillTokens uint64 `json:"prefill_tokens"`
}

// Doctor examines the service; a scope limits it to the workers of that.
func (c *Client) Doctor(ctx context.Context, scope Scope) (Examination, error) {
	var x Examination
	err := c.do(ctx, call{method: http.MethodGet, path: "/doctor" + scope.query(), repeatable: true}, &x)
	return x, err
}

// Replicas returns what the replica knows of the others; a scope limits the loads.
func (c *Client) Replicas(ctx context.Context, scope Scope) (Replicas, error) {
	var r Replicas
	err := c.do(ctx, call{method: http.MethodGet, path: "/replicas" + scope.query(), repeatable: true}, &r)
	return r, err
}

// ReplicaStatus returns what the replica tells the others, as JSON; see the OpenAPI document.
func (c *Client) ReplicaStatus(ctx context.Context) (json.RawMessage, error) {
	var answer json.RawMessage
	err := c.do(ctx, call{method: http.MethodGet, path: "/replica_sync/status", noDialect: true, repeatable: true}, &answer)
	return answer, err
}
