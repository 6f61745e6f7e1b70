package engine

import (
	"container/heap"
	"errors"
	"fmt"
	"time"
)

// ErrTooLong is returned for a request that could never fit into the cache.
var ErrTooLong = errors.New("request does not fit into the cache")

// ErrEmpty is returned for a request without a prompt or without an answer.
var ErrEmpty = errors.New("request needs at least one prompt token and one output token")

// Config sizes an engine. All fields are required.
type Config struct {
	BlockSize   int     // tokens per block
	CacheBlocks int     // blocks that the cache holds
	PrefillRate float64 // prompt tokens computed per second, one request at a time
	DecodeRate  float64 // output tokens per second of each request
	HashSeed    uint64  // makes block names differ between engines
}

// Validate names every field that cannot be served.
func (c Config) Validate() error {
	var errs []error
	if c.BlockSize < 1 {
		errs = append(errs, fmt.Errorf("block size: %d is below 1", c.BlockSize))
	}
	if c.CacheBlocks < 1 {
		errs = append(errs, fmt.Errorf("cache blocks: %d is below 1", c.CacheBlocks))
	}
	if !(c.PrefillRate > 0) {
		errs = append(errs, fmt.Errorf("prefill rate: %g is not above 0", c.PrefillRate))
	}
	if !(c.DecodeRate > 0) {
		errs = append(errs, fmt.Errorf("decode rate: %g is not above 0", c.DecodeRate))
	}
	return errors.Join(errs...)
}

// Request is a prompt and the answer that the model is going to give. A
// simulated model cannot make up text, so the caller brings it.
type Request struct {
	ID     string
	Prompt []uint32
	Output []uint32
}

// UpdateKind says what happened to a request.
type UpdateKind uint8

// The steps of a request that its caller hears of.
const (
	FirstToken  UpdateKind = iota // prefill is complete
	OutputBlock                   // the answer has filled another block
	Done                          // the last token is out
)

// Update is one step of one request, or only cache events (Request == "").
type Update struct {
	At      time.Duration // model time
	Request string
	Kind    UpdateKind
	Cached  int           // prompt tokens found in the cache
	Queued  time.Duration // from arrival to the start of prefill
	TTFT    time.Duration // from arrival to the first token
	Tokens  int           // output tokens so far
	Events  []Event       // changes of the cache made by this step
}

// Totals counts what the engine has done.
type Totals struct {
	Requests     int             // finished requests
	PromptTokens int             // of requests whose prefill is complete
	CachedTokens int             // those of them that the cache already held
	OutputTokens int             // of finished requests
	PrefillBusy  time.Duration   // time spent in prefill
	TTFT         []time.Duration // one per completed prefill, in order
	Queued       []time.Duration // same order
}

type job struct {
	Request
	arrived time.Duration
	started time.Duration
	first   time.Duration // when the first token came
	cached  int
	made    int // output tokens so far
	text    []uint32
	lease   *Lease
	next    time.Duration // when its next step is due
	order   int           // breaks ties between equal times
}

// Engine is the model of one engine. The zero value is not usable; see New.
type Engine struct {
	cfg     Config
	cache   *Cache
	queue   []*job  // waiting for prefill, first in line first
	prefill *job    // nil when idle
	running jobHeap // decoding
	now     time.Duration
	orders  int
	totals  Totals
}

// New returns an idle engine with an empty cache. cfg must be valid.
func New(cfg Config) *Engine {
	return &Engine{cfg: cfg, cache: NewCache(cfg.BlockSize, cfg.CacheBlocks, cfg.HashSeed)}
}

// Submit queues a request at model time now. The caller has advanced the engine
// to now before and advances it again to hear what follows.
func (e *Engine) Submit(now time.Duration, r Request) error {
	if len(r.Prompt) == 0 || len(r.Output) == 0 {
		return fmt.Errorf("request %s: %w", r.ID, ErrEmpty)
	}
	if n := e.cache.blocksFor(len(r.Prompt) + len(r.Output)); n > e.cfg.CacheBlocks {
		return fmt.Errorf("request %s needs %d blocks of %d: %w", r.ID, n, e.cfg.CacheBlocks, ErrTooLong)
	}
	e.orders++
	e.queue = append(e.queue, &job{Request: r, arrived: max(now, e.now), order: e.orders})
	return nil
}

// Next returns when Advance has something to do, and false when the engine is
// idle until the next Submit.
func (e *Engine) Next() (time.Duration, bool) {
	if j := e.nextJob(); j != nil {
		return j.next, true
	}
	return 0, false
}

// Advance runs the engine up to model time now and returns what happened.
func (e *Engine) Advance(now time.Duration) []Update {
	var ups []Update
	for {
		if u, ok := e.start(); ok {
			ups = append(ups, u)
		}
		j := e.nextJob()
		if j == nil || j.next > now {
			e.now = max(e.now, now)
			return ups
		}
		e.now = j.next
		ups = append(ups, e.step(j))
	}
}

