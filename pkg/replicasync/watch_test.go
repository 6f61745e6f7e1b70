package replicasync

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestWatcher proves that connections, losses and fetches are told, losses not
// one by one.
func TestWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, w := newMemory(), new(watched)
		a, b := m.run(t, "a", 1, Options{}), m.run(t, "b", 2, Options{Watcher: w})
		told := func(want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, w.take()); diff != "" {
				t.Errorf("told: -want +got\n%s", diff)
			}
		}
		time.Sleep(50 * time.Millisecond)
		b.register(t, "a")
		time.Sleep(2 * time.Second)
		told("tcp://a:5 up true", "http://a:80 of 1: 0, <nil>")

		for _, id := range []string{"w", "x", "y"} { // every other one arrives
			m.set(func(from, topic string) bool { return from == "tcp://a:5" && topic == TopicEvents }, false)
			a.book(t, id)
			synctest.Wait()
			m.set(nil, false)
			a.book(t, id+"2")
			synctest.Wait()
		}
		time.Sleep(1500 * time.Millisecond)
		agree(t, 6, a, b)
		lines := w.take()
		told()
		if len(lines) < 3 || lines[0] != "tcp://a:5 lost 1 of 1" {
			t.Errorf("told %q", lines)
		}
		count := make(map[string]int)
		for _, l := range lines {
			count[l]++
		}
		if count["tcp://a:5 lost 1 of 1"] != 1 || count["tcp://a:5 lost 2 of 1"] != 1 {
			t.Errorf("told %q, want the second and third loss together", lines)
		}

		m.set(nil, true)
		b.coreMu.Lock()
		b.core.identities[1].senders[0].wanted = true
		b.coreMu.Unlock()
		b.wakeFetches()
		synctest.Wait()
		told("http://a:80 of 1: 1, network is down")
		m.set(nil, false)
	})
}
