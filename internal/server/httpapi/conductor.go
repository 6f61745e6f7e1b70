package httpapi

import (
	"math"
	"net/http"
	"slices"
	"strconv"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
)

// ConductorAPI has the use cases behind the routes of the Conductor contract. Its methods must
// not keep their requests.
type ConductorAPI interface {
	// Register does nothing if the same registration exists already.
	Register(reg conductor.Registration) error
	// Unregister returns what it removed, each as instance|tenant|rank.
	Unregister(f conductor.Filter) ([]string, error)
	// Query fills in a, sorted by instance.
	Query(req *conductor.Query, a *conductor.Answer) error
	// Services lists the publishers in order of registration.
	Services() []conductor.Service
	// SelectionWorkers counts the selection service's workers of a model and tenant, nil for
	// any. Answers include it.
	SelectionWorkers(model, tenant *string) uint64
	// Diagnose examines the first maxBlocks blocks of a prompt.
	Diagnose(req *conductor.Query, maxBlocks int) (*diagnose.Diagnosis, error)
}

// conductorPrefix is the prefix of the Conductor's routes on the selection service.
const conductorPrefix = "/conductor"

type conductorRoutes struct{ svc ConductorAPI }

// addTo registers the routes, all of them relative to r.
func (routes conductorRoutes) addTo(r router) {
	a := r.api
	r.post(access.Operate, "/register", withBody(a, newConductorBody(registerShape, resetRegistration, nil).
		permit(func(who *access.Caller, b *registrationBody) error { return checkIdentity(who, &b.reg.Identity) }), routes.register))
	r.post(access.Operate, "/unregister", withBody(a, newConductorBody(unregisterShape, resetUnregistration, nil).
		permit(func(who *access.Caller, b *unregistrationBody) error {
			return who.Covers(catalog.ScopeFilter{Model: b.by.Model, Tenant: &b.by.Tenant})
		}), routes.unregister))
	r.post(access.Read, "/query", withBody(a, newQueryBody(queryShape), routes.query))
	r.post(access.Read, "/query_by_hash", withBody(a, newQueryBody(queryByHashShape), routes.queryByHash))
	r.post(access.Read, "/diagnose", withBody(a, newQueryBody(conductorDiagnoseShape), routes.diagnose))
	r.get(access.Read, "/services", anyScope(a.list(routes.services)))
	r.get(access.Public, "/health", a.serve(health))
}

// checkIdentity is inScope for an identity of the Conductor API.
func checkIdentity(who *access.Caller, i *conductor.Identity) error {
	if !who.Sees(catalog.Scope{Model: i.Model, Tenant: i.Tenant}) {
		return access.ErrForeignScope
	}
	return nil
}

func (routes conductorRoutes) register(c request, b *registrationBody, out []byte) (int, []byte, error) {
	reg, err := b.registration()
	c.about(publisher{reg})
	if err == nil {
		err = routes.svc.Register(reg)
	}
	if err != nil {
		return 0, nil, err
	}
	out = append(out, `{"status":"registered successfully"`...)
	out = appendStringField(out, "instance_id", reg.Instance)
	return http.StatusOK, append(out, '}'), nil
}

func (routes conductorRoutes) unregister(c request, b *unregistrationBody, out []byte) (int, []byte, error) {
	c.about(withdrawn{b.by, 0})
	f, err := b.filter()
	if err != nil {
		return 0, nil, err
	}
	removed, err := routes.svc.Unregister(f)
	if err != nil {
		return 0, nil, err
	}
	c.about(withdrawn{f, len(removed)})
	out = append(out, `{"status":"unregistered successfully"`...)
	out = appendList(appendKey(out, "removed_instances"), removed, appendString)
	return http.StatusOK, append(out, '}'), nil
}

func (routes conductorRoutes) query(_ request, b *queryBody, out []byte) (int, []byte, error) {
	return routes.answerQuery(b, "token_ids", out)
}

func (routes conductorRoutes) queryByHash(_ request, b *queryBody, out []byte) (int, []byte, error) {
	return routes.answerQuery(b, "seq_hashes", out)
}

