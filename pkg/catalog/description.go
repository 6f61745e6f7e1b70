package catalog

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Description is what an engine says of itself. Zero values are not known. It never changes.
type Description struct {
	Engine  string // one of Engines, or "" for another one
	Version string

	Model     string
	Adapters  []string // nil: not known
	Aliases   []string `json:",omitempty"` // further names of the model
	Further   []string `json:",omitempty"` // other models, which are not served
	BlockSize uint32   // tokens
	// Corrected is the block size that the engine told, if BlockSize is that of its KV events because
	// they contradicted it; else 0.
	Corrected       uint32 `json:",omitempty"`
	StartRank, Size uint32 // the data-parallel ranks; Size is 0 if they are not known
	// Endpoints by rank: of KV events, of their replays and of load reports.
	KVEventsEndpoints, ReplayEndpoints, LoadEndpoints map[uint32]string

	Role  string // RolePrefill or RoleDecode, "" for both
	Eagle bool   // its blocks look one token ahead

	TotalKVBlocks       uint64 // capacity of each rank's device, in blocks
	KVTokens            uint64 `json:",omitempty"` // the same in tokens, where the engine tells it so
	MaxNumBatchedTokens uint64 // tokens that one step of the engine may compute
	MaxModelLen         uint32 `json:",omitempty"` // context length of the model, in tokens

	// From says for each known value, by the name of its member of a record, where it comes
	// from: a path of the engine, FromDefault or FromEvents.
	From map[string]string
	// Unknown says why the engine does not tell a value, in its words where it has any.
	Unknown map[string]string
	// Unanswered: the engine did not answer some question, so that asking again may tell more.
	Unanswered bool
}

// FromDefault is the origin of a value that the engine does not tell and that is assumed because
// the caller has named the engine.
const FromDefault = "default"

// FromEvents is the origin of a block size that is not the one that the engine tells, but that of its
// KV events.
const FromEvents = "events"

// The members of a record that an engine can fill in, as From and Unknown name them.
const (
	FieldModel               = "model_name"
	FieldAdapters            = "adapters"
	FieldAliases             = "model_aliases"
	FieldBlockSize           = "block_size"
	FieldStartRank           = "data_parallel_start_rank"
	FieldSize                = "data_parallel_size"
	FieldKVEventsEndpoint    = "kv_events_endpoint"
	FieldKVEventsEndpoints   = "kv_events_endpoints"
	FieldReplayEndpoint      = "replay_endpoint"
	FieldReplayEndpoints     = "replay_endpoints"
	FieldLoadEndpoint        = "load_endpoint"
	FieldLoadEndpoints       = "load_endpoints"
	FieldRole                = "role"
	FieldEagle               = "is_eagle"
	FieldTotalKVBlocks       = "total_kv_blocks"
	FieldMaxNumBatchedTokens = "max_num_batched_tokens"
	FieldMaxModelLen         = "max_model_len"
)

// Describe is the wish that the engine at a record's Endpoint fills in what the record leaves
// out, and what has come of it.
type Describe struct {
	// Engine is the kind of engine, one of Engines; "": whichever answers. Only of a named engine
	// anything is assumed that it does not tell.
	Engine string `json:",omitempty"`
	// Model: the model is the engine's, too. Until it is known it is DefaultName.
	Model bool `json:",omitempty"`
	// Turn is another number whenever the engine may be another one, so that it is asked at once. Its
	// former answer stays until it answers again.
	Turn uint64 `json:",omitempty"`

	// Told is what the engine has said, nil before it has said anything.
	Told *Description `json:",omitempty"`
	// Fault is why the worker is incomplete whatever its record has: the engine has not answered
	// yet, or contradicts what it said; "" if neither is so.
	Fault string `json:",omitempty"`
	// Conflict says in what the engine contradicts what it said, if that is the Fault.
	Conflict Conflict `json:"-"`
	// Filled says which members of the record are the engine's, and where they come from. A
	// record that is registered needs not have it.
	Filled map[string]string `json:",omitempty"`
}

// NotAsked is the Fault of a worker whose engine has not been asked yet.
const NotAsked = "the engine has not been asked yet"

