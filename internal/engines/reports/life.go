package reports

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// State is what the signs of life of a rank say. Signs are KV events, reports that differ from the
// last, completed prefills, generated blocks, and bytes of answers through the gateway.
type State uint8

// The states. A rank that is not Alive gets no new requests but a trial from time to time.
const (
	Alive State = iota
	// Stalled: the engine has unfinished work, by its own word or because streamed answers of it
	// are awaited, and gives no sign.
	Stalled
	// Silent: a source that used to speak does not, and there is no other sign; or the engine takes no connections.
	Silent
	numStates
)

// String returns the state as answers, metrics and the log name it.
func (s State) String() string { return [...]string{"alive", "stalled", "silent"}[s] }

// never is the time of a trial that does not come.
const never = math.MaxInt64

const (
	// DefaultStalledAfter is how long a rank with unfinished work may give no sign.
	DefaultStalledAfter = 3 * time.Second
	// silentAfter is how long a source may be quiet.
	silentAfter = 15 * time.Second
	// trialEvery is how often a rank that is not alive gets a request.
	trialEvery = 10 * time.Second
	// firstTokens is how many times its predicted time the oldest prefill may take.
	firstTokens = 4
	// leastBusy is the busy time from which on a measured rate of prefills is used.
	leastBusy = time.Second
)

// life has the signs of life of one rank.
type life struct {
	signs    uint64    // count of the ledger's and the events' signs when last looked at
	seen     bool      // signs has been read
	signed   bool      // there was a sign since the last look
	last     time.Time // of the last sign
	excluded *Exclusion
	// unreachable: see Unreachable.
	unreachable bool
}

// Exclusion says that a rank is not alive.
type Exclusion struct {
	State State
	trial atomic.Int64 // when the next request may try it, in Unix nanoseconds
}

// Due reports whether the rank may be tried now.
func (e *Exclusion) Due(now time.Time) bool { return e.trial.Load() <= now.UnixNano() }

// Try takes the trial that is due; false if another request has taken it.
func (e *Exclusion) Try(now time.Time) bool {
	due := e.trial.Load()
	return due <= now.UnixNano() && e.trial.CompareAndSwap(due, now.Add(trialEvery).UnixNano())
}

// Untry gives back the trial that Try has taken at that time, for a request that does not go to the rank.
func (e *Exclusion) Untry(taken time.Time) {
	e.trial.CompareAndSwap(taken.Add(trialEvery).UnixNano(), taken.UnixNano())
}

// Exclusions has the ranks of one scope that are not alive. It never changes; nil has none.
type Exclusions map[catalog.Rank]*Exclusion

// Liveness knows which ranks give no sign of life. It is a part of Reports, whose lock guards it but for
// what is atomic.
type Liveness struct {
	config      Config
	excluded    atomic.Pointer[map[catalog.Scope]Exclusions] // nil: none
	allExcluded atomic.Uint64
	changed     bool // since excluded was published
	became      [numStates]uint64
}

// State returns the state of a rank.
func (e Exclusions) State(of catalog.Rank) State {
	if gone := e[of]; gone != nil {
		return gone.State
	}
	return Alive
}

// Excluded returns the ranks of a scope that are not alive. It takes no lock.
func (l *Liveness) Excluded(sc catalog.Scope) Exclusions {
	all := l.excluded.Load()
	if all == nil {
		return nil
	}
	return (*all)[sc]
}

// NoteAllExcluded counts a choice in which all eligible ranks were not alive, so that none was
// excluded.
func (l *Liveness) NoteAllExcluded() { l.allExcluded.Add(1) }

