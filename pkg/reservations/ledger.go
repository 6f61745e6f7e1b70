package reservations

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// Errors that callers branch on. See also ExistsError.
var (
	// ErrNotFound: no live reservation has that id.
	ErrNotFound = errors.New("reservation not found")
	// ErrNoLease: the reservation to be renewed has no lease; it lives by its age.
	ErrNoLease = errors.New("reservation has no lease")
	// ErrUnknownRank: a placement names a slot that the ledger does not know, or
	// that now belongs to another rank.
	ErrUnknownRank = errors.New("rank is not in the ledger")
	// ErrFraction: a decay fraction is not a number in [0, 1].
	ErrFraction = errors.New("decay_fraction must be between 0.0 and 1.0")
)

// ExistsError refuses to book because a live reservation has the id already.
type ExistsError struct {
	ID string
	// Rank holds the live reservation.
	Rank catalog.Rank
}

// Error gives the text of dynamo-kv-router 1.3.1.
func (e *ExistsError) Error() string {
	return fmt.Sprintf("Request %s already exists (assigned to worker %s)", e.ID, e.Rank)
}

// Request is what a caller books, apart from the rank.
type Request struct {
	// ID must differ from every live one of the same scope and, unless PerScope,
	// from those of the other scopes that are not PerScope.
	ID string
	// PerScope: the id is unique within its scope only.
	PerScope bool
	// Pair: the reservation is a side of a pair, see BookPair. Its id is that of a side, and the pair's is
	// nobody else's.
	Pair bool
	// Hashes are the sequence hashes of the complete prompt blocks. The ledger copies
	// what is new in them; its observer keeps the slice: it must not be changed after
	// the call.
	Hashes []uint64
	// Prompt is the length of the whole prompt in tokens, for Queue.Context. 0 means
	// unknown: then the tokens to compute are taken instead.
	Prompt uint64
	// TrackPrefill: the placement's prefill tokens count as load.
	TrackPrefill bool
	// ExpectedOutput, in tokens, is passed on to the observer.
	ExpectedOutput *uint32
	// Lease, if positive, is the time for which the reservation lives without a step
	// of its caller: Renew, PrefillComplete and OutputBlock restart it. It replaces
	// the ledger's lifetime.
	Lease time.Duration
	// CallerState, if not nil, is called when the reservation ends. The ledger's account has 448 bytes
	// for it.
	CallerState CallerState
}

// Placement is the answer of a choice.
type Placement struct {
	// Slot and Rank name the chosen rank. Both are given because slots are
	// reused: a choice made on an outdated snapshot must not book another rank.
	Slot uint32
	Rank catalog.Rank
	// PrefillTokens is the part of the prompt that the rank has to compute, in tokens.
	PrefillTokens uint64
	// Uncached is the same as the policy estimates it, for queues; 0 stands for
	// PrefillTokens.
	Uncached uint64
	// Predicted is the time from now to the end of the prefill that was predicted, in seconds,
	// for PrefillObserver.Completed; 0: none was.
	Predicted float64
	// Unobserved: how long the prefill takes says nothing of the rank, so that PrefillObserver.Completed is not called for it.
	Unobserved bool
	// Booked, if not nil, is called when the reservation has been made, under the scope's lock: no other choice
	// of the scope comes between. It must not block or call the ledger.
	Booked func()
}

// Load is the load of one rank.
type Load struct {
	Rank          catalog.Rank
	PrefillTokens uint64 // this and the other fields as in SlotLoad
	Blocks        uint64
	Requests      uint32
}

// SlotLoad is the load of the rank in a slot.
type SlotLoad struct {
	PrefillTokens uint64 // of tracked prefills that are not complete; saturates
	Blocks        uint64 // active blocks, weighted, rounded half away from zero
	Requests      uint32 // live reservations
}

// Stats counts reservations of all processes.
// Booked = Live + Freed + Expired + Dropped + Displaced.
type Stats struct {
	Live    uint64
	Booked  uint64
	Freed   uint64 // by a call, an event or a snapshot
	Expired uint64 // by age, or with their lease
	Dropped uint64 // with their rank
	// Displaced is the part of Remote that made room for reservations of a peer that
	// had reported fewer.
	Displaced uint64

	Remote uint64 // the part of Booked that other processes accepted

	// LeasesExpired is the part of Expired that this ledger had accepted with a lease
	// and that was not renewed in time.
	LeasesExpired uint64

	// Late counts the calls of Free for a reservation that this ledger had accepted
	// and that had expired; for one with Request.PerScope the calls of FreeIn.
	Late uint64
}

