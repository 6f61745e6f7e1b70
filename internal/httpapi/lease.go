package httpapi

import (
	"math"
	"time"

	"github.com/select-service/select-service/internal/jsonscan"
	"github.com/select-service/select-service/internal/service"
)

// Bounds of a lease in seconds, inclusive.
const (
	minLease = 0.1
	maxLease = 86400
)

var errLease = badRequest("lease_seconds must be between 0.1 and 86400")

// safety is what a body says for the case that its sender is lost (decisions E3
// and E4).
type safety struct {
	seconds  float64
	leased   bool // there are seconds
	ifExists service.IfExists
}

// lease returns how long the booking lives without a sign of life, 0 for as long
// as others do.
func (s *safety) lease() (time.Duration, error) {
	switch {
	case !s.leased:
		return 0, nil
	case s.seconds >= minLease && s.seconds <= maxLease:
		return time.Duration(math.Round(s.seconds * float64(time.Second))), nil
	}
	return 0, errLease
}

func safetyFields[T any](of func(*T) *safety) []jsonscan.Field[T] {
	return []jsonscan.Field[T]{
		{Name: "lease_seconds", Read: func(s *jsonscan.Scanner, t *T) {
			if !s.Null() {
				of(t).seconds, of(t).leased = s.Float64(), true
			}
		}},
		{Name: "if_exists", Read: jsonscan.OrNull(func(t *T) *service.IfExists { return &of(t).ifExists }, readIfExists)},
	}
}

func readIfExists(s *jsonscan.Scanner) service.IfExists {
	switch text := s.String(); {
	case s.Err() != nil:
	case text == "return":
		return service.ReturnFirst
	case text != "error":
		s.Fail("unknown variant, expected `return` or `error`")
	}
	return service.Refuse
}

// errNoID refuses to repeat what has no id: an id that was made up is no one else's,
// so that each repeat would book once more.
func (d dialect) errNoID() error { return badRequest("if_exists needs `" + d.bookingID() + "`") }

// appendLease ends the answer of a booking: only those with a lease say so.
func appendLease(out []byte, lease time.Duration) []byte {
	if lease == 0 {
		return out
	}
	// A division of whole numbers gives back the number that was sent.
	return appendFloat(appendKey(out, "lease_seconds"), float64(lease)/float64(time.Second), 64)
}