func (routes conductorRoutes) answerQuery(b *queryBody, wanted string, out []byte) (int, []byte, error) {
	if err := b.resolve(wanted); err != nil {
		return 0, nil, err
	}
	if err := routes.svc.Query(&b.req, &b.answer); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, appendHits(out, b.req.Tenant, &b.answer), nil
}

func (routes conductorRoutes) diagnose(c request, b *queryBody, out []byte) (int, []byte, error) {
	b.req.OwnScopeOnly = c.who.Scoped()
	if err := b.resolve("token_ids"); err != nil {
		return 0, nil, err
	}
	d, err := routes.svc.Diagnose(&b.req, b.maxBlocks)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, dialect13.appendDiagnosis(out, d), nil
}

func (routes conductorRoutes) services(c request, out []byte) (int, []byte, error) {
	own := c.who.Scope()
	services := routes.svc.Services()
	if c.who.Scoped() {
		services = slices.DeleteFunc(services, func(s conductor.Service) bool {
			return !c.who.Sees(catalog.Scope{Model: s.Model, Tenant: s.Tenant})
		})
	}
	out = append(out, '{')
	out = appendList(appendKey(out, "services"), services, appendConductorService)
	out = appendUintField(out, "selection_workers", routes.svc.SelectionWorkers(own.Model, own.Tenant))
	return http.StatusOK, append(out, '}'), nil
}

// newConductorBody is newBody without a check of the Content-Type: not all clients of the
// Conductor API send one.
func newConductorBody[T any](shape *bodyscan.Object[T], reset func(*T), size func(*T) int) *body[T] {
	b := newBody(shape, reset, size)
	b.anyContentType = true
	return b
}

// readName reads a name that may not be empty.
func readName(s *bodyscan.Scanner) string {
	name := readText(s)
	if s.Err() == nil && name == "" {
		s.Fail("invalid value: empty string")
	}
	return name
}

// readTenant reads a tenant; the empty one is the default one.
func readTenant(s *bodyscan.Scanner) string {
	if tenant := readText(s); tenant != "" {
		return tenant
	}
	return catalog.DefaultName
}

func readBlockSize(s *bodyscan.Scanner) uint32 {
	return readRange(s, 1, math.MaxInt32)
}

// readRange reads an integer from low to high.
func readRange(s *bodyscan.Scanner, low, high uint32) uint32 {
	n := s.Uint32()
	if s.Err() == nil && (n < low || n > high) {
		s.Fail("integer out of range, expected " + strconv.FormatUint(uint64(low), 10) + " to " + strconv.FormatUint(uint64(high), 10))
	}
	return n
}

// bodyFault returns the error for a body whose members contradict each other or are out of range.
func bodyFault(reason, field, text string) error {
	return &requestError{status: http.StatusBadRequest, text: text, reason: reason, field: field}
}

func errExclusive(field, other string) error {
	return bodyFault(reasonExclusive, field, field+" and "+other+" exclude each other")
}

func publisherType(name string) (conductor.PublisherType, error) {
	t, ok := conductor.ParseType(name)
	if !ok {
		return 0, bodyFault(reasonUnknownType, "type", "type: expected `vLLM`, `SGLang`, `Mooncake` or `standard`")
	}
	return t, nil
}

// publisher is a registration in an audit line.
type publisher struct{ conductor.Registration }

func (p publisher) describe(e *zerolog.Event) {
	e.EmbedObject(conductor.LoggedRegistration(p.Registration))
}

// withdrawn is an unregistration in an audit line.
type withdrawn struct {
	by      conductor.Filter
	removed int
}

func (w withdrawn) describe(e *zerolog.Event) {
	e.Str("instance", catalog.Clip(w.by.Instance))
	describeFilter(e, catalog.ScopeFilter{Model: w.by.Model, Tenant: &w.by.Tenant})
	e.Int("removed", w.removed)
}

// registrationBody is the body of /register.
type registrationBody struct {
	kind string
	reg  conductor.Registration
}

func resetRegistration(b *registrationBody) {
	*b = registrationBody{reg: conductor.Registration{
		Identity: conductor.Identity{Tenant: catalog.DefaultName}, HashSeed: hashing.Seed,
	}}
}

func (b *registrationBody) registration() (conductor.Registration, error) {
	t, err := publisherType(b.kind)
	b.reg.Type = t
	return b.reg, err
}

