package httpapi

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
)

// workerCatalog registers and lists workers; nil filters take all names.
type workerCatalog interface {
	// PutWorkerIn and the methods below treat workers of scopes that do not match own as unknown.
	PutWorkerIn(own catalog.ScopeFilter, r catalog.Record) (*catalog.Worker, error)
	// DescribeWorkerIn is PutWorkerIn for a worker whose engine is asked first.
	DescribeWorkerIn(ctx context.Context, own catalog.ScopeFilter, r catalog.Record) (*catalog.Worker, error)
	PatchWorkerIn(own catalog.ScopeFilter, id uint64, patch catalog.Patch) (*catalog.Worker, error)
	DeleteWorkerIn(own catalog.ScopeFilter, id uint64) (*catalog.Worker, error)
	// DrainWorkerIn makes a worker drain; one of the API is removed at the latest within that
	// time, nil: once it is empty.
	DrainWorkerIn(own catalog.ScopeFilter, id uint64, within *time.Duration) (*catalog.Worker, error)
	UndrainWorkerIn(own catalog.ScopeFilter, id uint64) (*catalog.Worker, error)
	// Workers lists the workers by model, tenant and id.
	Workers(model, tenant *string) []*catalog.Worker
	// Excluded lists the ranks of a worker that get no new requests because their engines give
	// no sign of life.
	Excluded(*catalog.Worker) []selection.ExcludedRank
	EventsBlockSize(*catalog.Worker) uint32
	// Ready counts the schedulable workers and lists all.
	Ready() (ready bool, schedulable int, workers []*catalog.Worker)
	// Recovery returns the progress of the recovery from peers; configured is false if
	// there are no peers.
	Recovery() (status node.RecoveryStatus, configured bool)
}

type workerRoutes struct {
	svc        workerCatalog
	d          dialect
	kubernetes ClusterStatus // nil: there is none
	fleet      FleetStatus   // nil: there is none
}

func (r workerRoutes) put(c request, b *workerBody, out []byte) (int, []byte, error) {
	c.about(*b)
	own, record := c.who.Scope(), b.record()
	var w *catalog.Worker
	var err error
	if record.Describe == nil {
		w, err = r.svc.PutWorkerIn(own, record)
	} else {
		takeModel(&record, own)
		w, err = r.svc.DescribeWorkerIn(c.Request.Context(), own, record)
	}
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, r.d.appendWorker(out, w), nil
}

func (r workerRoutes) patch(c request, b *catalog.Patch, out []byte) (int, []byte, error) {
	return r.change(c, out, func(own catalog.ScopeFilter, id uint64) (*catalog.Worker, error) {
		return r.svc.PatchWorkerIn(own, id, *b)
	})
}

func (r workerRoutes) remove(c request, out []byte) (int, []byte, error) {
	return r.change(c, out, r.svc.DeleteWorkerIn)
}

func (r workerRoutes) drain(c request, b *drainBody, out []byte) (int, []byte, error) {
	within, err := b.within()
	if err != nil {
		return 0, nil, err
	}
	return r.change(c, out, func(own catalog.ScopeFilter, id uint64) (*catalog.Worker, error) {
		return r.svc.DrainWorkerIn(own, id, within)
	})
}

func (r workerRoutes) undrain(c request, out []byte) (int, []byte, error) {
	return r.change(c, out, r.svc.UndrainWorkerIn)
}

// change changes the worker of the path and answers with its record.
func (r workerRoutes) change(c request, out []byte, change func(own catalog.ScopeFilter, id uint64) (*catalog.Worker, error)) (int, []byte, error) {
	id, err := pathWorkerID(c)
	if err != nil {
		return 0, nil, err
	}
	w, err := change(c.who.Scope(), id)
	if err != nil {
		return 0, nil, err
	}
	c.about(changedWorker{w})
	return http.StatusOK, r.d.appendWorker(out, w), nil
}

// drainBody is the body of POST /workers/{worker_id}/drain.
type drainBody struct{ seconds *float64 }

// maxDeadline is the longest deadline of a drain, in seconds.
const maxDeadline = 7 * 86400

var errDeadline = badRequest("deadline_seconds must be between 0 and " + strconv.Itoa(maxDeadline))

// within returns the time of the body, nil if it has none.
func (b *drainBody) within() (*time.Duration, error) {
	switch {
	case b.seconds == nil:
		return nil, nil
	case *b.seconds >= 0 && *b.seconds <= maxDeadline:
		return new(time.Duration(*b.seconds * float64(time.Second))), nil
	}
	return nil, errDeadline
}

