package kvevents

import (
	"fmt"
	"strings"
	"time"
)

// stream follows the numbered messages of one rank's publisher: which numbers
// have been applied, which are missing, and whether the engine is still the same
// process. It has no socket and no clock: its driver passes in every message, in
// the order of arrival, and every other event, with the time, and does what the
// stream asks for through output and replays. It is not safe for concurrent use.
//
// The rules (decisions K5, K6 and K9):
//
//   - A replay from 0 is asked for at every connect, and a replay from the first
//     missing number when a live number jumps. Until it ends live messages are
//     held, within limits and no longer than limits.silence without a replayed
//     message. A replay from 0 that breaks off is asked for again (see
//     replayRetry).
//   - What a replay did not bring is lost: it is counted, and the stream is Stale
//     until a later replay reaches back behind the hole, or the engine clears its
//     rank.
//   - A number that was applied is not applied again, with one exception: a replay
//     that reaches back behind a break in what was applied is applied from its
//     first message on. Applying a suffix again, in order, is harmless: the last
//     event about a block decides whether it is there, and its copies are counted
//     again from zero (decision N3).
//   - The engine is a new one, and its rank is cleared and filled again, if one of these
//     holds. A replay from 0 ends below the last number applied, and one from that number
//     on is empty (see verify). A replayed number stands for another message than before
//     (see fingerprints). Live numbers fall: a 0 comes after a higher number, or two
//     rising numbers come that are below the last one. Where a replay can refute this, by
//     having the last number, falling live numbers are only a suspicion.
//   - A connection keeps the order. So the engine is a new one, too, if the first number
//     on a new connection is not above the last one, unless it is the message that was
//     applied; or if a number 0 is another message than the number 0 before. Any other
//     single low number on the same connection is a duplicate.
//   - A ring ends with its engine's newest message, but a replay that ends below what was
//     applied proves nothing by itself, since a ROUTER socket drops the end of a long
//     answer. An answer that begins with the last number, or lacks it, is proof.
//   - An empty replay from 0 means a new engine that has not sent anything (decision U6),
//     except from a publisher without a ring (see ringless), on a connection that brought
//     messages before, and where batches were left out.
type stream struct {
	output     output
	replays    replays
	counters   *Counters    // of all streams
	counts     StreamCounts // of this one
	limits     limits
	replayable bool // there is a replay endpoint

	// up: there is a connection to the publisher.
	up bool
	// heard: a live message has come since a connection last came up.
	heard bool
	// ringless: a replay from 0 was empty although messages had come on its connection
	// before, and none since has brought anything. Then an empty replay proves nothing.
	ringless bool
	// replayAgain: another connection came up while a replay was running. When
	// that ends, a replay from 0 is asked for. Only if up.
	replayAgain bool

	engineState
	resumed resumption // progress of resuming from a checkpoint
	breaks  uint64     // how often messages were applied again, or the rank was cleared; see Unbroken

	replay replay
	retry  replayRetry
	// held are live messages in the order of their arrival, if replay.state holds
	// them; else it is empty.
	held heldMessages
	// failures counts the replays that failed in a row. Before backoffUntil no replay
	// is asked for to fill a gap.
	failures     int
	backoffUntil time.Time
}

// engineState is what is known of the publishing engine. It is zero for a new one.
type engineState struct {
	// started: a message of this engine has been applied. If not, the fields down to
	// fingerprints are zero.
	started bool
	// last is the number of the newest message applied.
	last uint64
	// since is the lowest number from which on every number up to last has been
	// applied. since <= last.
	since uint64
	// firstLost is the lowest number that is lost for good. firstLost < since.
	firstLost position
	// unverifiedUpTo is the last number of an earlier connection for as long as no
	// replay has shown that the engine is still the same.
	unverifiedUpTo position
	fingerprints   fingerprints

	// lastLive is the highest live number let through on this connection; at its
	// beginning, the last number applied before.
	lastLive position
	// fresh: no live message has been let through since the last connection was lost. Only
	// if started.
	fresh bool
	// acceptLateUntil: before that time, a live number above lastLive but not above
	// last is a message that a replay has overtaken. It is ignored.
	acceptLateUntil time.Time
	// ignoreLowUntil: before that time a live number that is not above last is a
	// duplicate, because a replay has just shown that the engine is the same.
	ignoreLowUntil time.Time
	// suspect is a live message whose number was not above last when it came. The
	// next one decides whether it was a duplicate or the first message of a new
	// engine. nil: there is none. Only if started.
	suspect *message
	// countedGap is the live number after the gap that was counted last, so that a gap is
	// counted once even if its message is handled twice. 0: none.
	countedGap uint64
	// replayTriedBelow: for gaps before live numbers up to this one no replay is asked
	// for, because one has been tried or could bring nothing.
	replayTriedBelow uint64
}

