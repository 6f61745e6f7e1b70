package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
)

// Keys under which a request that changes something keeps data for its audit line.
const (
	auditedKey = "audited"
	subjectKey = "subject"
)

// subject describes what a request changes, for its audit line.
type subject interface {
	describe(e *zerolog.Event)
}

// about sets the subject of an operator's request; the last call counts. The line is written
// after the request's body has been released, so a subject must not refer to the body.
func (r request) about(s subject) { r.Set(subjectKey, s) }

// audited runs an operator's request and writes its audit line.
func (a api) audited(c *gin.Context, who *access.Caller, run func()) {
	c.Set(auditedKey, true)
	status := http.StatusInternalServerError // if run panics
	defer func() {
		line := a.audit.Line(who, c.Request, status < http.StatusBadRequest)
		if line == nil {
			return
		}
		line.Str("action", c.Request.Method+" "+catalog.Clip(c.Request.URL.Path))
		if id := requestID(c.Request); id != nil {
			line.Str("request_id", id[0])
		}
		if s, ok := c.Get(subjectKey); ok {
			s.(subject).describe(line)
		}
		if text := c.GetString(problemKey); text != "" {
			line.Str("error", catalog.Clip(text))
		}
		line.Int("status", status).Msg("audit")
	}()
	run()
	status = c.Writer.Status()
}

func describeScope(e *zerolog.Event, sc catalog.Scope) {
	e.Str("model", catalog.Clip(sc.Model)).Str("tenant", catalog.Clip(sc.Tenant))
}

// describeFilter adds the names that a filter has.
func describeFilter(e *zerolog.Event, f catalog.ScopeFilter) {
	if f.Model != nil {
		e.Str("model", catalog.Clip(*f.Model))
	}
	if f.Tenant != nil {
		e.Str("tenant", catalog.Clip(*f.Tenant))
	}
}
