package kvevents

import "time"

// replayState is the state of a stream's replay. Every change goes through one of
// the become methods:
//
//	following → awaiting                       becomeAwaiting
//	awaiting, overdue → replaying              becomeReplaying
//	awaiting → overdue                         becomeOverdue
//	awaiting, overdue, replaying → following   becomeFollowing
type replayState uint8

const (
	// stateFollowing: no replay is wanted; live messages are applied as they come.
	stateFollowing replayState = iota
	// stateAwaiting: a replay has been asked for and not been granted; live messages
	// are held.
	stateAwaiting
	// stateOverdue: a replay has been asked for and is still wanted, but was not
	// granted in time; live messages are applied meanwhile.
	stateOverdue
	// stateReplaying: a replay runs; live messages are held.
	stateReplaying
)

var replayStateTexts = [...]string{
	stateFollowing: "following",
	stateAwaiting:  "awaiting",
	stateOverdue:   "overdue",
	stateReplaying: "replaying",
}

// String returns the state's name.
func (r replayState) String() string { return replayStateTexts[r] }

// wanted reports whether a replay runs or is still to begin.
func (r replayState) wanted() bool { return r != stateFollowing }

// holdsLive reports whether live messages wait for the replay.
func (r replayState) holdsLive() bool { return r == stateAwaiting || r == stateReplaying }

// goal says why a replay is asked for, and from which number on.
type goal struct {
	from    uint64   // the first number asked for
	target  position // the last number missed, if live numbers jumped
	confirm bool     // live numbers fell: is it a new engine?
	verify  bool     // a replay from 0 ended below from, which was applied: is it a new engine?
}

// replay is the replay of a stream. The zero value is that of stateFollowing.
type replay struct {
	state replayState
	goal  goal // if wanted
	// progressAt is the time at which the state was entered or the replay last brought
	// something new. Held live messages are released limits.silence after it.
	progressAt time.Time

	// The rest is of stateReplaying.

	appliedBefore position // the last number applied when the replay began
	heard         bool     // a live message had come on the connection before
	withheld      bool     // an answer was left out: another rank's, unreadable, or not asked for
	answered      bool     // a message of it has come; only then first and newest are set
	first         uint64   // the first number that came
	newest        uint64   // the highest one so far
	reachesBack   bool     // it began behind a break, and is applied as a whole
	startedLate   bool     // its first number is above the first one needed
	leftOut       bool     // a number between first and newest did not come
}

// becomeFollowing ends the replay, begun or not.
func (s *stream) becomeFollowing() {
	s.replay = replay{}
	s.replays.closeReplay()
}

// becomeAwaiting asks for a replay and holds live messages from now on.
func (s *stream) becomeAwaiting(g goal, now time.Time) {
	s.replay = replay{state: stateAwaiting, goal: g, progressAt: now}
	s.replays.askReplay()
}

// becomeOverdue stops waiting and applies live messages, because too many other replays
// run. When this one is granted, it reaches back and is applied as a whole.
func (s *stream) becomeOverdue(now time.Time) {
	s.replay.state = stateOverdue
	if s.replay.goal.confirm {
		s.held.dropOldEngine(s.last, false)
		s.resetForNewEngine()
		s.replay.goal = goal{}
	}
	s.releaseHeld(now)
}

// becomeReplaying begins the replay that was asked for.
func (s *stream) becomeReplaying(now time.Time) {
	s.replay = replay{
		state: stateReplaying, goal: s.replay.goal, progressAt: now,
		appliedBefore: position{s.last, s.started}, heard: s.heard,
	}
}

// granted begins the replay that was asked for and returns the number to request.
// ok is false if none is wanted any more.
func (s *stream) granted(now time.Time) (from uint64, ok bool) {
	switch s.replay.state {
	case stateFollowing, stateReplaying:
		return 0, false
	}
	s.counters.ReplayStarts.Add(1)
	s.counts.Replays++
	s.becomeReplaying(now)
	return s.replay.goal.from, true
}

// notOpened is called when the request of a granted replay could not be sent.
func (s *stream) notOpened(now time.Time) {
	if s.replay.state == stateReplaying {
		s.finishReplay(ReplayNotOpened, now)
	}
}