// output takes what a stream applies, in order.
type output interface {
	// apply applies one batch; an error means that it cannot be read. cleared
	// reports that the engine dropped all blocks of the rank in it, so that earlier
	// losses no longer matter.
	apply(m message) (cleared bool, err error)
	// clear removes all blocks of the rank from all tiers.
	clear()
	// beginReplay is called when a replay begins with the first message that the
	// engine ever sent, and none of the engine's messages has been applied yet.
	beginReplay()
	// lose is called when numbers are lost for good, before the message after them is
	// applied.
	lose()
	// rewind is called when a replay reaches back behind a break, before batches that
	// were applied before are applied again.
	rewind()
	// foreign reports whether a replayed batch belongs to another rank.
	foreign(payload []byte) bool
	// restore puts the blocks of the checkpoint, from which the stream was resumed, into
	// the index; discard means that restore will not be called. A resumed stream calls
	// at most one of them, once.
	restore()
	discard()
}

// replays is the replay server of a stream.
type replays interface {
	// askReplay asks for a replay; stream.granted must be called when it may begin.
	askReplay()
	// closeReplay ends the replay that was asked for, whether it has begun or not.
	closeReplay()
}

// limits bound what a stream does for a replay.
type limits struct {
	held      int           // live messages that wait for it
	heldBytes int           // their payloads, in bytes
	silence   time.Duration // the longest time without a replayed message
}

// ignoreLowFor is how long old live numbers count as duplicates after a replay
// has shown that the engine is still the same.
const ignoreLowFor = 10 * time.Second

// position is a sequence number of the stream, if ok.
type position struct {
	seq uint64
	ok  bool
}

// live handles a live message.
func (s *stream) live(m message, now time.Time) {
	s.counters.Messages.Add(1)
	s.heard = true
	if !s.replay.state.holdsLive() && s.acceptLive(m, now) {
		return
	}
	s.counters.Held.Add(1)
	s.held.push(m)
	if s.held.len() > s.limits.held || s.held.bytes > s.limits.heldBytes {
		s.finishReplay(ReplayOverflow, now)
	}
}

// holds returns the bytes that the accounts count for the messages that s keeps.
func (s *stream) holds() int64 {
	size := s.held.size
	if s.suspect != nil {
		size += s.suspect.size
	}
	return size
}

// holdNothing drops the messages that the stream keeps, because there is no memory for
// them, and ends a replay that they wait for.
func (s *stream) holdNothing(now time.Time) {
	if s.replay.state.holdsLive() {
		s.finishReplay(ReplayOverflow, now)
	}
	s.dropSuspect()
}

// acceptLive handles the next live message in order. It returns false if the message
// must wait for a replay, which it has asked for.
func (s *stream) acceptLive(m message, now time.Time) bool {
	if s.resumed == unproven {
		s.proveByLive(m)
	}
	if s.started && m.seq <= s.last {
		return s.acceptLow(m, now)
	}
	s.dropSuspect()
	if !s.started {
		if m.seq > 0 && s.mayFill(m.seq, now) { // joined late: ask for what was before
			s.becomeAwaiting(goal{target: position{m.seq - 1, true}}, now)
			return false
		}
	} else if m.seq-s.last > 1 {
		if s.countedGap != m.seq {
			s.countedGap = m.seq
			s.counters.Gaps.Add(1)
		}
		if s.mayFill(m.seq, now) {
			s.becomeAwaiting(goal{from: s.last + 1, target: position{m.seq - 1, true}}, now)
			return false
		}
	}
	s.applyNext(m)
	s.lastLive, s.fresh = position{m.seq, true}, s.fresh && !s.up
	s.resumed = notResumed
	return true
}

// mayFill reports whether a replay may be asked for to fill the gap below a live
// number.
func (s *stream) mayFill(seq uint64, now time.Time) bool {
	return seq > s.replayTriedBelow && s.mayAsk(now)
}

