package httpapi

import (
	"github.com/select-service/select-service/internal/jsonscan"
	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/pkg/catalog"
)

// selectBody is the body of both selection routes.
type selectBody struct {
	req      service.SelectRequest
	routing  service.Routing
	session  session
	safety   safety
	advisory bool
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
	*b = selectBody{
		req: service.SelectRequest{
			Prompt:         b.req.Prompt,
			AllowedWorkers: b.req.AllowedWorkers[:0],
			RequiredTaints: taints[:0],
		},
		routing: b.routing,
	}
	b.question().reset()
}

// newSelectShape is the body of /select. What is about the booking alone has no
// meaning there, so any value of it is ignored.
func newSelectShape(d dialect) *jsonscan.Object[selectBody] {
	fields := selectFields(d)
	if d == dialect16 {
		fields = append(fields, jsonscan.Field[selectBody]{Name: "advisory", Read: jsonscan.Set(
			func(b *selectBody) *bool { return &b.advisory }, (*jsonscan.Scanner).Bool)})
	}
	return jsonscan.NewObject(fields...)
}

// newSelectAndReserveShape is the body of /select_and_reserve, which knows nothing
// of advice.
func newSelectAndReserveShape(d dialect) *jsonscan.Object[selectBody] {
	fields := append(selectFields(d), safetyFields(func(b *selectBody) *safety { return &b.safety })...)
	if d == dialect13 {
		fields = append(fields, optionally("reservation_id", func(b *selectBody) **string { return &b.req.ReservationID }, (*jsonscan.Scanner).String))
	}
	return jsonscan.NewObject(fields...)
}

func selectFields(d dialect) []jsonscan.Field[selectBody] {
	selectionID := func(b *selectBody) **string { return &b.req.SelectionID }
	fields := append(questionFields(d, (*selectBody).question),
		optionally("expected_output_tokens", func(b *selectBody) **uint32 { return &b.req.ExpectedOutputTokens }, (*jsonscan.Scanner).Uint32),
		may("priority_jump", func(b *selectBody) *float64 { return &b.req.PriorityJump }, (*jsonscan.Scanner).Float64),
		may("strict_priority", func(b *selectBody) *uint32 { return &b.req.StrictPriority }, (*jsonscan.Scanner).Uint32),
		optionally("pinned_worker", func(b *selectBody) **catalog.Rank { return &b.req.Pinned }, readRank),
		jsonscan.Field[selectBody]{Name: "allowed_worker_ids", Read: func(s *jsonscan.Scanner, b *selectBody) {
			if !s.Null() {
				b.req.AllowedWorkers, b.req.HasAllowedWorkers = s.AppendUint64s(b.req.AllowedWorkers), true
			}
		}},
		jsonscan.Field[selectBody]{Name: "routing_constraints", Read: func(s *jsonscan.Scanner, b *selectBody) {
			constraintsShape.Read(s, &b.req)
		}},
	)
	if d == dialect13 {
		return append(fields, optionally("selection_id", selectionID, (*jsonscan.Scanner).String))
	}
	fields = append(fields, sessionFields(func(b *selectBody) *session { return &b.session })...)
	return append(fields, aliasedOrNull("selection_id", "reservation_id", selectionID))
}

var rankShape = jsonscan.NewObject(
	must("worker_id", func(r *catalog.Rank) *uint64 { return &r.Worker }, (*jsonscan.Scanner).Uint64),
	must("dp_rank", func(r *catalog.Rank) *uint32 { return &r.DP }, (*jsonscan.Scanner).Uint32),
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
