package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/conductorapi"
)

// ConductorAPI is what the routes of the Conductor contract need. Requests are
// lent for the time of the call.
type ConductorAPI interface {
	// Register does nothing if the same registration is in force.
	Register(reg conductor.Registration) error
	// Unregister names what it removed as instance|tenant|rank.
	Unregister(f conductor.Filter) ([]string, error)
	// Query fills a, by instance.
	Query(req *conductor.Question, a *conductor.Answer) error
	// Services lists in the order of registration.
	Services() []conductorapi.Service
	// SelectionWorkers counts the workers that answers show beside the instances.
	SelectionWorkers() uint64
	// Diagnose looks at the first maxBlocks blocks of a prompt.
	Diagnose(req *conductor.Question, maxBlocks int) (*conductor.Diagnosis, error)
}

// conductorPrefix is where the selection service has the Conductor's routes.
const conductorPrefix = "/conductor"

type conductorRoutes struct{ svc ConductorAPI }

// addTo registers the routes, all of them relative to r.
func (s conductorRoutes) addTo(r gin.IRoutes, a api) {
	r.POST("/register", withBody(a, newConductorBody(registerShape, resetRegistration, nil), s.register))
	r.POST("/unregister", withBody(a, newConductorBody(unregisterShape, resetUnregistration, nil), s.unregister))
	r.POST("/query", withBody(a, newQuestionBody(queryShape), s.query))
	r.POST("/query_by_hash", withBody(a, newQuestionBody(queryByHashShape), s.queryByHash))
	r.POST("/diagnose", withBody(a, newQuestionBody(conductorDiagnoseShape), s.diagnose))
	get(r, "/services", a.serve(s.services))
	get(r, "/health", a.serve(health))
}

func (s conductorRoutes) register(_ *gin.Context, b *registrationBody, out []byte) (int, []byte, error) {
	reg, err := b.registration()
	if err == nil {
		err = s.svc.Register(reg)
	}
	if err != nil {
		return 0, nil, err
	}
	out = append(out, `{"status":"registered successfully"`...)
	out = appendStringField(out, "instance_id", reg.Instance)
	return http.StatusOK, append(out, '}'), nil
}

func (s conductorRoutes) unregister(_ *gin.Context, b *unregistrationBody, out []byte) (int, []byte, error) {
	f, err := b.filter()
	if err != nil {
		return 0, nil, err
	}
	removed, err := s.svc.Unregister(f)
	if err != nil {
		return 0, nil, err
	}
	out = append(out, `{"status":"unregistered successfully"`...)
	out = appendList(appendKey(out, "removed_instances"), removed, appendString)
	return http.StatusOK, append(out, '}'), nil
}

func (s conductorRoutes) query(_ *gin.Context, b *questionBody, out []byte) (int, []byte, error) {
	return s.hits(b, "token_ids", out)
}

func (s conductorRoutes) queryByHash(_ *gin.Context, b *questionBody, out []byte) (int, []byte, error) {
	return s.hits(b, "seq_hashes", out)
}

func (s conductorRoutes) hits(b *questionBody, wanted string, out []byte) (int, []byte, error) {
	if err := b.settle(wanted); err != nil {
		return 0, nil, err
	}
	if err := s.svc.Query(&b.req, &b.answer); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, appendHits(out, b.req.Tenant, &b.answer), nil
}

func (s conductorRoutes) diagnose(_ *gin.Context, b *questionBody, out []byte) (int, []byte, error) {
	if err := b.settle("token_ids"); err != nil {
		return 0, nil, err
	}
	d, err := s.svc.Diagnose(&b.req, b.maxBlocks)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, dialect13.appendDiagnosis(out, d), nil
}

func (s conductorRoutes) services(_ *gin.Context, out []byte) (int, []byte, error) {
	out = append(out, '{')
	out = appendList(appendKey(out, "services"), s.svc.Services(), appendConductorService)
	out = appendUintField(out, "selection_workers", s.svc.SelectionWorkers())
	return http.StatusOK, append(out, '}'), nil
}