// mayAsk reports whether a live number may cause a replay. Without a connection it may
// not: the message is a leftover of the last connection, and the next one asks anyway.
func (s *stream) mayAsk(now time.Time) bool {
	return s.replayable && s.up && s.replay.state != stateOverdue && !now.Before(s.backoffUntil)
}

// applyNext applies m, whose number is above last. Numbers between them are lost.
func (s *stream) applyNext(m message) {
	if s.resumed == catchingUp && m.seq-s.last > 1 {
		s.loseResumed()
	}
	switch {
	case !s.started:
		s.since = m.seq
	case m.seq-s.last > 1:
		s.counters.addLost(m.seq - s.last - 1)
		s.counts.Gaps++
		s.counts.Lost += min(m.seq-s.last-1, maxLost)
		if !s.firstLost.ok {
			s.firstLost = position{s.last + 1, true}
		}
		s.since = m.seq
		s.output.lose()
	}
	s.started, s.last = true, m.seq
	s.fingerprints.note(m)
	s.counters.Applied.Add(1)
	s.counts.Applied++
	cleared, err := s.output.apply(m)
	if err != nil {
		s.counters.Undecodable.Add(1)
		s.counts.Undecodable++
	}
	if cleared {
		s.firstLost, s.unverifiedUpTo = position{}, position{}
	}
}

// acceptLow handles a live message whose number is not above last: a replay has
// overtaken it, it is a duplicate, or the engine is a new one. Like acceptLive it
// returns false if the message must wait for a replay.
func (s *stream) acceptLow(m message, now time.Time) bool {
	remembered, same := s.fingerprints.compare(m)
	first := s.fresh && s.up
	s.fresh = s.fresh && !s.up
	switch {
	case now.Before(s.acceptLateUntil) && (!s.lastLive.ok || m.seq > s.lastLive.seq):
		s.lastLive = position{m.seq, true}
		return true
	case now.Before(s.ignoreLowUntil):
		s.counters.Duplicates.Add(1)
		return true
	case m.seq == 0 && (s.last > 0 || remembered && !same), first && !same:
		s.dropSuspect()
		return s.suspectNewEngine(m, now)
	case s.suspect != nil && s.suspect.seq < m.seq && m.seq < s.last:
		return s.suspectNewEngine(m, now)
	default:
		s.dropSuspect()
		suspect := m.kept()
		s.suspect = &suspect
		return true
	}
}

// dropSuspect drops the suspect, which no second low number has confirmed, as a
// duplicate.
func (s *stream) dropSuspect() {
	if s.suspect != nil {
		s.counters.Duplicates.Add(1)
		s.suspect = nil
	}
}

// suspectNewEngine handles live messages that only a new engine sends: the suspect,
// if there is one, then m. If possible it asks for a replay to decide; otherwise it
// takes the engine for a new one.
func (s *stream) suspectNewEngine(m message, now time.Time) bool {
	suspect := s.suspect
	s.suspect = nil
	if s.mayAsk(now) {
		if suspect != nil {
			s.held.pushFront(*suspect)
		}
		s.becomeAwaiting(goal{confirm: true}, now)
		return false
	}
	s.resetForNewEngine()
	if suspect != nil {
		s.acceptLive(*suspect, now) // true: as for m, no replay may be asked for
	}
	return s.acceptLive(m, now)
}

// resetForNewEngine clears the rank and forgets the old engine. Connection, replay
// and held messages stay.
func (s *stream) resetForNewEngine() {
	s.counters.Restarts.Add(1)
	s.counts.Restarts++
	s.output.clear()
	s.breaks++
	s.engineState, s.resumed = engineState{}, notResumed
	s.retry.appliedUpTo = position{}
}

// connected is called for a new connection to the publisher, before its first
// message.
func (s *stream) connected(now time.Time) {
	s.counters.Connects.Add(1)
	s.up, s.heard = true, false
	s.askForAll(now)
}

// askForAll asks for everything that the publisher still has.
func (s *stream) askForAll(now time.Time) {
	s.retry = replayRetry{}
	switch {
	case !s.replayable:
	case s.replay.state == stateReplaying: // a bound socket may have several connections
		s.replayAgain = true
	case s.replay.state.wanted():
		s.replay.goal.from, s.replay.goal.verify = s.replayFrom(), false // not sent yet
	default:
		s.becomeAwaiting(goal{from: s.replayFrom()}, now)
	}
}

