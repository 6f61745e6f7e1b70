package reservations

import (
	"slices"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// modelPast is what the model remembers of reservations that are not live: plain
// sets, that are never cut short. The own process is 1.
type modelPast struct {
	own                       uint64 // last own sequence number
	ended, dropped, completed map[Origin]bool
	// doubtful ones are live no more here, but may be elsewhere if they have a
	// lease: it ran out here, or a replica without leases says that they ended.
	doubtful map[Origin]bool
	// closed are leased ones of whose end another replica said.
	closed map[Origin]bool
	// Reservations without sequence numbers, and when.
	left, completedEarly, freedEarly map[foreignKey]time.Duration
}

type foreignKey struct {
	process uint64
	scope   catalog.Scope
	id      string
}

func newModelPast() modelPast {
	return modelPast{
		ended:     make(map[Origin]bool),
		dropped:   make(map[Origin]bool),
		completed: make(map[Origin]bool),
		doubtful:  make(map[Origin]bool),
		closed:    make(map[Origin]bool),
		left:      make(map[foreignKey]time.Duration),

		completedEarly: make(map[foreignKey]time.Duration),
		freedEarly:     make(map[foreignKey]time.Duration),
	}
}

func (m *modelEntry) key() foreignKey { return foreignKey{m.origin.Process, m.scope, m.id} }

func (m *model) end(b *modelEntry) {
	m.remove(b)
	if b.origin.Sequence == 0 {
		m.past.left[b.key()] = m.now
		delete(m.past.completedEarly, b.key())
		return
	}
	m.past.ended[b.origin] = true
}

func (m *model) drop(b *modelEntry) {
	m.remove(b)
	if b.origin.Sequence == 0 {
		m.past.left[b.key()] = m.now
		delete(m.past.completedEarly, b.key())
		return
	}
	if b.lease.length > 0 && b.origin.Process != 1 { // it may go on at the process that granted it
		m.past.doubtful[b.origin] = true
		m.past.completed[b.origin] = m.past.completed[b.origin] || b.done
		return
	}
	m.past.dropped[b.origin] = true
}

func (m *model) lapse(b *modelEntry) {
	m.remove(b)
	m.past.doubtful[b.origin] = true
	if b.done {
		m.past.completed[b.origin] = true
	}
}

// rankPlace returns where a rank is.
func (m *model) rankPlace(sc catalog.Scope, r catalog.Rank) (at place, scope, rank bool) {
	for p, known := range m.ranks {
		if p.scope != sc {
			continue
		}
		scope = true
		if known == r {
			at, rank = p, true
		}
	}
	return at, scope, rank
}

// apply is ApplyBooked, and MergeReservation if snapshot.
func (m *model) apply(b Reservation, snapshot bool) ApplyResult {
	at, scope, rank := m.rankPlace(b.Scope, b.Rank)
	key := foreignKey{b.Origin.Process, b.Scope, b.ID}
	if !scope {
		return UnknownScope
	}
	// Steps of a reservation without sequence number that came before it.
	left, completed, freed := false, false, false
	if b.Origin.Sequence == 0 {
		const recently = 10 * time.Second
		left = m.within(m.past.left, key, 300*time.Second)
		completed = m.within(m.past.completedEarly, key, recently)
		freed = m.within(m.past.freedEarly, key, recently)
	}
	came := func() {
		if b.Origin.Sequence != 0 || snapshot {
			return
		}
		if freed {
			m.past.left[key] = m.now
		}
		delete(m.past.completedEarly, key)
		delete(m.past.freedEarly, key)
	}
	id := false
	for _, o := range m.live {
		if o.scope != b.Scope || o.id != b.ID {
			continue
		}
		id = true
		if o.origin == b.Origin {
			came()
			o.hear(b, m.now)
			if b.PrefillDone && !o.done {
				m.complete(o)
				return Updated
			}
			return Known
		}
	}
	made := &modelEntry{
		place: at, id: b.ID, origin: b.Origin, perScope: b.PerScope, rank: b.Rank,
		tokens: b.PrefillTokens, track: b.TrackPrefill, at: m.now - b.Age,
		done: b.PrefillDone || m.past.completed[b.Origin],
	}
	if b.Lease > 0 && b.Origin.Sequence != 0 {
		made.lease = modelLease{length: b.Lease, told: min(b.Renewed, b.Age)}
	}
	switch {
	case b.Origin.Process == 1:
		return Ended
	case made.deadline() <= m.now:
		return Stale
	case !rank:
		return UnknownRank
	case m.past.ended[b.Origin] || m.past.dropped[b.Origin]:
		return Ended
	case m.past.doubtful[b.Origin] && (!snapshot || made.lease.length == 0):
		return Ended
	case m.past.closed[b.Origin] && snapshot && made.lease.length > 0:
		return Ended
	}
	came()
	switch {
	case freed, snapshot && left:
		return Ended
	case b.Origin.Sequence == 0 && !snapshot && id:
		return Known
	case completed:
		made.done = true
	}
	made.queued.prompt = b.Prompt
	m.add(made, b.Hashes)
	if !snapshot {
		m.bookedPrefill(made)
	}
	return Applied
}

// within reports whether the last note about key is younger than that.
func (m *model) within(notes map[foreignKey]time.Duration, key foreignKey, that time.Duration) bool {
	at, noted := notes[key]
	return noted && m.now-at < that
}

// named returns the live reservation that an event means, or why there is none.
func (m *model) named(ref Ref) (*modelEntry, ApplyResult) {
	if _, scope, _ := m.rankPlace(ref.Scope, ref.Rank); !scope {
		return nil, UnknownScope
	}
	var best *modelEntry
	why := UnknownID
	for _, b := range m.live {
		if b.id != ref.ID || b.scope != ref.Scope {
			continue
		}
		if ref.Origin.Sequence != 0 {
			if b.origin == ref.Origin {
				return b, Applied
			}
			continue
		}
		if why = WrongRank; b.rank != ref.Rank {
			continue
		}
		if best == nil || best.origin.Process != ref.Origin.Process && b.origin.Process == ref.Origin.Process {
			best = b
		}
	}
	if best != nil {
		return best, Applied
	}
	return nil, why
}

func (m *model) applyPrefillCompleted(ref Ref) ApplyResult {
	m.past.ended[ref.Event] = true // names no reservation
	b, why := m.named(ref)
	counts := ref.Origin.Sequence != 0
	switch {
	case b != nil && b.done:
		return Known
	case b != nil:
		m.complete(b)
		return Applied
	case counts && why != UnknownScope && (ref.Origin.Process == 1 || m.past.ended[ref.Origin]):
		return Ended
	case counts:
		m.past.completed[ref.Origin] = true
	case why == UnknownID:
		key := foreignKey{ref.Origin.Process, ref.Scope, ref.ID}
		if !m.within(m.past.left, key, 10*time.Second) {
			m.past.completedEarly[key] = m.now
		}
	}
	return why
}

func (m *model) applyFreed(ref Ref) ApplyResult {
	m.past.ended[ref.Event] = true
	b, why := m.named(ref)
	if b != nil {
		m.end(b)
		return Applied
	}
	if ref.Origin.Sequence == 0 {
		if why == UnknownID {
			m.past.freedEarly[foreignKey{ref.Origin.Process, ref.Scope, ref.ID}] = m.now
		}
		return why
	}
	if why != UnknownScope && (ref.Origin.Process == 1 || m.past.ended[ref.Origin]) {
		why = Ended
	}
	m.past.ended[ref.Origin] = true
	return why
}

// mergeEnded: ended are certain, doubtful only for reservations without lease, leases
// for the others.
func (m *model) mergeEnded(process uint64, ended, doubtful, leases []history.Range) (freed int) {
	note := func(in map[Origin]bool, ranges []history.Range) {
		for _, r := range ranges {
			for n := r.From; n <= r.To; n++ {
				in[Origin{Process: process, Sequence: n}] = true
			}
		}
	}
	said, long := make(map[Origin]bool), make(map[Origin]bool)
	note(said, doubtful)
	note(long, leases)
	note(m.past.closed, leases)
	note(m.past.doubtful, doubtful)
	note(m.past.ended, ended)
	for _, b := range slices.Clone(m.live) {
		if b.origin.Process != process || b.origin.Sequence == 0 {
			continue
		}
		leased := b.lease.length > 0
		if m.past.ended[b.origin] || !leased && said[b.origin] || leased && long[b.origin] {
			m.end(b)
			freed++
		}
	}
	return freed
}

// hasEnded says what Ended must say of a number up to the last one given.
func (m *model) hasEnded(o Origin) bool {
	if o.Process != 1 || m.past.ended[o] {
		return m.past.ended[o]
	}
	for _, b := range m.live {
		if b.origin == o {
			return false
		}
	}
	return true // its callers cannot end it any more
}