// answer takes a message of the running replay, or its end.
func (s *stream) answer(m message, end bool, now time.Time) {
	r := &s.replay
	if r.state != stateReplaying {
		return
	}
	if end {
		s.endReplay(now)
		return
	}
	s.counters.Replayed.Add(1)
	if r.answered && m.seq <= r.newest {
		return // not new, so that it does not count as progress either
	}
	if r.goal.verify && !r.answered && m.seq != r.goal.from {
		// The server ignores the number asked for, or no longer has it: a new engine's
		// messages must not pass for the old one's.
		r.withheld = true
		return
	}
	r.progressAt = now
	if s.output.foreign(m.payload) {
		s.counters.Foreign.Add(1)
		r.withheld = true
		return
	}
	if s.resumed == unproven && !s.proveByReplay(m, now) {
		return
	}
	if (r.goal.from == 0 || r.goal.verify) && r.appliedBefore.ok {
		remembered, same := s.fingerprints.compare(m)
		if remembered && !same {
			s.foundNewEngine(true, false, now)
			return
		}
		if remembered && m.seq <= s.unverifiedUpTo.seq {
			s.unverifiedUpTo = position{}
		}
	}
	if r.answered {
		r.leftOut = r.leftOut || m.seq-r.newest > 1
	} else {
		r.answered, r.first = true, m.seq
		s.ringless = false
		s.joinReplay(m.seq)
		if m.seq == 0 && !s.started {
			s.output.beginReplay()
		}
	}
	r.newest = m.seq
	if !s.started || m.seq > s.last {
		s.applyNext(m)
	}
}

// unreadable takes an answer of the running replay that has a wrong shape.
func (s *stream) unreadable() { s.replay.withheld = s.replay.state == stateReplaying }

// joinReplay compares the first number of a replay with what was applied: it sets
// startedLate and reachesBack.
func (s *stream) joinReplay(seq uint64) {
	r := &s.replay
	if !s.started {
		r.startedLate = seq > r.goal.from
		return
	}
	r.startedLate = seq > s.last && seq-s.last > 1
	if seq > s.last || seq >= s.since || r.goal.confirm {
		return
	}
	// It reaches back behind a break, or behind where the stream was joined: all of
	// it is applied, and numbers that it does not bring are missing again.
	r.reachesBack = true
	s.output.rewind()
	s.breaks++
	s.started, s.last, s.since = seq > 0, seq-min(seq, 1), seq
	if s.firstLost.ok && s.firstLost.seq >= seq {
		s.firstLost = position{}
	}
}

// endReplay takes the end mark.
func (s *stream) endReplay(now time.Time) {
	r := &s.replay
	endsBelow := r.answered && r.newest < r.appliedBefore.seq
	nothing := !r.answered && !r.withheld
	s.ringless = s.ringless || nothing && r.goal.from == 0 && r.heard && s.up
	switch {
	case s.resumed == unproven:
		s.refute(now)
	case r.goal.from == 0 && endsBelow && r.reachesBack, r.goal.verify && nothing:
		s.foundNewEngine(true, true, now)
	case r.goal.confirm && (endsBelow || !r.answered || r.first > r.appliedBefore.seq):
		s.foundNewEngine(r.answered, endsBelow, now)
	case r.goal.from == 0 && endsBelow:
		s.verify(now)
	case r.goal.from == 0 && nothing && r.appliedBefore.ok && !r.heard && !s.ringless:
		s.foundNewEngine(false, false, now)
	case r.goal.confirm:
		s.ignoreLowUntil = now.Add(ignoreLowFor)
		s.finishReplay(r.result(), now)
	default:
		s.finishReplay(r.result(), now)
	}
}

// verify asks for the newest message that was applied, because a replay from 0 ended below
// it. Only a long answer can lack its end, so that an empty one means a new engine.
func (s *stream) verify(now time.Time) {
	s.counters.ReplayResults[s.replay.result()].Add(1)
	g := goal{from: s.replay.appliedBefore.seq, verify: true}
	s.becomeFollowing()
	s.becomeAwaiting(g, now)
}

// result returns the result of a replay that ran to its end mark.
func (r *replay) result() ReplayResult {
	switch {
	case !r.answered && (r.goal.target.ok || r.appliedBefore.ok):
		return ReplayEmpty
	case r.startedLate:
		return ReplayStartedLate
	case r.leftOut:
		return ReplayNotContiguous
	case r.goal.target.ok && r.newest < r.goal.target.seq && r.answered:
		return ReplayEndedEarly
	}
	return ReplayComplete
}

// foundNewEngine clears the rank for the new engine that a replay has revealed. If
// the new engine has messages to replay (hasRing), it asks for all of them. With
// endsBelow these end below what was applied: then no live message of the new engine
// can have passed for one of the old engine.
func (s *stream) foundNewEngine(hasRing, endsBelow bool, now time.Time) {
	s.counters.ReplayResults[ReplayAborted].Add(1)
	s.held.dropOldEngine(s.replay.appliedBefore.seq, endsBelow)
	s.becomeFollowing()
	s.resetForNewEngine()
	if hasRing {
		s.becomeAwaiting(goal{}, now)
		return
	}
	s.replayTriedBelow = s.held.highest()
	s.releaseHeld(now)
}