// errNoEndpoint refuses a record that is to be described by nobody.
var errNoEndpoint = &InvalidError{"describe needs an endpoint: the engine's http:// or https:// URL"}

// check returns an error for a wish that can never be met.
func (d *Describe) check(endpoint *string) error {
	if d == nil {
		return nil
	}
	if d.Engine != "" && EngineNamed(d.Engine).Name == "" {
		return &InvalidError{fmt.Sprintf("describe %q is not true, %s", Clip(d.Engine), oneOf(Engines()))}
	}
	if endpoint == nil {
		return errNoEndpoint
	}
	if _, err := NormalURL(*endpoint); err != nil {
		return &InvalidError{"endpoint " + err.Error()}
	}
	return nil
}

// CheckDescribe returns an *InvalidError if no engine can describe the record.
func (r *Record) CheckDescribe() error { return r.Describe.check(r.Endpoint) }

// sameWish reports whether the same is asked of the same kind of engine.
func (d *Describe) sameWish(o *Describe) bool {
	return d == nil && o == nil || d != nil && o != nil && d.Engine == o.Engine && d.Model == o.Model
}

// asksSame reports whether both records are described by the same engine.
func (r *Record) asksSame(o *Record) bool {
	return r.Describe != nil && r.Describe.sameWish(o.Describe) && equalPointers(r.Endpoint, o.Endpoint) && r.Source.UID == o.Source.UID
}

// asGiven returns the record without what its engine has filled in.
func (r Record) asGiven() Record {
	if r.Describe == nil {
		return r
	}
	for field := range r.Describe.Filled {
		if field == FieldModel {
			r.Scope.Model = DefaultName
		} else if f := FieldNamed(field); f != nil {
			f.Of.clear(&r)
		}
	}
	d := *r.Describe
	d.Filled = nil
	r.Describe = &d
	return r
}

// described returns the record with what its engine has said: to the caller, else to the
// worker m, which may be nil.
func (r Record) described(m *member) Record {
	if r.Describe == nil {
		return r
	}
	r = r.asGiven()
	d := r.Describe // a copy
	if d.Told == nil && d.Fault == "" {
		d.Fault = NotAsked
		if m != nil && m.worker != nil {
			if told := toldIn(&m.worker.Record, &r); told != nil {
				d.Told, d.Fault = told, ""
			}
			if r.asksSame(&m.worker.Record) {
				d.Fault, d.Conflict = m.worker.Describe.Fault, m.worker.Describe.Conflict
			}
		}
	}
	r.fill()
	return r
}

// Told returns what the engine of a record has said, nil if it has not said anything: by the worker that
// the catalog has with the record's id.
func (c *Catalog) Told(r *Record) *Description {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.mu.members[r.ID]
	if m == nil || m.worker == nil {
		return nil
	}
	return toldIn(&m.worker.Record, r)
}

// toldIn returns what the engine of a record has said by an earlier record of the worker. Releases that
// asked pods in another way have saved discovered workers without a description: their engine counts as
// having said what the record has, as far as that is enough.
func toldIn(was, r *Record) *Description {
	switch {
	case r.asksSame(was):
		return was.Describe.Told
	case r.Describe == nil || !r.sameEngine(was):
		return nil
	case was.Describe != nil && r.Describe.sameWish(was.Describe): // the pod has another address
		return was.Describe.Told
	case was.Describe != nil || was.BlockSize == nil || len(was.Faults) > 0:
		return nil
	}
	d := &Description{
		Model: was.Scope.Model, Adapters: was.Adapters, Aliases: was.Aliases, BlockSize: *was.BlockSize, Size: was.RankCount(), Eagle: was.eagle(),
		KVEventsEndpoints: was.saved(was.KVEventsEndpoint, was.KVEventsEndpoints), ReplayEndpoints: was.saved(was.ReplayEndpoint, was.ReplayEndpoints),
		LoadEndpoints: was.saved(was.LoadEndpoint, was.LoadEndpoints), From: make(map[string]string), Unknown: make(map[string]string),
	}
	if was.TotalKVBlocks != nil {
		d.TotalKVBlocks = *was.TotalKVBlocks
	}
	return d
}

