package httpapi

import (
	"context"
	"io"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/overload"
	"github.com/select-service/select-service/internal/selecting"
	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/pkg/catalog"
)

// fake is a Service that answers with what a test gave it and remembers what it
// was asked. err, if set, is every call's result.
type fake struct {
	err error

	record      catalog.Record
	patch       catalog.Patch
	records     []catalog.Record
	filter      catalog.ScopeFilter
	difference  catalog.Difference
	workerID    uint64
	worker      *catalog.Worker
	workers     []*catalog.Worker
	ready       bool
	model       *string
	tenant      *string
	selected    selecting.SelectRequest
	reserve     bool
	selection   selecting.Selection
	explanation selecting.Explanation
	decisions   []selecting.Decision
	booked      selecting.ReserveRequest
	pending     selecting.PendingRequest
	repeated    bool
	projected   selecting.ProjectRequest
	scores      selecting.OverlapScores
	loads       []selecting.RankLoad
	scopes      []service.ScopeLoads
	policies    []service.ScopePolicy
	id          string
	decay       *float64
	peer        string
	newPeer     bool
	peers       []string
	dump        string
	form        contract.Version // of a dump

	recovery   *service.RecoveryStatus
	recovering bool
	after      string
	limit      int

	slotsWorker  service.SlotsWorker
	slotsWorkers []service.SlotsWorker
	slotsBooking service.SlotsReservation
	slotsLoads   []service.SlotsLoad
	slotsProject service.SlotsProjection
	scope        catalog.Scope
	notSelf      bool // the peer came through SlotsRegisterPeer

	busyModel string
	busySet   overload.Thresholds
	which     *string
	limits    []selecting.ModelThresholds

	conductorFake

	call func() // run inside of every call
}

func (f *fake) called() error {
	if f.call != nil {
		f.call()
	}
	return f.err
}

func (f *fake) PutWorkerIn(_ catalog.ScopeFilter, r catalog.Record) (*catalog.Worker, error) {
	f.record = r
	return f.worker, f.called()
}

func (f *fake) PatchWorkerIn(_ catalog.ScopeFilter, id uint64, p catalog.Patch) (*catalog.Worker, error) {
	f.workerID, f.patch = id, p
	return f.worker, f.called()
}

func (f *fake) DeleteWorkerIn(_ catalog.ScopeFilter, id uint64) (*catalog.Worker, error) {
	f.workerID = id
	return f.worker, f.called()
}

func (f *fake) CheckReservation(string, catalog.ScopeFilter) error { return f.err }

func (f *fake) TakesSet() error { return nil }

func (f *fake) ReconcileWorkers(records []catalog.Record, scope catalog.ScopeFilter) (catalog.Difference, error) {
	f.records, f.filter = records, scope
	return f.difference, f.called()
}

func (f *fake) Workers(model, tenant *string) []*catalog.Worker {
	f.model, f.tenant = model, tenant
	_ = f.called()
	return f.workers
}

func (f *fake) Ready() (bool, int, []*catalog.Worker) {
	_ = f.called()
	n := 0
	if f.ready {
		n = 1
	}
	return f.ready, n, f.workers
}

func (f *fake) Select(_ context.Context, req *selecting.SelectRequest, reserve bool) (selecting.Selection, error) {
	f.selected, f.reserve = *req, reserve
	f.selected.Text = nil // lent, like the rest of what it is
	return f.selection, f.called()
}

func (f *fake) Reserve(req *selecting.ReserveRequest) (selecting.Reservation, error) {
	f.booked = *req
	return selecting.Reservation{
		ID: req.ID, Scope: req.Scope, Rank: req.Rank, Endpoint: "http://w:1", Lease: req.Lease, Repeated: f.repeated,
	}, f.called()
}

func (f *fake) ReservePending(_ context.Context, req *selecting.PendingRequest) (selecting.Reservation, error) {
	f.pending = *req
	f.pending.Text = nil // lent
	return selecting.Reservation{
		ID: req.ID, Scope: req.Scope, Endpoint: "http://w:1", Lease: req.Lease, Repeated: f.repeated,
	}, f.called()
}

func (f *fake) Renew(id string) error {
	f.id = id
	return f.called()
}

func (f *fake) PrefillComplete(id string) error {
	f.id = id
	return f.called()
}

func (f *fake) OutputBlock(id string, decay *float64) error {
	f.id, f.decay = id, decay
	return f.called()
}