// finishReplay ends the replay with a result and releases held messages.
func (s *stream) finishReplay(result ReplayResult, now time.Time) {
	r := s.replay
	s.becomeFollowing()
	s.counters.ReplayResults[result].Add(1)
	if s.resumed == unproven && result != ReplayDisconnected && result != ReplayAborted {
		s.discard()
		r.goal.from = 0
	}
	if result != ReplayComplete && result != ReplayAborted {
		s.counts.BadReplays++
		s.counts.BadReplay = result
	}
	s.acceptLateUntil = now.Add(s.limits.silence)
	if !result.failed() {
		s.failures = 0
		if r.goal.target.ok {
			s.replayTriedBelow = max(s.replayTriedBelow, r.goal.target.seq+1)
		}
	} else {
		s.backOff(result, r.answered, now)
		switch {
		case r.goal.confirm: // no replay contradicts the live numbers: it is a new engine
			s.held.dropOldEngine(s.last, false)
			s.resetForNewEngine()
		case r.reachesBack && r.newest < r.appliedBefore.seq:
			// Half of a replay has been applied over the old state, and it may even
			// be another engine's.
			s.resetForNewEngine()
		}
	}
	s.scheduleRetry(&r, result, now)
	s.releaseHeld(now)
	if s.replayAgain && !s.replay.state.holdsLive() {
		s.replayAgain = false
		s.becomeAwaiting(goal{}, now)
	}
}

// backOff spaces out the replays that gaps in live numbers ask for when replays fail
// in a row, because each delays live messages. The messages held now ask for none.
func (s *stream) backOff(result ReplayResult, progress bool, now time.Time) {
	const first, longest = 5 * time.Second, time.Minute
	if result != ReplayDisconnected {
		s.failures++
	}
	if progress {
		s.failures = 1
	}
	s.backoffUntil = now.Add(1)
	if s.failures > 1 {
		s.backoffUntil = now.Add(min(longest, first<<min(s.failures-2, 8)))
	}
}

// releaseHeld applies held messages until one of them needs a replay itself.
func (s *stream) releaseHeld(now time.Time) {
	for !s.replay.state.holdsLive() && s.held.len() > 0 {
		if s.acceptLive(s.held.front(), now) {
			s.held.pop()
		}
	}
}

// deadline returns when tick has to be called at the latest; ok is false if it need
// not be.
func (s *stream) deadline() (at time.Time, ok bool) {
	switch s.replay.state {
	case stateAwaiting, stateReplaying:
		return s.replay.progressAt.Add(s.limits.silence), true
	case stateFollowing:
		return s.retry.at, s.retry.pending()
	}
	return time.Time{}, false
}

// tick does what is due at the time now.
func (s *stream) tick(now time.Time) {
	at, ok := s.deadline()
	if !ok || now.Before(at) {
		return
	}
	switch s.replay.state {
	case stateFollowing:
		s.startRetry(now)
	case stateAwaiting:
		s.becomeOverdue(now)
	case stateReplaying:
		s.finishReplay(ReplaySilent, now)
	}
}

// replayRetry is a replay from 0 that will be asked for again because one broke off.
// Such a replay leaves fewer blocks than before, because its first message replaces
// the rank's blocks; and if the engine stays idle, no live number shows that messages
// are missing. It is repeated a few times per connection.
type replayRetry struct {
	at    time.Time // zero: none is planned
	asked int       // retries so far on this connection, at most maxRetries
	// appliedUpTo is the last number applied when the replay broke off.
	appliedUpTo position
}

const (
	maxRetries = 3
	firstRetry = 5 * time.Second // after the end of the replay; doubled for the next
)

func (r *replayRetry) pending() bool { return !r.at.IsZero() }

// scheduleRetry decides, at the end of a replay, whether one from 0 is to be repeated.
func (s *stream) scheduleRetry(r *replay, result ReplayResult, now time.Time) {
	at := now.Add(firstRetry << s.retry.asked)
	brokeOff := result.failed() || r.answered && r.first == 0 && result != ReplayComplete || r.goal.verify && !r.answered
	switch {
	case r.goal.from > 0 && !r.goal.verify:
		if brokeOff && s.retry.pending() {
			s.retry.at = at // not right after a failure
		}
	case !brokeOff:
		s.retry = replayRetry{}
	case s.retry.asked < maxRetries:
		s.retry.at, s.retry.appliedUpTo = at, position{s.last, s.started}
	default:
		s.retry.at = time.Time{}
	}
}

// startRetry repeats the replay, unless live numbers have shown meanwhile that no
// message is missing.
func (s *stream) startRetry(now time.Time) {
	r := &s.retry
	r.at = time.Time{}
	whole := s.started && s.since == 0 && !s.firstLost.ok && !s.unverifiedUpTo.ok
	if whole && (!r.appliedUpTo.ok || s.last > r.appliedUpTo.seq) {
		return
	}
	r.asked++
	s.counters.ReplaysAgain.Add(1)
	s.becomeAwaiting(goal{}, now)
}
