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
func (di *dials) add(d *dialer) {
	di.mu.Lock()
	defer di.mu.Unlock()
	if d.dead {
		d.turn = di.waitingDead.PushBack(d)
	} else {
		d.turn = di.waiting.PushBack(d)
	}
	di.startLocked()
}

// remove undoes add, and reports whether the attempt had not begun.
func (di *dials) remove(d *dialer) bool {
	di.mu.Lock()
	defer di.mu.Unlock()
	if d.turn == nil {
		return false
	}
	di.waiting.Remove(d.turn) // no-op for the list that does not have it
	di.waitingDead.Remove(d.turn)
	d.turn = nil
	return true
}

// done marks the end of an attempt, with a connection or without.
func (di *dials) done(dead bool) {
	di.mu.Lock()
	defer di.mu.Unlock()
	di.running--
	if dead {
		di.dead--
	}
	di.startLocked()
}

// startLocked starts the attempts for which there is room.
func (di *dials) startLocked() {
	for di.running < attemptsAtOnce {
		d := di.takeLocked()
		if d == nil {
			return
		}
		dead := d.dead
		if d.hub.start(func() { d.attempt(dead) }) != nil {
			return // the hub has stopped
		}
		di.running++
		if dead {
			di.dead++
		}
	}
}

// takeLocked returns the dialer whose turn it is, nil if there is none.
func (di *dials) takeLocked() *dialer {
	from, next := &di.waiting, di.waiting.Front()
	if di.newestNext {
		next = di.waiting.Back()
	}
	di.newestNext = !di.newestNext
	if next == nil && di.dead < deadAtOnce && di.waitingDead.Len() > 0 && di.deadDueLocked() {
		from, next = &di.waitingDead, di.waitingDead.Front()
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
func (di *dials) deadDueLocked() bool {
	now := time.Now()
	if now.Before(di.deadAt) {
		if !di.ticking {
			di.ticking = true
			time.AfterFunc(deadTick, di.tick)
		}
		return false
	}
	if earliest := now.Add(-deadTick); di.deadAt.Before(earliest) {
		di.deadAt = earliest
	}
	di.deadAt = di.deadAt.Add(deadEvery)
	return true
}

func (di *dials) tick() {
	di.mu.Lock()
	defer di.mu.Unlock()
	di.ticking = false
	di.startLocked()
}
