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
	// ErrNoLease: the reservation that was to be renewed lives by its age.
	ErrNoLease = errors.New("reservation has no lease")
	// ErrUnknownRank: a placement names a slot that the ledger does not know,
	// or that belongs to another rank meanwhile.
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

// Request is what a reservation books besides its place.
type Request struct {
	// ID must differ from every live one of the same scope and, unless PerScope,
	// from those of the other scopes that are not PerScope.
	ID string
	// PerScope says that the id means something in its scope only.
	PerScope bool
	// Hashes are the sequence hashes of the complete prompt blocks. The ledger
	// and its observer keep the slice: it must not be changed after the call.
	Hashes []uint64
	// Prompt is the length of the whole prompt in tokens, for Queue.Context; 0 is not known:
	// what is to be computed counts then.
	Prompt uint64
	// TrackPrefill says whether the placement's prefill tokens count as load.
	TrackPrefill bool
	// ExpectedOutput, in tokens, is passed on to the observer.
	ExpectedOutput *uint32
	// Lease, if positive, is for how long the reservation lives without a step of
	// its caller: Renew, PrefillComplete and OutputBlock restart it. It replaces the
	// ledger's lifetime.
	Lease time.Duration
	// CallerState, if not nil, is told of the end.
	CallerState CallerState
}

// Placement is the answer of a choice.
type Placement struct {
	// Slot and Rank name the chosen rank. Both are given because slots are
	// reused: a choice made on an outdated snapshot must not book another rank.
	Slot uint32
	Rank catalog.Rank
	// PrefillTokens is the part of the prompt that the rank has to compute.
	PrefillTokens uint64
	// Uncached is the same as the policy sees it, for queues; 0 is PrefillTokens.
	Uncached uint64
}

// Load is what one rank carries.
type Load struct {
	Rank          catalog.Rank
	PrefillTokens uint64 // as in SlotLoad
	Blocks        uint64
	Requests      uint32
}

// SlotLoad is what the rank of a slot carries.
type SlotLoad struct {
	PrefillTokens uint64 // of prefills that are not complete, saturating
	Blocks        uint64 // weighted, rounded half away from zero
	Requests      uint32
}

// Stats counts reservations, of whatever process.
// Booked = Live + Freed + Expired + Dropped + Displaced.
type Stats struct {
	Live    uint64
	Booked  uint64
	Freed   uint64 // by a call, an event or a snapshot
	Expired uint64 // by age, or with their lease
	Dropped uint64 // with their rank
	// Displaced, of Remote, made room for reservations of a peer that had told of fewer.
	Displaced uint64

	Remote     uint64 // of Booked: accepted by other processes
	Merged     uint64 // of Remote: learned by MergeReservation
	EndsMerged uint64 // of Freed: by MergeEnded

	// LeasesExpired, of Expired, are those that this ledger had accepted with a
	// lease and that were not renewed in time.
	LeasesExpired uint64

	// Late counts the calls of Free for a reservation that this ledger had accepted
	// and that had expired, and those of FreeIn for one whose id meant something in
	// that scope only (Request.PerScope).
	Late uint64
}

// Ledger holds the reservations of all scopes.
//
// Lock order: Ledger.mu, scope.mu, then idShard.mu or one of package history. A
// later one may be taken while an earlier one is held, never the reverse; no two of
// the same kind, and no two of the last group, at a time.
//
// Whether a reservation of another process may become live is looked up under the
// lock of its scope, and it is entered under the same hold of the lock. What ends a
// reservation notes that under this lock too, or before it takes the lock to look
// for the reservation. An end therefore never falls between look-up and entry.
type Ledger struct {
	process uint64
	now     func() time.Time
	start   time.Time // deadlines are durations since then
	obs     Observer
	ids     *ids
	// What is not live any more: numbered and unnumbered reservations of other
	// processes, and own ones that expired. named is what others than the process that
	// accepted a numbered reservation say of it.
	numbered   *history.Numbered
	named      *history.Named
	unnumbered *history.Unnumbered
	expiredIDs *history.ExpiredIDs
	// relayed counts the live entries that are known from another process than their own.
	relayed atomic.Int64
	// lifetime of a reservation without lease; constant once in use.
	lifetime time.Duration

	observePrefills func(catalog.Scope) PrefillObserver // nil: nobody is told

	counts counters
	room   room

	lastSequence atomic.Uint64 // highest sequence number of an own reservation

	// soonest is not later than any deadline, nor than any time at which a renewal is
	// to be announced.
	soonest earliest

	// mu guards the map and the numbering of the scopes.
	mu      sync.RWMutex
	scopes  map[catalog.Scope]*scope
	created uint64
}

