package service

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// A caller who got no answer can ask again with the same id (decision E4): if
// the request is the same, it gets the first answer instead of a conflict.

// restSeed seeds the digests of prompts' rests in this life of the process.
var restSeed = maphash.MakeSeed()

// identify returns what tells the prompt that q has read from others. sequence
// are its hashes in memory that stays.
func (q *query) identify(p *Prompt, sequence []uint64) identity {
	i := identity{sequence: sequence, tokens: q.size.Tokens}
	if _, _, i.hasRest = p.tokens(); i.hasRest {
		i.rest = restOf(p, len(sequence), int(q.size.BlockSize))
	}
	return i
}

// restOf digests what the first blocks' hashes do not depend on: the tokens and
// objects behind them, and for want of a block the names that go into every one.
func restOf(p *Prompt, blocks, blockSize int) uint64 {
	tokens, mm, _ := p.tokens()
	var h maphash.Hash
	h.SetSeed(restSeed)
	var number [8]byte
	add := func(n uint64) {
		binary.LittleEndian.PutUint64(number[:], n)
		_, _ = h.Write(number[:])
	}
	text := func(s string) {
		add(uint64(len(s)))
		_, _ = h.WriteString(s)
	}
	if blocks == 0 {
		text(p.LoRA)
		text(p.CacheSalt)
	}
	for _, t := range tokens[min(blocks*blockSize, len(tokens)):] {
		binary.LittleEndian.PutUint32(number[:4], t)
		_, _ = h.Write(number[:4])
	}
	for _, objects := range mm[min(blocks, len(mm)):] {
		add(uint64(len(objects)))
		for _, object := range objects {
			add(object)
		}
	}
	return h.Sum64()
}

// same compares with the prompt of a request; sequence need not stay.
func (i *identity) same(o *identity) bool {
	known := i.hasRest && o.hasRest
	return i.tokens == o.tokens && (!known || i.rest == o.rest) && slices.Equal(i.sequence, o.sequence)
}

// sameBlocks compares a prompt's hashes with the distinct ones that a ledger has.
func sameBlocks(sequence, held []uint64) bool {
	if len(sequence) == len(held) {
		return slices.Equal(sequence, held)
	}
	seen := make(map[uint64]struct{}, len(held))
	distinct := make([]uint64, 0, len(held))
	for _, h := range sequence {
		if _, ok := seen[h]; !ok {
			seen[h] = struct{}{}
			distinct = append(distinct, h)
		}
	}
	return slices.Equal(distinct, held)
}

// taken is the error of an id that a live booking has. If its caller wants the
// first answer, the request is tried anew: then the booking is found.
func taken(text string, wanted IfExists, exists *reservations.ExistsError) *contract.Error {
	e := &contract.Error{Kind: contract.Conflict, Text: text, TakenID: &exists.ID, Err: exists}
	if wanted == ReturnFirst {
		e.Err = fmt.Errorf("%w: %w", scopes.ErrStale, exists)
	}
	return e
}

// onItsWay is the error of an id that another request is booking.
func onItsWay(id string) *contract.Error {
	return &contract.Error{Kind: contract.Conflict, Text: "Request " + id + " is being booked", TakenID: &id}
}

// bookingFailed is the text of dynamo-kv-router 1.3.1 for what stops a selection.
func bookingFailed(err error) string { return fmt.Sprintf("failed to book scheduler state: %v", err) }

// errBooked is scopes.ErrStale for a request whose id was booked while it waited.
var errBooked = &contract.Error{Kind: contract.Conflict, Text: "the id was booked meanwhile", Err: scopes.ErrStale}

// repeats tells whether the request can be one that repeats another.
func (c *selection) repeats() bool {
	return c.reserve && c.request.ReservationID != nil && c.request.IfExists == ReturnFirst
}

// question asks for the booking that a request repeats.
type question struct {
	id     string
	scope  catalog.Scope
	rank   *catalog.Rank    // if the request names one
	filter *selector.Filter // nil: any worker will do
	// prompt reads the request's in the block size of the scope's workers. It is nil
	// if the request books a kept selection: that has none, and the id is all that
	// it says.
	prompt func(*catalog.Snapshot) (identity, error)
}

// asTaken makes the error of an id whose booking is not the one that a request
// repeats the one that the caller gets: that of any id that is taken. text is what
// the route says of it.
func asTaken(err error, text func(error) string) error {
	exists, ok := errors.AsType[*reservations.ExistsError](err)
	if !ok {
		return err
	}
	return taken(text(exists), Refuse, exists)
}

// earlier is a live booking that a request repeats.
type earlier struct {
	reservations.LiveReservation
	endpoint  string
	selection *Selection // nil: it was not booked by Select, or elsewhere
}

