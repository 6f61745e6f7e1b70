package kvevents

import (
	"strconv"
	"time"
)

// The effects of a subscription's stream; turning is held.

func (s *subscription) apply(m message) (anew bool, err error) {
	s.applied = true
	b := &s.work.Batch
	b.clear() // the workspace is shared: an applier that decodes nothing must not leave another stream's batch
	if err := s.applier.Apply(m.payload, s.work); err != nil {
		s.subs.samples.put(badMessage, s.rank, err.Error)
		return false, err
	}
	if b.outcome.odd != Applied {
		s.subs.samples.put(droppedEvent, s.rank, b.outcome.odd.String)
	}
	if m.received != 0 && s.subs.config.Lag != nil {
		if lag, ok := lagOf(m.received, b.Time); ok {
			s.subs.config.Lag(lag)
		}
	}
	// What was lost may have been about other ranks or publishers on this stream:
	// then one engine's clear does not make up for it.
	s.mixed = s.mixed || b.RankOr(s.rank.DP) != s.rank.DP || len(s.work.Decoder.envelopes) > 0
	return b.outcome.cleared && !s.mixed, nil
}

// badFrames takes a message of a wrong shape.
func (s *subscription) badFrames(frames [][]byte) {
	s.subs.counters.FrameErrors.Add(1)
	s.subs.samples.put(badFrames, s.rank, func() string {
		text := "message has frames of lengths"
		for i, f := range frames {
			if i == maxFramesShown {
				text += " …"
				break
			}
			text += " " + strconv.Itoa(len(f))
		}
		return text
	})
}

// maxFramesShown bounds a text; the widest layout has four frames.
const maxFramesShown = 5

func (s *subscription) clear() { s.applier.Clear() }

func (s *subscription) replayed() { s.applier.Replayed() }

// rewindable is an Applier to which the order of its events matters.
type rewindable interface {
	// Rewound says that batches that were applied before come again.
	Rewound()
}

func (s *subscription) rewound() {
	if a, ok := s.applier.(rewindable); ok {
		a.Rewound()
	}
}

// foreign decodes a replayed batch of a shared replay server to see whose it is.
func (s *subscription) foreign(payload []byte) bool {
	if !s.shared {
		return false
	}
	err := s.work.Decoder.Decode(payload, &s.work.Batch)
	return err == nil && s.work.Batch.RankOr(s.rank.DP) != s.rank.DP
}

func (s *subscription) ask() {
	s.asks++
	s.subs.replays.acquire(replayTurn{s, s.asks})
}

// beginReplay uses the slot that was given for an ask.
func (s *subscription) beginReplay(ask uint64, now time.Time) {
	from, ok := uint64(0), ask == s.asks
	if ok {
		from, ok = s.stream.granted(now)
	}
	if !ok {
		s.subs.replays.release()
		return
	}
	id, err := s.subs.source.Request(s.address, replayRequest(from), func(frames [][]byte) bool {
		return s.onAnswer(ask, frames)
	})
	if err != nil {
		s.subs.replays.release()
		s.stream.notOpened(now)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replay.id, s.replay.open = id, true
	s.resumeLocked() // it may have been stopped before its number was known
}

// hangUp closes the replay's socket. Answers that are still in the inbox, and a
// slot that is still to come, are of an ask that is not current any more.
func (s *subscription) hangUp() {
	s.asks++
	s.mu.Lock()
	was := s.replay
	s.replay = replaySocket{}
	s.mu.Unlock()
	if was.open {
		s.subs.source.Close(was.id)
		s.subs.replays.release()
	}
}

// setDeadline arms a timer if the stream waits for one and none is armed that
// rings in time. It may ring early, as the deadline moves on: then it is armed
// again.
func (s *subscription) setDeadline(now time.Time) {
	at, ok := s.stream.deadline()
	if !ok || s.closing.Load() {
		return
	}
	if s.deadline != nil && (!at.Before(s.ringsAt) || !s.deadline.Stop()) {
		return // it rings before, or just now
	}
	s.ringsAt = at
	s.deadline = time.AfterFunc(at.Sub(now), func() { s.put(item{kind: tickItem}) })
}
