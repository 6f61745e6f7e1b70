package httpapi

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/identity"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/gateway/tokenizer"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/replicasync"
)

// fake is a Service that answers with what a test gave it and remembers what it
// was asked. err, if set, is every call's result.
type fake struct {
	ignored        identity.Faults
	ignoresTargets bool
	err            error

	record     catalog.Record
	patch      catalog.Patch
	records    []catalog.Record
	filter     catalog.ScopeFilter
	difference catalog.Difference
	compared   bool           // by a dry run
	within     *time.Duration // of a drain
	workerID   uint64
	reports    []node.RankReport
	worker     *catalog.Worker
	workers    []*catalog.Worker
	excluded   []selection.ExcludedRank

	eventsBlockSize uint32
	ready           bool
	model           *string
	tenant          *string
	selected        selection.SelectRequest
	reserve         bool
	pair            selection.Pair
	paired          selection.PairRequest
	selection       selection.Selection
	explanation     selection.Explanation
	decisions       []selection.Decision
	sessions        selection.SessionList
	fair            selection.FairnessList
	sessionQuery    selection.SessionQuery
	booked          selection.ReserveRequest
	pending         selection.PendingRequest
	repeated        bool
	projected       selection.ProjectRequest
	scores          selection.OverlapScores
	loads           []selection.RankLoad
	scopes          []selection.ScopeLoads
	policies        []selection.ScopePolicy
	section         string // of policies
	id              string
	decay           *float64
	peer            string
	newPeer         bool
	peers           []string
	dump            string
	form            contract.Version // of a dump

	recovery   *node.RecoveryStatus
	recovering bool
	page       replicasync.PageRequest

	slotsWorker  node.SlotsWorker
	slotsWorkers []node.SlotsWorker
	slotsBooking node.SlotsReservation
	slotsLoads   []node.SlotsLoad
	slotsProject node.SlotsProjection
	scope        catalog.Scope
	notSelf      bool // the peer came through SlotsRegisterPeer

	busyModel string
	busySet   overload.Thresholds
	which     *string
	limits    []selection.ModelThresholds

	conductorFake

	of     *catalog.Scope // of a prompt to tokenize
	text   string         // its request
	placed tokenizer.Placed

	call func() // run inside of every call
}

func (f *fake) called() error {
	if f.call != nil {
		f.call()
	}
	return f.err
}

func (f *fake) Tokenize(_ context.Context, _ *access.Caller, of *catalog.Scope, text []byte, use func(*tokenizer.Placed)) error {
	f.of, f.text = of, string(text)
	if err := f.called(); err != nil {
		return err
	}
	use(&f.placed)
	return nil
}

func (f *fake) PutWorkerIn(_ catalog.ScopeFilter, r catalog.Record) (*catalog.Worker, error) {
	f.record = r
	return f.worker, f.called()
}

func (f *fake) DescribeWorkerIn(_ context.Context, own catalog.ScopeFilter, r catalog.Record) (*catalog.Worker, error) {
	return f.PutWorkerIn(own, r)
}

func (f *fake) PatchWorkerIn(_ catalog.ScopeFilter, id uint64, p catalog.Patch) (*catalog.Worker, error) {
	f.workerID, f.patch = id, p
	return f.worker, f.called()
}

func (f *fake) DeleteWorkerIn(_ catalog.ScopeFilter, id uint64) (*catalog.Worker, error) {
	f.workerID = id
	return f.worker, f.called()
}

func (f *fake) DrainWorkerIn(_ catalog.ScopeFilter, id uint64, within *time.Duration) (*catalog.Worker, error) {
	f.workerID, f.within = id, within
	return f.worker, f.called()
}

func (f *fake) UndrainWorkerIn(_ catalog.ScopeFilter, id uint64) (*catalog.Worker, error) {
	f.workerID = id
	return f.worker, f.called()
}

func (f *fake) CheckReservation(string, catalog.ScopeFilter) error { return f.err }

func (f *fake) TakesSet() error { return nil }

func (f *fake) CompareWorkers(records []catalog.Record, scope catalog.ScopeFilter) (catalog.Difference, error) {
	f.compared = true
	return f.ReconcileWorkers(records, scope)
}

func (f *fake) ReconcileWorkers(records []catalog.Record, scope catalog.ScopeFilter) (catalog.Difference, error) {
	f.records, f.filter = records, scope
	return f.difference, f.called()
}

func (f *fake) Workers(model, tenant *string) []*catalog.Worker {
	f.model, f.tenant = model, tenant
	_ = f.called()
	return f.workers
}

func (f *fake) EventsBlockSize(*catalog.Worker) uint32 { return f.eventsBlockSize }

func (f *fake) Excluded(*catalog.Worker) []selection.ExcludedRank { return f.excluded }

func (f *fake) Ready() (bool, int, []*catalog.Worker) {
	_ = f.called()
	n := 0
	if f.ready {
		n = 1
	}
	return f.ready, n, f.workers
}

func (f *fake) IgnoresTargets() bool { return f.ignoresTargets }

func (f *fake) CountIgnored(faults identity.Faults) { f.ignored = faults }

