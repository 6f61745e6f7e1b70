package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/internal/simulation/workload"
)

// play restarts the engines, plays all requests under one policy and collects the measurements
// of the engines. nth counts the plays of the policy, from 1.
func play(ctx context.Context, conf config, name string, nth int, requests []workload.Request, scr *screen) (result, error) {
	r := playRun{conf: conf, requests: requests, screen: scr}
	var infos []simapi.Info
	var err error
	if r.engines, infos, err = restart(ctx, conf); err != nil {
		return result{}, err
	}
	var fleet *replicas
	model, service := conf.modelOf(name)
	switch {
	case name == roundRobin:
		r.policy = roundRobinPolicy{len(r.engines)}
	case name == randomly:
		r.policy = randomPolicy{len(r.engines), conf.Seed}
	case name == leastLoaded:
		r.policy = newLeastLoadedPolicy(len(r.engines), conf.Seed)
	case service:
		fleet = replicasOf(conf, model, nth, requests)
		r.policy = fleet
		defer fleet.leave(ctx)
		if err := fleet.join(ctx, r.engines, infos); err != nil {
			return result{}, err
		}
		if conf.Disturb != "" {
			r.phases = &phases{command: conf.Disturb, fleet: fleet}
		}
	}
	if err := errors.Join(r.playAll(ctx), ctx.Err()); err != nil {
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
	res := newResult(name, stats, &r)
	res.Model = model
	if r.phases != nil {
		res.Phases = r.phases.results(len(conf.Targets))
		res.DisturbedSeconds = r.phases.took.Seconds()
		if err := errors.Join(r.phases.verdict(res.Phases, len(conf.Targets), res.LateMaxMS > maxLate), fleet.checkEmpty(ctx)); err != nil {
			res.Errors = append(res.Errors, err.Error())
			res.Spoilt = true
		}
	}
	return res, nil
}

// restart restarts the engines, and returns them.
func restart(ctx context.Context, conf config) (engines []engineClient, infos []simapi.Info, err error) {
	for i, url := range conf.Engines {
		e := engineClient{url}
		info, err := e.reset(ctx, conf.Speedup)
		if err != nil {
			return nil, nil, fmt.Errorf("restart engine %d: %w", i+1, err)
		}
		engines, infos = append(engines, e), append(infos, info)
	}
	return engines, infos, nil
}

// replicasOf returns the policy that asks the service.
func replicasOf(conf config, model string, nth int, requests []workload.Request) *replicas {
	sum := workload.Summarize(requests)
	fleet := newReplicas(conf.Targets, selection{
		model: model, tenant: conf.tenantOf(nth), nth: nth, replay: conf.Replay, late: conf.Lifecycle == late,
		meanOutput: float64(sum.OutputTokens) / float64(sum.Requests),
	})
	fleet.shared = conf.Fleet
	return fleet
}

// playOn plays one workload after another, with the seeds that follow, on engines that keep what they have cached,
// until ctx ends: for those who look at the service.
func playOn(ctx context.Context, conf config, model string, nth int, requests []workload.Request) error {
	engines, infos, err := restart(ctx, conf)
	if err != nil {
		return err
	}
	fleet := replicasOf(conf, model, nth, requests)
	defer fleet.leave(ctx)
	if err := fleet.join(ctx, engines, infos); err != nil {
		return err
	}
	for ; ctx.Err() == nil; nth++ {
		for _, r := range fleet.each {
			r.nth = nth // the ids of its reservations
		}
		r := playRun{conf: conf, engines: engines, policy: fleet, requests: requests, screen: newScreen(io.Discard, selectService, len(requests))}
		if err := r.playAll(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		conf.Seed++
		if requests, err = load(conf); err != nil {
			return err
		}
	}
	return nil
}

// playRun is one policy being played.
type playRun struct {
	conf     config
	engines  []engineClient
	policy   policy
	requests []workload.Request
	screen   *screen
	phases   *phases // nil unless there is a disturbance
	wall     time.Duration
	answered []chan struct{} // by request: closed when it has its answer, in a closed loop

	// mu guards the fields below.
	mu       sync.Mutex
	sessions map[string]*sessionTime // those of a closed loop
	first    []firstToken
	done     int
	choice   []time.Duration // real time of each decision
	late     []float64       // ms of model time by which each request was sent too late
	failed   []error         // one per request that did not end well
	lost     []error         // one per request with lifecycle calls that failed
}

// firstToken is the first token of one request.
type firstToken struct {
	at     time.Duration // model time at which the request arrived, since the first
	ttft   float64       // ms of model time, by the engine's clock
	choice float64       // ms of model time before that, until the engine was chosen
}

// sessionTime is the time of a session: from when its first request was due to its last answer.
type sessionTime struct{ from, until time.Time }

// playAll sends each request at its time, however many are running, and slows engines as
// configured. In a closed loop it sends what waits for answers a pause after these. It fails if an
// engine cannot be slowed.
func (r *playRun) playAll(ctx context.Context) error {
	slow, err := r.conf.slowdowns()
	if err != nil {
		return err
	}
	start, offset := time.Now(), r.requests[0].At
	due := func(at time.Duration) <-chan time.Time {
		return time.After(time.Duration(float64(at)/r.conf.Speedup) - time.Since(start))
	}
	span := float64(r.requests[len(r.requests)-1].At - offset)
	phases, phasesCtx := errgroup.WithContext(ctx)
	for _, s := range slow {
		set := func(share, factor float64) error {
			select {
			case <-phasesCtx.Done():
				return nil
			case <-due(time.Duration(share * span)):
			}
			if err := r.engines[s.Engine].slow(ctx, factor); err != nil {
				return fmt.Errorf("slow engine %d: %w", s.Engine+1, err)
			}
			return nil
		}
		phases.Go(func() error {
			if err := set(s.From, s.Factor); err != nil {
				return err
			}
			return set(s.Until, 1)
		})
	}
	var wg sync.WaitGroup
	over := make(chan struct{}) // closed when the disturbance is over
	var paused time.Duration
	if r.conf.Closed {
		r.sessions = make(map[string]*sessionTime)
		for range r.requests {
			r.answered = append(r.answered, make(chan struct{}))
		}
	}
	for i := range r.requests {
		if r.conf.Closed && len(r.requests[i].After) > 0 {
			wg.Go(func() { r.follow(ctx, &r.requests[i]) })
			continue
		}
		if r.phases != nil && i == len(r.requests)/2 {
			wg.Go(func() {
				defer close(over)
				r.phases.disturb(ctx)
			})
		}
		if r.phases != nil && i == len(r.requests)*3/4 { // the rest is for what comes afterwards
			began := time.Now()
			select {
			case <-ctx.Done():
			case <-over:
			}
			paused = time.Since(began)
		}
		req := &r.requests[i]
		at := start.Add(paused + time.Duration(float64(req.At-offset)/r.conf.Speedup))
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(at)):
			wg.Go(func() { r.playOne(ctx, req, at) })
		}
	}
	wg.Wait()
	r.wall = time.Since(start)
	return phases.Wait()
}

