package selection_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/demo/sim/kvwire"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/simulation/engine"
	"github.com/select-service/select-service/internal/simulation/workload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// traceEnv names a trace in Mooncake's format for TestWarmupPlay.
const traceEnv = "WARMUP_TRACE"

// Of TestWarmupPlay, in model time.
const (
	joinAfter  = 2 * time.Minute // a worker is added
	playedFor  = 2 * time.Minute // after that
	oldEngines = 8
	simBlock   = 16
	sampled    = 500 * time.Millisecond
	smoothed   = 5 // samples of a mean load
)

// growing is a fleet of simulated engines to which one is added under load.
type growing struct {
	*servicetest.World
	engines  []*engine.Engine
	events   []*servicetest.Engine // publisher of each engine
	blocks   int                   // of each cache
	began    time.Time
	requests map[string]growingRequest
	loads    [][]int // samples of the active requests of each engine

	sum   time.Duration // of the TTFT of requests that came after the join
	first int           // their number
}

type growingRequest struct {
	engine int
	at     time.Duration
	output int
}

// play sends the requests and returns when the added engine carried half of the median load, counted
// from its start, and the mean TTFT of the fleet from then on.
func (g *growing) play(requests []workload.Request) (carried, mean time.Duration) {
	time.Sleep(sampled / 3) // what the service does every second is not done at the time of a sample
	g.began, g.requests = time.Now(), make(map[string]growingRequest)
	for range oldEngines {
		g.add()
	}
	synctest.Wait()
	for sample := time.Duration(0); g.now() < joinAfter+playedFor; {
		until := sample
		if len(requests) > 0 {
			until = min(until, requests[0].At)
		}
		for _, e := range g.engines {
			if at, some := e.Next(); some {
				until = min(until, at)
			}
		}
		time.Sleep(until - g.now())
		for i := range g.engines {
			g.advance(i)
		}
		if g.now() >= sample {
			sample += sampled
			if len(g.engines) == oldEngines && g.now() >= joinAfter {
				g.add()
			}
			for i, e := range g.engines {
				g.loads[i] = append(g.loads[i], e.Running()+e.Waiting())
			}
			if carried == 0 && g.carriesHalf() {
				carried = g.now() - joinAfter
			}
		}
		synctest.Wait() // events have been applied
		for len(requests) > 0 && requests[0].At <= g.now() {
			g.send(&requests[0])
			requests = requests[1:]
		}
	}
	return carried, g.sum / time.Duration(max(1, g.first))
}

func (g *growing) now() time.Duration { return time.Since(g.began) }

func (g *growing) add() {
	id := uint64(len(g.engines))
	g.Put(servicetest.Record(id, 1, func(r *catalog.Record) {
		r.BlockSize, r.TotalKVBlocks, r.MaxNumBatchedTokens = new(uint32(simBlock)), new(uint64(g.blocks)), new(uint64(8192))
	}))
	g.engines = append(g.engines, engine.New(engine.Config{BlockSize: simBlock, CacheBlocks: g.blocks, PrefillRate: 12000, DecodeRate: 50, HashSeed: id + 1}))
	g.events = append(g.events, g.Engine(id, 0))
	g.loads = append(g.loads, nil)
}

// carriesHalf reports whether the added engine has at least half of the median load of the others.
func (g *growing) carriesHalf() bool {
	if len(g.engines) == oldEngines || len(g.loads[oldEngines]) < smoothed {
		return false
	}
	var means []int
	for _, samples := range g.loads {
		sum := 0
		for _, n := range samples[len(samples)-smoothed:] {
			sum += n
		}
		means = append(means, sum)
	}
	added := means[oldEngines]
	slices.Sort(means[:oldEngines])
	return 2*added >= means[(oldEngines-1)/2]
}

func (g *growing) send(r *workload.Request) {
	id := fmt.Sprint(r.ID)
	req := &selection.SelectRequest{Scope: servicetest.Scope, ReservationID: &id, Prompt: selection.Prompt{
		BlockHashes: servicetest.Local(r.Prompt, simBlock), HasBlockHashes: true,
		SequenceHashes: servicetest.Sequence(r.Prompt, simBlock), HasSequenceHashes: true,
		ISLTokens: uint64(len(r.Prompt)), HasISLTokens: true,
	}}
	sel, err := g.Select(context.Background(), req, true)
	if err != nil {
		g.T.Fatal(err)
	}
	i := int(sel.Rank.Worker)
	g.requests[id] = growingRequest{i, r.At, len(r.Output)}
	if err := g.engines[i].Submit(g.now(), engine.Request{ID: id, Prompt: r.Prompt, Output: r.Output}); err != nil {
		g.T.Fatal(err)
	}
	g.advance(i)
}

