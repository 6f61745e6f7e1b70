package policies

import (
	"context"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
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
}

func (o ours) Place(r *Request) int {
	ask := selection.SelectRequest{
		Scope: servicetest.Scope, ReservationID: &r.Name, Prompt: selection.Prompt{TokenIDs: r.Prompt, HasTokenIDs: true},
	}
	if o.named {
		ask.Session, ask.Parent, ask.SessionMode, ask.Groups, ask.OfAgent = r.Session, r.Parent, o.mode, o.groups, r.Parent != ""
	}
	sel, err := o.Select(context.Background(), &ask, true)
	if err != nil {
		o.T.Fatal(err)
	}
	return int(sel.Rank.Worker)
}

func (o ours) Prefilled(r *Request) { _ = o.PrefillComplete(r.Name) } // as a gateway: it may have ended
func (o ours) Block(r *Request)     { _ = o.OutputBlock(r.Name, nil) }
func (o ours) Ended(r *Request)     { _ = o.Free(r.Name) }
