package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/select-service/select-service/pkg/client"
)

// The parts of engine time that `top` shows.
const (
	byTenant  = "tenant"
	byProgram = "program"
	// mostConsumers and defaultConsumers are how many are shown at most, and if nothing is said.
	mostConsumers, defaultConsumers = 1000, 20
)

// consumers is the command that shows the greatest consumers of engine seconds.
func (a *app) consumers(by string) *cobra.Command {
	var (
		scope scopeFlags
		every time.Duration
		once  bool
		limit int
	)
	cmd := &cobra.Command{
		Use: by + "s", Short: "the " + by + "s with the most engine seconds, where tenants take turns",
		Example: "  selectctl top " + by + "s -m llama\n  selectctl top " + by + "s --limit 100 -o json",
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if limit < 1 || limit > mostConsumers {
			return usageError{fmt.Errorf("--limit is between 1 and %d", mostConsumers)}
		}
		return a.live(cmd.Context(), once, every, func() error {
			f, err := a.service.Fairness(cmd.Context(), client.FairnessQuery{Scope: scope.scope(), By: by, Limit: limit})
			if err != nil {
				return err
			}
			if a.forPeople() {
				a.line("%d of %d %ss", len(f.Consumers), f.Total, by)
				for _, c := range f.Classes {
					a.line("%s", evenness(&c))
				}
			}
			return a.show(f, consumerTable(f.Consumers, by))
		})
	}
	scope.register(cmd.Flags())
	cmd.Flags().DurationVar(&every, "every", time.Second, "how often")
	cmd.Flags().BoolVar(&once, "once", false, "show it once; so it is if the output is no terminal")
	cmd.Flags().IntVar(&limit, "limit", defaultConsumers, "how many")
	return cmd
}

// evenness says how even the shares of a class are.
func evenness(c *client.FairClass) string {
	text := fmt.Sprintf("%s, class %s: %d tenants are active, evenness %.2f", c.Model, c.PolicyClass, c.ActiveTenants, c.JainTenants)
	if c.By == byProgram {
		text += fmt.Sprintf("; %d programs, %.2f", c.ActivePrograms, c.JainPrograms)
	}
	return text
}

func consumerTable(all []client.Consumer, by string) *table {
	t := &table{columns: []string{"TENANT", "PROGRAM", "SECONDS", "SHARE", "WEIGHT", "RUNNING", "QUEUED", "IN TIME", "LATE", "REFUSED", "MODEL", "GROUP", "CLASS"}, wide: 3}
	if by == byTenant {
		t.columns = append(t.columns[:1:1], t.columns[2:]...)
	}
	for i := range all {
		c := &all[i]
		cells := []any{clip(c.Tenant)}
		if by == byProgram {
			cells = append(cells, clip(c.Program))
		}
		t.add(append(cells, fmt.Sprintf("%.1f", c.EngineSeconds), fmt.Sprintf("%.0f %%", 100*c.Share), fmt.Sprintf("%.4g", c.Weight),
			c.Running, c.Queued, c.Attained, c.Missed, c.Refused, c.Model, c.RoutingGroup, c.PolicyClass)...)
	}
	return t
}
