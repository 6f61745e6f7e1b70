package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/pkg/catalog"
)

// ConductorService is what the routes of the Conductor contract need. Requests
// are lent for the time of the call.
type ConductorService interface {
	// ConductorRegister does nothing if the same registration is in force.
	ConductorRegister(reg conductor.Registration) error
	// ConductorUnregister names what it removed as instance|tenant|rank.
	ConductorUnregister(f conductor.Filter) ([]string, error)
	// ConductorQuery fills a, by instance.
	ConductorQuery(req *service.ConductorQuery, a *conductor.Answer) error
	// ConductorServices lists in the order of registration.
	ConductorServices() []service.ConductorService
	// ConductorDiagnose looks at the first maxBlocks blocks of a prompt.
	ConductorDiagnose(req *service.ConductorQuery, maxBlocks int) (*service.Diagnosis, error)
	// Workers lists the workers of all contracts; nil takes all names.
	Workers(model, tenant *string) []*catalog.Worker
}

// conductorPrefix is where the selection service has the Conductor's routes.
const conductorPrefix = "/conductor"

type conductorRoutes struct{ svc ConductorService }

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
		err = s.svc.ConductorRegister(reg)
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
	removed, err := s.svc.ConductorUnregister(f)
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
	if err := s.svc.ConductorQuery(&b.req, &b.answer); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, appendHits(out, b.req.Tenant, &b.answer), nil
}

func (s conductorRoutes) diagnose(_ *gin.Context, b *questionBody, out []byte) (int, []byte, error) {
	if err := b.settle("token_ids"); err != nil {
		return 0, nil, err
	}
	d, err := s.svc.ConductorDiagnose(&b.req, b.maxBlocks)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, dialect13.appendDiagnosis(out, d), nil
}

func (s conductorRoutes) services(_ *gin.Context, out []byte) (int, []byte, error) {
	out = append(out, '{')
	out = appendList(appendKey(out, "services"), s.svc.ConductorServices(), appendConductorService)
	var selection uint64 // the workers that answers show beside the instances
	for _, w := range s.svc.Workers(nil, nil) {
		if !w.Tracked {
			selection++
		}
	}
	out = appendUintField(out, "selection_workers", selection)
	return http.StatusOK, append(out, '}'), nil
}
