package zmqsock

import (
	"container/list"
	"sync"
	"time"
)

const (
	// attemptsAtOnce bounds the attempts to connect that run at a time: each takes a
	// descriptor and about 20 KiB.
	attemptsAtOnce = 128
	// silentAtOnce bounds those of them that go to silent addresses: the rest is always
	// free for others.
	silentAtOnce = 96
	// silentAfter is how long an attempt that fails lasts where the address is silent, not
	// only closed.
	silentAfter = 500 * time.Millisecond
)

// dials are the attempts to connect that wait for their turn, and how many run. An address
// that answers at once is not kept waiting by thousands that do not: those whose last attempt
// was not answered have a queue and a bound of their own, and of the others the one that
// came last and the one that has waited longest go in turn.
type dials struct {
	// mu guards what follows.
	mu              sync.Mutex
	running, silent int       // attempts; those of them to silent addresses
	waiting         list.List // of *dialer
	waitingSilent   list.List // the same, to silent addresses
	newestNext      bool      // of waiting
}

// add has a dialer make an attempt when its turn comes.
func (q *dials) add(d *dialer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if d.silent {
		d.turn = q.waitingSilent.PushBack(d)
	} else {
		d.turn = q.waiting.PushBack(d)
	}
	q.startLocked()
}

// remove takes back what add has asked for, if the turn has not come.
func (q *dials) remove(d *dialer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if d.turn == nil {
		return
	}
	q.waiting.Remove(d.turn) // does nothing in the list that it is not in
	q.waitingSilent.Remove(d.turn)
	d.turn = nil
}

// done says that an attempt is over: there is a connection, or it has failed.
func (q *dials) done(silent bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	if silent {
		q.silent--
	}
	q.startLocked()
}

// startLocked starts the attempts for which there is room.
func (q *dials) startLocked() {
	for q.running < attemptsAtOnce {
		d := q.takeLocked()
		if d == nil {
			return
		}
		silent := d.silent
		if d.hub.start(func() { d.attempt(silent) }) != nil {
			return // the hub has stopped
		}
		q.running++
		if silent {
			q.silent++
		}
	}
}

// takeLocked returns the dialer whose turn it is, nil if there is none.
func (q *dials) takeLocked() *dialer {
	from, next := &q.waiting, q.waiting.Front()
	if q.newestNext {
		next = q.waiting.Back()
	}
	q.newestNext = !q.newestNext
	if next == nil && q.silent < silentAtOnce {
		from, next = &q.waitingSilent, q.waitingSilent.Front()
	}
	if next == nil {
		return nil
	}
	d := from.Remove(next).(*dialer)
	d.turn = nil
	return d
}
