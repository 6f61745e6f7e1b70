package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"github.com/select-service/select-service/pkg/client"
)

// benchResult is what bench measured. Times are in seconds.
type benchResult struct {
	Calls     int     `json:"calls"`
	Failed    int     `json:"failed"`
	Error     string  `json:"error,omitempty"` // the first
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_seconds"`
	P90       float64 `json:"p90_seconds"`
	P99       float64 `json:"p99_seconds"`
	Max       float64 `json:"max_seconds"`
}

func (a *app) bench() *cobra.Command {
	var (
		model, group    string
		clients, length int
		lasts           time.Duration
		hdr             bool
	)
	cmd := &cobra.Command{
		Use: "bench", Short: "send selections for a while and show how long they take; nothing is booked",
		Example: "  selectctl bench -m llama --clients 4 --tokens 1000 --for 5s\n  selectctl bench -m llama --for 1s --hdr >latency.hdr",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if clients < 1 || clients > 1024 || length < 0 || length > 1<<20 || lasts <= 0 {
				return usageError{fmt.Errorf("clients are 1 to 1024, tokens 0 to 1048576, and the time is above 0")}
			}
			ctx, stop := context.WithTimeout(cmd.Context(), lasts)
			defer stop()
			began := time.Now()
			result, took := a.load(ctx, client.SelectRequest{Model: model, RoutingGroup: group}, clients, length)
			result.PerSecond = float64(result.Calls) / time.Since(began).Seconds()
			if hdr {
				const ticks = 5 // lines for each half of the rest
				if _, err := took.PercentilesPrint(a.out, ticks, float64(time.Millisecond)); err != nil {
					return fmt.Errorf("write the distribution: %w", err)
				}
			} else {
				ms := func(s float64) string { return fmt.Sprintf("%.3f ms", s*1000) }
				t := &table{columns: []string{"CALLS", "FAILED", "PER SECOND", "P50", "P90", "P99", "MAX"}}
				t.add(result.Calls, result.Failed, fmt.Sprintf("%.0f", result.PerSecond), ms(result.P50), ms(result.P90), ms(result.P99), ms(result.Max))
				if err := a.show(result, t); err != nil {
					return err
				}
			}
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			if result.Failed > 0 {
				return fmt.Errorf("%d of %d calls failed, the first: %s", result.Failed, result.Calls, result.Error)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&model, "model", "m", "", "model (the default: default)")
	flags.StringVarP(&group, "group", "g", "", "routing group (the default: default)")
	flags.IntVarP(&clients, "clients", "c", 1, "calls at a time")
	flags.IntVarP(&length, "tokens", "t", 1000, "random tokens of a prompt")
	flags.DurationVar(&lasts, "for", 5*time.Second, "how long")
	flags.BoolVar(&hdr, "hdr", false, "write the whole distribution as HdrHistogram's text, in milliseconds")
	return cmd
}

// longest is the longest time that is told from longer ones.
const longest = time.Hour

// load sends selections from several clients until the context ends. took has the times in nanoseconds, to
// three digits.
func (a *app) load(ctx context.Context, req client.SelectRequest, clients, length int) (result benchResult, took *hdrhistogram.Histogram) {
	var (
		running sync.WaitGroup
		mu      sync.Mutex // guards took and result
	)
	took = hdrhistogram.New(1, int64(longest), 3)
	for range clients {
		running.Go(func() {
			own := req
			for ctx.Err() == nil {
				own.TokenIDs = make([]uint32, length)
				for i := range own.TokenIDs {
					own.TokenIDs[i] = rand.Uint32N(100_000)
				}
				began := time.Now()
				_, err := a.service.Select(ctx, own)
				d := time.Since(began)
				if ctx.Err() != nil {
					return // it was cut off
				}
				mu.Lock()
				_ = took.RecordValue(int64(min(d, longest))) // it is in the range
				if err != nil {
					result.Failed++
					if result.Error == "" {
						result.Error = err.Error()
					}
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	result.Calls = int(took.TotalCount())
	seconds := func(ns int64) float64 { return time.Duration(ns).Seconds() }
	at := func(percentile float64) float64 { return seconds(took.ValueAtPercentile(percentile)) }
	result.P50, result.P90, result.P99, result.Max = at(50), at(90), at(99), seconds(took.Max())
	return result, took
}