// Sign notes a sign of life of a rank.
func (rs *Reports) Sign(sc catalog.Scope, of catalog.Rank) {
	if !rs.used.Load() {
		return
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if s := rs.scopes[sc]; s != nil && s.ranks[of] != nil {
		s.ranks[of].life.signed = true
	}
}

// Await notes that the first byte of a streamed answer of a rank is awaited, which is unfinished work
// of its engine. Each call is followed by one of Awaited.
func (rs *Reports) Await(sc catalog.Scope, of catalog.Rank) {
	if rs.config.StalledAfter <= 0 {
		return
	}
	now := rs.config.Now()
	rs.mu.Lock()
	defer rs.mu.Unlock()
	_, r := rs.rank(sc, of)
	if r.awaited++; r.awaited == 1 && r.state() == Alive {
		r.life.last = now // it may have been idle
	}
}

// Awaited notes that an answer of a rank is not awaited any more. came: it has begun, which is a sign
// of life.
func (rs *Reports) Awaited(sc catalog.Scope, of catalog.Rank, came bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	s := rs.scopes[sc]
	if s == nil || s.ranks[of] == nil {
		return // it has left
	}
	r := s.ranks[of]
	r.awaited = max(0, r.awaited-1) // less, if it is another registration
	r.life.signed = r.life.signed || came
}

// Unreachable notes that the engine of a rank takes no connections, until Reachable is called. Until then the rank is silent, whatever
// signs of life there are: those of requests that it has served before come late. It gets no trials, because each would fail.
func (rs *Reports) Unreachable(sc catalog.Scope, of catalog.Rank) {
	if rs.config.StalledAfter <= 0 {
		return
	}
	snap := rs.catalog.Snapshot(sc)
	if snap == nil {
		return
	}
	e, ok := snap.Entry(of)
	if !ok {
		return // it has left
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	_, r := rs.rank(sc, of)
	r.life.unreachable = true
	if r.state() != Silent {
		rs.become(sc, e, r, Silent, rs.config.Now())
	}
	r.life.excluded.trial.Store(never)
}

// Reachable notes that the engine of a rank takes connections again, which is a sign of life.
func (rs *Reports) Reachable(sc catalog.Scope, of catalog.Rank) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if s := rs.scopes[sc]; s != nil && s.ranks[of] != nil {
		r := s.ranks[of]
		r.life.signed = r.life.signed || r.life.unreachable
		r.life.unreachable = false
	}
}

// watch judges the signs of life of a scope's ranks. It needs rs.mu.
func (rs *Reports) watch(s *scopeReports, snap *catalog.Snapshot, now time.Time) {
	if rs.config.StalledAfter <= 0 {
		return
	}
	type judged struct {
		catalog.Entry
		*rankReport
		state State
	}
	var changed []judged
	var gone []catalog.Rank // nothing is kept of them
	rs.ledger.Look(snap.Scope, nil, func(v *reservations.View) {
		for i, r := range s.ordered() {
			if r == nil {
				continue
			}
			e := snap.Ranks()[i]
			if signs := v.Signs(e.Slot) + rs.events(e.Rank); signs != r.life.signs {
				r.life.signed = r.life.signed || r.life.seen
				r.life.signs = signs
			}
			r.life.seen = true
			if r.life.signed {
				r.life.last = now
			}
			if state := rs.judge(v, e, r, now); state != r.state() {
				changed = append(changed, judged{e, r, state})
			}
			r.life.signed = false
			if r.awaited == 0 && r.latest() == nil && r.state() == Alive {
				gone = append(gone, e.Rank)
			}
		}
	})
	for _, of := range gone {
		rs.drop(s, of)
	}
	for _, x := range changed {
		rs.become(snap.Scope, x.Entry, x.rankReport, x.state, now)
	}
}

// judge returns the state of a rank, which does not become Alive without a sign or a report.
func (l *Liveness) judge(v *reservations.View, e catalog.Entry, r *rankReport, now time.Time) State {
	switch silent, was := l.isSilent(r, now), r.state(); {
	case r.life.unreachable:
		return Silent
	case r.life.signed:
		return Alive
	case silent:
		return Silent
	case was == Stalled:
		return Stalled
	}
	limit, works := l.patience(r)
	since := now.Sub(r.life.last)
	if !works || since < limit || since < firstTokens*l.firstToken(v, e, r) {
		return Alive
	}
	return Stalled
}

func (r *rankReport) state() State {
	if x := r.life.excluded; x != nil {
		return x.State
	}
	return Alive
}

func (rs *Reports) events(of catalog.Rank) uint64 {
	if rs.config.Events == nil {
		return 0
	}
	return rs.config.Events(of)
}

// patience returns for how long the rank may give no sign, without regard to its prefills.
// works is false if neither a source that beats and is not paused nor an awaited answer shows
// unfinished work.
func (l *Liveness) patience(r *rankReport) (limit time.Duration, works bool) {
	limit = l.config.StalledAfter
	var last *lastReport
	for i := range r.by {
		if h := &r.by[i]; h.beats() && !h.paused && (last == nil || h.at.After(last.at)) {
			last = h
		}
	}
	if last != nil && last.Running.Or(0)+last.Waiting.Or(0) > 0 {
		return max(limit, quiet(last.Interval)), true
	}
	return limit, r.awaited > 0
}

// beats reports whether the source has promised to speak again.
func (l *lastReport) beats() bool { return !l.at.IsZero() && l.Interval > 0 }

// isSilent reports whether the rank's sources have spoken and do not, and nothing else is heard.
func (l *Liveness) isSilent(r *rankReport, now time.Time) bool {
	beats := false
	for i := range r.by {
		h := &r.by[i]
		if !h.beats() {
			continue
		}
		beats = true
		if limit := max(silentAfter, quiet(h.Interval)); now.Sub(h.at) < limit || now.Sub(r.life.last) < limit {
			return false
		}
	}
	return beats
}

// firstToken returns how long the oldest unfinished prefill of a rank should take.
func (l *Liveness) firstToken(v *reservations.View, e catalog.Entry, r *rankReport) time.Duration {
	predicted := 0.0
	if l.config.FirstToken != nil {
		predicted = l.config.FirstToken(v, e)
	}
	if rate := r.prefill.rate(); rate > 0 {
		tokens := float64(v.Queue(e.Slot).HeadTokens)
		if tokens == 0 {
			tokens = float64(v.Greater(e.Slot).PrefillTokens)
		}
		predicted = max(predicted, tokens/rate)
	}
	return time.Duration(min(predicted, time.Hour.Seconds()) * float64(time.Second))
}

// become changes the state of a rank to another one.
func (l *Liveness) become(sc catalog.Scope, e catalog.Entry, r *rankReport, state State, now time.Time) {
	was := r.state()
	l.changed = true
	text, level := "engine gives signs of life again", zerolog.InfoLevel
	if state == Alive {
		r.life.excluded = nil
	} else {
		l.became[state]++
		text, level = "engine gives no sign of life: it gets no new requests", zerolog.WarnLevel
		x := &Exclusion{State: state}
		x.trial.Store(now.Add(trialEvery).UnixNano())
		if was != Alive {
			x.trial.Store(r.life.excluded.trial.Load())
		}
		r.life.excluded = x
	}
	l.config.Log.WithLevel(level).Str("model", catalog.Clip(sc.Model)).Str("tenant", catalog.Clip(sc.Tenant)).
		Uint64("worker_id", e.Rank.Worker).Uint32("dp_rank", e.Rank.DP).Stringer("state", state).Msg(text)
}

// publishExclusions shows the ranks that are not alive to choices. It needs rs.mu.
func (l *Liveness) publishExclusions(scopes map[catalog.Scope]*scopeReports) {
	var all map[catalog.Scope]Exclusions
	for sc, s := range scopes {
		for of, r := range s.ranks {
			if r.life.excluded == nil {
				continue
			}
			if all == nil {
				all = make(map[catalog.Scope]Exclusions)
			}
			if all[sc] == nil {
				all[sc] = make(Exclusions)
			}
			all[sc][of] = r.life.excluded
		}
	}
	l.changed = false
	if all == nil {
		l.excluded.Store(nil)
		return
	}
	l.excluded.Store(&all)
}

// prefill is what an engine has prefilled since it started, or since it was first heard.
type prefill struct {
	tokens, micros         uint64 // since then
	lastTokens, lastMicros uint64 // as last reported
	heard                  bool
}

// add takes a report. Numbers that have fallen are those of an engine that has restarted.
func (p *prefill) add(r *load.Report) (grew bool) {
	tokens, known := r.PrefillTokens.Get()
	micros, timed := r.PrefillBusyMicros.Get()
	if !known || !timed {
		return false
	}
	switch {
	case !p.heard || tokens < p.lastTokens || micros < p.lastMicros:
		*p = prefill{heard: true}
	default:
		grew = micros > p.lastMicros
		p.tokens += tokens - p.lastTokens
		p.micros += micros - p.lastMicros
	}
	p.lastTokens, p.lastMicros = tokens, micros
	return grew
}

// rate returns the measured tokens per second, 0 if it is not measured for long enough.
func (p *prefill) rate() float64 {
	if time.Duration(p.micros)*time.Microsecond < leastBusy {
		return 0
	}
	return float64(p.tokens) / (float64(p.micros) / 1e6)
}
