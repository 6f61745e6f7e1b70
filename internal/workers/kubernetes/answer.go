package kubernetes

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
)

// AnswerOf returns what an engine's description says to discovery.
func AnswerOf(d *catalog.Description) mapping.Answer {
	a := mapping.Answer{
		Model: d.Model, Aliases: d.Aliases, Further: d.Further, Adapters: d.Adapters, BlockSize: d.BlockSize, TotalKVBlocks: d.TotalKVBlocks, KVTokens: d.KVTokens, Ranks: d.Size,
		EventsPort: firstPort(d.KVEventsEndpoints), ReplayPort: firstPort(d.ReplayEndpoints), LoadPort: firstPort(d.LoadEndpoints),
		NoModel: d.Unknown[catalog.FieldModel], NoBlockSize: d.Unknown[catalog.FieldBlockSize],
		Unanswered: d.Unanswered,
	}
	if d.Engine != "" {
		a.Eagle = &d.Eagle
	}
	return a
}

// answerIn returns what the engine of a discovered worker may have said, with its key: a record does not
// tell that from what was configured. ok is false if the worker has not enough of it.
func answerIn(w *catalog.Worker) (key askKey, said mapping.Answer, ok bool) {
	r := &w.Record
	if r.Source.Kind != catalog.SourceKubernetes || r.Endpoint == nil || r.BlockSize == nil || len(r.Faults) > 0 {
		return key, said, false
	}
	if key, ok = keyIn(r); !ok {
		return key, said, false
	}
	said = mapping.Answer{
		Restored: true, Model: r.Scope.Model, Adapters: r.Adapters, Aliases: r.Aliases, BlockSize: *r.BlockSize, Ranks: r.RankCount(), Eagle: r.IsEagle,
		EventsPort: onePort(r.KVEventsEndpoint, r.KVEventsEndpoints), ReplayPort: onePort(r.ReplayEndpoint, r.ReplayEndpoints),
		LoadPort: onePort(r.LoadEndpoint, r.LoadEndpoints),
	}
	if r.TotalKVBlocks != nil {
		said.TotalKVBlocks = *r.TotalKVBlocks
	}
	return key, said, true
}

// keyIn returns the key of the engine of a discovered worker's record.
func keyIn(r *catalog.Record) (key askKey, ok bool) {
	if r.Endpoint == nil {
		return key, false
	}
	at, err := url.Parse(*r.Endpoint)
	if err != nil {
		return key, false
	}
	return askKey{cmp.Or(r.Source.UID, at.Hostname()), portIn(*r.Endpoint)}, true
}

// onePort returns the port of the only endpoint of a record, or of its lowest rank's; 0 if there
// is none.
func onePort(only *string, byRank map[uint32]string) uint16 {
	if only != nil {
		return portIn(*only)
	}
	return firstPort(byRank)
}

// firstPort returns the port of the lowest rank, 0 if there is none.
func firstPort(byRank map[uint32]string) uint16 {
	if len(byRank) == 0 {
		return 0
	}
	return portIn(byRank[slices.Min(slices.Collect(maps.Keys(byRank)))])
}

// portIn returns the port at the end of an endpoint.
func portIn(endpoint string) uint16 {
	n, _ := strconv.ParseUint(endpoint[strings.LastIndexByte(endpoint, ':')+1:], 10, 16)
	return uint16(n)
}

// clipped returns the first of some names for the log.
func clipped(names []string) []string {
	short := make([]string, 0, 8)
	for _, n := range names[:min(len(names), cap(short))] {
		short = append(short, catalog.Clip(n))
	}
	return short
}
