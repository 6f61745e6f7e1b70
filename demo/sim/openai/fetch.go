package openai

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/select-service/select-service/demo/sim/node"
	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/internal/simulation/engine"
)

// sourceHeader names the engine that has the KV cache of the prompt, for llm-d's sidecar with its P2P connector.
const sourceHeader = "X-Kv-Cache-Source-Host-Port"

// kvHints is the member of a request's body that SGLang reads (python/sglang/srt/managers/kv_hints.py). The control endpoint of a
// simulated engine's rank is http://HOST:PORT/ranks/RANK, with ranks from 0.
type kvHints struct {
	Actions []struct {
		Type    string `json:"action_type"`
		Payload struct {
			Source string   `json:"source_control_endpoint"`
			Hashes []uint64 `json:"block_hashes"`
		} `json:"payload"`
	} `json:"actions"`
}

// fetchPatience is how long a source may take to answer. One that is gone, or frozen, is done without.
const fetchPatience = 2 * time.Second

// fetch asks the source that a request names for the KV cache of the prompt, for the rank that is to compute it. Where there is
// none, or it is gone or has evicted the blocks, nothing is transferred, and the rank computes.
func (s *Server) fetch(r *http.Request, hints *kvHints, rank *node.Node, of *simapi.GenerateRequest) (t simapi.Transfer) {
	keys := engine.Keys{LoRA: of.LoRA, Salt: of.Salt}
	asked := simapi.FetchRequest{Domain: s.opt.Pairing.Domain}
	source := ""
	if at := r.Header.Get(sourceHeader); at != "" {
		source, asked.TokenIDs, asked.LoRA, asked.Salt = "http://"+at, of.TokenIDs, of.LoRA, of.Salt
	} else if hints != nil {
		for _, a := range hints.Actions {
			if a.Type == "kv.fetch" {
				source, asked.BlockHashes = a.Payload.Source, a.Payload.Hashes
			}
		}
	}
	if source == "" {
		return t
	}
	asked.Has = rank.Cached(keys, of.TokenIDs)
	ctx, cancel := context.WithTimeout(r.Context(), fetchPatience)
	defer cancel()
	answer, status, err := post(ctx, source+simapi.PathFetch, make(http.Header), asked)
	if err != nil || status != http.StatusOK || json.Unmarshal(answer, &t) != nil {
		return simapi.Transfer{}
	}
	return t
}

// serveFetch sends another engine what one of the ranks has: that with the most of the asked tokens, for a request that names blocks
// the first one.
func (s *Server) serveFetch(ranks ...*node.Node) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var asked simapi.FetchRequest
		if !decode(w, r, &asked) {
			return
		}
		most, from := -1, ranks[0]
		for _, rank := range ranks {
			if n := rank.Cached(engine.Keys{LoRA: asked.LoRA, Salt: asked.Salt}, asked.TokenIDs); n > most {
				most, from = n, rank
			}
		}
		reply(w, http.StatusOK, from.Send(&asked, s.opt.Pairing.link(asked.Domain)))
	}
}
