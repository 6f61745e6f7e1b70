package selection

import (
	"fmt"
	"slices"
	"strings"

	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

// Soft sessions and groups. The home of a session is the rank of its last request, that of a group the rank
// where the last of the sessions that one session has started has come to. A request stays at home unless
// another rank's cost is lower by more than what the move costs: the work of computing there what the home has
// of the prompt and the other rank has not. It counts now, since the fleet would not have it at home, where
// costs have only what the request itself and others wait for it; and, with the chance that the session comes
// back, which is learned, for its coming turns.

// kept is what a choice has to do with the request's session.
type kept struct {
	session, group string // "": none
	home           catalog.Rank
	homed          bool         // there was a home before the choice
	ofGroup        bool         // the session has had no home: that of its group is, or will be, where it goes
	beside         bool         // the session must not go to parent while that is busy
	parent         catalog.Rank // of the session that has started this one
	turn           counts.Turn  // where the request goes
	countsActive   bool         // see countActive
	// more is how much more the home costs than the chosen rank, and move what the move costs, in the
	// policy's unit, if that is why.
	more, move float64
	why        string // the reason of a move, if it is none of costs
}

// forPeople returns a copy of what was kept that shares no memory with the request. Its names are those that sessions are listed with.
func (s *session) forPeople() kept {
	k := s.kept
	if k.session == "" {
		return k
	}
	s.setKeys()
	k.session, _ = nameOf(s.keys.own.Session)
	if k.group != "" {
		k.group, _ = nameOf(s.keys.parent.Session)
	}
	k.session, k.group = strings.Clone(k.session), strings.Clone(k.group)
	return k
}

// canStay reports whether the session's home is among the ranks that may be chosen.
func (k *kept) canStay() bool { return k.turn == counts.TurnHome }

// because returns the reason of a move for people.
func (k *kept) because(unit string) string {
	switch {
	case k.turn != counts.TurnBusy:
		return k.turn.String()
	case k.why != "":
		return fmt.Sprintf("%s: %s", k.turn, k.why)
	}
	return fmt.Sprintf("%s: home costs %.3g %s more, a move %.3g", k.turn, k.more, unit, k.move)
}

// findHome finds the home of the request's session, or else that of its group. It returns the ranks that may be
// chosen, under the ledger's lock: a session that is bound for others goes where it is bound.
func (s *session) findHome(ranks []catalog.Entry) []catalog.Entry {
	table, k := s.api.sessions.Table, &s.kept
	*k = kept{session: k.session}
	if s.groups() {
		k.group = s.Parent
	}
	k.countsActive = k.group != "" || s.SessionMode == SoftSessions
	var bound bool
	if k.home, bound, k.homed = table.Home(s.keys.own); s.SessionMode == LooseSessions && k.group == "" && !bound {
		k.homed = false
	}
	if k.group != "" && !k.homed {
		k.ofGroup = true
		k.home, _, k.homed = table.Home(s.keys.group)
		k.parent, _, k.beside = table.Home(s.keys.parent)
	}
	if !k.homed {
		return ranks
	}
	k.turn = counts.TurnHome
	i := indexRank(ranks, k.home)
	if i < 0 {
		k.turn = s.whyNot(k.home)
	} else if bound {
		return ranks[i : i+1]
	}
	return ranks
}

// holdsMost reports whether rank i holds more of the prompt than it has to compute, compared with the best other rank that
// was scored: sub-agents that begin with the context of their parent would have it computed a second time elsewhere.
func (c *choice) holdsMost(i int) bool {
	other := -1
	for j, cost := range c.costs {
		if j != i && (other < 0 || cost < c.costs[other]) {
			other = j
		}
	}
	policy := c.scope.rules.Policy()
	return !c.ByLoad && other >= 0 && selector.Recompute(policy, &c.decision, i, other) > selector.PrefillTerm(policy, &c.decision, i)
}

// settler returns what notes where a reservation of the request goes, nil if there is nothing to note. record is that of
// the reservation, which ends the turn; nil: nobody says when it ends.
func (s *session) settler(r catalog.Rank, tokens uint64, record *idempotencyRecord) (settle func()) {
	if s.kept.session == "" || s.SessionMode == HardSessions {
		return nil
	}
	return func() { s.settle(r, tokens, record) }
}

// settle notes where the reservation has gone, under the ledger's lock: the next one may ask at once.
func (s *session) settle(r catalog.Rank, tokens uint64, record *idempotencyRecord) {
	table, k, turn := s.api.sessions.Table, &s.kept, s.turn(tokens)
	first, running := table.Settle(s.keys.own, r, turn)
	if record != nil {
		record.running = running
	} else {
		running.End()
	}
	if k.group == "" {
		return
	}
	founded := false
	if k.ofGroup && k.turn != counts.TurnFiltered {
		founded, _ = table.Settle(s.keys.group, r, turn)
	} else {
		table.Touch(s.keys.group, turn)
	}
	if first {
		s.api.sessions.pauses.Started(s.keys.group.Scope, founded)
	}
}

// keepHome returns the index of the rank that a request with a home goes to, if rank i has been picked.
func (c *choice) keepHome(ranks []catalog.Entry, i int) int {
	k := &c.session.kept
	if !k.canStay() || ranks[i].Rank == k.home {
		return i
	}
	home := slices.IndexFunc(ranks, func(e catalog.Entry) bool { return e.Rank == k.home })
	switch {
	case home < 0: // pick has left out the parent's rank
		k.turn, k.why = counts.TurnBusy, "the session that has started this one has requests there"
		return i
	case c.missesAt(home):
		k.turn, k.why = counts.TurnBusy, "home is not predicted to hold the target"
		return i
	}
	more, move := c.costs[home]-c.costs[i], 1.0 // by load alone: of one request
	if !c.ByLoad {
		move = (1 + c.session.returnChance()) * selector.Recompute(c.scope.rules.Policy(), &c.decision, home, i)
	}
	if c.candidates[home].Known && more <= move {
		return home
	}
	k.turn, k.more, k.move = counts.TurnBusy, more, move
	return i
}

// compared returns the costs by which the ranks are compared. For the first session of a group they are those
// of all its sessions that are expected: each meets the load that is there, and the first one alone computes
// the prompt.
func (c *choice) compared() []float64 {
	k := &c.session.kept
	if !k.ofGroup || k.homed {
		return c.costs
	}
	coming := c.session.api.sessions.pauses.Children(c.session.keys.group.Scope) - 1
	policy := c.scope.rules.Policy()
	c.group = c.group[:0]
	for i, cost := range c.costs {
		c.group = append(c.group, cost+coming*max(0, cost-selector.PrefillTerm(policy, &c.decision, i)))
	}
	return c.group
}

// countActive counts the blocks of the prompt that are active on a rank as cached there, for requests that are kept together. Sessions that one
// session has started begin at once with the same blocks: before any engine has told of them, the first one computes them, and those behind it
// find them. Most policies count cached blocks alone, and would send each of these sessions to a rank of its own.
func countActive(c *selector.Candidate) {
	if c.Shared <= c.Device {
		return
	}
	more := c.Shared - c.Device
	c.Device = c.Shared
	host := min(more, c.Host)
	c.Host -= host
	c.Disk -= min(more-host, c.Disk)
}
