package selection_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/identity"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func remembering(c *node.Config) { c.Selection.DecisionBytes = 1 << 20 }

// allTypes are the policies that a scope may have; "" is the built-in one.
var allTypes = []string{
	"", "dynamo-default-cost-fn", "dynamo-two-tier-cost-fn", "predicted-ttft", "lmetric", "round-robin", "random", "least-loaded",
	"power-of-two-choices",
}

// TestExplainMatchesTheChoice: under every policy the explanation of a selection has the
// chosen rank, at the lowest cost of its candidates, and everybody else with a reason; asking
// changes nothing.
func TestExplainMatchesTheChoice(t *testing.T) {
	for _, name := range allTypes {
		t.Run(name, func(t *testing.T) {
			change := []func(*node.Config){servicetest.EventsOff, remembering}
			if name != "" {
				change = append(change, servicetest.Policy(t, name, ""))
			}
			w := servicetest.Start(t, change...)
			for id := range uint64(3) {
				w.Put(servicetest.Record(id, 2))
			}
			for i := range uint32(12) {
				req := servicetest.Ask(servicetest.Prompt(i, 6))
				req.AllowedWorkers, req.HasAllowedWorkers = []uint64{1, 2}, true
				asked, err := w.Explain(context.Background(), req)
				if err != nil {
					t.Fatal(err)
				}
				again := servicetest.Ask(servicetest.Prompt(i, 6))
				again.AllowedWorkers, again.HasAllowedWorkers = []uint64{1, 2}, true
				again.Explain = true
				sel, err := w.Select(context.Background(), again, true)
				if err != nil {
					t.Fatal(err)
				}
				x := sel.Explanation
				if x == nil || *x.Chosen != sel.Rank || len(x.Candidates) != 4 || len(asked.Candidates) != 4 {
					t.Fatalf("chosen %v, explained %+v, asked %+v", sel.Rank, x, asked)
				}
				least, chosen := math.Inf(1), 0.0
				for i, r := range x.Candidates {
					least = min(least, r.Cost)
					if r.Rank == sel.Rank {
						chosen = r.Cost
					}
					repeats := name != "power-of-two-choices" && name != "predicted-ttft" // a draw; and time goes on
					if repeats && r.Cost != asked.Candidates[i].Cost {
						t.Errorf("%v costs %v, and %v when only asked", r.Rank, r.Cost, asked.Candidates[i].Cost)
					}
				}
				if chosen != least {
					t.Errorf("the chosen rank costs %v, another one %v", chosen, least)
				}
				if !slices.Equal(x.Excluded, []selection.ExcludedRank{
					{Rank: catalog.Rank{}, Why: selection.NotAllowed}, {Rank: catalog.Rank{DP: 1}, Why: selection.NotAllowed},
				}) {
					t.Errorf("excluded: %v", x.Excluded)
				}
			}
			if n := servicetest.Sum(w.Metrics()["reservations_live"]); n != 12 {
				t.Errorf("%v requests are booked", n)
			}
			if n := len(w.Decisions(catalog.ScopeFilter{}, 100)); n != 12 {
				t.Errorf("%d decisions are kept", n)
			}
		})
	}
}