// Ledger holds the reservations of all scopes.
//
// Lock order: Ledger.mu, scope.mu, then idShard.mu or one of package history. A
// later one may be taken while an earlier one is held, never the reverse; no two of
// the same kind, and no two of the last group, at a time.
//
// A reservation of another process is entered in two steps under one hold of its scope's
// lock: the history says whether it may become live, then it is added. Whoever ends a
// reservation writes this to the history under the same lock, or before taking it. So no
// end is missed between the two steps.
type Ledger struct {
	process uint64
	now     func() time.Time
	start   time.Time // deadlines are durations since then
	obs     Observer
	// observed: obs is not the one that does nothing.
	observed bool
	ids      *ids
	// Reservations that are no longer live: numbered and unnumbered ones of other
	// processes, and own ones that expired. named has what processes other than the
	// one that accepted a numbered reservation have reported about it.
	numbered   *history.Numbered
	named      *history.Named
	unnumbered *history.Unnumbered
	expiredIDs *history.ExpiredIDs
	// relayed counts the live entries that are relayed; see entry.
	relayed atomic.Int64
	// lifetime of a reservation without lease; constant once in use.
	lifetime time.Duration

	observePrefills func(catalog.Scope) PrefillObserver // nil: there are no observers

	counts counters
	room   room

	lastSequence  atomic.Uint64 // highest sequence number of an own reservation
	registrations atomic.Uint64 // the last View.Registration given

	// soonest is a lower bound of all deadlines and of all times at which a pending
	// renewal can be announced.
	soonest earliest

	// mu guards the map and the numbering of the scopes.
	mu      sync.RWMutex
	scopes  map[catalog.Scope]*scope
	created uint64
}

// counters are those of Stats.
type counters struct {
	booked, freed, expired, dropped        atomic.Uint64
	remote, late, leasesExpired, displaced atomic.Uint64
}

// New returns an empty ledger that reads the time from now and reports to obs, which
// may be nil. process, not zero, distinguishes the reservations that this ledger
// accepts from those of all other replicas; a program must choose a new one at every
// start.
func New(process uint64, now func() time.Time, obs Observer) *Ledger {
	observed := obs != nil
	if !observed {
		obs = noObserver{}
	}
	return &Ledger{
		process:    process,
		now:        now,
		start:      now(),
		obs:        obs,
		observed:   observed,
		ids:        newIDs(),
		numbered:   history.NewNumbered(process),
		named:      history.NewNamed(),
		unnumbered: history.NewUnnumbered(lifetime),
		expiredIDs: history.NewExpiredIDs(),
		lifetime:   lifetime,
		scopes:     make(map[catalog.Scope]*scope),
	}
}

// SetLifetime sets how long a reservation without lease lives, instead of 300 s
// (DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS of dynamo-kv-router 1.6.1). It does
// nothing if d is not positive. It must be called before the ledger is used. Replicas
// should agree on it: the first one to end a reservation ends it for all.
func (l *Ledger) SetLifetime(d time.Duration) {
	if d <= 0 {
		return
	}
	l.lifetime = d
	l.numbered.SetLifetime(d)
	l.unnumbered.SetLifetime(d)
}

// SetLimits bounds the live reservations. It must be called before the ledger is used.
func (l *Ledger) SetLimits(m Limits) {
	l.room.limits = m
	l.numbered.SetMemory(m.Memory)
}

// PutRank adds r under its slot, without load. It does nothing if r is there already.
// Another rank in the slot, or r in another slot, is removed as by RemoveRank. Slots
// are dense: memory grows by a few bytes with the highest slot, and by more with the
// highest one that has had a reservation.
func (l *Ledger) PutRank(sc catalog.Scope, slot uint32, r catalog.Rank) {
	for {
		s := l.scopeOrNew(sc)
		if freed, ok := s.putRank(slot, r); ok {
			l.counts.dropped.Add(uint64(freed))
			return
		} // else s was dropped between the two steps
	}
}

// RemoveRank removes the rank under slot and returns how many reservations ended
// with it. Their ids can be used again. The observer is not told, and this ledger
// never takes the same reservations from other replicas again, unless the lease of one is
// renewed there. A scope is removed with its last rank.
func (l *Ledger) RemoveRank(sc catalog.Scope, slot uint32) (freed int) {
	s := l.scope(sc)
	if s == nil {
		return 0
	}
	freed, empty := s.removeRank(slot)
	l.counts.dropped.Add(uint64(freed))
	if empty {
		l.dropIfEmpty(s)
	}
	return freed
}

// Book runs choose on the current loads of the scope and books its answer, as
// one step: no other Book in the scope comes between. choose runs under the
// scope's lock (again if the id belonged to a reservation whose time is
// over). It must not block or call the ledger, and must not keep the View. Its
// error is returned unchanged. Book fails with *ExistsError if a live reservation
// has req.ID (see Request), with ErrUnknownRank if the answer names a rank that
// was removed, and with *LimitError.
func (l *Ledger) Book(sc catalog.Scope, req Request, choose func(*View) (Placement, error)) (Placement, error) {
	if err := l.room.checkSize(len(req.Hashes)); err != nil {
		return Placement{}, err
	}
	s := l.scope(sc)
	if s == nil {
		if _, err := choose(&View{}); err != nil {
			return Placement{}, err
		}
		return Placement{}, ErrUnknownRank
	}
	p, holder, err := s.book(req, choose)
	for holder != nil && holder.endIfOverdue() { // the sides of a pair are two holders
		p, holder, err = s.book(req, choose)
	}
	return p, err
}

