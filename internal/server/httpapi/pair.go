package httpapi

import (
	"context"
	"net/http"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/identity"
	"github.com/select-service/select-service/pkg/catalog"
)

// pairSelector chooses pairs of workers. It must not keep the request after the call.
type pairSelector interface {
	SelectPair(ctx context.Context, req *selection.PairRequest) (selection.Pair, error)
	// CountIgnored is as in workerSelector.
	CountIgnored(identity.Faults)
}

type pairRoutes struct {
	svc pairSelector
	d   dialect
}

func (r pairRoutes) selectPair(c request, b *pairBody, out []byte) (int, []byte, error) {
	req := &b.req
	if err := r.d.setBooking(&req.SelectRequest, &b.booking); err != nil {
		return 0, nil, err
	}
	if ignored := r.d.setCaller(c, &req.SelectRequest, &b.session); ignored != 0 {
		r.svc.CountIgnored(ignored)
	}
	pair, err := r.svc.SelectPair(c.Request.Context(), req)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, r.d.appendPair(out, &pair), nil
}

func (d dialect) appendPair(out []byte, p *selection.Pair) []byte {
	out = appendStringField(append(out, '{'), d.reservationKey(), p.ID)
	if reason := p.Reason.String(); reason != "" {
		out = appendStringField(out, "reason", reason)
	}
	out = d.appendSelection(appendKey(out, "decode"), &p.Decode, true)
	if p.Prefill != nil {
		out = d.appendSelection(appendKey(out, "prefill"), p.Prefill, true)
	} else {
		out = appendNull(out, "prefill")
	}
	return append(appendLease(out, p.Decode.Lease), '}')
}

// pairBody is the body of /select_pair.
type pairBody struct {
	req         selection.PairRequest
	conditional selection.Conditional
	routing     selection.Routing
	session     session
	booking     bookingOptions
}

func (b *pairBody) promptBody() promptBody {
	return promptBody{&b.req.Scope, &b.req.Prompt, &b.req.Override, &b.routing}
}

func newPairBody(d dialect) *body[pairBody] {
	b := newBody(newPairShape(d), func(b *pairBody) {
		*b = pairBody{req: selection.PairRequest{SelectRequest: selection.SelectRequest{Prompt: b.req.Prompt}}, routing: b.routing}
		b.promptBody().reset()
	}, func(b *pairBody) int { return b.promptBody().size() }).
		permitNamed(func(b *pairBody) *catalog.Scope { return &b.req.Scope })
	b.attach = func(p *pairBody, text selection.TextReleaser) { p.req.Text = text }
	b.wide, b.explains = func(p *pairBody) bool { return p.req.Explain }, true
	return b
}

func newPairShape(d dialect) *bodyscan.Object[pairBody] {
	fields := append(promptFields(d, (*pairBody).promptBody), bookingOptionFields(func(b *pairBody) *bookingOptions { return &b.booking })...)
	fields = append(fields,
		optional("expected_output_tokens", func(b *pairBody) **uint32 { return &b.req.ExpectedOutputTokens }, (*bodyscan.Scanner).Uint32),
		field("priority_jump", func(b *pairBody) *float64 { return &b.req.PriorityJump }, (*bodyscan.Scanner).Float64),
		field("strict_priority", func(b *pairBody) *uint32 { return &b.req.StrictPriority }, (*bodyscan.Scanner).Uint32),
		field("explain", func(b *pairBody) *bool { return &b.req.Explain }, (*bodyscan.Scanner).Bool),
		objectOrNull("prefill", func(s *bodyscan.Scanner, b *pairBody) { sideShape.Read(s, &b.req.Prefill) }),
		objectOrNull("decode", func(s *bodyscan.Scanner, b *pairBody) { sideShape.Read(s, &b.req.Constraints) }),
		objectOrNull("conditional", func(s *bodyscan.Scanner, b *pairBody) {
			conditionalShape.Read(s, &b.conditional)
			b.req.Conditional = &b.conditional
		}),
	)
	if d == dialect13 {
		return bodyscan.NewObject(append(fields,
			optional("selection_id", func(b *pairBody) **string { return &b.req.SelectionID }, readText),
			optional("reservation_id", func(b *pairBody) **string { return &b.req.ReservationID }, readText))...)
	}
	fields = append(fields, sessionFields(func(b *pairBody) *session { return &b.session })...)
	return bodyscan.NewObject(append(fields,
		aliasedOrNull("selection_id", "reservation_id", func(b *pairBody) **string { return &b.req.SelectionID }))...)
}

// objectOrNull describes a member that is an object, which read reads, or null.
func objectOrNull(name string, read func(*bodyscan.Scanner, *pairBody)) bodyscan.Field[pairBody] {
	return bodyscan.Field[pairBody]{Name: name, Read: func(s *bodyscan.Scanner, b *pairBody) {
		if !s.Null() {
			read(s, b)
		}
	}}
}

// sideShape is what a pair's request says of one side.
var sideShape = bodyscan.NewObject(constraintFields(func(c *selection.Constraints) *selection.Constraints { return c })...)

var conditionalShape = bodyscan.NewObject(
	optional("max_uncached_tokens", func(c *selection.Conditional) **uint64 { return &c.MaxUncachedTokens }, (*bodyscan.Scanner).Uint64),
	optional("max_uncached_share", func(c *selection.Conditional) **float64 { return &c.MaxUncachedShare }, (*bodyscan.Scanner).Float64),
)
