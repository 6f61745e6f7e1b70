package selection_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func homes(c *node.Config) { c.Selection.HomeTTL = time.Hour }

// soft is a request of a soft session that parent has started; "": nobody.
func soft(session, parent string) func(*selection.SelectRequest) {
	return func(r *selection.SelectRequest) {
		r.Session, r.Parent, r.SessionMode, r.Groups = session, parent, selection.SoftSessions, true
	}
}

// family starts a service of eight engines with predicted-ttft, which compute 12,000 tokens a second.
func family(t *testing.T, change ...func(*node.Config)) *servicetest.World {
	w := servicetest.Start(t, append([]func(*node.Config){servicetest.EventsOff, homes, keeping, servicetest.Policy(t, "predicted-ttft", "")}, change...)...)
	for id := range uint64(8) {
		w.Put(servicetest.Record(id, 1))
	}
	return w
}

// child is the prompt of a sub-agent: a head of 6,000 tokens that all children of a parent have, and 400 tokens of its own.
func child(parent, i uint32) []uint32 {
	return append(servicetest.Prompt(1000+parent, 6000), servicetest.Prompt(5000+i, 400)...)
}

// fanOut starts children of a parent, from number from on and all at once, and returns how many went to each worker.
func fanOut(w *servicetest.World, parent string, from, n int, change ...func(*selection.SelectRequest)) map[uint64]int {
	w.T.Helper()
	var mu sync.Mutex
	var g sync.WaitGroup
	at := make(map[uint64]int)
	for i := from; i < from+n; i++ {
		g.Go(func() {
			name := fmt.Sprint(parent, " ", i)
			all := append([]func(*selection.SelectRequest){soft(name, parent)}, change...)
			sel, err := reserve(w, name, child(1, uint32(i)), all...)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				w.T.Error(err)
			}
			at[sel.Rank.Worker]++
		})
	}
	g.Wait()
	return at
}

// TestFanOut: children of one parent that start at once come to few ranks, beside a parent that is busy.
func TestFanOut(t *testing.T) {
	w := family(t)
	root, err := reserve(w, "p", servicetest.Prompt(1, 6000), soft("p", ""))
	if err != nil {
		t.Fatal(err)
	}
	at := fanOut(w, "p", 0, 16)
	if len(at) > 3 || at[root.Rank.Worker] != 0 {
		t.Errorf("the parent is on worker %d, its children on %v", root.Rank.Worker, at)
	}
	// Later turns of a child stay where it is.
	for i := range 16 {
		name := fmt.Sprint("p ", i)
		x, err := w.Explain(t.Context(), func() *selection.SelectRequest {
			r := servicetest.Ask(child(1, uint32(i)))
			soft(name, "p")(r)
			return r
		}())
		if err != nil || x.Session != name || x.Group != "p" || x.Home == nil || at[x.Home.Worker] == 0 {
			t.Fatalf("%s: %+v, %v", name, x, err)
		}
	}
}

// TestFanOutByPolicy: 16 children of one parent at once, on eight equal ranks of which the parent is busy on one, come to at most three others under
// every policy whose costs say what is cached. A policy that looks at loads alone, or counts turns, is chosen to spread requests and
// does so with children, too; and LMetric's guard against hot spots takes such a burst for one.
func TestFanOutByPolicy(t *testing.T) {
	for name, tt := range map[string]struct {
		policy, parameters string
		least, most        int // ranks
	}{
		"none is configured":       {"", "", 1, 3},
		"dynamo-default-cost-fn":   {"dynamo-default-cost-fn", "", 1, 3},
		"dynamo-two-tier-cost-fn":  {"dynamo-two-tier-cost-fn", "", 1, 3},
		"predicted-ttft":           {"predicted-ttft", "", 1, 3},
		"lmetric, without a guard": {"lmetric", "hotspot_detection: false", 1, 3},
		"random":                   {"random", "", 1, 3}, // all costs are equal, so that a home is as good as any
		"lmetric":                  {"lmetric", "", 4, 7},
		"least-loaded":             {"least-loaded", "", 4, 7},
		"power-of-two-choices":     {"power-of-two-choices", "", 4, 7},
		"round-robin":              {"round-robin", "", 4, 7},
	} {
		t.Run(name, func(t *testing.T) {
			change := func(c *node.Config) { c.Scopes.Policies = nil }
			if tt.policy != "" {
				change = servicetest.Policy(t, tt.policy, tt.parameters)
			}
			w := family(t, change)
			root, err := reserve(w, "p", servicetest.Prompt(1, 6000), soft("p", ""))
			if err != nil {
				t.Fatal(err)
			}
			at := fanOut(w, "p", 0, 16)
			if len(at) < tt.least || len(at) > tt.most || at[root.Rank.Worker] != 0 {
				t.Errorf("the parent is on worker %d, its children on %v", root.Rank.Worker, at)
			}
		})
	}
}

