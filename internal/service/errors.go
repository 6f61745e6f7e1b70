package service

import "fmt"

// Kind says what went wrong, for whoever maps errors to a protocol's statuses.
type Kind uint8

// The kinds of error that the service's callers can meet.
const (
	Internal    Kind = iota
	BadRequest       // the request can never work
	NotFound         // worker, reservation or rank
	Conflict         // an id is taken
	Unavailable      // nobody can serve it now: not ready, no endpoint, shutting down, queue full
	TooMany          // reserved for dialects that answer 429
)

// Error is an error with a text of the contract.
type Error struct {
	Kind Kind
	Text string
	// Details is rendered as the answer's "details" object where the contract
	// has one (queue rejection).
	Details any
	// Reason and Field are the error's code and the field of the body that it is
	// about, as the Conductor API names them; the other contracts have neither.
	Reason, Field string
	Err           error
}

func (e *Error) Error() string { return e.Text }

// Unwrap gives the cause, if there is one.
func (e *Error) Unwrap() error { return e.Err }

func errorf(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Text: fmt.Sprintf(format, args...)}
}
