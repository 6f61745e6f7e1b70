package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Field is one field of a record that describes the worker's engine. Everything that reads, writes,
// compares, checks or patches records goes by the rows of Fields, so that a new field is a row, its
// text in the API's description and its use.
type Field struct {
	// Name is the name of its member in JSON and of its key in a workers file.
	Name string
	// Of finds the field in a record. Its type is the field's kind: a Pointer of string, bool, uint32,
	// uint64, float32 or LoadMetrics, a List, or a Map by uint32 or string.
	Of Accessor
	// Words are the only values that a text may be given; nil: any text is allowed.
	Words []string
	// Dynamo: Dynamo's records have the member, so that an unset one is shown as null or empty. Other
	// members, and maps by rank, are left out while they are unset.
	Dynamo bool
	// EngineOnly: the engine alone says it; it is neither registered nor patched.
	EngineOnly bool
	// Doc is the text of the field in the API's description and in the Go client.
	Doc string
	// Pods: a source of pods in Kubernetes and a pod's annotation may say it. What else a pod's record
	// has follows from the pod.
	Pods bool
	// Most is the largest number that a number may be; 0: any number of its kind.
	Most uint64

	// MaxBytes limits each text. 0: texts and entries have no limit; of Words the catalog takes no others.
	MaxBytes   int
	MaxEntries int // of a list or of a map by name, at most
	// check returns why a record with the field can never be attached.
	check func(*Record) error
}

