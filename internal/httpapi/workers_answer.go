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

// appendReasons appends why a worker is not schedulable. A reason may name the
// worker's scope, in the 1.3 dialect's words.
func (d dialect) appendReasons(out []byte, w *catalog.Worker) []byte {
	said := " for model=" + w.Scope.Model + " tenant=" + w.Scope.Tenant
	return appendList(appendKey(out, "not_schedulable_reasons"), w.Reasons, func(out []byte, reason string) []byte {
		if d == dialect16 {
			reason = strings.Replace(reason, said, " for model="+w.Scope.Model+" routing_group="+w.Scope.Tenant, 1)
		}
		return appendString(out, reason)
	})
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
