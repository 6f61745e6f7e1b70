// Package node runs one simulated engine in scaled real time and serves it over HTTP. It has
// the clock; package engine has the model, and [Publisher] the event sockets.
package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/select-service/select-service/demo/sim/kvwire"
	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/internal/simulation/engine"
)

// ErrBusy is returned for a request id that is already running, and for clearing
// the cache while requests run.
var ErrBusy = errors.New("busy")

// ErrSpeedup is returned for a clock that would not move.
var ErrSpeedup = errors.New("bad speedup")

// ErrFactor is returned for an engine that would stand still.
var ErrFactor = errors.New("bad factor")

// Publisher sends encoded event batches in the order of the calls. It must not
// block for long: it is called under the node's lock.
type Publisher interface {
	Publish(payload []byte)
	Events() string // endpoints, as a subscriber connects to them
	Replay() string
	Subscribers() int
	Close() error
}

// Options are the options of a node.
type Options struct {
	Engine    engine.Config             // HashSeed is replaced by NewSeed's
	Speedup   float64                   // model seconds per second
	Rank      uint32                    // data parallel rank written into the events
	NewSeed   func() uint64             // called at each start, for block names
	Publisher func() (Publisher, error) // opens new sockets, at each start
}

// Node is one running engine.
type Node struct {
	opt  Options
	wake chan struct{} // has an entry when the time of the next step may have changed

	// mu guards the fields below. Publish is called under it, so that events are sent in the
	// order in which they happen.
	mu      sync.Mutex
	eng     *engine.Engine
	pub     Publisher
	speedup float64
	start   time.Time // when the model clock was 0
	callers map[string]chan simapi.Step
}

// New starts an engine; Run makes its time pass.
func New(opt Options) (*Node, error) {
	if err := opt.Engine.Validate(); err != nil {
		return nil, err
	}
	if opt.Engine.Speed == 0 {
		opt.Engine.Speed = 1
	}
	if !(opt.Speedup > 0) {
		return nil, fmt.Errorf("%w: %g is not above 0", ErrSpeedup, opt.Speedup)
	}
	n := &Node{opt: opt, wake: make(chan struct{}, 1), callers: make(map[string]chan simapi.Step)}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.bootLocked(opt.Speedup); err != nil {
		return nil, err
	}
	return n, nil
}

// Run advances model time until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	for {
		wait, some := n.advance()
		var due <-chan time.Time // nil blocks for ever
		if some {
			due = time.After(wait)
		}
		select {
		case <-ctx.Done():
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.shutLocked()
		case <-n.wake:
		case <-due:
		}
	}
}

// Reset restarts the engine with another speedup (above 0), as if its process had been
// replaced. Running requests end with an error step.
func (n *Node) Reset(speedup float64) (simapi.Info, error) {
	if !(speedup > 0) {
		return simapi.Info{}, fmt.Errorf("%w: %g is not above 0", ErrSpeedup, speedup)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.shutLocked(); err != nil {
		return simapi.Info{}, err
	}
	if err := n.bootLocked(speedup); err != nil {
		return simapi.Info{}, err
	}
	n.nudge()
	return n.infoLocked(), nil
}

// Slow makes the engine run at factor (above 0) times its configured speed from now on.
func (n *Node) Slow(factor float64) error {
	if !(factor > 0) {
		return fmt.Errorf("%w: %g is not above 0", ErrFactor, factor)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.modelNowLocked()
	n.advanceLocked(now)
	n.eng.SetSpeed(now, factor)
	n.nudge()
	return nil
}

// Generate submits a request. Its steps come through the channel, which has room for all of
// them and is closed after the last.
func (n *Node) Generate(r simapi.GenerateRequest) (<-chan simapi.Step, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.callers[r.RequestID]; ok {
		return nil, fmt.Errorf("request %s: %w: it is running", r.RequestID, ErrBusy)
	}
	now := n.modelNowLocked()
	n.advanceLocked(now)
	if err := n.eng.Submit(now, asRequest(r)); err != nil {
		return nil, err
	}
	// First token, done, an error, and one per block that the answer can fill, or per token.
	most := len(r.OutputTokenIDs)
	if !n.opt.Engine.EachToken {
		most /= n.opt.Engine.BlockSize
	}
	steps := make(chan simapi.Step, 4+most)
	n.callers[r.RequestID] = steps
	n.advanceLocked(now)
	n.nudge()
	return steps, nil
}

// ClearCache empties the cache and publishes the event.
func (n *Node) ClearCache() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.advanceLocked(n.modelNowLocked())
	events, ok := n.eng.ClearCache()
	if !ok {
		return fmt.Errorf("clear cache: %w: requests run", ErrBusy)
	}
	n.publishLocked(events)
	return nil
}

// Info describes the engine.
func (n *Node) Info() simapi.Info {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.infoLocked()
}

// Stats returns what the engine has measured.
func (n *Node) Stats() simapi.Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.modelNowLocked()
	n.advanceLocked(now)
	t := n.eng.Totals()
	return simapi.Stats{
		ModelSeconds: now.Seconds(), Requests: t.Requests, Waiting: n.eng.Waiting(), Running: n.eng.Running(),
		PromptTokens: t.PromptTokens, CachedTokens: t.CachedTokens, Received: t.Received, OutputTokens: t.OutputTokens,
		CachedBlocks: n.eng.CacheLen(), PrefillBusyMS: millis(t.PrefillBusy), WorkMS: millis(t.Work),
		TTFTMS: allMillis(t.TTFT), QueueMS: allMillis(t.Queued), TPOTMS: allMillis(t.TPOT), TotalMS: allMillis(t.Total),
	}
}

// Cached returns how many leading tokens of a prompt the engine's cache holds now.
func (n *Node) Cached(keys engine.Keys, prompt []uint32) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.advanceLocked(n.modelNowLocked())
	return n.eng.Cached(keys, prompt)
}

