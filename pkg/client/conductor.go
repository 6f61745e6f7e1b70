package client

import (
	"context"
	"encoding/json"
	"net/http"
)

// Conductor calls the indexer API of Mooncake's Conductor. Its errors are those of
// the Client, with Reason and Field.
type Conductor struct {
	client *Client
}

// Conductor returns the calls of the Conductor's API.
func (c *Client) Conductor() Conductor { return Conductor{client: c} }

// ask sends a body to one of its routes, which have no dialect.
func (c Conductor) ask(ctx context.Context, path string, body any, repeatable bool, out any) error {
	k := call{method: http.MethodPost, path: "/conductor" + path, noDialect: true, body: body, repeatable: repeatable}
	return c.client.do(ctx, k, out)
}

// Register makes the service follow a publisher of KV events; repeating the same
// registration changes nothing. ErrConflict: it is registered with other values, see
// Reason. ErrUnavailable: there are too many publishers.
func (c Conductor) Register(ctx context.Context, p Publisher) error {
	return c.ask(ctx, "/register", p, true, nil)
}

// Unregister removes publishers with their blocks, and returns their names as
// "instance|tenant|rank", sorted. ErrNotFound: no publisher matches. It is not retried
// when its answer is lost, because a second answer would not name what was removed.
func (c Conductor) Unregister(ctx context.Context, which Publishers) ([]string, error) {
	var answer struct {
		Removed []string `json:"removed_instances"`
	}
	err := c.ask(ctx, "/unregister", which, false, &answer)
	return answer.Removed, err
}

// Query returns how much of a prompt, given as TokenIDs, each instance has cached: by
// tenant, then by instance.
func (c Conductor) Query(ctx context.Context, q Question) (map[string]map[string]Hits, error) {
	return c.hits(ctx, "/query", q)
}

// QueryByHash is Query by the prompt's SeqHashes.
func (c Conductor) QueryByHash(ctx context.Context, q Question) (map[string]map[string]Hits, error) {
	return c.hits(ctx, "/query_by_hash", q)
}

func (c Conductor) hits(ctx context.Context, path string, q Question) (map[string]map[string]Hits, error) {
	var answer map[string]map[string]Hits
	err := c.ask(ctx, path, q, true, &answer)
	return answer, err
}

// Diagnose explains which rank has which blocks of a prompt, given as tokens or hashes,
// and why a match ends. The answer is JSON as the OpenAPI document describes it.
func (c Conductor) Diagnose(ctx context.Context, q Question) (json.RawMessage, error) {
	var answer json.RawMessage
	err := c.ask(ctx, "/diagnose", q, true, &answer)
	return answer, err
}

// Services lists the publishers in the order of their registration, with the state of
// their streams and of the index.
func (c Conductor) Services(ctx context.Context) (Services, error) {
	var s Services
	err := c.client.do(ctx, call{method: http.MethodGet, path: "/conductor/services", noDialect: true, repeatable: true}, &s)
	return s, err
}

// Health returns nil if the service answers.
func (c Conductor) Health(ctx context.Context) error {
	return c.client.do(ctx, call{method: http.MethodGet, path: "/conductor/health", noDialect: true, repeatable: true}, nil)
}

// Publisher is one stream of KV events. All fields but ReplayEndpoint
// and HashSeed identify it. Texts have at most 4096 bytes; empty ones stand for the
// service's defaults.
type Publisher struct {
	Endpoint       string  `json:"endpoint"` // ZMQ
	ReplayEndpoint string  `json:"replay_endpoint,omitempty"`
	Type           string  `json:"type"` // vLLM, SGLang, Mooncake or standard
	Model          string  `json:"modelname"`
	LoRA           string  `json:"lora_name,omitempty"`
	Tenant         string  `json:"tenant_id,omitempty"`
	Instance       string  `json:"instance_id"` // what queries name
	BlockSize      uint32  `json:"block_size"`  // tokens, above 0
	DPRank         uint32  `json:"dp_rank"`
	Salt           string  `json:"additionalsalt,omitempty"`
	HashSeed       *uint64 `json:"hash_seed,omitempty"` // nil: 1337
}

