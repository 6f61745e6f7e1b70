package describe

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/select-service/select-service/pkg/catalog"
)

// serverInfo is what is used of SGLang's server information.
type serverInfo struct {
	Version       string  `json:"version"`
	Model         string  `json:"served_model_name"`
	PageSize      *uint32 `json:"page_size"`
	Shards        *uint32 `json:"dcp_size"` // that a page is spread over: a block is that much larger
	Ranks         *uint32 `json:"dp_size"`
	Nodes         *uint32 `json:"nnodes"`
	AttentionDP   bool    `json:"enable_dp_attention"`
	Tokens        *uint64 `json:"max_total_num_tokens"` // capacity of one rank's cache
	PrefillTokens *uint64 `json:"max_prefill_tokens"`
	// Disaggregation is null, prefill or decode, as a word.
	Disaggregation string `json:"disaggregation_mode"`
	Speculation    string `json:"speculative_algorithm"`
	// KVEvents is a kvEvents; null: the engine publishes none.
	KVEvents json.RawMessage `json:"kv_events"`
}

// isSGLang tells the answer from that of other engines at the same path.
func (i *serverInfo) isSGLang() bool { return i.PageSize != nil || i.KVEvents != nil }

// kvEvents describes SGLang's sockets.
type kvEvents struct {
	Publisher  string  `json:"publisher"`
	Host       string  `json:"endpoint_host"`
	Port       uint32  `json:"endpoint_port_base"`
	BlockSize  uint32  `json:"block_size"`
	Ranks      uint32  `json:"dp_size"`
	LoadPort   *uint32 `json:"load_endpoint_port_base"`
	ReplayPort *uint32 `json:"replay_endpoint_port_base"`
}

var (
	errNoEvents   = errors.New("the engine publishes no KV events (--kv-events-config)")
	errNoPageSize = errors.New("it has no page_size")
)

// info asks for the server information; path is the one that has answered. If the engine knows
// no such path, the status of the error is 404.
func (q *question) info() (info serverInfo, path string, err error) {
	for _, path = range q.engine.InfoPaths {
		if err = q.queryJSON(q.ctx, q.base, path, &info); statusOf(err) != http.StatusNotFound {
			break
		}
	}
	return info, path, err
}

// sglang fills in the description from the server information, beside the list of models.
func (q *question) sglang(info serverInfo, path string) {
	q.reported.Version = catalog.Clip(info.Version)
	if q.reported.Model == "" && checkName(info.Model) == nil {
		q.reported.Model = info.Model
		q.set(catalog.FieldModel, path)
	}
	if err := q.sockets(info, path); err != nil {
		q.unknown(notUnderstood(q.base, path, err), catalog.FieldKVEventsEndpoints)
		if err := q.withoutSockets(info, path); err != nil {
			q.unknown(notUnderstood(q.base, path, err), catalog.FieldBlockSize)
		}
	}
	if info.Tokens != nil && info.PageSize != nil && *info.PageSize > 0 {
		q.reported.TotalKVBlocks = *info.Tokens / uint64(*info.PageSize)
		q.set(catalog.FieldTotalKVBlocks, path)
	}
	if mode := info.Disaggregation; mode == catalog.RolePrefill || mode == catalog.RoleDecode {
		q.reported.Role = mode
		q.set(catalog.FieldRole, path)
	}
	if q.reported.Eagle = slices.Contains(eagle, strings.ToUpper(info.Speculation)); q.reported.Eagle {
		q.set(catalog.FieldEagle, path)
	}
	if info.PrefillTokens != nil && *info.PrefillTokens > 0 {
		q.reported.MaxNumBatchedTokens = *info.PrefillTokens
		q.set(catalog.FieldMaxNumBatchedTokens, path)
	}
}

// eagle are the algorithms of speculation for which SGLang's radix cache has keys of two tokens.
var eagle = []string{"EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP"}

// sockets reads block size, ranks and endpoints from what the engine says of its publishers.
func (q *question) sockets(info serverInfo, path string) error {
	if len(info.KVEvents) == 0 || string(info.KVEvents) == "null" {
		return errNoEvents
	}
	var e kvEvents
	if err := json.Unmarshal(info.KVEvents, &e); err != nil {
		return fmt.Errorf("kv_events: %w", err)
	}
	switch {
	case e.Publisher != "zmq":
		return fmt.Errorf("its publisher of KV events is %q, not zmq", catalog.Clip(e.Publisher))
	case e.BlockSize == 0:
		return errors.New("its KV events have the block size 0")
	case e.Ranks == 0 || e.Ranks > catalog.MaxRanks:
		return fmt.Errorf("its dp_size is %d, not a number from 1 to %d", e.Ranks, catalog.MaxRanks)
	}
	events, err := q.endpoints(e.Host, e.Port, 0, e.Ranks)
	if err != nil {
		return err
	}
	here := info.ranksHere(e.Ranks)
	q.reported.KVEventsEndpoints = upTo(here, events)
	q.reported.BlockSize = e.BlockSize
	q.set(catalog.FieldBlockSize, path)
	q.set(catalog.FieldKVEventsEndpoints, path)
	q.ranks(0, e.Ranks, path)
	if here < e.Ranks {
		q.unknown(fmt.Errorf("the ranks from %d on are on other nodes of the engine", here), catalog.FieldKVEventsEndpoints)
	}
	for _, further := range []struct {
		field string
		port  *uint32
		at    *map[uint32]string
	}{
		{catalog.FieldReplayEndpoints, e.ReplayPort, &q.reported.ReplayEndpoints},
		{catalog.FieldLoadEndpoints, e.LoadPort, &q.reported.LoadEndpoints},
	} {
		if further.port == nil {
			continue
		}
		all, err := q.endpoints(e.Host, *further.port, 0, e.Ranks)
		if err != nil {
			q.unknown(notUnderstood(q.base, path, err), further.field)
			continue
		}
		*further.at = upTo(here, all)
		q.set(further.field, path)
	}
	return nil
}

// ranksHere returns how many of the ranks are at the URL's host. With data-parallel attention an
// engine on several nodes spreads its ranks over them, the first ones on the first node, which
// serves HTTP.
func (i *serverInfo) ranksHere(ranks uint32) uint32 {
	if i.AttentionDP && i.Nodes != nil && *i.Nodes > 1 {
		return max(1, ranks / *i.Nodes)
	}
	return ranks
}

// withoutSockets reads block size and ranks of an engine that describes no publishers.
func (q *question) withoutSockets(info serverInfo, path string) error {
	if n := info.Ranks; n != nil && *n > 0 && *n <= catalog.MaxRanks {
		q.ranks(0, *n, path)
	}
	if info.PageSize == nil || *info.PageSize == 0 {
		return errNoPageSize
	}
	size := uint64(*info.PageSize)
	if info.Shards != nil && *info.Shards > 1 {
		size *= uint64(*info.Shards)
	}
	if size >= 1<<32 {
		return fmt.Errorf("its page_size is %d", size)
	}
	q.reported.BlockSize = uint32(size)
	q.set(catalog.FieldBlockSize, path)
	return nil
}

// upTo returns the endpoints of the ranks below n.
func upTo(n uint32, byRank map[uint32]string) map[uint32]string {
	for dp := range byRank {
		if dp >= n {
			delete(byRank, dp)
		}
	}
	return byRank
}