// TestExclusions: a rank that is no candidate has the reason why, also if none is.
func TestExclusions(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, sessions)
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1, func(r *catalog.Record) { r.Taints = []string{"gpu"} }))
	w.Put(servicetest.Record(3, 2))
	if _, err := reserve(w, "first", servicetest.Prompt(1, 4), of("s"), onWorkers(3)); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*selection.SelectRequest)
		want   map[string]selection.Exclusion
	}{
		"nothing": {func(*selection.SelectRequest) {}, nil},
		"a taint": {
			func(r *selection.SelectRequest) { r.RequiredTaints = []string{"gpu"} },
			map[string]selection.Exclusion{"1": "missing_taint", "3": "missing_taint"},
		},
		"pinned": {
			func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 3, DP: 1} },
			map[string]selection.Exclusion{"1": "not_pinned", "2": "not_pinned", "3": "not_pinned"},
		},
		"a target": {
			func(r *selection.SelectRequest) { r.Target = &selection.AffinityTarget{Worker: 2} },
			map[string]selection.Exclusion{"1": "not_affinity_target", "3": "not_affinity_target"},
		},
		"a session": {of("s"), map[string]selection.Exclusion{"1": "not_of_session", "2": "not_of_session", "3": "not_of_session"}},
		"nobody": {
			func(r *selection.SelectRequest) { r.AllowedWorkers, r.HasAllowedWorkers = []uint64{9}, true },
			map[string]selection.Exclusion{"1": "not_allowed", "2": "not_allowed", "3": "not_allowed"},
		},
	} {
		req := servicetest.Ask(servicetest.Prompt(1, 4))
		tc.change(req)
		x, err := w.Explain(context.Background(), req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if (x.Refusal != "") != (name == "nobody") || (x.Chosen == nil) != (name == "nobody") {
			t.Errorf("%s: refused %q, chosen %v", name, x.Refusal, x.Chosen)
		}
		if x.Size.Tokens != 4 {
			t.Errorf("%s: a prompt of %d tokens", name, x.Size.Tokens)
		}
		got := map[string]selection.Exclusion{}
		for _, e := range x.Excluded {
			got[fmt.Sprint(e.Rank.Worker)] = e.Why
		}
		if fmt.Sprint(got) != fmt.Sprint(tc.want) && len(got)+len(tc.want) > 0 {
			t.Errorf("%s: excluded %v, want %v", name, got, tc.want)
		}
	}
}

// TestIncompleteIsExplained: a rank of a worker that has become incomplete says so, and so does one whose
// events alone are read.
func TestIncompleteIsExplained(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1))
	if _, err := w.PutWorker(servicetest.Record(2, 1, func(r *catalog.Record) { r.Endpoint = nil })); err != nil {
		t.Fatal(err)
	}
	w.Put(servicetest.Record(3, 1, func(r *catalog.Record) { r.KVEventsEndpoints = servicetest.Endpoints(3, 2) }))
	x, err := w.Explain(context.Background(), servicetest.Ask(servicetest.Prompt(1, 4)))
	if err != nil {
		t.Fatal(err)
	}
	if want := []selection.ExcludedRank{
		{Rank: catalog.Rank{Worker: 2}, Why: selection.Unschedulable}, {Rank: catalog.Rank{Worker: 3, DP: 1}, Why: selection.Unschedulable},
	}; !slices.Equal(x.Excluded, want) {
		t.Errorf("excluded %v", x.Excluded)
	}
}

// TestOverloadIsExplained: a worker above a threshold is excluded for that, and if all are,
// the refusal is the answer.
func TestOverloadIsExplained(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(1))}))
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1))
	for n := range 2 {
		sel, err := w.Select(context.Background(), servicetest.Ask(servicetest.Prompt(uint32(n), 8)), true)
		if err != nil {
			t.Fatal(err)
		}
		x, err := w.Explain(context.Background(), servicetest.Ask(servicetest.Prompt(9, 8)))
		if err != nil {
			t.Fatal(err)
		}
		overloaded := slices.ContainsFunc(x.Excluded, func(e selection.ExcludedRank) bool {
			return e.Rank == sel.Rank && e.Why == selection.Overloaded
		})
		if !overloaded || (x.Refusal != "") != (n == 1) {
			t.Errorf("excluded %v, refused %q", x.Excluded, x.Refusal)
		}
	}
}