// newDrainBody is the body of POST /workers/{worker_id}/drain, which may be missing.
func newDrainBody() *body[drainBody] {
	b := newBody(drainShape, nil, nil).permit(checkedByID[drainBody])
	b.mayBeMissing = true
	return b
}

var drainShape = bodyscan.NewObject(
	optional("deadline_seconds", func(b *drainBody) **float64 { return &b.seconds }, (*bodyscan.Scanner).Float64),
)

func (r workerRoutes) list(f catalog.ScopeFilter, out []byte) []byte {
	return appendList(out, r.svc.Workers(f.Model, f.Tenant), r.appendWorkerNow)
}

// appendWorkerNow appends a worker's record with its ranks that give no sign of life, and the block
// size of its events if that is another one.
func (r workerRoutes) appendWorkerNow(out []byte, w *catalog.Worker) []byte {
	out = r.d.appendWorker(out, w)
	if size := r.svc.EventsBlockSize(w); size > 0 {
		out = append(appendUintField(out[:len(out)-1], "kv_events_block_size", uint64(size)), '}')
	}
	excluded := r.svc.Excluded(w)
	if len(excluded) == 0 {
		return out
	}
	out = appendList(appendKey(out[:len(out)-1], "excluded"), excluded, func(out []byte, e selection.ExcludedRank) []byte {
		out = appendUintField(append(out, '{'), "dp_rank", e.Rank.DP)
		return append(appendStringField(out, "reason", string(e.Why)), '}')
	})
	return append(out, '}')
}

// ready needs no token, since probes have none. The list of workers, and the peer that the
// index is read from, are shown only to callers that may list workers.
func (r workerRoutes) ready(c request, out []byte) (int, []byte, error) {
	ready, schedulable, workers := r.svc.Ready()
	reads := c.who.May(access.Read)
	if !reads || c.who.Scoped() {
		workers = slices.DeleteFunc(slices.Clone(workers), func(w *catalog.Worker) bool { return !reads || !c.who.Sees(w.Scope) })
	}
	status := http.StatusServiceUnavailable
	if ready {
		status = http.StatusOK
	}
	out = append(out, '{')
	out = appendBoolField(out, "ready", ready)
	out = appendUintField(out, "schedulable_workers", uint64(schedulable))
	out = appendList(appendKey(out, "workers"), workers, r.appendWorkerNow)
	if recovery, configured := r.svc.Recovery(); configured { // decision S6
		if !reads || c.who.Scoped() {
			recovery.Peer = ""
		}
		out = appendRecovery(appendKey(out, "recovery"), recovery)
	}
	if r.kubernetes != nil {
		if text := r.kubernetes.ReadyJSON(); text != nil && reads && !c.who.Scoped() {
			out = append(appendKey(out, "kubernetes"), text...)
		}
	}
	if r.fleet != nil && reads && !c.who.Scoped() {
		if text := r.fleet.ReadyJSON(); text != nil {
			out = append(appendKey(out, "fleet"), text...)
		}
	}
	return status, append(out, '}'), nil
}

func appendRecovery(out []byte, r node.RecoveryStatus) []byte {
	out = append(out, '{')
	out = appendStringField(out, "stage", r.Stage.String())
	if r.Peer != "" {
		out = appendStringField(out, "peer", r.Peer)
	}
	out = appendUintField(out, "entries", r.Entries)
	out = appendUintField(out, "blocks", r.Blocks)
	out = appendUintField(out, "skipped", r.Skipped)
	out = appendBoolField(out, "complete", r.Complete)
	out = appendStringField(out, "loads", r.Loads.String())
	return append(out, '}')
}

// workerBody is the body of POST /workers: the worker's identity and the members of
// a patch.
type workerBody struct {
	id       uint64
	scope    catalog.Scope
	settings catalog.Patch
	wish     *catalog.Describe // nil: the engine is not asked
}

// takeModel lets the engine of a described worker name its model, if the record does not. Who may
// register workers of one model only, in a set or at all, names it.
func takeModel(r *catalog.Record, within catalog.ScopeFilter) {
	if d := r.Describe; d != nil {
		d.Model = r.Scope.Model == catalog.DefaultName && within.Model == nil
	}
}

