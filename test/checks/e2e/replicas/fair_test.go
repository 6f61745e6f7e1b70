package replicas_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/natstest"
)

// fairPolicy makes requests wait while a rank prefills, and has programs take turns.
const fairPolicy = `
default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: c, policy_family: f, cache_bucket: all, quantum: 1, prefill_busy_threshold: 0, fairness: {by: program, half_life_seconds: 600}}
`

// TestFairOverNATS proves on a real server that a program which sends to two replicas gets one share beside a program that sends
// to one of them, since replicas tell each other what they have served. By what each of them serves alone, the first one
// would get two turns of three. The engine computes one prompt at a time, in the time that its reports take. Which replica hears of
// its end, and so places the next request, is chance: two times of three it is the one of both programs.
func TestFairOverNATS(t *testing.T) {
	server := natstest.Start(t)
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(fairPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, options{size: 2, direct: true, nats: server.URL, args: func([]string, int) []string {
		return []string{"--use-kv-events=false", "--router-policy-config", policy}
	}})
	first := f.replicas[0]
	w := workers[0]
	e2e.Eventually(t, "the worker is registered", func() error {
		return first.Do(t.Context(), http.MethodPost, "/workers", e2e.Object{
			"worker_id": w.id, "model_name": w.model, "endpoint": "http://w:8000", "block_size": blockSize, "data_parallel_size": 1, "max_num_batched_tokens": 8192,
		}, nil)
	})
	for _, r := range f.replicas {
		e2e.Eventually(t, r.name+" has the worker", func() error { return has(r, 1) })
		e2e.Eventually(t, r.name+" is ready", r.ready)
		e2e.Eventually(t, r.name+" hears the other", func() error { return r.hears(1) })
	}
	play := fairPlay{t: t, replicas: f.replicas, rnd: rand.New(rand.NewPCG(1, 2))}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	play.least, play.stop = of(1200, 400), stop
	var sessions sync.WaitGroup
	for n := range 3 {
		sessions.Go(func() { play.session(ctx, "A", n, f.replicas[0]) })
		sessions.Go(func() { play.session(ctx, "A", n+3, f.replicas[1]) })
		sessions.Go(func() { play.session(ctx, "B", n, f.replicas[0]) })
	}
	sessions.Wait()
	t.Logf("%d turns", len(play.took))
	if !play.isFair() {
		t.Errorf("the share of B is %.2f after %d turns", play.share(), len(play.took))
	}
}

type fairPlay struct {
	t        *testing.T
	replicas []*replica
	least    int // turns
	stop     func()

	mu   sync.Mutex // guards the fields below
	took []fairTurn
	rnd  *rand.Rand
}

// fairTurn is the time that the engine had for a program.
type fairTurn struct {
	program string
	took    time.Duration
}

// mostTurns bounds the play: by then it is not fair.
const mostTurns = 20_000

// share returns B's share of the engine's time in the second half of the play.
func (p *fairPlay) share() float64 {
	of := make(map[string]time.Duration)
	for _, t := range p.took[len(p.took)/2:] {
		of[t.program] += t.took
	}
	return float64(of["B"]) / float64(of["A"]+of["B"])
}

// isFair reports whether there were enough turns, and the shares of the second half are equal. What replicas have served is told once a
// second, so that shares swing as long as the play has only lasted seconds.
func (p *fairPlay) isFair() bool {
	share := p.share()
	return len(p.took) >= p.least && share > 0.45 && share < 0.55
}

// session sends one request after the other.
func (p *fairPlay) session(ctx context.Context, program string, n int, to *replica) {
	for turn := 0; ctx.Err() == nil; turn++ {
		id := fmt.Sprintf("%s%d-%d", program, n, turn)
		err := to.Do(ctx, http.MethodPost, "/select_and_reserve", e2e.Object{
			"model_name": workers[0].model, "reservation_id": id, "fairness_id": program, "token_ids": []int{n, turn, 3, 4, 5, 6, 7, 8},
		}, nil)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			p.t.Error(err)
			return
		}
		placed, hears := time.Now(), p.hears()
		for i, end := range []struct{ method, path string }{
			{http.MethodPost, "/reservations/" + id + "/prefill_complete"}, {http.MethodDelete, "/reservations/" + id},
		} {
			// It may not have heard of the reservation yet.
			e2e.Eventually(p.t, "the end is known", func() error { return hears.Do(context.WithoutCancel(ctx), end.method, end.path, nil, nil) })
			if i == 0 {
				p.computed(fairTurn{program, time.Since(placed)})
			}
		}
	}
}

// hears returns the replica that hears of the next end.
func (p *fairPlay) hears() *replica {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.replicas[p.rnd.IntN(3)/2]
}

// computed notes a turn, and ends the play once it is fair.
func (p *fairPlay) computed(t fairTurn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.took = append(p.took, t); len(p.took) == mostTurns || len(p.took)%100 == 0 && p.isFair() {
		p.stop()
	}
}