// counters are those of Stats.
type counters struct {
	booked, freed, expired, dropped  atomic.Uint64
	remote, merged, endsMerged, late atomic.Uint64
	leasesExpired, displaced         atomic.Uint64
}

// New returns an empty ledger that reads the time from now and tells obs, which
// may be nil, what happens. process, not zero, names the reservations that this
// ledger accepts among those of all replicas; a program must choose another one at
// every start.
func New(process uint64, now func() time.Time, obs Observer) *Ledger {
	if obs == nil {
		obs = noObserver{}
	}
	return &Ledger{
		process:    process,
		now:        now,
		start:      now(),
		obs:        obs,
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
// nothing if d is not positive. To be called before the ledger is used. Replicas
// should agree on it: the first one to end a reservation ends it for all.
func (l *Ledger) SetLifetime(d time.Duration) {
	if d <= 0 {
		return
	}
	l.lifetime = d
	l.numbered.SetLifetime(d)
	l.unnumbered.SetLifetime(d)
}

// SetLimits bounds the live reservations. To be called before the ledger is used.
func (l *Ledger) SetLimits(m Limits) {
	l.room.limits = m
	l.numbered.SetMemory(m.Memory)
}

// PutRank makes r known under its slot, without load. It does nothing if it is
// known there already. If the slot still belongs to another rank, or the rank has
// another slot, that is removed as by RemoveRank. Slots are dense: memory grows with
// the highest one, by a few bytes, and by more with the highest one that is booked on.
func (l *Ledger) PutRank(sc catalog.Scope, slot uint32, r catalog.Rank) {
	for {
		s := l.scopeOrNew(sc)
		if freed, ok := s.putRank(slot, r); ok {
			l.counts.dropped.Add(uint64(freed))
			return
		} // else s was dropped between the two steps
	}
}

// RemoveRank forgets the rank under slot and returns how many reservations ended
// with it. Their ids can be used again; the observer is not told, and this ledger
// never takes the same reservations from other replicas again. A scope is removed
// with its last rank.
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
// scope's lock, twice if the id was still that of a reservation whose time is
// over; it must not block or call the ledger, and must not keep the View. Its
// error is returned as it is. Book fails with *ExistsError if a live reservation
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
	if holder != nil && holder.endIfOverdue() {
		p, _, err = s.book(req, choose)
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
// running, the sum may be off by their number.
func (l *Ledger) Stats() Stats {
	c := &l.counts
	st := Stats{
		Freed:         c.freed.Load(),
		Expired:       c.expired.Load(),
		Dropped:       c.dropped.Load(),
		Displaced:     c.displaced.Load(),
		Remote:        c.remote.Load(),
		Merged:        c.merged.Load(),
		EndsMerged:    c.endsMerged.Load(),
		LeasesExpired: c.leasesExpired.Load(),
		Late:          c.late.Load(),
	}
	st.Booked = c.booked.Load() // read last: never below the sum of the others
	st.Live = st.Booked - st.Freed - st.Expired - st.Dropped - st.Displaced
	return st
}

// assignSequence returns the number of an own reservation, which is the observer's
// unless that does not count, and notes that it is used.
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
		delete(l.scopes, s.name)
	}
}

// at is the time as deadlines count it.
func (l *Ledger) at() time.Duration { return l.now().Sub(l.start) }

// never is later than every deadline.
const never = time.Duration(math.MaxInt64)

// Observer is told of reservations booked and ended through the ledger's methods
// for callers, whichever process accepted them, and of the end of a lease that the
// ledger granted itself. Expiry by age, the removal of a rank and what is learned
// from other processes are not announced.
//
// The calls come under the scope's lock, after the change and before the caller
// of the ledger returns: events of one scope arrive in the order in which they
// happened. An observer must not block or call the ledger.
type Observer interface {
	// Booked returns the sequence number that names the reservation: it rises from
	// call to call, and is 1 or more. An observer that does not count always returns
	// 0; the ledger then counts for itself.
	Booked(Event) (sequence uint64)
	// PrefillCompleted is repeated whenever a caller repeats it.
	PrefillCompleted(Event)
	// Freed: the reservation was freed by a caller, or its lease ran out.
	Freed(Event)
	// Renewed: a step of a caller renewed the lease. It comes at most once in a
	// quarter of the lease; Expire announces a renewal that was too early for that.
	Renewed(Event)
}

// Event is one step in the life of a reservation. The fields after PerScope are
// set in Booked only.
type Event struct {
	Scope catalog.Scope
	ID    string
	Rank  catalog.Rank
	// Origin is the reservation's; in Booked its Sequence is zero.
	Origin   Origin
	PerScope bool

	Hashes         []uint64 // as in the Request; read only
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
