package policies

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/demo/sim/node"
	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/demo/sim/stats"
	"github.com/select-service/select-service/internal/simulation/engine"
	"github.com/select-service/select-service/internal/simulation/workload"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// blockSize is the number of tokens of a block. It is four times vLLM's default, for speed.
const blockSize = 64

// Fleet are the engines of a play.
type Fleet struct {
	Name        string
	Speeds      []float64 // of each engine, by the normal speed
	CacheBlocks int       // of each engine
	// Places are where the engines are, for KV caches that are passed on; nil: all in one.
	Places []string
}

// nodes returns the engines, each of which gives its events to what takes them, if anything listens.
func (f Fleet) nodes(t *testing.T, events []*servicetest.Engine, listens bool) (nodes []*node.Node) {
	for i := range f.Speeds {
		n, err := node.New(node.Options{
			Engine:  engine.Config{BlockSize: blockSize, CacheBlocks: f.CacheBlocks, PrefillRate: 12_000, DecodeRate: 50, Chunked: true, Speed: f.Speeds[i]},
			Speedup: 1, NewSeed: func() uint64 { return uint64(i + 1) },
			Publisher: func() (node.Publisher, error) {
				if !listens {
					return nil, nil
				}
				return servicetest.Publisher{To: events[i]}, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// Rule places requests. Its methods are called one at a time.
type Rule interface {
	// Place returns the index of the engine for a request, or refusedRequest.
	Place(r *Request) int
	// What a gateway sees of an answer: its first token, each block of output, its end.
	Prefilled(r *Request)
	Block(r *Request)
	Ended(r *Request)
}

// refusedRequest stands for the engine of a request that is refused.
const refusedRequest = -1

// ownPrefill stands for the engine that computes a prompt if that is the one that decodes.
const ownPrefill = -1

// Request is a request under way.
type Request struct {
	*workload.Request
	Name     string   // of the reservation
	Blocks   []uint64 // sequence hashes of the prompt's blocks; nil for a rule that listens to events
	Cached   []int    // leading tokens of the prompt in each engine's cache; 0 for a rule that listens to events
	Asked    time.Time
	Target   time.Duration // within which its first token is wanted; 0: no matter when
	engine   int
	prefill  int // the engine that computes the prompt for the other one; ownPrefill: that one does
	uncached int // tokens that its engine had to compute, as they were known at its choice
}

// Outcome are the figures of a play: of what is due from a quarter of the time in which sessions begin to the end of that time,
// so that neither empty engines nor the last sessions count. Times are in seconds of model time.
type Outcome struct {
	TTFT    []float64 // from when a request is due to its first token
	TTLT    []float64 // to its last token
	TPOT    []float64 // from the first token to the last one, for each token but the first
	Session []float64 // from when a session's first request is due to its last answer, sub-agents apart
	HitRate float64   // share of the prompts' tokens that the engines found in their caches
	Work    float64   // share of the engines' time that was work, see engine.Totals
	Placed  []int     // requests of each engine
	Pairs   int       // requests whose prompt another engine has computed
	Far     int       // of these, at another place
	Seconds float64   // of the time that counts
	Refused int       // requests that were refused
	// Servable is how many of these would have got their first token within the target on one of the engines, as they really
	// were, if no other request had come.
	Servable int
}

// world is a play under way.
type world struct {
	t        *testing.T
	fleet    Fleet
	requests []workload.Request
	before   int // of the requests: the first ones, which precede the play
	target   time.Duration
	nodes    []*node.Node
	events   []*servicetest.Engine // what takes the events of each engine; nil: nobody listens
	board    *Board
	rule     Rule

	answered []chan struct{} // by request: closed when it has been answered

	from, until time.Time // what is due between these counts

	mu      sync.Mutex // guards the rule, the board and the fields below
	outcome Outcome
	prompts int                  // tokens of prompts that count
	cached  int                  // of these, found in the caches
	began   map[string]time.Time // of sessions that count
	ended   map[string]time.Time
}

// Play plays requests in a closed loop by a rule.
func Play(t *testing.T, f Fleet, requests []workload.Request, start func(w *world) Rule) Outcome {
	return PlayFor(t, f, requests, 0, 0, start)
}

// PlayFor is Play where each request wants its first token within a target. One that is refused is answered elsewhere, at the pace
// of a single engine that has nothing else to do. The first requests, so many, only precede the play.
func PlayFor(t *testing.T, f Fleet, requests []workload.Request, before int, target time.Duration, start func(w *world) Rule) Outcome {
	w := &world{
		fleet: f, requests: requests, before: before, target: target, events: make([]*servicetest.Engine, len(f.Speeds)),
		began: make(map[string]time.Time), ended: make(map[string]time.Time),
	}
	w.outcome.Placed = make([]int, len(f.Speeds))
	synctest.Test(t, func(t *testing.T) {
		w.t = t
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		w.board = newBoard(len(f.Speeds))
		w.rule = start(w)
		w.nodes = f.nodes(t, w.events, w.listens())
		for _, n := range w.nodes {
			running.Go(func() { _ = n.Run(ctx) })
		}
		synctest.Wait()
		w.run()
	})
	return w.outcome
}

// run sends all requests, each when it is due, and takes the figures.
func (w *world) run() {
	begin, last := time.Now(), time.Duration(0)
	for _, r := range w.requests {
		if len(r.After) == 0 {
			last = max(last, r.At)
		}
	}
	first := time.Duration(0)
	if w.before > 0 {
		first = w.requests[w.before].At
	}
	w.from, w.until = begin.Add(first+(last-first)/4), begin.Add(last)
	w.outcome.Seconds = w.until.Sub(w.from).Seconds()
	w.answered = make([]chan struct{}, len(w.requests))
	for i := range w.answered {
		w.answered[i] = make(chan struct{})
	}
	var sent sync.WaitGroup
	for i := range w.requests {
		r := &w.requests[i]
		sent.Go(func() {
			defer close(w.answered[r.ID-1])
			if len(r.After) == 0 {
				time.Sleep(time.Until(begin.Add(r.At)))
			} else {
				for _, id := range r.After {
					<-w.answered[id-1]
				}
				time.Sleep(r.Pause)
			}
			w.settle(r)
			w.play(&Request{Request: r, Name: fmt.Sprint(r.ID), Asked: time.Now(), Target: w.target, prefill: ownPrefill})
		})
	}
	time.Sleep(time.Until(w.from))
	before := w.work()
	time.Sleep(time.Until(w.until))
	w.outcome.Work = (w.work() - before) / w.until.Sub(w.from).Seconds() / float64(len(w.nodes))
	sent.Wait()
	w.outcome.HitRate = float64(w.cached) / float64(w.prompts)
	for name, at := range w.began {
		w.outcome.Session = append(w.outcome.Session, w.ended[name].Sub(at).Seconds())
	}
	for _, times := range [][]float64{w.outcome.TTFT, w.outcome.TTLT, w.outcome.TPOT, w.outcome.Session} {
		slices.Sort(times) // answers that end at once have no order
	}
}

// listens reports whether the rule takes the engines' events, and so needs nothing else that is known of caches.
func (w *world) listens() bool { return w.events[0] != nil }

// settle waits some nanoseconds, by the request: what happens at once has an order so, and what has happened before is known.
func (w *world) settle(r *workload.Request) { time.Sleep(time.Duration(r.ID) * time.Nanosecond) }

// work returns the engines' work so far, in seconds of all together.
func (w *world) work() (seconds float64) {
	for _, n := range w.nodes {
		seconds += n.Stats().WorkMS / 1000
	}
	return seconds
}

// play sends one request and awaits its answer.
func (w *world) play(r *Request) {
	r.Cached = make([]int, len(w.nodes))
	if !w.listens() {
		r.Blocks = servicetest.Sequence(r.Prompt, blockSize)
		for i, n := range w.nodes {
			r.Cached[i] = n.Cached(engine.Keys{}, r.Prompt)
		}
	}
	w.mu.Lock()
	counts := !r.Asked.Before(w.from) && r.Asked.Before(w.until)
	if counts && r.Session != "" && (len(r.After) == 0 || w.requests[r.After[0]-1].Session != r.Session) {
		w.began[r.Session] = r.Asked
	}
	if r.engine = w.rule.Place(r); r.engine == refusedRequest {
		if counts {
			w.judge(r)
		}
		w.mu.Unlock()
		w.elsewhere(r)
		return
	}
	r.uncached = len(r.Prompt) - r.Cached[r.engine]
	w.board.placed(r)
	w.outcome.Placed[r.engine]++
	w.mu.Unlock()
	ask := simapi.GenerateRequest{RequestID: r.Name, TokenIDs: r.Prompt, OutputTokenIDs: r.Output}
	if r.prefill != ownPrefill {
		ask.Transfer = w.prefillElsewhere(r, counts)
	}
	steps, err := w.nodes[r.engine].Generate(ask)
	if err != nil {
		w.t.Error(err)
		return
	}
	var first time.Time
	for s := range steps {
		w.settle(r.Request)
		w.mu.Lock()
		switch s.Event {
		case simapi.EventFirstToken:
			first = time.Now()
			if counts {
				w.outcome.TTFT = append(w.outcome.TTFT, time.Since(r.Asked).Seconds())
			}
			if counts && r.prefill == ownPrefill {
				w.prompts, w.cached = w.prompts+len(r.Prompt), w.cached+s.CachedTokens
			}
			w.board.prefilled(r)
			w.rule.Prefilled(r)
		case simapi.EventBlock:
			w.rule.Block(r)
		case simapi.EventDone:
			if counts {
				w.outcome.TTLT = append(w.outcome.TTLT, time.Since(r.Asked).Seconds())
				if n := len(r.Output); n > 1 {
					w.outcome.TPOT = append(w.outcome.TPOT, time.Since(first).Seconds()/float64(n-1))
				}
			}
			if r.Session != "" {
				w.ended[r.Session] = time.Now()
			}
			w.board.ended(r)
			w.rule.Ended(r)
		case simapi.EventError:
			w.t.Error(s.Error)
		}
		w.mu.Unlock()
	}
}

// judge counts a refused request, and whether an engine would have served it in time if no other request had come. It needs w.mu.
func (w *world) judge(r *Request) {
	w.outcome.Refused++
	for _, n := range w.nodes {
		_, servable, err := n.FirstTokenBy(simapi.GenerateRequest{RequestID: r.Name, TokenIDs: r.Prompt, OutputTokenIDs: r.Output}, r.Target)
		if err != nil {
			w.t.Error(err)
		}
		if servable {
			w.outcome.Servable++
			return
		}
	}
}

// elsewhere awaits the answer of a refused request.
func (w *world) elsewhere(r *Request) {
	time.Sleep(time.Duration(len(r.Output)) * 20 * time.Millisecond)
	w.settle(r.Request)
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Session != "" {
		w.ended[r.Session] = time.Now()
	}
}

// Board has what a gateway counts of the requests that it has placed, for the rules of other gateways.
type Board struct {
	Engines []Load
	Random  *rand.Rand
}

// Load is what an engine has to do.
type Load struct {
	Requests int            // under way
	Prompts  int            // tokens of their prompts
	Prefill  int            // tokens to compute of those that have no first token yet
	Blocks   map[uint64]int // blocks of their prompts, with the number of requests that have each
}

func newBoard(engines int) *Board {
	b := &Board{Engines: make([]Load, engines), Random: rand.New(rand.NewPCG(1, 0x90a2d))}
	for i := range b.Engines {
		b.Engines[i].Blocks = make(map[uint64]int)
	}
	return b
}

func (b *Board) placed(r *Request) {
	l := &b.Engines[r.engine]
	l.Requests++
	l.Prompts += len(r.Prompt)
	l.Prefill += r.uncached
	for _, x := range r.Blocks {
		l.Blocks[x]++
	}
}

func (b *Board) prefilled(r *Request) { b.Engines[r.engine].Prefill -= r.uncached }

func (b *Board) ended(r *Request) {
	l := &b.Engines[r.engine]
	l.Requests--
	l.Prompts -= len(r.Prompt)
	for _, x := range r.Blocks {
		if l.Blocks[x]--; l.Blocks[x] == 0 {
			delete(l.Blocks, x)
		}
	}
}

// least returns the engine of some with the least value, at random among equals. some nil: of all.
func (b *Board) least(some []int, value func(i int) float64) int {
	if some == nil {
		for i := range b.Engines {
			some = append(some, i)
		}
	}
	var best []int
	for _, i := range some {
		switch {
		case len(best) == 0 || value(i) < value(best[0]):
			best = append(best[:0], i)
		case value(i) == value(best[0]):
			best = append(best, i)
		}
	}
	return best[b.Random.IntN(len(best))]
}

// requests is the number of requests of an engine, for least.
func (b *Board) requests(i int) float64 { return float64(b.Engines[i].Requests) }

// byBoard is a rule that needs nothing but the board.
type byBoard func(b *Board, r *Request) int

func (bb byBoard) start(w *world) Rule { return boardRule{w.board, bb} }

type boardRule struct {
	board *Board
	place byBoard
}

func (r boardRule) Place(q *Request) int { return r.place(r.board, q) }
func (boardRule) Prefilled(*Request)     {}
func (boardRule) Block(*Request)         {}
func (boardRule) Ended(*Request)         {}

// tail returns the 99th percentile of samples.
func tail(xs []float64) float64 { return stats.Quantile(xs, 0.99) }
