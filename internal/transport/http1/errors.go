package http1

import (
	"errors"
	"fmt"
	"os"
)

// ErrProtocol is the error of an answer that is not HTTP/1.1 as this package reads it: see the package's
// documentation.
var ErrProtocol = errors.New("not HTTP/1.1")

// ErrRequest is the error of a request that cannot be sent as it is; nothing was done. It is no *Error.
var ErrRequest = errors.New("bad request")

// Phase is how far a request came.
type Phase uint8

// The phases, in order.
const (
	Dial Phase = iota + 1 // there is no connection
	TLS                   // the handshake failed
	Send                  // the request was not sent as a whole, and no byte of an answer came
	Wait                  // it was sent, and no byte of an answer came
	Head                  // a part of the answer's head came
	Body                  // the head came, and a part of its body
)

var phases = [...]string{Dial: "connect", TLS: "TLS handshake", Send: "send the request", Wait: "wait for an answer", Head: "read the answer's head", Body: "read the answer's body"}

func (p Phase) String() string { return phases[p] }

// Error is why there is no answer, or no more of it. It wraps
//
//   - ErrProtocol for what is no HTTP/1.1,
//   - the cause of the context if that has ended,
//   - os.ErrDeadlineExceeded after Request.HeadTimeout, and what the dialer says after its timeout,
//   - io.ErrUnexpectedEOF or the error of the system (as syscall.ECONNRESET) for a connection that ended,
//   - the error of Request.Reader.
type Error struct {
	Phase Phase
	// Reused: the connection has served a request before.
	Reused bool
	// Sent: the whole request was written, which does not say that the server has read it.
	Sent bool
	Err  error

	ended bool // it is the connection's end, not ErrProtocol, a timeout or the caller's own doing
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Phase, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether it is a timeout of the dialer or Request.HeadTimeout.
func (e *Error) Timeout() bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(e.Err, os.ErrDeadlineExceeded) || errors.As(e.Err, &timeout) && timeout.Timeout()
}

// Unserved reports whether the server cannot have begun to serve the request, so that it may be sent to
// another one: there was no connection; or it ended before a byte of an answer came, and either before all
// was sent, or it was one that had been idle, which the server may close at any time. A request that was
// sent on a new connection as a whole may have begun, and one that met a timeout is not unserved either, but
// for a timeout of the dialer. The end of the request's context does not count.
func (e *Error) Unserved() bool {
	switch e.Phase {
	case Dial, TLS, Send:
		return e.ended
	case Wait:
		return e.ended && e.Reused
	}
	return false
}
