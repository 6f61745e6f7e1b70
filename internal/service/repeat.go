package service

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
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
func taken(text string, wanted IfExists, exists *reservations.ExistsError) *Error {
	e := &Error{Kind: Conflict, Text: text, taken: exists.ID, Err: exists}
	if wanted == ReturnFirst {
		e.Err = fmt.Errorf("%w: %w", errStale, exists)
	}
	return e
}

// bookingFailed is the text of dynamo-kv-router 1.3.1 for what stops a selection.
func bookingFailed(err error) string { return fmt.Sprintf("failed to book scheduler state: %v", err) }

// question asks for the booking that a request repeats.
type question struct {
	id    string
	scope catalog.Scope
	rank  *catalog.Rank     // if the request names one
	snap  *catalog.Snapshot // nil: nobody is schedulable in the scope
	// kept: the request books a kept selection and has no prompt.
	kept   bool
	prompt func() (identity, error)
}

// earlier is a live booking that a request repeats.
type earlier struct {
	reservations.Holding
	endpoint  string
	selection *Selection // nil: it was not booked by Select, or elsewhere
}

// earlier looks for the booking that a request repeats: none is nil. The error is
// an *reservations.ExistsError if the id is another request's, or the prompt's.
func (s *Service) earlier(q *question) (*earlier, error) {
	h, ok := s.ledger.Find(q.id)
	if !ok || !conflicts(&h, q.scope) {
		return nil, nil
	}
	exists := &reservations.ExistsError{ID: q.id, Rank: h.Rank}
	if h.Scope != q.scope || q.rank != nil && *q.rank != h.Rank {
		return nil, exists
	}
	var asked identity
	if !q.kept {
		var err error
		if asked, err = q.prompt(); err != nil {
			return nil, err
		}
	}
	e := &earlier{Holding: h}
	first, local := h.Companion.(*companion)
	same := false
	switch {
	case h.Remote:
		same = q.kept || sameBlocks(asked.sequence, h.Hashes)
		e.endpoint = endpointOf(q.snap, h.Rank)
	case local:
		s.first.read(first, func() {
			same = q.kept == first.kept && (q.kept || first.identity.same(&asked))
			e.endpoint = first.endpoint
			if first.selected {
				e.selection = new(first.selection)
			}
		})
	}
	if !same {
		return nil, exists
	}
	return e, nil
}

// conflicts tells whether no booking of the scope can have the id of h. In
// another scope than its own, one of the slot tracker's conflicts with none.
func conflicts(h *reservations.Holding, sc catalog.Scope) bool {
	_, selected := h.Companion.(*companion)
	return selected || h.Remote || h.Scope == sc
}

// endpointOf is the endpoint of a rank's worker, "" if it is not schedulable.
func endpointOf(snap *catalog.Snapshot, r catalog.Rank) string {
	if snap == nil {
		return ""
	}
	e, ok := snap.Entry(r)
	if !ok {
		return ""
	}
	return e.Worker.Address()
}

// repeat answers the request if it repeats an earlier one: then done is true. It
// is an error if the id is another request's.
func (c *selection) repeat() (done bool, err error) {
	req := c.request
	switch {
	case !c.reserve || req.ReservationID == nil:
		return false, nil
	case req.IfExists == Refuse && req.Detailed:
		return false, c.refuseTaken()
	case req.IfExists == Refuse:
		return false, nil
	}
	first, err := c.service.earlier(&question{
		id: *req.ReservationID, scope: req.Scope, rank: req.Pinned, snap: c.snap,
		prompt: func() (identity, error) {
			err := c.read(&req.Prompt, c.snap)
			return c.identify(&req.Prompt, c.sequence), err
		},
	})
	if exists, ok := errors.AsType[*reservations.ExistsError](err); ok {
		return false, taken(bookingFailed(exists), Refuse, exists)
	}
	if err != nil || first == nil {
		return false, err
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

// refuseTaken fails if the id is taken. dynamo-kv-router 1.6.1 asks for that
// before it looks at the rest of a request, 1.3.1 when it books.
func (c *selection) refuseTaken() error {
	exists := c.service.live(*c.request.ReservationID, c.request.Scope)
	if exists == nil {
		return nil
	}
	return taken(bookingFailed(exists), Refuse, exists)
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
// true. It is an error if the id is another request's. asked is its prompt, nil if
// it books a kept selection.
func (s *Service) reservedBefore(req *ReserveRequest, snap *catalog.Snapshot, asked *identity) (r Reservation, done bool, err error) {
	q := question{id: req.ID, scope: req.Scope, snap: snap, kept: true}
	if asked != nil {
		q.kept, q.rank, q.prompt = false, &req.Rank, func() (identity, error) { return *asked, nil }
	}
	first, err := s.earlier(&q)
	if exists, ok := errors.AsType[*reservations.ExistsError](err); ok {
		return Reservation{}, false, taken(exists.Error(), Refuse, exists)
	}
	if err != nil || first == nil {
		return Reservation{}, false, err
	}
	return Reservation{
		ID: req.ID, Scope: first.Scope, Rank: first.Rank, Endpoint: first.endpoint, Lease: first.Lease, Repeated: true,
	}, true, nil
}