// follow plays a request that waits for answers.
func (r *playRun) follow(ctx context.Context, req *workload.Request) {
	for _, id := range req.After {
		select {
		case <-ctx.Done():
			return
		case <-r.answered[id-1]:
		}
	}
	due := time.Now().Add(time.Duration(float64(req.Pause) / r.conf.Speedup))
	select {
	case <-ctx.Done():
	case <-time.After(time.Until(due)):
		r.playOne(ctx, req, due)
	}
}

// answeredOne notes that a request of a closed loop has ended.
func (r *playRun) answeredOne(req *workload.Request, due time.Time) {
	defer close(r.answered[req.ID-1])
	if req.Session == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sessions[req.Session]
	if s == nil {
		s = &sessionTime{from: due}
		r.sessions[req.Session] = s
	}
	s.until = time.Now()
}

func (r *playRun) playOne(ctx context.Context, req *workload.Request, due time.Time) {
	if r.conf.Closed {
		defer r.answeredOne(req, due)
	}
	phase := r.phases.current()
	asked := time.Now()
	late := asked.Sub(due)
	at, err := r.policy.place(ctx, req)
	took := time.Since(asked)
	if err == nil && (at.engine < 0 || at.engine >= len(r.engines)) {
		err = fmt.Errorf("placed on worker %d, which is no engine of this play", at.engine+1)
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
				r.heard(req, s, took)
				r.screen.decision(req, at, s)
				r.phases.record(phase, at.replica, placements{
					prompt: len(req.Prompt), cached: s.CachedTokens, known: min(at.expected, s.CachedTokens), ttft: []float64{s.TTFTMS},
				})
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
	r.late = append(r.late, late.Seconds()*1000*r.conf.Speedup)
	if err != nil {
		r.failed = append(r.failed, fmt.Errorf("request %d: %w", req.ID, err))
	}
	if lost != nil {
		r.lost = append(r.lost, fmt.Errorf("request %d: %w", req.ID, lost))
	}
	r.screen.progress(r.done, len(r.failed))
}

func (r *playRun) heard(req *workload.Request, s simapi.Step, choice time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.first = append(r.first, firstToken{
		at: req.At - r.requests[0].At, ttft: s.TTFTMS,
		choice: choice.Seconds() * 1000 * r.conf.Speedup,
	})
}