// advance runs an engine up to now, and tells the service what has happened.
func (g *growing) advance(i int) {
	for _, u := range g.engines[i].Advance(g.now()) {
		if len(u.Events) > 0 {
			payload, err := kvwire.Batch(1, u.Events, simBlock, 0)
			if err != nil {
				g.T.Fatal(err)
			}
			g.events[i].Deliver(payload)
		}
		r, known := g.requests[u.Request]
		if !known {
			continue
		}
		switch u.Kind {
		case engine.FirstToken:
			if r.at >= joinAfter {
				g.sum, g.first = g.sum+u.TTFT, g.first+1
			}
			_ = g.PrefillComplete(u.Request)
		case engine.OutputBlock:
			decay := max(0, 1-float64(u.Tokens)/float64(r.output))
			_ = g.OutputBlock(u.Request, &decay)
		case engine.Done:
			_ = g.Free(u.Request)
			delete(g.requests, u.Request)
		}
	}
}

// TestWarmupPlay: a worker that joins a busy fleet carries half of the median load no later where
// new workers get a share than where they do not, in the mean of some plays of chats and, where
// one is named, of a trace; the mean TTFT of the fleet is not much worse. It prints the
// figures of docs/how-it-works/engine-load.md.
func TestWarmupPlay(t *testing.T) {
	if testing.Short() {
		t.Skip("an hour of model time")
	}
	type play struct {
		name     string
		blocks   int // of each cache
		requests []workload.Request
	}
	var plays []play
	for seed := uint64(1); seed <= 3; seed++ {
		plays = append(plays, play{fmt.Sprint("chats ", seed), 16384, until(workload.DefaultChats().Generate(seed, 4000), joinAfter+playedFor)})
	}
	if path := os.Getenv(traceEnv); path != "" {
		for _, rate := range []float64{1, 1.75} {
			plays = append(plays, play{fmt.Sprint("trace at ", rate), 65536, until(readTrace(t, path, rate), joinAfter+playedFor)})
		}
	}
	for policy, change := range map[string]func(*node.Config){
		"default":        func(*node.Config) {},
		"predicted-ttft": servicetest.Policy(t, "predicted-ttft", ""),
	} {
		var times, means [2]time.Duration // without and with a share, of all plays
		for _, of := range plays {
			for i, share := range []float64{0, 0.25} {
				synctest.Test(t, func(t *testing.T) {
					g := &growing{blocks: of.blocks, World: servicetest.Start(t, change, func(c *node.Config) {
						c.Selection.WarmupShare, c.Selection.Warmup = share, time.Minute
						c.Selection.Random = rand.New(rand.NewPCG(1, 1)) // choices are made one after the other
					})}
					carried, mean := g.play(of.requests)
					t.Logf("%s, %s, a share of %g: half of the load after %v, mean TTFT %v of %d", policy, of.name, share, carried, mean.Round(time.Millisecond), g.first)
					times[i], means[i] = times[i]+carried, means[i]+mean
				})
			}
		}
		if times[0] == 0 || times[1] == 0 || times[1] > times[0] || means[1] > means[0]*11/10 {
			t.Errorf("%s: half of the load after %v with a share, %v without; mean TTFT %v and %v (sums)", policy, times[1], times[0], means[1], means[0])
		}
	}
}

// until returns the requests that arrive before an end.
func until(requests []workload.Request, end time.Duration) []workload.Request {
	n, _ := slices.BinarySearchFunc(requests, end, func(r workload.Request, end time.Duration) int { return int(r.At - end) })
	return requests[:n]
}

// readTrace reads the begin of a trace, whose requests arrive so many times as fast.
func readTrace(t *testing.T, path string, rate float64) []workload.Request {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	requests, err := workload.ReadTrace(file, 3000)
	if err != nil {
		t.Fatal(err)
	}
	for i := range requests {
		requests[i].At = time.Duration(float64(requests[i].At) / rate)
	}
	return requests
}