// sameEngine reports whether a discovered worker has the engine that it had: that of the same pod and
// port, or of the same address if there is no pod.
func (r *Record) sameEngine(was *Record) bool {
	if !r.Source.KindOrAPI().Discovered() || r.Source.UID != was.Source.UID {
		return false
	}
	port := func(r *Record) string { return r.Address()[strings.LastIndexByte(r.Address(), ':')+1:] }
	return r.Address() == was.Address() || r.Source.UID != "" && port(r) == port(was)
}

// saved returns endpoints of a record by rank, as an engine tells them that counts its ranks from 0.
func (r *Record) saved(one *string, byRank map[uint32]string) map[uint32]string {
	all := make(map[uint32]string, max(1, len(byRank)))
	for dp, at := range byRank {
		all[dp-r.FirstRank()] = at
	}
	if one != nil {
		all[0] = *one
	}
	return all
}

// describedAnew is described for a record that was changed since its engine has said anything.
func (r Record) describedAnew(m *member) Record {
	if r.Describe != nil {
		d := *r.Describe
		d.Told, d.Fault = nil, ""
		r.Describe = &d
	}
	return r.described(m)
}

// describedLocked is Record.described for the records of a set.
func (c *Catalog) describedLocked(records []Record) []Record {
	if !slices.ContainsFunc(records, func(r Record) bool { return r.Describe != nil }) {
		return records
	}
	records = slices.Clone(records)
	for i := range records {
		records[i] = records[i].described(c.mu.members[records[i].ID])
	}
	return records
}

// AliasesOf returns the names of an engine's model beside the one that it has here, sorted: none if
// it has a name here that its engine does not know.
func AliasesOf(here, model string, further []string) []string {
	if len(further) == 0 || here != model && !slices.Contains(further, here) {
		return nil
	}
	names := append([]string{model}, further...)
	names = slices.DeleteFunc(names, func(name string) bool { return name == here })
	slices.Sort(names)
	return slices.Compact(names)
}

// fillEndpoints fills in the endpoints of the record's own ranks: as one for a single rank, else
// by rank. An endpoint that is given for the first of several ranks stands for the others, whose
// ports follow it.
func (r *Record) fillEndpoints(told map[uint32]string, one **string, byRank *map[uint32]string, oneField, byRankField string) {
	if len(*byRank) > 0 {
		return
	}
	from := r.Describe.Told.From[byRankField]
	if *one != nil {
		if r.RankCount() < 2 {
			return
		}
		if told = following(**one, r.FirstRank(), r.RankCount()); told == nil {
			return
		}
		from = oneField
	}
	own := make(map[uint32]string)
	for dp := range r.ranks() {
		if at, known := told[dp]; known {
			own[dp] = at
		}
	}
	switch at, single := own[r.FirstRank()]; {
	case len(own) == 0:
	case single && r.RankCount() == 1:
		*one = &at
		r.filled(oneField, from)
	default:
		*byRank = own
		r.filled(byRankField, from)
	}
}

// following returns the endpoints of n ranks from first on, whose ports begin with that of a TCP
// endpoint; nil if there are no such ports.
func following(endpoint string, first, n uint32) map[uint32]string {
	e, err := ParseEndpoint(endpoint)
	if err != nil || e.Scheme != "tcp" || uint64(e.Port)+uint64(n)-1 > 65535 {
		return nil
	}
	byRank := make(map[uint32]string, n)
	for i := range n {
		byRank[first+i] = "tcp://" + net.JoinHostPort(e.Host, strconv.FormatUint(uint64(e.Port)+uint64(i), 10))
	}
	return byRank
}

// reasons returns why the record is incomplete as far as its engine is concerned.
func (d *Describe) reasons(r *Record, s *Settings) []string {
	if d.Fault != "" && d.faultCounts(r) {
		return []string{d.Fault}
	}
	if d.Told != nil {
		if err := r.lacking(s); err != nil {
			return []string{err.Error()}
		}
	}
	return nil
}

