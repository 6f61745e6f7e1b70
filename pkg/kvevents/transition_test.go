package kvevents

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// sums adds transitions up to the status that they lead to.
type sums struct {
	mu      sync.Mutex
	of      map[catalog.Rank]*StreamStatus
	changes int
	wrong   string
}

func (s *sums) observe(t Transition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	st := s.of[t.Rank]
	switch {
	case t.Added:
		st = &StreamStatus{Rank: t.Rank, Endpoint: t.Endpoint}
		s.of[t.Rank] = st
	case st == nil || st.State != t.Was || st.Endpoint != t.Endpoint:
		s.wrong = fmt.Sprintf("%+v follows %+v", t, st)
		return
	case t.State == t.Was && t.Lost+t.Restarts+t.Replays+t.BadReplays == 0:
		s.wrong = fmt.Sprintf("%+v is no transition", t)
	}
	st.State = t.State
	st.Lost += t.Lost
	st.Restarts += t.Restarts
	st.Replays += t.Replays
	st.BadReplays += t.BadReplays
	st.BadReplay = t.BadReplay
}

// TestTransitions: whatever happens to streams, their transitions add up to their statuses, each begins where the
// one before has ended, and a stream that stays as it is has none.
func TestTransitions(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			src, seen := &fakeSource{}, &sums{of: make(map[catalog.Rank]*StreamStatus)}
			config := DefaultConfig(2)
			config.Observe = seen.observe
			s, stop := startSubscribers(t, src, config)
			defer stop()
			const streams = 3
			var next [streams]uint64
			configOf := func(i int) StreamConfig {
				c := StreamConfig{Rank: rank(uint32(i)), Endpoint: fmt.Sprint("pub", i), Applier: new(recorder)}
				if i > 0 {
					c.Replay = fmt.Sprint("rep", i)
				}
				return c
			}
			for i := range streams {
				add(t, s, configOf(i))
			}
			for range 300 {
				i := r.IntN(streams)
				pub, rep := src.open(fmt.Sprint("pub", i)), src.open(fmt.Sprint("rep", i))
				switch r.IntN(9) {
				case 0:
					pub.status(true)
				case 1:
					pub.status(false)
				case 2:
					next[i] += 1 + r.Uint64N(3) // messages are lost
				case 3:
					next[i] = 0 // another engine
				case 4:
					time.Sleep(6 * time.Second) // longer than a silent replay may take
				case 5:
					if rep != nil {
						rep.answers(fmt.Sprint("a", next[i]))
					}
				case 6:
					s.Remove(rank(uint32(i)))
					add(t, s, configOf(i))
				default:
					pub.live(next[i], fmt.Sprint("a", next[i]))
					next[i]++
				}
				synctest.Wait()
				for _, st := range s.Streams() {
					seen.mu.Lock()
					sum, wrong := *seen.of[st.Rank], seen.wrong
					seen.mu.Unlock()
					if wrong != "" || sum.Endpoint != st.Endpoint || sum.State != st.State || sum.Lost != st.Lost || sum.Restarts != st.Restarts ||
						sum.Replays != st.Replays || sum.BadReplays != st.BadReplays || sum.BadReplay != st.BadReplay {
						t.Fatalf("seed %d: %s; the transitions lead to\n%+v\nthe status is\n%+v", seed, wrong, sum, st)
					}
				}
			}
			stop()
			if seen.changes < 50 {
				t.Errorf("seed %d: only %d transitions", seed, seen.changes)
			}
		})
	}
}
