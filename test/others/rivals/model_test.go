package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/select-service/select-service/demo/sim/node"
	simulated "github.com/select-service/select-service/demo/sim/openai"
	"github.com/select-service/select-service/demo/sim/stats"
	"github.com/select-service/select-service/demo/sim/tokenizer"
	"github.com/select-service/select-service/demo/sim/traffic"
	service "github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/server/gateway/openai"
	sim "github.com/select-service/select-service/internal/simulation/engine"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// Here the plays are played in model time: the same traffic and the same engines in one process, in a
// bubble of testing/synctest, where time passes only while everybody waits. A gateway is its rule of
// placement alone, which takes no time. The speed of the machine has no effect, and the same seed gives
// the same figures.

var (
	whole      = flag.Bool("model", false, "play all plays in model time, and print tables")
	modelPlays = flag.String("plays", "", "of these plays (a list)")
	modelSeeds = flag.Uint64("seeds", 8, "with so many seeds")
)

// rule is how a contestant places requests. It is safe for concurrent use.
type rule interface {
	// place returns the index of the engine that gets a prompt.
	place(id string, prompt []uint32) int
	// What the gateway sees of the answer: its first token, each block of output, its end.
	prefilled(id string)
	block(id string)
	ended(id string)
}

// ruled are the contestants whose rule is known.
var ruled = []struct {
	name  string
	start func(f *fleet, seed uint64) rule
}{
	{"select-service", func(f *fleet, seed uint64) rule { return f.serve(seed) }},
	{"predicted-ttft", func(f *fleet, seed uint64) rule {
		return f.serve(seed, servicetest.Policy(f.t, "predicted-ttft", ""))
	}},
	{"smg", func(f *fleet, seed uint64) rule { return newCacheAware(f.play.engines, seed, 0.3, 64, 1.5) }},
	{"smg-tuned", func(f *fleet, seed uint64) rule { return newCacheAware(f.play.engines, seed, 0.1, 4, 1.2) }},
}

// fleet is the engines of a play with a contestant's rule before them. It carries the requests of a
// traffic.Traffic.
type fleet struct {
	t       *testing.T
	play    *play
	rule    rule
	events  []*servicetest.Engine // what takes the events of each engine; nil: nobody listens
	engines []http.Handler
	ids     atomic.Int64
}

// playInModel plays a round of a contestant.
func playInModel(t *testing.T, p play, start func(*fleet, uint64) rule, seed uint64) (played traffic.Result) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, play: &p, events: make([]*servicetest.Engine, p.engines)}
		f.rule = start(f, seed)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		for i := range p.engines {
			n := f.newEngine(i)
			f.engines = append(f.engines, simulated.New(simulated.Options{Model: model, Ranks: []*node.Node{n}}).Handler())
			running.Go(func() { _ = n.Run(ctx) })
		}
		synctest.Wait()
		load := p.traffic
		load.Seed, load.Transport = seed, f
		var err error
		if played, err = load.Play(ctx, "http://gateway"); err != nil {
			t.Error(err)
		}
	})
	return played
}

