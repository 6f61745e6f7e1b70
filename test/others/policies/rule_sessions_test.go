package policies

import "time"

// Dynamo's sticky-session (lib/router-plugins/builtin/src/sticky_session.rs, ai-dynamo/dynamo at 78f13ba6): a session's
// requests go where its last one went. The first one goes where Dynamo's cost is least, and so do those whose engine has more
// than factor times the mean number of requests (mode bounded, 1.25); 0: it never leaves (mode hard).
func startSticky(factor float64) func(w *world) Rule {
	return func(w *world) Rule {
		homes := make(map[string]int)
		return byBoard(func(b *Board, r *Request) int {
			home, bound := homes[r.Session]
			sum := 0
			for i := range b.Engines {
				sum += b.Engines[i].Requests
			}
			if !bound || r.Session == "" || factor > 0 && b.requests(home) > factor*float64(sum)/float64(len(b.Engines)) {
				home = cheapest(b, r)
			}
			homes[r.Session] = home
			return home
		}).start(w)
	}
}

// Dynamo's dynamo-subagent-group-affinity (lib/router-plugins/builtin/src/subagent_group_affinity.rs, ai-dynamo/dynamo at
// abf607af) with its defaults and soft session affinity: the sub-agents of one session go to one engine, a new group to the one
// with the fewest requests. A group, and a session that is nobody's sub-agent, leaves an engine that has more than 32 requests
// if another one has fewer, and is forgotten after 300 s.
func startSubagentGroups(w *world) Rule {
	type home struct {
		engine int
		used   time.Time
	}
	homes := make(map[string]home)
	return byBoard(func(b *Board, r *Request) int {
		key := r.Session
		if r.Parent != "" {
			key = "group of " + r.Parent
		}
		h, bound := homes[key]
		to := h.engine
		switch least := b.least(nil, b.requests); {
		case key == "" || !bound || r.Asked.Sub(h.used) >= 300*time.Second:
			to = least
		case b.requests(to) > 32 && b.requests(least) < b.requests(to):
			to = least
		}
		homes[key] = home{to, r.Asked}
		return to
	}).start(w)
}
