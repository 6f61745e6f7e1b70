package selection

import (
	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/pkg/catalog"
)

// Fetch says from which rank the engine of the chosen one can fetch KV caches of the prompt, in place of
// computing them.
type Fetch struct {
	Source   catalog.Rank
	Endpoint string // where engines ask the source for caches
	// Hashes are the names that the source's engine has for the first blocks of the prompt, as it has announced
	// them. It had these blocks, on its device or its host tier, when they were listed.
	Hashes []uint64
}

// MaxFetchHashes bounds Fetch.Hashes: a hint has 32 KiB of them, and listing them takes less than a millisecond.
const MaxFetchHashes = 4096

// addFetch tells the rank that computes the prompt where its engine can fetch from.
func (a *attempt) addFetch() {
	if !a.Hint || !a.reserve {
		return
	}
	fetch := a.findFetch(a.prefills())
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
	kind := hintType(c.chosen.Worker)
	picksOther := a.SharesFrontend != nil && a.SharesFrontend(c.chosen)
	if kind == "" || a.ByLoad || a.NoOverlap || picksOther || c.scope.state.Predicts() {
		return nil
	}
	m := a.api.selections.Of(a.Scope.Model)
	p, target := &a.prompt, c.chosen
	p.load()
	held := func(slot uint32) int {
		device, host, _ := p.overlap.At(slot)
		return int(device) + int(host)
	}
	own := held(target.Slot)
	most, source := own, (*catalog.Entry)(nil)
	of := linkedOf(target.Worker)
	silent := a.api.reports.Excluded(a.Scope)
	ranks := c.scope.snapshot.Ranks() // the smallest first
	for i := range ranks {
		e := &ranks[i]
		if n := held(e.Slot); n > most && e.Rank != target.Rank && isHintSource(e, kind) &&
			linkedOf(e.Worker).with(of) && silent[e.Rank] == nil {
			most, source = n, e
		}
	}
	if source == nil {
		m.Hinted(counts.NoHintSource)
		return nil
	}
	names := c.scope.state.Space.AppendNames(nil, source.Slot, p.local, min(most, MaxFetchHashes))
	if len(names) <= own {
		m.Hinted(counts.HintSourceLost)
		return nil
	}
	m.Hinted(counts.HintGiven)
	return &Fetch{Source: source.Rank, Endpoint: source.Worker.RouterHintSourceControlEndpoints[source.DP], Hashes: names}
}

// hintType returns with engines of which type a worker's passes on caches by hints; "": with none.
func hintType(w *catalog.Worker) string {
	if w.RouterHintWorkerType == nil {
		return ""
	}
	return *w.RouterHintWorkerType
}

// isHintSource reports whether engines of a type can be told to fetch caches of a rank.
func isHintSource(e *catalog.Entry, kind string) bool {
	w := e.Worker
	return hintType(w) == kind && w.RouterHintSourceControlEndpoints[e.DP] != "" &&
		(w.KVEventSourceMode == nil || *w.KVEventSourceMode != catalog.StateAgentEvents)
}
