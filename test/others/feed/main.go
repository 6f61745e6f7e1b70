// Command feed publishes bookings to one replica at a rate that HTTP does not
// reach, and measures how they arrive. The sender is this process: a ledger and
// its replica, without any HTTP in front. The receiver is any selection service
// that follows the sender's endpoint (--replica-sync-peers) and does not use KV
// events. test/others/bench/replicas.sh runs it.
//
// It books, completes and frees the same bookings in three phases, and compares
// the receiver's sums after each: nothing of what one phase has lost is hidden by
// the next. Meanwhile probes on a model of their own measure the delay from a
// booking to the first GET /loads that has it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

type config struct {
	receiver string
	bind     string
	name     string
	rate     int
	phase    time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "feed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	conf := config{}
	f := pflag.NewFlagSet("feed", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&conf.receiver, "receiver", "http://127.0.0.1:8092", "base URL of the service that receives")
	f.StringVar(&conf.bind, "bind", "tcp://127.0.0.1:9092", "endpoint to publish at, which the receiver has as a peer")
	f.StringVar(&conf.name, "name", "receiver", "name in the output")
	f.IntVar(&conf.rate, "rate", 20_000, "events per second")
	f.DurationVar(&conf.phase, "phase", 5*time.Second, "duration of booking, of completing and of freeing")
	if err := f.Parse(args); err != nil {
		return err
	}
	in := receiver{url: conf.receiver}
	if err := in.register(ctx); err != nil {
		return err
	}
	out, err := newSender(ctx, conf.bind)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.close()) }()
	if err := out.connect(ctx, in); err != nil {
		return err
	}
	res, err := feed(ctx, conf, out, in)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(res)
}

// result is what the program prints, as one line of JSON.
type result struct {
	Kind   string `json:"kind"`
	Server string `json:"server"`
	Events int    `json:"events"`
	// Rates are events per second as sent, by phase.
	Rates [3]int `json:"rates"`
	// Missing are events whose effect the receiver lacks after each phase.
	Missing    [3]int64          `json:"missing"`
	Unsent     map[string]uint64 `json:"unsent"` // dropped by the sender, by reason
	Probes     int               `json:"probes"`
	DelayP50US int64             `json:"delay_p50_us"`
	DelayP99US int64             `json:"delay_p99_us"`
	DelayMaxUS int64             `json:"delay_max_us"`
	ProbesLost int               `json:"probes_lost"`
}

// settleWait is how long the receiver may take for the last events of a phase.
const settleWait = 10 * time.Second

func feed(ctx context.Context, conf config, out *sender, in receiver) (result, error) {
	n := int(conf.phase.Seconds() * float64(conf.rate))
	res := result{Kind: "feed", Server: conf.name, Events: 3 * n}
	var wait sync.WaitGroup
	defer wait.Wait()
	probing, stop := context.WithCancel(ctx)
	defer stop()
	var delays []time.Duration
	var lost int
	var probeErr error
	wait.Go(func() { delays, lost, probeErr = probe(probing, out, in) })
	phases := [3]struct {
		do      func(i int) error
		missing func(sum) int64 // of n
	}{
		{out.book, func(s sum) int64 { return int64(n) - s.requests }},
		{out.complete, func(s sum) int64 { return s.prefill / promptTokens }},
		{out.free, func(s sum) int64 { return s.requests }},
	}
	for p, phase := range phases {
		rate, err := pace(ctx, n, conf.rate, phase.do)
		if err != nil {
			return res, err
		}
		res.Rates[p] = int(rate)
		for begun := time.Now(); ; {
			sum, err := in.loads(ctx, feedModel)
			if err != nil {
				return res, err
			}
			if res.Missing[p] = phase.missing(sum); res.Missing[p] == 0 || time.Since(begun) > settleWait {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	stop()
	wait.Wait()
	if probeErr != nil {
		return res, probeErr
	}
	slices.Sort(delays)
	res.Probes, res.ProbesLost, res.Unsent = len(delays)+lost, lost, out.unsent()
	if k := len(delays); k > 0 {
		res.DelayP50US, res.DelayP99US = delays[k/2].Microseconds(), delays[k*99/100].Microseconds()
		res.DelayMaxUS = delays[k-1].Microseconds()
	}
	return res, nil
}

// pace calls do for 0..n-1 at the given rate and returns the one it reached.
func pace(ctx context.Context, n, rate int, do func(i int) error) (float64, error) {
	begun := time.Now()
	for i := 0; i < n && ctx.Err() == nil; {
		due := min(n, int(time.Since(begun).Seconds()*float64(rate)))
		for ; i < due; i++ {
			if err := do(i); err != nil {
				return 0, err
			}
		}
		time.Sleep(time.Millisecond)
	}
	return float64(n) / time.Since(begun).Seconds(), ctx.Err()
}

// probeWait is when a probe that does not show up counts as lost.
const probeWait = 2 * time.Second

// probe books one request after the other until ctx ends. What a lost free
// leaves behind is part of the number that the next ones start from.
func probe(ctx context.Context, out *sender, in receiver) (delays []time.Duration, lost int, err error) {
	left := int64(0)
	for i := 0; ctx.Err() == nil; i++ {
		if err := out.bookProbe(i); err != nil {
			return nil, 0, err
		}
		took, _, err := in.await(ctx, left+1)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			return nil, 0, err
		case took > probeWait:
			lost++
		default:
			delays = append(delays, took)
		}
		if err := out.freeProbe(i); err != nil {
			return nil, 0, err
		}
		if _, left, err = in.await(ctx, left); err != nil && ctx.Err() == nil {
			return nil, 0, err
		}
	}
	return delays, lost, nil
}