// faultCounts reports whether the record is incomplete for a fault. A discovered worker, which nobody
// registers again, is complete without its engine's answer if it needs nothing of it.
func (d *Describe) faultCounts(r *Record) bool {
	return !r.Source.KindOrAPI().Discovered() || d.Told == nil && (d.Model || r.blockSize() == 0)
}

// lacking returns why what the record still needs of its engine is not known, nil if it needs
// nothing more.
func (r *Record) lacking(s *Settings) error {
	t := r.Describe.Told
	var why []string
	need := func(field string) {
		if text := t.Unknown[field]; text != "" && !slices.Contains(why, text) {
			why = append(why, text)
		}
	}
	if r.Describe.Model && t.Model == "" {
		need(FieldModel)
		if why == nil {
			why = append(why, "the engine does not tell its model")
		}
	}
	if r.blockSize() == 0 {
		need(FieldBlockSize)
	}
	if s.KVEvents && r.Publishes() {
		for dp := range r.ranks() {
			if r.eventEndpoint(dp) == "" {
				need(FieldKVEventsEndpoints)
				break
			}
		}
	}
	if why == nil {
		return nil
	}
	return errors.New(strings.Join(why, "; "))
}

// Lacking returns why a record with a Description would not be complete by it, nil if it would.
func (c *Catalog) Lacking(r Record) error {
	r = r.described(nil)
	return r.lacking(&c.settings)
}

// Describe tells the catalog what the engine of a worker says of itself. If the engine says
// nothing, told is nil and fault says why. w is the worker as it was when its engine was asked;
// nothing is done if the worker is gone or another engine describes it now. now is the worker
// afterwards.
//
// Values that are known stay when the engine does not answer. If it has another model or block
// size than the record has from it, the worker becomes incomplete, and stays as it is otherwise:
// its blocks would not be those that requests are looked up by.
func (c *Catalog) Describe(w *Worker, told *Description, fault string) (now *Worker, changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.mu.members[w.ID]
	if c.mu.closed || m == nil || !m.worker.asksSame(&w.Record) {
		return nil, false
	}
	was := m.worker.Describe
	if told == nil && (was.Told != nil || fault == was.Fault) {
		return m.worker, false
	}
	r := m.worker.asGiven()
	r.Describe.Told, r.Describe.Fault, r.Describe.Conflict = was.Told, fault, NoConflict
	if told != nil {
		if was.Told != nil && was.Told.Corrected > 0 && told.BlockSize == was.Told.Corrected {
			told = told.withBlockSize(was.Told.BlockSize)
		}
		if !r.Source.KindOrAPI().Discovered() { // a pod has what it says now
			r.Describe.Fault, r.Describe.Conflict = was.contradiction(told)
		}
	}
	if r.Describe.Fault == "" {
		r.Describe.Told = told.orElse(was.Told)
	}
	r.fill()
	if err := c.checkDescribedLocked(m, &r); err != nil {
		r = r.asGiven()
		r.Describe.Told, r.Describe.Fault, r.Describe.Conflict = nil, err.Error(), NoConflict
	}
	if r.Describe.Fault == was.Fault && m.worker.equal(&r) && r.Describe.Told.equal(was.Told) {
		return m.worker, false
	}
	if m.worker.Scope != r.Scope {
		c.releaseWorkerLocked(m.worker.Scope, r.ID)
	}
	return c.updateLocked(m, r), true
}

// CorrectBlockSize tells the catalog that the KV events of a worker's engine have another block size
// than its record. w is the worker as it was then. If its engine has told the block size, the events
// know better, and the record is changed as by another description: once, so that an engine cannot
// change it to and fro. A block size that is given, or corrected already, stays. now is the worker
// afterwards, nil if it is another one now.
func (c *Catalog) CorrectBlockSize(w *Worker, size uint32) (now *Worker, changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.mu.members[w.ID]
	if c.mu.closed || m == nil || !equalPointers(m.worker.BlockSize, w.BlockSize) || size == 0 || m.worker.blockSize() == size {
		return nil, false
	}
	d := m.worker.Describe
	if d == nil || d.Told == nil || d.Filled[FieldBlockSize] == "" || d.Told.Corrected > 0 || !m.worker.asksSame(&w.Record) {
		return m.worker, false
	}
	r := m.worker.asGiven()
	r.Describe.Told = d.Told.withBlockSize(size)
	r.fill()
	return c.updateLocked(m, r), true
}