// TestDecisions: what became of a choice is told once callers say it; the oldest go when
// there is no room.
func TestDecisions(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, remembering)
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1))
	w.Put(servicetest.Record(3, 2))
	var ids []string
	for i := range uint32(4) {
		req := servicetest.Ask(servicetest.Prompt(i, 4))
		req.AllowedWorkers, req.HasAllowedWorkers = []uint64{1, 2}, true
		id := fmt.Sprint("r", i)
		req.ReservationID = &id
		if _, err := w.Select(context.Background(), req, true); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := w.PrefillComplete(ids[1]); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids[2:] {
		if err := w.Free(id); err != nil {
			t.Fatal(err)
		}
	}
	all := w.Decisions(catalog.ScopeFilter{}, 3)
	if len(all) != 3 || all[0].ReservationID != "r3" || all[2].ReservationID != "r1" {
		t.Fatalf("%+v", all)
	}
	if all[0].Outcome.Freed == 0 || all[0].Outcome.TTFT != 0 || all[2].Outcome.TTFT == 0 || all[2].Outcome.Gone {
		t.Errorf("outcomes %+v, %+v", all[0].Outcome, all[2].Outcome)
	}
	x := all[0].Explain()
	if len(x.Candidates) != 2 || x.Chosen == nil {
		t.Errorf("%+v", x)
	}
	if !slices.Equal(x.Excluded, []selection.ExcludedRank{
		{Rank: catalog.Rank{Worker: 3}, Why: selection.NotAllowed},
		{Rank: catalog.Rank{Worker: 3, DP: 1}, Why: selection.NotAllowed},
	}) {
		t.Errorf("excluded: %v", x.Excluded)
	}
	other := "nobody"
	if n := len(w.Decisions(catalog.ScopeFilter{Model: &other}, 3)); n != 0 {
		t.Errorf("%d decisions of another model", n)
	}
	if w.TTFTErrors().Count() != 1 {
		t.Error("the prediction of the completed one is not audited")
	}

	small := servicetest.Start(t, servicetest.EventsOff, func(c *node.Config) { c.Selection.DecisionBytes = 2000 })
	small.Put(servicetest.Record(1, 1))
	for i := range uint32(100) {
		if _, err := small.Select(context.Background(), servicetest.Ask(servicetest.Prompt(i, 4)), false); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(small.Decisions(catalog.ScopeFilter{}, 100)); n == 0 || n > 5 {
		t.Errorf("%d decisions in 2000 bytes", n)
	}
}

// TestShadows: a shadow that is the policy in force makes the same choices; the others are
// compared and change nothing.
func TestShadows(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Policies(t, `
shadow: [least, turns, two]
aggregated: turns
instances: [{name: least, type: least-loaded}, {name: turns, type: round-robin}, {name: two, type: dynamo-two-tier-cost-fn}]
`))
	for id := range uint64(4) {
		w.Put(servicetest.Record(id, 1))
	}
	book := &selection.ReserveRequest{Scope: servicetest.Scope, ID: "load", Rank: catalog.Rank{Worker: 0}, Prompt: servicetest.Ask(servicetest.Prompt(99, 1)).Prompt}
	if _, err := w.Reserve(book); err != nil {
		t.Fatal(err)
	}
	got := ""
	for i := range uint32(8) {
		req := servicetest.Ask(servicetest.Prompt(i, 4))
		req.Explain = true
		sel, err := w.Select(context.Background(), req, false)
		if err != nil {
			t.Fatal(err)
		}
		got += fmt.Sprint(sel.Rank.Worker)
		if shadows := sel.Explanation.Shadows; len(shadows) != 2 || shadows[0].Same != (sel.Rank.Worker != 0) || shadows[0].CostForegone < 0 {
			t.Errorf("chosen %v, shadows %+v", sel.Rank, shadows)
		}
	}
	if got != "01230123" {
		t.Errorf("in turn: %s", got)
	}
	series := w.Metrics()["shadow_decisions_total"]
	if same, other := servicetest.Sum(series, "least", "same"), servicetest.Sum(series, "least", "other"); same != 6 || other != 2 {
		t.Errorf("least-loaded would have made %v the same and %v others", same, other)
	}
}

