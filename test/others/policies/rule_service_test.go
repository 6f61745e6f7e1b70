package policies

import (
	"context"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// service plays the service itself, with a policy; "": the built-in one.
func service(policy string) func(*world) Rule { return drawing(policy, 1, ours{}) }

// otherDraws is predicted-ttft where equal costs are drawn by another seed: how far it is from the first row is chance.
func otherDraws(w *world) Rule { return drawing("predicted-ttft", 2, ours{})(w) }

// withSessions is predicted-ttft with soft sessions, and withGroups with groups of the sub-agents that one session has started.
func withSessions(w *world) Rule {
	return drawing("predicted-ttft", 1, ours{named: true, mode: selection.SoftSessions})(w)
}

func withGroups(w *world) Rule {
	return drawing("predicted-ttft", 1, ours{named: true, mode: selection.LooseSessions, groups: true})(w)
}

// withTargets is predicted-ttft with requests that say their target. What cannot hold it is refused, or placed.
func withTargets(refuse bool) func(*world) Rule {
	return drawing("predicted-ttft", 1, ours{targets: true, refuse: refuse})
}

// leastCost is on_miss: place with another rule for what no engine is predicted to hold: it goes where it costs least, as
// without a target.
type leastCost struct{ ours }

func startLeastCost(w *world) Rule { return leastCost{withTargets(false)(w).(ours)} }

func (l leastCost) Place(r *Request) int {
	ask := l.ask(r)
	x, err := l.Explain(context.Background(), ask)
	if err != nil {
		l.T.Fatal(err)
	}
	if x.Target != nil && x.Target.Holding == 0 {
		ask.TTFTTarget = 0
	}
	return l.book(ask)
}

func drawing(policy string, seed uint64, o ours) func(*world) Rule {
	return func(w *world) Rule {
		change := []func(*node.Config){func(c *node.Config) {
			c.Selection.Random = servicetest.Random(seed, 0x5e1ec7)
			if o.named {
				c.Selection.HomeTTL = time.Hour
			}
		}}
		if policy != "" {
			change = append(change, servicetest.Policy(w.t, policy, ""))
		}
		s := servicetest.Start(w.t, change...)
		copy(w.events, s.PutSimulated(len(w.events), blockSize))
		o.World = s
		return o
	}
}

type ours struct {
	*servicetest.World
	named  bool // requests name their sessions
	mode   selection.SessionMode
	groups bool

	targets, refuse bool // requests say their target, and want to be refused if it cannot be held
}

// ask is the request as it is asked for.
func (o ours) ask(r *Request) *selection.SelectRequest {
	ask := &selection.SelectRequest{
		Scope: servicetest.Scope, ReservationID: &r.Name, Prompt: selection.Prompt{TokenIDs: r.Prompt, HasTokenIDs: true},
	}
	if o.named {
		ask.Session, ask.Parent, ask.SessionMode, ask.Groups, ask.OfAgent = r.Session, r.Parent, o.mode, o.groups, r.Parent != ""
	}
	if o.targets {
		ask.TTFTTarget, ask.RefuseOnMiss = r.Target, o.refuse
	}
	return ask
}

func (o ours) Place(r *Request) int { return o.book(o.ask(r)) }

func (o ours) book(ask *selection.SelectRequest) int {
	sel, err := o.Select(context.Background(), ask, true)
	switch {
	case contract.KindOf(err) == contract.TargetMissed:
		return refusedRequest
	case err != nil:
		o.T.Fatal(err)
	}
	return int(sel.Rank.Worker)
}

func (o ours) Prefilled(r *Request) { _ = o.PrefillComplete(r.Name) } // as a gateway: it may have ended
func (o ours) Block(r *Request)     { _ = o.OutputBlock(r.Name, nil) }
func (o ours) Ended(r *Request)     { _ = o.Free(r.Name) }
