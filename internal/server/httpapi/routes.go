package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	openapi "github.com/select-service/select-service/api"
	"github.com/select-service/select-service/internal/fleet"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/replicastatus"
	"github.com/select-service/select-service/internal/server/ui"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
)

// Service has the use cases behind the routes of the selection service, including the slot
// tracker's under /slots.
type Service interface {
	SlotsService
	workerCatalog
	workerSelector
	pairSelector
	explainer
	sessionLister
	consumerLister
	projector
	reserver
	loadReader
	policyTable
	thresholder
	diagnoser
	dumper
	reconciler
	loadTaker
}

// SlotsService has the use cases behind the slot tracker's own listener.
type SlotsService interface {
	slotTracker
	replicaService
}

// Options configure a handler.
type Options struct {
	// Log gets a line per request at debug level and the causes of 500 answers.
	Log zerolog.Logger
	// Memory is the memory of requests, shared by all listeners; nil: no limits.
	Memory *Memory
	// Contract is the dialect of the routes without a prefix; those under /v1.3 and
	// /v1.6 are always there.
	Contract contract.Version
	// Metrics serves GET /metrics; nil leaves the route out.
	Metrics http.Handler
	// Requests observes the listener's requests; nil for none.
	Requests RequestObserver
	// Tracer traces requests; nil: none.
	Tracer *tracing.Tracer
	// Access authenticates the callers of requests; nil: anyone may do everything.
	Access *access.Guard
	// Hosts are the names of the listener; nil is any.
	Hosts *access.Hosts
	// Dumps and Snapshots bound the readers of both, shared by all listeners; nil: no
	// limit.
	Dumps, Snapshots *Readers
	// Named returns the scope that a model's name stands for, see catalog.Catalog.Named; nil: no model has further
	// names.
	Named func(catalog.Scope) catalog.Scope
	// MaxWorkers is the largest number of workers; 0: no limit.
	MaxWorkers int
	// Part says which of the contract's routes the listener has.
	Part Part
	// Sources are the sources of workers.
	Sources Sources
	// Operators has what the routes for operators show.
	Operators Operators
	// Fleet is this replica's connection to its fleet.
	Fleet FleetStatus
	// Page is the operators' page; nil: none. Where an admin listener has the operators' routes,
	// only that one shows it.
	Page *ui.Page
	// RetryAfter is the Retry-After header of requests refused for overload, rounded up to
	// seconds; 0: no header. No other answer has it.
	RetryAfter time.Duration
}

// Sources say what the sources of workers know.
type Sources interface {
	Reports() []workers.Report
}

// FleetStatus is what is shown of a fleet.
type FleetStatus interface {
	// Membership returns this replica's part in its fleet, nil if it is of none.
	Membership() *fleet.Membership
}

// New returns the handler of the selection contract, with the Conductor's routes
// under /conductor.
func New(svc Service, conductor ConductorAPI, opt Options) http.Handler {
	return opt.Page.Within(newEngine(svc, conductor, opt))
}

// NewSlots returns the handler of the slot tracker's own listener: its contract, and the routes
// for other replicas. It has no metrics.
func NewSlots(svc SlotsService, opt Options) http.Handler { return newSlotsEngine(svc, opt) }

// NewConductor returns the handler of the Conductor API's own listener. It has no
// metrics.
func NewConductor(conductor ConductorAPI, opt Options) http.Handler {
	return newConductorEngine(conductor, opt)
}

// slotsPrefix is the prefix of the slot tracker's routes on the selection service.
const slotsPrefix = "/slots"

func newSlotsEngine(svc SlotsService, opt Options) engine {
	e := bareEngine(opt, renderSelection)
	e.inDialects(func(r router) {
		slotsRoutes{svc, r.api.dialect}.addTo(r)
		addReplicaRoutes(r, svc)
	})
	return e
}

// inDialects registers routes without a prefix and under the prefix of every dialect.
func (e engine) inDialects(add func(router)) {
	add(e.routes)
	for _, d := range dialects {
		a := e.routes.api
		a.dialect = d
		add(e.routes.under(d.prefix(), a))
	}
}

func newConductorEngine(svc ConductorAPI, opt Options) engine {
	opt.Contract = contract.V13 // it has no dialects
	e := bareEngine(opt, renderConductor)
	conductorRoutes{svc}.addTo(e.routes)
	return e
}

// engine is the handler of a listener with its routes.
type engine struct {
	*gin.Engine
	routes router
}

// bareEngine returns an engine without routes.
func bareEngine(opt Options, render renderer) engine {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.RedirectTrailingSlash = false
	// Path parameters are taken from the escaped path, so that an escaped slash is part of an
	// id, and pathValue unescapes them. (gin would read + as a space.)
	e.UseEscapedPath = true
	e.UnescapePathValues = false

	a := api{
		log: opt.Log, dialect: dialect(opt.Contract), render: render, requests: opt.Requests, memory: opt.Memory,
		access: opt.Access, hosts: opt.Hosts, part: opt.Part, audit: access.NewAudit(opt.Log), dumps: opt.Dumps, snapshots: opt.Snapshots,
		maxWorkers: opt.MaxWorkers, sources: opt.Sources, fleet: opt.Fleet, page: opt.Page != nil && opt.Part != CallersRoutes,
		tracer: opt.Tracer, named: opt.Named,
	}
	if opt.RetryAfter > 0 {
		a.retryAfter = strconv.FormatInt(int64((opt.RetryAfter+time.Second-1)/time.Second), 10)
	}
	e.Use(a.observe, a.recovery, boundBody, a.defend)
	e.NoRoute(a.unrouted(routeNotFound))
	e.NoMethod(a.unrouted(methodNotAllowed))
	return engine{e, router{group: &e.RouterGroup, api: a, roles: make(map[string]access.Role)}}
}

