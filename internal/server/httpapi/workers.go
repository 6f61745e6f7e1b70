package httpapi

import (
	"cmp"
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
	svc     workerCatalog
	d       dialect
	sources Sources     // nil: there are none
	fleet   FleetStatus // nil: there is none
}

func (r workerRoutes) put(c request, b *workerBody, out []byte) (int, []byte, error) {
	c.about(*b)
	own, record := c.who.Scope(), catalog.Record(*b)
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
	if reads && !c.who.Scoped() {
		out = appendMembership(appendReports(out, r.sources), r.fleet)
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

// workerBody is the body of POST /workers: members that it leaves out are unset.
type workerBody catalog.Record

// takeModel lets the engine of a described worker name its model, if the record does not. A caller who may
// register workers of one model only, in a set or at all, has to name it.
func takeModel(r *catalog.Record, within catalog.ScopeFilter) {
	if d := r.Describe; d != nil {
		d.Model = r.Scope.Model == catalog.DefaultName && within.Model == nil
	}
}

func resetWorkerBody(b *workerBody) {
	*b = workerBody{Scope: catalog.Scope{Model: catalog.DefaultName, Tenant: catalog.DefaultName}}
}

// newWorkerBody is the body of POST /workers.
func newWorkerBody(d dialect) *body[workerBody] {
	return newBody(newWorkerShape(d), resetWorkerBody, nil).
		permit(inScope(func(b *workerBody) *catalog.Scope { return &b.Scope }))
}

// newPatchBody is the body of PATCH /workers/{worker_id}.
func newPatchBody() *body[catalog.Patch] {
	return newBody(patchShape, nil, nil).permit(checkedByID[catalog.Patch])
}

func (b workerBody) describe(e *zerolog.Event) {
	describeWorker(e, b.ID, b.Scope, b.Endpoint)
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
		b.Describe = &catalog.Describe{Engine: s.Variant(catalog.Engines()...)}
	case s.Bool():
		b.Describe = new(catalog.Describe)
	}
}

// newWorkerShape is the shape of POST /workers.
func newWorkerShape(d dialect) *bodyscan.Object[workerBody] {
	fields := recordFields(func(b *workerBody) *catalog.Record { return (*catalog.Record)(b) }, false)
	fields = append(fields, scopeFields(d, func(b *workerBody) *catalog.Scope { return &b.Scope })...)
	fields = append(fields, bodyscan.Field[workerBody]{Name: "describe", Read: readDescribe})
	return bodyscan.NewObject(append(fields, required("worker_id", func(b *workerBody) *uint64 { return &b.ID }, (*bodyscan.Scanner).Uint64))...)
}

// patchShape is the body of PATCH /workers/{worker_id}.
var patchShape = bodyscan.NewObject(recordFields(func(p *catalog.Patch) *catalog.Record { return (*catalog.Record)(p) }, true)...)

// recordFields describes the fields of a record within a T. Lists and maps may be null only in a
// patch.
func recordFields[T any](of func(*T) *catalog.Record, patch bool) []bodyscan.Field[T] {
	fields := []bodyscan.Field[T]{removedServerKey[T]()}
	for _, f := range catalog.Fields() {
		if !f.EngineOnly {
			read := readField(&f, patch)
			fields = append(fields, bodyscan.Field[T]{Name: f.Name, Read: func(s *bodyscan.Scanner, t *T) { read(s, of(t)) }})
		}
	}
	return fields
}

// readField reads a field of a record.
func readField(f *catalog.Field, patch bool) func(*bodyscan.Scanner, *catalog.Record) {
	words := f.Words
	switch of := f.Of.(type) {
	case catalog.Pointer[string]:
		if words != nil {
			return bodyscan.Optional(of, func(s *bodyscan.Scanner) string { return s.Variant(words...) })
		}
		return bodyscan.Optional(of, readText)
	case catalog.Pointer[bool]:
		return bodyscan.Optional(of, (*bodyscan.Scanner).Bool)
	case catalog.Pointer[uint32]:
		return bodyscan.Optional(of, (*bodyscan.Scanner).Uint32)
	case catalog.Pointer[uint64]:
		return bodyscan.Optional(of, (*bodyscan.Scanner).Uint64)
	case catalog.Pointer[float32]:
		return bodyscan.Optional(of, (*bodyscan.Scanner).Float32)
	case catalog.Pointer[catalog.LoadMetrics]:
		return bodyscan.Optional(of, readLoadMetrics)
	case catalog.List:
		return readCollection(of, patch, func(s *bodyscan.Scanner) []string { return appendStrings(s, []string{}) })
	case catalog.Map[uint32]:
		return readCollection(of, patch, readByRank)
	case catalog.Map[string]:
		return readCollection(of, patch, readStringMap)
	}
	panic("httpapi: the field " + f.Name + " has no known kind")
}

// readCollection reads a list or map.
func readCollection[C any](of func(*catalog.Record) *C, patch bool, read func(*bodyscan.Scanner) C) func(*bodyscan.Scanner, *catalog.Record) {
	return func(s *bodyscan.Scanner, r *catalog.Record) {
		if !patch || !s.Null() {
			*of(r) = read(s)
		}
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
	for _, write := range writeFields {
		out = write(out, &w.Record)
	}
	out = appendDescription(out, w)
	if reasons := w.Explain(); len(reasons) > 0 {
		out = d.appendReasons(out, w, reasons)
	}
	return append(appendBehind(out, w.Behind), '}')
}

// writeFields append the fields of a record.
var writeFields = func() (all []func([]byte, *catalog.Record) []byte) {
	for _, f := range catalog.Fields() {
		all = append(all, writeField(&f))
	}
	return all
}()

// writeField returns what appends a field behind other members.
func writeField(f *catalog.Field) func([]byte, *catalog.Record) []byte {
	switch of := f.Of.(type) {
	case catalog.Pointer[string]:
		return writePointer(f, of, appendString)
	case catalog.Pointer[bool]:
		return writePointer(f, of, strconv.AppendBool)
	case catalog.Pointer[uint32]:
		return writePointer(f, of, func(out []byte, n uint32) []byte { return appendUint(out, uint64(n)) })
	case catalog.Pointer[uint64]:
		return writePointer(f, of, appendUint)
	case catalog.Pointer[float32]:
		return writePointer(f, of, func(out []byte, v float32) []byte { return appendFloat(out, float64(v), 32) })
	case catalog.Pointer[catalog.LoadMetrics]:
		return writePointer(f, of, appendLoadMetrics)
	case catalog.List:
		name, always := f.Name, f.Dynamo
		return func(out []byte, r *catalog.Record) []byte {
			if list := *of(r); always || len(list) > 0 {
				out = appendList(appendKey(out, name), list, appendString)
			}
			return out
		}
	case catalog.Map[uint32]:
		name := f.Name
		return func(out []byte, r *catalog.Record) []byte { return appendByRank(out, name, *of(r)) }
	case catalog.Map[string]:
		name, always := f.Name, f.Dynamo
		return func(out []byte, r *catalog.Record) []byte {
			if m := *of(r); always || len(m) > 0 {
				out = appendStringMap(out, name, m)
			}
			return out
		}
	}
	panic("httpapi: the field " + f.Name + " has no known kind")
}

// writePointer is writeField for a scalar.
func writePointer[T any](f *catalog.Field, of func(*catalog.Record) **T, value func([]byte, T) []byte) func([]byte, *catalog.Record) []byte {
	key, unset := `,"`+f.Name+`":`, ""
	if f.Dynamo {
		unset = key + "null"
	}
	return func(out []byte, r *catalog.Record) []byte {
		if v := *of(r); v != nil {
			return value(append(out, key...), *v)
		}
		return append(out, unset...)
	}
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

func appendLoadMetrics(out []byte, m catalog.LoadMetrics) []byte {
	out = append(out, '{')
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
	var few [16]uint32
	for _, rank := range sortedKeys(few[:0], byRank) {
		out = appendStringField(out, strconv.FormatUint(uint64(rank), 10), byRank[rank])
	}
	return append(out, '}')
}

// sortedKeys appends the keys of a map, in order, to an empty list.
func sortedKeys[K cmp.Ordered](keys []K, m map[K]string) []K {
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// appendStringMap appends an object whose member names come from clients.
func appendStringMap(out []byte, name string, m map[string]string) []byte {
	out = append(appendKey(out, name), '{')
	var few [8]string
	for i, key := range sortedKeys(few[:0], m) {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendString(out, key), ':')
		out = appendString(out, m[key])
	}
	return append(out, '}')
}
