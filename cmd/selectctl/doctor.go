package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/select-service/select-service/pkg/client"
)

// errFindings ends a doctor that has found something.
var errFindings = errors.New("the doctor has findings")

func (a *app) doctor() *cobra.Command {
	var (
		scope scopeFlags
		all   bool
	)
	cmd := &cobra.Command{
		Use: "doctor", Short: "what is wrong, and what to do about it",
		Long: "Says in sentences what is wrong with workers, their engines and event streams, with the\n" +
			"process and the other replicas, and what to do about it. Exit code 4 if\n" +
			"anything is wrong; what could be cheaper is a note.",
		Example: "  selectctl doctor\n  selectctl doctor -m llama -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			x, err := a.service.Doctor(cmd.Context(), scope.scope())
			if err != nil {
				return err
			}
			if a.forPeople() {
				a.writeExamination(&x, all)
			} else {
				t := &table{}
				for _, f := range x.Findings {
					t.names = append(t.names, f.Check)
				}
				if err := a.show(x, t); err != nil {
					return err
				}
			}
			if !x.Healthy {
				return errFindings
			}
			return nil
		},
	}
	scope.register(cmd.Flags())
	cmd.Flags().BoolVar(&all, "all", false, "also what is as it should be")
	return a.watched(cmd)
}

// writeExamination writes the findings as paragraphs, and how many checks found nothing.
func (a *app) writeExamination(x *client.Examination, all bool) {
	for _, f := range x.Findings {
		fmt.Fprintf(a.out, "%s: ", a.painted(printable(strings.ToUpper(f.Severity))))
		a.line("%s", f.Sentence)
		a.line("    %s (%s)", f.Remedy, f.Runbook)
	}
	if x.Truncated {
		fmt.Fprintln(a.out, "there are more findings")
	}
	ok, idle := 0, 0
	for _, c := range x.Checks {
		switch c.Result {
		case "ok":
			ok++
			if all {
				a.line("ok: %s", c.Title)
			}
		case "not_applicable":
			idle++
			if all {
				a.line("nothing to look at: %s", c.Title)
			}
		}
	}
	findings := "findings"
	if len(x.Findings) == 1 {
		findings = "finding"
	}
	fmt.Fprintf(a.out, "%d %s; %d checks found nothing, %d had nothing to look at\n", len(x.Findings), findings, ok, idle)
}

func (a *app) prefixes() *cobra.Command {
	var (
		scope scopeFlags
		limit int
	)
	cmd := &cobra.Command{
		Use: "prefixes", Short: "what is cached most, in blocks times ranks that hold them, as a tree",
		Example: "  selectctl prefixes -m llama --limit 20",
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := a.service.Prefixes(cmd.Context(), scope.scope(), limit)
			if err != nil {
				return err
			}
			return a.show(p, prefixTable(&p))
		},
	}
	scope.register(cmd.Flags())
	cmd.Flags().IntVar(&limit, "limit", 20, "how many of the hottest, 1 to 1000")
	return a.watched(cmd)
}

// prefixTable shows the tree, a step to the right for each parent.
func prefixTable(p *client.Prefixes) *table {
	t := &table{columns: []string{"PREFIX", "BLOCKS", "RANKS", "HELD", "WITH ALL BELOW", "HOTTEST", "HELD BY"}, wide: 1}
	level := make([]int, len(p.Nodes))
	for i, n := range p.Nodes {
		if n.Parent != nil && *n.Parent < i {
			level[i] = level[*n.Parent] + 1
		}
		place := ""
		if n.Hottest > 0 {
			place = fmt.Sprint(n.Hottest)
		}
		var by []string
		for _, r := range n.Ranks {
			by = append(by, fmt.Sprintf("%d/%d", r.Worker, r.DPRank))
		}
		t.add(fmt.Sprintf("%sblock %d", strings.Repeat("  ", level[i]), n.Depth), n.Blocks, n.Holders, n.Held, n.SubtreeHeld, place, strings.Join(by, " "))
		t.names = append(t.names, fmt.Sprint(n.ID))
	}
	return t
}
