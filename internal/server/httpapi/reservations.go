package httpapi

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
)

// reserver books and ends reservations. It must not keep requests after the call.
type reserver interface {
	Reserve(req *selection.ReserveRequest) (selection.Reservation, error)
	ReservePending(ctx context.Context, req *selection.PendingRequest) (selection.Reservation, error)
	PrefillComplete(id string) error
	OutputBlock(id string, decay *float64) error
	Free(id string) error
	// CheckReservation returns the error of an unknown id, unless there is a reservation with
	// the id whose scope matches own.
	CheckReservation(id string, own catalog.ScopeFilter) error
	// Renew extends a lease.
	Renew(id string) error
}

type reservationRoutes struct {
	svc reserver
	d   dialect
}

func (r reservationRoutes) create(c request, b *reserveBody, out []byte) (int, []byte, error) {
	b.req.Dialect = contract.Version(r.d)
	b.req.IfExists = b.booking.ifExists
	var err error
	if b.req.Lease, err = b.booking.lease(); err != nil {
		return 0, nil, err
	}
	var res selection.Reservation
	if r.d == dialect16 && !b.named {
		res, err = r.svc.ReservePending(c.Request.Context(), &selection.PendingRequest{
			Scope: b.req.Scope, ID: b.req.ID, Text: b, Lease: b.req.Lease, IfExists: b.req.IfExists, Dialect: b.req.Dialect,
		})
	} else {
		res, err = r.svc.Reserve(&b.req)
	}
	if err != nil {
		return 0, nil, err
	}
	status := http.StatusCreated
	if res.Repeated {
		status = http.StatusOK
	}
	return status, r.d.appendReservation(out, &res), nil
}

func (d dialect) appendReservation(out []byte, r *selection.Reservation) []byte {
	out = append(out, '{')
	out = appendStringField(out, d.reservationKey(), r.ID)
	out = d.appendPlacement(out, r.Scope, r.Rank, r.Endpoint)
	out = appendLease(out, r.Lease)
	return append(out, '}')
}

// byID returns an endpoint for a call that names a reservation and has no body.
func (r reservationRoutes) byID(a api, act func(id string) error) endpoint {
	return anyScope(a.serve(func(c request, out []byte) (int, []byte, error) {
		id, err := r.ownID(c)
		if err == nil {
			err = act(id)
		}
		return http.StatusOK, appendOK(out), err
	}))
}

// ownID returns the id in the path. For a caller with a scope the reservations of other
// scopes are unknown.
func (r reservationRoutes) ownID(c request) (id string, err error) {
	id, err = pathValue(c, "reservation_id")
	if err == nil && c.who.Scoped() {
		err = r.svc.CheckReservation(id, c.who.Scope())
	}
	return id, err
}

func (r reservationRoutes) outputBlock(c request, b *outputBlockBody, out []byte) (int, []byte, error) {
	id, err := r.ownID(c)
	if err == nil {
		err = r.svc.OutputBlock(id, b.decay)
	}
	return http.StatusOK, appendOK(out), err
}

type outputBlockBody struct{ decay *float64 }

func newOutputBlockBody() *body[outputBlockBody] {
	return newBody(outputBlockShape, nil, nil).permit(checkedByID[outputBlockBody])
}

var outputBlockShape = bodyscan.NewObject(
	optional("decay_fraction", func(b *outputBlockBody) **float64 { return &b.decay }, (*bodyscan.Scanner).Float64),
)

// reserveBody is the body of POST /reservations.
type reserveBody struct {
	req     selection.ReserveRequest
	routing selection.Routing
	booking bookingOptions
	named   bool // worker_id was given
	text    selection.TextReleaser
}

// ReleaseText implements selection.TextReleaser for a pending selection, whose prompt is ignored.
func (b *reserveBody) ReleaseText() {
	b.req.Prompt, b.routing = selection.Prompt{}, selection.Routing{}
	b.text.ReleaseText()
}

func (b *reserveBody) promptBody() promptBody {
	return promptBody{&b.req.Scope, &b.req.Prompt, &b.req.Override, &b.routing}
}

