package kvevents

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/select-service/select-service/pkg/catalog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startSubscribers runs Subscribers in a synctest bubble; the returned function
// ends them.
func startSubscribers(t *testing.T, source Source, config Config) (*Subscribers, func()) {
	t.Helper()
	s := NewSubscribers(source, config, new(Counters))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	return s, sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func rank(dp uint32) catalog.Rank { return catalog.Rank{Worker: 1, DP: dp} }

func add(t *testing.T, s *Subscribers, c StreamConfig) {
	t.Helper()
	if err := s.Add(c); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, what string, got fmt.Stringer, want string) {
	t.Helper()
	synctest.Wait()
	if got.String() != want {
		t.Errorf("%s: applied %q, want %q", what, got, want)
	}
}

func TestSubscribersApplyReplayAndLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{}
		s, stop := startSubscribers(t, src, DefaultConfig(2))
		defer stop()
		got := new(recorder)
		add(t, s, StreamConfig{Rank: rank(0), Endpoint: "pub", Replay: "rep", Applier: got})
		pub := src.open("pub")
		pub.status(true)
		synctest.Wait()
		pub.live(2, "a2")
		src.open("rep").answers("a0", "a1")
		expect(t, "connect", got, "a0 a1 a2")
		pub.live(5, "a5")
		expect(t, "gap", got, "a0 a1 a2")
		rep := src.open("rep")
		rep.send(nil, []byte("topic"), seqFrame(3), []byte("a3")) // the other layout
		rep.send(nil, []byte("topic"), seqFrame(4), []byte("a4"))
		rep.send(nil, nil, seqFrame(endMark), nil)
		expect(t, "gap repaired", got, "a0 a1 a2 a3 a4 a5")
		if asked := src.asked(); asked != "rep 0, rep 3" {
			t.Errorf("replays asked for: %s", asked)
		}
		if src.open("rep") != nil {
			t.Error("a replay socket is still open")
		}
		pub.send(nil, []byte("short"), nil)
		pub.send(nil, nil)
		synctest.Wait()
		status := s.Streams()[0]
		if status.State != Live || status.Last != 5 || status.Applied != 6 || status.Pending != 0 || status.Replays != 2 {
			t.Errorf("status %+v", status)
		}
		if n := s.Counters().FrameErrors.Load(); n != 2 {
			t.Errorf("%d frame errors, want 2", n)
		}
	})
}

func TestSubscribersSilentReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{}
		s, stop := startSubscribers(t, src, DefaultConfig(1))
		defer stop()
		got := new(recorder)
		add(t, s, StreamConfig{Rank: rank(0), Endpoint: "pub", Replay: "rep", Applier: got})
		pub := src.open("pub")
		pub.status(true)
		pub.live(0, "a0")
		time.Sleep(4900 * time.Millisecond)
		expect(t, "held", got, "")
		src.open("rep").send(nil, seqFrame(0), []byte("a0")) // a sign of life
		time.Sleep(4900 * time.Millisecond)
		pub.live(1, "a1")
		expect(t, "held again", got, "a0")
		time.Sleep(200 * time.Millisecond)
		expect(t, "given up", got, "a0 a1")
		if src.open("rep") != nil {
			t.Error("the silent replay's socket is still open")
		}
		if n := s.Counters().ReplayResults[ReplaySilent].Load(); n != 1 {
			t.Errorf("%d silent replays counted", n)
		}
	})
}

// A slow applier stops the sockets; nothing is dropped, nothing is reordered.
func TestSubscribersStopSocketsWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{}
		config := DefaultConfig(1)
		config.Inbox = 8
		s, stop := startSubscribers(t, src, config)
		defer stop()
		got := &recorder{gate: make(chan struct{})}
		add(t, s, StreamConfig{Rank: rank(0), Endpoint: "pub", Applier: got})
		pub := src.open("pub")
		pub.status(true)
		synctest.Wait()
		const n = 100
		var want []string
		for i := range uint64(n) {
			pub.live(i, fmt.Sprint(i))
			want = append(want, fmt.Sprint(i))
		}
		synctest.Wait()
		if status := s.Streams()[0]; status.Pending > config.Inbox+1 {
			t.Errorf("%d messages taken, want at most %d", status.Pending, config.Inbox)
		}
		for range n {
			got.gate <- struct{}{}
		}
		expect(t, "all", got, strings.Join(want, " "))
		if src.resumed == 0 || src.resumed > n/(config.Inbox/2)+1 {
			t.Errorf("resumed %d times", src.resumed)
		}
		close(got.gate)
	})
}

func TestSubscribersBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{}
		s, stop := startSubscribers(t, src, DefaultConfig(2))
		defer stop()
		if err := s.Barrier(t.Context()); err != nil {
			t.Errorf("nothing to wait for: %v", err)
		}
		got := &recorder{gate: make(chan struct{})}
		add(t, s, StreamConfig{Rank: rank(0), Endpoint: "pub", Applier: got})
		pub := src.open("pub")
		for i := range uint64(3) {
			pub.live(i, "x")
		}
		passed := make(chan error, 1)
		go func() { passed <- s.Barrier(t.Context()) }()
		synctest.Wait()
		pub.live(3, "late") // not the barrier's
		got.gate <- struct{}{}
		got.gate <- struct{}{}
		synctest.Wait()
		if len(passed) != 0 {
			t.Error("passed before the third batch")
		}
		got.gate <- struct{}{}
		synctest.Wait()
		if len(passed) != 1 || <-passed != nil {
			t.Error("not passed after the third batch")
		}

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Barrier(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Barrier with a deadline: %v", err)
		}
		go func() { passed <- s.Barrier(context.Background()) }()
		synctest.Wait()
		go close(got.gate)
		s.Remove(rank(0))
		if err := <-passed; err != nil {
			t.Errorf("a removed stream holds the barrier: %v", err)
		}
	})
}

func TestSubscribersUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{refuse: "taken"}
		s, stop := startSubscribers(t, src, DefaultConfig(1))
		defer stop()
		got, next := new(recorder), new(recorder)
		c := StreamConfig{Rank: rank(0), Endpoint: "pub", Applier: got}
		if err := s.Update(c); !errors.Is(err, ErrUnknownStream) {
			t.Errorf("Update of nothing: %v", err)
		}
		add(t, s, c)
		if err := s.Add(c); !errors.Is(err, ErrStreamExists) {
			t.Errorf("second Add: %v", err)
		}
		update := func(c StreamConfig) {
			t.Helper()
			if err := s.Update(c); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		pub := src.open("pub")
		pub.status(true)
		pub.live(4, "a4")
		update(c)
		pub.live(4, "dup")
		expect(t, "unchanged: the cursor stays", got, "a4")

		c.Applier = next
		update(c)
		pub.live(5, "a5")
		expect(t, "old applier", got, "a4")
		expect(t, "new applier", next, "a5")

		c.Replay = "rep"
		update(c)
		src.open("rep").from = 3
		src.open("rep").answers("a3", "a4", "a5")
		expect(t, "a replay endpoint at last", next, "a5 a3 a4 a5")

		c.Endpoint = "taken"
		if err := s.Update(c); !errors.Is(err, errRefused) {
			t.Errorf("Update to an endpoint in use: %v", err)
		}
		pub.live(6, "a6")
		expect(t, "refused: the old stream goes on", next, "a5 a3 a4 a5 a6")

		c.Endpoint, c.Replay = "pub2", ""
		update(c)
		pub.live(7, "a7")
		src.open("pub2").live(0, "b0")
		expect(t, "another endpoint", next, "a5 a3 a4 a5 a6 clear b0")
		if src.open("pub") != nil {
			t.Error("the old socket is still open")
		}
		if n := len(s.Streams()); n != 1 {
			t.Errorf("%d streams, want 1", n)
		}
	})
}

// Remove returns when the present batch is applied, and nothing follows.
func TestSubscribersRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{}
		s, stop := startSubscribers(t, src, DefaultConfig(1))
		defer stop()
		got := &recorder{gate: make(chan struct{})}
		add(t, s, StreamConfig{Rank: rank(0), Endpoint: "pub", Replay: "rep", Applier: got})
		pub := src.open("pub")
		for i := range uint64(5) {
			pub.live(i, fmt.Sprint(i))
		}
		synctest.Wait()
		sub, removed := s.find(rank(0)), make(chan bool, 1)
		go func() { removed <- s.Remove(rank(0)) }()
		for !sub.closing.Load() { // synctest.Wait does not wait for who waits for a mutex
			runtime.Gosched()
		}
		if len(removed) != 0 {
			t.Error("removed while a batch is being applied")
		}
		got.gate <- struct{}{}
		if !<-removed {
			t.Error("Remove is false")
		}
		pub.message([][]byte{nil, seqFrame(5), []byte("5")}) // a rude source
		expect(t, "nothing after the present batch", got, "0")
		if s.Remove(rank(0)) {
			t.Error("second Remove is true")
		}
		add(t, s, StreamConfig{Rank: rank(0), Endpoint: "pub", Applier: new(recorder)})
	})
}

