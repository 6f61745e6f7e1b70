package policies

import (
	"context"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// startKept is predicted-ttft with sessions, or with groups of the sub-agents that one session has started, which are softly
// kept: a request stays where the last one of its session or group went, until another engine costs less by more than what the
// move costs. That is the prefill that the other engine has to do and the home has not, now and, with the chance of one half
// that the session comes back, for its coming turns.
func startKept(sessions, groups bool) func(w *world) Rule {
	return func(w *world) Rule {
		return &kept{ours: service("predicted-ttft")(w).(ours), sessions: sessions, groups: groups, homes: make(map[string]int)}
	}
}

// moveShare is how many times the prefill that a move adds counts.
const moveShare = 1 + 0.5

type kept struct {
	ours
	sessions, groups bool
	homes            map[string]int // engines by session or group
}

func (k *kept) Place(r *Request) int {
	key := ""
	switch {
	case k.groups && r.Parent != "":
		key = "group of " + r.Parent
	case k.sessions:
		key = r.Session
	}
	home, known := k.homes[key]
	if key == "" || !known {
		k.homes[key] = k.ours.Place(r)
		return k.homes[key]
	}
	ask := selection.SelectRequest{
		Scope: servicetest.Scope, ReservationID: &r.Name, Prompt: selection.Prompt{TokenIDs: r.Prompt, HasTokenIDs: true},
	}
	costs, err := k.Explain(context.Background(), &ask)
	if err != nil {
		k.T.Fatal(err)
	}
	var here, least *selection.ExplainedRank
	for i := range costs.Candidates {
		c := &costs.Candidates[i]
		if int(c.Rank.Worker) == home {
			here = c
		}
		if least == nil || c.Cost < least.Cost {
			least = c
		}
	}
	if here == nil || here.Cost-least.Cost > moveShare*max(0, least.Predicted.Prefill-here.Predicted.Prefill) {
		here = least
	}
	ask.AllowedWorkers, ask.HasAllowedWorkers = []uint64{here.Rank.Worker}, true
	if _, err := k.Select(context.Background(), &ask, true); err != nil {
		k.T.Fatal(err)
	}
	k.homes[key] = int(here.Rank.Worker)
	return k.homes[key]
}