// disconnected is called when the last connection is lost. A running replay is over,
// because it came from the same process. The live numbers of this
// connection say nothing about the next one.
func (s *stream) disconnected(now time.Time) {
	s.counters.Disconnects.Add(1)
	s.up, s.replayAgain = false, false
	if s.replay.state.wanted() {
		s.finishReplay(ReplayDisconnected, now)
	}
	s.retry = replayRetry{}
	s.dropSuspect()
	s.ignoreLowUntil, s.acceptLateUntil = time.Time{}, time.Time{}
	s.lastLive, s.fresh = position{s.last, s.started}, s.started
	s.fingerprints.keepLast()
	if s.started && !s.unverifiedUpTo.ok {
		s.unverifiedUpTo = position{s.last, true}
	}
}

// setReplayable is called when the replay endpoint has changed; replayable: there is one.
func (s *stream) setReplayable(replayable bool, now time.Time) {
	s.replayable, s.replayAgain = replayable, false
	s.failures, s.backoffUntil = 0, time.Time{}
	if s.replay.state.wanted() {
		s.finishReplay(ReplayAborted, now)
	}
	s.retry = replayRetry{}
	if s.up {
		s.askForAll(now)
	}
}

// state returns the state that the stream shows to operators.
func (s *stream) state() StreamState {
	switch {
	case s.replay.state.wanted():
		return Replaying
	case !s.up:
		return Connecting
	case s.firstLost.ok || s.unverifiedUpTo.ok && s.replayable:
		return Stale
	}
	return Live
}

// String describes the stream in a line, for tests and debugging.
func (s *stream) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %v", s.state(), s.replay.state)
	if s.started {
		fmt.Fprintf(&b, " applied=%d..%d", s.since, s.last)
	}
	for _, p := range []struct {
		name string
		at   position
	}{{"firstLost", s.firstLost}, {"unverifiedUpTo", s.unverifiedUpTo}, {"lastLive", s.lastLive}} {
		if p.at.ok {
			fmt.Fprintf(&b, " %s=%d", p.name, p.at.seq)
		}
	}
	if s.suspect != nil {
		fmt.Fprintf(&b, " suspect=%d", s.suspect.seq)
	}
	if s.replay.state.wanted() {
		fmt.Fprintf(&b, " from=%d held=%d", s.replay.goal.from, s.held.len())
	}
	if s.retry.pending() {
		fmt.Fprintf(&b, " retries=%d", s.retry.asked)
	}
	return b.String()
}

// StreamState is a stream's state in one word; its text is a label of metrics.
type StreamState uint8

// The states.
const (
	// Connecting: the publisher is not there, yet or any more.
	Connecting StreamState = iota
	// Replaying: live messages wait for a replay, or a replay is still to begin.
	Replaying
	// Live: every message since the stream was joined has been applied.
	Live
	// Stale: messages are lost for good, or after a reconnect no replay has shown
	// that the engine is still the same. Blocks may be wrong until the engine
	// restarts or clears them all, or a later replay reaches back far enough.
	Stale
	NumStreamStates = int(iota)
)

var streamStateTexts = [NumStreamStates]string{
	Connecting: "connecting",
	Replaying:  "replaying",
	Live:       "live",
	Stale:      "stale",
}

// String returns the state's label.
func (s StreamState) String() string {
	if int(s) < len(streamStateTexts) {
		return streamStateTexts[s]
	}
	return "unknown"
}

// StreamCounts are one stream's share of the Counters, since it was added.
type StreamCounts struct {
	Applied  uint64 // messages
	Gaps     uint64 // gaps in the numbers that no replay filled
	Lost     uint64 // message numbers in these gaps
	Restarts uint64 // of the engine
	Replays  uint64 // begun
	// BadReplays counts replays that failed or were incomplete; BadReplay is the last
	// one's result.
	BadReplays uint64
	BadReplay  ReplayResult
	// Undecodable counts messages that could not be read. Dropped counts events that were not
	// applied for a reason that is not Ordinary; DroppedWhy is the last one's.
	Undecodable uint64
	Dropped     uint64
	DroppedWhy  Reason
}