// earlier looks for the booking that a request repeats: none is nil. It is a sign
// of life, so that its lease begins anew. Whether somebody could serve the request
// now does not matter. The error is an *reservations.ExistsError, scopes.ErrStale or the prompt's.
func (s *Service) earlier(q *question) (*earlier, error) {
	h, ok := s.ledger.Find(q.id)
	if !ok || !conflicts(&h, q.scope) {
		return nil, nil
	}
	snap := s.catalog.Snapshot(q.scope)
	if snap == nil && h.Scope == q.scope {
		return nil, nil // its workers have left just now, and the booking with them
	}
	other := &reservations.ExistsError{ID: q.id, Rank: h.Rank}
	if h.Scope != q.scope || q.rank != nil && *q.rank != h.Rank || q.filter != nil && !q.filter.Allows(h.Rank.Worker) {
		return nil, other
	}
	var asked identity
	if q.prompt != nil {
		var err error
		if asked, err = q.prompt(snap); err != nil {
			return nil, err
		}
	}
	e := &earlier{LiveReservation: h}
	first, local := h.CallerState.(*companion)
	same := false
	switch {
	case h.PerScope: // the slot tracker's booking is nobody's first
	case h.Remote:
		same = q.prompt == nil || sameBlocks(asked.sequence, h.Hashes)
		e.endpoint = endpointOf(snap, h.Rank)
	case local:
		var over <-chan struct{}
		same, over = s.first.give(first, func() bool {
			if q.prompt != nil && !first.identity.same(&asked) {
				return false
			}
			e.endpoint = first.endpoint
			if first.selected {
				e.selection = new(first.selection)
			}
			return true
		})
		if over != nil {
			<-over
			return nil, errBooked
		}
	}
	if !same {
		return nil, other
	}
	if h.Lease > 0 && s.ledger.Renew(q.id) != nil {
		return nil, errBooked // it has ended
	}
	return e, nil
}

// conflicts tells whether no booking of the scope can have the id of h. In
// another scope than its own, one of the slot tracker's conflicts with none.
func conflicts(h *reservations.LiveReservation, sc catalog.Scope) bool {
	return everywhere(h) || h.Scope == sc
}

// everywhere tells whether no booking of any scope can have the id of h: only the
// slot tracker's ids are of one scope (decision S4).
func everywhere(h *reservations.LiveReservation) bool { return !h.PerScope }

// endpointOf is the endpoint of a rank's worker, "" if there is none.
func endpointOf(snap *catalog.Snapshot, r catalog.Rank) string {
	e, ok := snap.KnownEntry(r)
	if !ok {
		return ""
	}
	return e.Worker.Address()
}

// repeat answers the request if it repeats an earlier one: then done is true. It
// is an error if the id is another request's.
func (c *selection) repeat() (done bool, err error) {
	if !c.repeats() {
		return false, nil
	}
	req := c.request
	first, err := c.service.earlier(&question{
		id: *req.ReservationID, scope: req.Scope, rank: req.Pinned, filter: &c.filter,
		prompt: func(snap *catalog.Snapshot) (identity, error) {
			err := c.read(&req.Prompt, snap)
			return c.identify(&req.Prompt, c.sequence), err
		},
	})
	if err != nil || first == nil {
		return false, asTaken(err, bookingFailed)
	}
	c.repeated = true
	if first.selection != nil {
		c.result = *first.selection
	} else {
		c.id = *req.ReservationID
		c.result = Selection{
			SelectionID: req.SelectionID, ReservationID: &c.id, Scope: first.Scope, Rank: first.Rank,
			Endpoint: first.endpoint, Lease: first.Lease, PlacementOnly: true,
		}
	}
	c.result.Repeated = true
	return true, nil
}

// refuseTaken fails if the id is taken, and takes it. dynamo-kv-router 1.6.1 does
// that before it looks at the rest of a request, 1.3.1 when it books. A repeat is
// not refused, but others are while it waits.
func (c *selection) refuseTaken() error {
	req := c.request
	if !c.reserve || req.ReservationID == nil || !req.Detailed {
		return nil
	}
	id, shared := *req.ReservationID, req.IfExists == ReturnFirst
	if !c.claims {
		if c.claims = c.service.claimed.claim(id, shared); !c.claims {
			return onItsWay(id)
		}
	}
	if exists := c.service.live(id, req.Scope); exists != nil && !shared {
		return taken(bookingFailed(exists), Refuse, exists)
	}
	return nil
}

// releaseID undoes what refuseTaken took.
func (c *selection) releaseID() {
	if c.claims {
		c.service.claimed.release(*c.request.ReservationID)
	}
}

// live is the error of an id that a booking has already, nil if the scope can have
// one of it.
func (s *Service) live(id string, scope catalog.Scope) *reservations.ExistsError {
	h, ok := s.ledger.Find(id)
	if !ok || !conflicts(&h, scope) {
		return nil
	}
	return &reservations.ExistsError{ID: id, Rank: h.Rank}
}

// reservedBefore answers the request if it repeats an earlier one: then done is
// true. It is an error if the id is another request's. scratch is what its prompt is
// read into.
func (s *Service) reservedBefore(req *ReserveRequest, scratch *query) (r Reservation, done bool, err error) {
	if req.IfExists != ReturnFirst {
		return Reservation{}, false, nil
	}
	q := question{id: req.ID, scope: req.Scope}
	if !req.Kept {
		q.rank = &req.Rank
		q.prompt = func(snap *catalog.Snapshot) (identity, error) {
			err := scratch.readBooking(&req.Prompt, snap)
			return scratch.identify(&req.Prompt, scratch.sequence), err
		}
	}
	first, err := s.earlier(&q)
	if err != nil || first == nil {
		return Reservation{}, false, asTaken(err, error.Error)
	}
	return Reservation{
		ID: req.ID, Scope: first.Scope, Rank: first.Rank, Endpoint: first.endpoint, Lease: first.Lease, Repeated: true,
	}, true, nil
}

// takeBack ends what was booked for a caller who has gone, unless a repeat was
// given the booking: then it is the repeat's.
func (c *selection) takeBack() {
	s, k := c.service, c.beside
	switch {
	case k == nil || !k.selected: // nobody else knows the id
		_ = s.Free(c.id) // ErrNotFound: its worker is gone, and the booking with it
	case !s.first.withdraw(k):
		c.hold = nil // the booking has it
	case s.ledger.FreeWith(c.id, k) == nil:
		s.scopes.LoadChanged()
	}
}
