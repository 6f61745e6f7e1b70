package access

import (
	"net/http"
	"strconv"
	"time"
)

// DeniedError refuses a request because of its sender. It never repeats what was sent.
type DeniedError struct {
	// Status is the HTTP status: 401, 403 or 429.
	Status int
	// Code is the error code of RFC 6750, "" for a request without a token. For requests
	// refused by CheckOrigin and Hosts it is "foreign_origin" and "foreign_host".
	Code string
	Text string
	// Challenge is the value of WWW-Authenticate, "" for none.
	Challenge string
	// RetryAfter is that header's value in seconds, "" for none.
	RetryAfter string
}

func (e *DeniedError) Error() string { return e.Text }

const realm = `Bearer realm="select-service"`

// The refusals of a caller.
var (
	errNoToken = &DeniedError{
		Status: http.StatusUnauthorized, Code: "unauthorized", Text: "a bearer token is required", Challenge: realm,
	}
	errBadToken = &DeniedError{
		Status: http.StatusUnauthorized, Code: "invalid_token", Text: "the bearer token is not valid",
		Challenge: realm + `, error="invalid_token"`,
	}
	errTooManyFailures = &DeniedError{
		Status: http.StatusTooManyRequests, Code: "too_many_failures", Text: "too many requests with a wrong token from this address",
		Challenge: realm + `, error="invalid_token"`, RetryAfter: strconv.Itoa(int(failureEvery / time.Second)),
	}
	// ErrForeignScope refuses a limited caller that names a model or tenant outside its scope,
	// or names none where that means all.
	ErrForeignScope = &DeniedError{
		Status: http.StatusForbidden, Code: "insufficient_scope", Text: "the token is for another model or tenant",
		Challenge: realm + `, error="insufficient_scope"`,
	}
	errUnscopedOnly = &DeniedError{
		Status: http.StatusForbidden, Code: "insufficient_scope", Text: "the route is not for tokens of one model or tenant",
		Challenge: realm + `, error="insufficient_scope"`,
	}
)

// errRole has the refusal of a caller without a role, by role.
var errRole = func() (byRole [Metrics + 1]*DeniedError) {
	for _, r := range Grantable {
		byRole[r] = &DeniedError{
			Status: http.StatusForbidden, Code: "insufficient_scope", Text: "the token lacks the role " + r.String(),
			Challenge: realm + `, error="insufficient_scope", scope="` + r.String() + `"`,
		}
	}
	return byRole
}()
