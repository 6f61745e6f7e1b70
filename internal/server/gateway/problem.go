package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/openai"
)

// Problem is why a request gets no engine, as its client sees it: a status, and an error in the
// form of the request's API. Clients do not see the cause. A request that reserves an endpoint gets none either; its status is 204.
type Problem struct {
	status  int
	kind    string // the error's type, one of openai.Type…
	code    string
	text    string
	retry   bool                  // the answer has Retry-After
	missed  *contract.TargetError // the target that no engine is predicted to hold; nil: another problem
	allow   string                // the value of Allow; "": none
	headers []Header              // further ones of the answer
	outcome counts.GatewayOutcome
	err     error // the cause, for the log
}

// Error implements error: it is the text for the client.
func (p *Problem) Error() string { return p.text }

// Unwrap returns the cause, which clients do not see.
func (p *Problem) Unwrap() error { return p.err }

// failed reports whether the request was for an engine.
func (p *Problem) failed() bool { return p.status != http.StatusNoContent }

// Gone reports whether the request is over, so that nobody waits for an answer.
func (p *Problem) Gone() bool { return p == errGone }

// Refusal is the answer to a request that gets no engine.
type Refusal struct {
	Status     int
	Code       string // of the error
	RetryAfter int    // the value of Retry-After in seconds; 0: none
	Allow      string // the value of Allow; "": none
	Dropped    string // the value of contract.DroppedHeader; "": none
	Headers    []Header
	Body       []byte // in JSON, in the form of the request's API; nil: none
}

func errInvalid(code, text string) *Problem {
	return &Problem{status: http.StatusBadRequest, kind: openai.TypeInvalidRequest, code: code, text: text, outcome: counts.GatewayInvalid}
}

// UnknownModel is for a model that is not served, or not to the caller.
func UnknownModel(name string) *Problem {
	return &Problem{
		status: http.StatusNotFound, kind: openai.TypeNotFound, code: "model_not_found",
		text: fmt.Sprintf("The model %q does not exist.", name), outcome: counts.GatewayUnknownModel,
	}
}

func errNoPath() *Problem {
	return &Problem{
		status: http.StatusNotFound, kind: openai.TypeNotFound, code: "not_found", text: "There is no such route.", outcome: counts.GatewayPath,
	}
}

func errMethod(allow string) *Problem {
	p := errInvalid("method_not_allowed", "The route has another method.")
	p.status, p.allow, p.outcome = http.StatusMethodNotAllowed, allow, counts.GatewayPath
	return p
}

// errEncoded is for a compressed body: it is read here, and vLLM's and SGLang's servers read none either.
func errEncoded(encoding string) *Problem {
	p := errInvalid("unsupported_content_encoding", fmt.Sprintf("The request body has the Content-Encoding %.40q: send it uncompressed.", encoding))
	p.status = http.StatusUnsupportedMediaType
	return p
}

func errTooLarge(limit int) *Problem {
	return &Problem{
		status: http.StatusRequestEntityTooLarge, kind: openai.TypeInvalidRequest, code: "body_too_large",
		text: fmt.Sprintf("The request body is longer than %d bytes.", limit), outcome: counts.GatewayTooLarge,
	}
}

// NoUpgrade is for an upgrade through a gateway that cannot pass its frames on.
func NoUpgrade(cause error) *Problem {
	p := errInvalid("upgrade_unsupported", "This gateway cannot pass on upgraded connections.")
	p.outcome, p.err = counts.GatewayProtocol, cause
	return p
}

// BodyTimeout is for a request whose body does not come.
func BodyTimeout(cause error) *Problem {
	return &Problem{
		status: http.StatusRequestTimeout, kind: openai.TypeInvalidRequest, code: "body_timeout",
		text: "The request body did not come in time.", outcome: counts.GatewayBodyTimeout, err: cause,
	}
}

