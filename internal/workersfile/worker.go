package workersfile

import (
	"cmp"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/yamlread"
	"github.com/select-service/select-service/pkg/catalog"
)

// field reads the value of a key into a record.
type field func(n *yaml.Node, w *catalog.Record) error

// optional is a field where null is the same as no key.
func optional[V any](of func(*catalog.Record) **V, value read[V]) field {
	return func(n *yaml.Node, w *catalog.Record) error {
		if yamlread.IsNull(n) {
			return nil
		}
		v, err := value(n)
		*of(w) = &v
		return err
	}
}

func required[V any](of func(*catalog.Record) *V, value read[V]) field {
	return func(n *yaml.Node, w *catalog.Record) (err error) {
		*of(w), err = value(n)
		return err
	}
}

// fields are those of a worker but its names.
var fields = map[string]field{
	"worker_id":                    required(func(w *catalog.Record) *uint64 { return &w.ID }, u64),
	"endpoint":                     optional(func(w *catalog.Record) **string { return &w.Endpoint }, text),
	"kv_events_endpoint":           optional(func(w *catalog.Record) **string { return &w.KVEventsEndpoint }, text),
	"kv_events_endpoints":          required(func(w *catalog.Record) *map[uint32]string { return &w.KVEventsEndpoints }, byRank),
	"replay_endpoint":              optional(func(w *catalog.Record) **string { return &w.ReplayEndpoint }, text),
	"replay_endpoints":             required(func(w *catalog.Record) *map[uint32]string { return &w.ReplayEndpoints }, byRank),
	"block_size":                   optional(func(w *catalog.Record) **uint32 { return &w.BlockSize }, u32),
	"data_parallel_start_rank":     optional(func(w *catalog.Record) **uint32 { return &w.StartRank }, u32),
	"data_parallel_size":           optional(func(w *catalog.Record) **uint32 { return &w.Size }, u32),
	"max_num_batched_tokens":       optional(func(w *catalog.Record) **uint64 { return &w.MaxNumBatchedTokens }, u64),
	"total_kv_blocks":              optional(func(w *catalog.Record) **uint64 { return &w.TotalKVBlocks }, u64),
	"stable_routing_id":            optional(func(w *catalog.Record) **string { return &w.StableRoutingID }, text),
	"is_eagle":                     optional(func(w *catalog.Record) **bool { return &w.IsEagle }, boolean),
	"taints":                       required(func(w *catalog.Record) *[]string { return &w.Taints }, list),
	"topology_domains":             required(func(w *catalog.Record) *map[string]string { return &w.TopologyDomains }, byName),
	"kv_transfer_domain":           optional(func(w *catalog.Record) **string { return &w.KVTransferDomain }, text),
	"kv_transfer_enforcement":      optional(func(w *catalog.Record) **string { return &w.KVTransferEnforcement }, enforcement),
	"kv_transfer_preferred_weight": optional(func(w *catalog.Record) **float32 { return &w.KVTransferPreferredWeight }, float),
}

// worker reads an entry of the list. It has the names of the set where it has none
// of its own, and may not contradict them.
func (r *reader) worker(path string, n *yaml.Node, set catalog.ScopeFilter) (w catalog.Record) {
	var model, tenant, group *string
	id := false
	for key, value := range r.pairs(path, n) {
		at := join(path, key.Value)
		switch key.Value {
		case "model_name":
			model = name(r, at, value)
			contradicts(r, at, value, model, set.Model)
			continue
		case "tenant_id":
			tenant = name(r, at, value)
			contradicts(r, at, value, tenant, cmp.Or(set.Tenant, group))
			continue
		case "routing_group":
			group = name(r, at, value)
			contradicts(r, at, value, group, cmp.Or(set.Tenant, tenant))
			continue
		case "worker_id":
			id = true
		}
		read, known := fields[key.Value]
		if !known {
			r.fault(at, key, "unknown key")
		} else if err := read(value, &w); err != nil {
			r.fault(at, value, err.Error())
		}
	}
	if !id && n.Kind == yaml.MappingNode {
		r.fault(path, n, "worker_id is missing")
	}
	w.Scope = catalog.Scope{
		Model:  *cmp.Or(model, set.Model, new(catalog.DefaultName)),
		Tenant: *cmp.Or(tenant, group, set.Tenant, new(catalog.DefaultName)),
	}
	return w
}

// contradicts refuses a name that was given differently elsewhere.
func contradicts(r *reader, path string, n *yaml.Node, got, want *string) {
	if got != nil && want != nil && *got != *want {
		r.fault(path, n, fmt.Sprintf("%q is given elsewhere as %q", catalog.Clip(*got), catalog.Clip(*want)))
	}
}