func (f *fake) Select(_ context.Context, req *selection.SelectRequest, reserve bool) (selection.Selection, error) {
	f.selected, f.reserve = *req, reserve
	f.selected.Text = nil // lent, like the rest of what it is
	return f.selection, f.called()
}

func (f *fake) SelectPair(_ context.Context, req *selection.PairRequest) (selection.Pair, error) {
	f.paired = *req
	f.paired.Text = nil
	if c := req.Conditional; c != nil { // lent, too
		f.paired.Conditional = new(*c)
	}
	return f.pair, f.called()
}

func (f *fake) Reserve(req *selection.ReserveRequest) (selection.Reservation, error) {
	f.booked = *req
	return selection.Reservation{
		ID: req.ID, Scope: req.Scope, Rank: req.Rank, Endpoint: "http://w:1", Lease: req.Lease, Repeated: f.repeated,
	}, f.called()
}

func (f *fake) ReservePending(_ context.Context, req *selection.PendingRequest) (selection.Reservation, error) {
	f.pending = *req
	f.pending.Text = nil // lent
	return selection.Reservation{
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

func (f *fake) Loads(model, tenant *string) []selection.ScopeLoads {
	f.model, f.tenant = model, tenant
	return f.scopes
}

func (f *fake) Policies(of catalog.ScopeFilter) []selection.ScopePolicy {
	f.model, f.tenant = of.Model, of.Tenant
	return f.policies
}

func (f *fake) SetPolicies(section []byte) (selection.PolicyChange, error) {
	f.section = string(section)
	return selection.PolicyChange{Section: "d1ge57", Changed: []string{"aggregated", "instances.p"}}, f.called()
}

func (f *fake) PotentialLoads(req *selection.ProjectRequest) ([]selection.RankLoad, error) {
	f.projected = *req
	return f.loads, f.called()
}

func (f *fake) Explain(_ context.Context, req *selection.SelectRequest) (*selection.Explanation, error) {
	f.selected = *req
	return &f.explanation, f.called()
}

func (f *fake) Decisions(own catalog.ScopeFilter, _ int) []selection.Decision {
	f.model, f.tenant = own.Model, own.Tenant
	_ = f.called()
	return f.decisions
}

func (f *fake) Fairness(q *selection.FairnessQuery) selection.FairnessList {
	f.model, f.tenant = q.Of.Model, q.Of.Tenant
	_ = f.called()
	return f.fair
}

func (f *fake) ListSessions(q *selection.SessionQuery) selection.SessionList {
	f.model, f.tenant, f.sessionQuery = q.Of.Model, q.Of.Tenant, *q
	_ = f.called()
	return f.sessions
}

func (f *fake) OverlapScores(req *selection.ProjectRequest) (selection.OverlapScores, error) {
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

func (f *fake) WriteSnapshot(ctx context.Context, w io.Writer, q replicasync.PageRequest) error {
	f.page = q
	return f.Dump(ctx, w, f.form)
}

func (f *fake) BusyThresholds() []selection.ModelThresholds {
	_ = f.called()
	return f.limits
}

func (f *fake) SetBusyThreshold(model string, set overload.Thresholds) (selection.ModelThresholds, error) {
	f.busyModel, f.busySet = model, set
	return selection.ModelThresholds{Model: model, Thresholds: set}, f.called()
}

func (f *fake) ClearBusyThreshold(model string, which *string) (selection.ModelThresholds, error) {
	f.busyModel, f.which = model, which
	return selection.ModelThresholds{Model: model}, f.called()
}

func (f *fake) Recovering() bool { return f.recovering }

func (f *fake) Recovery() (node.RecoveryStatus, bool) {
	if f.recovery == nil {
		return node.RecoveryStatus{}, false
	}
	return *f.recovery, true
}

func (f *fake) SlotsRegister(w node.SlotsWorker) error {
	f.slotsWorker = w
	return f.called()
}

func (f *fake) SlotsUnregister(scope catalog.Scope, worker uint64) error {
	f.scope, f.workerID = scope, worker
	return f.called()
}

func (f *fake) SlotsWorkers(model, tenant *string) []node.SlotsWorker {
	f.model, f.tenant = model, tenant
	_ = f.called()
	return f.slotsWorkers
}

func (f *fake) SlotsAdd(req *node.SlotsReservation) error {
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

func (f *fake) SlotsLoads(model, tenant *string) []node.SlotsLoad {
	f.model, f.tenant = model, tenant
	_ = f.called()
	return f.slotsLoads
}

func (f *fake) SlotsPotentialLoads(req *node.SlotsProjection) ([]selection.RankLoad, error) {
	f.slotsProject = *req
	return f.loads, f.called()
}

func (f *fake) SlotsRegisterPeer(endpoint string) (bool, error) {
	f.notSelf = true
	return f.RegisterPeer(endpoint)
}

func (f *fake) ReportLoadIn(_ catalog.ScopeFilter, worker uint64, of []node.RankReport) error {
	f.workerID, f.reports = worker, slices.Clone(of)
	return f.called()
}