// Totals returns the counters so far. The slices must not be changed.
func (e *Engine) Totals() Totals { return e.totals }

// ClearCache forgets the cache and returns the event that says so. It reports
// false, and does nothing, while requests run.
func (e *Engine) ClearCache() ([]Event, bool) {
	ok := e.cache.Clear()
	return e.cache.TakeEvents(), ok
}

// CacheLen returns the number of full blocks in the cache.
func (e *Engine) CacheLen() int { return e.cache.Len() }

// Waiting returns how many requests wait for prefill or are in it, Running how
// many are decoding.
func (e *Engine) Waiting() int {
	if e.prefill != nil {
		return len(e.queue) + 1
	}
	return len(e.queue)
}

// Running returns the number of requests that are decoding.
func (e *Engine) Running() int { return len(e.running) }

// start begins the prefill of the first request in line, if it can. It looks at
// the cache now and not at arrival, as a scheduler does. Prefill begins at the
// current model time: Advance calls start right after each step.
func (e *Engine) start() (Update, bool) {
	if e.prefill != nil || len(e.queue) == 0 {
		return Update{}, false
	}
	j := e.queue[0]
	lease, ok := e.cache.Acquire(j.Prompt, len(j.Prompt)+len(j.Output))
	if !ok {
		return Update{}, false // room comes with the end of a running request
	}
	e.queue[0] = nil
	e.queue = e.queue[1:]
	j.lease = lease
	j.cached = lease.Blocks() * e.cfg.BlockSize
	j.started = max(j.arrived, e.now)
	j.next = j.started + seconds(float64(len(j.Prompt)-j.cached)/e.cfg.PrefillRate)
	e.prefill = j
	return Update{At: j.started, Events: e.cache.TakeEvents()}, true
}

func (e *Engine) nextJob() *job {
	j := e.prefill
	if len(e.running) > 0 && (j == nil || e.running[0].before(j)) {
		j = e.running[0]
	}
	return j
}

func (e *Engine) step(j *job) Update {
	if j == e.prefill {
		return e.firstToken(j)
	}
	heap.Pop(&e.running)
	return e.decode(j)
}

func (e *Engine) firstToken(j *job) Update {
	e.prefill = nil
	j.first, j.made = e.now, 1
	j.text = append(make([]uint32, 0, len(j.Prompt)+len(j.Output)), j.Prompt...)
	j.text = append(j.text, j.Output...)
	j.lease.Commit(j.text[:len(j.Prompt)])
	ttft, queued := e.now-j.arrived, j.started-j.arrived
	e.totals.PromptTokens += len(j.Prompt)
	e.totals.CachedTokens += j.cached
	e.totals.PrefillBusy += e.now - j.started
	e.totals.TTFT = append(e.totals.TTFT, ttft)
	e.totals.Queued = append(e.totals.Queued, queued)
	e.schedule(j)
	return Update{
		At: e.now, Request: j.ID, Kind: FirstToken, Cached: j.cached, Queued: queued, TTFT: ttft,
		Tokens: 1, Events: e.cache.TakeEvents(),
	}
}

// schedule sets the next moment of a decoding request at which something can be
// seen from outside: a block filled, or the end. The KV entry of an output token
// is computed when the token after it is made, so a block is full one token late.
func (e *Engine) schedule(j *job) {
	bs := e.cfg.BlockSize
	computed := len(j.Prompt) + j.made - 1
	target := min((computed/bs+1)*bs-len(j.Prompt)+1, len(j.Output))
	target = max(target, j.made)
	j.made = target
	j.next = j.first + seconds(float64(target-1)/e.cfg.DecodeRate)
	heap.Push(&e.running, j)
}

func (e *Engine) decode(j *job) Update {
	j.lease.Commit(j.text[:len(j.Prompt)+j.made-1])
	u := Update{At: e.now, Request: j.ID, Kind: OutputBlock, Tokens: j.made}
	if j.made < len(j.Output) {
		e.schedule(j)
	} else {
		u.Kind = Done
		j.lease.Release()
		e.totals.Requests++
		e.totals.OutputTokens += j.made
	}
	u.Events = e.cache.TakeEvents()
	return u
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// jobHeap orders decoding requests by the time of their next step.
type jobHeap []*job

func (j *job) before(o *job) bool {
	if j.next != o.next {
		return j.next < o.next
	}
	return j.order < o.order
}

func (h jobHeap) Len() int           { return len(h) }
func (h jobHeap) Less(a, b int) bool { return h[a].before(h[b]) }
func (h jobHeap) Swap(a, b int)      { h[a], h[b] = h[b], h[a] }
func (h *jobHeap) Push(x any)        { *h = append(*h, x.(*job)) }

func (h *jobHeap) Pop() any {
	old := *h
	j := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return j
}
