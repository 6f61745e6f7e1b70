package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/sim/simapi"
	"github.com/select-service/select-service/internal/sim/workload"
)

// play restarts the engines, plays all requests under one policy and collects
// what the engines have measured.
func play(ctx context.Context, conf config, name string, requests []workload.Request, scr *screen) (result, error) {
	r := playing{conf: conf, requests: requests, screen: scr}
	infos := make([]simapi.Info, len(conf.Engines))
	for i, url := range conf.Engines {
		r.engines = append(r.engines, engineClient{url})
		var err error
		if infos[i], err = r.engines[i].reset(ctx, conf.Speedup); err != nil {
			return result{}, fmt.Errorf("restart engine %d: %w", i+1, err)
		}
	}
	switch name {
	case roundRobin:
		r.policy = turns{len(r.engines)}
	case randomly:
		r.policy = dice{len(r.engines), conf.Seed}
	case leastLoaded:
		r.policy = newShortest(len(r.engines), conf.Seed)
	case selectService:
		sum := workload.Summarize(requests)
		s := &selection{
			url: conf.Target, model: conf.Model, tenant: conf.Tenant,
			meanOutput: float64(sum.OutputTokens) / float64(sum.Requests),
		}
		r.policy = s
		defer s.leave(ctx, len(r.engines))
		if err := s.join(ctx, r.engines, infos); err != nil {
			return result{}, err
		}
	}
	r.playAll(ctx)
	if err := ctx.Err(); err != nil {
		return result{}, err
	}
	stats := make([]simapi.Stats, len(r.engines))
	for i, e := range r.engines {
		var err error
		if stats[i], err = e.stats(ctx); err != nil {
			return result{}, fmt.Errorf("statistics of engine %d: %w", i+1, err)
		}
	}
	scr.end()
	return newResult(name, stats, &r), nil
}

// join registers the engines and waits until the service hears each of them.
func (s *selection) join(ctx context.Context, engines []engineClient, infos []simapi.Info) error {
	for i, e := range engines {
		if err := s.register(ctx, i+1, e.url, infos[i]); err != nil {
			return err
		}
	}
	for _, e := range engines {
		if err := e.awaitSubscriber(ctx); err != nil {
			return err
		}
	}
	return nil
}

// leave takes the engines out of the service again, after an interrupt too.
func (s *selection) leave(ctx context.Context, engines int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for i := range engines {
		_ = s.unregister(ctx, i+1) // a service that is gone has forgotten them
	}
}

// playing is one policy being played.
type playing struct {
	conf     config
	engines  []engineClient
	policy   policy
	requests []workload.Request
	screen   *screen
	wall     time.Duration

	// mu guards what follows.
	mu     sync.Mutex
	done   int
	choice []time.Duration // real time of each decision
	failed []error         // one per request that did not end well
	lost   []error         // one per request with lifecycle calls that failed
}

// playAll sends each request when its time has come, however many run.
func (r *playing) playAll(ctx context.Context) {
	start, offset := time.Now(), r.requests[0].At
	var wg sync.WaitGroup
	for i := range r.requests {
		req := &r.requests[i]
		due := time.Duration(float64(req.At-offset) / r.conf.Speedup)
		select {
		case <-ctx.Done():
		case <-time.After(due - time.Since(start)):
			wg.Go(func() { r.playOne(ctx, req) })
		}
	}
	wg.Wait()
	r.wall = time.Since(start)
}

func (r *playing) playOne(ctx context.Context, req *workload.Request) {
	asked := time.Now()
	at, err := r.policy.place(ctx, req)
	took := time.Since(asked)
	if err == nil && (at.engine < 0 || at.engine >= len(r.engines)) {
		err = fmt.Errorf("placed on worker %d, which is none of ours", at.engine+1)
	}
	var lost error // the first report that failed
	report := func(s simapi.Step) {
		if err := r.policy.report(ctx, req, at, s); lost == nil {
			lost = err
		}
	}
	if err == nil {
		err = r.engines[at.engine].generate(ctx, req, func(s simapi.Step) {
			if s.Event == simapi.EventFirstToken {
				r.screen.decision(req, at, s)
			}
			report(s)
		})
		if err != nil {
			report(simapi.Step{Event: simapi.EventError})
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done++
	r.choice = append(r.choice, took)
	if err != nil {
		r.failed = append(r.failed, fmt.Errorf("request %d: %w", req.ID, err))
	}
	if lost != nil {
		r.lost = append(r.lost, fmt.Errorf("request %d: %w", req.ID, lost))
	}
	r.screen.progress(r.done, len(r.failed))
}