// BadBody is for a request whose body is no HTTP.
func BadBody(cause error) *Problem {
	p := errInvalid("invalid_request_body", "The request body could not be read.")
	p.err = cause
	return p
}

// Unanswered is for a request whose engine has not answered it: the status is 502 or 504.
func Unanswered(status int, code, text string, cause error) *Problem {
	return &Problem{status: status, kind: openai.TypeServer, code: code, text: text, outcome: counts.GatewayFailed, err: cause}
}

// Denied is for a caller who may not send requests: the status is 401, 403 or 429.
func Denied(denied *access.DeniedError) *Problem {
	code := "invalid_api_key" // OpenAI's
	if denied.Status != http.StatusUnauthorized {
		code = denied.Code
	}
	return &Problem{
		status: denied.Status, kind: openai.TypeAuthentication, code: code, text: denied.Text, outcome: counts.GatewayDenied, err: denied,
	}
}

func errUnavailable(code, text string, cause error) *Problem {
	return &Problem{
		status: http.StatusServiceUnavailable, kind: openai.TypeServer, code: code, text: text,
		outcome: counts.GatewayUnavailable, err: cause,
	}
}

func errOverloaded(code, text string, cause error) *Problem {
	return &Problem{
		status: http.StatusTooManyRequests, kind: openai.TypeOverloaded, code: code, text: text, retry: true,
		outcome: counts.GatewayOverloaded, err: cause,
	}
}

// errFull is for a limit of this process that is reached for the moment.
func errFull(code, text string) *Problem {
	p := errUnavailable(code, text, nil)
	p.retry = true
	return p
}

// NoMemory is for a request that an account of --max-memory has no room for.
func NoMemory() *Problem { return errFull("no_memory", "There is no memory left for this request.") }

// errNoEndpoint is for a request that no engine can take now.
func errNoEndpoint(cause error) *Problem {
	p := errUnavailable("no_endpoints", "No engine is available for this request.", cause)
	p.retry = true
	return p
}

// errGone ends a pick whose request is over. It is not sent: there is no client left.
var errGone = &Problem{status: http.StatusServiceUnavailable, text: "the request is over", outcome: counts.GatewayGone}

// errPickTimeout is the cause of a pick that took longer than Config.PickTimeout.
var errPickTimeout = errors.New("no worker became free in time")

// problemOf translates the error of a selection. ctx is the pick's context.
func problemOf(ctx context.Context, err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if ctx.Err() != nil {
		if errors.Is(context.Cause(ctx), errPickTimeout) {
			return errOverloaded("timeout", "All engines are busy.", errPickTimeout)
		}
		return errGone
	}
	switch contract.KindOf(err) {
	case contract.BadRequest:
		return errInvalid("invalid_request", err.Error())
	case contract.Unavailable, contract.NotFound, contract.Conflict:
		return errNoEndpoint(err)
	case contract.Overloaded:
		return errOverloaded("overloaded", "All engines are busy.", err)
	case contract.QueueRejected, contract.TooMany:
		return errOverloaded("queue_full", "All engines are busy, and too many requests wait.", err)
	case contract.TargetMissed:
		p := errOverloaded("target_missed", "", err)
		p.missed, _ = errors.AsType[*contract.TargetError](err)
		why := "No engine is predicted to answer in time"
		if p.missed.Waited {
			why = "All engines are busy: " + p.missed.Error()
		}
		p.text = fmt.Sprintf("%s (predicted_ttft_ms: %d).", why, p.missed.Predicted.Milliseconds())
		return p
	case contract.Exhausted:
		p := errFull("limit_reached", "A limit of the endpoint picker is reached.")
		p.err = err
		return p
	case contract.Cancelled:
		return errGone
	case contract.Internal, contract.Away:
	}
	return &Problem{
		status: http.StatusInternalServerError, kind: openai.TypeServer, code: "internal", text: "internal error",
		outcome: counts.GatewayFailed, err: err,
	}
}
