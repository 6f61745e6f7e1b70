package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/identity"
	"github.com/select-service/select-service/pkg/catalog"
)

// policyHeader names the queue class of a selection.
const policyHeader = "X-Dynamo-Meta-Policy-Class"

// tenantHeader names the tenant that pays for a selection in a queue class that is fair, where one scope serves several.
const tenantHeader = "X-Tenant-Id"

// workerSelector chooses workers. It must not keep the request after the call.
type workerSelector interface {
	Select(ctx context.Context, req *selection.SelectRequest, reserve bool) (selection.Selection, error)
	CountIgnored(faults identity.Faults)
	// IgnoresTargets reports whether what requests want of their times has no effect.
	IgnoresTargets() bool
}

type selectRoutes struct {
	svc workerSelector
	d   dialect
}

func (r selectRoutes) selectWorker(c request, b *selectBody, out []byte) (int, []byte, error) {
	b.req.Pending = r.d == dialect16 && b.req.SelectionID != nil
	b.req.Advisory = b.advisory
	return r.answer(c, b, out, false)
}

func (r selectRoutes) selectAndReserve(c request, b *selectBody, out []byte) (int, []byte, error) {
	if err := r.d.setBooking(&b.req, &b.booking); err != nil {
		return 0, nil, err
	}
	return r.answer(c, b, out, true)
}

// setBooking sets what a body says of the reservation.
func (d dialect) setBooking(req *selection.SelectRequest, b *bookingOptions) (err error) {
	if d == dialect16 {
		req.ReservationID, req.Hint = req.SelectionID, selection.HintInAnswer // decision E1
	}
	if req.IfExists = b.ifExists; req.IfExists == selection.ReturnFirst && req.ReservationID == nil {
		return d.errIfExistsNeedsID()
	}
	req.Lease, err = b.lease()
	return err
}

// setCaller sets who asks, and in which session. ignored says why names of sessions are not used.
func (d dialect) setCaller(c request, req *selection.SelectRequest, s *session) (ignored identity.Faults) {
	req.PolicyClass = strings.TrimSpace(headerOf(c.Request.Header, policyHeader))
	req.FairTenant = selection.FairName(headerOf(c.Request.Header, tenantHeader))
	req.Dialect = contract.Version(d)
	req.Trace = c.span
	return s.fill(req)
}

func (r selectRoutes) answer(c request, b *selectBody, out []byte, reserve bool) (int, []byte, error) {
	if err := b.wants.set(&b.req, r.svc); err != nil {
		return 0, nil, err
	}
	if ignored := r.d.setCaller(c, &b.req, &b.session); ignored != 0 {
		r.svc.CountIgnored(ignored)
	}
	switch identity.FaultOf(b.req.FairnessID) {
	case 0:
	case identity.TooLong:
		return 0, nil, contract.Errorf(contract.BadRequest, "fairness_id must have at most %d bytes", selection.MaxFairName)
	default:
		return 0, nil, contract.Errorf(contract.BadRequest, "fairness_id must not have control characters")
	}
	sel, err := r.svc.Select(c.Request.Context(), &b.req, reserve)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, r.d.appendSelection(out, &sel, reserve), nil
}

// appendSelection appends the answer of a selection; reserved reports whether it was booked too.
func (d dialect) appendSelection(out []byte, s *selection.Selection, reserved bool) []byte {
	if s.PlacementOnly {
		return d.appendReservation(out, &selection.Reservation{
			ID: *s.ReservationID, Scope: s.Scope, Rank: s.Rank, Endpoint: s.Endpoint, Lease: s.Lease,
		})
	}
	out = append(out, '{')
	out = d.appendIDs(out, s)
	if reserved && d == dialect16 {
		out = appendList(appendKey(out, "sequence_hashes"), s.SequenceHashes, appendHash)
		out = appendUintField(out, "isl_tokens", s.ISLTokens)
		out = appendBoolField(out, "track_prefill_tokens", s.TrackPrefill)
	}
	out = d.appendPlacement(out, s.Scope, s.Rank, s.Endpoint)
	out = appendUintField(out, "block_size", s.BlockSize)
	out = appendOverlap(out, &s.Overlap)
	out = appendUintField(out, "effective_prefill_tokens", s.EffectivePrefillTokens)
	if d == dialect16 {
		out = appendUintField(out, "potential_decode_blocks", s.PotentialDecodeBlocks)
		out = appendBoolIf(out, "decode_busy", s.DecodeBusy)
		if s.WorkerLoad != nil {
			out = appendWorkerLoad(out, s.WorkerLoad)
		}
		if s.Fetch != nil {
			out = s.Fetch.AppendHint(appendKey(out, "kv_hint"), *s.ReservationID)
		}
	}
	out = appendLease(out, s.Lease)
	if s.Explanation != nil {
		out = appendRankHeader(out, s.Explanation.ChosenHeader)
		out = append(appendKey(out, "explanation"), '{')
		out = append(appendReasons(out, s.Explanation), '}')
	}
	return append(out, '}')
}

