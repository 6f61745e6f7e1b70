package zmqsock

import (
	"container/list"
	"sync"
	"time"
)

const (
	// attemptsAtOnce bounds the concurrent attempts to connect. Each takes a descriptor and
	// about 20 KiB.
	attemptsAtOnce = 128
	// deadAtOnce bounds the concurrent attempts to dead addresses; the rest is always free for
	// others. One such attempt is made per deadEvery, a few at each deadTick, so that thousands
	// of dead addresses take little CPU and make little garbage.
	deadAtOnce = 96
	deadEvery  = 2 * time.Millisecond
	deadTick   = 20 * time.Millisecond
	// silentAfter is how long a failed attempt must have lasted to count as unanswered,
	// rather than refused.
	silentAfter = 500 * time.Millisecond
	// deadRetry is the wait between two attempts from which an address that refuses
	// connections counts as dead.
	deadRetry = time.Second
)

// dials queues attempts to connect and bounds how many run. Thousands of addresses that do not
// answer must not keep one waiting that does: dead addresses (dialer.dead) have a queue and
// bounds of their own, and of the others the newest and the oldest waiter go in turn.
type dials struct {
	// mu guards the fields below.
	mu            sync.Mutex
	running, dead int       // running attempts; how many of them go to dead addresses
	waiting       list.List // of *dialer
	waitingDead   list.List // the same, to dead addresses
	newestNext    bool      // the newest of waiting goes next
	deadAt        time.Time // time of the next attempt to a dead address
	ticking       bool      // a call of tick is scheduled
}

// add queues an attempt of a dialer.
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

// remove undoes add, and reports whether the attempt had not begun.
func (q *dials) remove(d *dialer) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if d.turn == nil {
		return false
	}
	q.waiting.Remove(d.turn) // no-op for the list that does not have it
	q.waitingDead.Remove(d.turn)
	d.turn = nil
	return true
}

// done marks the end of an attempt, with a connection or without.
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
