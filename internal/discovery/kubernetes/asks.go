package kubernetes

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/discovery/kubernetes/mapping"
)

const (
	// maxAsks is how many engines are asked at a time, askTimeout how long each may take.
	maxAsks    = 16
	askTimeout = 5 * time.Second
	// An engine that has answered is asked again after askEvery ± 10 %, one that has not after
	// askFirst, which doubles up to askMost.
	askEvery = time.Minute
	askFirst = time.Second
	askMost  = 30 * time.Second
)

// asks asks engines what they serve.
type asks struct {
	d *Discovery

	// mu guards the fields below. It is innermost: it is taken under Discovery.mu.
	mu      sync.Mutex
	engines map[askKey]*asked
	running int
	closed  bool
	timer   *time.Timer // of the next that is due; nil: none
}

// askKey is an engine: another pod is another engine. A pod's engine that has another address, or
// restarted, is asked anew; until it answers, what it has said holds.
type askKey struct {
	pod  string // UID, or the address of an endpoint without a pod
	port uint16
}

func keyOf(p *mapping.Pod, port uint16) askKey { return askKey{cmp.Or(p.UID, p.IP), port} }

// ask wants an engine to be asked. Another turn means that it became ready again.
type ask struct {
	key  askKey
	url  string
	turn uint64
}

// asked is an engine with what it has said.
type asked struct {
	ask
	wanted   bool
	busy     bool // being asked
	due      time.Time
	failures int
	said     mapping.Answer
	problem  string // of the last try, "" after a success
}

func newAsks(d *Discovery) *asks { return &asks{d: d, engines: make(map[askKey]*asked)} }

// answer returns what an engine has said.
func (a *asks) answer(p *mapping.Pod, port uint16) mapping.Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.engines[keyOf(p, port)]
	if e == nil {
		return mapping.Answer{}
	}
	said := e.said
	said.Problem = e.problem
	return said
}

// want sets which engines are asked from now on.
func (a *asks) want(all []ask, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.engines {
		e.wanted = false
	}
	for _, w := range all {
		e := a.engines[w.key]
		switch {
		case e == nil:
			e = &asked{ask: w, due: now}
			a.engines[w.key] = e
		case e.turn != w.turn || e.url != w.url:
			e.due, e.failures = now, 0
		}
		e.ask, e.wanted = w, true
	}
	for key, e := range a.engines {
		if !e.wanted && !e.busy && now.Sub(e.due) > askMemory {
			delete(a.engines, key)
		}
	}
	a.startLocked(now)
}

// askMemory is how long what an engine has said is remembered after it was last due.
const askMemory = time.Hour

// startLocked starts what is due and sets the timer for what is not.
func (a *asks) startLocked(now time.Time) {
	if a.closed {
		return
	}
	var next time.Time
	var due []*asked
	for _, e := range a.engines {
		switch {
		case !e.wanted || e.busy:
		case !now.Before(e.due):
			due = append(due, e)
		case next.IsZero() || e.due.Before(next):
			next = e.due
		}
	}
	slices.SortFunc(due, func(x, y *asked) int { return cmp.Or(x.due.Compare(y.due), cmp.Compare(x.url, y.url)) })
	for _, e := range due {
		if a.running >= maxAsks {
			break // the end of one starts the next
		}
		url := e.url
		e.busy = true
		a.running++
		a.d.spawn(func(ctx context.Context) { a.run(ctx, e, url) })
	}
	if a.timer != nil {
		a.timer.Stop()
	}
	if !next.IsZero() {
		a.timer = time.AfterFunc(next.Sub(now), func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.startLocked(time.Now())
		})
	}
}

// close ends the asking.
func (a *asks) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.timer != nil {
		a.timer.Stop()
	}
}

// run asks one engine, and has a new answer applied.
func (a *asks) run(ctx context.Context, e *asked, url string) {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	said, err := a.d.config.Ask(asking, url)
	if a.heard(e, url, said, err) {
		a.d.change(func() {}) // without a.mu: who plans holds the lock of Discovery and takes ours
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.startLocked(time.Now())
}

// heard takes the answer at a URL, and reports whether it says anything new. The engine may have
// moved meanwhile: then the answer is another's.
func (a *asks) heard(e *asked, url string, said mapping.Answer, err error) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running--
	e.busy = false
	if e.url != url {
		return false
	}
	now := time.Now()
	before, wasProblem := e.said, e.problem
	outcome := "ok"
	switch {
	case err != nil:
		outcome, e.problem = "failed", err.Error()
	case said.Problem != "":
		outcome, e.problem = "incomplete", said.Problem
	default:
		e.problem = ""
	}
	a.d.counts.ask("engine", outcome)
	if err == nil {
		e.said = said.Or(before)
	}
	if e.problem != "" {
		e.failures++
		e.due = now.Add(min(askFirst<<min(e.failures-1, 8), askMost))
	} else {
		e.failures = 0
		e.due = now.Add(askEvery*9/10 + time.Duration(rand.Int64N(int64(askEvery/5))))
	}
	return !e.said.Equal(before) || e.problem != wasProblem
}
