package selection_test

import (
	"maps"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
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
		if hard.Name != "hard" || hard.Bound != selection.HardBinding || hard.Turns != 2 || hard.Tokens != 2*6400 || hard.Class != "chat" {
			t.Errorf("%+v", hard)
		}
		if soft.Name != "child" || soft.Bound != selection.SoftBinding || soft.Parent != "root" || soft.Home != sel.Rank || soft.Turns != 1 || soft.Class != "sub-agent" {
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

// TestListedGroups: a group is listed with all turns of its sessions and by whom it was started, in the same words as with its sessions and
// their decisions. Sessions that are not kept together have a parent and no group.
func TestListedGroups(t *testing.T) {
	w := family(t)
	for i, ask := range []func(*selection.SelectRequest){
		soft("a", "root"), soft("a", "root"), soft("b", "root"),
		func(r *selection.SelectRequest) { soft("c", "other")(r); r.Groups = false },
		func(r *selection.SelectRequest) { soft("d", "root")(r); r.SessionTenant = "acme" },
	} {
		if _, err := reserve(w, strconv.Itoa(i), child(1, 1), ask); err != nil {
			t.Fatal(err)
		}
	}
	type row struct {
		kind                 selection.NameKind
		parent, group, class string
		turns                uint32
		tokens               uint64
	}
	rows, names := map[string]row{}, map[string]string{} // by the name; of a group by that of whom it is of
	for _, s := range w.ListSessions(&selection.SessionQuery{Limit: 10}).Sessions {
		key := s.Name
		switch s.Kind {
		case selection.GroupsName:
			key = "group of " + s.Group
		case selection.TenantsName:
			key, names["acme"] = "of acme", s.Group
		}
		rows[key] = row{s.Kind, s.Parent, s.Group, s.Class, s.Turns, s.Tokens}
	}
	acme := names["acme"] // a hash
	if acme == "" || acme == "root" || acme[0] < ' ' {
		t.Errorf("the group of acme's session is %q", acme)
	}
	want := map[string]row{
		"a":                {selection.ClientsName, "root", "root", "sub-agent", 2, 2 * 6400},
		"b":                {selection.ClientsName, "root", "root", "sub-agent", 1, 6400},
		"c":                {selection.ClientsName, "other", "", "sub-agent", 1, 6400},
		"of acme":          {selection.TenantsName, acme, acme, "sub-agent", 1, 6400},
		"group of root":    {selection.GroupsName, "", "root", "sub-agent", 3, 3 * 6400},
		"group of " + acme: {selection.GroupsName, "", acme, "sub-agent", 1, 6400},
	}
	if !maps.Equal(rows, want) {
		t.Errorf("%+v, want %+v", rows, want)
	}
}

// TestListedBindings: where the gateway and the proxy place sessions by caches and loads alone, none of theirs is listed as bound, but for those
// of groups, which are kept together. An explanation says the same: it has a home for those that are bound.
func TestListedBindings(t *testing.T) {
	for _, mode := range []selection.SessionMode{selection.SoftSessions, selection.LooseSessions} {
		w := family(t, func(c *node.Config) { c.Selection.FrontSessions, c.Selection.FrontGroups = mode, true })
		for i, name := range []string{"alone", "a", "b"} {
			parent := map[string]string{"a": "root", "b": "root"}[name]
			if _, err := reserve(w, strconv.Itoa(i), child(1, 1), soft(name, parent), func(r *selection.SelectRequest) { r.SessionMode = mode }); err != nil {
				t.Fatal(err)
			}
		}
		alone := selection.SoftBinding
		if mode == selection.LooseSessions {
			alone = selection.NoBinding
		}
		list := w.ListSessions(&selection.SessionQuery{Limit: 10})
		if len(list.Sessions) != 4 {
			t.Errorf("mode %d: %+v", mode, list)
		}
		for _, s := range list.Sessions {
			want := selection.SoftBinding
			if s.Name == "alone" {
				want = alone
			}
			if s.Bound != want {
				t.Errorf("mode %d: session %s is bound as %q, want %q", mode, s.Name, s.Bound, want)
			}
			if s.Kind == selection.GroupsName {
				continue
			}
			r := servicetest.Ask(child(1, 1))
			r.Session, r.Parent = s.Name, s.Parent
			if x, err := w.Explain(t.Context(), r); err != nil {
				t.Error(err)
			} else if (x.Home != nil) != (s.Bound != selection.NoBinding) {
				t.Errorf("mode %d: session %s, bound as %q, has the home %v", mode, s.Name, s.Bound, x.Home)
			}
		}
	}
}

// TestSessionsOfPairs: the turns of a session that are pairs count as others do, and a soft one stays on the rank that decodes.
func TestSessionsOfPairs(t *testing.T) {
	for _, mode := range []selection.SessionMode{selection.HardSessions, selection.SoftSessions} {
		w := disaggregated(t, homes, func(c *node.Config) { c.Selection.SessionTTL = time.Hour })
		pair := func(id string) (selection.Pair, error) {
			return w.SelectPair(t.Context(), askPair(id, servicetest.Prompt(1, 8), func(r *selection.PairRequest) {
				r.Session, r.SessionMode, r.OfAgent = "s", mode, true
			}))
		}
		got, err := pair("1")
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"1", "1", "2"} { // a pair whose id is in use is no turn
			if _, err = pair(id); (err == nil) != (id == "2") {
				t.Fatalf("mode %d, id %s: %v", mode, id, err)
			}
		}
		for running := uint32(2); ; running-- {
			list := w.ListSessions(&selection.SessionQuery{Limit: 10}).Sessions
			if len(list) != 1 || list[0].Running != running || list[0].Tokens < 16 || list[0].Class != "agent" || list[0].Home.Worker < 3 {
				t.Fatalf("mode %d, %d under way: %+v; first pair on %v", mode, running, list, got.Decode.Rank)
			}
			if running == 0 {
				break
			}
			if err := w.Free(map[uint32]string{2: "1", 1: "2"}[running]); err != nil {
				t.Fatal(err)
			}
		}
	}
}
