package selection

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// LoadRequest is a request whose prompt is unknown, so that load alone decides.
type LoadRequest struct {
	Scope     catalog.Scope
	Eligible  Eligible
	Fallbacks int  // how many further ranks to return, of other workers
	Book      bool // book the chosen rank in the same step
	Lease     time.Duration
	// Only, if not nil, is the rank that has to take the request. It may be one of a draining worker.
	Only *catalog.Rank
	// Session is bound to the chosen rank, unless it is bound already; "": none. SessionTenant is as in SelectRequest.
	Session, SessionTenant string
	SessionMode            SessionMode
}

// PlaceByLoad chooses the rank with the fewest requests, of equal ones that with the fewest
// tokens (of unfinished prefills and active blocks), then any, whatever the scope's policy.
// Nobody waits or is refused for load, and nothing is counted as a selection. The booking is
// one request without blocks and tokens; a ledger without room books nothing. Of the result only
// ReservationID, Scope, Rank, Endpoint, Fallbacks, Registration and Lease are set. Without an
// eligible rank the error has selector.ErrNoEndpoints.
func (a *API) PlaceByLoad(req *LoadRequest) (sel Selection, err error) {
	req.Scope = a.catalog.Named(req.Scope)
	err = untilFresh(func() (err error) {
		sel, err = a.placeByLoad(req)
		return err
	})
	if errors.Is(err, scopes.ErrStale) {
		sel.Registration = 0
		return sel, nil // its worker is about to leave, which the request finds out by itself
	}
	return sel, err
}

func (a *API) placeByLoad(req *LoadRequest) (sel Selection, err error) {
	find := a.scopes.Schedulable
	if req.Only != nil {
		find = a.scopes.Bookable
	}
	snap, state, err := find(req.Scope)
	if err != nil {
		return Selection{}, err
	}
	ranks := snap.Ranks()
	if req.Only != nil {
		ranks = nil
		if e, ok := snap.Bookable(*req.Only); ok {
			ranks = []catalog.Entry{e}
		}
	}
	if may := req.Eligible.of(snap); may != nil {
		ranks = slices.DeleteFunc(slices.Clone(ranks), func(e catalog.Entry) bool { return !may(e) })
	}
	if len(ranks) == 0 {
		return Selection{}, &contract.Error{Kind: contract.Unavailable, Text: selector.ErrNoEndpoints.Error(), Err: selector.ErrNoEndpoints}
	}
	choose := func(v *reservations.View) catalog.Entry {
		e, ranks := a.leastLoadedAlive(req.Scope, ranks, snap.BlockSize, v)
		sel = Selection{Scope: req.Scope, Rank: e.Rank, Endpoint: e.Worker.Address(), Registration: v.Registration(e.Slot)}
		taken := []catalog.Rank{e.Rank}
		for range req.Fallbacks {
			next := a.leastLoaded(ranks, snap.BlockSize, v, taken)
			if next < 0 {
				break
			}
			taken = append(taken, ranks[next].Rank)
		}
		sel.Fallbacks = taken[1:]
		return e
	}
	defer func() {
		if err == nil {
			a.bindSession(snap, req, sel.Rank)
		}
	}()
	if !req.Book {
		a.ledger.Look(req.Scope, nil, func(v *reservations.View) { choose(v) })
		sel.Registration = 0
		return sel, nil
	}
	r := reservations.Request{ID: uuid.NewString(), Lease: req.Lease}
	_, err = a.ledger.Book(req.Scope, r, func(v *reservations.View) (reservations.Placement, error) {
		e := choose(v)
		if state.Gone() { // see attempt.choose
			return reservations.Placement{}, scopes.ErrStale
		}
		return reservations.Placement{Slot: e.Slot, Rank: e.Rank}, nil
	})
	_, full := errors.AsType[*reservations.LimitError](err)
	switch {
	case err == nil:
		sel.ReservationID, sel.Lease = &r.ID, req.Lease
	case full:
		sel.Registration = 0
	case errors.Is(err, reservations.ErrUnknownRank):
		return sel, errors.Join(err, scopes.ErrStale)
	default:
		return sel, err
	}
	return sel, nil
}

// leastLoadedAlive returns the least loaded of the ranks whose engines give signs of life, or one that
// is due for a trial, which it takes; of all, if there are none. alive has these ranks, e among them
// unless it is on trial.
func (a *API) leastLoadedAlive(sc catalog.Scope, ranks []catalog.Entry, blockSize uint32, v *reservations.View) (e catalog.Entry, alive []catalog.Entry) {
	for {
		excluded := a.reports.Excluded(sc)
		left := ranks
		if excluded != nil {
			if left = appendResponsive(nil, ranks, excluded); len(left) == 0 {
				a.reports.NoteAllExcluded()
				left, excluded = ranks, nil
			}
		}
		e = left[a.leastLoaded(left, blockSize, v, nil)]
		if x := excluded[e.Rank]; x != nil && !x.Try(time.Now()) {
			continue // another request has taken the trial
		}
		if excluded != nil {
			left = slices.DeleteFunc(left, func(e catalog.Entry) bool { return excluded[e.Rank] != nil })
		}
		return e, left
	}
}

// leastLoaded returns the index of the least loaded rank in the order of PlaceByLoad, of another
// worker than the taken ranks, or -1. Ranks that the ledger does not know are about to leave, and
// come last.
func (a *API) leastLoaded(ranks []catalog.Entry, blockSize uint32, v *reservations.View, taken []catalog.Rank) int {
	best, ties := -1, 0
	var least reservations.SlotLoad
	tokens := func(l *reservations.SlotLoad) uint64 { return l.PrefillTokens + l.Blocks*uint64(blockSize) }
	for i, e := range ranks {
		if slices.ContainsFunc(taken, func(r catalog.Rank) bool { return r.Worker == e.Worker.ID }) {
			continue
		}
		l := reservations.SlotLoad{Requests: math.MaxUint32}
		if v.Known(e.Slot, e.Rank) {
			l = v.Total(e.Slot)
		}
		order := cmp.Or(cmp.Compare(l.Requests, least.Requests), cmp.Compare(tokens(&l), tokens(&least)))
		switch {
		case best < 0 || order < 0:
			best, least, ties = i, l, 1
		case order == 0:
			if ties++; a.random.IntN(ties) == 0 {
				best = i
			}
		}
	}
	return best
}

// pickLeastLoaded chooses as PlaceByLoad does. It fills in the candidates of the ranks, and their
// costs in requests, those of ranks with as many in the order of their tokens.
func (c *choice) pickLeastLoaded(ranks []catalog.Entry, v *reservations.View) int {
	c.candidates, c.costs = c.candidates[:0], c.costs[:0]
	for _, e := range ranks {
		c.candidates = append(c.candidates, candidate(e, &c.prompt.overlap, v))
		of := &c.candidates[len(c.candidates)-1]
		tokens := float64(of.Prefill + of.Active*uint64(c.scope.snapshot.BlockSize))
		c.costs = append(c.costs, float64(of.Requests)+tokens/(tokens+1e6)) // the last is below 1
	}
	return c.api.leastLoaded(ranks, c.scope.snapshot.BlockSize, v, nil)
}