// Publishers matches publishers by instance and tenant, and by each other field that is
// not nil.
type Publishers struct {
	Instance       string  `json:"instance_id"`
	Tenant         string  `json:"tenant_id,omitempty"`
	Endpoint       *string `json:"endpoint,omitempty"`
	ReplayEndpoint *string `json:"replay_endpoint,omitempty"` // empty: none
	Type           *string `json:"type,omitempty"`
	Model          *string `json:"modelname,omitempty"`
	LoRA           *string `json:"lora_name,omitempty"` // empty: the base model
	BlockSize      *uint32 `json:"block_size,omitempty"`
	DPRank         *uint32 `json:"dp_rank,omitempty"`
	Salt           *string `json:"additionalsalt,omitempty"`
	HashSeed       *uint64 `json:"hash_seed,omitempty"`
}

// Question is a prompt to look up. Empty texts stand for the service's defaults.
type Question struct {
	Model     string `json:"model"`
	LoRA      string `json:"lora_name,omitempty"`
	Tenant    string `json:"tenant_id,omitempty"`
	Instance  string `json:"instance_id,omitempty"` // empty: all
	BlockSize uint32 `json:"block_size"`            // tokens, above 0
	CacheSalt string `json:"cache_salt,omitempty"`  // the publishers' Salt

	TokenIDs  []uint32 `json:"token_ids,omitzero"`
	SeqHashes []uint64 `json:"seq_hashes,omitzero"`  // rolling hashes of the complete blocks
	MaxBlocks uint32   `json:"max_blocks,omitempty"` // how many Diagnose lists, at most 4096; 0: 256
}

// Hits is how much of a prompt an instance has cached, in tokens.
type Hits struct {
	LongestMatched uint64            // longest prefix of which every block is on some medium of some rank
	Media          map[string]uint64 // the part on each medium: GPU, CPU, DISK and others
	DP             map[uint32]uint64 // by rank, on all its media together
}

// UnmarshalJSON reads the members; those without a field are media.
func (h *Hits) UnmarshalJSON(text []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return err
	}
	*h = Hits{Media: make(map[string]uint64)}
	for name, value := range members {
		var err error
		switch name {
		case "longest_matched":
			err = json.Unmarshal(value, &h.LongestMatched)
		case "DP":
			err = json.Unmarshal(value, &h.DP)
		default:
			var n uint64
			err = json.Unmarshal(value, &n)
			h.Media[name] = n
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Services are the publishers that are followed.
type Services struct {
	Services []Service `json:"services"`
	// SelectionWorkers is the number of workers of the selection service that queries
	// without LoRA adapter and salt show too, under their decimal ids.
	SelectionWorkers uint64 `json:"selection_workers"`
}

// Service is a publisher with its stream and its blocks.
type Service struct {
	Publisher
	// State of the stream: connecting, replaying, live or stale, when messages are
	// lost.
	State               string            `json:"state"`
	LastSequence        *uint64           `json:"last_sequence"` // of the messages applied; nil: none
	MessagesLost        uint64            `json:"messages_lost"`
	StreamRestarts      uint64            `json:"stream_restarts"` // how often the engine restarted
	UndecodableMessages uint64            `json:"undecodable_messages"`
	UnusedEvents        map[string]uint64 `json:"unused_events"` // by reason

	// The next fields are about standard events only, and counted by their event_id.
	LastEventID    *uint64 `json:"last_event_id"`
	Stale          bool    `json:"stale"` // some events are missing
	EventStreams   uint64  `json:"event_streams"`
	EventGaps      uint64  `json:"event_gaps"`
	EventsMissed   uint64  `json:"events_missed"`
	LateEvents     uint64  `json:"late_events"`
	Restarts       uint64  `json:"restarts"`        // how often the numbers of a stream started over
	BaseMismatches uint64  `json:"base_mismatches"` // events whose base_block_idx contradicts what is known

	Blocks map[string]uint64 `json:"blocks"` // by medium
	// Hashes says how the hashes of the blocks are known: tokens, standard, own,
	// unverified or none. The numbers below count blocks at the time of their events.
	Hashes           string `json:"hashes"`
	TokenBlocks      uint64 `json:"token_blocks"`      // hashes computed from tokens
	ConfirmedBlocks  uint64 `json:"confirmed_blocks"`  // the hash is that of a block known from tokens
	ResolvedBlocks   uint64 `json:"resolved_blocks"`   // the hash is an engine's own name of such a block
	UnverifiedBlocks uint64 `json:"unverified_blocks"` // neither
}
