package httpapi

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	openapi "github.com/select-service/select-service/api"
	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/internal/contract"
)

// Service is what the routes of the selection service need; those of the slot
// tracker are part of it, under /slots.
type Service interface {
	SlotsService
	workerCatalog
	workerSelector
	projector
	reserver
	loadReader
	thresholder
	diagnoser
	dumper
	reconciler
}

// SlotsService is what the routes of the slot tracker's own listener need.
type SlotsService interface {
	slotTracker
	replicaService
}

// Options configure a handler.
type Options struct {
	// Log gets a line per request at debug level and the causes of 500 answers.
	Log zerolog.Logger
	// Memory has the accounts that requests draw from; nil: no limits.
	Memory *budget.Budget
	// Contract is the dialect of the routes without a prefix; those under /v1.3 and
	// /v1.6 are always there.
	Contract contract.Version
	// Metrics serves GET /metrics; nil leaves the route out.
	Metrics http.Handler
	// Requests observes the listener's requests; nil for none.
	Requests RequestObserver
	// RetryAfter is the Retry-After header of requests that an overload refuses,
	// rounded up to seconds; 0 is no header. No other answer has it.
	RetryAfter time.Duration
}

// New returns the handler of the selection contract, with the Conductor's routes
// under /conductor.
func New(svc Service, conductor ConductorAPI, opt Options) http.Handler {
	return newEngine(svc, conductor, opt)
}

// NewSlots returns the handler of the slot tracker's own listener: its contract,
// and what replicas ask of each other. It has no metrics.
func NewSlots(svc SlotsService, opt Options) http.Handler { return newSlotsEngine(svc, opt) }

// NewConductor returns the handler of the Conductor API's own listener. It has no
// metrics.
func NewConductor(conductor ConductorAPI, opt Options) http.Handler {
	return newConductorEngine(conductor, opt)
}

// slotsPrefix is where the selection service serves the slot tracker's routes.
const slotsPrefix = "/slots"

func newSlotsEngine(svc SlotsService, opt Options) *gin.Engine {
	e, a := bareEngine(opt, renderSelection)
	inDialects(e, a, func(r gin.IRouter, a api) {
		slotsRoutes{svc, a.dialect}.addTo(r, a)
		addReplicaRoutes(r, a, svc)
	})
	return e
}

// inDialects registers routes without a prefix and under that of every dialect.
func inDialects(e *gin.Engine, unprefixed api, add func(gin.IRouter, api)) {
	add(e, unprefixed)
	for _, d := range dialects {
		a := unprefixed
		a.dialect = d
		add(e.Group(d.prefix()), a)
	}
}

func newConductorEngine(svc ConductorAPI, opt Options) *gin.Engine {
	opt.Contract = contract.V13 // it has no dialects
	e, a := bareEngine(opt, renderConductor)
	conductorRoutes{svc}.addTo(e, a)
	return e
}

// bareEngine returns an engine with the parts that all listeners have.
func bareEngine(opt Options, render renderer) (*gin.Engine, api) {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.RedirectTrailingSlash = false
	// Parameters are cut out of the escaped path, so that an escaped slash is
	// part of an id, and unescaped by pathValue. (gin would read + as a space.)
	e.UseEscapedPath = true
	e.UnescapePathValues = false

	a := api{log: opt.Log, dialect: dialect(opt.Contract), render: render, requests: opt.Requests}
	if opt.RetryAfter > 0 {
		a.retryAfter = []string{strconv.FormatInt(int64((opt.RetryAfter+time.Second-1)/time.Second), 10)}
	}
	e.Use(a.observe, a.recovery)
	e.NoRoute(a.serve(routeNotFound))
	e.NoMethod(a.serve(methodNotAllowed))
	return e, a
}

func newEngine(svc Service, conductor ConductorAPI, opt Options) *gin.Engine {
	e, a := bareEngine(opt, renderSelection)
	inDialects(e, a, func(r gin.IRouter, a api) { addSelection(r, a, svc) })
	addConductor(e, a, conductor)
	document := openapi.Document(opt.Contract.String())
	get(e, "/openapi.yaml", func(c *gin.Context) { c.Data(http.StatusOK, "application/yaml", document) })
	if opt.Metrics != nil {
		get(e, "/metrics", gin.WrapH(opt.Metrics))
	}
	return e
}

