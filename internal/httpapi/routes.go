package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"
)

// Service is what the routes of the selection service need; those of the slot
// tracker are part of it, under /slots.
type Service interface {
	SlotsService
	workerCatalog
	selecter
	projector
	reserver
	loadReader
	dumper
}

// SlotsService is what the routes of the slot tracker's own listener need.
type SlotsService interface {
	slotTracker
	replicaService
}

// Options are the parts of the handler that do not come from the service.
type Options struct {
	// Log gets a line per request at debug level and the causes of 500 answers.
	Log zerolog.Logger
	// Metrics serves GET /metrics; nil leaves the route out.
	Metrics http.Handler
}

// New returns the handler of the selection contract.
func New(svc Service, opt Options) http.Handler { return newEngine(svc, opt) }

// NewSlots returns the handler of the slot tracker's own listener: its contract,
// and what replicas ask of each other. It has no metrics.
func NewSlots(svc SlotsService, opt Options) http.Handler { return newSlotsEngine(svc, opt) }

// slotsPrefix is where the selection service has the slot tracker's routes.
const slotsPrefix = "/slots"

func newSlotsEngine(svc SlotsService, opt Options) *gin.Engine {
	e, a := bareEngine(opt)
	slotsRoutes{svc}.addTo(e, a)
	addReplicaRoutes(e, a, svc)
	return e
}

// bareEngine has what both listeners have in common.
func bareEngine(opt Options) (*gin.Engine, api) {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.RedirectTrailingSlash = false
	// Parameters are cut out of the escaped path, so that an escaped slash is
	// part of an id, and unescaped by pathValue. (gin would read + as a space.)
	e.UseEscapedPath = true
	e.UnescapePathValues = false

	a := api{log: opt.Log}
	e.Use(a.accessLog, a.recovery)
	e.NoRoute(a.serve(routeNotFound))
	e.NoMethod(a.serve(methodNotAllowed))
	return e, a
}

func newEngine(svc Service, opt Options) *gin.Engine {
	e, a := bareEngine(opt)

	workers := workerRoutes{svc}
	e.POST("/workers", withBody(a, newBody(workerShape, resetWorkerBody, nil), workers.put))
	get(e, "/workers", a.serve(workers.list))
	e.PATCH("/workers/:worker_id", a.checked(workerID), withBody(a, newBody(patchShape, nil, nil), workers.patch))
	e.DELETE("/workers/:worker_id", a.serve(workers.remove))
	get(e, "/health", a.serve(health))
	get(e, "/ready", a.serve(workers.ready))

	selection := selectRoutes{svc}
	e.POST("/select", withBody(a, newSelectBody(selectShape), selection.choose))
	e.POST("/select_and_reserve", withBody(a, newSelectBody(selectAndReserveShape), selection.chooseAndReserve))

	projection := projectRoutes{svc}
	e.POST("/overlap_scores", withBody(a, newProjectBody(), projection.overlapScores))
	e.POST("/potential_loads", withBody(a, newProjectBody(), projection.potentialLoads))
	get(e, "/loads", a.serve(loadRoutes{svc}.list))

	reservations := reservationRoutes{svc}
	e.POST("/reservations", withBody(a, newReserveBody(), reservations.create))
	e.DELETE("/reservations/:reservation_id", a.serve(reservations.free))
	e.POST("/reservations/:reservation_id/prefill_complete", a.serve(reservations.prefillComplete))
	e.POST("/reservations/:reservation_id/output_block", a.checked(reservationID),
		withBody(a, newBody(outputBlockShape, nil, nil), reservations.outputBlock))

	get(e, "/dump", dumpRoutes{svc, a}.dump)

	addReplicaRoutes(e, a, svc)
	slotsRoutes{svc}.addTo(e.Group(slotsPrefix), a)

	if opt.Metrics != nil {
		get(e, "/metrics", gin.WrapH(opt.Metrics))
	}
	return e
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
