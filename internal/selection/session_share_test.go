package selection_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/test/servicetest"
)

// sharing starts two replicas that follow each other and share sessions. Both have
// worker 1, which carries more than worker 2.
func sharing(t *testing.T, m *servicetest.Mesh) (a, b *world) {
	t.Helper()
	a, b = &world{m.Start(t, "a", eventsOff, sessions)}, &world{m.Start(t, "b", eventsOff, sessions)}
	m.Connect(t, "a", "b")
	for _, w := range []*world{a, b} {
		w.Put(record(1, 1))
	}
	a.Book("load", prompt(1000, 800))
	for _, w := range []*world{a, b} {
		w.Put(record(2, 1))
	}
	synctest.Wait()
	return a, b
}

// TestSessionsAmongReplicas: a session that one replica has bound is followed by the
// other, for as long as any of them uses it, and the end of a binding is heard, too.
func TestSessionsAmongReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := sharing(t, servicetest.NewMesh())
		where := func(want uint64, who ...*world) {
			t.Helper()
			synctest.Wait()
			for i, w := range who {
				if got := w.where(of("s")); got != want {
					t.Errorf("replica %d: the session is at %d, want %d", i, got, want)
				}
			}
		}
		where(2, a, b) // the one that carries less
		if _, err := a.reserve("r", prompt(1, 8), of("s"), onWorkers(1)); err != nil {
			t.Fatal(err)
		}
		where(1, a, b)
		time.Sleep(sessionTTL / 2)
		if _, err := b.reserve("q", prompt(1, 8), of("s")); err != nil {
			t.Fatal(err)
		}
		if err := a.Free("r"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * sessionTTL) // b's reservation lives, and so does its binding
		synctest.Wait()
		if got := b.where(of("s")); got != 1 {
			t.Errorf("the session is at %d", got)
		}
		if err := b.Free("q"); err != nil { // the end of a use is heard by a
			t.Fatal(err)
		}
		time.Sleep(sessionTTL / 2)
		where(1, a, b)
		time.Sleep(sessionTTL)
		where(2, a, b)

		if _, err := a.reserve("r2", prompt(1, 8), of("s"), onWorkers(1)); err != nil {
			t.Fatal(err)
		}
		where(1, a, b)
		_, err := b.reserve("no", prompt(1, 8), of("s"), onWorkers(2))
		if err == nil || err.Error() != "session s is bound to worker 1, not 2" {
			t.Errorf("%v", err)
		}
		where(2, a, b) // the refusal has ended the binding, everywhere
	})
}

// TestSessionsFromSnapshot: a replica that starts late, or whose ranks come late, learns
// the sessions from the snapshot, with the time that they were idle.
func TestSessionsFromSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		a, _ := sharing(t, m)
		for _, session := range []string{"s", "idle"} {
			if _, err := a.reserve(session, prompt(1, 8), of(session), onWorkers(1)); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Free("idle"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(sessionTTL / 5)
		c := &world{m.Start(t, "c", eventsOff, sessions)}
		m.Connect(t, "c", "a")
		servicetest.Announced()
		c.Put(record(1, 1))
		servicetest.Announced()
		c.Put(record(2, 1))
		if got := c.where(of("s")); got != 1 {
			t.Errorf("the session is at %d", got)
		}
		if got := c.where(of("idle")); got != 1 {
			t.Errorf("the idle session is at %d", got)
		}
		if n := c.Remembered().Sessions; n != 2 {
			t.Errorf("%d sessions", n)
		}
		time.Sleep(sessionTTL / 2) // it does not grow younger on its way
		if got := c.where(of("idle")); got != 2 {
			t.Errorf("the idle session is at %d", got)
		}
	})
}

// TestSessionsStayHome: replicas without sessions neither tell of any nor take any.
func TestSessionsStayHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		a, b := &world{m.Start(t, "a", eventsOff, sessions)}, &world{m.Start(t, "b", eventsOff)}
		m.Connect(t, "a", "b")
		for _, w := range []*world{a, b} {
			w.Put(record(1, 1))
		}
		if _, err := b.reserve("b", prompt(1, 8), of("s")); err != nil {
			t.Fatal(err)
		}
		servicetest.Announced()
		if n := a.Remembered().Sessions; n != 0 {
			t.Errorf("%d sessions", n)
		}
		if got := sum(b.Metrics()["replica_messages_sent_total"], "session_bound"); got != 0 {
			t.Errorf("%v bindings were published", got)
		}
	})
}