// Look runs f on the current loads of the scope and on the active blocks of the
// prompt given by its sequence hashes. f runs under the scope's lock, together
// with other readers: it must not block or call the ledger, and must not keep
// the View. A scope without ranks gives an empty View.
func (l *Ledger) Look(sc catalog.Scope, hashes []uint64, f func(*View)) {
	s := l.scope(sc)
	if s == nil {
		f(&View{})
		return
	}
	if wanted, wants := s.look(hashes, f); wants {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.keepWanted(wanted)
	}
}

// Loads returns a row per rank of the scope, ordered by rank.
func (l *Ledger) Loads(sc catalog.Scope) []Load {
	if s := l.scope(sc); s != nil {
		return s.rows()
	}
	return nil
}

// Stats returns the counters. They are read one by one: while other calls are
// running, the equation of Stats may be off by their number.
func (l *Ledger) Stats() Stats {
	c := &l.counts
	st := Stats{
		Freed:         c.freed.Load(),
		Expired:       c.expired.Load(),
		Dropped:       c.dropped.Load(),
		Displaced:     c.displaced.Load(),
		Remote:        c.remote.Load(),
		LeasesExpired: c.leasesExpired.Load(),
		Late:          c.late.Load(),
	}
	st.Booked = c.booked.Load() // read last: never below the sum of the others
	st.Live = st.Booked - st.Freed - st.Expired - st.Dropped - st.Displaced
	return st
}

// assignSequence returns the number of an own reservation and records that it is used:
// the given one, or the next one of the ledger's own if that is 0.
func (l *Ledger) assignSequence(sequence uint64) uint64 {
	if sequence == 0 {
		return l.lastSequence.Add(1)
	}
	for {
		last := l.lastSequence.Load()
		if last >= sequence || l.lastSequence.CompareAndSwap(last, sequence) {
			return sequence
		}
	}
}

// scope returns the scope of that name, or nil.
func (l *Ledger) scope(sc catalog.Scope) *scope {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.scopes[sc]
}

func (l *Ledger) scopeOrNew(sc catalog.Scope) *scope {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.scopes[sc]
	if s == nil {
		l.created++
		s = newScope(l, sc, l.created)
		l.scopes[sc] = s
	}
	return s
}

// dropIfEmpty drops a scope unless a rank has come in the meantime.
func (l *Ledger) dropIfEmpty(s *scope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ranks.Len() == 0 && !s.dropped {
		s.dropped = true
		if s.pins == 0 {
			s.blocks.free()
		}
		delete(l.scopes, s.name)
	}
}

// at returns the time since Ledger.start, as in deadlines.
func (l *Ledger) at() time.Duration { return l.now().Sub(l.start) }

// never is later than every deadline.
const never = time.Duration(math.MaxInt64)

// Observer is told of the steps that callers take through the ledger's methods,
// whichever process accepted the reservation, and of the end of a lease that the
// ledger granted itself. It is not told of expiry by age, of the removal of a rank,
// and of what other processes report.
//
// The calls come under the scope's lock, after the change and before the caller
// of the ledger returns: events of one scope arrive in the order in which they
// happened. An observer must not block or call the ledger.
type Observer interface {
	// Booked returns the sequence number that names the reservation: at least 1, and
	// rising from call to call. An observer that does not count always returns 0; then
	// the ledger counts by itself.
	Booked(Event) (sequence uint64)
	// PrefillCompleted is called again if a caller repeats its report.
	PrefillCompleted(Event)
	// Freed: the reservation was freed by a caller, or its lease ran out.
	Freed(Event)
	// Renewed: a step of a caller renewed the lease. It is called at most once per
	// quarter of the lease (for short leases, at every renewal); Expire announces the
	// renewals that were postponed for that.
	Renewed(Event)
}

// Event is one step in the life of a reservation. The fields after Pair are
// set in Booked only.
type Event struct {
	Scope catalog.Scope
	ID    string
	Rank  catalog.Rank
	// Origin is the reservation's; in Booked its Sequence is zero.
	Origin   Origin
	PerScope bool
	Pair     bool // a side of a pair: see Ledger.BookPair

	Hashes         []uint64 // as in the Request; read only
	Prefix         Prefix   // of Hashes, the zero one if there is none
	PrefillTokens  uint64   // as in the Placement, whether tracked or not
	TrackPrefill   bool
	ExpectedOutput *uint32
	Lease          time.Duration // 0: none
}

type noObserver struct{}

func (noObserver) Booked(Event) uint64    { return 0 }
func (noObserver) PrefillCompleted(Event) {}
func (noObserver) Freed(Event)            {}
func (noObserver) Renewed(Event)          {}