// TestExplainSession: an explanation says which session the request is of, where its home was, and why
// another rank was chosen.
func TestExplainSession(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*selection.SelectRequest)
		spoil  func(*servicetest.World)
		moved  string
	}{
		"at home":    {},
		"filtered":   {change: onWorkers(2), moved: "filtered"},
		"overloaded": {spoil: func(w *servicetest.World) { w.Burden("b", 1, 0, 100, 1000) }, moved: "overloaded"},
		"gone":       {spoil: func(w *servicetest.World) { w.Remove(1) }, moved: "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			w := talk(t, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(500))}), remembering)
			if tt.spoil != nil {
				tt.spoil(w)
			}
			req := servicetest.Ask(servicetest.Prompt(2, 8))
			req.Session, req.FilterBeforeSession = "s", true
			if tt.change != nil {
				tt.change(req)
			}
			x, err := w.Explain(context.Background(), req)
			if err != nil {
				t.Fatal(err)
			}
			home := catalog.Rank{Worker: 1}
			if x.Session != "s" || x.Home == nil || *x.Home != home || (*x.Chosen == home) != (tt.moved == "") || x.MovedBecause != tt.moved {
				t.Errorf("session %q, home %v, chosen %v, moved because %q; want %q", x.Session, x.Home, x.Chosen, x.MovedBecause, tt.moved)
			}
			if _, err := reserve(w, "r", servicetest.Prompt(2, 8), func(r *selection.SelectRequest) { *r = *req; r.ReservationID = new("r") }); err != nil {
				t.Fatal(err)
			}
			if d := w.Decisions(catalog.ScopeFilter{}, 1)[0].Outline(); d.Session != "s" || *d.Home != home || d.MovedBecause != tt.moved {
				t.Errorf("kept: %+v", d)
			}
		})
	}
	w := talk(t)
	if x, err := w.Explain(context.Background(), servicetest.Ask(servicetest.Prompt(2, 8))); err != nil || x.Session != "" || x.Home != nil || x.MovedBecause != "" {
		t.Errorf("without a session: %+v, %v", x, err)
	}
}

// TestExplainNames: explanations and decisions name sessions and groups as the list of sessions does: no tenant's session by what its client
// calls it, and nothing that is not UTF-8. Hard sessions say their group, too.
func TestExplainNames(t *testing.T) {
	for name, ask := range map[string]func(*selection.SelectRequest){
		"client's":      soft("c", "root"),
		"tenant's":      func(r *selection.SelectRequest) { soft("c", "root")(r); r.SessionTenant = "acme" },
		"no UTF-8":      soft("caf\xe9", "caf\xe8"),
		"hard":          func(r *selection.SelectRequest) { r.Session, r.Parent = "c", "root" },
		"hard tenant's": func(r *selection.SelectRequest) { r.Session, r.Parent, r.SessionTenant = "c", "root", "acme" },
	} {
		t.Run(name, func(t *testing.T) {
			w := family(t, remembering, func(c *node.Config) { c.Selection.SessionTTL, c.Selection.SessionGroups = time.Hour, true })
			sel, err := reserve(w, "1", child(1, 1), ask, func(r *selection.SelectRequest) { r.Explain = true })
			if err != nil {
				t.Fatal(err)
			}
			x, d := sel.Explanation, w.Decisions(catalog.ScopeFilter{}, 1)[0].Outline()
			if d.Session != x.Session || d.Group != x.Group {
				t.Errorf("decided for session %q of %q, explained for %q of %q", d.Session, d.Group, x.Session, x.Group)
			}
			if clear := strings.HasPrefix(name, "client") || name == "hard"; clear != (x.Session == "c") || clear != (x.Group == "root") {
				t.Errorf("session %q of %q", x.Session, x.Group)
			}
			for _, s := range w.ListSessions(&selection.SessionQuery{Limit: 10}).Sessions {
				if s.Group != x.Group || s.Kind != selection.GroupsName && s.Name != x.Session {
					t.Errorf("listed as %q of %q, explained as %q of %q", s.Name, s.Group, x.Session, x.Group)
				}
			}
		})
	}
}

