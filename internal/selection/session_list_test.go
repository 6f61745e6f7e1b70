package selection_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestSessionList: sessions are listed with what they have done and when they are expected, whether they are bound or have a home. A
// tenant's and a group's name is a hash; no name has the bytes of a key.
func TestSessionList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := family(t, func(c *node.Config) { c.Selection.SessionTTL = time.Hour })
		ask := func(id string, change ...func(*selection.SelectRequest)) selection.Selection {
			sel, err := reserve(w, id, child(1, 1), change...)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			return sel
		}
		free := func(id string) {
			if err := w.Free(id); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		ask("1", of("hard"))
		free("1")
		ask("2", soft("root", ""))
		ask("3", soft("child", "root"), func(r *selection.SelectRequest) { r.SessionTenant = "acme" })
		sel := ask("4", soft("child", "root"), func(r *selection.SelectRequest) { r.OfAgent = true })
		free("4")
		ask("5", of("hard"))
		free("5")

		list := w.ListSessions(&selection.SessionQuery{Limit: 10})
		if list.Total != len(list.Sessions) || list.Total != 6 || list.Next != nil {
			t.Fatalf("%d of %d sessions: %+v", len(list.Sessions), list.Total, list)
		}
		kinds := make(map[selection.NameKind]int)
		for _, s := range list.Sessions {
			kinds[s.Kind]++
			if s.Name[0] < ' ' || s.Endpoint == "" || s.Seen.IsZero() {
				t.Errorf("%+v", s)
			}
		}
		if kinds[selection.ClientsName] != 3 || kinds[selection.TenantsName] != 1 || kinds[selection.GroupsName] != 2 {
			t.Errorf("kinds: %v", kinds)
		}
		hard, soft := list.Sessions[0], list.Sessions[1]
		if hard.Name != "hard" || !hard.Hard || hard.Turns != 2 || hard.Tokens != 2*6400 || hard.Class != "chat" {
			t.Errorf("%+v", hard)
		}
		if soft.Name != "child" || soft.Hard || soft.Parent != "root" || soft.Home != sel.Rank || soft.Turns != 1 || soft.Class != "sub-agent" {
			t.Errorf("%+v", soft)
		}
		// Half of the sub-agents come back at all, and of those a fifth after 2 s (log-normal 0.69/1.13: the median is 2 s).
		if soft.Chance <= 0.1 || soft.Chance >= 0.5 || !soft.Expected.After(time.Now()) {
			t.Errorf("comes back with %v at %v", soft.Chance, soft.Expected)
		}
		for _, s := range list.Sessions {
			if s.Running > 0 && (s.Chance != 1 || !s.Expected.IsZero()) {
				t.Errorf("under way, but %+v", s)
			}
		}

		first := w.ListSessions(&selection.SessionQuery{Limit: 4})
		rest := w.ListSessions(&selection.SessionQuery{Limit: 4, After: *first.Next})
		if len(first.Sessions) != 4 || len(rest.Sessions) != 2 || rest.Next != nil || rest.Sessions[1] != list.Sessions[5] {
			t.Errorf("pages of %d and %d", len(first.Sessions), len(rest.Sessions))
		}
		worker := sel.Rank.Worker
		for _, s := range w.ListSessions(&selection.SessionQuery{Limit: 10, Worker: &worker}).Sessions {
			if s.Home.Worker != worker {
				t.Errorf("%+v is not on worker %d", s, worker)
			}
		}
		if other := w.ListSessions(&selection.SessionQuery{Limit: 10, Of: catalog.ScopeFilter{Tenant: new("another")}}); other.Total != 0 {
			t.Errorf("of another tenant: %+v", other)
		}
	})
}
