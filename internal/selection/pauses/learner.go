package pauses

import (
	"math"
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// How pauses are learned, by llm-d.
const (
	rate     = 0.1 // weight of the newest pause
	enough   = 20  // samples, before which the prior holds
	shortest = 100 * time.Millisecond
	longest  = time.Hour
)

const (
	// parts is in how many parts of the horizon turns are counted by when they ended. One more is being filled.
	parts = 60
	slots = parts + 1
	// memory bounds how many turns from before the horizon count, so that the newer ones outweigh them.
	memory = 200
	// leastSigma keeps pauses that are all alike from excluding every other one.
	leastSigma = 0.1
	// fresh is how long an estimate is used before it is made again.
	fresh = time.Second
)

// Learner learns the pauses of the sessions of all scopes, and how many sessions they start. Its memory is bounded by the number
// of scopes, about 2 KB each. It is safe for concurrent use.
type Learner struct {
	start   time.Time
	horizon time.Duration

	mu     sync.Mutex
	scopes map[catalog.Scope]*sessions
}

// sessions is what was seen of the sessions of a scope.
type sessions struct {
	of      [classes]estimate
	started Started
}

// New returns a learner that knows nothing. start is before all times that it gets. Sessions are watched for kept after
// each of their turns; the horizon is that, but at most an hour.
func New(start time.Time, kept time.Duration) *Learner {
	return &Learner{start: start, horizon: min(kept, longest), scopes: make(map[catalog.Scope]*sessions)}
}

// Ended notes that a turn of a session has ended, and that none of its turns is under way. One of Returned, Left and Final
// may follow, with the same time; a session that does not come back needs none.
func (l *Learner) Ended(sc catalog.Scope, c Class, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(sc).of[c].ended(l.slot(at))
}

// Returned notes that the session whose turn ended then has sent the next one at now.
func (l *Learner) Returned(sc catalog.Scope, c Class, ended, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pause := now.Sub(ended)
	if pause > l.horizon {
		return
	}
	e := &l.of(sc).of[c]
	e.advance(l.slot(now))
	e.returned(l.slot(ended))
	if pause >= shortest {
		e.learn(math.Log(pause.Seconds()), Prior(c, l.horizon))
	}
}

// Left notes that the session whose turn ended then is not watched any more since now, although it may come back.
func (l *Learner) Left(sc catalog.Scope, c Class, ended, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &l.of(sc).of[c]
	e.advance(l.slot(now))
	seen := e.pauses(Prior(c, l.horizon))
	e.withdraw(l.slot(ended), 1-seen.longer(now.Sub(ended)))
}

// Final notes that the turn which ended then was the last one of its session, which has said so.
func (l *Learner) Final(sc catalog.Scope, c Class, ended time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(sc).of[c].withdraw(l.slot(ended), 1)
}

// Pauses returns what is known about the sessions of a class at a time: the prior until enough was seen.
func (l *Learner) Pauses(sc catalog.Scope, c Class, now time.Time) Pauses {
	l.mu.Lock()
	defer l.mu.Unlock()
	prior := Prior(c, l.horizon)
	all := l.scopes[sc]
	if all == nil {
		return prior
	}
	e := &all.of[c]
	if e.made.IsZero() || now.Sub(e.made) >= fresh {
		e.made, e.known = now, e.pauses(prior)
		e.known.Share = e.share(e.known, l, now)
	}
	return e.known
}

// Forget forgets the scopes for which gone returns true.
func (l *Learner) Forget(gone func(catalog.Scope) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for sc := range l.scopes {
		if gone(sc) {
			delete(l.scopes, sc)
		}
	}
}

func (l *Learner) of(sc catalog.Scope) *sessions {
	all := l.scopes[sc]
	if all == nil {
		all = new(sessions)
		l.scopes[sc] = all
	}
	return all
}
