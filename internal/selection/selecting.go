package selection

import (
	"cmp"
	"errors"
	"hash/maphash"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/selection/affinity"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/pauses"
	"github.com/select-service/select-service/internal/selection/pending"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/selection/settings"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// Config has the settings of the use cases.
type Config struct {
	Weights selector.Weights
	// Approximate: cached blocks are predicted from reservations, so requests must give both
	// kinds of hashes of what they book.
	Approximate bool
	// ByCapacity: predictions follow the capacity of ranks, so reservations have leases of the
	// blocks that they use.
	ByCapacity bool
	// SessionTTL is how long a session stays bound to its rank after its last reservation has
	// ended; 0: sessions are off.
	SessionTTL time.Duration
	// SessionGroups: hard sessions that one session has started are bound together.
	SessionGroups bool
	// HomeTTL is how long the rank of a soft session or of a group is known after its last request; 0: it
	// is not known.
	HomeTTL time.Duration
	// FrontSessions and FrontGroups are SessionMode and Groups of the requests that come through the gateway and the proxy.
	FrontSessions SessionMode
	FrontGroups   bool
	// Owners: the engines of ids are remembered, see API.Own.
	Owners bool
	// Pending bounds the selections that can be booked by their id alone.
	Pending pending.Limits
	// Waiting is the account of waiting requests; nil: no bound.
	Waiting *memory.Account
	// Remembered is the account of state that is kept for later requests: pending selections,
	// answers and sessions, at most a third of it each, and accounts of fairness (scopes.Settings); nil: no bound.
	Remembered *memory.Account
	// PrefillBusy and DecodeBusy are the fractions of a worker's batch and of its blocks above
	// which answers report it busy. They are not negative; nil: answers do not report it.
	PrefillBusy, DecodeBusy *float64
	// WarmupShare is the share of the requests of which no rank has more than a quarter cached that
	// new or emptied ranks get, 0 to 1; Warmup is how long a rank is new, 0: DefaultWarmup.
	WarmupShare float64
	Warmup      time.Duration
	// IgnoreTargets: what requests want of their times has no effect, but is counted.
	IgnoreTargets bool
	// Fetch says when engines are told to fetch KV caches.
	Fetch selector.FetchMode
	// DecisionBytes is the approximate memory for recent decisions, at most a twelfth of
	// Remembered; 0: none are kept.
	DecisionBytes int64
	// Overload has the busy thresholds of every model, until they are changed.
	Overload overload.Thresholds
	// Settings keeps the busy thresholds, which are changed there.
	Settings settings.Store
	// Random decides between ranks of equal cost and load, where a temperature wants it, and of WarmupShare. It must be safe
	// for concurrent use; nil: selector.Global.
	Random selector.Source
}

// DefaultWarmup is how long a rank is new: with a share of 0.25 it then has the prefixes that are in use.
const DefaultWarmup = time.Minute

// API has the use cases of one process.
type API struct {
	config     Config
	catalog    *catalog.Catalog
	ledger     *reservations.Ledger
	scopes     *scopes.Registry
	reports    *reports.Reports
	selections *counts.Selections // counts by model
	random     selector.Source

	thresholds
	idempotency idempotency
	sessions    sessions
	owners      *affinity.Table // nil: they are not remembered
	pending     pendingSelections
	decisions   decisions
	transfers   transfers // of pairs
	fetches     fetches
	warmup      warmup
	replica     *replicasync.Replica // that shares what accounts are served; nil: they are not shared
}

// New returns the use cases.
func New(config Config, c *catalog.Catalog, r *scopes.Registry, l *reservations.Ledger, reported *reports.Reports, log zerolog.Logger) *API {
	a := &API{
		config: config, catalog: c, ledger: l, scopes: r, reports: reported,
		selections:  counts.NewSelections(c),
		thresholds:  thresholds{busy: overload.NewTable(config.Overload, c.HasModel), settings: config.Settings, catalog: c, log: log},
		idempotency: idempotency{ledger: l, catalog: c},
		sessions:    sessions{catalog: c},
	}
	a.random = config.Random
	if a.random == nil {
		a.random = selector.Global()
	}
	a.warmup.share, a.warmup.newFor = config.WarmupShare, cmp.Or(config.Warmup, DefaultWarmup)
	a.decisions.limit, a.decisions.seed = config.DecisionBytes, maphash.MakeSeed()
	a.decisions.errors = metrics.NewHistogram(metrics.ErrorRatioBounds)
	third := config.Remembered.Limit() / 3
	if third > 0 {
		a.decisions.limit = min(a.decisions.limit, third/4)
		config.Pending.Bytes = min(config.Pending.Bytes, int(third))
		a.idempotency.answers.maxBytes = third
	}
	a.pending.store = pending.New(config.Pending, time.Now)
	if config.SessionTTL > 0 || config.HomeTTL > 0 {
		a.sessions.Table = affinity.New(config.SessionTTL, affinity.MaxSessions, time.Now)
		a.sessions.KeepHomes(config.HomeTTL)
		a.sessions.pauses = pauses.New(time.Now(), max(config.SessionTTL, config.HomeTTL))
		a.sessions.Learn(a.sessions.pauses)
		a.sessions.LimitBytes(third)
	}
	if config.Owners {
		a.owners = newOwners(third / 2)
	}
	return a
}

// Selections returns the counts of the selections.
func (a *API) Selections() *counts.Selections { return a.selections }

// ShareSessions shares the sessions and the owners of ids, as far as they are kept, with the replicas that
// replica follows; process is its id. It must be called before any other use.
func (a *API) ShareSessions(process uint64, replica *replicasync.Replica) {
	shared := &sharedSessions{sessions: &a.sessions, owners: a.owners, replica: replica}
	if a.sessions.Table != nil {
		a.sessions.Share(process, shared)
	}
	if a.owners != nil {
		a.owners.Share(process, shared)
	}
	replica.AttachSessions(shared)
}

// Sessions returns the sessions, groups and owners of ids as replicas have them.
func (a *API) Sessions() replicasync.Sessions {
	return &sharedSessions{sessions: &a.sessions, owners: a.owners}
}

// Pauses returns what is known of the pauses of the sessions; nil: they are off.
func (a *API) Pauses() *pauses.Learner { return a.sessions.pauses }

// IgnoresTargets reports whether what requests want of their times has no effect.
func (a *API) IgnoresTargets() bool { return a.config.IgnoreTargets }

// Sweep drops expired state, and wakes retries whose id another replica has booked. It must be
// called every second.
func (a *API) Sweep() {
	a.idempotency.wakeRetries()
	a.pending.store.Sweep()
	a.scopes.SampleTraffic()
	a.shareServed()
	a.warmup.look(a.catalog, a.scopes, a.ledger, time.Now())
	a.fetches.endLost(a.ledger, a.reports)
	var sessions int64
	if a.sessions.Table != nil {
		a.sessions.Sweep()
		a.sessions.pauses.Forget(func(sc catalog.Scope) bool { return a.scopes.Of(sc) == nil })
		sessions = a.sessions.Bytes()
	}
	if a.owners != nil {
		a.owners.Sweep()
		sessions += a.owners.Bytes()
	}
	_, selections := a.pending.store.Stats()
	_, answers := a.idempotency.answers.count()
	a.config.Remembered.Set(int64(selections) + answers + sessions + a.decisions.size() + a.scopes.FairBytes())
}

// Remembered has the counts of state that is kept for later requests.
type Remembered struct {
	Answers int // answers that a retry would get
	Pending int // selections that can be booked by their id alone
	// HasSessions: sessions are on. SessionWaiters is the number of requests that wait for the
	// first one of their session.
	HasSessions                      bool
	Sessions, Groups, SessionWaiters int
}

// Remembered returns the current counts.
func (a *API) Remembered() Remembered {
	var r Remembered
	r.Answers, _ = a.idempotency.answers.count()
	r.Pending, _ = a.pending.store.Stats()
	if r.HasSessions = a.sessions.Table != nil; r.HasSessions {
		r.Sessions, r.Groups, r.SessionWaiters = a.sessions.Len(), a.sessions.Groups(), a.sessions.Waiting()
	}
	return r
}

// SessionsFull returns how many sessions and groups have made room for others where no more are kept, and how many found no room.
func (a *API) SessionsFull() (displaced, refused uint64) {
	if a.sessions.Table == nil {
		return 0, 0
	}
	return a.sessions.Full()
}

// Decisions returns at most limit kept decisions of the scopes that match own, newest first.
func (a *API) Decisions(own catalog.ScopeFilter, limit int) []Decision {
	found := a.decisions.list(own, limit)
	for i := range found {
		x := &found[i]
		if id := x.ReservationID; id != "" && x.Outcome.Freed == 0 {
			_, live := a.ledger.Find(id)
			x.Outcome.Gone = !live
		}
	}
	return found
}

// TTFTErrors returns the histogram of observed over predicted time to first token, of the kept
// decisions.
func (a *API) TTFTErrors() *metrics.Histogram { return a.decisions.errors }

// PrefillComplete takes a reservation's prefill load off its rank. Of a pair it ends the side that
// prefills.
func (a *API) PrefillComplete(id string) error {
	return a.endPrefill(id, a.prefillComplete)
}

// endPrefill ends the prefill of a reservation by a call, of a pair the side that prefills with it.
func (a *API) endPrefill(id string, end func(id string) error) error {
	return a.ofPair(id, end(id), func(side string, decodes bool) error {
		err := end(side)
		if err == nil && !decodes {
			err = a.free(side)
		}
		return err
	})
}

func (a *API) prefillComplete(id string) error {
	err := a.ledger.PrefillComplete(id)
	if err == nil {
		if reservations.IsSideID(id) {
			a.noteSide(id, time.Now())
		}
		a.decisions.completed(id)
		a.scopes.LoadChanged()
	}
	return err
}

// PrefillInferred is PrefillComplete for a caller that inferred the end of the prefill
// instead of observing it, see reservations.Ledger.PrefillInferred. It does not count as the
// outcome of a decision.
func (a *API) PrefillInferred(id string) error {
	return a.endPrefill(id, a.prefillInferred)
}

func (a *API) prefillInferred(id string) error {
	err := a.ledger.PrefillInferred(id)
	if err == nil {
		a.scopes.LoadChanged()
	}
	return err
}

// Answering notes that bytes of an answer of a rank have come, which is a sign of its life.
func (a *API) Answering(sc catalog.Scope, of catalog.Rank) { a.reports.Sign(sc, of) }

// Await notes that the first byte of a streamed answer of a rank is awaited, see reports.Reports.Await.
func (a *API) Await(sc catalog.Scope, of catalog.Rank) { a.reports.Await(sc, of) }

// Awaited ends Await; came says that the byte has come.
func (a *API) Awaited(sc catalog.Scope, of catalog.Rank, came bool) { a.reports.Awaited(sc, of, came) }

// Unreachable notes that the engine of a rank takes no connections, and Reachable that it does again, see reports.Reports.Unreachable.
func (a *API) Unreachable(sc catalog.Scope, of catalog.Rank) { a.reports.Unreachable(sc, of) }

// Reachable ends Unreachable.
func (a *API) Reachable(sc catalog.Scope, of catalog.Rank) { a.reports.Reachable(sc, of) }

// NoteDemand counts a request that came to a gateway for a scope without a worker or, with partly, without
// one that has what the request needs, for those who scale the scope. The scope's name must be known.
func (a *API) NoteDemand(sc catalog.Scope, partly bool) { a.scopes.NoteDemand(sc, partly) }

// Had reports whether a scope has or had workers, among the last ones that have lost theirs.
func (a *API) Had(sc catalog.Scope) bool { return a.scopes.Had(sc) }

// OutputBlock adds one generated block to a reservation, of a pair to the side that decodes; decay,
// if given, is the weight of the blocks that only this reservation holds from now on.
func (a *API) OutputBlock(id string, decay *float64) error {
	return a.ofPair(id, a.outputBlock(id, decay), func(side string, decodes bool) error {
		if !decodes {
			return reservations.ErrNotFound
		}
		return a.outputBlock(side, decay)
	})
}

func (a *API) outputBlock(id string, decay *float64) error {
	err := a.ledger.OutputBlock(id, decay)
	if err == nil && a.config.ByCapacity {
		if live, ok := a.ledger.Find(id); ok {
			if r, local := live.CallerState.(*idempotencyRecord); local {
				r.lease.AddOutput()
			}
		}
	}
	return err
}

// Renew restarts the lease of a reservation, or of both of a pair. The error is of kind NotFound, or
// Conflict if the reservation has no lease.
func (a *API) Renew(id string) error {
	return a.ofPair(id, a.ledger.Renew(id), func(side string, _ bool) error { return a.ledger.Renew(side) })
}

// Free ends a reservation, or both of a pair.
func (a *API) Free(id string) error {
	return a.ofPair(id, a.free(id), func(side string, _ bool) error { return a.free(side) })
}

// Answer is what the caller of FreeAfter knows of an answer.
type Answer = reservations.Answer

// FreeAfter is Free, of one reservation, for a caller that knows something of the answer.
func (a *API) FreeAfter(id string, of Answer) error {
	return reservationError(id, a.freeAfter(id, of))
}

func (a *API) free(id string) error { return a.freeAfter(id, reservations.Answer{}) }

func (a *API) freeAfter(id string, of reservations.Answer) error {
	err := a.ledger.FreeAfter(id, of)
	if err == nil {
		a.decisions.freed(id)
		a.scopes.LoadChanged()
	}
	return err
}

// ofPair returns the caller's error of a call by id, which had the result err. If no reservation has
// the id, but a pair, it runs the call on the sides of the pair that live. The call succeeds if it
// does on one of them.
func (a *API) ofPair(id string, err error, call func(side string, decodes bool) error) error {
	if !errors.Is(err, reservations.ErrNotFound) {
		return reservationError(id, err)
	}
	sides := a.ledger.Sides(id)
	done := false
	for _, side := range [...]string{sides.Decode, sides.Prefill} {
		if side == "" {
			continue
		}
		switch e := call(side, side == sides.Decode); {
		case e == nil:
			done = true
		case !errors.Is(e, reservations.ErrNotFound): // else it has just ended
			err = e
		}
	}
	if done {
		return nil
	}
	return reservationError(id, err)
}

// CheckReservation returns the error of an unknown id, unless there is a reservation with the
// id whose scope matches own.
func (a *API) CheckReservation(id string, own catalog.ScopeFilter) error {
	if live, ok := a.idempotency.find(id); ok && live.Scope.Matches(own.Model, own.Tenant) {
		return nil
	}
	return reservationError(id, reservations.ErrNotFound)
}

func reservationError(id string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, reservations.ErrNotFound):
		return &contract.Error{Kind: contract.NotFound, Text: "reservation " + id + " not found", Err: err}
	case errors.Is(err, reservations.ErrNoLease):
		return &contract.Error{Kind: contract.Conflict, Text: "reservation " + id + " has no lease", Err: err}
	case errors.Is(err, reservations.ErrFraction):
		return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	return err
}
