package zmqsock

import (
	"slices"
	"sort"
	"time"
)

// timer is something that a loop does once, later.
type timer struct {
	at  time.Time
	run func()
}

// after has run called on the loop's goroutine when d has passed. It cannot be
// called off: run looks whether it is still wanted.
func (l *loop) after(d time.Duration, run func()) {
	at := time.Now().Add(d)
	i := sort.Search(len(l.timers), func(i int) bool { return l.timers[i].at.After(at) })
	l.timers = slices.Insert(l.timers, i, timer{at, run})
}

func (l *loop) runTimers() {
	if len(l.timers) == 0 {
		return
	}
	now := time.Now()
	for len(l.timers) > 0 && !l.timers[0].at.After(now) {
		due := l.timers[0]
		l.timers[0] = timer{} // what it holds can go
		l.timers = l.timers[1:]
		due.run()
	}
}
