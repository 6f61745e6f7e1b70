package kvevents

import "time"

// The effects of a subscription's stream; turning is held.

func (s *subscription) apply(payload []byte) error {
	s.applied = true
	return s.applier.Apply(payload, s.work)
}

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
