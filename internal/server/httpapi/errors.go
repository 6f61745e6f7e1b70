package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/gateway/tokenizer"
)

// requestError refuses a request that does not reach the service.
type requestError struct {
	status int
	text   string
	// reason and field are for the Conductor contract.
	reason, field string
	limit         string // the limit that was reached, one of contract.Limits, or empty
}

func (e *requestError) Error() string { return e.text }

func badRequest(text string) *requestError {
	return &requestError{status: http.StatusBadRequest, text: text, reason: reasonInvalidField}
}

// Reasons of the Conductor contract for errors of this package.
const (
	reasonInvalidJSON  = "invalid_json"
	reasonMissing      = "missing_field"
	reasonInvalidField = "invalid_field"
	reasonUnknownType  = "unknown_type"
	reasonExclusive    = "exclusive_fields"
	reasonInternal     = "internal"
	reasonCancelled    = "cancelled"
	reasonManaged      = "managed"
)

// Error texts of axum 0.8, as dynamo-kv-router 1.3.1 has them.
var (
	errRouteNotFound    = &requestError{status: http.StatusNotFound, text: "route not found", reason: "route_not_found"}
	errMethodNotAllowed = &requestError{status: http.StatusMethodNotAllowed, text: "method not allowed", reason: "method_not_allowed"}
	errContentType      = &requestError{status: http.StatusUnsupportedMediaType, text: "Expected request with `Content-Type: application/json`"}
	errBodyTooLarge     = &requestError{
		status: http.StatusRequestEntityTooLarge, text: "Failed to buffer the request body: length limit exceeded", reason: "body_too_large",
	}
)

// errClientGone is for the log and the counters; there is no client to read it.
var errClientGone = &requestError{status: statusClientGone, text: "request cancelled", reason: reasonCancelled}

const (
	syntaxPrefix = "Failed to parse the request body as JSON: "
	shapePrefix  = "Failed to deserialize the JSON body into the target type: "
)

// faultText returns the contract's text for a fault of a body, which names the format.
func faultText(fault *bodyscan.Error) string {
	prefix := shapePrefix
	if fault.Class == bodyscan.Syntax {
		prefix = syntaxPrefix
	}
	return strings.Replace(prefix, bodyscan.JSON.String(), fault.Format.String(), 1) + fault.Error()
}

// problem is an error as a client sees it.
type problem struct {
	status        int
	text          string
	details       any                   // in the selection contract
	message       string                // in the selection contract: the longer text of an overload, else empty
	reason, field string                // in the Conductor contract
	shape         bool                  // the body has the wrong shape
	limit         string                // the limit that was reached, one of contract.Limits, or empty
	away          bool                  // what it needs cannot be reached now
	denied        *access.DeniedError   // not nil: refused because of the caller
	shown         bool                  // reason stands in the selection contract, too
	missed        *contract.TargetError // the target that no worker is predicted to hold; nil: another problem
}

// internalProblem hides causes that clients must not see.
var internalProblem = problem{status: http.StatusInternalServerError, text: "internal error", reason: reasonInternal}

