package kvevents

import "time"

// phase is where a stream stands with a replay.
type phase uint8

const (
	idle      phase = iota // live messages are applied as they come
	waiting                // a replay is to begin; live messages are held
	replaying              // it runs; live messages are held
)

// want is what a replay is for.
type want struct {
	from     uint64 // the first number asked for
	target   uint64 // if targeted: the last number missed
	targeted bool
	confirm  bool // live numbers fell: is it a new engine?
}

// replay is the replay of a stream, wanted or running.
type replay struct {
	phase   phase
	overdue bool // phase is idle, but a replay that had to wait too long is still wanted
	want    want
	// quiet is the time of the last sign of life while messages are held.
	quiet time.Time

	// Of the running replay:

	above   uint64 // what was applied when it began,
	applied bool   // if anything
	any     bool   // a message has come,
	first   uint64 // the first number
	prev    uint64 // and the newest
	back    bool   // it reached back behind a break: it is applied again
	late    bool   // it began after the first number asked for
	leftOut bool   // a number is missing in it
}

func (r *replay) wanted() bool { return r.phase != idle || r.overdue }

// begin asks for a replay and holds live messages from now on.
func (s *stream) begin(w want, now time.Time) {
	s.replay = replay{phase: waiting, want: w, quiet: now}
	s.fx.ask()
}

// granted begins the replay that was asked for and returns the number to
// request. It is false if none is wanted any more.
func (s *stream) granted(now time.Time) (from uint64, ok bool) {
	r := &s.replay
	if r.phase == replaying || !r.wanted() {
		return 0, false
	}
	s.n.ReplayStarts.Add(1)
	s.own.Replays++
	*r = replay{phase: replaying, want: r.want, quiet: now, above: s.last, applied: s.known}
	return r.want.from, true
}

// notOpened takes the news that the granted request could not be sent.
func (s *stream) notOpened(now time.Time) {
	if s.replay.phase == replaying {
		s.finish(ReplayNotOpened, now)
	}
}

// answer takes a message of the running replay, or its end.
func (s *stream) answer(m message, end bool, now time.Time) {
	r := &s.replay
	if r.phase != replaying {
		return
	}
	if end {
		s.ended(now)
		return
	}
	s.n.Replayed.Add(1)
	if r.any && m.seq <= r.prev {
		return // no progress: not even a sign of life
	}
	if s.fx.foreign(m.payload) {
		s.n.Foreign.Add(1)
		r.quiet = now
		return
	}
	r.quiet = now
	if r.want.from == 0 && r.applied {
		remembered, same := s.trail.compare(m)
		if remembered && !same {
			s.restarted(true, false, now)
			return
		}
		if remembered && m.seq <= s.doubt.seq {
			s.doubt = position{}
		}
	}
	if r.any {
		r.leftOut = r.leftOut || m.seq-r.prev > 1
	} else {
		r.any, r.first = true, m.seq
		s.firstAnswer(m.seq)
		if m.seq == 0 && !s.known {
			s.fx.replayed()
		}
	}
	r.prev = m.seq
	if !s.known || m.seq > s.last {
		s.take(m)
	}
}

// firstAnswer sees where the replay joins what was applied.
func (s *stream) firstAnswer(seq uint64) {
	r := &s.replay
	if !s.known {
		r.late = seq > r.want.from
		return
	}
	r.late = seq > s.last && seq-s.last > 1
	if seq > s.last || seq >= s.base || r.want.confirm {
		return
	}
	// It reaches back behind a break, or behind where we joined: all of it is
	// applied again, and numbers that it does not bring are missed anew.
	r.back = true
	s.fx.rewound()
	s.known, s.last, s.base = seq > 0, seq-min(seq, 1), seq
	if s.hole.ok && s.hole.seq >= seq {
		s.hole = position{}
	}
}