// Two slots, four streams: the others wait, and get theirs in turn.
func TestSubscribersShareReplaySlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{}
		config := DefaultConfig(1)
		config.Replays = 2
		s, stop := startSubscribers(t, src, config)
		defer stop()
		recorders := make([]*recorder, 4)
		for i := range recorders {
			recorders[i] = new(recorder)
			add(t, s, StreamConfig{
				Rank: rank(uint32(i)), Endpoint: fmt.Sprint("pub", i), Replay: fmt.Sprint("rep", i), Applier: recorders[i],
			})
			src.open(fmt.Sprint("pub", i)).status(true)
			synctest.Wait()
		}
		if got := src.asked(); got != "rep0 0, rep1 0" {
			t.Fatalf("requests %s, want two", got)
		}
		s.Remove(rank(2)) // gives its place in the queue up
		src.open("rep0").answers("a0")
		synctest.Wait()
		if got := src.asked(); got != "rep0 0, rep1 0, rep3 0" {
			t.Fatalf("requests %s, want rep3's too", got)
		}
		s.Remove(rank(1)) // gives its slot back
		src.open("pub0").live(9, "a9")
		synctest.Wait()
		if got := src.asked(); got != "rep0 0, rep1 0, rep3 0, rep0 1" {
			t.Fatalf("requests %s, want rep0's second", got)
		}
		src.open("pub3").live(1, "d1")
		src.open("rep3").answers("d0")
		expect(t, "stream 3", recorders[3], "d0 d1")
		stop()
		if err := s.Add(StreamConfig{Rank: rank(7), Endpoint: "pub", Applier: recorders[0]}); !errors.Is(err, ErrClosed) {
			t.Errorf("Add after Run: %v", err)
		}
		if err := s.Barrier(context.Background()); err != nil {
			t.Errorf("Barrier after Run: %v", err)
		}
		for _, socket := range src.sockets {
			if !socket.closed {
				t.Errorf("socket of %s is open after Run", socket.endpoint)
			}
		}
	})
}

// TestSlowReplaysDelayNoOther: servers that say nothing, or a message now and then, keep no
// other stream from its replay.
func TestSlowReplaysDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{}
		config := DefaultConfig(1)
		config.Replays = 2
		s, stop := startSubscribers(t, src, config)
		defer stop()
		for i := range uint32(4) {
			add(t, s, StreamConfig{Rank: rank(i), Endpoint: fmt.Sprint("pub", i), Replay: fmt.Sprint("rep", i), Applier: new(recorder)})
			src.open(fmt.Sprint("pub", i)).status(true)
		}
		for n := range uint64(10) {
			synctest.Wait()
			src.open("rep0").message([][]byte{nil, seqFrame(n), []byte("drip")})
			time.Sleep(slotTime)
		}
		first := strings.SplitN(src.asked(), ", ", 5)
		first = first[:min(4, len(first))]
		slices.Sort(first) // two slots are given back at the same moment
		if got := strings.Join(first, ", "); got != "rep0 0, rep1 0, rep2 0, rep3 0" {
			t.Errorf("the first requests are %s, want one to each", got)
		}
		got := new(recorder)
		add(t, s, StreamConfig{Rank: rank(9), Endpoint: "pub", Replay: "rep", Applier: got})
		src.open("pub").status(true)
		synctest.Wait()
		src.open("rep").answers("a0")
		expect(t, "another replay", got, "a0")
	})
}

func TestSubscribersRefusedReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{refuse: "rep"}
		config := DefaultConfig(1)
		config.Replays = 1
		s, stop := startSubscribers(t, src, config)
		defer stop()
		for i := range uint32(3) {
			got := new(recorder)
			add(t, s, StreamConfig{Rank: rank(i), Endpoint: "pub", Replay: "rep", Applier: got})
			pub := src.open("pub")
			pub.status(true)
			pub.live(7, "a7")
			expect(t, "live at once", got, "a7")
		}
		if n := s.Counters().ReplayResults[ReplayNotOpened].Load(); n < 3 {
			t.Errorf("%d refusals counted", n)
		}
	})
}

// Two ranks share a replay server, which has rank 0's ring.
func TestSubscribersSharedReplay(t *testing.T) {
	const events = "\x90" // none
	batch := func(r byte) string { return "\x93\x01" + events + string(rune(r)) }
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{}
		s, stop := startSubscribers(t, src, DefaultConfig(1))
		defer stop()
		got := new(recorder)
		add(t, s, StreamConfig{Rank: rank(1), Endpoint: "pub", Replay: "rep", SharedReplay: true, Applier: got})
		src.open("pub").status(true)
		synctest.Wait()
		src.open("rep").answers(batch(0), batch(0), batch(1))
		expect(t, "only rank 1's", got, batch(1))
		if n := s.Counters().Foreign.Load(); n != 2 {
			t.Errorf("%d foreign batches counted, want 2", n)
		}
	})
}