func (f *fake) Free(id string) error {
	f.id = id
	return f.called()
}

func (f *fake) Loads(model, tenant *string) []service.ScopeLoads {
	f.model, f.tenant = model, tenant
	return f.scopes
}

func (f *fake) Policies(of catalog.ScopeFilter) []service.ScopePolicy {
	f.model, f.tenant = of.Model, of.Tenant
	return f.policies
}

func (f *fake) PotentialLoads(req *selecting.ProjectRequest) ([]selecting.RankLoad, error) {
	f.projected = *req
	return f.loads, f.called()
}

func (f *fake) Explain(_ context.Context, req *selecting.SelectRequest) (*selecting.Explanation, error) {
	f.selected = *req
	return &f.explanation, f.called()
}

func (f *fake) Decisions(own catalog.ScopeFilter, _ int) []selecting.Decision {
	f.model, f.tenant = own.Model, own.Tenant
	_ = f.called()
	return f.decisions
}

func (f *fake) OverlapScores(req *selecting.ProjectRequest) (selecting.OverlapScores, error) {
	f.projected = *req
	return f.scores, f.called()
}

func (f *fake) Dump(_ context.Context, w io.Writer, form contract.Version) error {
	f.form = form
	if f.dump != "" { // even an empty write sends the header
		if _, err := io.WriteString(w, f.dump); err != nil {
			return err
		}
	}
	return f.called()
}

func (f *fake) DumpMsgpack(_ context.Context, w io.Writer, _ contract.Version) error {
	_, err := io.WriteString(w, "\x80")
	return err
}

func (f *fake) Peers() []string { return f.peers }

func (f *fake) RegisterPeer(endpoint string) (bool, error) {
	f.peer = endpoint
	return f.newPeer, f.called()
}

func (f *fake) DeregisterPeer(endpoint string) error {
	f.peer = endpoint
	return f.called()
}

func (f *fake) WriteSnapshot(ctx context.Context, w io.Writer, after string, limit int) error {
	f.after, f.limit = after, limit
	return f.Dump(ctx, w, f.form)
}

func (f *fake) BusyThresholds() []selecting.ModelThresholds {
	_ = f.called()
	return f.limits
}

func (f *fake) SetBusyThreshold(model string, set overload.Thresholds) (selecting.ModelThresholds, error) {
	f.busyModel, f.busySet = model, set
	return selecting.ModelThresholds{Model: model, Thresholds: set}, f.called()
}

func (f *fake) ClearBusyThreshold(model string, which *string) (selecting.ModelThresholds, error) {
	f.busyModel, f.which = model, which
	return selecting.ModelThresholds{Model: model}, f.called()
}

func (f *fake) Recovering() bool { return f.recovering }

func (f *fake) Recovery() (service.RecoveryStatus, bool) {
	if f.recovery == nil {
		return service.RecoveryStatus{}, false
	}
	return *f.recovery, true
}

func (f *fake) SlotsRegister(w service.SlotsWorker) error {
	f.slotsWorker = w
	return f.called()
}

func (f *fake) SlotsUnregister(scope catalog.Scope, worker uint64) error {
	f.scope, f.workerID = scope, worker
	return f.called()
}

func (f *fake) SlotsWorkers(model, tenant *string) []service.SlotsWorker {
	f.model, f.tenant = model, tenant
	_ = f.called()
	return f.slotsWorkers
}

func (f *fake) SlotsAdd(req *service.SlotsReservation) error {
	f.slotsBooking = *req
	return f.called()
}

func (f *fake) SlotsPrefillComplete(scope catalog.Scope, id string) error {
	f.scope, f.id = scope, id
	return f.called()
}

func (f *fake) SlotsFree(scope catalog.Scope, id string) error {
	f.scope, f.id = scope, id
	return f.called()
}

func (f *fake) SlotsLoads(model, tenant *string) []service.SlotsLoad {
	f.model, f.tenant = model, tenant
	_ = f.called()
	return f.slotsLoads
}

func (f *fake) SlotsPotentialLoads(req *service.SlotsProjection) ([]selecting.RankLoad, error) {
	f.slotsProject = *req
	return f.loads, f.called()
}

func (f *fake) SlotsRegisterPeer(endpoint string) (bool, error) {
	f.notSelf = true
	return f.RegisterPeer(endpoint)
}
