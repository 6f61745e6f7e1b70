package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/jsonscan"
	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/pkg/catalog"
)

// policyHeader names the queue class of a selection.
const policyHeader = "X-Dynamo-Meta-Policy-Class"

// selecter chooses workers. The request is lent for the time of the call.
type selecter interface {
	Select(ctx context.Context, req *service.SelectRequest, reserve bool) (service.Selection, error)
}

type selectRoutes struct{ svc selecter }

func (r selectRoutes) choose(c *gin.Context, b *selectBody, out []byte) (int, []byte, error) {
	return r.answer(c, b, out, false)
}

func (r selectRoutes) chooseAndReserve(c *gin.Context, b *selectBody, out []byte) (int, []byte, error) {
	return r.answer(c, b, out, true)
}

func (r selectRoutes) answer(c *gin.Context, b *selectBody, out []byte, reserve bool) (int, []byte, error) {
	b.req.PolicyClass = strings.TrimSpace(c.Request.Header.Get(policyHeader))
	sel, err := r.svc.Select(c.Request.Context(), &b.req, reserve)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, appendSelection(out, &sel), nil
}

func appendSelection(out []byte, s *service.Selection) []byte {
	out = append(out, '{')
	if s.SelectionID != nil {
		out = appendStringField(out, "selection_id", *s.SelectionID)
	}
	if s.ReservationID != nil {
		out = appendStringField(out, "reservation_id", *s.ReservationID)
	}
	out = appendPlacement(out, s.Scope, s.Rank, s.Endpoint)
	out = appendUintField(out, "block_size", s.BlockSize)
	out = append(appendKey(out, "overlap"), '{')
	out = appendUintField(out, "longest_matched", s.Overlap.LongestMatched)
	out = appendUintField(out, "gpu", s.Overlap.GPU)
	out = append(appendKey(out, "dp"), '{')
	for i, rank := range s.Overlap.DP {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, '"')
		out = strconv.AppendUint(out, uint64(rank.DP), 10)
		out = append(out, '"', ':')
		out = strconv.AppendUint(out, uint64(rank.Tokens), 10)
	}
	out = append(out, '}')
	out = appendUintField(out, "cpu", s.Overlap.CPU)
	out = appendUintField(out, "disk", s.Overlap.Disk)
	out = append(out, '}')
	out = appendUintField(out, "effective_prefill_tokens", s.EffectivePrefillTokens)
	return append(out, '}')
}

// appendPlacement appends where a request runs.
func appendPlacement(out []byte, scope catalog.Scope, rank catalog.Rank, endpoint string) []byte {
	out = appendStringField(out, "model_name", scope.Model)
	out = appendStringField(out, "tenant_id", scope.Tenant)
	out = appendUintField(out, "worker_id", rank.Worker)
	out = appendUintField(out, "dp_rank", rank.DP)
	return appendStringField(out, "endpoint", endpoint)
}

// selectBody is the body of both selection routes.
type selectBody struct {
	req     service.SelectRequest
	routing service.Routing
}

func (b *selectBody) question() question {
	return question{&b.req.Scope, &b.req.Prompt, &b.req.Override, &b.routing}
}

func newSelectBody(shape *jsonscan.Object[selectBody]) *body[selectBody] {
	return newBody(shape, resetSelectBody, func(b *selectBody) int {
		return b.question().size() + 8*cap(b.req.AllowedWorkers) + 16*cap(b.req.RequiredTaints)
	})
}

func resetSelectBody(b *selectBody) {
	taints := b.req.RequiredTaints
	clear(taints)
	b.req = service.SelectRequest{
		Prompt:         b.req.Prompt,
		AllowedWorkers: b.req.AllowedWorkers[:0],
		RequiredTaints: taints[:0],
	}
	b.question().reset()
}

var (
	selectShape           = jsonscan.NewObject(selectFields()...)
	selectAndReserveShape = jsonscan.NewObject(append(selectFields(),
		// On /select the id has no meaning, so any value is ignored there.
		jsonscan.Field[selectBody]{Name: "reservation_id", Read: jsonscan.Optional(
			func(b *selectBody) **string { return &b.req.ReservationID }, (*jsonscan.Scanner).String)},
	)...)
)

func selectFields() []jsonscan.Field[selectBody] {
	return append(questionFields((*selectBody).question),
		jsonscan.Field[selectBody]{Name: "selection_id", Read: jsonscan.Optional(
			func(b *selectBody) **string { return &b.req.SelectionID }, (*jsonscan.Scanner).String)},
		jsonscan.Field[selectBody]{Name: "expected_output_tokens", Read: jsonscan.Optional(
			func(b *selectBody) **uint32 { return &b.req.ExpectedOutputTokens }, (*jsonscan.Scanner).Uint32)},
		jsonscan.Field[selectBody]{Name: "priority_jump", Read: jsonscan.OrNull(
			func(b *selectBody) *float64 { return &b.req.PriorityJump }, (*jsonscan.Scanner).Float64)},
		jsonscan.Field[selectBody]{Name: "strict_priority", Read: jsonscan.OrNull(
			func(b *selectBody) *uint32 { return &b.req.StrictPriority }, (*jsonscan.Scanner).Uint32)},
		jsonscan.Field[selectBody]{Name: "pinned_worker", Read: jsonscan.Optional(
			func(b *selectBody) **catalog.Rank { return &b.req.Pinned }, readRank)},
		jsonscan.Field[selectBody]{Name: "allowed_worker_ids", Read: func(s *jsonscan.Scanner, b *selectBody) {
			if !s.Null() {
				b.req.AllowedWorkers, b.req.HasAllowedWorkers = s.AppendUint64s(b.req.AllowedWorkers), true
			}
		}},
		jsonscan.Field[selectBody]{Name: "routing_constraints", Read: func(s *jsonscan.Scanner, b *selectBody) {
			constraintsShape.Read(s, &b.req)
		}},
	)
}

var rankShape = jsonscan.NewObject(
	jsonscan.Field[catalog.Rank]{Name: "worker_id", Required: true, Read: jsonscan.Set(
		func(r *catalog.Rank) *uint64 { return &r.Worker }, (*jsonscan.Scanner).Uint64)},
	jsonscan.Field[catalog.Rank]{Name: "dp_rank", Required: true, Read: jsonscan.Set(
		func(r *catalog.Rank) *uint32 { return &r.DP }, (*jsonscan.Scanner).Uint32)},
)

func readRank(s *jsonscan.Scanner) (r catalog.Rank) {
	rankShape.Read(s, &r)
	return r
}

// constraintsShape is routing_constraints.
var constraintsShape = jsonscan.NewObject(
	jsonscan.Field[service.SelectRequest]{Name: "required_taints", Read: func(s *jsonscan.Scanner, r *service.SelectRequest) {
		r.RequiredTaints = appendStrings(s, r.RequiredTaints)
	}},
	jsonscan.Field[service.SelectRequest]{Name: "preferred_taints", Read: func(s *jsonscan.Scanner, r *service.SelectRequest) {
		r.PreferredTaints = make(map[string]float32)
		for name := range s.Map() {
			taint := string(name)
			r.PreferredTaints[taint] = s.Float32()
		}
	}},
)

func appendStrings(s *jsonscan.Scanner, dst []string) []string {
	for range s.Array() {
		dst = append(dst, s.String())
	}
	return dst
}
