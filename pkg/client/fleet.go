package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Fleet is every rank at a glance, or what has changed since an earlier Fleet.
type Fleet struct {
	Version string    `json:"version"` // for the next call
	Full    bool      `json:"full"`    // scopes and rows are all there are, not those that have changed
	Time    time.Time `json:"time"`    // when the view was renewed
	// IntervalSeconds is how often it is renewed at most.
	IntervalSeconds int           `json:"interval_seconds"`
	Roles           []string      `json:"roles"`  // of the caller: read, call, operate, peer or metrics
	Totals          FleetTotals   `json:"totals"` // of all ranks, changed or not
	Scopes          []FleetScope  `json:"scopes"`
	Rows            []FleetRow    `json:"rows"` // by scope, worker and rank
	Removed         []RemovedRank `json:"removed"`
	RemovedScopes   []uint64      `json:"removed_scopes"`
	Truncated       bool          `json:"truncated"` // there are more rows
}

// FleetTotals add up ranks.
type FleetTotals struct {
	Workers       uint64            `json:"workers"`
	Ranks         uint64            `json:"ranks"`
	States        map[string]uint64 `json:"states"`  // ranks
	Running       uint64            `json:"running"` // in the engines by their own word, else reservations
	Waiting       uint64            `json:"waiting"` // in the engines by their own word
	Queued        uint64            `json:"queued"`  // requests that wait for a rank
	Requests      uint64            `json:"requests"`
	ActiveBlocks  uint64            `json:"active_blocks"`
	TotalBlocks   uint64            `json:"total_blocks"`
	PrefillTokens uint64            `json:"prefill_tokens"`
	// Counts since the scopes got their first workers.
	Selections   uint64 `json:"selections"`
	Refused      uint64 `json:"refused"`
	PromptBlocks uint64 `json:"prompt_blocks"` // of the prompts for which a rank was chosen
	CachedBlocks uint64 `json:"cached_blocks"` // of these, what the rank had cached
}

// FleetScope is a model in a routing group.
type FleetScope struct {
	Scope        uint64 `json:"scope"` // its number in rows
	Model        string `json:"model_name"`
	RoutingGroup string `json:"routing_group"`
	BlockSize    uint32 `json:"block_size"` // tokens; 0: no worker is complete
	FleetTotals
	QueuedTokens uint64   `json:"queued_tokens"`
	HitRate      *float64 `json:"hit_rate"` // of the last half a minute; nil: no prompts
	UniqueBlocks uint64   `json:"unique_blocks"`
}

// FleetRow is a rank. Unknown values are 0, empty or nil.
type FleetRow struct {
	Rank
	Scope            uint64         `json:"scope"`
	Source           string         `json:"source"` // api, file, kubernetes or slots
	State            string         `json:"state"`  // ready, draining, overloaded, stalled, silent or incomplete
	Reason           string         `json:"reason"`
	Causes           []string       `json:"causes"`  // all that holds of the rank; the first decides the state
	Urgency          uint8          `json:"urgency"` // how much the rank needs somebody, 0 to 9
	Stream           string         `json:"stream"`  // connecting, replaying, live or stale; empty: no KV events
	Lag              uint64         `json:"lag"`     // messages that are not applied yet
	Lost             uint64         `json:"lost"`    // messages
	Requests         uint64         `json:"requests"`
	ActiveBlocks     uint64         `json:"active_blocks"`
	PrefillTokens    uint64         `json:"prefill_tokens"`
	CachedBlocks     uint64         `json:"cached_blocks"`
	TotalBlocks      uint64         `json:"total_blocks"`
	MaxBatchedTokens uint64         `json:"max_batched_tokens"`
	HitRate          *float64       `json:"hit_rate"`
	Reported         *FleetReported `json:"reported"`
	Foreign          *ForeignLoad   `json:"foreign"`
	Drain            *struct {
		Deadline *time.Time `json:"deadline"`
	} `json:"drain"`
}

// FleetReported is what a rank's engine says; nil is not known.
type FleetReported struct {
	Source        string     `json:"source"` // push, scrape or told
	Stale         bool       `json:"stale"`  // too old to be used
	Last          *time.Time `json:"last"`   // when a stale report came
	Running       *uint64    `json:"running"`
	Waiting       *uint64    `json:"waiting"`
	KVBlocksUsed  *uint64    `json:"kv_blocks_used"`
	KVBlocksTotal *uint64    `json:"kv_blocks_total"`
}

// RemovedRank is a rank that is gone.
type RemovedRank struct {
	Rank
	Scope uint64 `json:"scope"`
}

// History is the past of scopes or ranks.
type History struct {
	IntervalSeconds int             `json:"interval_seconds"`
	End             *time.Time      `json:"end"` // of the last point; nil: there is none
	Series          []HistorySeries `json:"series"`
	Truncated       bool            `json:"truncated"` // some scopes or ranks are left out
}

