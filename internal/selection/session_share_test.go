package selection_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// sharing starts two replicas that follow each other and share sessions. Both have
// worker 1, which carries more than worker 2.
func sharing(t *testing.T, m *servicetest.Mesh) (a, b *servicetest.World) {
	t.Helper()
	a, b = m.Start(t, "a", servicetest.EventsOff, sessions), m.Start(t, "b", servicetest.EventsOff, sessions)
	m.Connect(t, "a", "b")
	for _, w := range []*servicetest.World{a, b} {
		w.Put(servicetest.Record(1, 1))
	}
	a.Book("load", servicetest.Prompt(1000, 800))
	for _, w := range []*servicetest.World{a, b} {
		w.Put(servicetest.Record(2, 1))
	}
	synctest.Wait()
	return a, b
}

// TestSessionsAmongReplicas: a session that one replica has bound is followed by the
// other, for as long as any of them uses it, and the end of a binding is heard, too.
func TestSessionsAmongReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := sharing(t, servicetest.NewMesh())
		wantAt := func(want uint64, who ...*servicetest.World) {
			t.Helper()
			synctest.Wait()
			for i, w := range who {
				if got := where(w, of("s")); got != want {
					t.Errorf("replica %d: the session is at %d, want %d", i, got, want)
				}
			}
		}
		wantAt(2, a, b) // the one that carries less
		if _, err := reserve(a, "r", servicetest.Prompt(1, 8), of("s"), onWorkers(1)); err != nil {
			t.Fatal(err)
		}
		wantAt(1, a, b)
		time.Sleep(sessionTTL / 2)
		if _, err := reserve(b, "q", servicetest.Prompt(1, 8), of("s")); err != nil {
			t.Fatal(err)
		}
		if err := a.Free("r"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * sessionTTL) // b's reservation lives, and so does its binding
		synctest.Wait()
		if got := where(b, of("s")); got != 1 {
			t.Errorf("the session is at %d", got)
		}
		if err := b.Free("q"); err != nil { // the end of a use is heard by a
			t.Fatal(err)
		}
		time.Sleep(sessionTTL / 2)
		wantAt(1, a, b)
		time.Sleep(sessionTTL)
		wantAt(2, a, b)

		if _, err := reserve(a, "r2", servicetest.Prompt(1, 8), of("s"), onWorkers(1)); err != nil {
			t.Fatal(err)
		}
		wantAt(1, a, b)
		_, err := reserve(b, "no", servicetest.Prompt(1, 8), of("s"), onWorkers(2))
		if err == nil || err.Error() != "session s is bound to worker 1, not 2" {
			t.Errorf("%v", err)
		}
		wantAt(2, a, b) // the refusal has ended the binding, everywhere
	})
}

// TestSessionsFromSnapshot: a replica that starts late, or whose ranks come late, learns
// the sessions from the snapshot, with the time that they were idle.
func TestSessionsFromSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		a, _ := sharing(t, m)
		for _, session := range []string{"s", "idle"} {
			if _, err := reserve(a, session, servicetest.Prompt(1, 8), of(session), onWorkers(1)); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Free("idle"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(sessionTTL / 5)
		c := m.Start(t, "c", servicetest.EventsOff, sessions)
		m.Connect(t, "c", "a")
		servicetest.Announced()
		c.Put(servicetest.Record(1, 1))
		servicetest.Announced()
		c.Put(servicetest.Record(2, 1))
		if got := where(c, of("s")); got != 1 {
			t.Errorf("the session is at %d", got)
		}
		if got := where(c, of("idle")); got != 1 {
			t.Errorf("the idle session is at %d", got)
		}
		if n := c.Remembered().Sessions; n != 2 {
			t.Errorf("%d sessions", n)
		}
		time.Sleep(sessionTTL / 2) // it does not grow younger on its way
		if got := where(c, of("idle")); got != 2 {
			t.Errorf("the idle session is at %d", got)
		}
	})
}

// TestSessionsStayHome: replicas without sessions neither tell of any nor take any.
func TestSessionsStayHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		a, b := m.Start(t, "a", servicetest.EventsOff, sessions), m.Start(t, "b", servicetest.EventsOff)
		m.Connect(t, "a", "b")
		for _, w := range []*servicetest.World{a, b} {
			w.Put(servicetest.Record(1, 1))
		}
		if _, err := reserve(b, "b", servicetest.Prompt(1, 8), of("s")); err != nil {
			t.Fatal(err)
		}
		servicetest.Announced()
		if n := a.Remembered().Sessions; n != 0 {
			t.Errorf("%d sessions", n)
		}
		if got := servicetest.Sum(b.Metrics()["replica_messages_sent_total"], "session_bound"); got != 0 {
			t.Errorf("%v bindings were published", got)
		}
	})
}

// TestAnyNameAmongReplicas: a header's value may have any bytes, and replicas and lists have texts in UTF-8 only. Each such session is known to all
// replicas nevertheless, is no other one, and is a tenant's own.
func TestAnyNameAmongReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		a, b := m.Start(t, "a", servicetest.EventsOff, homes), m.Start(t, "b", servicetest.EventsOff, homes)
		m.Connect(t, "a", "b")
		for _, w := range []*servicetest.World{a, b} {
			for id := range uint64(4) {
				w.Put(servicetest.Record(id, 1))
			}
		}
		servicetest.Announced()
		names := []string{"caf\xe9", "caf\xe8", "\xff\xfe", "café", "a%00b", "日本"}
		for i, name := range names {
			if err := attempt(a, fmt.Sprint(i), servicetest.Prompt(uint32(i), 8), soft(name, ""), onWorkers(uint64(i%4))); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		for i, name := range names {
			for at, w := range []*servicetest.World{a, b} {
				if r, known := w.SessionRank(servicetest.Scope, "", name); !known || r.Worker != uint64(i%4) {
					t.Errorf("replica %d has %q on %v (%t), want worker %d", at, name, r, known, i%4)
				}
				if _, known := w.SessionRank(servicetest.Scope, "other", name); known {
					t.Errorf("replica %d has %q of another tenant", at, name)
				}
			}
		}
		for _, s := range b.ListSessions(&selection.SessionQuery{Limit: 100}).Sessions {
			if !utf8.ValidString(s.Name) {
				t.Errorf("listed as %q", s.Name)
			}
		}
	})
}
