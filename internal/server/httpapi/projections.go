package httpapi

import (
	"net/http"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// projector returns the overlap and load of a prompt on every rank, without choosing
// one. It must not keep the request after the call.
type projector interface {
	OverlapScores(req *selection.ProjectRequest) (selection.OverlapScores, error)
	PotentialLoads(req *selection.ProjectRequest) ([]selection.RankLoad, error)
}

// loadReader lists the present loads; nil filters match all names.
type loadReader interface {
	Loads(model, tenant *string) []selection.ScopeLoads
}

type projectRoutes struct {
	svc projector
	d   dialect
}

func (r projectRoutes) overlapScores(_ request, b *projectBody, out []byte) (int, []byte, error) {
	scores, err := r.svc.OverlapScores(&b.req)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, r.d.appendOverlapScores(out, &scores), nil
}

func (r projectRoutes) potentialLoads(_ request, b *projectBody, out []byte) (int, []byte, error) {
	loads, err := r.svc.PotentialLoads(&b.req)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, appendList(out, loads, appendRankLoad), nil
}

type loadRoutes struct {
	svc loadReader
	d   dialect
}

func (r loadRoutes) list(f catalog.ScopeFilter, out []byte) []byte {
	return appendList(out, r.svc.Loads(f.Model, f.Tenant), r.d.appendScopeLoads)
}

func (d dialect) appendScopeLoads(out []byte, l selection.ScopeLoads) []byte {
	out = append(out, '{')
	out = d.appendScope(out, l.Scope)
	out = appendList(appendKey(out, "loads"), l.Loads, appendRankLoad)
	out = appendUintField(out, "pending_count", uint64(l.PendingCount))
	out = appendUintField(out, "pending_isl_tokens", l.PendingISLTokens)
	return append(out, '}')
}

// appendRankLoad appends one row of /loads or /potential_loads. The contract
// calls present loads potential too.
func appendRankLoad(out []byte, l selection.RankLoad) []byte {
	out = append(out, '{')
	out = appendRank(out, l.Rank)
	out = appendUintField(out, "potential_prefill_tokens", l.PrefillTokens)
	out = appendUintField(out, "potential_decode_blocks", l.DecodeBlocks)
	out = appendUintField(out, "active_requests", l.Requests)
	if l.Reported != nil {
		out = appendReported(out, l.Reported)
	}
	if l.Foreign != nil {
		out = appendForeign(out, *l.Foreign)
	}
	return append(out, '}')
}

// appendReported appends what an engine says of its load, without what it does not know.
func appendReported(out []byte, st *reports.Status) []byte {
	out = append(appendKey(out, "reported"), '{')
	out = appendStringField(out, "source", st.Source.String())
	out = appendFloatField(out, "age_seconds", st.Age.Seconds())
	out = appendBoolField(out, "stale", st.Stale)
	out = appendStringField(out, "state", st.State.String())
	for _, x := range []struct {
		name string
		load.Amount
	}{
		{"running", st.Running},
		{"waiting", st.Waiting},
		{"kv_tokens_used", st.KVTokensUsed},
		{"kv_tokens_total", st.KVTokensTotal},
		{"waiting_uncached_tokens", st.WaitingUncachedTokens},
		{"max_running", st.MaxRunning},
	} {
		if n, known := x.Get(); known {
			out = appendUintField(out, x.name, n)
		}
	}
	return append(out, '}')
}

// appendForeign appends load that is not booked.
func appendForeign(out []byte, f reservations.Foreign) []byte {
	out = append(appendKey(out, "foreign"), '{')
	out = appendUintField(out, "requests", uint64(f.Requests))
	out = appendUintField(out, "prefill_tokens", f.PrefillTokens)
	return append(appendUintField(out, "blocks", f.Blocks), '}')
}

// noSharedCache is the contract's description of a cache shared by all workers, which this
// service does not support.
const noSharedCache = `,"shared_cache":{"enabled":false,"total_hit_blocks":0,"ranges":[],"error":null}}`

func (d dialect) appendOverlapScores(out []byte, s *selection.OverlapScores) []byte {
	out = append(out, '{')
	out = appendUintField(out, "block_size", s.BlockSize)
	out = appendUintField(out, "num_blocks", uint64(s.NumBlocks))
	out = appendList(appendKey(out, "workers"), s.Rows, d.appendOverlapRow)
	return append(out, noSharedCache...)
}

// appendOverlapRow appends for each tier both the blocks that it adds and the contract's
// cumulative figure.
func (d dialect) appendOverlapRow(out []byte, r selection.OverlapRow) []byte {
	host := uint64(r.Device) + uint64(r.Host)
	out = append(out, '{')
	out = appendRank(out, r.Rank)
	out = appendUintField(out, "device_blocks", r.Device)
	out = appendUintField(out, "host_pinned_blocks", host)
	out = appendUintField(out, "disk_blocks", host+uint64(r.Disk))
	out = appendUintField(out, "host_pinned_extension_blocks", r.Host)
	out = appendUintField(out, "disk_extension_blocks", r.Disk)
	out = appendNull(out, "shared_beyond_device_blocks")
	if d == dialect13 {
		out = appendFloatField(out, "router_credit_blocks", r.RouterCredit)
	}
	return append(out, '}')
}

// projectBody is the body of both routes of projectRoutes.
type projectBody struct {
	req     selection.ProjectRequest
	routing selection.Routing
}

func (b *projectBody) promptBody() promptBody {
	return promptBody{&b.req.Scope, &b.req.Prompt, &b.req.Override, &b.routing}
}

func newProjectBody(d dialect) *body[projectBody] {
	return newBody(bodyscan.NewObject(promptFields(d, (*projectBody).promptBody)...),
		func(b *projectBody) { b.promptBody().reset() },
		func(b *projectBody) int { return b.promptBody().size() }).perRank().
		permitNamed(func(b *projectBody) *catalog.Scope { return &b.req.Scope })
}