// HistorySeries has columns of equal length, the newest value last; nil is not known. A rank has
// the columns up to Lag.
type HistorySeries struct {
	Model         string     `json:"model_name"`
	RoutingGroup  string     `json:"routing_group"`
	Worker        *uint64    `json:"worker_id"`
	DPRank        *uint32    `json:"dp_rank"`
	Requests      []*float64 `json:"requests"`
	ActiveBlocks  []*float64 `json:"active_blocks"`
	PrefillTokens []*float64 `json:"prefill_tokens"`
	HitRate       []*float64 `json:"hit_rate"`
	DeviceBlocks  []*float64 `json:"device_blocks"`
	Lag           []*float64 `json:"lag"`
	Ranks         []*float64 `json:"ranks"`
	Queued        []*float64 `json:"queued"`
	Selections    []*float64 `json:"selections"` // in the interval
	Refused       []*float64 `json:"refused"`    // in the interval
	TTFT          []*float64 `json:"ttft_seconds"`
	PredictedTTFT []*float64 `json:"predicted_ttft_seconds"`
	HostBlocks    []*float64 `json:"host_blocks"`
	DiskBlocks    []*float64 `json:"disk_blocks"`
	ExtBlocks     []*float64 `json:"external_blocks"`
}

// Fleet returns every rank of a scope and, with the version of an earlier answer about the same
// scope, only what has changed since.
func (c *Client) Fleet(ctx context.Context, scope Scope, since string) (Fleet, error) {
	var f Fleet
	err := c.do(ctx, call{method: http.MethodGet, path: "/fleet" + scope.queryWith("since", since), repeatable: true}, &f)
	return f, err
}

// History returns the last hour of the scopes, or as much of it as back is.
func (c *Client) History(ctx context.Context, scope Scope, back time.Duration) (History, error) {
	return c.history(ctx, scope.queryWith("seconds", seconds(back)))
}

// WorkerHistory returns the last hour of a worker's ranks, or as much of it as back is.
func (c *Client) WorkerHistory(ctx context.Context, worker uint64, back time.Duration) (History, error) {
	q := url.Values{"worker_id": {strconv.FormatUint(worker, 10)}}
	if s := seconds(back); s != "" {
		q.Set("seconds", s)
	}
	return c.history(ctx, "?"+q.Encode())
}

func (c *Client) history(ctx context.Context, query string) (History, error) {
	var h History
	err := c.do(ctx, call{method: http.MethodGet, path: "/history" + query, repeatable: true}, &h)
	return h, err
}

// seconds returns a duration for a query, empty for none.
func seconds(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return strconv.FormatInt(int64(d/time.Second), 10)
}

// Prefixes are the prefixes of a scope with the most blocks times holders, as a tree.
type Prefixes struct {
	Model        string       `json:"model_name"`
	RoutingGroup string       `json:"routing_group"`
	Time         time.Time    `json:"time"`
	BlockSize    uint32       `json:"block_size"`    // tokens; 0: the scope has no workers
	UniqueBlocks uint64       `json:"unique_blocks"` // of the whole index
	HeldBlocks   uint64       `json:"held_blocks"`   // the same, each rank's copy in each tier counted
	Nodes        []PrefixNode `json:"nodes"`         // parents first
	Walked       uint64       `json:"walked"`        // runs looked at
	Truncated    bool         `json:"truncated"`     // there are more runs than are looked at
}

// PrefixNode is a run of blocks with the same holders.
type PrefixNode struct {
	ID            int               `json:"id"`     // position in the list
	Parent        *int              `json:"parent"` // nil: its prompts begin with it
	Depth         uint32            `json:"depth"`  // blocks before it
	Blocks        uint32            `json:"blocks"`
	Holders       uint32            `json:"holders"` // ranks
	Held          uint64            `json:"held"`    // blocks times holders
	SubtreeBlocks uint64            `json:"subtree_blocks"`
	SubtreeHeld   uint64            `json:"subtree_held"`
	Tiers         map[string]uint64 `json:"tiers"`      // holders by tier
	Ranks         []Rank            `json:"ranks"`      // some of the holders
	BlockHash     *int64            `json:"block_hash"` // local hash of the first block; nil: it has left
	LoRA          *string           `json:"lora_name"`  // where known, of nodes without a parent
	Salted        bool              `json:"salted"`
	Hottest       int               `json:"hottest"` // place among the hottest, from 1; 0: before one of them
}

// Prefixes returns at most limit of the hottest prefixes of a scope, and those before them; a limit
// of 0 is the service's. Names that the scope lacks are "default".
func (c *Client) Prefixes(ctx context.Context, scope Scope, limit int) (Prefixes, error) {
	var p Prefixes
	err := c.do(ctx, call{method: http.MethodGet, path: "/index/prefixes" + scope.queryWith("limit", limitText(limit)), repeatable: true}, &p)
	return p, err
}
