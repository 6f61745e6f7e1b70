package reservations

import (
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// Taken is a reservation that TakeOver has booked again.
type Taken struct {
	Scope         catalog.Scope
	ID            string
	Rank          catalog.Rank
	Registration  uint64   // of the rank, see View.Registration
	Hashes        []uint64 // the distinct prompt blocks; read only
	PrefillTokens uint64
	TrackPrefill  bool
}

// TakeOver books a live reservation again under another id, as this process's own and with another lease, in
// one step with its end: at no time is its load missing or there twice. If no reservation has the id, but a
// pair, that is done for both of its sides. The caller state goes along. prefill is the side of a pair that
// prefills; nil: there is none. as must be a new id, which nothing live has. Errors are ErrNotFound if nothing live has the id, of
// several calls for one id all but the first one, and *LimitError, after which everything is as before.
func (l *Ledger) TakeOver(id, as string, lease time.Duration) (answer, prefill *Taken, err error) {
	sides := l.ids.sides(id)
	first, second := l.ids.find(id, nil, l.process), (*entry)(nil)
	if first == nil {
		if first = l.ids.find(sides.Decode, nil, l.process); sides.Prefill != "" {
			second = l.ids.find(sides.Prefill, nil, l.process)
		}
	}
	if first == nil || second != nil && second.scope != first.scope {
		return nil, nil, ErrNotFound
	}
	return first.scope.takeOver(first, second, as, lease)
}

func (s *scope) takeOver(first, second *entry, as string, lease time.Duration) (answer, prefill *Taken, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.ledger.at()
	s.sweep(at)
	if first.ended {
		return nil, nil, ErrNotFound
	}
	name := func(of *entry) string { return as + of.id[len(chainName(of.id)):] }
	if !first.pair {
		name = func(*entry) string { return as }
	}
	booked, answer, err := s.bookAgain(first, name(first), lease, at)
	if err != nil {
		return nil, nil, err
	}
	if second != nil && !second.ended {
		if _, prefill, err = s.bookAgain(second, name(second), lease, at); err != nil {
			s.endTaken(booked) // its caller state is first's again
			return nil, nil, err
		}
		s.endTaken(second)
	}
	s.endTaken(first)
	return answer, prefill, nil
}

// bookAgain books what r is for under another id. It needs s.mu.
func (s *scope) bookAgain(r *entry, id string, lease, at time.Duration) (*entry, *Taken, error) {
	req := Request{
		ID: id, Pair: r.pair, Hashes: s.hashes(r), TrackPrefill: r.waits(), ExpectedOutput: r.output, Lease: lease,
		CallerState: r.callerState,
	}
	p := Placement{Slot: r.slot, Rank: r.rank, PrefillTokens: r.tokens}
	if q := s.loads[r.slot].queue; q != nil {
		x := &q.all[r.inRank]
		p.Uncached, req.Prompt = uint64(x.tokens), uint64(x.prompt)
	}
	again := s.newEntry(&req, p, at)
	if holder := s.ledger.ids.claim(again); holder != nil { // it is not new
		return nil, nil, &ExistsError{ID: id, Rank: holder.rank}
	}
	m := s.blocks.walk(match{}, req.Hashes)
	prompt := s.blocks.prepare(m, req.Hashes[m.n:])
	again.fresh = prompt.fresh
	if err := s.ledger.room.take(again); err != nil {
		s.blocks.drop(prompt)
		again.ended = true // for calls that have already found it by its id
		s.ledger.ids.release(again)
		return nil, nil, err
	}
	s.enterOwn(again, &req, p, m, prompt)
	return again, &Taken{
		Scope: s.name, ID: id, Rank: r.rank, Registration: s.registrations[r.slot], Hashes: req.Hashes, PrefillTokens: r.tokens, TrackPrefill: req.TrackPrefill,
	}, nil
}

// endTaken ends a reservation whose caller state belongs to another one. It needs s.mu.
func (s *scope) endTaken(r *entry) {
	r.callerState = nil
	s.end(r, history.Freed)
	s.ledger.counts.freed.Add(1)
	s.ledger.obs.Freed(r.event())
}
