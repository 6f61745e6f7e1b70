package kubernetes

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
)

const (
	// maxAsks is how many engines are asked at a time. askTimeout is how long one may take for all
	// questions together, of which each has 5 s (describe).
	maxAsks    = 16
	askTimeout = 30 * time.Second
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

func keyOf(p *mapping.Pod, port uint16) askKey { return askKey{engineOf(p), port} }

// engineOf returns the member pod of the keys of a pod's engines.
func engineOf(p *mapping.Pod) string { return cmp.Or(p.UID, p.IP) }

// ask wants an engine to be asked. Another turn means that it became ready again, or restarted.
type ask struct {
	key   askKey
	url   string
	turn  uint64
	needs mapping.Needs
}

// asked is an engine with what it has said.
type asked struct {
	ask
	wanted   bool
	busy     bool // being asked
	due      time.Time
	failures int
	said     mapping.Answer
	// corrected is the block size that it tells, if said has that of its events instead; else 0.
	corrected uint32
}

func newAsks(d *Discovery) *asks { return &asks{d: d, engines: make(map[askKey]*asked)} }

// remember takes what workers of an earlier life of the process have as said by their engines,
// until these are asked.
func (a *asks) remember(workers []*catalog.Worker, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range workers {
		if key, said, ok := answerIn(w); ok {
			a.engines[key] = &asked{due: now, said: said}
		}
	}
}

// answer returns what an engine has said.
func (a *asks) answer(p *mapping.Pod, port uint16) mapping.Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.engines[keyOf(p, port)]; e != nil {
		return e.said
	}
	return mapping.Answer{}
}

// correct takes the block size of an engine's events as said by it, once, unless it was given. It
// reports whether that was so.
func (a *asks) correct(w *catalog.Worker, size uint32) bool {
	key, ok := keyIn(&w.Record)
	if !ok || w.BlockSize == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.engines[key]
	if e == nil || !e.needs.BlockSize || e.corrected > 0 || e.said.BlockSize != *w.BlockSize || size == 0 || size == *w.BlockSize {
		return false
	}
	e.corrected, e.said = e.said.BlockSize, e.said.WithBlockSize(size)
	return true
}

// want sets which engines are asked from now on. What an engine has said is kept while its pod is
// known, whatever the pod's state is; of an earlier life also until all pods are listed.
func (a *asks) want(all []ask, known map[string]bool, listed bool, now time.Time) {
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
		if !e.wanted && !e.busy && !known[key.pod] && (listed || !e.said.Restored) {
			delete(a.engines, key)
		}
	}
	a.startLocked(now)
}

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
		begun := e.ask
		e.busy = true
		a.running++
		a.d.spawn(func(ctx context.Context) { a.run(ctx, e, begun) })
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
func (a *asks) run(ctx context.Context, e *asked, begun ask) {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	said, err := a.d.config.Ask(asking, begun.url)
	if a.heard(e, begun, said, err) {
		a.d.change(func() {}) // without a.mu: who plans holds the lock of Discovery and takes ours
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.startLocked(time.Now())
}

// heard takes an answer, and reports whether it says anything new. The engine may have moved
// meanwhile: then the answer is another's. It may have restarted: then it is asked once more.
func (a *asks) heard(e *asked, begun ask, said mapping.Answer, err error) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running--
	e.busy = false
	if e.url != begun.url {
		return false
	}
	before := e.said
	outcome := "ok"
	if err != nil {
		outcome, e.said.Problem = "failed", err.Error()
	} else {
		if e.said = said; said.Unanswered || !before.Restored {
			e.said = said.Or(before)
		}
		if e.corrected > 0 && e.said.BlockSize == e.corrected {
			e.said = e.said.WithBlockSize(before.BlockSize)
		} else {
			e.corrected = 0
		}
		if e.needs.Lacking(e.said) != "" {
			outcome = "incomplete"
		}
	}
	a.d.counts.ask("engine", outcome)
	now := time.Now()
	switch {
	case e.turn != begun.turn:
		e.due = now
	case outcome != "ok":
		e.failures++
		e.due = now.Add(min(askFirst<<min(e.failures-1, 8), askMost))
	default:
		e.failures = 0
		e.due = now.Add(askEvery*9/10 + time.Duration(rand.Int64N(int64(askEvery/5))))
	}
	if further := e.said.Further; len(further) > 0 && !slices.Equal(further, before.Further) {
		a.d.log.Info().Str("engine", e.url).Str("model", catalog.Clip(e.said.Model)).Strs("further", clipped(further)).
			Msg("an engine lists further models, which are not served")
	}
	return !e.said.Equal(before)
}
