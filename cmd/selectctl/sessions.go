package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/select-service/select-service/pkg/client"
)

func (a *app) sessions() *cobra.Command {
	var (
		scope  scopeFlags
		worker uint64
		limit  int
	)
	cmd := &cobra.Command{
		Use: "sessions", Short: "the sessions that are kept with their homes, those that were seen last first",
		Example: "  selectctl sessions -m llama\n  selectctl sessions --worker 7 --limit 1000",
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if limit < 1 {
			return usageError{errors.New("--limit is at least 1")}
		}
		q := client.SessionQuery{Scope: scope.scope()}
		if cmd.Flags().Changed("worker") {
			q.Worker = &worker
		}
		var all client.SessionPage
		for more := true; more; {
			q.Limit = min(limit-len(all.Sessions), mostSessions)
			page, err := a.service.Sessions(cmd.Context(), q)
			if err != nil {
				return err
			}
			page.Sessions = append(all.Sessions, page.Sessions...)
			all, q.After = page, page.Next
			more = page.Next != "" && len(all.Sessions) < limit
		}
		if a.forPeople() {
			a.line("%d of %d sessions", len(all.Sessions), all.Total)
		}
		return a.show(all, sessionTable(all.Sessions, time.Now()))
	}
	scope.register(cmd.Flags())
	cmd.Flags().Uint64Var(&worker, "worker", 0, "only those whose home is on this worker")
	cmd.Flags().IntVar(&limit, "limit", defaultSessions, "how many")
	return cmd
}

// How many sessions are asked for at once, and shown by default.
const (
	mostSessions    = 1000
	defaultSessions = 100
)

func sessionTable(all []client.Session, now time.Time) *table {
	t := &table{columns: []string{"SESSION", "NAME OF", "GROUP OF", "WORKER", "RANK", "BOUND", "TURNS", "TOKENS", "SEEN", "RETURNS", "CHANCE", "MODEL", "GROUP", "CLASS", "PARENT", "ENDPOINT"}, wide: 5}
	for i := range all {
		s := &all[i]
		seen, returns, chance := now.Sub(s.LastSeen).Round(time.Second).String()+" ago", "", fmt.Sprintf("%.0f %%", 100*s.ReturnChance)
		switch {
		case s.Running > 0:
			seen, chance = "now", ""
		case s.ExpectedReturn != nil:
			returns = "in " + max(0, s.ExpectedReturn.Sub(now)).Round(time.Second).String()
		}
		t.add(clip(s.Name), s.NameOf, clip(s.Group), s.Home.Worker, s.Home.DPRank, s.Bound, s.Turns, s.Tokens, seen, returns, chance,
			s.Model, s.RoutingGroup, s.Class, clip(s.Parent), s.Endpoint)
	}
	return t
}