// addSelection registers the routes of the selection service in one dialect.
func addSelection(r gin.IRouter, a api, svc Service) {
	workers := workerRoutes{svc, a.dialect}
	r.POST("/workers", withBody(a, newBody(newWorkerShape(a.dialect), resetWorkerBody, nil), workers.put))
	sets := reconcileRoutes{svc, a.dialect}
	r.PUT("/workers", a.checked(sets.checkAllowed), withBody(a, newReconcileBody(a.dialect), sets.put))
	get(r, "/workers", a.serve(workers.list))
	r.PATCH("/workers/:worker_id", a.checked(workerID), withBody(a, newBody(patchShape, nil, nil), workers.patch))
	r.DELETE("/workers/:worker_id", a.serve(workers.remove))
	get(r, "/health", a.serve(health))
	get(r, "/ready", a.serve(workers.ready))

	selection := selectRoutes{svc, a.dialect}
	r.POST("/select", withBody(a, newSelectBody(newSelectShape(a.dialect)), selection.selectWorker))
	r.POST("/select_and_reserve", withBody(a, newSelectBody(newSelectAndReserveShape(a.dialect)), selection.selectAndReserve))

	projection := projectRoutes{svc, a.dialect}
	r.POST("/overlap_scores", withBody(a, newProjectBody(a.dialect), projection.overlapScores))
	r.POST("/potential_loads", withBody(a, newProjectBody(a.dialect), projection.potentialLoads))
	get(r, "/loads", a.serve(loadRoutes{svc, a.dialect}.list))
	r.POST("/diagnose", withBody(a, newDiagnoseBody(a.dialect), diagnoseRoutes{svc, a.dialect}.diagnose))

	reservations := reservationRoutes{svc, a.dialect}
	r.POST("/reservations", withBody(a, newReserveBody(a.dialect), reservations.create))
	r.DELETE("/reservations/:reservation_id", a.serve(byID(svc.Free)))
	r.POST("/reservations/:reservation_id/renew", a.serve(byID(svc.Renew)))
	r.POST("/reservations/:reservation_id/prefill_complete", a.serve(byID(svc.PrefillComplete)))
	r.POST("/reservations/:reservation_id/output_block", a.checked(reservationID),
		withBody(a, newBody(outputBlockShape, nil, nil), reservations.outputBlock))

	busyRoutes{svc}.addTo(r, a)

	get(r, "/dump", dumpRoutes{svc, a}.dump)

	addReplicaRoutes(r, a, svc)
	slotsRoutes{svc, a.dialect}.addTo(r.Group(slotsPrefix), a)
}

// addConductor registers the Conductor's routes under their prefix; errors below it
// have the Conductor's form.
func addConductor(e *gin.Engine, selection api, svc ConductorAPI) {
	a := selection
	a.dialect, a.render = dialect13, renderConductor
	conductorRoutes{svc}.addTo(e.Group(conductorPrefix, a.recovery), a)
	at := func(f answerFunc) gin.HandlerFunc {
		inside, outside := a.serve(f), selection.serve(f)
		return func(c *gin.Context) {
			if strings.HasPrefix(c.Request.URL.Path, conductorPrefix+"/") {
				inside(c)
			} else {
				outside(c)
			}
		}
	}
	e.NoRoute(at(routeNotFound))
	e.NoMethod(at(methodNotAllowed))
}

// get registers a handler for GET and HEAD; net/http drops the body of the
// latter.
func get(r gin.IRoutes, path string, h gin.HandlerFunc) {
	r.GET(path, h)
	r.HEAD(path, h)
}

func routeNotFound(*gin.Context, []byte) (int, []byte, error) {
	return 0, nil, errRouteNotFound
}

func methodNotAllowed(*gin.Context, []byte) (int, []byte, error) {
	return 0, nil, errMethodNotAllowed
}

func health(_ *gin.Context, out []byte) (int, []byte, error) {
	return http.StatusOK, appendOK(out), nil
}
