package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// Explanation says why a rank was chosen, or why none can be.
type Explanation struct {
	Policy      string      `json:"policy"`      // name of the policy; "default" is the built-in cost
	PolicyType  string      `json:"policy_type"` // empty for the built-in cost
	DecidedBy   string      `json:"decided_by"`  // why it decides: section, option, file, front, weight or contract
	ISLTokens   uint64      `json:"isl_tokens"`  // length of the prompt
	BlockSize   uint32      `json:"block_size"`  // tokens
	Temperature float64     `json:"temperature"`
	Chosen      *ChosenRank `json:"chosen"`  // nil: none
	Refusal     string      `json:"refusal"` // why no rank was chosen, else empty

	Session string `json:"session"` // the request's, if it has an effect
	Group   string `json:"group"`   // the session that has started Session, if its children are kept together
	// Home is the rank of the session, or else of its group, before this choice; nil: there was none.
	Home         *Rank  `json:"home"`
	MovedBecause string `json:"moved_because"` // why another rank than Home was chosen; empty: none was

	Candidates []ExplainedRank `json:"candidates"`
	Excluded   []ExcludedRank  `json:"excluded"`
	Shadows    []ShadowChoice  `json:"shadows"`
}

// ChosenRank is the rank that was chosen, or would be. In a Decision it has the Rank alone.
type ChosenRank struct {
	Rank
	RankHeader  string `json:"rank_header"`   // how the engine's frontend wants the rank: local, global or none
	LocalDPRank uint32 `json:"local_dp_rank"` // the rank's number within its worker, from 0
}

// ExplainedRank is a rank that was compared; the lowest cost wins.
type ExplainedRank struct {
	Worker      uint64  `json:"worker_id"`
	DPRank      uint32  `json:"dp_rank"`
	RankHeader  string  `json:"rank_header"` // as in ChosenRank, likewise LocalDPRank
	LocalDPRank uint32  `json:"local_dp_rank"`
	Cost        float64 `json:"cost"`
	Unit        string  `json:"unit"` // blocks, seconds, requests, tokens or turns
	// Terms add up to the cost, in Unit; Taint is a factor of their sum.
	Terms struct {
		Wait    float64 `json:"wait"`
		Prefill float64 `json:"prefill"`
		Delay   float64 `json:"delay"`
		Decode  float64 `json:"decode"`
		Answer  float64 `json:"answer"`
		Taint   float64 `json:"taint"`
	} `json:"terms"`
	// CachedTokens are by tier, each beyond the ones before it.
	CachedTokens struct {
		Device uint64 `json:"device"`
		Host   uint64 `json:"host"`
		Disk   uint64 `json:"disk"`
	} `json:"cached_tokens"`
	UncachedTokens   uint64       `json:"uncached_tokens"`
	ActiveRequests   uint32       `json:"active_requests"`
	Foreign          *ForeignLoad `json:"foreign"` // load beside the reservations; nil: none
	PredictedWait    float64      `json:"predicted_wait_seconds"`
	PredictedPrefill float64      `json:"predicted_prefill_seconds"`
	PredictedDelay   float64      `json:"predicted_delay_seconds"`
	SpeedFactor      float64      `json:"speed_factor"` // the rank's time relative to its fleet's
	// OutputToken is the learned time of the rank for each token of an answer, in seconds; 0: it is unknown.
	OutputToken float64 `json:"output_token_seconds"`
	Source      string  `json:"source"` // learned, default or fallback
	// Fetch is what the rank's engine would fetch from another one in place of computing it; nil: it takes no hints, or
	// fetches are not priced.
	Fetch *PricedFetch `json:"fetch"`
}

// PricedFetch is what an engine would fetch, or why it would not.
type PricedFetch struct {
	Result  string  `json:"result"` // given, no_source, source_lost, source_stalled, source_busy, dearer or learning
	From    *Rank   `json:"from"`   // nil: there is no source
	Tokens  uint64  `json:"tokens"`
	Seconds float64 `json:"predicted_seconds"`
	Saves   float64 `json:"saves_seconds"`
}

// ExcludedRank is a rank that could not be chosen.
type ExcludedRank struct {
	Worker uint64 `json:"worker_id"`
	DPRank uint32 `json:"dp_rank"`
	Reason string `json:"reason"`
}

// ShadowChoice is what a shadow policy would have chosen.
type ShadowChoice struct {
	Policy       string  `json:"policy"`
	Worker       uint64  `json:"worker_id"`
	DPRank       uint32  `json:"dp_rank"`
	Same         bool    `json:"same"`
	CostForegone float64 `json:"cost_foregone"`         // in the shadow's unit
	TTFTForegone float64 `json:"ttft_foregone_seconds"` // negative: the shadow's choice would take longer
}

