package main

import (
	"context"
	"math/rand/v2"
	"sync"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/internal/simulation/workload"
)

// policy decides where requests go. It is safe for concurrent use.
type policy interface {
	// place chooses an engine for a request.
	place(ctx context.Context, r *workload.Request) (placement, error)
	// report is called for every step of a placed request. If the request fails, an EventError
	// step replaces the remaining ones.
	report(ctx context.Context, r *workload.Request, p placement, s simapi.Step) error
}

// placement is a decision.
type placement struct {
	engine   int   // index
	expected int   // cached prompt tokens that the decision expected
	replica  int   // index of the replica that decided
	falls    int64 // of the replica until then
}

// roundRobinPolicy places requests round robin.
type roundRobinPolicy struct {
	engines int
}

func (p roundRobinPolicy) place(_ context.Context, r *workload.Request) (placement, error) {
	return placement{engine: (r.ID - 1) % p.engines}, nil
}

func (roundRobinPolicy) report(context.Context, *workload.Request, placement, simapi.Step) error {
	return nil
}

// randomPolicy places requests at random; the same seed gives the same places.
type randomPolicy struct {
	engines int
	seed    uint64
}

func (p randomPolicy) place(_ context.Context, r *workload.Request) (placement, error) {
	return placement{engine: rand.New(rand.NewPCG(p.seed, uint64(r.ID))).IntN(p.engines)}, nil
}

func (randomPolicy) report(context.Context, *workload.Request, placement, simapi.Step) error {
	return nil
}

// leastLoadedPolicy places a request on an engine with the fewest outstanding requests, at
// random among equals.
type leastLoadedPolicy struct {
	// mu guards the fields below.
	mu          sync.Mutex
	outstanding []int
	rnd         *rand.Rand
}

func newLeastLoadedPolicy(engines int, seed uint64) *leastLoadedPolicy {
	return &leastLoadedPolicy{outstanding: make([]int, engines), rnd: rand.New(rand.NewPCG(seed, 0))}
}

func (p *leastLoadedPolicy) place(context.Context, *workload.Request) (placement, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	best, equal := 0, 0
	for i, n := range p.outstanding {
		switch {
		case i > 0 && n > p.outstanding[best]:
			continue
		case i == 0 || n < p.outstanding[best]:
			best, equal = i, 1
		default:
			if equal++; p.rnd.IntN(equal) == 0 {
				best = i
			}
		}
	}
	p.outstanding[best]++
	return placement{engine: best}, nil
}

func (p *leastLoadedPolicy) report(_ context.Context, _ *workload.Request, at placement, s simapi.Step) error {
	if s.Event == simapi.EventDone || s.Event == simapi.EventError {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.outstanding[at.engine]--
	}
	return nil
}