// appendIDs appends the ids that a selection has. In the 1.6 dialect selection_id is the id of
// the reservation (decision E1).
func (d dialect) appendIDs(out []byte, s *selection.Selection) []byte {
	chosen, reservation := s.SelectionID, s.ReservationID
	if d == dialect16 && reservation != nil {
		chosen, reservation = reservation, nil
	}
	if chosen != nil {
		out = appendStringField(out, "selection_id", *chosen)
	}
	if reservation != nil {
		out = appendStringField(out, "reservation_id", *reservation)
	}
	return out
}

// appendHash appends a hash in the form of the contract's answers: signed.
func appendHash(out []byte, hash uint64) []byte { return strconv.AppendInt(out, int64(hash), 10) }

func appendOverlap(out []byte, o *selection.OverlapSummary) []byte {
	out = append(appendKey(out, "overlap"), '{')
	out = appendUintField(out, "longest_matched", o.LongestMatched)
	out = appendUintField(out, "gpu", o.GPU)
	out = append(appendKey(out, "dp"), '{')
	for i, rank := range o.DP {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, '"')
		out = strconv.AppendUint(out, uint64(rank.DP), 10)
		out = append(out, '"', ':')
		out = strconv.AppendUint(out, uint64(rank.Tokens), 10)
	}
	out = append(out, '}')
	out = appendUintField(out, "cpu", o.CPU)
	out = appendUintField(out, "disk", o.Disk)
	return append(out, '}')
}

// appendWorkerLoad appends a rank's load without the members that are unknown.
func appendWorkerLoad(out []byte, l *selection.WorkerLoad) []byte {
	out = append(appendKey(out, "worker_load"), '{')
	out = appendUintField(out, "active_prefill_tokens", l.ActivePrefillTokens)
	out = appendUintField(out, "prefill_token_capacity", l.PrefillTokenCapacity)
	if l.TotalKVBlocks != nil {
		out = appendUintField(out, "total_kv_blocks", *l.TotalKVBlocks)
	}
	out = appendBoolIf(out, "prefill_busy", l.PrefillBusy)
	return append(out, '}')
}

// appendPlacement appends the rank and endpoint of a request.
func (d dialect) appendPlacement(out []byte, scope catalog.Scope, rank catalog.Rank, endpoint string) []byte {
	out = d.appendScope(out, scope)
	out = appendRank(out, rank)
	return appendStringField(out, "endpoint", endpoint)
}

// selectBody is the body of both selection routes.
type selectBody struct {
	req      selection.SelectRequest
	routing  selection.Routing
	session  session
	booking  bookingOptions
	wants    wants
	advisory bool
}

func (b *selectBody) promptBody() promptBody {
	return promptBody{&b.req.Scope, &b.req.Prompt, &b.req.Override, &b.routing}
}

func newSelectBody(shape *bodyscan.Object[selectBody]) *body[selectBody] {
	b := newBody(shape, resetSelectBody, selectBodySize).permitNamed(func(b *selectBody) *catalog.Scope { return &b.req.Scope })
	b.attach = func(s *selectBody, text selection.TextReleaser) { s.req.Text = text }
	b.wide, b.explains = func(s *selectBody) bool { return s.req.Explain }, true
	return b
}

// selectBodySize returns the bytes of memory that resetSelectBody keeps.
func selectBodySize(b *selectBody) int {
	return b.promptBody().size() + 8*cap(b.req.AllowedWorkers) + 16*cap(b.req.RequiredTaints)
}

func resetSelectBody(b *selectBody) {
	prompt, routing, workers, taints := b.req.Prompt, b.routing, b.req.AllowedWorkers[:0], b.req.RequiredTaints
	clear(taints)
	*b = selectBody{}
	b.req.Prompt, b.routing, b.req.AllowedWorkers, b.req.RequiredTaints = prompt, routing, workers, taints[:0]
	b.promptBody().reset()
}

// newSelectShape describes the body of /select. Members about the reservation only are unknown
// there, so any value of them is ignored.
func newSelectShape(d dialect) *bodyscan.Object[selectBody] {
	fields := selectFields(d)
	if d == dialect16 {
		fields = append(fields, bodyscan.Field[selectBody]{Name: "advisory", Read: bodyscan.Set(
			func(b *selectBody) *bool { return &b.advisory }, (*bodyscan.Scanner).Bool)})
	}
	return bodyscan.NewObject(fields...)
}