var registerShape = bodyscan.NewObject(
	required("endpoint", func(b *registrationBody) *string { return &b.reg.Endpoint }, readText),
	field("replay_endpoint", func(b *registrationBody) *string { return &b.reg.Replay }, readText),
	removedServerKey[registrationBody](),
	required("type", func(b *registrationBody) *string { return &b.kind }, readText),
	required("modelname", func(b *registrationBody) *string { return &b.reg.Model }, readName),
	field("lora_name", func(b *registrationBody) *string { return &b.reg.LoRA }, readText),
	field("tenant_id", func(b *registrationBody) *string { return &b.reg.Tenant }, readTenant),
	required("instance_id", func(b *registrationBody) *string { return &b.reg.Instance }, readName),
	required("block_size", func(b *registrationBody) *uint32 { return &b.reg.BlockSize }, readBlockSize),
	required("dp_rank", func(b *registrationBody) *uint32 { return &b.reg.Rank }, (*bodyscan.Scanner).Uint32),
	field("additionalsalt", func(b *registrationBody) *string { return &b.reg.Salt }, readText),
	field("hash_seed", func(b *registrationBody) *uint64 { return &b.reg.HashSeed }, (*bodyscan.Scanner).Uint64),
)

// unregistrationBody is the body of /unregister.
type unregistrationBody struct {
	kind *string
	by   conductor.Filter
}

func resetUnregistration(b *unregistrationBody) {
	*b = unregistrationBody{by: conductor.Filter{Tenant: catalog.DefaultName}}
}

func (b *unregistrationBody) filter() (conductor.Filter, error) {
	if b.kind != nil {
		t, err := publisherType(*b.kind)
		if err != nil {
			return conductor.Filter{}, err
		}
		b.by.Type = &t
	}
	return b.by, nil
}

var unregisterShape = bodyscan.NewObject(
	required("instance_id", func(b *unregistrationBody) *string { return &b.by.Instance }, readName),
	field("tenant_id", func(b *unregistrationBody) *string { return &b.by.Tenant }, readTenant),
	optional("type", func(b *unregistrationBody) **string { return &b.kind }, readText),
	optional("modelname", func(b *unregistrationBody) **string { return &b.by.Model }, readText),
	optional("lora_name", func(b *unregistrationBody) **string { return &b.by.LoRA }, readText),
	optional("additionalsalt", func(b *unregistrationBody) **string { return &b.by.Salt }, readText),
	optional("endpoint", func(b *unregistrationBody) **string { return &b.by.Endpoint }, readText),
	optional("replay_endpoint", func(b *unregistrationBody) **string { return &b.by.Replay }, readText),
	optional("block_size", func(b *unregistrationBody) **uint32 { return &b.by.BlockSize }, readBlockSize),
	optional("dp_rank", func(b *unregistrationBody) **uint32 { return &b.by.Rank }, (*bodyscan.Scanner).Uint32),
	optional("hash_seed", func(b *unregistrationBody) **uint64 { return &b.by.HashSeed }, (*bodyscan.Scanner).Uint64),
)

// queryBody is the body of /query, /query_by_hash and /diagnose, with memory for the
// answer of the first two.
type queryBody struct {
	req       conductor.Query
	loraID    int64
	hasLoRAID bool
	// Which of the lists were given. All hashes are in req.
	hasTokens, hasSequence, hasAlias bool

	maxBlocks int
	answer    conductor.Answer
}

// newQueryBody is newConductorBody for one of the shapes of a queryBody.
func newQueryBody(shape *bodyscan.Object[queryBody]) *body[queryBody] {
	return newConductorBody(shape, resetQuery, querySize).perRank().
		permit(func(who *access.Caller, b *queryBody) error { return checkIdentity(who, &b.req.Identity) })
}

func resetQuery(b *queryBody) {
	b.answer.Reset()
	*b = queryBody{
		req: conductor.Query{
			Identity: conductor.Identity{Tenant: catalog.DefaultName},
			Tokens:   b.req.Tokens[:0],
			Hashes:   b.req.Hashes[:0],
		},
		maxBlocks: diagnose.DefaultBlocks,
		answer:    b.answer,
	}
}