// problemOf returns an error as a client of the dialect sees it.
func problemOf(err error, d dialect) problem {
	var (
		request *requestError
		fault   *bodyscan.Error
		known   *contract.Error
		denied  *access.DeniedError
		tokens  *tokenizer.Error
	)
	switch {
	case errors.As(err, &denied):
		return problem{status: denied.Status, text: denied.Text, reason: denied.Code, denied: denied}
	case errors.As(err, &request):
		return problem{status: request.status, text: request.text, reason: request.reason, field: request.field, limit: request.limit}
	case errors.As(err, &fault) && fault.Class == bodyscan.Syntax:
		return problem{status: http.StatusBadRequest, text: faultText(fault), reason: reasonInvalidJSON, field: fault.Field}
	case errors.As(err, &fault) && (fault.Class == bodyscan.Removed || fault.Class == bodyscan.Unknown):
		return problem{status: http.StatusBadRequest, text: fault.Error(), reason: reasonInvalidField, field: fault.Field}
	case errors.As(err, &fault):
		return problem{
			status: http.StatusUnprocessableEntity, text: faultText(fault), reason: shapeReason(fault), field: fault.Field, shape: true,
			limit: fault.Limit,
		}
	case errors.As(err, &known):
		status, reason := statusOf(known.Kind, d)
		if known.Reason != "" {
			reason = known.Reason
		}
		text := known.TextIn(contract.Version(d))
		return problem{
			status: status, text: text, details: known.Details, message: known.Message, reason: reason, field: known.Field, limit: known.Limit,
			away: known.Kind == contract.Away, shown: reason == reasonManaged || known.Kind == contract.TargetMissed, missed: missedOf(known),
		}
	case errors.As(err, &tokens):
		return tokenizerProblem(tokens.Reason)
	case errors.Is(err, context.Canceled):
		return problemOf(errClientGone, d)
	}
	return internalProblem
}

// missedOf returns the cause of an error about a target, nil of another.
func missedOf(e *contract.Error) *contract.TargetError {
	missed, _ := errors.AsType[*contract.TargetError](e)
	return missed
}

// tokenizerProblem says why a prompt has no tokens. The text of the tokenizer itself is left out, because it may quote the prompt.
func tokenizerProblem(why tokenizer.Reason) (p problem) {
	p.status, p.reason, p.text = why.Client()
	p.shown = p.status >= http.StatusInternalServerError
	if p.away = p.status == http.StatusServiceUnavailable; why == tokenizer.NoMemory {
		p.limit = contract.LimitMemory
	}
	return p
}

// shapeReason returns the reason for a body of the wrong shape: a missing member, a wrong one,
// or a body that is no object.
func shapeReason(fault *bodyscan.Error) string {
	switch {
	case fault.Missing:
		return reasonMissing
	case fault.Field == "":
		return reasonInvalidJSON
	}
	return reasonInvalidField
}

// statusOf returns the status of a kind in a dialect, and the reason for errors without one of
// their own.
func statusOf(k contract.Kind, d dialect) (status int, reason string) {
	switch k {
	case contract.BadRequest:
		return http.StatusBadRequest, reasonInvalidField
	case contract.NotFound:
		return http.StatusNotFound, "not_found"
	case contract.Conflict:
		return http.StatusConflict, "already_registered"
	case contract.Managed:
		return http.StatusConflict, reasonManaged
	case contract.Unavailable:
		return http.StatusServiceUnavailable, "shutting_down"
	case contract.Overloaded:
		return http.StatusServiceUnavailable, "overloaded"
	case contract.QueueRejected:
		if d == dialect16 {
			return http.StatusTooManyRequests, "queue_full"
		}
		return http.StatusServiceUnavailable, "queue_full"
	case contract.TargetMissed:
		return http.StatusTooManyRequests, contract.ReasonSaturated
	case contract.TooMany:
		return http.StatusTooManyRequests, "too_many"
	case contract.Exhausted:
		return http.StatusServiceUnavailable, "limit_reached"
	case contract.Away:
		return http.StatusServiceUnavailable, "away"
	case contract.Cancelled:
		return statusClientGone, reasonCancelled
	case contract.Internal:
	}
	return http.StatusInternalServerError, reasonInternal
}

// retryLimit is the Retry-After header, in seconds, for a limit of this process (decision X2), and
// while a fleet's NATS is away. Limits are held by requests, which end within seconds.
const retryLimit = "1"