// TestFanOutSpreads: where the home of a group is saturated, the rest of the children go elsewhere.
func TestFanOutSpreads(t *testing.T) {
	w := family(t)
	first := fanOut(w, "p", 0, 1)
	for id := range first {
		w.Burden("work", id, 0, 100, 1_000_000)
	}
	for id, n := range fanOut(w, "p", 1, 8) {
		if first[id] != 0 {
			t.Errorf("%d children came to the saturated worker", n)
		}
	}
}

// TestForks: children that begin with their parent's context stay where that is, though the parent is busy there, until others
// would begin sooner. Computing 20,000 tokens elsewhere would take 1.7 s.
func TestForks(t *testing.T) {
	w := family(t)
	context := servicetest.Prompt(1, 20_000)
	root, err := reserve(w, "p", context, soft("p", ""))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.PrefillComplete("p"); err != nil {
		t.Fatal(err)
	}
	at := make(map[uint64]int)
	for i := range uint32(4) {
		name := fmt.Sprint("p ", i)
		sel, err := reserve(w, name, append(slices.Clone(context), servicetest.Prompt(5000+i, 200)...), soft(name, "p"))
		if err != nil {
			t.Fatal(err)
		}
		at[sel.Rank.Worker]++
	}
	if at[root.Rank.Worker] != 4 {
		t.Errorf("the parent's context is on worker %d, its children on %v", root.Rank.Worker, at)
	}
}

// TestParentJoinsGroup: where the parent has come to the home of its group and is busy there, a new child that has another head
// than the others goes elsewhere.
func TestParentJoinsGroup(t *testing.T) {
	w := family(t)
	if _, err := reserve(w, "p", servicetest.Prompt(1, 6000), soft("p", "")); err != nil {
		t.Fatal(err)
	}
	first := fanOut(w, "p", 0, 1)
	for id := range first {
		_, err := reserve(w, "p again", servicetest.Prompt(1, 7000), soft("p", ""), func(r *selection.SelectRequest) {
			r.AllowedWorkers, r.HasAllowedWorkers, r.FilterBeforeSession = []uint64{id}, true, true
		})
		if err != nil {
			t.Fatal(err)
		}
		for other := range uint64(8) {
			if other != id {
				w.Burden(fmt.Sprint("work ", other), other, 0, 100, 1_000_000)
			}
		}
		r := servicetest.Ask(child(2, 1))
		soft("p 1", "p")(r)
		x, err := w.Explain(t.Context(), r)
		if want := "busy: the session that has started this one has requests there"; err != nil || x.MovedBecause != want || x.Chosen.Worker == id {
			t.Errorf("%v, moved to %v from %d because %q", err, x.Chosen, id, x.MovedBecause)
		}
	}
}

// TestGroupName: the name is Dynamo's (subagent_group_affinity_id). The hash of "abc" is that of BLAKE3's own tests.
func TestGroupName(t *testing.T) {
	if got, want := selection.GroupName("abc"), "\x01sg:6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestGroupsAmongReplicas: replicas agree where a group is, also while one of them is killed in a fan-out.
func TestGroupsAmongReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		change := []func(*node.Config){servicetest.EventsOff, homes, keeping, servicetest.Policy(t, "predicted-ttft", "")}
		a, b := m.Start(t, "a", change...), m.Start(t, "b", change...)
		m.Connect(t, "a", "b")
		for _, w := range []*servicetest.World{a, b} {
			for id := range uint64(8) {
				w.Put(servicetest.Record(id, 1))
			}
		}
		servicetest.Announced()
		first := fanOut(a, "p", 0, 6)
		synctest.Wait()
		home := func(w *servicetest.World, name string) catalog.Rank {
			r := servicetest.Ask(child(1, 99))
			soft(name, "p")(r)
			x, err := w.Explain(t.Context(), r)
			if err != nil || x.Home == nil {
				t.Fatalf("%+v, %v", x, err)
			}
			return *x.Home
		}
		group := home(b, "new")
		if got := home(a, "new"); got != group {
			t.Errorf("the group is at %v and %v", got, group)
		}
		for i := range 6 { // each child has a home of its own
			if name := fmt.Sprint("p ", i); home(a, name) != home(b, name) {
				t.Errorf("%s is at %v and %v", name, home(a, name), home(b, name))
			}
		}
		a.Stop()
		if got := home(b, "new"); got != group {
			t.Errorf("the group has gone from %v to %v", group, got)
		}
		all := fanOut(b, "p", 6, 10)
		for id, n := range first {
			all[id] += n
		}
		if len(all) > 3 {
			t.Errorf("the children are on %v", all)
		}
	})
}

