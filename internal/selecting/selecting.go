// Package selecting holds the use cases of the selection service: select,
// reserve, follow a reservation, and ask what a selection would see. It combines
// catalog, scopes, ledger and cost function with what requests of one caller have
// in common: idempotency, sessions, pending selections. It knows no protocol.
//
// The way of a request is read in selection.serve, the decision in
// selection.choose.
package selecting

import (
	"errors"
	"hash/maphash"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/affinity"
	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/overload"
	"github.com/select-service/select-service/internal/pending"
	"github.com/select-service/select-service/internal/scopes"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// Config is what the use cases need to know.
type Config struct {
	Weights selector.Weights
	// Approximate: reservations predict what is cached, so hashes that are booked must
	// be complete.
	Approximate bool
	// ByCapacity: reservations have leases of what they use of their ranks.
	ByCapacity bool
	// SessionTTL is how long a session stays bound to its rank after its last
	// reservation has ended; 0 binds none.
	SessionTTL time.Duration
	// Pending bounds the selections that can be booked by their id alone.
	Pending pending.Limits
	// Waiting bounds the memory of the requests that wait; nil does not.
	Waiting *budget.Account
	// Remembered bounds what is kept for callers that come back: pending selections,
	// answers and sessions a third of it each; nil does not.
	Remembered *budget.Account
	// PrefillBusy and DecodeBusy are the fractions of a worker's batch and of its
	// blocks above which answers call it busy, not negative; nil: they do not say.
	PrefillBusy, DecodeBusy *float64
	// DecisionBytes is about how much memory recent decisions may take, at most a twelfth of
	// Remembered; 0 keeps none.
	DecisionBytes int64
}

// API has the use cases of one process.
type API struct {
	config     Config
	catalog    *catalog.Catalog
	ledger     *reservations.Ledger
	scopes     *scopes.Registry
	selections *telemetry.Selections // counts by model

	thresholds
	idempotency idempotency
	sessions    sessions
	pending     pendingSelections
	decisions   decisions
}

// New returns the use cases over a catalog, the scopes of its workers and the
// ledger of their load. busy are the thresholds of every model, until they are
// changed.
func New(config Config, c *catalog.Catalog, r *scopes.Registry, l *reservations.Ledger, busy overload.Thresholds, log zerolog.Logger) *API {
	a := &API{
		config: config, catalog: c, ledger: l, scopes: r,
		selections:  telemetry.NewSelections(c),
		thresholds:  thresholds{busy: overload.NewTable(busy, c.HasModel), catalog: c, log: log},
		idempotency: idempotency{ledger: l, catalog: c},
		sessions:    sessions{catalog: c},
	}
	a.decisions.limit, a.decisions.seed = config.DecisionBytes, maphash.MakeSeed()
	a.decisions.errors = telemetry.NewHistogram(telemetry.ErrorRatioBounds)
	most := config.Remembered.Limit() / 3
	if most > 0 {
		a.decisions.limit = min(a.decisions.limit, most/4)
		config.Pending.Bytes = min(config.Pending.Bytes, int(most))
		a.idempotency.answers.most = most
	}
	a.pending.store = pending.New(config.Pending, time.Now)
	if config.SessionTTL > 0 {
		a.sessions.Table = affinity.New(config.SessionTTL, affinity.MaxSessions, time.Now)
		a.sessions.LimitBytes(most)
	}
	return a
}

// Selections returns the counts of the selections.
func (a *API) Selections() *telemetry.Selections { return a.selections }

// Sweep forgets what is too old, and looks for reservations of other replicas that
// retries wait for. It is to be called every second.
func (a *API) Sweep() {
	a.idempotency.wakeRetries()
	a.pending.store.Sweep()
	var sessions int64
	if a.sessions.Table != nil {
		a.sessions.Sweep()
		sessions = a.sessions.Bytes()
	}
	_, selections := a.pending.store.Stats()
	_, answers := a.idempotency.answers.count()
	a.config.Remembered.Set(int64(selections) + answers + sessions + a.decisions.size())
}

// Remembered counts what is kept for callers that come back.
type Remembered struct {
	Answers int // that a retry would get
	Pending int // selections that can be booked by their id alone
	// HasSessions: sessions are bound to ranks. SessionWaiters are the requests that
	// wait for the first one of their session.
	HasSessions              bool
	Sessions, SessionWaiters int
}

// Remembered returns what is kept at this moment.
func (a *API) Remembered() Remembered {
	var r Remembered
	r.Answers, _ = a.idempotency.answers.count()
	r.Pending, _ = a.pending.store.Stats()
	if r.HasSessions = a.sessions.Table != nil; r.HasSessions {
		r.Sessions, r.SessionWaiters = a.sessions.Len(), a.sessions.Waiting()
	}
	return r
}

// PrefillComplete takes a reservation's prefill load off its rank.
func (a *API) PrefillComplete(id string) error {
	if err := a.ledger.PrefillComplete(id); err != nil {
		return reservationError(id, err)
	}
	a.decisions.completed(id)
	a.scopes.LoadChanged()
	return nil
}

// PrefillInferred is PrefillComplete for a caller that was not told, see
// reservations.Ledger.PrefillInferred. It is no outcome of a decision.
func (a *API) PrefillInferred(id string) error {
	if err := a.ledger.PrefillInferred(id); err != nil {
		return reservationError(id, err)
	}
	a.scopes.LoadChanged()
	return nil
}

// OutputBlock adds one generated block to a reservation; decay, if given, is
// the weight of the blocks that only this reservation holds from now on.
func (a *API) OutputBlock(id string, decay *float64) error {
	err := a.ledger.OutputBlock(id, decay)
	if err == nil && a.config.ByCapacity {
		if live, ok := a.ledger.Find(id); ok {
			if r, local := live.CallerState.(*idempotencyRecord); local {
				r.lease.AddOutput()
			}
		}
	}
	return reservationError(id, err)
}

// Renew starts the lease of a reservation again. The error is of kind NotFound, or
// Conflict if the reservation has none.
func (a *API) Renew(id string) error { return reservationError(id, a.ledger.Renew(id)) }

// Free ends a reservation.
func (a *API) Free(id string) error {
	if err := a.ledger.Free(id); err != nil {
		return reservationError(id, err)
	}
	a.decisions.freed(id)
	a.scopes.LoadChanged()
	return nil
}

// CheckReservation returns the error of an unknown id unless the reservation is of a
// scope that matches.
func (a *API) CheckReservation(id string, own catalog.ScopeFilter) error {
	if live, ok := a.ledger.Find(id); ok && live.Scope.Matches(own.Model, own.Tenant) {
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
