package contract

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
)

// Version is a version of the selection service's contract. It decides the behaviour of the
// service as a whole; single requests choose their dialect by the path.
type Version uint8

// The contracts of dynamo-kv-router 1.3.1 and 1.6.1, with the decisions of this
// project.
const (
	V13 Version = iota
	V16
)

// String returns the version as in flags and paths.
func (v Version) String() string {
	if v == V16 {
		return "1.6"
	}
	return "1.3"
}

// Kind is the kind of an error, for the layer that maps errors to the statuses of a protocol.
type Kind uint8

// The kinds of error that the service's callers can meet.
const (
	Internal      Kind = iota
	BadRequest         // the request is invalid in itself
	NotFound           // worker, reservation or rank unknown
	Conflict           // an id exists already
	Managed            // the worker is another source's
	Unavailable        // no worker can serve it now: not ready, no endpoint, shutting down
	TooMany            // more than this service keeps, or for dialects that answer 429
	Exhausted          // a limit of this process is reached for now: callers come back later (decision X2)
	Overloaded         // every worker that could serve it has too much to do; wraps *OverloadError
	QueueRejected      // its class of the wait queue is full; has Details
	TargetMissed       // no worker is predicted to hold its target; wraps *TargetError
	Away               // what the change needs cannot be reached now: callers come back later
	Cancelled          // the caller has gone, so the error is not sent
)

// Error is an error with a text of the contract.
type Error struct {
	Kind Kind
	// Text is the whole text or, with a Scope, the part before it.
	Text string
	// Scope, if not nil, is named after Text, followed by Tail. Its wording depends on the
	// dialect: see TextIn.
	Scope *catalog.Scope
	Tail  string
	// Message is a longer text for people. The contract has it for overload only;
	// otherwise it is "".
	Message string
	// Details is rendered as the answer's "details" object where the contract
	// has one (queue rejection).
	Details any
	// Reason and Field are the error's code and the field of the body that it is about, for the
	// Conductor API; the other contracts have neither.
	Reason, Field string
	// Limit is the limit that refuses the request, one of Limits; empty for other
	// errors.
	Limit string
	Err   error

	// TakenID is the id of a reservation that exists, or is being booked, nil in other
	// errors: the 1.6 dialect has a text of its own for it.
	TakenID *string
}

// ErrShuttingDown is the error of new work while the service shuts down.
var ErrShuttingDown = &Error{Kind: Unavailable, Text: catalog.ErrShuttingDown.Error(), Reason: "shutting_down"}

// Error returns the text in the dialect of dynamo-kv-router 1.3.1.
func (e *Error) Error() string { return e.TextIn(V13) }

// TextIn returns the text in a dialect. Each has its own word for the tenant, and its own text
// for an id that exists.
func (e *Error) TextIn(dialect Version) string {
	group := "tenant"
	if dialect == V16 {
		group = "routing_group"
		if e.TakenID != nil {
			return "selection " + *e.TakenID + " is already reserved or being reserved"
		}
	}
	if e.Scope == nil {
		return e.Text
	}
	return fmt.Sprintf("%s for model=%s %s=%s%s", e.Text, e.Scope.Model, group, e.Scope.Tenant, e.Tail)
}

// Unwrap returns the cause, nil if there is none.
func (e *Error) Unwrap() error { return e.Err }

// OverloadError is the cause of an error of kind Overloaded.
type OverloadError struct {
	Pinned bool   // the request named the worker
	Worker uint64 // which one, if Pinned
	// Causes are the limits that ranks of the workers in question exceed.
	Causes overload.Causes
}

func (e *OverloadError) Error() string {
	if e.Pinned {
		return fmt.Sprintf("pinned worker %d is overloaded", e.Worker)
	}
	return "all eligible workers are overloaded"
}

// NewOverload returns the error for an overload, with the texts of the contract.
func NewOverload(e OverloadError) *Error {
	why := "All workers are busy"
	if e.Pinned {
		why = "Selected worker is overloaded"
	}
	return &Error{
		Kind: Overloaded, Text: e.Error(), Err: &e,
		Message: "Service temporarily unavailable: " + why + ", please retry later",
	}
}

// TargetError is the cause of an error of kind TargetMissed.
type TargetError struct {
	Predicted time.Duration // the least time to first token that is predicted
	Over      time.Duration // by how much that is more than what is wanted
	Waited    bool          // the request waited for its turn, and cannot be in time any more
}

// Error returns the text: that of a request that has waited is dynamo-kv-router 1.6.1's.
func (e *TargetError) Error() string {
	if e.Waited {
		return "request deadline exceeded"
	}
	return "no worker is predicted to hold the target of the request"
}

// maxRetryAfter bounds TargetError.RetryAfter, in seconds.
const maxRetryAfter = 60

// RetryAfter returns in how many seconds the work is done that the request would have waited for too long, 1 to 60.
func (e *TargetError) RetryAfter() int {
	return int(min(max(1, math.Ceil(e.Over.Seconds())), maxRetryAfter))
}

// NewTargetMissed returns the error for a request whose target is predicted to be missed.
func NewTargetMissed(e TargetError) *Error {
	return &Error{Kind: TargetMissed, Text: e.Error(), Err: &e, Reason: ReasonSaturated}
}

// DroppedHeader and ReasonSaturated are how llm-d's endpoint picker says why it refuses a request that no engine has room for.
const (
	DroppedHeader   = "x-llm-d-request-dropped-reason"
	ReasonSaturated = "rejected-saturated"
)

// ScopeErrorf is Errorf for a text followed by the name of the scope, shortened if it is long.
func ScopeErrorf(k Kind, sc catalog.Scope, format string, args ...any) *Error {
	e := Errorf(k, format, args...)
	e.Scope = new(sc.Short())
	return e
}

// KindOf returns the kind of an error, Internal if it has none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// Errorf returns an error of that kind with a formatted text.
func Errorf(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Text: fmt.Sprintf(format, args...)}
}