// record returns the whole record: members that the body leaves out are unset.
func (b *workerBody) record() catalog.Record {
	p := &b.settings
	return catalog.Record{
		ID:                        b.id,
		Scope:                     b.scope,
		Describe:                  b.wish,
		Endpoint:                  p.Endpoint,
		KVEventsEndpoint:          p.KVEventsEndpoint,
		KVEventsEndpoints:         p.KVEventsEndpoints,
		ReplayEndpoint:            p.ReplayEndpoint,
		ReplayEndpoints:           p.ReplayEndpoints,
		KVEventCopies:             p.KVEventCopies,
		KVEventRank:               p.KVEventRank,
		KVEvents:                  p.KVEvents,
		LoadEndpoint:              p.LoadEndpoint,
		LoadEndpoints:             p.LoadEndpoints,
		LoadMetrics:               p.LoadMetrics,
		BlockSize:                 p.BlockSize,
		StartRank:                 p.StartRank,
		Size:                      p.Size,
		MaxNumBatchedTokens:       p.MaxNumBatchedTokens,
		TotalKVBlocks:             p.TotalKVBlocks,
		AttentionChunkSize:        p.AttentionChunkSize,
		StableRoutingID:           p.StableRoutingID,
		IsEagle:                   p.IsEagle,
		Role:                      p.Role,
		RankEndpoints:             p.RankEndpoints,
		RankHeader:                p.RankHeader,
		PrefillRankHeader:         p.PrefillRankHeader,
		Adapters:                  p.Adapters,
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

// newWorkerBody is the body of POST /workers.
func newWorkerBody(d dialect) *body[workerBody] {
	return newBody(newWorkerShape(d), resetWorkerBody, nil).
		permit(inScope(func(b *workerBody) *catalog.Scope { return &b.scope }))
}

// newPatchBody is the body of PATCH /workers/{worker_id}.
func newPatchBody() *body[catalog.Patch] {
	return newBody(patchShape, nil, nil).permit(checkedByID[catalog.Patch])
}

func (b workerBody) describe(e *zerolog.Event) {
	describeWorker(e, b.id, b.scope, b.settings.Endpoint)
}

// changedWorker is a worker in an audit line.
type changedWorker struct{ *catalog.Worker }

func (w changedWorker) describe(e *zerolog.Event) { describeWorker(e, w.ID, w.Scope, w.Endpoint) }

func describeWorker(e *zerolog.Event, id uint64, sc catalog.Scope, endpoint *string) {
	e.Uint64("worker_id", id)
	describeScope(e, sc)
	if endpoint != nil {
		e.Str("endpoint", catalog.Clip(*endpoint))
	}
}

// readDescribe reads whether the engine fills in what a record leaves out: true, or the engine's
// kind.
func readDescribe(s *bodyscan.Scanner, b *workerBody) {
	switch {
	case s.Null():
	case s.IsText():
		b.wish = &catalog.Describe{Engine: s.Variant(catalog.EngineVLLM, catalog.EngineSGLang)}
	case s.Bool():
		b.wish = new(catalog.Describe)
	}
}

// newWorkerShape is the shape of POST /workers.
func newWorkerShape(d dialect) *bodyscan.Object[workerBody] {
	fields := settingsFields(func(b *workerBody) *catalog.Patch { return &b.settings }, false)
	fields = append(fields, scopeFields(d, func(b *workerBody) *catalog.Scope { return &b.scope })...)
	fields = append(fields, bodyscan.Field[workerBody]{Name: "describe", Read: readDescribe})
	return bodyscan.NewObject(append(fields, required("worker_id", func(b *workerBody) *uint64 { return &b.id }, (*bodyscan.Scanner).Uint64))...)
}

// patchShape is the body of PATCH /workers/{worker_id}.
var patchShape = bodyscan.NewObject(settingsFields(func(p *catalog.Patch) *catalog.Patch { return p }, true)...)

// settingsFields describes the settings of a worker within a T. Lists and maps may be
// null only in a patch.
func settingsFields[T any](of func(*T) *catalog.Patch, patch bool) []bodyscan.Field[T] {
	// Go has no generic methods: one helper for each type of a member.
	text := func(name string, field func(*catalog.Patch) **string) bodyscan.Field[T] {
		return settingField(name, of, field, readText)
	}
	u32 := func(name string, field func(*catalog.Patch) **uint32) bodyscan.Field[T] {
		return settingField(name, of, field, (*bodyscan.Scanner).Uint32)
	}
	u64 := func(name string, field func(*catalog.Patch) **uint64) bodyscan.Field[T] {
		return settingField(name, of, field, (*bodyscan.Scanner).Uint64)
	}
	collection := func(name string, read func(*bodyscan.Scanner, *catalog.Patch)) bodyscan.Field[T] {
		return bodyscan.Field[T]{Name: name, Read: func(s *bodyscan.Scanner, t *T) {
			if !patch || !s.Null() {
				read(s, of(t))
			}
		}}
	}
	return []bodyscan.Field[T]{
		text("endpoint", func(p *catalog.Patch) **string { return &p.Endpoint }),
		text("kv_events_endpoint", func(p *catalog.Patch) **string { return &p.KVEventsEndpoint }),
		text("replay_endpoint", func(p *catalog.Patch) **string { return &p.ReplayEndpoint }),
		text("load_endpoint", func(p *catalog.Patch) **string { return &p.LoadEndpoint }),
		removedServerKey[T](),
		text("stable_routing_id", func(p *catalog.Patch) **string { return &p.StableRoutingID }),
		text("kv_transfer_domain", func(p *catalog.Patch) **string { return &p.KVTransferDomain }),
		u32("block_size", func(p *catalog.Patch) **uint32 { return &p.BlockSize }),
		u32("data_parallel_start_rank", func(p *catalog.Patch) **uint32 { return &p.StartRank }),
		u32("data_parallel_size", func(p *catalog.Patch) **uint32 { return &p.Size }),
		u64("max_num_batched_tokens", func(p *catalog.Patch) **uint64 { return &p.MaxNumBatchedTokens }),
		u64("total_kv_blocks", func(p *catalog.Patch) **uint64 { return &p.TotalKVBlocks }),
		u64("attention_chunk_size", func(p *catalog.Patch) **uint64 { return &p.AttentionChunkSize }),
		settingField("is_eagle", of, func(p *catalog.Patch) **bool { return &p.IsEagle }, (*bodyscan.Scanner).Bool),
		settingField("kv_event_copies", of, func(p *catalog.Patch) **string { return &p.KVEventCopies }, readCopies),
		settingField("kv_event_rank", of, func(p *catalog.Patch) **string { return &p.KVEventRank }, readEventRank),
		settingField("kv_events", of, func(p *catalog.Patch) **bool { return &p.KVEvents }, (*bodyscan.Scanner).Bool),
		settingField("load_metrics", of, func(p *catalog.Patch) **catalog.LoadMetrics { return &p.LoadMetrics }, readLoadMetrics),
		settingField("role", of, func(p *catalog.Patch) **string { return &p.Role }, readRole),
		settingField("rank_header", of, func(p *catalog.Patch) **string { return &p.RankHeader }, readRankHeader),
		settingField("prefill_rank_header", of, func(p *catalog.Patch) **bool { return &p.PrefillRankHeader }, (*bodyscan.Scanner).Bool),
		settingField("kv_transfer_enforcement", of, func(p *catalog.Patch) **string { return &p.KVTransferEnforcement }, readEnforcement),
		settingField("kv_transfer_preferred_weight", of, func(p *catalog.Patch) **float32 { return &p.KVTransferPreferredWeight }, (*bodyscan.Scanner).Float32),
		collection("kv_events_endpoints", func(s *bodyscan.Scanner, p *catalog.Patch) { p.KVEventsEndpoints = readByRank(s) }),
		collection("replay_endpoints", func(s *bodyscan.Scanner, p *catalog.Patch) { p.ReplayEndpoints = readByRank(s) }),
		collection("load_endpoints", func(s *bodyscan.Scanner, p *catalog.Patch) { p.LoadEndpoints = readByRank(s) }),
		collection("rank_endpoints", func(s *bodyscan.Scanner, p *catalog.Patch) { p.RankEndpoints = readByRank(s) }),
		collection("adapters", func(s *bodyscan.Scanner, p *catalog.Patch) { p.Adapters = appendStrings(s, []string{}) }),
		collection("taints", func(s *bodyscan.Scanner, p *catalog.Patch) { p.Taints = appendStrings(s, []string{}) }),
		collection("topology_domains", func(s *bodyscan.Scanner, p *catalog.Patch) { p.TopologyDomains = readStringMap(s) }),
	}
}

// removedServerKey refuses the key of an engine; null is no key.
func removedServerKey[T any]() bodyscan.Field[T] {
	return bodyscan.Field[T]{Name: catalog.ServerKeyField, Read: func(s *bodyscan.Scanner, _ *T) {
		if !s.Null() {
			s.FailRemoved(catalog.NoServerKey)
		}
	}}
}

func settingField[T, V any](
	name string, of func(*T) *catalog.Patch, field func(*catalog.Patch) **V, read func(*bodyscan.Scanner) V,
) bodyscan.Field[T] {
	return bodyscan.Field[T]{Name: name, Read: bodyscan.Optional(func(t *T) **V { return field(of(t)) }, read)}
}

func readEnforcement(s *bodyscan.Scanner) string {
	return s.Variant("required", "preferred")
}

func readCopies(s *bodyscan.Scanner) string {
	return s.Variant(catalog.CountCopies, catalog.SetCopies)
}

func readEventRank(s *bodyscan.Scanner) string {
	return s.Variant(catalog.RankOfBatch, catalog.RankOfStream)
}

func readRole(s *bodyscan.Scanner) string {
	return s.Variant(catalog.RolePrefill, catalog.RoleDecode)
}

func readRankHeader(s *bodyscan.Scanner) string {
	return s.Variant(catalog.RankLocal, catalog.RankGlobal, catalog.RankNone)
}

func readLoadMetrics(s *bodyscan.Scanner) (m catalog.LoadMetrics) {
	loadMetricsShape.Read(s, &m)
	return m
}

var loadMetricsShape = bodyscan.NewObject(
	optional("url", func(m *catalog.LoadMetrics) **string { return &m.URL }, readText),
	optional("interval_seconds", func(m *catalog.LoadMetrics) **float64 { return &m.IntervalSeconds }, (*bodyscan.Scanner).Float64),
)

func readByRank(s *bodyscan.Scanner) map[uint32]string {
	m := make(map[uint32]string)
	for rank := range s.MapUint32() {
		m[rank] = readText(s)
	}
	return m
}

func readStringMap(s *bodyscan.Scanner) map[string]string {
	m := make(map[string]string)
	for name := range s.Map() {
		key := string(name)
		m[key] = readText(s)
	}
	return m
}

// appendWorker appends a worker's record. Unset members are null. Members that Dynamo's records
// do not have, and empty maps, are left out.
func (d dialect) appendWorker(out []byte, w *catalog.Worker) []byte {
	out = append(out, '{')
	out = appendUintField(out, "worker_id", w.ID)
	out = d.appendScope(out, w.Scope)
	out = appendStringField(out, "lifecycle", w.Lifecycle)
	out = appendSource(out, w) // no member of Dynamo's records, nor the next
	if w.Drain != nil {
		out = appendDrain(out, w.Drain)
	}
	out = appendOptString(out, "endpoint", w.Endpoint)
	out = appendOptString(out, "kv_events_endpoint", w.KVEventsEndpoint)
	out = appendByRank(out, "kv_events_endpoints", w.KVEventsEndpoints)
	out = appendOptString(out, "replay_endpoint", w.ReplayEndpoint)
	out = appendByRank(out, "replay_endpoints", w.ReplayEndpoints)
	if w.KVEventCopies != nil { // no member of Dynamo's records
		out = appendStringField(out, "kv_event_copies", *w.KVEventCopies)
	}
	if w.KVEventRank != nil { // nor this
		out = appendStringField(out, "kv_event_rank", *w.KVEventRank)
	}
	if w.KVEvents != nil { // nor this
		out = appendBoolField(out, "kv_events", *w.KVEvents)
	}
	if w.AttentionChunkSize != nil { // nor this
		out = appendUintField(out, "attention_chunk_size", *w.AttentionChunkSize)
	}
	out = appendLoadSources(out, w)
	out = appendServing(out, w)
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
	out = appendDescription(out, w)
	if reasons := w.Explain(); len(reasons) > 0 {
		out = d.appendReasons(out, w, reasons)
	}
	return append(appendBehind(out, w.Behind), '}')
}

// appendDescription appends what the engine has filled in and where that comes from, unless the
// worker is not described.
func appendDescription(out []byte, w *catalog.Worker) []byte {
	d := w.Describe
	if d == nil {
		return out
	}
	if d.Engine == "" {
		out = appendBoolField(out, "describe", true)
	} else {
		out = appendStringField(out, "describe", d.Engine)
	}
	if d.Told == nil {
		return out
	}
	out = append(appendKey(out, "described"), '{')
	if d.Told.Engine != "" {
		out = appendStringField(out, "engine", d.Told.Engine)
	}
	if d.Told.Version != "" {
		out = appendStringField(out, "version", d.Told.Version)
	}
	for _, c := range [...]struct {
		name string
		n    uint64
	}{{catalog.FieldTotalKVBlocks, d.Told.TotalKVBlocks}, {catalog.FieldMaxNumBatchedTokens, d.Told.MaxNumBatchedTokens}} {
		if c.n > 0 {
			out = appendUintField(out, c.name, c.n)
		}
	}
	from := maps.Clone(d.Filled)
	for _, field := range [...]string{catalog.FieldTotalKVBlocks, catalog.FieldMaxNumBatchedTokens} {
		if origin := d.Told.From[field]; origin != "" {
			from[field] = origin
		}
	}
	return append(appendStringMap(out, "from", from), '}')
}

// appendSource appends where the record comes from, unless that is the API (decision W1).
func appendSource(out []byte, w *catalog.Worker) []byte {
	kind := w.Source.KindOrAPI()
	if kind == catalog.SourceAPI {
		return out
	}
	out = append(appendKey(out, "source"), '{')
	out = appendStringField(out, "kind", string(kind))
	for _, m := range [...]struct{ name, text string }{
		{"namespace", w.Source.Namespace}, {"pod", w.Source.Pod}, {"uid", w.Source.UID}, {"pool", w.Source.Pool},
	} {
		if m.text != "" {
			out = appendStringField(out, m.name, m.text)
		}
	}
	return append(out, '}')
}

// appendLoadSources appends where the load of the worker's engine is read; Dynamo's records have
// none of these members.
func appendLoadSources(out []byte, w *catalog.Worker) []byte {
	if w.LoadEndpoint != nil {
		out = appendStringField(out, "load_endpoint", *w.LoadEndpoint)
	}
	out = appendByRank(out, "load_endpoints", w.LoadEndpoints)
	m := w.LoadMetrics
	if m == nil {
		return out
	}
	out = append(appendKey(out, "load_metrics"), '{')
	if m.URL != nil {
		out = appendStringField(out, "url", *m.URL)
	}
	if m.IntervalSeconds != nil {
		out = appendFloat(appendKey(out, "interval_seconds"), *m.IntervalSeconds, 64)
	}
	return append(out, '}')
}

// appendDrain appends that an operator drains the worker, and until when.
func appendDrain(out []byte, d *catalog.Drain) []byte {
	out = append(appendKey(out, "drain"), '{')
	if !d.Deadline.IsZero() {
		out = appendStringField(out, "deadline", d.Deadline.UTC().Format(time.RFC3339Nano))
	}
	return append(out, '}')
}

// appendServing appends the members for gateways; Dynamo's records have none of them.
func appendServing(out []byte, w *catalog.Worker) []byte {
	if w.Role != nil {
		out = appendStringField(out, "role", *w.Role)
	}
	out = appendByRank(out, "rank_endpoints", w.RankEndpoints)
	if w.RankHeader != nil {
		out = appendStringField(out, "rank_header", *w.RankHeader)
	}
	if w.PrefillRankHeader != nil {
		out = appendBoolField(out, "prefill_rank_header", *w.PrefillRankHeader)
	}
	if len(w.Aliases) > 0 {
		out = appendList(appendKey(out, "model_aliases"), w.Aliases, appendString)
	}
	if len(w.Adapters) > 0 {
		out = appendList(appendKey(out, "adapters"), w.Adapters, appendString)
	}
	return out
}

// appendReasons appends the reasons why a worker is not schedulable.
func (d dialect) appendReasons(out []byte, w *catalog.Worker, reasons []string) []byte {
	return appendList(appendKey(out, "not_schedulable_reasons"), reasons, func(out []byte, reason string) []byte {
		if d == dialect16 {
			reason = withoutRank(w, inGroup(w.Scope, reason))
		}
		return appendString(out, reason)
	})
}

// inGroup rewrites a reason that names the worker's scope in the terms of the 1.6 dialect.
func inGroup(sc catalog.Scope, reason string) string {
	model := " for model=" + sc.Model
	return strings.Replace(reason, model+" tenant="+sc.Tenant, model+" routing_group="+sc.Tenant, 1)
}

// withoutRank removes the rank from a reason about replay_endpoint: in 1.6.1 that belongs to
// the worker, and only replay_endpoints belong to ranks.
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

// appendStringMap appends an object whose member names come from clients.
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
	return appendBoolField(out, name, *v)
}

func appendOptFloat32(out []byte, name string, v *float32) []byte {
	if v == nil {
		return appendNull(out, name)
	}
	return appendFloat(appendKey(out, name), float64(*v), 32)
}