// fields has the rows in the order of the members of a worker in JSON.
var fields = [...]Field{
	{
		Name: "endpoint", Of: Pointer[string](func(r *Record) **string { return &r.Endpoint }), Dynamo: true, MaxBytes: maxEndpoint,
		Doc: "Where clients send requests. Needed to be schedulable.",
	},
	{
		Name: FieldKVEventsEndpoint, Of: Pointer[string](func(r *Record) **string { return &r.KVEventsEndpoint }), Dynamo: true, MaxBytes: maxEndpoint,
		Doc: "The event stream of a worker with one rank.",
	},
	{
		Name: FieldKVEventsEndpoints, Of: Map[uint32](func(r *Record) *map[uint32]string { return &r.KVEventsEndpoints }), Dynamo: true, MaxBytes: maxEndpoint,
		Doc: "The event streams of ranks, by data-parallel rank, in decimal.",
	},
	{
		Name: FieldReplayEndpoint, Of: Pointer[string](func(r *Record) **string { return &r.ReplayEndpoint }), Dynamo: true, MaxBytes: maxEndpoint,
		Doc: "Where the events of ranks that have no replay endpoint of their own are asked for again.",
	},
	{
		Name: FieldReplayEndpoints, Of: Map[uint32](func(r *Record) *map[uint32]string { return &r.ReplayEndpoints }), Dynamo: true, MaxBytes: maxEndpoint,
		Doc: "Where the events of ranks are asked for again, by data-parallel rank, in decimal.",
	},
	{
		Name: "kv_event_copies", Of: Pointer[string](func(r *Record) **string { return &r.KVEventCopies }), Words: []string{CountCopies, SetCopies}, Pods: true,
		Doc: "What a stored event says of a block that the rank has already. `count`: the engine has one more copy, and announces the end of each (vLLM). `set`: nothing new, and one removal ends it (vLLM with `kv_cache_report_mode=full`). Unset is `count`.",
	},
	{
		Name: "kv_event_rank", Of: Pointer[string](func(r *Record) **string { return &r.KVEventRank }), Words: []string{RankOfBatch, RankOfStream},
		Doc: "Whose events those of a rank's stream are. `batch`: of the rank that a batch states, else of the stream's. `stream`: of the rank whose endpoint the stream has, whatever its batches state, as of engines that know nothing of one another and all state rank 0. Unset is `batch`.",
	},
	{
		Name: "kv_events", Of: Pointer[bool](func(r *Record) **bool { return &r.KVEvents }), Pods: true,
		Doc: "`false`: the engine publishes no KV events (embeddings, or no prefix caching), so that the worker needs no endpoint for them, and has no stream. Unset is `true`.",
	},
	{
		Name: "attention_chunk_size", Of: Pointer[uint64](func(r *Record) **uint64 { return &r.AttentionChunkSize }), Pods: true,
		Doc: "Tokens per chunk of a model with chunked local attention, which engines' events do not state. Without it, or with 0, such a model's prefixes are taken as shorter than they may be.",
	},
	{
		Name: FieldMaxModelLen, Of: Pointer[uint32](func(r *Record) **uint32 { return &r.MaxModelLen }), Pods: true,
		Doc: "The context length of the model in tokens, by which a prompt is shortened as the engine shortens it. An engine that describes itself tells it (vLLM and SGLang).",
	},
	{
		Name: FieldLoadEndpoint, Of: Pointer[string](func(r *Record) **string { return &r.LoadEndpoint }), MaxBytes: maxEndpoint,
		Doc: "The load stream of a worker with one rank; an empty one is none.",
	},
	{
		Name: FieldLoadEndpoints, Of: Map[uint32](func(r *Record) *map[uint32]string { return &r.LoadEndpoints }), MaxBytes: maxEndpoint, check: (*Record).checkLoadEndpoints,
		Doc: "The load streams of ranks that the worker has (SGLang's `--load-publish-endpoint`), by data-parallel rank, in decimal. An empty endpoint is none.",
	},
	{
		Name: "load_metrics", Of: Pointer[LoadMetrics](func(r *Record) **LoadMetrics { return &r.LoadMetrics }), MaxBytes: maxEndpoint, check: (*Record).checkLoadMetrics, Pods: true,
		Doc: "Reads the load of the ranks from the Prometheus metrics of its engine; unset, they are not read. A patch replaces it as a whole.",
	},
	{
		Name: FieldRole, Of: Pointer[string](func(r *Record) **string { return &r.Role }), Words: []string{RolePrefill, RoleDecode, RoleEncode}, Pods: true,
		Doc: "What of a request the worker serves behind the gateway where prefill and decode are apart; unset is both. `/select_pair` heeds it as the gateway does, `/select` does not. A worker with `encode` is listed, and chosen for nothing.",
	},
	{
		Name: "revision", Of: Pointer[string](func(r *Record) **string { return &r.Revision }), MaxBytes: maxText, Pods: true,
		Doc: "What the engine's KV caches depend on beside the model, such as the version of its weights. `/select_pair` makes pairs of workers of one revision, or of workers without any.",
	},
	{
		Name: "rank_endpoints", Of: Map[uint32](func(r *Record) *map[uint32]string { return &r.RankEndpoints }), MaxBytes: maxEndpoint, check: (*Record).checkRankEndpoints,
		Doc: "Where the gateway sends requests of ranks that have an HTTP server of their own: an http or https URL by rank, of ranks that the worker has. The others are at `endpoint`, and are told their rank.",
	},
	{
		Name: "rank_header", Of: Pointer[string](func(r *Record) **string { return &r.RankHeader }), Words: []string{RankLocal, RankGlobal, RankNone}, Pods: true,
		Doc: "How the engine's frontend wants a rank in `X-data-parallel-rank`: `local` counts from the worker's first rank, `global` is the `dp_rank` of answers, `none` takes no rank. Unset is `local` if the worker starts above rank 0, has several ranks, and no other record has its endpoint; else `global`.",
	},
	{
		Name: "prefill_rank_header", Of: Pointer[bool](func(r *Record) **bool { return &r.PrefillRankHeader }), Pods: true,
		Doc: "Of a worker that decodes what others prefill: its sidecar obeys `x-prefiller-data-parallel-rank`, and applies `x-data-parallel-rank` to the decode alone. Unset is false.",
	},
	{
		Name: FieldAliases, Of: List(func(r *Record) *[]string { return &r.Aliases }), EngineOnly: true,
		Doc: "Further names under which the engine serves the model, as it says. Requests may name the model by them.",
	},
	{
		Name: FieldAdapters, Of: List(func(r *Record) *[]string { return &r.Adapters }), MaxBytes: MaxName, MaxEntries: maxAdapters, check: (*Record).checkAdapters, Pods: true,
		Doc: "Names of the LoRA adapters that the engine has, at most 1024, for the gateway.",
	},
	{
		Name: FieldBlockSize, Of: Pointer[uint32](func(r *Record) **uint32 { return &r.BlockSize }), Dynamo: true, Pods: true,
		Doc: "Tokens per block; one figure per model and tenant. Needed to be schedulable.",
	},
	{
		Name: FieldStartRank, Of: Pointer[uint32](func(r *Record) **uint32 { return &r.StartRank }), Dynamo: true,
		Doc: "First rank; unset is 0.",
	},
	{
		Name: FieldSize, Of: Pointer[uint32](func(r *Record) **uint32 { return &r.Size }), Dynamo: true, Pods: true, Most: MaxRanks,
		Doc: "Number of ranks; unset is 1. More than 4096 is refused with 400.",
	},
	{
		Name: FieldMaxNumBatchedTokens, Of: Pointer[uint64](func(r *Record) **uint64 { return &r.MaxNumBatchedTokens }), Dynamo: true, Pods: true,
		Doc: "Tokens that one step of the engine may compute. Needed to be schedulable while queueing is enabled.",
	},
	{
		Name: FieldTotalKVBlocks, Of: Pointer[uint64](func(r *Record) **uint64 { return &r.TotalKVBlocks }), Dynamo: true, Pods: true,
		Doc: "Blocks of each rank's cache on its device.",
	},
	{
		Name: "stable_routing_id", Of: Pointer[string](func(r *Record) **string { return &r.StableRoutingID }), Dynamo: true, MaxBytes: maxText,
		Doc: "A name of the worker, which is kept and shown.",
	},
	{
		Name: FieldEagle, Of: Pointer[bool](func(r *Record) **bool { return &r.IsEagle }), Dynamo: true, Pods: true,
		Doc: "The engine speculates with EAGLE, or with a method like it; unset is false.",
	},
	{
		Name: "taints", Of: List(func(r *Record) *[]string { return &r.Taints }), Dynamo: true, MaxBytes: maxText, MaxEntries: maxTaints, Pods: true,
		Doc: "Words by which requests avoid or prefer the worker.",
	},
	{
		Name: "topology_domains", Of: Map[string](func(r *Record) *map[string]string { return &r.TopologyDomains }), Dynamo: true, MaxBytes: maxText, MaxEntries: maxDomains,
		Doc: "Where the worker is, by the name of a level such as `zone`. It is kept and shown.",
	},
	{
		Name: "kv_transfer_domain", Of: Pointer[string](func(r *Record) **string { return &r.KVTransferDomain }), Dynamo: true, MaxBytes: maxText,
		Doc: "The level of topology within which callers pass on KV caches. `/select_pair` makes pairs of workers with one domain and, where both tell it, one place in it; elsewhere it is kept and shown.",
	},
	{
		Name: "kv_transfer_enforcement", Of: Pointer[string](func(r *Record) **string { return &r.KVTransferEnforcement }), Words: []string{"required", "preferred"}, Dynamo: true, MaxBytes: maxText,
		Doc: "How callers heed that level, and `/select_pair`: with `preferred` on one side a pair may be of two places, and the time of the transfer between them counts.",
	},
	{
		Name: "kv_transfer_preferred_weight", Of: Pointer[float32](func(r *Record) **float32 { return &r.KVTransferPreferredWeight }), Dynamo: true,
		Doc: "A 32-bit float by which callers weigh a preferred domain. It is kept and shown.",
	},
	{
		Name: "router_hint_worker_type", Of: Pointer[string](func(r *Record) **string { return &r.RouterHintWorkerType }), MaxBytes: maxText, Pods: true,
		Doc: "The engine takes hints where to fetch KV caches from: from engines of the same type, whatever the word. Unset and empty: it takes none, and is no source.",
	},
	{
		Name: "router_hint_source_control_endpoints", Of: Map[uint32](func(r *Record) *map[uint32]string { return &r.RouterHintSourceControlEndpoints }), MaxBytes: maxEndpoint,
		Doc: "Where other engines ask for KV caches of this one, by data-parallel rank, in decimal. Ranks without an endpoint are no sources.",
	},
	{
		Name: "kv_event_source_mode", Of: Pointer[string](func(r *Record) **string { return &r.KVEventSourceMode }), MaxBytes: maxText,
		Doc: "How the engine publishes KV events. With `state_agent_v2` no hint names it as a source. Other values are kept and shown.",
	},
	{
		Name: "kv_peer_endpoint", Of: Pointer[string](func(r *Record) **string { return &r.KVPeerEndpoint }), MaxBytes: maxEndpoint, check: (*Record).checkPeer,
		Doc: "`host:port`, by which llm-d's sidecars of other engines fetch KV caches from this one. The gateway and the proxy name it to them in `x-kv-cache-source-host-port`, and name others to the sidecar of this engine. Unset and empty: neither.",
	},
	{
		Name: "kv_hints_in_body", Of: Pointer[bool](func(r *Record) **bool { return &r.KVHintsInBody }), Pods: true,
		Doc: "The engine reads hints where to fetch KV caches from in the member `kv_hints` of a request's body (SGLang). The gateway and the proxy then write them there. Unset is false.",
	},
}

