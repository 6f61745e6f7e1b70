package kvevents

import (
	"testing"
	"testing/synctest"
	"time"
)

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
