package doctor

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/replicastatus"
	"github.com/select-service/select-service/pkg/catalog"
)

// MaxFindings bounds the findings of an examination.
const MaxFindings = 256

// Severity says how bad a finding is.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // requests go where they should not, or fail
	Warning Severity = "warning" // something is not as it should be
	Note    Severity = "note"    // nothing is wrong, but it could be had for less
)

// severities are in the order in which findings are shown.
var severities = []Severity{Error, Warning, Note}

// Finding is something that is wrong.
type Finding struct {
	Check    Check
	Severity Severity
	Sentence string
	Remedy   string
	// The finding is about these; nil, empty or 0 if one does not apply.
	Scope  *catalog.Scope
	Rank   *catalog.Rank
	Worker *uint64 // if it is not about one rank
	Peer   string  // endpoint of a replica, or instance of a publisher
	Count  uint64  // of events, messages and the like
}

// Result is what became of a check.
type Result string

// The results.
const (
	OK            Result = "ok"
	Found         Result = "finding"
	NotApplicable Result = "not_applicable" // there is nothing to look at
)

// Examination is what a Doctor has found.
type Examination struct {
	Time      time.Time
	Findings  []Finding // the errors first
	Results   [NumChecks]Result
	Truncated bool // there are more than MaxFindings
}

// Healthy reports whether nothing is wrong.
func (e *Examination) Healthy() bool {
	return !slices.ContainsFunc(e.Findings, func(f Finding) bool { return f.Severity != Note })
}

// Peers reads the other replicas.
type Peers interface {
	Peers(ctx context.Context, of catalog.ScopeFilter) []replicastatus.Peer
}

// Gateway has the counts of the gateway since the start.
type Gateway interface {
	// TokenizerFailures counts prompts whose tokens are unknown.
	TokenizerFailures() uint64
	// Cached sums up the tokens of prompts that engines said to have cached, those that had been
	// predicted, and how far they were apart, each one's absolute value; answers is the number of
	// prompts.
	Cached() (answers uint64, observed, predicted, apart float64)
	// Answers counts the requests that Envoy asked about and that were booked, and the pieces of
	// their answers that it sent through the picker and back.
	Answers() (booked, pieces uint64)
}

// Doctor examines a service.
type Doctor struct {
	parts   node.Parts
	peers   Peers
	gateway Gateway // nil: there is none
	now     func() time.Time

	mu    sync.Mutex // guards marks
	marks []*mark    // by time: the last one that is a Window old, and those after it; not changed
}

// New returns a doctor, which has to be run; gateway is nil if there is none.
func New(parts node.Parts, peers Peers, gateway Gateway, now func() time.Time) *Doctor {
	return &Doctor{parts: parts, peers: peers, gateway: gateway, now: now}
}

// Examine makes all checks. A filter limits them to some scopes; what is about the process as a
// whole is then left out, unless whole, and with it where the other replicas are.
func (d *Doctor) Examine(ctx context.Context, of catalog.ScopeFilter, whole bool) *Examination {
	now := d.now()
	x := &examination{Examination: Examination{Time: now}, doctor: d, of: of, before: d.before(now), found: make(map[Severity]int)}
	for c := range x.Results {
		x.Results[c] = NotApplicable
	}
	x.workers()
	if d.parts.Streams != nil {
		x.streams()
	}
	x.engines()
	x.publishers()
	x.policies()
	x.calibration()
	if whole {
		x.gateway()
		x.memory()
	}
	if d.parts.Replica != nil {
		x.replicas(ctx, whole)
	}
	slices.SortStableFunc(x.Findings, func(a, b Finding) int {
		return slices.Index(severities, a.Severity) - slices.Index(severities, b.Severity)
	})
	if len(x.Findings) > MaxFindings {
		x.Findings, x.Truncated = x.Findings[:MaxFindings], true
	}
	return &x.Examination
}

// examination is an Examination under way.
type examination struct {
	Examination
	doctor *Doctor
	of     catalog.ScopeFilter
	before *mark            // the counts at the beginning of the Window
	found  map[Severity]int // findings, those included that are not kept
}

// looked notes that checks have something to look at.
func (ex *examination) looked(checks ...Check) {
	for _, c := range checks {
		if ex.Results[c] == NotApplicable {
			ex.Results[c] = OK
		}
	}
}

// find adds a finding.
func (ex *examination) find(f Finding) {
	ex.Results[f.Check] = Found
	if ex.found[f.Severity]++; ex.found[f.Severity] <= MaxFindings+1 { // one more says that there are more
		ex.Findings = append(ex.Findings, f)
	}
}
