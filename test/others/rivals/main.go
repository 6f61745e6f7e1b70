// Command rivals plays the same load through select-service behind Envoy and through other
// gateways, on the same simulated engines, and writes a table, JSON and plots. It runs all that it
// needs on the loopback. scripts/compare-gateways.sh starts it; docs/figures/compare.md has the results.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "rivals:", err)
		os.Exit(1)
	}
}

type config struct {
	programs
	plays, contestants []string
	rounds             int
	rate               float64
	short, more        bool
	paired             bool
	out                string
}

func run(ctx context.Context, args []string) error {
	c := config{rounds: 3, rate: 1, out: "bin/compare-gateways"}
	f := pflag.NewFlagSet("rivals", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringSliceVar(&c.plays, "plays", nil, "plays (a list), instead of all: "+names(plays, func(p play) string { return p.name }))
	f.StringSliceVar(&c.contestants, "contestants", nil, "contestants (a list), instead of all: "+names(contestants, func(c contestant) string { return c.name }))
	f.IntVar(&c.rounds, "rounds", c.rounds, "rounds of each play, in each of which every contestant has its turn")
	f.BoolVar(&c.paired, "paired", c.paired, "all contestants of a round at once, each with engines of its own: ratios repeat on a busy machine, too")
	f.Float64Var(&c.rate, "rate", c.rate, "factor of each play's rate, such as 0.5 where many play at once")
	f.BoolVar(&c.short, "short", c.short, "a few seconds of two plays: whether it works, and no figures")
	f.BoolVar(&c.more, "more", c.more, "go on with the results in --out: what they have is not played again")
	f.StringVar(&c.out, "out", c.out, "directory of the results, of the plots and of the programs' logs")
	f.StringVar(&c.service, "select-service", "bin/select-service", "the program")
	f.StringVar(&c.engine, "sim-engine", "bin/sim-engine", "the program")
	f.StringVar(&c.envoy, "envoy", "envoy", "the program")
	f.StringVar(&c.envoyConfig, "envoy-config", "examples/gateway/envoy.yaml", "what Envoy is configured with, but for the addresses")
	f.StringVar(&c.smg, "smg", "smg", "the program")
	f.StringVar(&c.vllmRouter, "vllm-router", "vllm-router", "the program")
	switch err := f.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	played, err := chosen(plays, c.plays, func(p play) string { return p.name })
	if err != nil {
		return err
	}
	playing, err := chosen(contestants, c.contestants, func(c contestant) string { return c.name })
	if err != nil {
		return err
	}
	if c.short {
		c.rounds = 1
		played = slices.DeleteFunc(slices.Clone(played), func(p play) bool { return !p.short })
	}
	rep := report{Machine: machine(), Rounds: c.rounds, Paired: c.paired}
	if c.more {
		if err := rep.read(c.out); err != nil {
			return err
		}
	}
	for _, p := range played {
		if c.short {
			p.traffic.Duration = shortDuration
		}
		p.traffic.Rate *= c.rate
		for round := range c.rounds {
			turn := slices.DeleteFunc(slices.Clone(playing), func(who contestant) bool {
				return who.only != nil && !who.only(&p) || rep.has(p.name, who.name, round+1)
			})
			together := 1
			if c.paired {
				together = max(1, len(turn))
			}
			for group := range slices.Chunk(turn, together) {
				results, err := c.play(ctx, &p, group, round)
				if err != nil {
					return err
				}
				for _, r := range results {
					fmt.Println(r.line())
				}
				rep.Results = append(rep.Results, results...)
				if err := rep.write(c.out); err != nil {
					return err
				}
			}
		}
	}
	text := rep.markdown()
	fmt.Print("\n", text)
	return rep.failures()
}

// chosen returns the entries of a table that are named, all without names.
func chosen[T any](all []T, wanted []string, name func(T) string) (list []T, err error) {
	if len(wanted) == 0 {
		return all, nil
	}
	for _, w := range wanted {
		i := slices.IndexFunc(all, func(one T) bool { return name(one) == w })
		if i < 0 {
			return nil, fmt.Errorf("%q is none of %s", w, names(all, name))
		}
		list = append(list, all[i])
	}
	return list, nil
}

func names[T any](all []T, name func(T) string) string {
	var list []string
	for _, one := range all {
		list = append(list, name(one))
	}
	return strings.Join(list, ", ")
}
