package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/uuid"
)

// returnFirst makes a repeated booking safe: the same id with the same request is
// answered as the first time.
const returnFirst = "return"

// Select chooses a worker and books nothing. With an ID the choice can be booked
// by Reserve under that ID alone.
func (c *Client) Select(ctx context.Context, req SelectRequest) (Selection, error) {
	var s Selection
	err := c.do(ctx, call{method: http.MethodPost, path: "/select", body: req, repeatable: true}, &s)
	return s, err
}

// booking is a request for a booking as it travels, but for its own fields.
type booking struct {
	IfExists     string  `json:"if_exists"`
	LeaseSeconds float64 `json:"lease_seconds,omitempty"` // 0: no lease
}

// SelectAndReserve chooses a worker and books the load in one step. Whoever calls
// it has to call Free with the answer's ID; Lease does that by itself. If it fails
// after the booking may have been made, that is freed in the background.
func (c *Client) SelectAndReserve(ctx context.Context, req SelectRequest) (Selection, error) {
	return c.selectAndReserve(ctx, req, 0)
}

func (c *Client) selectAndReserve(ctx context.Context, req SelectRequest, leaseSeconds float64) (Selection, error) {
	made := req.ID == ""
	if made {
		req.ID = uuid.NewString()
	}
	body := struct {
		SelectRequest
		booking
	}{req, booking{returnFirst, leaseSeconds}}
	k := call{method: http.MethodPost, path: "/select_and_reserve", body: body, repeatable: true}
	return book(ctx, c, k, req.ID, made, func(s *Selection) string { return s.ID })
}

// Reserve books a prompt on a rank that the caller chose, or what Select chose
// under the same ID. It has to be freed, see SelectAndReserve.
func (c *Client) Reserve(ctx context.Context, req ReserveRequest) (Reservation, error) {
	return c.reserve(ctx, req, 0)
}

func (c *Client) reserve(ctx context.Context, req ReserveRequest, leaseSeconds float64) (Reservation, error) {
	made := req.ID == ""
	if made {
		if req.Worker == nil {
			return Reservation{}, errNoID
		}
		req.ID = uuid.NewString()
	}
	body := struct {
		ReserveRequest
		booking
	}{req, booking{returnFirst, leaseSeconds}}
	k := call{method: http.MethodPost, path: "/reservations", body: body, repeatable: true, limit: patience}
	return book(ctx, c, k, req.ID, made, func(r *Reservation) string { return r.ID })
}

// errNoID: without a worker only the id says what to book.
var errNoID = fmt.Errorf("%w: a reservation needs the worker or the ID of a kept selection", ErrBadRequest)

// book makes a booking when the calls about its id before it are done. If it
// fails after it may have been made, it is freed in the background, and calls
// about the id wait for that. made: the id is of our making, so that whatever has
// it is this booking. idOf tells whose the answer is.
func book[A any](ctx context.Context, c *Client, k call, id string, made bool, idOf func(*A) string) (A, error) {
	var answer, none A
	if !c.begin() {
		return none, ErrClosed
	}
	sending, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.closing, cancel)() //nolint:contextcheck // the booking ends with either
	give, err := c.turns.take(sending, id)
	if err != nil {
		c.tasks.Done()
		return none, c.interrupted(ctx, err)
	}
	over := func() {
		give()
		c.tasks.Done()
	}
	if err = c.do(sending, k, &answer); err == nil && idOf(&answer) != id {
		err = &LostError{Method: k.method, Path: k.path, Err: fmt.Errorf("the answer is about reservation %q, not %q", idOf(&answer), id)}
	}
	if err == nil {
		c.turns.booked(id)
		over()
		return answer, nil
	}
	if doubtful(err, made) {
		go func() {
			defer over()
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeTimeout)
			defer cancel()
			_ = c.end(ctx, id) // nobody is left to tell; the service ends it when its time has passed
		}()
	} else {
		over()
	}
	return none, c.interrupted(ctx, err)
}

// doubtful: the booking that failed may be there. A conflict is about another one,
// unless nobody else can have the id.
func doubtful(err error, made bool) bool {
	return errors.Is(err, ErrMaybeDone) && (made || !errors.Is(err, ErrConflict))
}

// interrupted adds to the error of a booking that it was Close that ended it.
func (c *Client) interrupted(ctx context.Context, err error) error {
	if c.closing.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}
