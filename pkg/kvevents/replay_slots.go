package kvevents

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/pkg/memory"
)

// askReplay asks for a slot. A grantedItem follows in the inbox, now or later.
func (s *subscription) askReplay() {
	s.asks++
	ask := replayAsk{s, s.asks}
	if wait := s.limiter.next(time.Now()); wait > 0 {
		time.AfterFunc(wait, func() { s.subs.replays.acquire(ask) })
		return
	}
	s.subs.replays.acquire(ask)
}

// askLimiter limits the rate at which a stream asks for replays, whatever the cause: gaps,
// restarts and connections all are under the control of its engine. It allows a burst of
// askBurst, then one ask per askInterval. After an ask that brought nothing the next one
// waits firstBackOff, then twice as long each time, up to longestBackOff.
type askLimiter struct {
	spent   time.Duration // the used part of askBurst*askInterval, at the time of the last ask
	last    time.Time     // the last ask; zero: none
	backOff time.Duration // from the last ask to the next; 0 after progress
}

const (
	askInterval    = 50 * time.Millisecond
	askBurst       = 10
	firstBackOff   = 100 * time.Millisecond
	longestBackOff = 10 * time.Second
)

// next returns how long an ask that is wanted now has to wait.
func (a *askLimiter) next(now time.Time) (wait time.Duration) {
	a.spent = max(a.spent-now.Sub(a.last), 0)
	if a.spent > (askBurst-1)*askInterval {
		wait = a.spent - (askBurst-1)*askInterval
	}
	wait = max(wait, a.last.Add(a.backOff).Sub(now))
	a.spent = max(a.spent-wait, 0) + askInterval
	a.last = now.Add(wait)
	a.backOff = min(max(2*a.backOff, firstBackOff), longestBackOff)
	return wait
}

// progress ends the back-off, because a replay has brought something.
func (a *askLimiter) progress() { a.backOff = 0 }

// openReplay begins the replay for which a slot was granted, or gives the slot back if
// the ask is no longer the newest one.
func (s *subscription) openReplay(ask uint64, now time.Time) {
	from, ok := uint64(0), ask == s.asks
	if ok {
		from, ok = s.stream.granted(now)
	}
	if !ok {
		s.subs.replays.release()
		return
	}
	id, err := s.subs.source.Request(s.server, replayRequest(from), func(frames [][]byte, buffer *memory.Buffer) bool {
		return s.onAnswer(ask, frames, buffer)
	})
	if err != nil {
		s.subs.replays.release()
		s.stream.notOpened(now)
		return
	}
	s.slot = s.subs.replays.use(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replay.id, s.replay.open = id, true
	s.resumeLocked() // it may have been stopped before its id was known
}

// closeReplay closes the replay's socket. It starts a new ask number, so that answers
// still in the inbox, and a slot still to come, are recognized as old.
func (s *subscription) closeReplay() {
	s.asks++
	s.mu.Lock()
	was := s.replay
	s.replay = socket{}
	s.mu.Unlock()
	if was.open {
		s.subs.source.Close(was.id)
		s.slot.end()
		s.slot = nil
	}
}

// onAnswer takes an answer to the replay of an ask.
func (s *subscription) onAnswer(ask uint64, frames [][]byte, buffer *memory.Buffer) bool {
	m, end, ok := parseAnswer(frames)
	m.memory, m.size = buffer, buffer.Size()
	switch {
	case !ok:
		s.badFrames(frames)
		buffer.Release(s.subs.config.Replay)
		return s.put(item{kind: unreadableItem, ask: ask})
	case end:
		buffer.Release(s.subs.config.Replay)
		return s.put(item{kind: endItem, ask: ask})
	}
	return s.put(item{kind: answerItem, message: m, ask: ask})
}

// replaySlots bounds the replays that run at a time, since each may fill memory with a
// whole ring. Slots are given in the order of the asks. A replay of which nothing waits to
// be applied after slotTime goes on without its slot: servers that drip, or say nothing,
// keep nobody waiting.
type replaySlots struct {
	// mu guards what follows. It is never held while a subscription is called.
	mu      sync.Mutex
	free    int
	waiting []replayAsk // only if none is free
}

// replayAsk is a subscription that waits for a slot. If the ask is not its newest
// one any more when the slot comes, it gives the slot back.
type replayAsk struct {
	sub *subscription
	ask uint64
}

const slotTime = time.Second

// replaySlot is the slot of a replay that runs.
type replaySlot struct {
	giveBack func() // once
	ended    atomic.Bool
	timer    *time.Timer
}

// use begins to use a slot that was given, for a replay of sub.
func (r *replaySlots) use(sub *subscription) *replaySlot {
	s := &replaySlot{giveBack: sync.OnceFunc(r.release)}
	armed := make(chan struct{})
	s.timer = time.AfterFunc(slotTime, func() {
		<-armed
		if sub.answersWait() && !s.ended.Load() {
			s.timer.Reset(slotTime)
		} else {
			s.giveBack()
		}
	})
	close(armed)
	return s
}

// answersWait reports whether something of a replay waits to be applied.
func (s *subscription) answersWait() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answers.items > 0
}

// end says that the replay is over.
func (s *replaySlot) end() {
	s.ended.Store(true)
	s.timer.Stop()
	s.giveBack()
}

// acquire takes a slot for a, now or when one is free. Then a.sub finds a granted
// item in its inbox.
func (r *replaySlots) acquire(a replayAsk) {
	r.mu.Lock()
	granted := r.free > 0
	if granted {
		r.free--
	} else {
		r.waiting = append(r.waiting, a)
	}
	r.mu.Unlock()
	if granted {
		a.sub.put(item{kind: grantedItem, ask: a.ask})
	}
}

// release returns a slot.
func (r *replaySlots) release() {
	r.mu.Lock()
	if len(r.waiting) == 0 {
		r.free++
		r.mu.Unlock()
		return
	}
	a := r.waiting[0]
	r.waiting[0] = replayAsk{}
	r.waiting = r.waiting[1:]
	r.mu.Unlock()
	a.sub.put(item{kind: grantedItem, ask: a.ask})
}
