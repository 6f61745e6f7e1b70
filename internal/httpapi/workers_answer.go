package httpapi

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/select-service/select-service/pkg/catalog"
)

// appendWorker appends a worker's record. Unset members are null; three are
// left out when they are empty.
func (d dialect) appendWorker(out []byte, w *catalog.Worker) []byte {
	out = append(out, '{')
	out = appendUintField(out, "worker_id", w.ID)
	out = d.appendScope(out, w.Scope)
	out = appendStringField(out, "lifecycle", w.Lifecycle)
	out = appendOptString(out, "endpoint", w.Endpoint)
	out = appendOptString(out, "kv_events_endpoint", w.KVEventsEndpoint)
	out = appendByRank(out, "kv_events_endpoints", w.KVEventsEndpoints)
	out = appendOptString(out, "replay_endpoint", w.ReplayEndpoint)
	out = appendByRank(out, "replay_endpoints", w.ReplayEndpoints)
	out = appendOptUint(out, "block_size", w.BlockSize)
	out = appendOptUint(out, "data_parallel_start_rank", w.StartRank)
	out = appendOptUint(out, "data_parallel_size", w.Size)
	out = appendOptUint(out, "max_num_batched_tokens", w.MaxNumBatchedTokens)
	out = appendOptUint(out, "total_kv_blocks", w.TotalKVBlocks)
	out = appendOptString(out, "stable_routing_id", w.StableRoutingID)
	out = appendOptBool(out, "is_eagle", w.IsEagle)
	out = appendList(appendKey(out, "taints"), w.Taints, appendString)
	out = appendStringMap(out, "topology_domains", w.TopologyDomains)
	out = appendOptString(out, "kv_transfer_domain", w.KVTransferDomain)
	out = appendOptString(out, "kv_transfer_enforcement", w.KVTransferEnforcement)
	out = appendOptFloat32(out, "kv_transfer_preferred_weight", w.KVTransferPreferredWeight)
	if len(w.Reasons) > 0 {
		out = d.appendReasons(out, w)
	}
	return append(out, '}')
}

// appendReasons appends why a worker is not schedulable.
func (d dialect) appendReasons(out []byte, w *catalog.Worker) []byte {
	return appendList(appendKey(out, "not_schedulable_reasons"), w.Reasons, func(out []byte, reason string) []byte {
		if d == dialect16 {
			reason = withoutRank(w, inGroup(w.Scope, reason))
		}
		return appendString(out, reason)
	})
}

// inGroup gives a reason that names the worker's scope the 1.6 dialect's words.
func inGroup(sc catalog.Scope, reason string) string {
	model := " for model=" + sc.Model
	return strings.Replace(reason, model+" tenant="+sc.Tenant, model+" routing_group="+sc.Tenant, 1)
}

// withoutRank takes the rank out of a reason about replay_endpoint: to 1.6.1 it is
// the worker's, and only replay_endpoints are of ranks.
func withoutRank(w *catalog.Worker, reason string) string {
	head, tail, found := strings.Cut(reason, " dp_rank ")
	if !found || !strings.HasSuffix(head, "invalid replay endpoint for worker "+strconv.FormatUint(w.ID, 10)) {
		return reason
	}
	number, why, _ := strings.Cut(tail, ": ")
	rank, err := strconv.ParseUint(number, 10, 32)
	if _, own := w.ReplayEndpoints[uint32(rank)]; own || err != nil {
		return reason
	}
	return head + ": " + why
}

// appendByRank appends endpoints by rank, unless there are none.
func appendByRank(out []byte, name string, byRank map[uint32]string) []byte {
	if len(byRank) == 0 {
		return out
	}
	out = append(appendKey(out, name), '{')
	for _, rank := range slices.Sorted(maps.Keys(byRank)) {
		out = appendStringField(out, strconv.FormatUint(uint64(rank), 10), byRank[rank])
	}
	return append(out, '}')
}

// appendStringMap appends an object whose names are the clients' own.
func appendStringMap(out []byte, name string, m map[string]string) []byte {
	out = append(appendKey(out, name), '{')
	for i, key := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendString(out, key), ':')
		out = appendString(out, m[key])
	}
	return append(out, '}')
}

func appendOptBool(out []byte, name string, v *bool) []byte {
	if v == nil {
		return appendNull(out, name)
	}
	return strconv.AppendBool(appendKey(out, name), *v)
}

func appendOptFloat32(out []byte, name string, v *float32) []byte {
	if v == nil {
		return appendNull(out, name)
	}
	return appendFloat(appendKey(out, name), float64(*v), 32)
}
