package reservations

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// model is the dumbest ledger that can be right: it keeps the list of reservations
// and recomputes every answer from it. It shares no code with the ledger. What
// it does for other processes is in model_remote_test.go.
type model struct {
	now   time.Duration
	ranks map[place]catalog.Rank
	live  []*modelEntry // the oldest first
	past  modelPast
	// expired has the own reservations that were not freed since, late how many
	// were freed after they had expired.
	expired map[expiredID]bool
	late    uint64
	// leasesExpired counts own leases that ran out.
	leasesExpired uint64
	prefills      modelPrefills
	// weight of held prompt blocks that do not weigh 1, in unit parts
	weight map[blockAt]int
}

// unit is what a whole block weighs in the model, which counts in integers. Of
// its parts, some are exact in binary and most are not.
const unit = 56

// expiredID is how callers name a reservation: by its id alone, or by scope and id.
type expiredID struct{ scope, id string }

func expiredIDOf(scope *catalog.Scope, id string) expiredID {
	if scope == nil {
		return expiredID{id: id}
	}
	return expiredID{fmt.Sprint(*scope), id}
}

type place struct {
	scope catalog.Scope
	slot  uint32
}

type blockAt struct {
	place
	hash uint64
}

type modelEntry struct {
	place
	id       string
	origin   Origin
	perScope bool
	rank     catalog.Rank
	hashes   map[uint64]bool
	chain    []uint64 // first occurrences
	tokens   uint64
	track    bool
	done     bool
	outputs  []int
	at       time.Duration // of the acceptance
	lease    modelLease
	end      *countedEnd // of an own reservation
	queued   modelQueued
}

// pending is what the rank's sum has of the reservation.
func (m *modelEntry) pending() uint64 {
	if m.track && !m.done {
		return m.tokens
	}
	return 0
}

func newModel() *model {
	return &model{
		ranks:   make(map[place]catalog.Rank),
		past:    newModelPast(),
		expired: make(map[expiredID]bool),
		weight:  make(map[blockAt]int),

		prefills: modelPrefills{last: make(map[place]time.Duration)},
	}
}

func (m *model) holders(b blockAt) (n int) {
	for _, r := range m.live {
		if r.place == b.place && r.hashes[b.hash] {
			n++
		}
	}
	return n
}

// book books b for the model's own process.
func (m *model) book(b *modelEntry, hashes []uint64) error {
	if got, ok := m.ranks[b.place]; !ok || got != b.rank {
		return ErrUnknownRank
	}
	for _, o := range m.live {
		if o.id == b.id && (o.scope == b.scope || !o.perScope && !b.perScope) {
			return &ExistsError{ID: b.id, Rank: o.rank}
		}
	}
	m.past.own++
	b.origin = Origin{Process: 1, Sequence: m.past.own}
	b.at = m.now
	m.add(b, hashes)
	m.bookedPrefill(b)
	return nil
}

func (m *model) add(b *modelEntry, hashes []uint64) {
	b.hashes = make(map[uint64]bool)
	for _, h := range hashes {
		if !b.hashes[h] {
			b.hashes[h] = true
			b.chain = append(b.chain, h)
		}
	}
	b.queued.booked = b.at
	m.live = append(m.live, b)
}

// find returns what a call by id means, in one scope if scope is not nil.
func (m *model) find(id string, scope *catalog.Scope) *modelEntry {
	type class struct{ perScope, own bool }
	order := []class{{false, true}, {false, false}, {true, true}, {true, false}}
	if scope != nil {
		order = []class{{true, true}, {false, true}, {true, false}, {false, false}}
	}
	for _, want := range order {
		for _, b := range m.live {
			if b.id == id && (class{b.perScope, b.origin.Process == 1}) == want && (scope == nil || b.scope == *scope) {
				return b
			}
		}
	}
	return nil
}

// remove takes b off the list.
func (m *model) remove(b *modelEntry) {
	m.live = slices.DeleteFunc(m.live, func(o *modelEntry) bool { return o == b })
	for h := range b.hashes {
		if at := (blockAt{b.place, h}); m.holders(at) == 0 {
			delete(m.weight, at)
		}
	}
}

func (m *model) free(id string, scope *catalog.Scope) error {
	b := m.find(id, scope)
	if b == nil {
		if name := expiredIDOf(scope, id); m.expired[name] {
			m.late++
			delete(m.expired, name)
		}
		return ErrNotFound
	}
	m.freedPrefill(b)
	m.end(b)
	return nil
}

func (m *model) prefillComplete(id string, scope *catalog.Scope) error {
	b := m.find(id, scope)
	if b == nil {
		return ErrNotFound
	}
	m.completedPrefill(b)
	m.complete(b)
	m.touch(b)
	return nil
}

func (m *model) output(id string, fraction *int) error {
	b := m.find(id, nil)
	if b == nil {
		return ErrNotFound
	}
	m.unreportedPrefill(b)
	b.outputs = append(b.outputs, unit)
	m.outputOf(b)
	m.touch(b)
	if fraction == nil {
		return nil
	}
	for i := range b.outputs {
		b.outputs[i] = *fraction
	}
	for h := range b.hashes {
		if at := (blockAt{b.place, h}); m.holders(at) == 1 {
			m.weight[at] = *fraction
		}
	}
	return nil
}

func (m *model) removeRank(p place) (freed int) {
	for _, b := range slices.Clone(m.live) {
		if b.place == p {
			freed++
			m.drop(b)
		}
	}
	delete(m.ranks, p)
	delete(m.prefills.last, p)
	return freed
}

func (m *model) expire() (n int) {
	for _, b := range slices.Clone(m.live) {
		if m.now > b.deadline() {
			n++
			if b.lease.length > 0 && b.origin.Process != 1 {
				m.lapse(b)
			} else {
				m.end(b)
			}
			if b.origin.Process == 1 {
				if b.lease.length > 0 {
					m.leasesExpired++
				}
				var scope *catalog.Scope
				if b.perScope {
					scope = &b.scope
				}
				m.expired[expiredIDOf(scope, b.id)] = true
			}
		}
	}
	return n
}

// load is the row of one rank.
func (m *model) load(p place) Load {
	row := Load{Rank: m.ranks[p]}
	blocks := make(map[uint64]bool)
	var sum int
	for _, b := range m.live {
		if b.place != p {
			continue
		}
		row.Requests++
		if row.PrefillTokens+b.pending() < row.PrefillTokens {
			row.PrefillTokens = math.MaxUint64
		} else {
			row.PrefillTokens += b.pending()
		}
		for _, w := range b.outputs {
			sum += w
		}
		for h := range b.hashes {
			blocks[h] = true
		}
	}
	for h := range blocks {
		if w, ok := m.weight[blockAt{p, h}]; ok {
			sum += w
		} else {
			sum += unit
		}
	}
	row.Blocks = uint64((sum + unit/2) / unit)
	return row
}

func (m *model) shared(p place, prompt []uint64) (longest uint32) {
	for _, b := range m.live {
		if b.place != p {
			continue
		}
		n := 0
		for n < len(prompt) && n < len(b.chain) && prompt[n] == b.chain[n] {
			n++
		}
		longest = max(longest, uint32(n))
	}
	return longest
}