// ended takes the end mark.
func (s *stream) ended(now time.Time) {
	r := &s.replay
	below := r.any && r.prev < r.above
	switch {
	case r.want.from == 0 && r.applied && below && (r.first == 0 || r.back):
		s.restarted(true, true, now)
	case r.want.confirm && (below || !r.any):
		s.restarted(r.any, below, now)
	case r.want.confirm:
		s.n.Suspicions.Add(1)
		s.believed = now.Add(believeFor)
		s.finish(r.result(), now)
	default:
		s.finish(r.result(), now)
	}
}

// result judges a replay that ran to its end mark.
func (r *replay) result() ReplayResult {
	switch {
	case !r.any && (r.want.targeted || r.applied):
		return ReplayEmpty
	case r.late:
		return ReplayStartedLate
	case r.leftOut:
		return ReplayNotContiguous
	case r.want.targeted && r.prev < r.want.target && r.any:
		return ReplayEndedEarly
	}
	return ReplayComplete
}

// restarted clears the rank for a new engine and, if it has a ring, asks for
// all of that. below says that the ring ends below what was applied: then no
// message of the new engine can have followed an old one unnoticed.
func (s *stream) restarted(ring, below bool, now time.Time) {
	s.n.ReplayResults[ReplayAborted].Add(1)
	s.fx.hangUp()
	s.held.dropBefore(s.replay.above, below)
	s.replay = replay{}
	s.renew()
	if ring {
		s.begin(want{}, now)
		return
	}
	s.tried = s.held.highest()
	s.drain(now)
}

// finish ends the replay, in whatever way, and lets the held messages through.
func (s *stream) finish(result ReplayResult, now time.Time) {
	r := s.replay
	s.replay = replay{}
	s.fx.hangUp()
	s.n.ReplayResults[result].Add(1)
	if result != ReplayComplete && result != ReplayAborted {
		s.own.BadReplays++
		s.own.BadReplay = result
	}
	s.overtaken = now.Add(s.limits.silence)
	if !result.failed() {
		s.fails = 0
		if r.want.targeted {
			s.tried = max(s.tried, r.want.target+1)
		}
	} else {
		s.failed(result, r.any, now)
		switch {
		case r.want.confirm: // nothing refutes the live numbers
			s.held.dropBefore(s.last, false)
			s.renew()
		case r.back && r.prev < r.above:
			// Half of a ring lies over what was there before, and it may even be
			// another engine's.
			s.renew()
		}
	}
	s.planRedo(&r, result, now)
	s.drain(now)
	if s.again && s.replay.phase == idle {
		s.again = false
		s.begin(want{}, now)
	}
}

// failed makes room between replays that live numbers start when they fail in
// a row: each holds live messages up. The messages that are held now start none.
func (s *stream) failed(result ReplayResult, progress bool, now time.Time) {
	const first, longest = 5 * time.Second, time.Minute
	if result != ReplayDisconnected {
		s.fails++
	}
	if progress {
		s.fails = 1
	}
	s.backoff = now.Add(1)
	if s.fails > 1 {
		s.backoff = now.Add(min(longest, first<<min(s.fails-2, 8)))
	}
}

// drain lets held messages through, until one of them needs a replay itself.
func (s *stream) drain(now time.Time) {
	for s.replay.phase == idle && s.held.len() > 0 {
		if s.accept(s.held.front(), now) {
			s.held.pop()
		}
	}
}

// deadline is when tick has to be called at the latest, if ok.
func (s *stream) deadline() (at time.Time, ok bool) {
	if s.replay.phase != idle {
		return s.replay.quiet.Add(s.limits.silence), true
	}
	return s.redo.at, s.redo.pending() && !s.replay.overdue
}

// tick lets time pass.
func (s *stream) tick(now time.Time) {
	at, ok := s.deadline()
	if !ok || now.Before(at) {
		return
	}
	switch s.replay.phase {
	case idle:
		s.startRedo(now)
		return
	case replaying:
		s.finish(ReplaySilent, now)
		return
	}
	// The replay has not even begun: too many others run. Live messages wait no
	// longer; the replay comes later and, reaching back, is applied as a whole.
	s.replay.phase, s.replay.overdue = idle, true
	if s.replay.want.confirm {
		s.held.dropBefore(s.last, false)
		s.renew()
		s.replay.want = want{}
	}
	s.drain(now)
}
