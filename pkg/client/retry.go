package client

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Retry says how calls are retried.
type Retry struct {
	// Overload is for calls that the service refused because every worker that could
	// serve them is busy.
	Overload Backoff
	// Connection is for calls that could not be delivered, and for calls without an
	// answer if a second call has no further effect.
	Connection Backoff
}

// Backoff says how often a call is sent, and the waits in between. The wait after
// attempt n, from 1, is Base·2^(n-1) plus a random part of up to Jitter, at most Max.
type Backoff struct {
	Attempts int           // in all, including the first; 1 never retries
	Base     time.Duration // the first wait
	Jitter   time.Duration
	Max      time.Duration // not below Base
}

// DefaultRetry treats an overload as Dynamo's guide to request rejection asks of
// clients: 5 attempts, 1 s doubled each time, up to 1 s of jitter, at
// most a minute. Calls without an answer are sent up to 6 times, 0.1 s to 5 s
// apart.
func DefaultRetry() Retry {
	return Retry{
		Overload:   Backoff{Attempts: 5, Base: time.Second, Jitter: time.Second, Max: time.Minute},
		Connection: Backoff{Attempts: 6, Base: time.Second / 10, Jitter: time.Second / 10, Max: 5 * time.Second},
	}
}

func (r Retry) check() error {
	return errors.Join(r.Overload.check("overload"), r.Connection.check("connection"))
}

func (b Backoff) check(name string) error {
	switch {
	case b.Attempts < 1:
		return fmt.Errorf("%s retry: %d attempts; the first one counts", name, b.Attempts)
	case b.Base < 0 || b.Jitter < 0 || b.Max < b.Base:
		return fmt.Errorf("%s retry: base %v, jitter %v, at most %v: none may be negative, nor the last below the first", name, b.Base, b.Jitter, b.Max)
	}
	return nil
}

// wait returns the wait after an attempt, counted from 1. asked is the wait that the
// service asks for; it is used if it is longer.
func (b Backoff) wait(attempt int, asked time.Duration) time.Duration {
	jitter := 0.0
	if b.Jitter > 0 {
		jitter = float64(rand.Int64N(int64(b.Jitter)))
	}
	d := max(float64(b.Base)*math.Pow(2, float64(attempt-1)), float64(asked))
	return time.Duration(min(d+jitter, float64(b.Max))) // jitter on asked too, or all clients would come back at once
}

// attempts counts the attempts of one call, by why they failed.
type attempts struct {
	refused, undelivered int
}

// next reports whether a call that failed may be sent again, and after which wait.
func (a *attempts) next(r Retry, k call, err error) (wait time.Duration, again bool) {
	if answer, ok := errors.AsType[*Error](err); ok {
		switch {
		case answer.Is(ErrOverloaded):
			a.refused++
			return r.Overload.wait(a.refused, answer.RetryAfter), a.refused < r.Overload.Attempts
		case answer.undelivered() && k.repeatable:
			a.undelivered++
			return r.Connection.wait(a.undelivered, answer.RetryAfter), a.undelivered < r.Connection.Attempts
		}
		return 0, false
	}
	if lost, ok := errors.AsType[*LostError](err); ok && (lost.Unsent || k.repeatable) {
		a.undelivered++
		return r.Connection.wait(a.undelivered, 0), a.undelivered < r.Connection.Attempts
	}
	return 0, false
}
