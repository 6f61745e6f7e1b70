package selection_test

import (
	"testing"
	"testing/synctest"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func owners(c *node.Config) { c.Selection.Owners = true }

// TestOwnersAmongReplicas: replicas share the engines of ids, with or without sessions, and those that start
// later learn them from the snapshot. The first engine that shows an id keeps it while it is registered.
func TestOwnersAmongReplicas(t *testing.T) {
	for _, change := range []func(*node.Config){owners, func(c *node.Config) { owners(c); sessions(c) }} {
		synctest.Test(t, func(t *testing.T) {
			m := servicetest.NewMesh()
			a, b := m.Start(t, "a", servicetest.EventsOff, change), m.Start(t, "b", servicetest.EventsOff, change)
			m.Connect(t, "a", "b")
			put := func(w *servicetest.World) {
				w.Put(servicetest.Record(1, 1))
				w.Put(servicetest.Record(2, 1))
			}
			put(a)
			put(b)
			servicetest.Announced()
			want := func(when string, w *servicetest.World, tenant string, worker uint64) {
				t.Helper()
				synctest.Wait()
				if got, _ := w.Owner(servicetest.Scope, tenant, "resp_1"); got.Worker != worker {
					t.Errorf("%s: the owner is %d, want %d (0: none)", when, got.Worker, worker)
				}
			}
			a.Own(servicetest.Scope, "t", "resp_1", catalog.Rank{Worker: 2})
			want("at the other replica", b, "t", 2)
			want("of another tenant", b, "u", 0)
			b.Own(servicetest.Scope, "t", "resp_1", catalog.Rank{Worker: 1})
			want("another engine shows it", a, "t", 2)
			c := m.Start(t, "c", servicetest.EventsOff, change)
			put(c)
			m.Connect(t, "c", "a")
			servicetest.Announced()
			want("at one that starts later", c, "t", 2)
			b.Disown(servicetest.Scope, "t", "resp_1")
			want("deleted at another one", a, "t", 0)
			a.Own(servicetest.Scope, "t", "resp_1", catalog.Rank{Worker: 2})
			synctest.Wait()
			a.Remove(2)
			b.Remove(2)
			a.Own(servicetest.Scope, "t", "resp_1", catalog.Rank{Worker: 1})
			want("after its engine has left", b, "t", 1)
		})
	}
}

// TestNoSessionIsAnOwner: a caller's session cannot have the name of an id.
func TestNoSessionIsAnOwner(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, owners, sessions)
	w.Put(servicetest.Record(1, 1))
	_, err := reserve(w, "r", servicetest.Prompt(1, 8), func(r *selection.SelectRequest) { r.Session = "\x03x" })
	if err == nil {
		t.Error("it was booked")
	}
}
