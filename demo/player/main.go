// Command sim-player plays a workload on simulated engines, with each request placed by a
// selection service or by a simple policy, and compares the measurements of the engines. See
// docs/figures/demo-policies.md.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/select-service/select-service/internal/simulation/workload"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sim-player:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	conf := defaults()
	flags := conf.flags()
	flags.SetOutput(stdout)
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	policies, err := conf.validate()
	if err != nil {
		return err
	}
	requests, err := load(conf)
	if err != nil {
		return err
	}
	if conf.WriteTrace != "" {
		return writeTrace(conf.WriteTrace, requests)
	}
	if conf.Trace != "" && slices.ContainsFunc(requests, func(r workload.Request) bool { return r.Session != "" }) {
		conf.Closed = true
		if conf.Disturb != "" {
			return errDisturbed
		}
	}
	sum := workload.Summarize(requests)
	if conf.Speedup == 0 {
		conf.Speedup = speedupFor(sum.Span)
	}
	engines, err := modelsOf(ctx, conf.Engines)
	if err != nil {
		return err
	}
	rep := report{Config: conf, Engines: engines, Workload: sum}
	fmt.Fprintln(stdout, rep.heading())
	nth := map[string]int{} // plays so far, by policy
	for round := range conf.Rounds {
		for _, name := range policies {
			for again := 0; ; again++ {
				scr := newScreen(stdout, name, len(requests))
				if _, service := conf.modelOf(name); service && conf.Decisions > 0 && nth[name] == 0 {
					scr.show = max(1, len(requests)/conf.Decisions)
				}
				nth[name]++
				res, err := play(ctx, conf, name, nth[name], requests, scr)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				if res.LateMaxMS <= maxLate || again == conf.Again {
					res.Round = round + 1
					rep.Results = append(rep.Results, res)
					break
				}
				fmt.Fprintf(stdout, "%s again: the machine was too busy, requests came up to %.1f s of model time late\n", name, res.LateMaxMS/1000)
			}
		}
	}
	rep.Comparisons = compare(rep.Results)
	rep.writeTable(stdout)
	if conf.JSON != "" {
		svg := strings.TrimSuffix(conf.JSON, ".json") + ".svg"
		if err := errors.Join(rep.writeJSON(conf.JSON), rep.writePlot(svg)); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "results in %s, plot in %s\n", conf.JSON, svg)
	}
	if err := rep.failures(); err != nil || !conf.Keep {
		return err
	}
	fmt.Fprintf(stdout, "\nRequests go on until Ctrl-C. To watch them: %s/ui/\n", conf.Targets[0])
	conf.Speedup, conf.Warm = min(conf.Speedup, maxWatched), true
	return playOn(ctx, conf, conf.Model, nth[selectService]+1, requests)
}

// errDisturbed: when half of the requests are sent is not known before.
var errDisturbed = errors.New("disturb: a disturbance comes at a time, and requests that wait for answers have none")

// maxWatched is the most model seconds per second for people who look on.
const maxWatched = 2

// load generates or reads the requests, and scales their arrivals to the requested rate.
func load(conf config) ([]workload.Request, error) {
	var requests []workload.Request
	switch {
	case conf.Trace != "":
		var err error
		if requests, err = readTrace(conf.Trace, conf.Requests); err != nil {
			return nil, err
		}
	case conf.Workload == agents:
		requests = workload.DefaultAgents().Generate(conf.Seed, conf.Requests)
	case conf.Workload == longAgents:
		requests = workload.LongAgents().Generate(conf.Seed, conf.Requests)
	default:
		requests = workload.DefaultChats().Generate(conf.Seed, conf.Requests)
	}
	if conf.Sessions > 0 {
		requests = workload.Start(requests, conf.Sessions, conf.Seed)
	}
	for i := range requests {
		requests[i].At = time.Duration(float64(requests[i].At) / conf.Rate)
	}
	return requests, nil
}

func readTrace(path string, n int) ([]workload.Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	requests, err := workload.ReadTrace(f, n)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(requests) == 0 {
		return nil, fmt.Errorf("%s: no requests", path)
	}
	return requests, nil
}

func writeTrace(path string, requests []workload.Request) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(f)
	return errors.Join(workload.WriteTrace(out, requests), out.Flush(), f.Close())
}
