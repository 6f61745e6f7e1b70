package kvevents

import (
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/pkg/memory"
)

// Whatever an engine does, its stream asks at most 30 times in any second; without
// progress less and less often. Who asks rarely never waits.
func TestPace(t *testing.T) {
	const perSecond = askBurst + int(time.Second/askInterval)
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var p askLimiter
		now, progress := time.Unix(1000, 0), rnd.IntN(4) // 0: never, 3: always
		var asked []time.Time
		for range 500 {
			now = now.Add(time.Duration(rnd.IntN(20)) * time.Millisecond)
			if wait := p.next(now); wait > 0 {
				now = now.Add(wait)
			}
			asked = append(asked, now)
			if n := len(asked); n > perSecond && now.Sub(asked[n-perSecond-1]) < time.Second {
				t.Fatalf("seed %d: %d asks in %v", seed, perSecond+1, now.Sub(asked[n-perSecond-1]))
			}
			if rnd.IntN(3) < progress {
				p.progress()
			}
		}
		if progress == 0 && now.Sub(asked[len(asked)-2]) < longestBackOff {
			t.Errorf("without progress it asks every %v", now.Sub(asked[len(asked)-2]))
		}
		if wait := p.next(now.Add(2 * longestBackOff)); wait > 0 {
			t.Errorf("after a long time an ask waits for %v", wait)
		}
	}
}

// What waits for a replay moves to the account of replays. When that is full the
// replay is given up, and nothing is held.
func TestHeldMessagesNeedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{streams: memory.NewAccount(memory.Streams, 1<<20)}
		config := DefaultConfig(1)
		config.Streams, config.Replay = src.streams, memory.NewAccount(memory.Replay, 40_000)
		const others = 29_500 // leaves room for ten messages
		config.Replay.Reserve(others)
		s, stop := startSubscribers(t, src, config)
		defer stop()
		add(t, s, StreamConfig{Rank: rank(0), Endpoint: "live", Replay: "replay", Applier: &recorder{}})
		live := src.open("live")
		live.status(true)
		for seq := uint64(1); ; seq++ {
			live.live(seq, strings.Repeat("x", 888)) // 1,024 bytes in all
			synctest.Wait()
			if s.Streams()[0].Held > 0 {
				if streams, replay := config.Streams.Used(), config.Replay.Used(); streams != 0 || replay != others+1024*int64(seq) {
					t.Fatalf("%d messages hold %d and %d bytes", seq, streams, replay)
				}
				continue
			}
			if seq != 11 || config.Streams.Used() != 0 || config.Replay.Used() != others {
				t.Errorf("given up after %d messages with %d bytes held", seq, config.Replay.Used())
			}
			return
		}
	})
}
