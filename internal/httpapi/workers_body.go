package httpapi

import (
	"github.com/select-service/select-service/internal/jsonscan"
	"github.com/select-service/select-service/pkg/catalog"
)

// workerBody is the body of POST /workers. All but the worker's identity is as
// in a patch.
type workerBody struct {
	id       uint64
	scope    catalog.Scope
	settings catalog.Patch
}

// record is the whole record: what the body leaves out is unset.
func (b *workerBody) record() catalog.Record {
	p := &b.settings
	return catalog.Record{
		ID:                        b.id,
		Scope:                     b.scope,
		Endpoint:                  p.Endpoint,
		KVEventsEndpoint:          p.KVEventsEndpoint,
		KVEventsEndpoints:         p.KVEventsEndpoints,
		ReplayEndpoint:            p.ReplayEndpoint,
		ReplayEndpoints:           p.ReplayEndpoints,
		BlockSize:                 p.BlockSize,
		StartRank:                 p.StartRank,
		Size:                      p.Size,
		MaxNumBatchedTokens:       p.MaxNumBatchedTokens,
		TotalKVBlocks:             p.TotalKVBlocks,
		StableRoutingID:           p.StableRoutingID,
		IsEagle:                   p.IsEagle,
		Taints:                    p.Taints,
		TopologyDomains:           p.TopologyDomains,
		KVTransferDomain:          p.KVTransferDomain,
		KVTransferEnforcement:     p.KVTransferEnforcement,
		KVTransferPreferredWeight: p.KVTransferPreferredWeight,
	}
}

func resetWorkerBody(b *workerBody) {
	*b = workerBody{scope: catalog.Scope{Model: catalog.DefaultName, Tenant: catalog.DefaultName}}
}

// newWorkerShape is the body of POST /workers.
func newWorkerShape(d dialect) *jsonscan.Object[workerBody] {
	fields := settingsFields(func(b *workerBody) *catalog.Patch { return &b.settings }, false)
	fields = append(fields, scopeFields(d, func(b *workerBody) *catalog.Scope { return &b.scope })...)
	return jsonscan.NewObject(append(fields, must("worker_id", func(b *workerBody) *uint64 { return &b.id }, (*jsonscan.Scanner).Uint64))...)
}

// patchShape is the body of PATCH /workers/{worker_id}.
var patchShape = jsonscan.NewObject(settingsFields(func(p *catalog.Patch) *catalog.Patch { return p }, true)...)

// settingsFields describes the settings of a worker inside of a T. Only in a patch may
// lists and maps be null.
func settingsFields[T any](of func(*T) *catalog.Patch, patch bool) []jsonscan.Field[T] {
	// Go has no generic methods: one helper for each type of a member.
	text := func(name string, field func(*catalog.Patch) **string) jsonscan.Field[T] {
		return optional(name, of, field, (*jsonscan.Scanner).String)
	}
	u32 := func(name string, field func(*catalog.Patch) **uint32) jsonscan.Field[T] {
		return optional(name, of, field, (*jsonscan.Scanner).Uint32)
	}
	u64 := func(name string, field func(*catalog.Patch) **uint64) jsonscan.Field[T] {
		return optional(name, of, field, (*jsonscan.Scanner).Uint64)
	}
	collection := func(name string, read func(*jsonscan.Scanner, *catalog.Patch)) jsonscan.Field[T] {
		return jsonscan.Field[T]{Name: name, Read: func(s *jsonscan.Scanner, t *T) {
			if !patch || !s.Null() {
				read(s, of(t))
			}
		}}
	}
	return []jsonscan.Field[T]{
		text("endpoint", func(p *catalog.Patch) **string { return &p.Endpoint }),
		text("kv_events_endpoint", func(p *catalog.Patch) **string { return &p.KVEventsEndpoint }),
		text("replay_endpoint", func(p *catalog.Patch) **string { return &p.ReplayEndpoint }),
		text("stable_routing_id", func(p *catalog.Patch) **string { return &p.StableRoutingID }),
		text("kv_transfer_domain", func(p *catalog.Patch) **string { return &p.KVTransferDomain }),
		u32("block_size", func(p *catalog.Patch) **uint32 { return &p.BlockSize }),
		u32("data_parallel_start_rank", func(p *catalog.Patch) **uint32 { return &p.StartRank }),
		u32("data_parallel_size", func(p *catalog.Patch) **uint32 { return &p.Size }),
		u64("max_num_batched_tokens", func(p *catalog.Patch) **uint64 { return &p.MaxNumBatchedTokens }),
		u64("total_kv_blocks", func(p *catalog.Patch) **uint64 { return &p.TotalKVBlocks }),
		optional("is_eagle", of, func(p *catalog.Patch) **bool { return &p.IsEagle }, (*jsonscan.Scanner).Bool),
		optional("kv_transfer_enforcement", of, func(p *catalog.Patch) **string { return &p.KVTransferEnforcement }, readEnforcement),
		optional("kv_transfer_preferred_weight", of, func(p *catalog.Patch) **float32 { return &p.KVTransferPreferredWeight }, (*jsonscan.Scanner).Float32),
		collection("kv_events_endpoints", func(s *jsonscan.Scanner, p *catalog.Patch) { p.KVEventsEndpoints = readByRank(s) }),
		collection("replay_endpoints", func(s *jsonscan.Scanner, p *catalog.Patch) { p.ReplayEndpoints = readByRank(s) }),
		collection("taints", func(s *jsonscan.Scanner, p *catalog.Patch) { p.Taints = appendStrings(s, []string{}) }),
		collection("topology_domains", func(s *jsonscan.Scanner, p *catalog.Patch) { p.TopologyDomains = readStringMap(s) }),
	}
}

func optional[T, V any](
	name string, of func(*T) *catalog.Patch, field func(*catalog.Patch) **V, read func(*jsonscan.Scanner) V,
) jsonscan.Field[T] {
	return jsonscan.Field[T]{Name: name, Read: jsonscan.Optional(func(t *T) **V { return field(of(t)) }, read)}
}

func readEnforcement(s *jsonscan.Scanner) string {
	return s.Variant("required", "preferred")
}

func readByRank(s *jsonscan.Scanner) map[uint32]string {
	m := make(map[uint32]string)
	for rank := range s.MapUint32() {
		m[rank] = s.String()
	}
	return m
}

func readStringMap(s *jsonscan.Scanner) map[string]string {
	m := make(map[string]string)
	for name := range s.Map() {
		key := string(name)
		m[key] = s.String()
	}
	return m
}
