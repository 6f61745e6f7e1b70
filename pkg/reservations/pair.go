package reservations

import (
	"strings"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// A pair is two reservations of one request: one on the rank that prefills its prompt, and one on the
// rank that decodes. They are booked in one step and have a common parent, the id of the pair, which
// is theirs without its end: see PrefillID and DecodeID. Otherwise they are two reservations like
// any others. In particular a step of one does nothing to the other, and a replica may know only one
// of them for a while.

// PrefillID returns the id of the reservation of a pair's rank that prefills.
func PrefillID(pair string) string { return pair + prefillEnd }

// DecodeID returns the id of the reservation of a pair's rank that decodes.
func DecodeID(pair string) string { return pair + decodeEnd }

// IsSideID reports whether an id has the form of a side's id, so that it cannot be that of a pair.
func IsSideID(id string) bool { return chainName(id) != id }

// Side is one side of a pair as it is chosen.
type Side struct {
	Placement
	TrackPrefill bool        // as in a Request
	CallerState  CallerState // as in a Request
}

// PairPlacement is the answer of a choice of a pair.
type PairPlacement struct {
	Decode Side
	// Prefill is nil if the rank that decodes prefills too.
	Prefill *Side
}

// BookPair is Book for a pair: it books both reservations that choose answers with, or none. req.ID
// is the id of the pair; its TrackPrefill, CallerState, Pair and PerScope are not used. The expected output
// is that of the side that decodes, and its Booked is called once both have been made. It fails with
// *ExistsError if a live reservation has the pair's id or that of one of its sides.
func (l *Ledger) BookPair(sc catalog.Scope, req Request, choose func(*View) (PairPlacement, error)) error {
	if err := l.room.checkSize(len(req.Hashes)); err != nil {
		return err
	}
	s := l.scope(sc)
	if s == nil {
		if _, err := choose(&View{}); err != nil {
			return err
		}
		return ErrUnknownRank
	}
	holder, err := s.bookPair(&req, choose)
	for holder != nil && holder.endIfOverdue() {
		holder, err = s.bookPair(&req, choose)
	}
	return err
}

// bookPair is Ledger.BookPair within the scope. holder, with an *ExistsError, is the reservation that
// has one of the ids.
func (s *scope) bookPair(req *Request, choose func(*View) (PairPlacement, error)) (holder *entry, err error) {
	l := s.ledger
	s.mu.Lock()
	defer s.mu.Unlock()
	at := l.at()
	s.sweep(at)

	v := s.view(req.Hashes)
	p, err := choose(v)
	if v.wants {
		s.keepWanted(v.wanted)
	}
	m := v.match
	v.recycle()
	if err != nil {
		return nil, err
	}
	if !s.holds(p.Decode.Slot, p.Decode.Rank) || p.Prefill != nil && !s.holds(p.Prefill.Slot, p.Prefill.Rank) {
		return nil, ErrUnknownRank
	}
	decode, ofDecode := s.newSide(req, DecodeID(req.ID), &p.Decode, at)
	var prefill *entry
	var ofPrefill Request
	if p.Prefill != nil {
		ofSide := *req
		ofSide.ExpectedOutput = nil
		prefill, ofPrefill = s.newSide(&ofSide, PrefillID(req.ID), p.Prefill, at)
	}
	if holder = l.ids.claimPair(decode, prefill); holder != nil {
		return holder, &ExistsError{ID: req.ID, Rank: holder.rank}
	}
	prompt := s.blocks.prepare(m, req.Hashes[m.n:])
	decode.fresh = prompt.fresh
	if err := s.takePair(decode, prefill); err != nil {
		s.blocks.drop(prompt)
		return nil, err
	}
	s.enterOwn(decode, &ofDecode, p.Decode.Placement, m, prompt)
	if prefill != nil { // all blocks of the prompt are in the tree now
		m = s.blocks.walk(match{}, req.Hashes)
		s.enterOwn(prefill, &ofPrefill, p.Prefill.Placement, m, s.blocks.prepare(m, req.Hashes[m.n:]))
	}
	if p.Decode.Booked != nil {
		p.Decode.Booked()
	}
	return nil, nil
}

// prefills reports whether r is the side of a pair that prefills.
func (e *entry) prefills() bool { return e.pair && strings.HasSuffix(e.id, prefillEnd) }

// newSide returns the entry of one side of a pair, and the request for it alone.
func (s *scope) newSide(pair *Request, id string, side *Side, at time.Duration) (*entry, Request) {
	req := *pair
	req.ID, req.PerScope, req.Pair, req.TrackPrefill, req.CallerState = id, false, true, side.TrackPrefill, side.CallerState
	return s.newEntry(&req, side.Placement, at), req
}

// takePair takes room for the sides of a pair, whose ids are claimed. Without room for both it takes
// none and gives the ids back.
func (s *scope) takePair(decode, prefill *entry) error {
	l := s.ledger
	err := l.room.take(decode)
	if err == nil && prefill != nil {
		if err = l.room.take(prefill); err != nil {
			l.room.undo(decode)
		}
	}
	if err == nil {
		return nil
	}
	for _, r := range [...]*entry{decode, prefill} {
		if r != nil {
			r.ended = true // for calls that have already found it by its id
			l.ids.release(r)
		}
	}
	return err
}

// Sides are the ids of the live reservations of a pair, each "" if there is none.
type Sides struct{ Decode, Prefill string }

// Sides returns the live reservations of the pair of an id.
func (l *Ledger) Sides(pair string) (sides Sides) { return l.ids.sides(pair) }

func (i *ids) sides(pair string) (sides Sides) {
	sh := i.shard(pair)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for m := sh.live[pair]; m != nil; m = m.next {
		switch {
		case !m.pair:
		case m.id == DecodeID(pair):
			sides.Decode = m.id
		case m.id == PrefillID(pair):
			sides.Prefill = m.id
		}
	}
	return sides
}
