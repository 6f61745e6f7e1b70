package kvevents

import "time"

// stream is the state of one rank's event stream: which numbers have been
// applied, what is missing, and whether the engine is still the same. It has no
// socket and no clock; whoever drives it passes in what happens and when, and
// does what it asks for through effects. It is not safe for concurrent use.
//
// The rules (decisions K5, K6 and K9):
//
//   - A replay from 0 is asked at every connect, and from the first missing number
//     on when a live number jumps. Until it ends live messages are held: within
//     limits, and no longer than limits.silence without a replayed message. One
//     of everything that breaks off is asked again (see redo).
//   - What a replay did not bring is lost: counted, and the stream is Stale until
//     a later replay reaches back behind the hole, or the engine clears its rank.
//   - Numbers that were applied are not applied again, with one exception: a
//     replay that reaches back behind what was applied without a break is applied
//     from its first message on. Replaying a suffix in order is harmless, as the
//     last event about a block decides.
//   - The engine is a new one if a replay from 0 starts at 0 and ends below what
//     was applied, if a replayed number stands for another message than before
//     (see trail), or if live numbers fall: a 0 after a higher number, or two
//     rising ones below the last. The latter is only a suspicion where a replay
//     can refute it, by reaching the last number. Then the rank is cleared and
//     filled anew.
//   - A ring that no longer starts at 0 and ends below what was applied proves
//     nothing by itself (a ROUTER drops the end of a long answer): live numbers
//     decide. Neither does an empty ring.
type stream struct {
	fx         effects
	n          *Counters
	own        StreamCounts
	limits     limits
	replayable bool // there is a replay endpoint

	up    bool // connected
	again bool // another connection came up while a replay ran: ask once more

	known bool     // anything was applied,
	last  uint64   // up to this number,
	base  uint64   // and from this one on without a break
	hole  position // the lowest number known to be lost
	doubt position // the last number of the connection that no replay has shown to be this engine's
	trail trail

	heard     uint64    // the highest live number let through, if hears
	hears     bool      //
	overtaken time.Time // until then live numbers above heard may be ones that a replay brought before
	low       *message  // an old number whose successor decides what it means
	believed  time.Time // until then old numbers are duplicates: a replay has just shown it
	gapped    uint64    // the live number behind the last gap that was counted
	tried     uint64    // gaps below this live number are not replayed (again)

	replay replay
	redo   redo
	held   heldMessages

	fails   int       // replays that failed in a row
	backoff time.Time // until then no gap is replayed
}

// effects is what a stream wants done.
type effects interface {
	// apply applies one batch; an error means that it is undecodable. anew says
	// that the engine has dropped all blocks in it: what was lost before does not
	// matter any more.
	apply(m message) (anew bool, err error)
	// clear removes all blocks of the rank, on all tiers.
	clear()
	// replayed says that a replay of everything that the engine ever sent begins,
	// and is going to be applied as a whole.
	replayed()
	// rewound says that what is applied from now on was applied before, at least in
	// part: a replay reaches back behind a break.
	rewound()
	// foreign says that a replayed batch belongs to another rank.
	foreign(payload []byte) bool
	// ask wants a replay: granted is to be called when it may begin.
	ask()
	// hangUp ends the replay that was asked for, whether begun or not.
	hangUp()
}

// limits bound what a stream does for a replay.
type limits struct {
	held      int           // live messages
	heldBytes int           // and bytes that wait for a replay
	silence   time.Duration // without a replayed message
}

// believeFor is how long old numbers count as duplicates after a replay has
// shown that the engine is still the same.
const believeFor = 10 * time.Second

// position is a number of the stream, if ok.
type position struct {
	seq uint64
	ok  bool
}

// live takes a live message.
func (s *stream) live(m message, now time.Time) {
	s.n.Messages.Add(1)
	if s.replay.phase == idle && s.accept(m, now) {
		return
	}
	s.n.Held.Add(1)
	s.held.push(m)
	if s.held.len() > s.limits.held || s.held.bytes > s.limits.heldBytes {
		s.finish(ReplayOverflow, now)
	}
}

// accept deals with the next live message in order. It is false if a replay has
// to come first, which was asked for.
func (s *stream) accept(m message, now time.Time) bool {
	if s.known && m.seq <= s.last {
		return s.old(m, now)
	}
	s.dropLow()
	if !s.known {
		if m.seq > 0 && s.mayAsk(m.seq, now) { // joined late: what was before?
			s.begin(want{target: m.seq - 1, targeted: true}, now)
			return false
		}
	} else if m.seq-s.last > 1 {
		if s.gapped != m.seq {
			s.gapped = m.seq
			s.n.Gaps.Add(1)
		}
		if s.mayAsk(m.seq, now) {
			s.begin(want{from: s.last + 1, target: m.seq - 1, targeted: true}, now)
			return false
		}
	}
	s.take(m)
	s.heard, s.hears = m.seq, true
	return true
}