// TestHardGroups: hard sessions of one parent are bound together if that is on, whatever the load, and their parent's last request
// ends that. Another tenant's parent of that name has another group.
func TestHardGroups(t *testing.T) {
	for _, on := range []bool{false, true} {
		w := family(t, sessions, func(c *node.Config) { c.Selection.SessionGroups = on })
		hard := func(session, parent, tenant string) func(*selection.SelectRequest) {
			return func(r *selection.SelectRequest) { r.Session, r.Parent, r.SessionTenant = session, parent, tenant }
		}
		at := make(map[uint64]int)
		for i := range 8 {
			sel, err := reserve(w, fmt.Sprint(i), child(1, uint32(i)), hard(fmt.Sprint("c", i), "p", ""))
			if err != nil {
				t.Fatal(err)
			}
			at[sel.Rank.Worker]++
		}
		if (len(at) == 1) != on {
			t.Errorf("groups %t: the children are on %v", on, at)
		}
		where := func(tenant string) *catalog.Rank {
			r := servicetest.Ask(child(1, 99))
			hard("new", "p", tenant)(r)
			x, err := w.Explain(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			return x.Home
		}
		if (where("") != nil) != on || where("other") != nil {
			t.Errorf("groups %t: a new child's home is %v, another tenant's %v", on, where(""), where("other"))
		}
		w.EndSession(servicetest.Scope, "", "p")
		for i := range 8 { // until they end, requests keep what they are of
			if err := w.Free(fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		if where("") != nil {
			t.Error("the group outlives its parent")
		}
	}
}

// TestBindingGoesFirst: a hard binding is followed by requests of a soft session of its name, however dear its rank is, and replaces
// a home.
func TestBindingGoesFirst(t *testing.T) {
	w := family(t, sessions)
	if _, err := reserve(w, "soft", servicetest.Prompt(1, 100), soft("s", ""), onWorkers(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := reserve(w, "hard", servicetest.Prompt(1, 100), of("s"), onWorkers(2)); err != nil {
		t.Fatal(err)
	}
	w.Burden("work", 2, 0, 100, 1_000_000)
	if sel, err := reserve(w, "again", servicetest.Prompt(1, 100), soft("s", "")); err != nil || sel.Rank.Worker != 2 {
		t.Errorf("on %v, %v", sel.Rank, err)
	}
}

// TestSoftSessions: a session stays where it is, though another rank costs a little less, moves where that costs less by more than what
// is computed again, says so, and its next turn is at home there. Without the mode it has no home.
func TestSoftSessions(t *testing.T) {
	for _, mode := range []selection.SessionMode{selection.SoftSessions, selection.LooseSessions} {
		w := family(t)
		turn := func(id string) *selection.Explanation {
			r := servicetest.Ask(servicetest.Prompt(1, 6000))
			soft("s", "")(r)
			r.SessionMode, r.Explain, r.ReservationID = mode, true, &id
			sel, err := w.Select(t.Context(), r, true)
			if err != nil {
				t.Fatal(err)
			}
			return sel.Explanation
		}
		first := turn("1")
		if first.Home != nil || first.MovedBecause != "" {
			t.Errorf("the first turn has the home %v", first.Home)
		}
		second := turn("2")
		if mode == selection.LooseSessions {
			if second.Home != nil {
				t.Errorf("a loose session has the home %v", second.Home)
			}
			continue
		}
		if *second.Home != *first.Chosen || *second.Chosen != *first.Chosen {
			t.Errorf("the second turn goes from %v to %v", second.Home, second.Chosen)
		}
		w.Burden("work", first.Chosen.Worker, 0, 100, 1_000_000)
		third := turn("3")
		if *third.Chosen == *first.Chosen || *third.Home != *first.Chosen || !strings.HasPrefix(third.MovedBecause, "busy: home costs ") || !strings.Contains(third.MovedBecause, " seconds more, a move ") {
			t.Errorf("the third turn goes from %v to %v: %q", third.Home, third.Chosen, third.MovedBecause)
		}
		if fourth := turn("4"); *fourth.Home != *third.Chosen || *fourth.Chosen != *third.Chosen {
			t.Errorf("the fourth turn goes from %v to %v", fourth.Home, fourth.Chosen)
		}
		for went, want := range map[string]float64{"new": 1, "home": 2, "busy": 1, "gone": 0} {
			if got := servicetest.Sum(w.Metrics()["session_turns_total"], went); got != want {
				t.Errorf("%v turns %s, want %v", got, went, want)
			}
		}
	}
}

// TestSelectBindsNothing: only a reservation gives a session or a group a home.
func TestSelectBindsNothing(t *testing.T) {
	w := family(t)
	for range 3 {
		r := servicetest.Ask(servicetest.Prompt(1, 100))
		soft("s", "p")(r)
		if _, err := w.Select(t.Context(), r, false); err != nil {
			t.Fatal(err)
		}
	}
	if kept := w.Remembered(); kept.Sessions != 0 {
		t.Errorf("%+v", kept)
	}
}

// TestWideScope: a session keeps its home where the choice looks at few of many ranks.
func TestWideScope(t *testing.T) {
	for _, policy := range []string{"predicted-ttft", "dynamo-default-cost-fn"} {
		inWideScope(t, servicetest.Policy(t, policy, ""))
	}
}

func inWideScope(t *testing.T, policy func(*node.Config)) {
	w := servicetest.Start(t, servicetest.EventsOff, homes, keeping, policy)
	for id := range uint64(16) {
		w.Put(servicetest.Record(id, 8))
	}
	for i := range 20 {
		session := fmt.Sprint("s", i%4)
		var home catalog.Rank
		bound := i >= 4
		if bound {
			home, _ = w.SessionRank(servicetest.Scope, "", session)
		}
		sel, err := reserve(w, fmt.Sprint(i), servicetest.Prompt(uint32(i%4), 2000), soft(session, ""))
		if err != nil || bound && sel.Rank != home {
			t.Fatalf("turn %d: from %v to %v, %v", i, home, sel.Rank, err)
		}
	}
	if at := fanOut(w, "p", 0, 16); len(at) > 3 {
		t.Errorf("children on %v", at)
	}
}

// TestNoIdentity: requests without a session get the same answers, byte for byte, whether homes are known or not.
func TestNoIdentity(t *testing.T) {
	for _, policy := range []string{"", "predicted-ttft"} {
		synctest.Test(t, func(t *testing.T) {
			var answers [2][]string
			for i, change := range []func(*node.Config){func(*node.Config) {}, homes} {
				fixed := func(c *node.Config) { c.Selection.Random = rand.New(rand.NewPCG(1, 1)) }
				w := servicetest.Start(t, servicetest.EventsOff, keeping, change, fixed, func(c *node.Config) {
					if policy != "" {
						servicetest.Policy(t, policy, "")(c)
					}
				})
				for id := range uint64(5) {
					w.Put(servicetest.Record(id, 8))
				}
				for n := range 60 {
					sel, err := reserve(w, fmt.Sprint(n), servicetest.Prompt(uint32(n%7), 40+n), func(r *selection.SelectRequest) { r.Explain = n%3 == 0 })
					if err != nil {
						t.Fatal(err)
					}
					if x := sel.Explanation; x != nil && len(x.Shadows) == 0 {
						x.Shadows = nil // or empty, by the memory that an attempt has got
					}
					x, err := json.Marshal(sel.Explanation)
					if err != nil {
						t.Fatal(err)
					}
					answers[i] = append(answers[i], fmt.Sprint(sel.Rank, sel.Endpoint, sel.Overlap, sel.EffectivePrefillTokens, string(x)))
				}
				w.Stop()
			}
			if diff := cmp.Diff(answers[0], answers[1]); diff != "" {
				t.Errorf("(-without +with homes):\n%s", diff)
			}
		})
	}
}

// TestHomeOfOverdueID: a soft session whose request takes an id from a reservation of another scope that is overdue has one
// request under way, though the ledger has chosen twice.
func TestHomeOfOverdueID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := family(t)
		w.Put(servicetest.Record(9, 1, func(r *catalog.Record) { r.Scope.Tenant = "u" }))
		time.Sleep(10 * time.Millisecond) // out of step with the timers
		lease := func(r *selection.SelectRequest) { r.Lease = time.Second }
		if _, err := reserve(w, "x", child(1, 1), lease, func(r *selection.SelectRequest) { r.Scope.Tenant = "u" }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1020 * time.Millisecond) // leases are swept every 50 ms (reservations.ExpireEvery)
		if _, err := reserve(w, "x", child(1, 1), soft("s", "")); err != nil {
			t.Fatal(err)
		}
		if err := w.Free("x"); err != nil {
			t.Fatal(err)
		}
		list := w.ListSessions(&selection.SessionQuery{Limit: 10}).Sessions
		if len(list) != 1 || list[0].Running != 0 {
			t.Fatalf("after the only request: %+v", list)
		}
	})
}

// TestRefusedLeavesSessions: a request that is refused after a rank has been chosen for it leaves sessions and groups as they were: no
// home moves or comes, no turn counts, no parent has a further child, and replicas hear nothing.
func TestRefusedLeavesSessions(t *testing.T) {
	pair := func(w *servicetest.World, id string, change ...func(*selection.SelectRequest)) error {
		_, err := w.SelectPair(t.Context(), askPair(id, child(1, 7), func(r *selection.PairRequest) {
			for _, f := range change {
				f(&r.SelectRequest)
			}
		}))
		return err
	}
	one := func(w *servicetest.World, id string, change ...func(*selection.SelectRequest)) error {
		return attempt(w, id, child(1, 7), change...)
	}
	for name, tt := range map[string]struct {
		book   func(*servicetest.World, string, ...func(*selection.SelectRequest)) error
		id     string
		most   int // reservations
		change func(*selection.SelectRequest)
		want   contract.Kind
	}{
		"the id is in use":        {one, "a", 0, nil, contract.Conflict},
		"the id is another one's": {one, "a", 0, func(r *selection.SelectRequest) { r.IfExists = selection.ReturnFirst }, contract.Conflict},
		"the id of a pair":        {pair, "a", 0, nil, contract.Conflict},
		"the ledger is full":      {one, "new", 3, nil, contract.Exhausted},
		"full, a pair":            {pair, "new", 3, nil, contract.Exhausted},
		"no worker may take it":   {one, "new", 0, onWorkers(99), contract.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			w := family(t, func(c *node.Config) { c.Reservations.Reservations = tt.most })
			if err := attempt(w, "a", child(1, 1), soft("p 1", "p")); err != nil {
				t.Fatal(err)
			}
			all := func() []selection.ListedSession {
				return w.ListSessions(&selection.SessionQuery{Limit: 10}).Sessions
			}
			w.Burden("work", all()[0].Home.Worker, 0, 100, 1_000_000) // the home is no place to stay
			if tt.most > 0 {
				w.Book("third", servicetest.Prompt(9, 8))
			}
			before := all()
			for _, session := range []string{"p 1", "p 2"} {
				change := []func(*selection.SelectRequest){soft(session, "p")}
				if tt.change != nil {
					change = append(change, tt.change)
				}
				if err := tt.book(w, tt.id, change...); contract.KindOf(err) != tt.want {
					t.Errorf("%s: %v, want %v", session, err, tt.want)
				}
			}
			opt := cmpopts.IgnoreFields(selection.ListedSession{}, "Chance", "Expected")
			if diff := cmp.Diff(before, all(), opt); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}

// TestHomeByBuiltInCost: without a policy file, too, a soft session stays until its home costs more than the move. Home has
// the 40 blocks of the prompt and 60 others, so it costs 20 more; a move costs 40 blocks, and half of that for the coming
// turns.
func TestHomeByBuiltInCost(t *testing.T) {
	w := servicetest.Start(t, homes)
	w.Put(servicetest.Record(1, 1))
	prompt := servicetest.Prompt(1, 40*servicetest.BlockSize)
	first, err := reserve(w, "1", prompt, soft("s", ""))
	if err != nil {
		t.Fatal(err)
	}
	w.Put(servicetest.Record(2, 1))
	e := w.Engine(first.Rank.Worker, 0)
	e.Publish(0, e.Stored(prompt, servicetest.BlockSize, nil))
	w.Settle()
	if err := w.Free("1"); err != nil {
		t.Fatal(err)
	}
	w.Burden("work", first.Rank.Worker, 0, 60, 0)
	if second, err := reserve(w, "2", prompt, soft("s", "")); err != nil || second.Rank != first.Rank {
		t.Errorf("went to %v, %v", second.Rank, err)
	}
}