// newSelectAndReserveShape describes the body of /select_and_reserve, which has no advisory form.
func newSelectAndReserveShape(d dialect) *bodyscan.Object[selectBody] {
	fields := append(selectFields(d), bookingOptionFields(func(b *selectBody) *bookingOptions { return &b.booking })...)
	if d == dialect13 {
		fields = append(fields, optional("reservation_id", func(b *selectBody) **string { return &b.req.ReservationID }, readText))
	}
	return bodyscan.NewObject(fields...)
}

func selectFields(d dialect) []bodyscan.Field[selectBody] {
	selectionID := func(b *selectBody) **string { return &b.req.SelectionID }
	fields := append(promptFields(d, (*selectBody).promptBody),
		optional("expected_output_tokens", func(b *selectBody) **uint32 { return &b.req.ExpectedOutputTokens }, (*bodyscan.Scanner).Uint32),
		field("priority_jump", func(b *selectBody) *float64 { return &b.req.PriorityJump }, (*bodyscan.Scanner).Float64),
		field("strict_priority", func(b *selectBody) *uint32 { return &b.req.StrictPriority }, (*bodyscan.Scanner).Uint32),
		field("fairness_id", func(b *selectBody) *string { return &b.req.FairnessID }, readText),
		optional("ttft_target_ms", func(b *selectBody) **float64 { return &b.wants.ttft }, (*bodyscan.Scanner).Float64),
		optional("deadline_ms", func(b *selectBody) **float64 { return &b.wants.deadline }, (*bodyscan.Scanner).Float64),
		field("on_miss", func(b *selectBody) *bool { return &b.wants.refuse }, readOnMiss),
		field("explain", func(b *selectBody) *bool { return &b.req.Explain }, (*bodyscan.Scanner).Bool),
	)
	fields = append(fields, constraintFields(func(b *selectBody) *selection.Constraints { return &b.req.Constraints })...)
	if d == dialect13 {
		return append(fields, optional("selection_id", selectionID, readText))
	}
	fields = append(fields, optional("affinity_target",
		func(b *selectBody) **selection.AffinityTarget { return &b.req.Target }, readTarget))
	fields = append(fields, sessionFields(func(b *selectBody) *session { return &b.session })...)
	return append(fields, aliasedOrNull("selection_id", "reservation_id", selectionID))
}

// wants is when a selection wants its first token and its whole answer, in milliseconds from now on; nil: it does not say.
type wants struct {
	ttft, deadline *float64
	refuse         bool
}

// set adds to a request what it wants. Where that has no effect, what cannot be wanted is no error.
func (w *wants) set(r *selection.SelectRequest, svc interface{ IgnoresTargets() bool }) error {
	err := w.read(r)
	if err == nil || !svc.IgnoresTargets() {
		return err
	}
	r.OddTarget = true
	return nil
}

func (w *wants) read(r *selection.SelectRequest) (err error) {
	if w.ttft != nil {
		if r.TTFTTarget, err = selection.TTFTTargetOf("ttft_target_ms", *w.ttft); err != nil {
			return err
		}
	}
	if w.deadline != nil {
		if r.Deadline, err = selection.DeadlineOf("deadline_ms", *w.deadline, time.Now()); err != nil {
			return err
		}
	}
	r.RefuseOnMiss = w.refuse
	return nil
}

// readOnMiss reads on_miss, and reports whether it is refuse. It is no member of Dynamo's contract, in which a value in place of
// one of a few words is a fault of syntax, so a value of another type is a fault of shape, as in the members beside it.
func readOnMiss(s *bodyscan.Scanner) (refuse bool) {
	if !s.IsText() {
		_ = s.Text() // fails
		return false
	}
	return s.Variant("place", "refuse") == "refuse"
}

var rankShape = bodyscan.NewObject(
	required("worker_id", func(r *catalog.Rank) *uint64 { return &r.Worker }, (*bodyscan.Scanner).Uint64),
	required("dp_rank", func(r *catalog.Rank) *uint32 { return &r.DP }, (*bodyscan.Scanner).Uint32),
)

func readRank(s *bodyscan.Scanner) (r catalog.Rank) {
	rankShape.Read(s, &r)
	return r
}

var targetShape = bodyscan.NewObject(
	required("worker_id", func(t *selection.AffinityTarget) *uint64 { return &t.Worker }, (*bodyscan.Scanner).Uint64),
	optional("dp_rank", func(t *selection.AffinityTarget) **uint32 { return &t.DP }, (*bodyscan.Scanner).Uint32),
)

func readTarget(s *bodyscan.Scanner) (t selection.AffinityTarget) {
	targetShape.Read(s, &t)
	return t
}