func newEngine(svc Service, conductor ConductorAPI, opt Options) engine {
	e := bareEngine(opt, renderUnder(conductorPrefix+"/", renderConductor, renderSelection))
	e.inDialects(func(r router) {
		addSelection(r, svc)
		operatorRoutes{opt.Operators, r.api.dialect}.addTo(r)
	})
	a := e.routes.api
	a.dialect = dialect13 // the Conductor has no dialects
	conductorRoutes{conductor}.addTo(e.routes.under(conductorPrefix, a))
	document := openapi.Document(opt.Contract.String())
	e.routes.get(access.Read, "/openapi.yaml", anyScope(plain(func(c *gin.Context) { c.Data(http.StatusOK, "application/yaml", document) })))
	for _, kind := range catalog.SourceKinds {
		if kind.Discovered() {
			e.routes.get(access.Read, "/"+string(kind), a.list(func(_ request, out []byte) (int, []byte, error) {
				return http.StatusOK, appendReport(out, opt.Sources, kind), nil
			}))
		}
	}
	if e.routes.api.page {
		e.addPage(opt.Page)
	}
	status := a.serve(routeNotFound)
	if opt.Operators.Replicas != nil {
		status = a.list(operatorRoutes{opt.Operators, a.dialect}.status)
	}
	e.routes.get(access.Peer, replicastatus.Path, status)
	if opt.Metrics != nil {
		e.routes.get(access.Metrics, "/metrics", plain(gin.WrapH(opt.Metrics)))
	}
	return e
}

// addSelection registers the routes of the selection service in one dialect.
func addSelection(r router, svc Service) {
	a := r.api
	workers := workerRoutes{svc, a.dialect, a.sources, a.fleet}
	r.post(access.Operate, "/workers", withBody(a, newWorkerBody(a.dialect), workers.put))
	sets := reconcileRoutes{svc, a.dialect}
	r.add(http.MethodPut, access.Operate, "/workers", a.checked(sets.checkAllowed, withBody(a, newReconcileBody(a.dialect, a.maxWorkers), sets.put)))
	r.get(access.Read, "/workers", a.listing(workers.list))
	r.add(http.MethodPatch, access.Operate, "/workers/:worker_id", a.checked(workerID, withBody(a, newPatchBody(), workers.patch)))
	r.add(http.MethodDelete, access.Operate, "/workers/:worker_id", anyScope(a.serve(workers.remove)))
	r.post(access.Operate, "/workers/:worker_id/drain", a.checked(workerID, withBody(a, newDrainBody(), workers.drain)))
	r.add(http.MethodDelete, access.Operate, "/workers/:worker_id/drain", anyScope(a.serve(workers.undrain)))
	loadTakerRoutes{svc}.addTo(r)
	r.get(access.Public, "/health", a.serve(health))
	r.get(access.Public, "/ready", a.list(workers.ready))

	selection := selectRoutes{svc, a.dialect}
	r.post(access.Call, "/select", withBody(a, newSelectBody(newSelectShape(a.dialect)), selection.selectWorker))
	r.post(access.Call, "/select_and_reserve", withBody(a, newSelectBody(newSelectAndReserveShape(a.dialect)), selection.selectAndReserve))

	r.post(access.Call, "/select_pair", withBody(a, newPairBody(a.dialect), pairRoutes{svc, a.dialect}.selectPair))

	addBatch(r, selection)

	explanation := explainRoutes{svc, a.dialect}
	r.post(access.Read, "/explain", withBody(a, newSelectBody(newSelectShape(a.dialect)).perRank(), explanation.explain))
	r.get(access.Read, "/decisions", a.narrowed(explanation.decisions))

	sessionRoutes{svc, a.dialect}.addTo(r)
	fairnessRoutes{svc, a.dialect}.addTo(r)

	projection := projectRoutes{svc, a.dialect}
	r.post(access.Read, "/overlap_scores", withBody(a, newProjectBody(a.dialect), projection.overlapScores))
	r.post(access.Read, "/potential_loads", withBody(a, newProjectBody(a.dialect), projection.potentialLoads))
	r.get(access.Read, "/loads", a.listing(loadRoutes{svc, a.dialect}.list))
	policyRoutes{svc, a.dialect}.addTo(r)
	r.post(access.Read, "/diagnose", withBody(a, newDiagnoseBody(a.dialect), diagnoseRoutes{svc, a.dialect}.diagnose))

	reservations := reservationRoutes{svc, a.dialect}
	r.post(access.Call, "/reservations", withBody(a, newReserveBody(a.dialect), reservations.create))
	r.add(http.MethodDelete, access.Call, "/reservations/:reservation_id", reservations.byID(a, svc.Free))
	r.post(access.Call, "/reservations/:reservation_id/renew", reservations.byID(a, svc.Renew))
	r.post(access.Call, "/reservations/:reservation_id/prefill_complete", reservations.byID(a, svc.PrefillComplete))
	r.post(access.Call, "/reservations/:reservation_id/output_block",
		a.checked(reservationID, withBody(a, newOutputBlockBody(), reservations.outputBlock)))

	busyRoutes{svc}.addTo(r)

	r.get(access.Peer, "/dump", plain(dumpRoutes{svc, a}.dump))

	addReplicaRoutes(r, svc)
	slotsRoutes{svc, a.dialect}.addTo(r.under(slotsPrefix, a))
}

func routeNotFound(request, []byte) (int, []byte, error) {
	return 0, nil, errRouteNotFound
}

func methodNotAllowed(request, []byte) (int, []byte, error) {
	return 0, nil, errMethodNotAllowed
}

func health(_ request, out []byte) (int, []byte, error) {
	return http.StatusOK, appendOK(out), nil
}