// report counts and logs an error. It returns the error as a client sees it, and the value of
// the Retry-After header, "" for none.
func (a api) report(c *gin.Context, err error) (p problem, retryAfter string) {
	p = problemOf(err, a.dialect)
	a.noteProblem(c, p)
	if p.status == http.StatusInternalServerError {
		withRequest(a.log.Error(), c).Err(err).AnErr("cause", errors.Unwrap(err)).Msg("request failed")
	}
	switch {
	case p.denied != nil:
		retryAfter = p.denied.RetryAfter
	case p.missed != nil:
		retryAfter = strconv.Itoa(p.missed.RetryAfter())
	case p.message != "" && a.retryAfter != "":
		retryAfter = a.retryAfter
	case p.away, p.limit != "" && p.status == http.StatusServiceUnavailable:
		retryAfter = retryLimit
	}
	return p, retryAfter
}

// fail answers with an error.
func (a api) fail(c *gin.Context, out []byte, err error) []byte {
	p, retryAfter := a.report(c, err)
	setIf(c.Writer.Header(), "Retry-After", retryAfter)
	if p.missed != nil {
		c.Writer.Header().Set(contract.DroppedHeader, contract.ReasonSaturated)
	}
	if p.denied != nil {
		setIf(c.Writer.Header(), "Www-Authenticate", p.denied.Challenge)
	}
	status, out := a.render(c.Request, out, p)
	respond(c, status, out)
	return out
}

// milliseconds returns a duration in milliseconds, to the microsecond.
func milliseconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}

func setIf(h http.Header, name, value string) {
	if value != "" {
		h[name] = []string{value}
	}
}

// concealed removes from an error what a caller with a scope may not see: which
// reservation has the wanted id. That the id is taken cannot be hidden, because ids are
// shared by the whole service.
func concealed(who *access.Caller, err error) error {
	known, ok := errors.AsType[*contract.Error](err)
	if !who.Scoped() || !ok {
		return err
	}
	e := *known
	if e.TakenID != nil {
		e.Text = "Request " + *e.TakenID + " already exists"
	}
	if e.Scope != nil && !who.Sees(*e.Scope) {
		e.Scope, e.Tail = nil, ""
	}
	return &e
}

// renderer appends a problem in the form of a contract, and returns its status in that contract.
type renderer func(r *http.Request, out []byte, p problem) (status int, answer []byte)

// renderUnder uses the renderer below for paths below a prefix, else the renderer elsewhere.
func renderUnder(prefix string, below, elsewhere renderer) renderer {
	return func(r *http.Request, out []byte, p problem) (int, []byte) {
		if strings.HasPrefix(r.URL.Path, prefix) {
			return below(r, out, p)
		}
		return elsewhere(r, out, p)
	}
}

// renderSelection is for the contracts of dynamo-kv-router: selection and slots.
func renderSelection(_ *http.Request, out []byte, p problem) (int, []byte) {
	out = append(out, '{')
	out = appendStringField(out, "error", p.text)
	if p.details != nil {
		if d, err := json.Marshal(p.details); err == nil {
			out = append(appendKey(out, "details"), d...)
		}
	}
	if p.shown { // Dynamo's contract has no reasons
		out = appendStringField(out, "reason", p.reason)
	}
	if p.missed != nil {
		out = appendFloatField(out, "predicted_ttft_ms", milliseconds(p.missed.Predicted))
	}
	if p.message != "" { // clients recognise an overload by its members
		out = appendStringField(out, "message", p.message)
		out = appendStringField(out, "type", "service_unavailable")
		out = appendUintField(out, "code", uint32(p.status))
	}
	return p.status, append(out, '}')
}

// renderConductor is for the Conductor contract, where all faults of a body are 400
// and name the field and the reason (decision C3).
func renderConductor(_ *http.Request, out []byte, p problem) (int, []byte) {
	if p.shape {
		p.status = http.StatusBadRequest
	}
	out = append(out, '{')
	out = appendStringField(out, "error", p.text)
	out = appendStringField(out, "reason", p.reason)
	if p.field != "" {
		out = appendStringField(out, "field", p.field)
	}
	return p.status, append(out, '}')
}
