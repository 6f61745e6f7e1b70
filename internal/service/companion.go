package service

import (
	"sync"

	"github.com/select-service/select-service/internal/affinity"
)

// companion is what the service keeps beside a booking while it lives: what it
// takes to give the first answer again, and the booking's use of a session.
type companion struct {
	answers *firstAnswers
	hold    *affinity.Hold // nil: no session

	// What it takes to give the answer again. It is set before the booking can be
	// found, and guarded by answers.mu from then on.
	id        string
	identity  identity
	endpoint  string
	selected  bool // it was booked by Select: selection is the answer
	selection Selection

	// answers.mu guards the rest, and the place in the list.
	older, newer *companion
	state        companionState
	given        bool          // a repeat was answered with it
	withdrawn    chan struct{} // closed when it is over; not nil: it is being taken back
}

type companionState uint8

const (
	unlisted  companionState = iota // its booking is being entered
	listed                          // remembered, in the list
	forgotten                       // too old, or nobody knows its id
	ended                           // and so is the booking
)

// identity tells the prompt of a booking from others. Sequence hashes depend on
// all that a block's content depends on; rest stands for what is in no complete
// block. It is not known of a prompt that came as hashes.
type identity struct {
	sequence []uint64 // not changed after booking
	tokens   uint64
	rest     uint64
	hasRest  bool
}

// remember sets the answer of a selection that is about to be booked.
func (c *companion) remember(r *Selection) {
	if c == nil || !c.selected {
		return
	}
	c.selection, c.endpoint = *r, r.Endpoint
	c.selection.ReservationID = &c.id
	if r.SelectionID != nil {
		c.selection.SelectionID = new(*r.SelectionID) // the request's is lent
	}
}

// ReservationEnded implements reservations.Companion.
func (c *companion) ReservationEnded() {
	c.answers.forget(c)
	c.hold.Release()
}

// maxFirstAnswers bounds the bookings whose answers are remembered (decision E4).
const maxFirstAnswers = 1 << 16

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// firstAnswers remembers what bookings were answered with. The zero value is
// empty. Its lock comes after those of the ledger.
type firstAnswers struct {
	mu             sync.Mutex
	oldest, newest *companion
	n              int
}

// add remembers the companion of a booking, unless that has ended meanwhile. The
// oldest one makes room.
func (f *firstAnswers) add(c *companion) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.state != unlisted {
		return
	}
	c.state = listed
	if c.older = f.newest; c.older != nil {
		c.older.newer = c
	} else {
		f.oldest = c
	}
	f.newest = c
	if f.n++; f.n > maxFirstAnswers {
		f.forgetLocked(f.oldest, forgotten)
	}
}

// forget drops what is kept of a booking that has ended.
func (f *firstAnswers) forget(c *companion) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetLocked(c, ended)
}

func (f *firstAnswers) forgetLocked(c *companion, state companionState) {
	if c.state == listed {
		if c.older != nil {
			c.older.newer = c.newer
		} else {
			f.oldest = c.newer
		}
		if c.newer != nil {
			c.newer.older = c.older
		} else {
			f.newest = c.older
		}
		f.n--
	}
	c.older, c.newer = nil, nil
	c.state = state
	if c.withdrawn != nil {
		close(c.withdrawn)
		c.withdrawn = nil
	}
	c.identity, c.endpoint, c.selection = identity{}, "", Selection{} // the booking may live on
}

// give runs look on what is kept of a booking, if it is remembered. If look says
// that it is what a request repeats, it is not withdrawn from then on. If it is
// withdrawn already or has ended, look does not run, and over is closed when the
// booking is over.
func (f *firstAnswers) give(c *companion, look func() bool) (given bool, over <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case c.state == forgotten:
		return false, nil
	case c.state == ended:
		return false, closed
	case c.withdrawn != nil:
		return false, c.withdrawn
	}
	given = look()
	c.given = c.given || given
	return given, nil
}

// withdraw keeps a booking from being given, because its caller has gone and it
// will be ended. It is false if it has been given: then it is no longer that
// caller's.
func (f *firstAnswers) withdraw(c *companion) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.given {
		return false
	}
	if c.state == unlisted || c.state == listed {
		c.withdrawn = make(chan struct{})
	}
	return true
}

// count returns how many answers are remembered.
func (f *firstAnswers) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}
