package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/uuid"
)

// returnFirst makes retries of calls that book safe: the same id with the same
// request gets the first answer.
const returnFirst = "return"

// Select chooses a worker and books nothing. If the request has an ID, the choice can be
// booked later by Reserve with nothing but that ID.
func (c *Client) Select(ctx context.Context, req SelectRequest) (Selection, error) {
	var s Selection
	err := c.do(ctx, call{method: http.MethodPost, path: "/select", class: req.PolicyClass, body: &req, prompt: &req.Prompt, repeatable: true}, &s)
	return s, err
}

// bookingOptions are further members of the body of a request that books.
type bookingOptions struct {
	IfExists     string  `json:"if_exists"`
	LeaseSeconds float64 `json:"lease_seconds,omitempty"` // 0: no lease
}

// SelectAndReserve chooses a worker and books the load in one step. The caller has to
// call Free with the answer's ID; a Lease is freed without that. If the call fails and may
// have booked, the reservation of that ID is freed in the background, even if an earlier
// call made it, unless a Lease of this client holds it.
func (c *Client) SelectAndReserve(ctx context.Context, req SelectRequest) (Selection, error) {
	return c.selectAndReserve(ctx, req, nil)
}

// selectAndReserve books for a lease, nil for none.
func (c *Client) selectAndReserve(ctx context.Context, req SelectRequest, lease *Lease) (Selection, error) {
	made := req.ID == ""
	if made {
		req.ID = uuid.NewString()
	}
	body := struct {
		SelectRequest
		bookingOptions
	}{req, c.bookingOptions(lease)}
	k := call{method: http.MethodPost, path: "/select_and_reserve", class: req.PolicyClass, body: &body, prompt: &body.Prompt, repeatable: true}
	return c.book(ctx, k, req.ID, made, lease)
}

// SelectPair chooses a worker that prefills and one that decodes, and books both in one step, or
// neither. PrefillComplete, OutputBlock and Free with the answer's ID act on both reservations. The
// caller has to call Free; a call that fails is treated as one of SelectAndReserve.
func (c *Client) SelectPair(ctx context.Context, req PairRequest) (Pair, error) {
	made := req.ID == ""
	if made {
		req.ID = uuid.NewString()
	}
	body := struct {
		PairRequest
		IfExists string `json:"if_exists"`
	}{req, returnFirst}
	k := call{method: http.MethodPost, path: "/select_pair", class: req.PolicyClass, body: &body, prompt: &body.Prompt, repeatable: true}
	var answer Pair
	err := c.bookAs(ctx, req.ID, made, nil, func(ctx context.Context) error {
		err := c.do(ctx, k, &answer)
		if err == nil {
			of := Selection{ID: answer.ID}
			err = of.fault(k, req.ID, made, false)
		}
		return err
	})
	if err != nil {
		return Pair{}, err
	}
	return answer, nil
}

// Reserve books a prompt on a rank that the caller chose, or what Select chose
// under the same ID. The reservation has to be freed; see SelectAndReserve.
func (c *Client) Reserve(ctx context.Context, req ReserveRequest) (Reservation, error) {
	s, err := c.reserve(ctx, req, nil)
	return Reservation{
		ID: s.ID, Model: s.Model, RoutingGroup: s.RoutingGroup, Worker: s.Worker, DPRank: s.DPRank, Endpoint: s.Endpoint,
		LeaseSeconds: s.LeaseSeconds,
	}, err
}

// reserve books for a lease, nil for none. In the answer only the fields of a Reservation
// are set.
func (c *Client) reserve(ctx context.Context, req ReserveRequest, lease *Lease) (Selection, error) {
	made := req.ID == ""
	if made {
		if req.Worker == nil {
			return Selection{}, errNoID
		}
		req.ID = uuid.NewString()
	}
	body := struct {
		ReserveRequest
		bookingOptions
	}{req, c.bookingOptions(lease)}
	k := call{method: http.MethodPost, path: "/reservations", body: &body, prompt: &body.Prompt, repeatable: true, limit: attemptTimeout}
	return c.book(ctx, k, req.ID, made, lease)
}

// errNoID: without a worker, only the id determines what to book.
var errNoID = fmt.Errorf("%w: a reservation needs the worker or the ID of a kept selection", ErrBadRequest)

func (c *Client) bookingOptions(lease *Lease) bookingOptions {
	b := bookingOptions{IfExists: returnFirst}
	if lease != nil {
		b.LeaseSeconds = c.lease.Seconds()
	}
	return b
}

// book sends a call that books a reservation, as bookAs does. A lease gets the reservation before
// the next call about the id is sent.
func (c *Client) book(ctx context.Context, k call, id string, made bool, lease *Lease) (Selection, error) {
	var answer Selection
	err := c.bookAs(ctx, id, made, lease, func(ctx context.Context) error {
		err := c.do(ctx, k, &answer)
		if err == nil {
			err = answer.fault(k, id, made, lease != nil)
		}
		if err == nil && lease != nil {
			lease.attach(answer)
		}
		return err
	})
	if err != nil {
		return Selection{}, err
	}
	return answer, nil
}

// bookAs runs send, which sends a call that books, after the earlier calls about its id are done. If
// it fails and may have booked, the reservation is freed in the background, and later calls
// about the id wait for that. made: the client made the id, so that a reservation with it
// can only be this one.
func (c *Client) bookAs(ctx context.Context, id string, made bool, lease *Lease, send func(context.Context) error) error {
	if !c.beginTask() {
		return ErrClosed
	}
	sending, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.closing, cancel)() //nolint:contextcheck // the call ends with either
	release, err := c.order.acquire(sending, id)
	if err != nil {
		c.tasks.Done()
		return c.interrupted(ctx, err)
	}
	over := func() {
		release()
		c.tasks.Done()
	}
	if lease != nil && c.leaseOf(id) != nil {
		err = fmt.Errorf("%w: this client has a lease of reservation %s that has not ended", ErrConflict, id)
	} else {
		err = send(sending)
	}
	switch {
	case err == nil:
		c.order.markBooked(id)
		over()
		return nil
	case maybeBooked(err, made) && !c.hasLease(id):
		go func() {
			defer over()
			c.freeUncertain(ctx, id)
		}()
	default:
		over()
	}
	return c.interrupted(ctx, err)
}

// fault returns what is wrong with the answer of a call that books. A LostError is an
// answer that cannot be the service's.
func (s *Selection) fault(k call, id string, made, leased bool) error {
	var text string
	switch shortest, longest := minLease.Seconds(), maxLease.Seconds(); {
	case s.ID != id:
		text = fmt.Sprintf("the answer is about reservation %q, not %q", s.ID, id)
	case !leased || s.LeaseSeconds >= shortest && s.LeaseSeconds <= longest:
		return nil
	case s.LeaseSeconds == 0 && !made: // an earlier reservation of the caller, which stays
		return fmt.Errorf("%w: reservation %s was made without a lease", ErrConflict, id)
	default:
		text = fmt.Sprintf("the answer has a lease of %v s, not of %v to %v", s.LeaseSeconds, shortest, longest)
	}
	return &LostError{Method: k.method, Path: k.path, Err: errors.New(text)}
}

// maybeBooked reports whether a failed call may have booked. A conflict is about another
// reservation, unless the client made the id.
func maybeBooked(err error, made bool) bool {
	return errors.Is(err, ErrMaybeDone) && (made || !errors.Is(err, ErrConflict))
}

// interrupted adds ErrClosed to the error of a call that Close ended.
func (c *Client) interrupted(ctx context.Context, err error) error {
	if c.closing.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}
