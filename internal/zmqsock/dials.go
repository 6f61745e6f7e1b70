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
	// deadAtOnce bounds those of them that go to dead addresses: the rest is always free for
	// others. deadEvery is the time for each such attempt, deadTick how often some are made:
	// thousands of dead addresses take little of a core, and make little garbage.
	deadAtOnce = 96
	deadEvery  = 2 * time.Millisecond
	deadTick   = 20 * time.Millisecond
	// silentAfter is how long an attempt that fails lasts where the address is silent, not
	// only closed.
	silentAfter = 500 * time.Millisecond
	// deadRetry is the wait between two attempts from which on an address is dead that
	// refuses connections.
	deadRetry = time.Second
)

// dials are the attempts to connect that wait for their turn, and how many run. An address
// that answers is not kept waiting by thousands that do not: those that are dead (see
// dialer.dead) have a queue and bounds of their own, and of the others the one that came
// last and the one that has waited longest go in turn.
type dials struct {
	// mu guards what follows.
	mu            sync.Mutex
	running, dead int       // attempts; those of them to dead addresses
	waiting       list.List // of *dialer
	waitingDead   list.List // the same, to dead addresses
	newestNext    bool      // of waiting
	deadAt        time.Time // the next attempt to a dead address
	ticking       bool      // tick will be called
}

// add has a dialer make an attempt when its turn comes.
func (q *dials) add(d *dialer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if d.dead {
		d.turn = q.waitingDead.PushBack(d)
	} else {
		d.turn = q.waiting.PushBack(d)
	}
	q.startLocked()
}

// remove takes back what add has asked for, and reports whether the turn has not come.
func (q *dials) remove(d *dialer) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if d.turn == nil {
		return false
	}
	q.waiting.Remove(d.turn) // does nothing in the list that it is not in
	q.waitingDead.Remove(d.turn)
	d.turn = nil
	return true
}

// done says that an attempt is over: there is a connection, or it has failed.
func (q *dials) done(dead bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	if dead {
		q.dead--
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
		dead := d.dead
		if d.hub.start(func() { d.attempt(dead) }) != nil {
			return // the hub has stopped
		}
		q.running++
		if dead {
			q.dead++
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
	if next == nil && q.dead < deadAtOnce && q.waitingDead.Len() > 0 && q.deadDueLocked() {
		from, next = &q.waitingDead, q.waitingDead.Front()
	}
	if next == nil {
		return nil
	}
	d := from.Remove(next).(*dialer)
	d.turn = nil
	return d
}

// deadDueLocked reports whether it is time for an attempt to a dead address. If not, the
// attempts go on with the next tick.
func (q *dials) deadDueLocked() bool {
	now := time.Now()
	if now.Before(q.deadAt) {
		if !q.ticking {
			q.ticking = true
			time.AfterFunc(deadTick, q.tick)
		}
		return false
	}
	if earliest := now.Add(-deadTick); q.deadAt.Before(earliest) {
		q.deadAt = earliest
	}
	q.deadAt = q.deadAt.Add(deadEvery)
	return true
}

func (q *dials) tick() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ticking = false
	q.startLocked()
}