func querySize(b *queryBody) int {
	size := 4*cap(b.req.Tokens) + 8*cap(b.req.Hashes)
	rows := b.answer.Instances
	for _, row := range rows[:cap(rows)] { // rows that former answers have filled
		size += 72 + 8*cap(row.Media) + 16*cap(row.Ranks)
	}
	return size
}

// resolve checks and applies the members that depend on each other. If the body has no list,
// the error says that the wanted one is missing.
func (b *queryBody) resolve(wanted string) error {
	switch {
	case b.hasLoRAID && b.req.LoRA != "":
		return errExclusive("lora_id", "lora_name")
	case b.hasSequence && b.hasAlias:
		return errExclusive("block_hash", "seq_hashes")
	case b.hasTokens && b.hasSequence:
		return errExclusive("seq_hashes", "token_ids")
	case b.hasTokens && b.hasAlias:
		return errExclusive("block_hash", "token_ids")
	case !b.hasTokens && !b.hasSequence && !b.hasAlias:
		return bodyFault(reasonMissing, wanted, shapePrefix+"missing field `"+wanted+"`")
	}
	// Adapters are numbered from 1 (vllm 0.33, LoRARequest); clients that always
	// send the member mean the base model by 0 or -1.
	if b.loraID > 0 {
		b.req.LoRA = strconv.FormatInt(b.loraID, 10)
	}
	b.req.ByHash = !b.hasTokens
	return nil
}

// queryFields are the members that all queries have.
func queryFields(further ...bodyscan.Field[queryBody]) []bodyscan.Field[queryBody] {
	return append([]bodyscan.Field[queryBody]{
		required("model", func(b *queryBody) *string { return &b.req.Model }, readName),
		field("lora_name", func(b *queryBody) *string { return &b.req.LoRA }, readText),
		{Name: "lora_id", Read: func(s *bodyscan.Scanner, b *queryBody) {
			if !s.Null() {
				b.loraID, b.hasLoRAID = int64(s.Hash64()), true
			}
		}},
		field("tenant_id", func(b *queryBody) *string { return &b.req.Tenant }, readTenant),
		field("instance_id", func(b *queryBody) *string { return &b.req.Instance }, readText),
		field("cache_salt", func(b *queryBody) *string { return &b.req.Salt }, readText),
		required("block_size", func(b *queryBody) *uint32 { return &b.req.BlockSize }, readBlockSize),
	}, further...)
}

func readQueryTokens(s *bodyscan.Scanner, b *queryBody) {
	b.req.Tokens, b.hasTokens = s.AppendUint32s(b.req.Tokens), true
}

// hashesField describes one of the two names of the list of hashes.
func hashesField(name string, given func(*queryBody) *bool) bodyscan.Field[queryBody] {
	return bodyscan.Field[queryBody]{Name: name, Read: func(s *bodyscan.Scanner, b *queryBody) {
		if !s.Null() {
			b.req.Hashes, *given(b) = s.AppendHash64s(b.req.Hashes), true
		}
	}}
}

var (
	sequenceField = hashesField("seq_hashes", func(b *queryBody) *bool { return &b.hasSequence })
	aliasField    = hashesField("block_hash", func(b *queryBody) *bool { return &b.hasAlias }) // of earlier drafts

	queryShape = bodyscan.NewObject(queryFields(
		bodyscan.Field[queryBody]{Name: "token_ids", Required: true, Read: readQueryTokens},
	)...)
	queryByHashShape       = bodyscan.NewObject(queryFields(sequenceField, aliasField)...)
	conductorDiagnoseShape = bodyscan.NewObject(queryFields(
		sequenceField, aliasField,
		bodyscan.Field[queryBody]{Name: "token_ids", Read: func(s *bodyscan.Scanner, b *queryBody) {
			if !s.Null() {
				readQueryTokens(s, b)
			}
		}},
		field("max_blocks", func(b *queryBody) *int { return &b.maxBlocks }, readMaxBlocks),
	)...)
)

// rankMember is the member of an instance's hits that is not a medium.
const rankMember = "DP"

