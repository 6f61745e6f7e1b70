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
	// Pods: a source of pods in Kubernetes and a pod's annotation may say it. What else a pod's record
	// has follows from the pod.
	Pods bool
	// Most is the largest number that a number may be; 0: any number of its kind.
	Most uint64

	// bytes limits each text. 0: texts and entries have no limit; of Words the catalog takes no others.
	bytes   int
	entries int // of a list or of a map by name, at most
	// check returns why a record with the field can never be attached.
	check func(*Record) error
}

// fields has the rows in the order of the members of a worker in JSON.
var fields = [...]Field{
	{Name: "endpoint", Of: Pointer[string](func(r *Record) **string { return &r.Endpoint }), Dynamo: true, bytes: maxEndpoint},
	{Name: FieldKVEventsEndpoint, Of: Pointer[string](func(r *Record) **string { return &r.KVEventsEndpoint }), Dynamo: true, bytes: maxEndpoint},
	{Name: FieldKVEventsEndpoints, Of: Map[uint32](func(r *Record) *map[uint32]string { return &r.KVEventsEndpoints }), Dynamo: true, bytes: maxEndpoint},
	{Name: FieldReplayEndpoint, Of: Pointer[string](func(r *Record) **string { return &r.ReplayEndpoint }), Dynamo: true, bytes: maxEndpoint},
	{Name: FieldReplayEndpoints, Of: Map[uint32](func(r *Record) *map[uint32]string { return &r.ReplayEndpoints }), Dynamo: true, bytes: maxEndpoint},
	{Name: "kv_event_copies", Of: Pointer[string](func(r *Record) **string { return &r.KVEventCopies }), Words: []string{CountCopies, SetCopies}, Pods: true},
	{Name: "kv_event_rank", Of: Pointer[string](func(r *Record) **string { return &r.KVEventRank }), Words: []string{RankOfBatch, RankOfStream}},
	{Name: "kv_events", Of: Pointer[bool](func(r *Record) **bool { return &r.KVEvents }), Pods: true},
	{Name: "attention_chunk_size", Of: Pointer[uint64](func(r *Record) **uint64 { return &r.AttentionChunkSize }), Pods: true},
	{Name: FieldMaxModelLen, Of: Pointer[uint32](func(r *Record) **uint32 { return &r.MaxModelLen }), Pods: true},
	{Name: FieldLoadEndpoint, Of: Pointer[string](func(r *Record) **string { return &r.LoadEndpoint }), bytes: maxEndpoint},
	{Name: FieldLoadEndpoints, Of: Map[uint32](func(r *Record) *map[uint32]string { return &r.LoadEndpoints }), bytes: maxEndpoint, check: (*Record).checkLoadEndpoints},
	{Name: "load_metrics", Of: Pointer[LoadMetrics](func(r *Record) **LoadMetrics { return &r.LoadMetrics }), bytes: maxEndpoint, check: (*Record).checkLoadMetrics, Pods: true},
	{Name: FieldRole, Of: Pointer[string](func(r *Record) **string { return &r.Role }), Words: []string{RolePrefill, RoleDecode}, Pods: true},
	{Name: "rank_endpoints", Of: Map[uint32](func(r *Record) *map[uint32]string { return &r.RankEndpoints }), bytes: maxEndpoint, check: (*Record).checkRankEndpoints},
	{Name: "rank_header", Of: Pointer[string](func(r *Record) **string { return &r.RankHeader }), Words: []string{RankLocal, RankGlobal, RankNone}, Pods: true},
	{Name: "prefill_rank_header", Of: Pointer[bool](func(r *Record) **bool { return &r.PrefillRankHeader }), Pods: true},
	{Name: FieldAliases, Of: List(func(r *Record) *[]string { return &r.Aliases }), EngineOnly: true},
	{Name: FieldAdapters, Of: List(func(r *Record) *[]string { return &r.Adapters }), bytes: MaxName, entries: maxAdapters, check: (*Record).checkAdapters, Pods: true},
	{Name: FieldBlockSize, Of: Pointer[uint32](func(r *Record) **uint32 { return &r.BlockSize }), Dynamo: true, Pods: true},
	{Name: FieldStartRank, Of: Pointer[uint32](func(r *Record) **uint32 { return &r.StartRank }), Dynamo: true},
	{Name: FieldSize, Of: Pointer[uint32](func(r *Record) **uint32 { return &r.Size }), Dynamo: true, Pods: true, Most: MaxRanks},
	{Name: FieldMaxNumBatchedTokens, Of: Pointer[uint64](func(r *Record) **uint64 { return &r.MaxNumBatchedTokens }), Dynamo: true, Pods: true},
	{Name: FieldTotalKVBlocks, Of: Pointer[uint64](func(r *Record) **uint64 { return &r.TotalKVBlocks }), Dynamo: true, Pods: true},
	{Name: "stable_routing_id", Of: Pointer[string](func(r *Record) **string { return &r.StableRoutingID }), Dynamo: true, bytes: maxText},
	{Name: FieldEagle, Of: Pointer[bool](func(r *Record) **bool { return &r.IsEagle }), Dynamo: true, Pods: true},
	{Name: "taints", Of: List(func(r *Record) *[]string { return &r.Taints }), Dynamo: true, bytes: maxText, entries: maxTaints, Pods: true},
	{Name: "topology_domains", Of: Map[string](func(r *Record) *map[string]string { return &r.TopologyDomains }), Dynamo: true, bytes: maxText, entries: maxDomains},
	{Name: "kv_transfer_domain", Of: Pointer[string](func(r *Record) **string { return &r.KVTransferDomain }), Dynamo: true, bytes: maxText},
	{Name: "kv_transfer_enforcement", Of: Pointer[string](func(r *Record) **string { return &r.KVTransferEnforcement }), Words: []string{"required", "preferred"}, Dynamo: true, bytes: maxText},
	{Name: "kv_transfer_preferred_weight", Of: Pointer[float32](func(r *Record) **float32 { return &r.KVTransferPreferredWeight }), Dynamo: true},
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
		c.optional(f.Name, v, f.bytes)
	case *LoadMetrics:
		if v != nil {
			c.optional(f.Name+".url", v.URL, f.bytes)
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
	c.entries(f.Name, len(*l(r)), f.entries)
	for _, text := range *l(r) {
		c.text(f.Name, text, f.bytes)
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
	if f.entries > 0 {
		c.entries(f.Name, len(*m(r)), f.entries)
	}
	for key, text := range *m(r) {
		if name, is := any(key).(string); is {
			c.text(f.Name, name, f.bytes)
		}
		c.text(f.Name, text, f.bytes)
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
			if text := *of(r); f.bytes == 0 && text != nil && f.Words != nil && !slices.Contains(f.Words, *text) {
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
