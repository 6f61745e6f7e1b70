package selection

import (
	"encoding/json"
	"strconv"

	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

// Hint says how the engine of a booking is told where to fetch KV caches from.
type Hint uint8

// The ways: not at all; by the caller (1.6.1); by its request, in the form of its worker's record: a header for
// llm-d's sidecar (Record.KVPeerEndpoint), or a member of the body (Record.KVHintsInBody).
const (
	NoHint Hint = iota
	HintInAnswer
	HintInRequest
)

// Fetch says from which rank the engine of the chosen one can fetch KV caches of the prompt, in place of
// computing them.
type Fetch struct {
	Source   catalog.Rank
	Endpoint string // where engines ask the source for caches
	Peer     bool   // Endpoint is a KVPeerEndpoint, for a sidecar. There are no Hashes.
	// Hashes are the names that the source's engine has for the first blocks of the prompt, as it has announced
	// them. It had these blocks, on its device or its host tier, when they were listed.
	Hashes []uint64
}

// AppendHint appends the JSON of the message by which engines are told, as dynamo-kv-router 1.6.1 writes it (kv_hints.rs)
// and SGLang reads it (python/sglang/srt/managers/kv_hints.py). id is the reservation's.
func (f *Fetch) AppendHint(out []byte, id string) []byte {
	text := func(s string) { // a string can always be written
		b, _ := json.Marshal(s)
		out = append(out, b...)
	}
	out = append(out, `{"protocol_version":"0.1","message_id":`...)
	text(id)
	out = append(out, `,"actions":[{"action_id":"a1","action_type":"kv.fetch","action_version":"1.0","payload":{"block_hashes":[`...)
	for i, hash := range f.Hashes {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendUint(out, hash, 10)
	}
	out = append(out, `],"source_control_endpoint":`...)
	text(f.Endpoint)
	return append(out, "}}]}"...)
}

// MaxFetchHashes bounds Fetch.Hashes: a hint has 32 KiB of them, and listing them takes less than a millisecond.
const MaxFetchHashes = 4096

// addFetch tells the rank that computes the prompt where its engine can fetch from.
func (a *attempt) addFetch() {
	if a.Hint == NoHint || !a.reserve {
		return
	}
	c := a.prefills()
	find := a.findFetch
	switch {
	case a.api.config.Fetch == selector.FetchOff:
		return
	case len(c.fetches) > 0:
		find = a.findPricedFetch
	}
	fetch := find(c)
	switch {
	case a.pair == nil:
		a.result.Fetch = fetch
	case a.pair.result.Prefill != nil:
		a.pair.result.Prefill.Fetch = fetch
	default:
		a.pair.result.Decode.Fetch = fetch
	}
}

// findFetch returns where the engine of the chosen rank can fetch from, nil: from nowhere. The rules are those
// of dynamo-kv-router 1.6.1 (services/selection/core/hint.rs, kv_hints.rs), but that the two ranks must be able
// to pass on caches to one another, and that ranks without a sign of life are no sources. It must be called
// outside all locks.
func (a *attempt) findFetch(c *choice) *Fetch {
	if !c.canFetch() || c.frontendPicks(&c.chosen) {
		return nil
	}
	f := new(Fetch)
	var endpointOf func(*catalog.Entry) string
	if endpointOf, f.Peer = a.Hint.sources(c.chosen.Worker); endpointOf == nil {
		return nil
	}
	m := a.api.selections.Of(a.Scope.Model)
	p, target := &a.prompt, c.chosen
	own := p.fetchable(target.Slot)
	most, slot := own, uint32(0)
	of := linkedOf(target.Worker)
	silent := a.api.reports.Excluded(a.Scope)
	ranks := c.scope.snapshot.Ranks() // the smallest first
	for i := range ranks {
		e := &ranks[i]
		n := p.fetchable(e.Slot)
		if n <= most || e.Rank == target.Rank || silent[e.Rank] != nil || e.Worker.OnlyEncodes() || !linkedOf(e.Worker).with(of) {
			continue
		}
		if at := endpointOf(e); at != "" {
			most, slot, f.Source, f.Endpoint = n, e.Slot, e.Rank, at
		}
	}
	if f.Endpoint == "" {
		m.Hinted(counts.NoHintSource)
		return nil
	}
	if !a.listNames(f, c, slot, min(most, MaxFetchHashes)) {
		m.Hinted(counts.HintSourceLost)
		return nil
	}
	return f
}

// listNames lists the names of the blocks that the source has now, in a slot, and counts the hint. It returns false if they are no
// more than the chosen rank has.
func (a *attempt) listNames(f *Fetch, c *choice, slot uint32, blocks int) bool {
	p := &a.prompt
	p.load()
	f.Hashes = c.scope.state.Space.AppendNames(nil, slot, p.local, blocks)
	more := len(f.Hashes) - p.fetchable(c.chosen.Slot)
	if more <= 0 {
		return false
	}
	if f.Peer {
		f.Hashes = nil
	}
	a.api.selections.Of(a.Scope.Model).HintGiven(uint64(more) * uint64(p.size.BlockSize))
	return true
}

// fetchable returns how many blocks of the prompt, from the first one on, other engines can fetch from a rank.
func (p *prompt) fetchable(slot uint32) int {
	device, host, _ := p.overlap.At(slot)
	return int(device) + int(host)
}

// canFetch reports whether it is known which ranks have the prompt's blocks.
func (c *choice) canFetch() bool { return !c.ByLoad && !c.scope.state.Predicts() }

// frontendPicks reports whether the frontend of a rank may give the request to another rank of its worker.
func (c *choice) frontendPicks(e *catalog.Entry) bool {
	return c.SharesFrontend != nil && c.SharesFrontend(*e)
}

// sources returns where engines ask a rank for caches that the target's engine can fetch, as a function that is
// "" for ranks that are no sources; nil: the target's engine is not told of any.
func (h Hint) sources(target *catalog.Worker) (endpointOf func(*catalog.Entry) string, peers bool) {
	if h == HintInRequest {
		if own := peerEndpoint(target); own != "" {
			return func(e *catalog.Entry) string {
				if at := peerEndpoint(e.Worker); at != own {
					return at
				}
				return ""
			}, true
		}
		if in := target.KVHintsInBody; in == nil || !*in {
			return nil, false
		}
	}
	kind := hintType(target)
	if kind == "" {
		return nil, false
	}
	return func(e *catalog.Entry) string {
		if hintType(e.Worker) != kind {
			return ""
		}
		return controlEndpoint(e)
	}, false
}

// controlEndpoint returns where engines ask a rank for caches; "": nowhere.
func controlEndpoint(e *catalog.Entry) string {
	if w := e.Worker; w.KVEventSourceMode == nil || *w.KVEventSourceMode != catalog.StateAgentEvents {
		return w.RouterHintSourceControlEndpoints[e.DP]
	}
	return ""
}

// hintType returns with engines of which type a worker's passes on caches by hints; "": with none.
func hintType(w *catalog.Worker) string {
	if w.RouterHintWorkerType == nil {
		return ""
	}
	return *w.RouterHintWorkerType
}

// peerEndpoint returns by which name sidecars fetch from a worker's engine; "": by none.
func peerEndpoint(w *catalog.Worker) string {
	if w.KVPeerEndpoint == nil {
		return ""
	}
	return *w.KVPeerEndpoint
}