// Fields returns the fields of a record in the order of the members of a worker in JSON. They are
// constants of the program and must not be changed.
func Fields() []Field { return fields[:] }

// FieldNamed returns the field with a name, nil if there is none.
func FieldNamed(name string) *Field {
	for i := range fields {
		if fields[i].Name == name {
			return &fields[i]
		}
	}
	return nil
}

// Accessor finds a field in a record: see Field.Of.
type Accessor interface {
	// Variable returns a pointer to the field.
	Variable(*Record) any
	// replace gives the field the value of another record, unless it is unset there.
	replace(r, by *Record)
	clear(*Record)
	equal(a, b *Record) bool
	// limits checks the field of a record against those of its row.
	limits(c *textCheck, f *Field, r *Record)
}

// Pointer finds a scalar, which is nil while it is unset.
type Pointer[T comparable] func(*Record) **T

// Variable implements Accessor.
func (p Pointer[T]) Variable(r *Record) any { return p(r) }

func (p Pointer[T]) replace(r, by *Record) {
	if v := *p(by); v != nil {
		*p(r) = v
	}
}

func (p Pointer[T]) clear(r *Record) { *p(r) = nil }

func (p Pointer[T]) equal(a, b *Record) bool {
	x, y := *p(a), *p(b)
	if x == nil || y == nil {
		return x == y
	}
	if load, is := any(x).(*LoadMetrics); is {
		return load.equal(any(y).(*LoadMetrics))
	}
	return *x == *y
}