// TestBarrierShows proves that after a Barrier everything received before shows
// in the status of the stream and in the counts of its events.
func TestBarrierShows(t *testing.T) {
	r, pub := startRig(t, "")
	defer r.stop()
	const rounds = 2000
	for i := range uint64(rounds) {
		pub.live(i, r.batch(0, 0, storedEvent(int(i))))
		if err := r.subs.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		tally := r.subs.Tally()
		if st := r.subs.Streams()[0]; !st.HasLast || st.Last != i || st.State != Live || tally.ByReason()[Applied] != i+1 {
			t.Fatalf("message %d: status %+v, %d events applied", i, st, tally.ByReason()[Applied])
		}
	}
}

// TestEngineClears proves that an engine's clear ends what a stream has missed,
// unless it is another rank's or the stream is about more than the rank.
func TestEngineClears(t *testing.T) {
	own := func(r *rig) string { return r.batch(0, 0, storedEvent(9), clearedEvent) }
	for name, tc := range map[string]struct {
		before func(r *rig) string // the gap
		clear  func(r *rig) string
		want   StreamState
	}{
		"its own":            {clear: own, want: Live},
		"of no stated rank":  {clear: func(r *rig) string { return r.batch(0, nil, clearedEvent) }, want: Live},
		"another rank's":     {clear: func(r *rig) string { return r.batch(0, 1, clearedEvent) }, want: Stale},
		"an unknown rank's":  {clear: func(r *rig) string { return r.batch(0, 2, clearedEvent) }, want: Stale},
		"another owner's":    {clear: func(r *rig) string { return r.batch(0, 0, list{"AllBlocksCleared", "STORE"}) }, want: Stale},
		"a bad one":          {clear: func(r *rig) string { return r.batch(0, 0, list{"AllBlocksCleared", 7}) }, want: Stale},
		"in a bad batch":     {clear: func(r *rig) string { return packed(r, list{1.5, list{clearedEvent}, "x"}) }, want: Stale},
		"an envelope's":      {clear: func(r *rig) string { return r.batch(0, 0, dict{"event_type": "cleared", "event_id": 1}) }, want: Stale},
		"none":               {clear: func(r *rig) string { return r.batch(0, 0, storedEvent(1)) }, want: Stale},
		"several ranks":      {before: func(r *rig) string { return r.batch(0, 1, storedEvent(1)) }, clear: own, want: Stale},
		"beside an envelope": {before: func(r *rig) string { return r.batch(0, 0, dict{"event_type": "cleared", "event_id": 1}) }, clear: own, want: Stale},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, pub := startRig(t, "")
				defer r.stop()
				first := r.batch(0, 0, storedEvent(1))
				if tc.before != nil {
					first = tc.before(r)
				}
				pub.live(0, first)
				pub.live(3, r.batch(0, 0, storedEvent(2)))
				if got := r.state(); got != Stale {
					t.Fatalf("after a gap: %v", got)
				}
				pub.live(4, tc.clear(r))
				if got := r.state(); got != tc.want {
					t.Errorf("state is %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// A replay of everything that stays silent is asked again without any live
// message, later each time; a timer that is armed for that does not keep another
// replay from being given up in time.
func TestSubscribersAskAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{}
		s, stop := startSubscribers(t, src, DefaultConfig(1))
		defer stop()
		got := new(recorder)
		add(t, s, StreamConfig{Rank: rank(0), Endpoint: "pub", Replay: "rep", Applier: got})
		pub := src.open("pub")
		pub.status(true)
		asked := func(at string, want string) {
			t.Helper()
			synctest.Wait()
			if src.asked() != want {
				t.Errorf("%s: asked for %q, want %q", at, src.asked(), want)
			}
		}
		time.Sleep(9900 * time.Millisecond)
		asked("9.9 s", "rep 0")
		time.Sleep(200 * time.Millisecond)
		asked("10.1 s", "rep 0, rep 0")
		time.Sleep(6 * time.Second) // silent; the next one is due at 25 s
		asked("16.1 s", "rep 0, rep 0")
		pub.status(false)
		pub.status(true)
		asked("connected again", "rep 0, rep 0, rep 0")
		time.Sleep(5100 * time.Millisecond)
		synctest.Wait()
		if src.open("rep") != nil {
			t.Error("the silent replay's socket is still open")
		}
		time.Sleep(5 * time.Second)
		asked("26.2 s", "rep 0, rep 0, rep 0, rep 0")
		src.open("rep").answers("a0", "a1")
		expect(t, "at last", got, "a0 a1")
		time.Sleep(time.Hour)
		asked("an hour later", "rep 0, rep 0, rep 0, rep 0")
		if n := s.Counters().ReplaysAgain.Load(); n != 2 {
			t.Errorf("%d replays counted as asked again, want 2", n)
		}
	})
}