// Send begins to send another engine what the cache holds of its request, over a link.
func (n *Node) Send(r *simapi.FetchRequest, l engine.Link) simapi.Transfer {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.modelNowLocked()
	n.advanceLocked(now)
	tokens := n.eng.Named(r.BlockHashes)
	if len(r.BlockHashes) == 0 {
		tokens = n.eng.Cached(engine.Keys{LoRA: r.LoRA, Salt: r.Salt}, r.TokenIDs)
	}
	t := n.eng.Send(now, tokens, r.Has, l)
	return simapi.Transfer{Tokens: t.Tokens, SetupMS: millis(t.Link.Setup), PerTokenUS: 1e3 * millis(t.Link.PerToken)}
}

// FirstTokenBy returns how long a request would wait for its first token, in model time, if it came now and no other after it,
// and false if that is longer than within.
func (n *Node) FirstTokenBy(r simapi.GenerateRequest, within time.Duration) (time.Duration, bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.modelNowLocked()
	n.advanceLocked(now)
	return n.eng.FirstTokenBy(now, asRequest(r), within)
}

func asRequest(r simapi.GenerateRequest) engine.Request {
	return engine.Request{
		ID: r.RequestID, Prompt: r.TokenIDs, Output: r.OutputTokenIDs, Keys: engine.Keys{LoRA: r.LoRA, Salt: r.Salt},
		Transfer: engine.Transfer{Tokens: r.Transfer.Tokens, Link: engine.Link{
			Setup:    time.Duration(r.Transfer.SetupMS * float64(time.Millisecond)),
			PerToken: time.Duration(r.Transfer.PerTokenUS * float64(time.Microsecond)),
		}},
	}
}

// Usage is what an engine has to do.
type Usage struct {
	Running, Waiting int // requests: decoding; in the prefill queue or in prefill
	Blocks           int // of the cache that running requests hold
}

// Usage returns what the engine has to do now.
func (n *Node) Usage() Usage {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.advanceLocked(n.modelNowLocked())
	return Usage{Running: n.eng.Running(), Waiting: n.eng.Waiting(), Blocks: n.eng.Pinned()}
}

func (n *Node) bootLocked(speedup float64) error {
	pub, err := n.opt.Publisher()
	if err != nil {
		return fmt.Errorf("event sockets: %w", err)
	}
	cfg := n.opt.Engine
	cfg.HashSeed = n.opt.NewSeed()
	n.eng, n.pub, n.speedup, n.start = engine.New(cfg), pub, speedup, time.Now()
	return nil
}

func (n *Node) shutLocked() error {
	for _, steps := range n.callers {
		steps <- simapi.Step{Event: simapi.EventError, Error: "engine stopped"}
		close(steps)
	}
	n.callers = make(map[string]chan simapi.Step)
	if n.pub == nil {
		return nil // a restart has failed
	}
	err := n.pub.Close()
	n.pub = nil
	if err != nil {
		return fmt.Errorf("close event sockets: %w", err)
	}
	return nil
}

// advance processes all steps that are due. It returns the real time until the next step, and
// false if there is none.
func (n *Node) advance() (time.Duration, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.advanceLocked(n.modelNowLocked())
	next, ok := n.eng.Next()
	if !ok {
		return 0, false
	}
	return time.Duration(math.Ceil(float64(next-n.modelNowLocked()) / n.speedup)), true // rounded up: not before the step
}

func (n *Node) advanceLocked(now time.Duration) {
	for _, u := range n.eng.Advance(now) {
		n.publishLocked(u.Events) // before the caller gets the step
		if u.Request != "" {
			n.tellLocked(u)
		}
	}
}

func (n *Node) tellLocked(u engine.Update) {
	steps := n.callers[u.Request]
	s := simapi.Step{OutputTokens: u.Tokens}
	switch u.Kind {
	case engine.FirstToken:
		s.Event = simapi.EventFirstToken
		s.CachedTokens, s.QueueMS, s.TTFTMS = u.Cached, millis(u.Queued), millis(u.TTFT)
	case engine.OutputBlock:
		s.Event = simapi.EventBlock
	case engine.Done:
		s.Event, s.EngineMS = simapi.EventDone, millis(u.Engine)
	}
	steps <- s
	if u.Kind == engine.Done {
		close(steps)
		delete(n.callers, u.Request)
	}
}

func (n *Node) publishLocked(events []engine.Event) {
	if len(events) == 0 || n.pub == nil {
		return
	}
	stamp := float64(time.Now().UnixMicro()) / 1e6
	// Encoding into memory cannot fail for these events.
	if payload, err := kvwire.Batch(stamp, events, n.opt.Engine.BlockSize, n.opt.Rank); err == nil {
		n.pub.Publish(payload)
	}
}

func (n *Node) infoLocked() simapi.Info {
	c := n.opt.Engine
	info := simapi.Info{
		BlockSize: c.BlockSize, CacheBlocks: c.CacheBlocks, PrefillRate: c.PrefillRate,
		DecodeRate: c.DecodeRate, Chunked: c.Chunked, Speed: c.Speed, Speedup: n.speedup,
	}
	if n.pub != nil {
		info.KVEventsEndpoint, info.ReplayEndpoint = n.pub.Events(), n.pub.Replay()
		info.Subscribers = n.pub.Subscribers()
	}
	return info
}

func (n *Node) modelNowLocked() time.Duration {
	return time.Duration(float64(time.Since(n.start)) * n.speedup)
}

func (n *Node) nudge() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func allMillis(ds []time.Duration) []float64 {
	ms := make([]float64, len(ds))
	for i, d := range ds {
		ms[i] = millis(d)
	}
	return ms
}
