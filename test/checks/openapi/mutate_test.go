package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// mutant is an answer that nobody may give.
type mutant struct {
	name   string
	status int
	header http.Header
	answer []byte
}

// optional are members that may be left out, by the end of their path.
var optional = []string{
	".kv_events_endpoints", ".replay_endpoints", ".load_endpoint", ".load_endpoints", ".load_metrics", "load_metrics.url", "load_metrics.interval_seconds", ".rank_endpoints", ".describe", ".described", "described.engine", "described.version", "described.total_kv_blocks", "described.max_num_batched_tokens", ".role", ".rank_header", ".prefill_rank_header", ".kv_events", ".kv_events_block_size", ".model_aliases", ".local_dp_rank", ".adapters", ".not_schedulable_reasons", ".source", ".drain", ".deadline", ".recovery", ".peer", // workers, readiness
	".lease_seconds", ".retry_after", ".decode_busy", ".worker_load", "worker_load.total_kv_blocks", ".prefill_busy", "/select_pair.reason", // selections
	".foreign", ".reported", "reported.running", "reported.waiting", "reported.kv_tokens_used", "reported.kv_tokens_total", "reported.waiting_uncached_tokens", "reported.max_running", // loads
	".explanation", ".refusal", ".policy_type", "decisions[].selection_id", "decisions[].reservation_id", "decisions[].trace_id", // explanations
	"services[].replay_endpoint", ".field", // publishers, errors
	"rows[].requests", "rows[].waiting", "rows[].active_blocks", "rows[].cached_blocks", "rows[].total_blocks", "rows[].max_batched_tokens", "rows[].prefill_tokens", "rows[].stream", "reported.kv_blocks_used", "scopes[].block_size", "/replicas.stats", // what operators look at
	".assumed", ".freed", ".ended", ".leases_ended", ".sessions", ".lease_ms", ".renewed_ms", // snapshots
}

// dataMaps are members whose own members are data, each of which may be missing.
var dataMaps = []string{
	".dp", ".DP", ".kv_events_endpoints", ".replay_endpoints", ".load_endpoints", ".rank_endpoints", "described.from", ".topology_domains", ".blocks", ".unused_events", // of workers and publishers
	".states",                                                // of ranks
	".seen", ".assumed", ".freed", ".ended", ".leases_ended", // snapshots
	"/dump", "/query", "/query.default", "/query_by_hash", "/query_by_hash.default", // whole answers
}

// choosing are the routes whose answers have the caller's own id only if there is
// one; in 1.6 the id of a booking is always there.
var choosing = []string{"/select", "/v1.3/select", "/v1.6/select", "/select_and_reserve", "/v1.3/select_and_reserve"}

func hasEnd(ends []string, place string) bool {
	return slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(place, end) })
}

// mayLack reports whether a member may be missing.
func (e *exchange) mayLack(place string) bool {
	own := slices.Contains(choosing, e.target) && place == e.target+".selection_id"
	return hasEnd(optional, place) || own && !bytes.Contains(e.answer, []byte(`"sequence_hashes"`))
}

// mutants are all that are made of an answer by one change.
func mutants(e *exchange) []mutant {
	list := []mutant{
		{"another status", 299, e.header, e.answer},
		{"another content type", e.status, http.Header{"Content-Type": {"text/html"}}, e.answer},
	}
	if len(e.answer) == 0 {
		return append(list[:1], mutant{"a body", e.status, e.header, []byte("{}")})
	}
	if e.header.Get("Content-Type") != "application/json" {
		return list
	}
	var root any
	dec := json.NewDecoder(bytes.NewReader(e.answer))
	dec.UseNumber()
	if err := dec.Decode(&root); err != nil {
		return append(list, mutant{"itself: " + err.Error(), e.status, e.header, e.answer})
	}
	// Each change is made in place and taken back.
	keep := func(name string) {
		text, err := json.Marshal(root)
		if err != nil {
			panic(err) // it came from JSON
		}
		list = append(list, mutant{name, e.status, e.header, text})
	}
	e.alter(root, e.target, func(v any) { root = v }, keep)
	return append(list, mutant{"half of it", e.status, e.header, e.answer[:len(e.answer)/2]})
}

// alter changes a value and all below it; set puts another value in its place.
func (e *exchange) alter(v any, at string, set func(any), keep func(name string)) {
	for _, other := range otherTypes(v) {
		set(other)
		keep(fmt.Sprintf("%T at %s", other, at))
	}
	set(v)
	switch v := v.(type) {
	case object:
		v["unexpected"] = nil
		keep("a member too much in " + at)
		delete(v, "unexpected")
		for _, name := range slices.Sorted(maps.Keys(v)) {
			member := v[name]
			place := at + "." + name
			if !hasEnd(dataMaps, at) && !e.mayLack(place) {
				delete(v, name)
				keep("without " + place)
			}
			v[name] = member
			e.alter(member, place, func(other any) { v[name] = other }, keep)
		}
	case []any:
		for i, item := range v {
			e.alter(item, at+"[]", func(other any) { v[i] = other }, keep)
		}
	}
}

// otherTypes are values of a type that v has not.
func otherTypes(v any) []any {
	switch v.(type) {
	case object:
		return []any{[]any{}, "x"}
	case []any:
		return []any{object{}, "x"}
	case string:
		return []any{json.Number("1"), object{}}
	case json.Number, bool:
		return []any{"x", object{}}
	}
	return []any{object{"y": "z"}} // null: most others may be in its place
}