// withBlockSize returns the description with the block size of the engine's events.
func (d *Description) withBlockSize(size uint32) *Description {
	corrected := *d
	corrected.From = maps.Clone(d.From)
	corrected.BlockSize, corrected.Corrected, corrected.From[FieldBlockSize] = size, d.BlockSize, FromEvents
	// The described number of blocks is one of blocks of the described size.
	if corrected.TotalKVBlocks = d.KVTokens / uint64(size); corrected.TotalKVBlocks == 0 {
		delete(corrected.From, FieldTotalKVBlocks)
	}
	return &corrected
}

// checkDescribedLocked returns why the catalog cannot have the record of a member, which the
// engine has filled in.
func (c *Catalog) checkDescribedLocked(m *member, r *Record) error {
	if err := r.check(); err != nil {
		return err
	}
	if c.mu.tracked[trackedKey{r.Scope, r.ID}] != nil {
		return &ExistsError{ID: r.ID, Scope: r.Scope}
	}
	return c.checkRoomForLocked(r, m)
}

// contradiction returns how an engine contradicts what a worker has from it, and in what; "" if it
// does not. Of both a model and a block size, the block size counts.
func (d *Describe) contradiction(told *Description) (fault string, in Conflict) {
	var why []string
	if _, has := d.Filled[FieldModel]; has && told.Model != "" && told.Model != d.Told.Model {
		why, in = append(why, fmt.Sprintf("model %q, not %q", Clip(told.Model), Clip(d.Told.Model))), ConflictModel
	}
	if _, has := d.Filled[FieldBlockSize]; has && told.BlockSize != 0 && told.BlockSize != d.Told.BlockSize {
		why, in = append(why, fmt.Sprintf("block_size %d, not %d", told.BlockSize, d.Told.BlockSize)), ConflictBlockSize
	}
	if why == nil {
		return "", NoConflict
	}
	return "the engine now has " + strings.Join(why, " and ") + ": register the worker again", in
}

// KVBlocks returns the capacity of each rank's device in blocks, as the record has it, else as
// the engine says. It is for thresholds: what the engine says does not bound copies or predicted
// caches.
func (r *Record) KVBlocks() (n uint64, known bool) {
	return recordedOr(r, r.TotalKVBlocks, func(t *Description) uint64 { return t.TotalKVBlocks })
}

// BatchTokens is KVBlocks for the tokens that one step of the engine may compute.
func (r *Record) BatchTokens() (n uint64, known bool) {
	return recordedOr(r, r.MaxNumBatchedTokens, func(t *Description) uint64 { return t.MaxNumBatchedTokens })
}

// recordedOr returns what the record has, else what its engine has told, if that is not 0.
func recordedOr(r *Record, recorded *uint64, told func(*Description) uint64) (n uint64, known bool) {
	switch {
	case recorded != nil:
		return *recorded, true
	case r.Describe != nil && r.Describe.Told != nil:
		n = told(r.Describe.Told)
	}
	return n, n > 0
}

// NormalURL returns the form of an engine's URL of which its worker's id is made: scheme and host
// in small letters, without the scheme's own port, and without a slash at the end.
func NormalURL(text string) (string, error) {
	if why := badURL(text); why != "" {
		return "", fmt.Errorf("`%s` %s", Clip(text), why)
	}
	u, err := url.Parse(text)
	if err != nil {
		return "", err
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if n, err := strconv.ParseUint(port, 10, 16); port != "" && (err != nil || n == 0) {
		return "", fmt.Errorf("`%s` has a port that is not in [1, 65535]", Clip(text))
	}
	if u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443" {
		port = ""
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port != "" {
		host += ":" + port
	}
	return u.Scheme + "://" + host + strings.TrimRight(u.EscapedPath(), "/"), nil
}