// appendHits appends the answer to a query: hits in tokens by instance.
func appendHits(out []byte, tenant string, a *conductor.Answer) []byte {
	out = appendString(append(out, '{'), tenant)
	out = append(out, ':', '{')
	for i := range a.Instances {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendInstance(out, a.Media, &a.Instances[i])
	}
	return append(out, '}', '}')
}

// appendInstance appends an instance in the order of the API's description: the ranks stand
// behind the first medium.
func appendInstance(out []byte, media []string, m *conductor.InstanceMatch) []byte {
	out = appendString(out, m.Instance)
	out = append(out, `:{"longest_matched":`...)
	out = strconv.AppendUint(out, m.Longest, 10)
	for i, medium := range media {
		if medium == rankMember { // a publisher may have a medium of that name
			continue
		}
		out = appendString(append(out, ','), medium)
		out = append(out, ':')
		out = strconv.AppendUint(out, m.Media[i], 10)
		if i == 0 {
			out = appendRanks(out, m.Ranks)
		}
	}
	return append(out, '}')
}

func appendRanks(out []byte, ranks []conductor.RankMatch) []byte {
	out = append(appendKey(out, rankMember), '{')
	for i, r := range ranks {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, '"')
		out = strconv.AppendUint(out, uint64(r.Rank), 10)
		out = append(out, '"', ':')
		out = strconv.AppendUint(out, r.Tokens, 10)
	}
	return append(out, '}')
}

// appendConductorService appends a row of /services: the members of the registration under
// their own names, the stream, the indexed blocks, and how the publisher's hashes are known.
func appendConductorService(out []byte, s conductor.Service) []byte {
	out = append(out, '{')
	out = appendStringField(out, "type", s.Type.String())
	out = appendStringField(out, "modelname", s.Model)
	out = appendStringField(out, "lora_name", s.LoRA)
	out = appendStringField(out, "tenant_id", s.Tenant)
	out = appendStringField(out, "instance_id", s.Instance)
	out = appendUintField(out, "block_size", s.BlockSize)
	out = appendUintField(out, "dp_rank", s.Rank)
	out = appendStringField(out, "additionalsalt", s.Salt)
	out = appendUintField(out, "hash_seed", s.HashSeed)
	out = appendStringField(out, "endpoint", s.Endpoint)
	if s.Replay != "" {
		out = appendStringField(out, "replay_endpoint", s.Replay)
	}
	out = appendStringField(out, "state", s.State.String())
	out = appendUintIf(out, "last_sequence", s.Last, s.HasLast)
	out = appendUintField(out, "messages_lost", s.Lost)
	out = appendUintField(out, "stream_restarts", s.Restarts)

	st := &s.Status
	out = appendUintField(out, "undecodable_messages", st.Undecodable)
	out = append(appendKey(out, "unused_events"), '{')
	for _, e := range st.Unused {
		out = appendUintField(out, e.Reason.String(), e.Events)
	}
	out = append(out, '}')
	out = appendUintIf(out, "last_event_id", st.LastEventID, st.HasEventID)
	out = appendBoolField(out, "stale", st.Stale)
	out = appendUintField(out, "event_streams", uint64(st.Streams))
	out = appendUintField(out, "event_gaps", st.EventGaps)
	out = appendUintField(out, "events_missed", st.EventsMissed)
	out = appendUintField(out, "late_events", st.LateEvents)
	out = appendUintField(out, "restarts", st.Restarts)
	out = appendUintField(out, "base_mismatches", st.BaseMismatches)
	out = append(appendKey(out, "blocks"), '{')
	for i, m := range st.Blocks {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendString(out, m.Medium), ':')
		out = strconv.AppendUint(out, uint64(m.Blocks), 10)
	}
	out = append(out, '}')
	out = appendStringField(out, "hashes", st.Hashes.String())
	out = appendUintField(out, "token_blocks", st.TokenBlocks)
	out = appendUintField(out, "confirmed_blocks", st.Confirmed)
	out = appendUintField(out, "resolved_blocks", st.Resolved)
	out = appendUintField(out, "unverified_blocks", st.Unverified)
	return append(out, '}')
}

// appendUintIf appends a number, null if it is unknown.
func appendUintIf(out []byte, name string, v uint64, ok bool) []byte {
	if !ok {
		return appendNull(out, name)
	}
	return appendUintField(out, name, v)
}