// Decision is a recent choice and its outcome.
type Decision struct {
	Time         time.Time `json:"time"`
	Model        string    `json:"model_name"`
	RoutingGroup string    `json:"routing_group"`
	ID           string    `json:"selection_id"`   // as the request gave it
	Reservation  string    `json:"reservation_id"` // the reservation that was booked in the same step, else empty
	TraceID      string    `json:"trace_id"`       // of the trace of the request; empty: it is not traced
	Reserved     bool      `json:"reserved"`

	CachedBlocks         uint64  `json:"cached_blocks"`
	CachedBlocksForegone uint64  `json:"cached_blocks_foregone"`
	PredictedTTFT        float64 `json:"predicted_ttft_seconds"`
	Outcome              struct {
		State      string   `json:"state"`               // selected, prefilling, decoding, freed or gone
		TTFT       *float64 `json:"ttft_seconds"`        // until prefill_complete; nil: not reported
		FreedAfter *float64 `json:"freed_after_seconds"` // nil: not freed
	} `json:"outcome"`
	Explanation
}

// Explain returns what Select would choose, and why. Nothing is booked, kept or counted. If
// no rank can be chosen, that is an answer with a Refusal, not an error.
func (c *Client) Explain(ctx context.Context, req SelectRequest) (Explanation, error) {
	var x Explanation
	err := c.do(ctx, call{method: http.MethodPost, path: "/explain", body: req, repeatable: true}, &x)
	return x, err
}

// TokenizeRequest is a request whose prompt is wanted in token ids.
type TokenizeRequest struct {
	// Model and RoutingGroup name the scope. If both are empty the request's own model names it, as it
	// does through the gateway.
	Model        string `json:"model_name,omitempty"`
	RoutingGroup string `json:"routing_group,omitempty"`
	// Request is the body as a client sends it to an engine: a chat, a completion, a response, or
	// Anthropic's messages.
	Request json.RawMessage `json:"request"`
}

// TokenizedPrompt is a prompt in token ids, with what else decides about the blocks that it shares.
type TokenizedPrompt struct {
	Model        string   `json:"model_name"`
	RoutingGroup string   `json:"routing_group"`
	LoRA         string   `json:"lora_name"`     // "": none
	CacheSalt    string   `json:"cache_salt"`    // "": none
	ModelLength  int      `json:"max_model_len"` // tokens; 0: the tokenizer does not say
	TokenIDs     []uint32 `json:"token_ids"`
}

// Prompt returns the prompt for a SelectRequest or a ProjectRequest.
func (p *TokenizedPrompt) Prompt() Prompt {
	return Prompt{TokenIDs: p.TokenIDs, LoRA: p.LoRA, CacheSalt: p.CacheSalt}
}

// Tokenize returns the token ids of a request's prompt, as the gateway has them looked up. Without a
// tokenizer the error's status is 501; where the tokenizer fails it is 502, 503 or 504.
func (c *Client) Tokenize(ctx context.Context, req TokenizeRequest) (TokenizedPrompt, error) {
	var p TokenizedPrompt
	err := c.do(ctx, call{method: http.MethodPost, path: "/tokenize", body: req, repeatable: true}, &p)
	return p, err
}

// Decisions lists at most limit of the recent choices of a scope, the newest first; a limit of 0
// is the service's.
func (c *Client) Decisions(ctx context.Context, scope Scope, limit int) ([]Decision, error) {
	return c.decisions(ctx, scope.queryWith("limit", limitText(limit)))
}

// DecisionOutlines is Decisions without their candidates, excluded ranks and shadows, which are most of the answer.
func (c *Client) DecisionOutlines(ctx context.Context, scope Scope, limit int) ([]Decision, error) {
	return c.decisions(ctx, scope.queryWith("limit", limitText(limit), "reasons", "false"))
}

func (c *Client) decisions(ctx context.Context, query string) ([]Decision, error) {
	var list []Decision
	err := c.do(ctx, call{method: http.MethodGet, path: "/decisions" + query, repeatable: true}, &list)
	return list, err
}

// Kubernetes returns what discovery in Kubernetes knows, as JSON; see the OpenAPI document.
func (c *Client) Kubernetes(ctx context.Context) (json.RawMessage, error) {
	var answer json.RawMessage
	err := c.do(ctx, call{method: http.MethodGet, path: "/kubernetes", noDialect: true, repeatable: true}, &answer)
	return answer, err
}

// SetPolicies makes a section worker_selection of a policy file, as JSON, that by which all scopes
// choose, of a fleet that shares its settings on all replicas. It returns the policies of all scopes, as
// JSON.
func (c *Client) SetPolicies(ctx context.Context, section json.RawMessage) (json.RawMessage, error) {
	var answer json.RawMessage
	body := struct {
		Section json.RawMessage `json:"worker_selection"`
	}{section}
	err := c.do(ctx, call{method: http.MethodPut, path: "/policies", body: body, repeatable: true}, &answer)
	return answer, err
}

// ClearPolicies takes SetPolicies back: the policies of the configuration choose.
func (c *Client) ClearPolicies(ctx context.Context) (json.RawMessage, error) {
	var answer json.RawMessage
	err := c.do(ctx, call{method: http.MethodDelete, path: "/policies", repeatable: true}, &answer)
	return answer, err
}

// Policies returns which policy decides in each scope, and what it has learned, as JSON;
// see the OpenAPI document.
func (c *Client) Policies(ctx context.Context, scope Scope) (json.RawMessage, error) {
	var answer json.RawMessage
	err := c.do(ctx, call{method: http.MethodGet, path: "/policies" + scope.query(), repeatable: true}, &answer)
	return answer, err
}