// TestExplainUnusable: the gateway and the proxy place a request whose session has a name that cannot be used as one without it, and without
// the group where it is the parent's, so an explanation of such a request does, too. Where requests of the API have sessions, their rules
// are the API's: the explanation is refused as the request is.
func TestExplainUnusable(t *testing.T) {
	long := strings.Repeat("s", identity.MaxName+1)
	fronts := family(t, func(c *node.Config) {
		c.Selection.FrontSessions, c.Selection.FrontGroups = selection.SoftSessions, true
	})
	api := family(t, sessions)
	for name, tt := range map[string]struct {
		session, parent string
		want            [2]string // session and group, of a front
		refused         bool      // by the API
	}{
		"usable":                      {"s", "p", [2]string{"s", "p"}, false},
		"too long":                    {long, "p", [2]string{}, true},
		"a control character":         {"a\tb", "p", [2]string{}, false},
		"reserved":                    {"\x01sg:x", "p", [2]string{}, true},
		"a parent, too long":          {"s", long, [2]string{"s"}, false},
		"a parent, control character": {"s", "a\tb", [2]string{"s"}, false},
		"a parent, reserved":          {"s", "\x02y", [2]string{"s"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			ask := func() *selection.SelectRequest {
				r := servicetest.Ask(child(1, 1))
				r.Session, r.Parent = tt.session, tt.parent
				return r
			}
			x, err := fronts.Explain(t.Context(), ask())
			if err != nil {
				t.Fatal(err)
			}
			if x.Session != tt.want[0] || x.Group != tt.want[1] {
				t.Errorf("session %q of %q, want %q", x.Session, x.Group, tt.want)
			}
			_, selected := api.Select(t.Context(), ask(), false)
			_, explained := api.Explain(t.Context(), ask())
			if (selected != nil) != tt.refused || fmt.Sprint(selected) != fmt.Sprint(explained) {
				t.Errorf("selected: %v; explained: %v", selected, explained)
			}
		})
	}
}

// TestExplainFronts: where requests of the API have no sessions, an explanation is of a request with the session through the gateway or the
// proxy: of a tenant, if the prompt has a salt. It changes nothing.
func TestExplainFronts(t *testing.T) {
	for _, mode := range []selection.SessionMode{selection.SoftSessions, selection.LooseSessions} {
		w := family(t, func(c *node.Config) { c.Selection.FrontSessions, c.Selection.FrontGroups = mode, true })
		asMode := func(r *selection.SelectRequest) { r.SessionMode = mode }
		at := map[string]catalog.Rank{}
		for _, tenant := range []string{"", "acme"} {
			for _, session := range []string{"s", "c"} {
				sel, err := reserve(w, tenant+session, child(1, 1), soft(session, map[string]string{"c": "s"}[session]), asMode, func(r *selection.SelectRequest) { r.SessionTenant = tenant })
				if err != nil {
					t.Fatal(err)
				}
				at[tenant+session] = sel.Rank
			}
		}
		before := w.ListSessions(&selection.SessionQuery{Limit: 10})
		explain := func(session, parent, salt string) *selection.Explanation {
			t.Helper()
			r := servicetest.Ask(child(1, 1))
			r.Session, r.Parent, r.Prompt.CacheSalt = session, parent, salt
			x, err := w.Explain(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		for _, tenant := range []string{"", "acme"} {
			x, is := explain("s", "", tenant), mode == selection.SoftSessions
			if x.Session == "" || (x.Home != nil) != is || is && (*x.Home != at[tenant+"s"]) {
				t.Errorf("mode %d, tenant %q: %+v, home %v; it is on %v", mode, tenant, x.Session, x.Home, at[tenant+"s"])
			}
			if x := explain("another", "s", tenant); x.Group == "" || x.Home == nil || *x.Home != at[tenant+"c"] {
				t.Errorf("mode %d, tenant %q: group %q, home %v; it is on %v", mode, tenant, x.Group, x.Home, at[tenant+"c"])
			}
		}
		if x := explain("s", "", "nobody"); x.Home != nil {
			t.Errorf("mode %d: nobody's session is on %v", mode, x.Home)
		}
		w.Burden("work", at["c"].Worker, 0, 100, 1_000_000)
		if x := explain("c", "s", ""); !strings.HasPrefix(x.MovedBecause, "busy: ") {
			t.Errorf("mode %d: moved because %q", mode, x.MovedBecause)
		}
		if after := w.ListSessions(&selection.SessionQuery{Limit: 10}); after.Total != before.Total || after.Sessions[0].Seen != before.Sessions[0].Seen {
			t.Errorf("mode %d: %+v before, %+v after", mode, before, after)
		}
	}
}
