// Command gateway-load plays chats through several gateways in turn, and compares their results
// with the same engines: how much of the prompts was cached, and how long the first token took.
// See docs/start/demo.md and docs/start/gateway.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/demo/sim/stats"
	"github.com/select-service/select-service/demo/sim/traffic"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gateway-load:", err)
		os.Exit(1)
	}
}

type config struct {
	via     []string // NAME=URL,URL… of the gateways
	engines []string // URLs of the engines; their caches are emptied before each round
	rounds  int      // rounds with each gateway
	pids    []string // NAME=PID whose CPU is shown
	show    bool     // say what is played
	keep    bool     // go on with the first gateway at the end
	traffic traffic.Traffic
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	c := config{rounds: 1, traffic: traffic.Traffic{
		Model: "simulated", Duration: 30 * time.Second, Rate: 0.8, Turns: 8, Think: time.Second,
		Prefixes: 8, Prefix: 1000, Question: 800, Answer: 60, Seed: 1, InTurn: true,
	}}
	f := c.flags()
	f.SetOutput(stdout)
	switch err := f.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	gateways, err := pairs(c.via)
	if err != nil || len(gateways) == 0 {
		return errors.Join(errors.New("--via NAME=URL is needed, once for each gateway"), err)
	}
	processes, err := openProcesses(c.pids)
	if err != nil {
		return err
	}
	results := make([]result, len(gateways))
	for round := range c.rounds {
		for i, g := range gateways {
			if err := c.clear(ctx); err != nil {
				return err
			}
			t := c.traffic
			t.Seed += uint64(round)
			if c.show {
				fmt.Fprintf(stdout, "%s: chats begin for %s and run to their ends\n", g[0], t.Duration)
			}
			r, err := processes.during(func() (traffic.Result, error) { return t.Play(ctx, urls(g)...) })
			if err != nil {
				return fmt.Errorf("%s: %w", g[0], err)
			}
			results[i].add(&r)
		}
	}
	if c.show {
		fmt.Fprintln(stdout)
	}
	if err := c.report(stdout, gateways, results, processes); err != nil || !c.keep {
		return err
	}
	fmt.Fprintf(stdout, "\n%s: chats go on until Ctrl-C\n", gateways[0][0])
	for t := c.traffic; ctx.Err() == nil; t.Seed++ {
		if _, err := t.Play(ctx, urls(gateways[0])...); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil // the user has ended it
}

// urls returns the URLs of NAME=URL,URL…, which take requests in turn.
func urls(gateway [2]string) []string { return strings.Split(gateway[1], ",") }

// result has the results of one or several rounds with a gateway.
type result struct {
	traffic.Result
	cpu []time.Duration // of each process
}

func (r *result) add(o *result) {
	r.Add(&o.Result)
	if r.cpu == nil {
		r.cpu = make([]time.Duration, len(o.cpu))
	}
	for i, d := range o.cpu {
		r.cpu[i] += d
	}
}

func (c *config) flags() *pflag.FlagSet {
	f, t := pflag.NewFlagSet("gateway-load", pflag.ContinueOnError), &c.traffic
	f.SortFlags = false
	f.StringArrayVar(&c.via, "via", nil, "NAME=URL of a gateway, or NAME=URL,URL of several that take requests in turn (repeatable)")
	f.StringSliceVar(&c.engines, "engines", nil, "URLs of simulated engines, whose caches are emptied before each round (a list)")
	f.IntVar(&c.rounds, "rounds", c.rounds, "rounds of each gateway, in turn")
	f.StringArrayVar(&c.pids, "cpu", nil, "NAME=PID of a process whose CPU time per request is shown (repeatable)")
	f.BoolVar(&c.show, "show", c.show, "say which gateway is played")
	f.BoolVar(&c.keep, "keep", c.keep, "let chats go on through the first gateway at the end, until Ctrl-C")
	f.StringVar(&t.Model, "model", t.Model, "the model that is asked")
	f.DurationVar(&t.Duration, "duration", t.Duration, "how long chats begin, in each round")
	f.Float64Var(&t.Rate, "rate", t.Rate, "chats that begin in a second, at random moments")
	f.IntVar(&t.Turns, "turns", t.Turns, "turns of a chat")
	f.DurationVar(&t.Think, "think", t.Think, "mean time between an answer and the next question")
	f.IntVar(&t.Prefixes, "prefixes", t.Prefixes, "system prompts, the k-th of which is used 1/k as often as the first")
	f.IntVar(&t.Prefix, "prefix-tokens", t.Prefix, "their length")
	f.IntVar(&t.Question, "question-tokens", t.Question, "mean length of a question")
	f.IntVar(&t.Answer, "answer-tokens", t.Answer, "length of an answer")
	f.Uint64Var(&t.Seed, "seed", t.Seed, "of everything that is random")
	return f
}

// pairs splits NAME=VALUE.
func pairs(all []string) (split [][2]string, err error) {
	for _, p := range all {
		name, value, ok := strings.Cut(p, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not NAME=VALUE", p)
		}
		split = append(split, [2]string{name, value})
	}
	return split, nil
}

// clear empties the engines' caches, after the last requests of a round have ended.
func (c *config) clear(ctx context.Context) error {
	for _, url := range c.engines {
		for {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+simapi.PathClear, http.NoBody)
			if err != nil {
				return err
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				break
			}
			if resp.StatusCode != http.StatusConflict {
				return fmt.Errorf("%s%s: %s", url, simapi.PathClear, resp.Status)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// report prints a row for each gateway.
func (c *config) report(w io.Writer, gateways [][2]string, results []result, p processes) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\trequests\tfailed\thit rate\tTTFT mean\tp50\tp90\tp99\t")
	for _, process := range p {
		fmt.Fprintf(t, "CPU %s\t", process.name)
	}
	fmt.Fprintln(t)
	for i, r := range results {
		ttft := r.TTFT()
		fmt.Fprintf(t, "%s\t%d\t%d\t%.1f %%\t%.1f ms\t%.1f ms\t%.1f ms\t%.1f ms\t", gateways[i][0], len(ttft), r.Failed, 100*r.HitRate(),
			stats.Mean(ttft), stats.Quantile(ttft, 0.5), stats.Quantile(ttft, 0.9), stats.Quantile(ttft, 0.99))
		for j := range p {
			fmt.Fprintf(t, "%d µs\t", (r.cpu[j] / time.Duration(max(1, len(ttft)))).Microseconds())
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range results {
		if r := &results[i]; r.Failed > 0 {
			return fmt.Errorf("%s: %d requests failed, for example: %w", gateways[i][0], r.Failed, r.Failure)
		}
	}
	return nil
}