func (p Pointer[T]) limits(c *textCheck, f *Field, r *Record) {
	switch v := any(*p(r)).(type) {
	case *string:
		c.optional(f.Name, v, f.MaxBytes)
	case *LoadMetrics:
		if v != nil {
			c.optional(f.Name+".url", v.URL, f.MaxBytes)
		}
	}
}

// List finds a set of texts: the catalog sorts it and drops repetitions.
type List func(*Record) *[]string

// Variable implements Accessor.
func (l List) Variable(r *Record) any { return l(r) }

func (l List) replace(r, by *Record) {
	if v := *l(by); v != nil {
		*l(r) = v
	}
}

func (l List) clear(r *Record) { *l(r) = nil }

func (l List) equal(a, b *Record) bool { return slices.Equal(*l(a), *l(b)) }

func (l List) limits(c *textCheck, f *Field, r *Record) {
	c.entries(f.Name, len(*l(r)), f.MaxEntries)
	for _, text := range *l(r) {
		c.text(f.Name, text, f.MaxBytes)
	}
}

// Map finds texts by rank (uint32) or by name (string).
type Map[K uint32 | string] func(*Record) *map[K]string

// Variable implements Accessor.
func (m Map[K]) Variable(r *Record) any { return m(r) }

func (m Map[K]) replace(r, by *Record) {
	if v := *m(by); v != nil {
		*m(r) = v
	}
}

func (m Map[K]) clear(r *Record) { *m(r) = nil }

func (m Map[K]) equal(a, b *Record) bool { return maps.Equal(*m(a), *m(b)) }

func (m Map[K]) limits(c *textCheck, f *Field, r *Record) {
	if f.MaxEntries > 0 {
		c.entries(f.Name, len(*m(r)), f.MaxEntries)
	}
	for key, text := range *m(r) {
		if name, is := any(key).(string); is {
			c.text(f.Name, name, f.MaxBytes)
		}
		c.text(f.Name, text, f.MaxBytes)
	}
}

// checkFields returns why a field of the record can never be attached.
func (r *Record) checkFields() error {
	for i := range fields {
		f := &fields[i]
		switch of := f.Of.(type) {
		case Map[uint32]:
			if n := len(*of(r)); n > MaxRanks {
				return &InvalidError{fmt.Sprintf("%s has %d ranks, the maximum is %d", f.Name, n, MaxRanks)}
			}
		case Pointer[string]:
			if text := *of(r); f.MaxBytes == 0 && text != nil && f.Words != nil && !slices.Contains(f.Words, *text) {
				return &InvalidError{fmt.Sprintf("%s %q is %s", f.Name, Clip(*text), noneOf(f.Words))}
			}
		}
		if f.check != nil {
			if err := f.check(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// noneOf says that a value is none of two or more words.
func noneOf(words []string) string {
	if len(words) == 2 {
		return fmt.Sprintf("neither %q nor %q", words[0], words[1])
	}
	return "not " + oneOf(words)
}

// oneOf lists two or more words of which one is wanted, in quotes.
func oneOf(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = fmt.Sprintf("%q", word)
	}
	return AnyOf(quoted)
}

// AnyOf lists two or more words of which one is wanted, for an error.
func AnyOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
