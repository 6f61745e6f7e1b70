package replicasync

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestReservationsDropped proves that a worker that is removed everywhere and comes
// back at once has no load left, although a reservation on it was still under way: the
// process that accepted the reservation reports its end.
func TestReservationsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := m.run(t, "a", 1, Options{}), m.run(t, "b", 2, Options{})
		a.register(t, "b")
		b.register(t, "a")
		time.Sleep(3250 * time.Millisecond) // between two announcements

		var late [][]byte // what a says, held up on its way
		m.set(func(from, topic string) bool { return from == "tcp://a:5" && topic == TopicEvents }, false)
		m.tap(func(topic string, payload []byte) {
			if topic == TopicEvents {
				late = append(late, payload)
			}
		})
		a.book(t, "x")
		synctest.Wait()
		m.tap(nil)
		m.set(nil, false)
		for _, r := range []*running{a, b} {
			if n := r.l.RemoveRank(benchScope, 0); n > 0 {
				r.ReservationsDropped(n)
			}
			r.l.PutRank(benchScope, 0, benchRank)
			r.RanksAdded()
		}
		if len(late) != 1 {
			t.Fatalf("%d events under way, want 1", len(late))
		}
		m.deliver("tcp://a:5", TopicEvents, late[0])
		synctest.Wait()
		agree(t, 1, b) // it cannot know better yet
		time.Sleep(3 * time.Second)
		agree(t, 0, a, b)
	})
}

// TestCaughtUp proves when CaughtUp is true: once all peers have been heard, their
// snapshots read, and read again for what was refused because a rank was unknown. A
// silent peer is waited for 3 s.
func TestCaughtUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a := m.run(t, "a", 1, Options{})
		a.book(t, "x")
		time.Sleep(50 * time.Millisecond)

		b := m.run(t, "b", 2, Options{})
		b.l.RemoveRank(benchScope, 0)
		if !b.CaughtUp() {
			t.Error("without peers there is nothing to wait for")
		}
		b.register(t, "a")
		if b.CaughtUp() {
			t.Error("caught up before the peer was heard")
		}
		time.Sleep(1500 * time.Millisecond)
		if !b.CaughtUp() {
			t.Error("the peer was heard and asked")
		}
		b.l.PutRank(benchScope, 0, benchRank)
		b.RanksAdded()
		if b.CaughtUp() {
			t.Error("caught up before what was refused came again")
		}
		time.Sleep(1500 * time.Millisecond)
		if !b.CaughtUp() {
			t.Error("what was refused has come")
		}
		agree(t, 1, a, b)

		b.register(t, "nobody")
		time.Sleep(announceWithin - time.Millisecond)
		if b.CaughtUp() {
			t.Error("a new peer may announce itself yet")
		}
		time.Sleep(time.Millisecond)
		if !b.CaughtUp() {
			t.Error("a peer that says nothing is waited for")
		}
	})
}