func (f *fleet) newEngine(i int) *node.Node {
	c := sim.Config{
		BlockSize: blockSize, CacheBlocks: f.play.cacheBlocks, PrefillRate: f.play.prefill, DecodeRate: cmp.Or(f.play.decode, 50), Chunked: f.play.chunked,
	}
	if i == 0 {
		c.Speed = f.play.speed
	}
	n, err := node.New(node.Options{
		Engine: c, Speedup: 1, NewSeed: func() uint64 { return uint64(i + 1) },
		Publisher: func() (node.Publisher, error) { return servicetest.Publisher{To: f.events[i]}, nil },
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

// RoundTrip implements http.RoundTripper.
func (f *fleet) RoundTrip(r *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var body struct{ Messages []tokenizer.Message }
	if err := json.Unmarshal(text, &body); err != nil {
		return nil, err
	}
	// Requests that come at once have an order, and what has happened until then is known.
	time.Sleep(1 + time.Duration(xxh3.Hash(text)%1000))
	id := strconv.FormatInt(f.ids.Add(1), 10)
	at := f.rule.place(id, tokenizer.Chat(body.Messages, tokenizer.Template{Open: true}))
	near, far := io.Pipe()
	a := &answer{fleet: f, id: id, to: far, seen: openai.NewResponse("text/event-stream", "")}
	asked := r.Clone(r.Context())
	asked.Body = io.NopCloser(bytes.NewReader(text))
	go func() {
		f.engines[at].ServeHTTP(a, asked)
		a.Flush()
		f.rule.ended(id)
		_ = far.Close()
	}()
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: near, Request: r}, nil
}

// answer passes an answer on. The rule is told of each piece before the client has it.
type answer struct {
	fleet   *fleet
	id      string
	to      io.Writer
	pending bytes.Buffer
	seen    *openai.Response
	started bool
	blocks  uint64 // of the output that the rule knows
}

func (a *answer) Header() http.Header { return http.Header{} }

func (a *answer) WriteHeader(status int) { a.fleet.t.Errorf("an engine answers %d", status) }

func (a *answer) Write(p []byte) (int, error) { return a.pending.Write(p) }

// Flush implements http.Flusher.
func (a *answer) Flush() {
	a.seen.Write(a.pending.Bytes())
	if !a.started && a.seen.Started() {
		a.started = true
		a.fleet.rule.prefilled(a.id)
	}
	for ; a.blocks < a.seen.Tokens()/blockSize; a.blocks++ {
		a.fleet.rule.block(a.id)
	}
	_, _ = a.pending.WriteTo(a.to) // the client has gone, if it fails
}

// ours is the service's rule, played by the service.
type ours struct{ *servicetest.World }

// serve starts the service with the engines of the play.
func (f *fleet) serve(seed uint64, change ...func(*service.Config)) rule {
	w := servicetest.Start(f.t, append(change, func(c *service.Config) { c.Selection.Random = servicetest.Random(seed, 1) })...)
	copy(f.events, w.PutSimulated(f.play.engines, blockSize))
	return ours{w}
}

func (o ours) place(id string, prompt []uint32) int {
	sel, err := o.Select(context.Background(), &selection.SelectRequest{
		Scope: servicetest.Scope, ReservationID: &id, Prompt: selection.Prompt{TokenIDs: prompt, HasTokenIDs: true},
	}, true)
	if err != nil {
		o.T.Error(err)
	}
	return int(sel.Rank.Worker)
}

func (o ours) prefilled(id string) { _ = o.PrefillComplete(id) } // as a gateway: it may have ended
func (o ours) block(id string)     { _ = o.OutputBlock(id, nil) }
func (o ours) ended(id string)     { _ = o.Free(id) }

// cacheAware is SMG's policy of that name for workers that tell nothing, as `smg launch --help` of 1.13
// states it. A prompt goes to a worker that was given the longest beginning of it, if that is a large
// enough share of the prompt, else to the worker with the fewest requests. A worker is passed over for
// the latter if its requests exceed both a multiple of the mean and the mean by a margin: the absolute
// threshold, but no more than two standard deviations of a count with that mean, or four. Of several
// workers with the same beginning the one with the fewest requests is taken (smg-project/smg, pull
// request 2161), and any of those with equally many. The tree is kept by blocks, and forgets nothing.
type cacheAware struct {
	threshold, abs, rel float64

	mu    sync.Mutex // guards the fields below
	rnd   *rand.Rand
	given map[uint64]uint64 // by the hash of a block and all before it, the workers: a bit each
	load  []int             // requests of each worker
	at    map[string]int    // the worker of each request
}

func newCacheAware(workers int, seed uint64, threshold, abs, rel float64) *cacheAware {
	return &cacheAware{
		threshold: threshold, abs: abs, rel: rel, rnd: rand.New(rand.NewPCG(seed, 2)),
		given: make(map[uint64]uint64), load: make([]int, workers), at: make(map[string]int),
	}
}

func (c *cacheAware) place(id string, prompt []uint32) int {
	blocks := servicetest.Sequence(prompt, blockSize)
	c.mu.Lock()
	defer c.mu.Unlock()
	all := uint64(1)<<len(c.load) - 1
	matched, holders := 0, all
	for ; matched < len(blocks) && c.given[blocks[matched]] != 0; matched++ {
		holders = c.given[blocks[matched]]
	}
	to := c.leastLoaded(all)
	if float64(matched*blockSize) > c.threshold*float64(len(prompt)) {
		if holder := c.leastLoaded(holders); !c.overloaded(holder) {
			to = holder
		}
	}
	for _, b := range blocks {
		c.given[b] |= 1 << to
	}
	c.load[to]++
	c.at[id] = to
	return to
}

func (c *cacheAware) overloaded(worker int) bool {
	sum := 0
	for _, n := range c.load {
		sum += n
	}
	mean, load := float64(sum)/float64(len(c.load)), float64(c.load[worker])
	return load > c.rel*mean && load > mean+min(c.abs, max(4, 2*math.Sqrt(mean)))
}

// leastLoaded returns the worker with the fewest requests of a set that is not empty.
func (c *cacheAware) leastLoaded(of uint64) int {
	var least []int
	for ; of != 0; of &= of - 1 {
		switch i := bits.TrailingZeros64(of); {
		case len(least) == 0 || c.load[i] < c.load[least[0]]:
			least = append(least[:0], i)
		case c.load[i] == c.load[least[0]]:
			least = append(least, i)
		}
	}
	return least[c.rnd.IntN(len(least))]
}

func (*cacheAware) prefilled(string) {}
func (*cacheAware) block(string)     {}

func (c *cacheAware) ended(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.load[c.at[id]]--
	delete(c.at, id)
}

// TestCacheAware proves the rule: fewest requests without a match, the holder with one, until it is
// overloaded by both thresholds.
func TestCacheAware(t *testing.T) {
	prompt := servicetest.Prompt(1, 160)
	for abs, most := range map[float64]int{64: 9, 2: 5} {
		c := newCacheAware(2, 1, 0.3, abs, 1.5)
		first := c.place("0", prompt)
		for n := 1; n < most; n++ {
			if got := c.place(fmt.Sprint(n), append(prompt[:160:160], servicetest.Prompt(uint32(n+1), 16)...)); got != first {
				t.Fatalf("threshold %v: request %d went elsewhere", abs, n)
			}
		}
		if c.place("more", prompt) == first {
			t.Errorf("threshold %v: request %d went to the overloaded worker", abs, most)
		}
		for n := range most {
			c.ended(fmt.Sprint(n))
		}
		if got := c.place("again", prompt); got != first { // both hold it now
			t.Errorf("threshold %v: went to the holder with more requests", abs)
		}
		if c.load[first] != 1 || c.load[1-first] != 1 {
			t.Errorf("threshold %v: loads are %v", abs, c.load)
		}
		c.ended("more")
		if got := c.place("other", append(prompt[:160:160], servicetest.Prompt(99, 1000)...)); got == first {
			t.Errorf("threshold %v: a match of 14 %% decided", abs)
		}
	}
}

// TestModel proves that a play in model time is the same each time, and that its requests are answered.
// With -model it plays all plays and prints the tables of docs/figures/compare.md.
func TestModel(t *testing.T) {
	if *whole {
		printModel(t)
		return
	}
	p := plays[slices.IndexFunc(plays, func(p play) bool { return p.name == "eight-75" })]
	p.traffic.Duration = time.Second
	for _, c := range ruled {
		r := playInModel(t, p, c.start, 1)
		if len(r.Requests) < 15 || r.Failed > 0 || r.HitRate() < 0.3 {
			t.Errorf("%s: %d requests, %d failed (%v), hit rate %.2f", c.name, len(r.Requests), r.Failed, r.Failure, r.HitRate())
		}
		if c.name == "predicted-ttft" && !reflect.DeepEqual(playInModel(t, p, c.start, 1), r) {
			t.Errorf("%s: another play with the same seed", c.name)
		}
	}
}

// printModel plays the plays in which rules alone decide, and prints the mean over the seeds of each
// contestant's hit rate, and of the mean and the 99th percentile of its times to first token.
func printModel(t *testing.T) {
	for _, p := range plays {
		if p.prefill == 0 || p.restart || p.gateways > 0 || p.traffic.Around > 0 || *modelPlays != "" && !slices.Contains(strings.Split(*modelPlays, ","), p.name) {
			continue
		}
		fmt.Printf("\n**%s**: %s; %d seeds.\n\n| | hit rate | TTFT mean | p99 |\n|---|---|---|---|\n", p.name, p.about, *modelSeeds)
		for _, c := range ruled {
			var hits, means, tails []float64
			for seed := range *modelSeeds {
				r := playInModel(t, p, c.start, seed+1)
				if r.Failed > 0 {
					t.Errorf("%s, %s: %d requests failed: %v", p.name, c.name, r.Failed, r.Failure)
				}
				hits, means, tails = append(hits, 100*r.HitRate()), append(means, stats.Mean(r.TTFT())), append(tails, stats.Quantile(r.TTFT(), 0.99))
			}
			fmt.Printf("| %s | %.1f %% | %.0f ms | %.0f ms |\n", c.name, stats.Mean(hits), stats.Mean(means), stats.Mean(tails))
		}
	}
}