func newReserveBody(d dialect) *body[reserveBody] {
	b := newBody(newReserveShape(d),
		func(b *reserveBody) {
			*b = reserveBody{req: selection.ReserveRequest{Prompt: b.req.Prompt}, routing: b.routing}
			b.promptBody().reset()
		},
		func(b *reserveBody) int { return b.promptBody().size() }).
		permitNamed(func(b *reserveBody) *catalog.Scope { return &b.req.Scope })
	b.attach = func(r *reserveBody, text selection.TextReleaser) { r.text = text }
	return b
}

func newReserveShape(d dialect) *bodyscan.Object[reserveBody] {
	fields := append(promptFields(d, (*reserveBody).promptBody), bookingOptionFields(func(b *reserveBody) *bookingOptions { return &b.booking })...)
	// Of several members that are missing, an error names the first.
	id := func(b *reserveBody) *string { return &b.req.ID }
	readWorker := func(s *bodyscan.Scanner, b *reserveBody) { b.req.Rank.Worker, b.named = s.Uint64(), true }
	if d == dialect13 {
		fields = append(fields,
			required("reservation_id", id, readText),
			bodyscan.Field[reserveBody]{Name: "worker_id", Required: true, Read: readWorker})
	} else {
		selectionID := aliased("selection_id", "reservation_id", id)
		selectionID.Required = true
		fields = append(fields, selectionID,
			bodyscan.Field[reserveBody]{Name: "worker_id", Read: func(s *bodyscan.Scanner, b *reserveBody) {
				if !s.Null() {
					readWorker(s, b)
				}
			}},
			optional("track_prefill_tokens", func(b *reserveBody) **bool { return &b.req.TrackPrefill }, (*bodyscan.Scanner).Bool))
	}
	return bodyscan.NewObject(append(fields,
		field("dp_rank", func(b *reserveBody) *uint32 { return &b.req.Rank.DP }, (*bodyscan.Scanner).Uint32),
		optional("expected_output_tokens", func(b *reserveBody) **uint32 { return &b.req.ExpectedOutputTokens }, (*bodyscan.Scanner).Uint32),
		optional("effective_prefill_tokens", func(b *reserveBody) **uint64 { return &b.req.EffectivePrefillTokens }, (*bodyscan.Scanner).Uint64),
	)...)
}

// Bounds of a lease in seconds, inclusive.
const (
	minLease = 0.1
	maxLease = 86400
)

var errLease = badRequest("lease_seconds must be between 0.1 and 86400")

// bookingOptions has the members of a booking request that help callers which die or retry:
// lease_seconds and if_exists (decisions E3 and E4).
type bookingOptions struct {
	seconds  float64
	leased   bool // lease_seconds was given
	ifExists selection.IfExists
}

// lease returns the lifetime of the reservation without renewal, 0 for the configured one.
func (b *bookingOptions) lease() (time.Duration, error) {
	switch {
	case !b.leased:
		return 0, nil
	case b.seconds >= minLease && b.seconds <= maxLease:
		return time.Duration(math.Round(b.seconds * float64(time.Second))), nil
	}
	return 0, errLease
}

func bookingOptionFields[T any](of func(*T) *bookingOptions) []bodyscan.Field[T] {
	return []bodyscan.Field[T]{
		{Name: "lease_seconds", Read: func(s *bodyscan.Scanner, t *T) {
			if !s.Null() {
				of(t).seconds, of(t).leased = s.Float64(), true
			}
		}},
		{Name: "if_exists", Read: bodyscan.OrNull(func(t *T) *selection.IfExists { return &of(t).ifExists }, readIfExists)},
	}
}

func readIfExists(s *bodyscan.Scanner) selection.IfExists {
	switch text := readText(s); {
	case s.Err() != nil:
	case text == "return":
		return selection.ReturnFirst
	case text != "error":
		s.Fail("unknown variant, expected `return` or `error`")
	}
	return selection.Refuse
}

// errIfExistsNeedsID refuses if_exists without an id: each retry would get a new id, and book
// once more.
func (d dialect) errIfExistsNeedsID() error {
	return badRequest("if_exists needs `" + d.reservationKey() + "`")
}

// appendLease appends the lease of a reservation, if it has one.
func appendLease(out []byte, lease time.Duration) []byte {
	if lease == 0 {
		return out
	}
	// Dividing by a second gives back the number that the client sent.
	return appendFloatField(out, "lease_seconds", float64(lease)/float64(time.Second))
}
