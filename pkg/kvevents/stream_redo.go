package kvevents

import "time"

// A replay of everything that breaks off leaves less than there was before it
// (its first message replaces what the rank's blocks were until then), and the
// engine may stay idle, so that no live number shows what is missing. It is
// asked again, a few times a connection.

// redo is a replay of everything that is to be asked again.
type redo struct {
	at    time.Time // zero: none
	asked int       // so far
	above position  // the last number applied when it broke off
}

const (
	maxRedos  = 3
	firstRedo = 5 * time.Second // doubled from one to the next
)

// planRedo takes the end of a replay.
func (s *stream) planRedo(r *replay, result ReplayResult, now time.Time) {
	at := now.Add(firstRedo << s.redo.asked)
	brokeOff := result.failed() || r.any && r.first == 0 && result != ReplayComplete
	switch {
	case r.want.from > 0:
		if brokeOff && s.redo.pending() {
			s.redo.at = at // not right after a failure
		}
	case !brokeOff:
		s.redo = redo{}
	case s.redo.asked < maxRedos:
		s.redo.at, s.redo.above = at, position{s.last, s.known}
	default:
		s.redo.at = time.Time{}
	}
}

func (r *redo) pending() bool { return !r.at.IsZero() }

// startRedo asks again, unless live numbers have shown meanwhile that nothing is
// missing.
func (s *stream) startRedo(now time.Time) {
	r := &s.redo
	r.at = time.Time{}
	whole := s.known && s.base == 0 && !s.hole.ok && !s.doubt.ok
	if whole && (!r.above.ok || s.last > r.above.seq) {
		return
	}
	r.asked++
	s.n.ReplaysAgain.Add(1)
	s.begin(want{}, now)
}