// constraintFields are those of the ranks that may take a request, or a side of a pair.
func constraintFields[T any](of func(*T) *selection.Constraints) []bodyscan.Field[T] {
	return []bodyscan.Field[T]{
		optional("pinned_worker", func(t *T) **catalog.Rank { return &of(t).Pinned }, readRank),
		{Name: "allowed_worker_ids", Read: func(s *bodyscan.Scanner, t *T) {
			if c := of(t); !s.Null() {
				c.AllowedWorkers, c.HasAllowedWorkers = s.AppendUint64s(c.AllowedWorkers), true
			}
		}},
		{Name: "routing_constraints", Read: func(s *bodyscan.Scanner, t *T) { taintsShape.Read(s, of(t)) }},
	}
}

// taintsShape is routing_constraints.
var taintsShape = bodyscan.NewObject(
	bodyscan.Field[selection.Constraints]{Name: "required_taints", Read: func(s *bodyscan.Scanner, c *selection.Constraints) {
		c.RequiredTaints = appendStrings(s, c.RequiredTaints)
	}},
	bodyscan.Field[selection.Constraints]{Name: "preferred_taints", Read: func(s *bodyscan.Scanner, c *selection.Constraints) {
		c.PreferredTaints = make(map[string]float32)
		for name := range s.Map() {
			taint := string(name)
			c.PreferredTaints[taint] = s.Float32()
		}
	}},
)

func appendStrings(s *bodyscan.Scanner, dst []string) []string {
	return bodyscan.AppendArray(s, dst, readText)
}

// session is the conversation that a prompt belongs to, in bodies of the 1.6
// dialect. input_trigger is checked and not used.
type session struct {
	id      string           // session_id
	context bool             // there is a session_context, of which the members below are
	inner   string           // session_id
	parent  string           // parent_session_id
	final   *bool            // session_final
	headers *identity.Reader // of agent_headers; nil: none
}

// agentHeaders knows the headers of clients that agent_headers may have.
var agentHeaders, _ = identity.New() // it fails for further headers alone

// fill sets what the request says of its session, and returns why names are ignored. session_context takes precedence over
// session_id, and its own members over agent_headers, which never name the session itself.
func (s *session) fill(req *selection.SelectRequest) (ignored identity.Faults) {
	if !s.context {
		req.Session = s.id
		return 0
	}
	req.Session = s.inner
	if s.inner == "" { // what has no session has no parent either
		return 0
	}
	parent, final := s.parent, s.final != nil && *s.final
	if s.headers != nil {
		said := s.headers.Session()
		req.OfAgent = said.OfAgent()
		final = final || s.final == nil && said.Final
		if parent == "" {
			parent, ignored = said.Parent, said.Ignored
		}
	}
	fault := identity.FaultOf(parent)
	switch {
	case parent == s.inner:
	case fault == 0, fault == identity.Reserved: // the service refuses the latter
		req.Parent = parent
	default:
		ignored |= fault
	}
	req.Final = final
	return ignored
}

func sessionFields[T any](of func(*T) *session) []bodyscan.Field[T] {
	return []bodyscan.Field[T]{
		field("session_id", func(t *T) *string { return &of(t).id }, readText),
		{Name: "session_context", Read: func(s *bodyscan.Scanner, t *T) {
			if !s.Null() {
				sessionShape.Read(s, of(t))
				of(t).context = true
			}
		}},
	}
}

var sessionShape = bodyscan.NewObject(
	required("session_id", func(c *session) *string { return &c.inner }, readText),
	field("parent_session_id", func(c *session) *string { return &c.parent }, func(s *bodyscan.Scanner) string {
		text := s.Text()
		return string(text[:min(len(text), identity.MaxName+1)]) // more would not be used
	}),
	optional("session_final", func(c *session) **bool { return &c.final }, (*bodyscan.Scanner).Bool),
	bodyscan.Field[session]{Name: "input_trigger", Read: func(s *bodyscan.Scanner, _ *session) {
		if !s.Null() {
			s.Variant("user_message", "tool_result", "other")
		}
	}},
	bodyscan.Field[session]{Name: "agent_headers", Read: func(s *bodyscan.Scanner, c *session) {
		if !s.Null() {
			r := agentHeaders.Reader()
			readHeaders(s, &r)
			c.headers = &r
		}
	}},
)

// readHeaders reads the values of headers by name, in any case.
func readHeaders(s *bodyscan.Scanner, r *identity.Reader) {
	for name := range s.Map() {
		header := strings.ToLower(string(name))
		for range s.Array() {
			r.Read(header, identity.Clip(s.Text()))
		}
	}
}
