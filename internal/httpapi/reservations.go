package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/jsonscan"
	"github.com/select-service/select-service/internal/service"
)

// reserver keeps the reservations. Requests are lent for the time of the call.
type reserver interface {
	Reserve(req *service.ReserveRequest) (service.Reservation, error)
	PrefillComplete(id string) error
	OutputBlock(id string, decay *float64) error
	Free(id string) error
}

type reservationRoutes struct{ svc reserver }

func (r reservationRoutes) create(_ *gin.Context, b *reserveBody, out []byte) (int, []byte, error) {
	res, err := r.svc.Reserve(&b.req)
	if err != nil {
		return 0, nil, err
	}
	out = append(out, '{')
	out = appendStringField(out, "reservation_id", res.ID)
	out = appendPlacement(out, res.Scope, res.Rank, res.Endpoint)
	return http.StatusCreated, append(out, '}'), nil
}

func (r reservationRoutes) prefillComplete(c *gin.Context, out []byte) (int, []byte, error) {
	id, err := pathValue(c, "reservation_id")
	if err == nil {
		err = r.svc.PrefillComplete(id)
	}
	return http.StatusOK, appendOK(out), err
}

func (r reservationRoutes) free(c *gin.Context, out []byte) (int, []byte, error) {
	id, err := pathValue(c, "reservation_id")
	if err == nil {
		err = r.svc.Free(id)
	}
	return http.StatusOK, appendOK(out), err
}

// errDecayFraction comes before any look at the reservation.
var errDecayFraction = badRequest("decay_fraction must be between 0.0 and 1.0")

func (r reservationRoutes) outputBlock(c *gin.Context, b *outputBlockBody, out []byte) (int, []byte, error) {
	if d := b.decay; d != nil && !(*d >= 0 && *d <= 1) {
		return 0, nil, errDecayFraction
	}
	id, err := pathValue(c, "reservation_id")
	if err == nil {
		err = r.svc.OutputBlock(id, b.decay)
	}
	return http.StatusOK, appendOK(out), err
}

type outputBlockBody struct{ decay *float64 }

var outputBlockShape = jsonscan.NewObject(
	jsonscan.Field[outputBlockBody]{Name: "decay_fraction", Read: jsonscan.Optional(
		func(b *outputBlockBody) **float64 { return &b.decay }, (*jsonscan.Scanner).Float64)},
)

// reserveBody is the body of POST /reservations.
type reserveBody struct {
	req     service.ReserveRequest
	routing service.Routing
}

func (b *reserveBody) question() question {
	return question{&b.req.Scope, &b.req.Prompt, &b.req.Override, &b.routing}
}

func newReserveBody() *body[reserveBody] {
	return newBody(reserveShape,
		func(b *reserveBody) {
			b.req = service.ReserveRequest{Prompt: b.req.Prompt}
			b.question().reset()
		},
		func(b *reserveBody) int { return b.question().size() })
}

var reserveShape = jsonscan.NewObject(append(questionFields((*reserveBody).question),
	jsonscan.Field[reserveBody]{Name: "reservation_id", Required: true, Read: jsonscan.Set(
		func(b *reserveBody) *string { return &b.req.ID }, (*jsonscan.Scanner).String)},
	jsonscan.Field[reserveBody]{Name: "worker_id", Required: true, Read: jsonscan.Set(
		func(b *reserveBody) *uint64 { return &b.req.Rank.Worker }, (*jsonscan.Scanner).Uint64)},
	jsonscan.Field[reserveBody]{Name: "dp_rank", Read: jsonscan.OrNull(
		func(b *reserveBody) *uint32 { return &b.req.Rank.DP }, (*jsonscan.Scanner).Uint32)},
	jsonscan.Field[reserveBody]{Name: "expected_output_tokens", Read: jsonscan.Optional(
		func(b *reserveBody) **uint32 { return &b.req.ExpectedOutputTokens }, (*jsonscan.Scanner).Uint32)},
	jsonscan.Field[reserveBody]{Name: "effective_prefill_tokens", Read: jsonscan.Optional(
		func(b *reserveBody) **uint64 { return &b.req.EffectivePrefillTokens }, (*jsonscan.Scanner).Uint64)},
)...)