// mayAsk says whether the gap below a live number can still be replayed.
func (s *stream) mayAsk(seq uint64, now time.Time) bool {
	return seq > s.tried && s.canReplay(now)
}

// canReplay says whether live numbers may start a replay. Without a connection
// they are remains of the last one; the next one starts a replay by itself.
func (s *stream) canReplay(now time.Time) bool {
	return s.replayable && s.up && !s.replay.overdue && !now.Before(s.backoff)
}

// take applies m, whose number is above last. What lies between is lost.
func (s *stream) take(m message) {
	switch {
	case !s.known:
		s.base = m.seq
	case m.seq-s.last > 1:
		s.n.lost(m.seq - s.last - 1)
		s.own.Gaps++
		s.own.Lost += min(m.seq-s.last-1, maxLost)
		if !s.hole.ok {
			s.hole = position{s.last + 1, true}
		}
		s.base = m.seq
	}
	s.known, s.last = true, m.seq
	s.trail.note(m)
	s.n.Applied.Add(1)
	s.own.Applied++
	anew, err := s.fx.apply(m)
	if err != nil {
		s.n.Undecodable.Add(1)
	}
	if anew {
		s.hole, s.doubt = position{}, position{}
	}
}

// old deals with a live number that is not above last: it was overtaken by a
// replay, it is a duplicate, or the engine has started anew.
func (s *stream) old(m message, now time.Time) bool {
	switch {
	case now.Before(s.overtaken) && (!s.hears || m.seq > s.heard):
		s.heard, s.hears = m.seq, true
		return true
	case now.Before(s.believed):
		s.n.Duplicates.Add(1)
		return true
	case m.seq == 0 && s.last > 0:
		s.dropLow()
		return s.suspect(m, now)
	case s.low != nil && s.low.seq < m.seq && m.seq < s.last:
		return s.suspect(m, now)
	default:
		s.dropLow()
		s.low = &m
		return true
	}
}

// dropLow gives up an old number that stayed alone: it was a duplicate.
func (s *stream) dropLow() {
	if s.low != nil {
		s.n.Duplicates.Add(1)
		s.low = nil
	}
}

// suspect acts on numbers that only a new engine sends: low, if there is one,
// then m.
func (s *stream) suspect(m message, now time.Time) bool {
	low := s.low
	s.low = nil
	if s.canReplay(now) {
		if low != nil {
			s.held.pushFront(*low)
		}
		s.begin(want{confirm: true}, now)
		return false
	}
	s.renew()
	if low != nil {
		s.accept(*low, now) // true: nothing that is replayed comes this way
	}
	return s.accept(m, now)
}

// renew starts over for a new engine.
func (s *stream) renew() {
	s.n.Restarts.Add(1)
	s.own.Restarts++
	s.fx.clear()
	s.known, s.last, s.base, s.hole, s.doubt, s.trail = false, 0, 0, position{}, position{}, trail{}
	s.heard, s.hears, s.overtaken = 0, false, time.Time{}
	s.low, s.believed, s.gapped, s.tried = nil, time.Time{}, 0, 0
	s.redo.above = position{}
}

// connected takes a new connection to the publisher; it comes before the
// connection's first message.
func (s *stream) connected(now time.Time) {
	s.n.Connects.Add(1)
	s.up = true
	s.askAll(now)
}

// askAll asks for everything that the publisher still has.
func (s *stream) askAll(now time.Time) {
	s.redo = redo{}
	switch {
	case !s.replayable:
	case s.replay.phase == replaying: // a bound socket may have several connections
		s.again = true
	case s.replay.wanted():
		s.replay.want.from = 0 // not sent yet
	default:
		s.begin(want{}, now)
	}
}

// disconnected takes the loss of the last connection. A running replay came
// from the same process: it is over. The next connection's numbers say again
// what they are.
func (s *stream) disconnected(now time.Time) {
	s.n.Disconnects.Add(1)
	s.up, s.again = false, false
	if s.replay.wanted() {
		s.finish(ReplayDisconnected, now)
	}
	s.redo = redo{}
	s.dropLow()
	s.believed, s.overtaken = time.Time{}, time.Time{}
	s.heard, s.hears = s.last, s.known
	s.trail.cut()
	if s.known && !s.doubt.ok {
		s.doubt = position{s.last, true}
	}
}

// setReplayable takes the news that the replay endpoint is another one, or
// gone.
func (s *stream) setReplayable(replayable bool, now time.Time) {
	s.replayable, s.again = replayable, false
	s.fails, s.backoff = 0, time.Time{}
	if s.replay.wanted() {
		s.finish(ReplayAborted, now)
	}
	s.redo = redo{}
	if s.up {
		s.askAll(now)
	}
}
