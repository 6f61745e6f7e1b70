package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/jsonscan"
	"github.com/select-service/select-service/internal/service"
)

// requestError is a request that never reaches the service.
type requestError struct {
	status int
	text   string
}

func (e *requestError) Error() string { return e.text }

// Texts of axum 0.8, which dynamo-kv-router 1.3.1 answers with.
var (
	errRouteNotFound    = &requestError{http.StatusNotFound, "route not found"}
	errMethodNotAllowed = &requestError{http.StatusMethodNotAllowed, "method not allowed"}
	errContentType      = &requestError{http.StatusUnsupportedMediaType, "Expected request with `Content-Type: application/json`"}
	errBodyTooLarge     = &requestError{http.StatusRequestEntityTooLarge, "Failed to buffer the request body: length limit exceeded"}
)

const (
	syntaxPrefix = "Failed to parse the request body as JSON: "
	shapePrefix  = "Failed to deserialize the JSON body into the target type: "
)

// internalText stands for causes that are none of the client's business.
const internalText = "internal error"

// problem is what an error looks like to the client.
func problem(err error) (status int, text string, details any) {
	var (
		request *requestError
		fault   *jsonscan.Error
		known   *service.Error
	)
	switch {
	case errors.As(err, &request):
		return request.status, request.text, nil
	case errors.As(err, &fault) && fault.Class == jsonscan.Syntax:
		return http.StatusBadRequest, syntaxPrefix + fault.Error(), nil
	case errors.As(err, &fault):
		return http.StatusUnprocessableEntity, shapePrefix + fault.Error(), nil
	case errors.As(err, &known):
		return statusOf(known.Kind), known.Text, known.Details
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable, "request cancelled", nil // nobody is left to read it
	}
	return http.StatusInternalServerError, internalText, nil
}

func statusOf(k service.Kind) int {
	switch k {
	case service.BadRequest:
		return http.StatusBadRequest
	case service.NotFound:
		return http.StatusNotFound
	case service.Conflict:
		return http.StatusConflict
	case service.Unavailable:
		return http.StatusServiceUnavailable
	case service.TooMany:
		return http.StatusTooManyRequests
	case service.Internal:
	}
	return http.StatusInternalServerError
}

// fail answers with an error.
func (a api) fail(c *gin.Context, out []byte, err error) []byte {
	status, text, details := problem(err)
	if status == http.StatusInternalServerError {
		a.log.Error().Err(err).AnErr("cause", errors.Unwrap(err)).
			Str("method", c.Request.Method).Str("route", c.FullPath()).Msg("request failed")
	}
	out = appendError(out, text, details)
	respond(c, status, out)
	return out
}

func appendError(out []byte, text string, details any) []byte {
	out = append(out, `{"error":`...)
	out = appendString(out, text)
	if details != nil {
		if d, err := json.Marshal(details); err == nil {
			out = append(out, `,"details":`...)
			out = append(out, d...)
		}
	}
	return append(out, '}')
}
