package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrTooLong is returned for a request that could never fit into the cache.
var ErrTooLong = errors.New("request does not fit into the cache")

// ErrEmpty is returned for a request without a prompt or without an answer.
var ErrEmpty = errors.New("request needs at least one prompt token and one output token")

// Config has the parameters of an engine. All fields except the last three are required.
type Config struct {
	BlockSize   int     // tokens per block
	CacheBlocks int     // blocks that the cache holds
	PrefillRate float64 // serial: prompt tokens computed per second, one request at a time
	DecodeRate  float64 // serial: output tokens per second of each request
	HashSeed    uint64  // makes block names differ between engines
	Chunked     bool    // prefill in chunks beside decoding, in steps that take stepTime
	Speed       float64 // factor of all rates; 0 is 1
	EachToken   bool    // report every output token, as a server that streams does, not every full block
}

// Validate returns an error that names every invalid field.
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
	if !(c.Speed >= 0) {
		errs = append(errs, fmt.Errorf("speed: %g is below 0", c.Speed))
	}
	return errors.Join(errs...)
}

// Request is a prompt and the answer that the model is going to give. A
// simulated model cannot make up text, so the caller brings it.
type Request struct {
	ID     string
	Prompt []uint32
	Output []uint32
	Keys   Keys // blocks are shared only with requests that have the same
	// Transfer is what another engine has computed of the prompt. A request of which an engine only computes the prompt, for
	// another one that decodes, has an answer of one token.
	Transfer Transfer
}

// UpdateKind says what happened to a request.
type UpdateKind uint8

// The steps of a request that are reported to its caller.
const (
	FirstToken  UpdateKind = iota // prefill is complete
	OutputBlock                   // the answer has filled another block, or with EachToken has another token
	Done                          // the last token has been generated
)

// Update is one step of one request, or only cache events (Request == "").
type Update struct {
	At      time.Duration // model time
	Request string
	Kind    UpdateKind
	Cached  int           // prompt tokens found in the cache
	Queued  time.Duration // from arrival to the start of prefill, the transfer from another engine included
	TTFT    time.Duration // from arrival to the first token
	Tokens  int           // output tokens so far
	Engine  time.Duration // Done: the engine's time that the request took, its part of each step
	Events  []Event       // changes of the cache made by this step
}

// Totals has the counters of an engine.
type Totals struct {
	Requests     int           // finished requests
	PromptTokens int           // of requests whose prefill is complete
	CachedTokens int           // prompt tokens that the cache already held
	Received     int           // prompt tokens that came from other engines
	OutputTokens int           // of finished requests
	PrefillBusy  time.Duration // time in which prompt tokens were computed
	// Work is the time of steps beyond what each takes whatever it computes (chunked). It is nearly all of the time of an engine
	// that bears no more, and little of one whose few answers take a step for each token.
	Work   time.Duration
	TTFT   []time.Duration // one per completed prefill, in order
	Queued []time.Duration // same order
	TPOT   []time.Duration // time per output token after the first, one per finished request with at least two
	Total  []time.Duration // from arrival to the last token, one per finished request
}

type job struct {
	Request
	arrived time.Duration
	started time.Duration // when it left the queue
	first   time.Duration // when the first token came
	cached  int
	// Of a transfer: the tokens, and when it ends.
	received int
	arrives  time.Duration
	took     time.Duration // of the engine's time
	made     int           // output tokens so far
	text     []uint32
	lease    *Lease
}

// scheduler decides which requests an engine computes at the same time. It plans in work and
// takes requests from the engine's queue.
type scheduler interface {
	// begin starts what can start now. Its updates have only cache events.
	begin() []Update
	// next returns when the next step ends, and false when nothing runs.
	next() (work, bool)
	// step ends the step that is due now.
	step() []Update
	// prefilling and decoding count requests that have left the queue.
	prefilling() int
	decoding() int
	// fork returns the same for an engine that goes its own way.
	fork(e *Engine, f forked) scheduler
}

// Engine is the model of one engine. The zero value is not usable; see New.
type Engine struct {
	cfg   Config
	cache *Cache
	clock clock
	queue []*job // waiting, first in line first
	// Requests with a transfer have left the queue: those under way, the next to end first, and those that it has ended for.
	transfers, received []*job
	sends               time.Duration // until when caches are sent

	sched  scheduler
	now    time.Duration
	totals Totals
}

// New returns an idle engine with an empty cache. cfg must be valid.
func New(cfg Config) *Engine {
	if cfg.Speed == 0 {
		cfg.Speed = 1
	}
	e := &Engine{cfg: cfg, cache: NewCache(cfg.BlockSize, cfg.CacheBlocks, cfg.HashSeed), clock: clock{speed: cfg.Speed}}
	if cfg.Chunked {
		e.sched = &chunked{e: e}
	} else {
		e.sched = &serial{e: e}
	}
	return e
}

// SetSpeed makes the engine run at factor times its configured speed from model time now
// on; factor is above 0. Running requests go on, slower or faster. The caller must have
// advanced the engine to now.
func (e *Engine) SetSpeed(now time.Duration, factor float64) {
	e.clock.setSpeed(max(now, e.now), e.cfg.Speed*factor)
}

// Submit queues a request at model time now. The caller must have advanced the engine to now,
// and must advance it again to get the request's updates.
func (e *Engine) Submit(now time.Duration, r Request) error {
	if len(r.Prompt) == 0 || len(r.Output) == 0 {
		return fmt.Errorf("request %s: %w", r.ID, ErrEmpty)
	}
	if n := e.cache.blocksFor(len(r.Prompt) + len(r.Output)); n > e.cfg.CacheBlocks {
		return fmt.Errorf("request %s needs %d blocks of %d: %w", r.ID, n, e.cfg.CacheBlocks, ErrTooLong)
	}
	e.queue = append(e.queue, &job{Request: r, arrived: max(now, e.now)})
	return nil
}

// Next returns the model time at which Advance next has something to do, and false if the
// engine is idle until the next Submit.
func (e *Engine) Next() (time.Duration, bool) {
	due, some := e.arriving()
	if step, running := e.nextStep(); running && (!some || step <= due) {
		return step, true
	}
	return due, some
}

// nextStep returns when the next step ends, and false if none runs.
func (e *Engine) nextStep() (time.Duration, bool) {
	if w, ok := e.sched.next(); ok {
		return e.clock.modelAt(w), true
	}
	return 0, false
}

// Advance runs the engine up to model time now and returns what happened.
func (e *Engine) Advance(now time.Duration) []Update {
	var ups []Update
	for {
		ups = append(ups, e.sched.begin()...)
		if events := e.cache.TakeEvents(); len(events) > 0 {
			ups = append(ups, Update{At: e.now, Events: events}) // a transfer has begun
		}
		due, some := e.Next()
		if !some || due > now {
			e.now = max(e.now, now)
			return ups
		}
		e.now = max(e.now, due)
		if step, running := e.nextStep(); running && step <= due {
			ups = append(ups, e.sched.step()...)
		} else {
			e.receive()
		}
	}
}

// Totals returns the counters so far. The slices must not be changed.
func (e *Engine) Totals() Totals { return e.totals }

// ClearCache empties the cache and returns the event about it. While requests run it does
// nothing and returns false.
func (e *Engine) ClearCache() ([]Event, bool) {
	ok := e.cache.Clear()
	return e.cache.TakeEvents(), ok
}

// Cached returns how many leading tokens of a prompt the cache holds now.
func (e *Engine) Cached(keys Keys, prompt []uint32) int {
	return len(e.cache.match(keys, prompt)) * e.cfg.BlockSize
}

// Named returns how many leading tokens of a prompt the blocks with these hashes have, the first of which are in the cache now.
func (e *Engine) Named(hashes []uint64) (tokens int) {
	for _, hash := range hashes {
		if e.cache.blocks[hash] == nil {
			break
		}
		tokens += e.cfg.BlockSize
	}
	return tokens
}

// CacheLen returns the number of full blocks in the cache.
func (e *Engine) CacheLen() int { return e.cache.Len() }

// Pinned returns the number of blocks that running requests hold.
func (e *Engine) Pinned() int { return e.cache.Pinned() }

// Waiting returns how many requests wait for prefill or a transfer, or are in it.
func (e *Engine) Waiting() int {
	return len(e.queue) + len(e.transfers) + len(e.received) + e.sched.prefilling()
}

// Running returns the number of requests that are decoding.
func (e *Engine) Running() int { return e.sched.decoding() }

// ready returns when the next request can leave the queue, if there is room, and false if none waits.
func (e *Engine) ready() (time.Duration, bool) {
	switch {
	case len(e.received) > 0:
		return e.now, true
	case len(e.queue) > 0:
		return max(e.now, e.queue[0].arrived), true
	}
	return 0, false
}

// admit takes the next request to compute at model time at: one whose transfer has ended, or the first in line, if there is room
// for its blocks. Like a real scheduler it looks up the cache then, not at arrival.
func (e *Engine) admit(at time.Duration) (*job, bool) {
	if len(e.received) > 0 {
		j := e.received[0]
		e.received = slices.Delete(e.received, 0, 1)
		j.started = at
		return j, true
	}
	for len(e.queue) > 0 && e.queue[0].arrived <= at {
		j := e.queue[0]
		lease, ok := e.cache.Acquire(j.Keys, j.Prompt, len(j.Prompt)+len(j.Output))
		if !ok {
			break // there will be room when a running request ends
		}
		e.queue[0] = nil
		e.queue = e.queue[1:]
		j.lease, j.started, j.cached = lease, at, lease.Blocks()*e.cfg.BlockSize
		if !e.pull(j, at) {
			return j, true
		}
	}
	return nil, false
}

// known returns how many tokens of the prompt need not be computed.
func (j *job) known() int { return j.cached + j.received }

// firstToken ends the prefill of a request now.
func (e *Engine) firstToken(j *job) Update {
	j.first, j.made = e.now, 1
	j.text = append(make([]uint32, 0, len(j.Prompt)+len(j.Output)), j.Prompt...)
	j.text = append(j.text, j.Output...)
	j.lease.Commit(j.text[:len(j.Prompt)])
	ttft, queued := e.now-j.arrived, j.started-j.arrived
	e.totals.PromptTokens += len(j.Prompt)
	e.totals.CachedTokens += j.cached
	e.totals.Received += j.received
	e.totals.TTFT = append(e.totals.TTFT, ttft)
	e.totals.Queued = append(e.totals.Queued, queued)
	return Update{
		At: e.now, Request: j.ID, Kind: FirstToken, Cached: j.cached, Queued: queued, TTFT: ttft,
		Tokens: 1, Events: e.cache.TakeEvents(),
	}
}

// visible returns how many output tokens a request has generated when it next has a visible
// change: a filled block, or the end; with EachToken, the next token. The KV entry of an output token is computed when the next
// token is, so a block is full one token late.
func (e *Engine) visible(j *job) int {
	if e.cfg.EachToken {
		return min(j.made+1, len(j.Output))
	}
	bs := e.cfg.BlockSize
	computed := len(j.Prompt) + j.made - 1
	return max(min((computed/bs+1)*bs-len(j.Prompt)+1, len(j.Output)), j.made)
}

// progress returns the update for a request that has now generated j.made tokens: a block, or
// the end.
func (e *Engine) progress(j *job) Update {
	j.lease.Commit(j.text[:len(j.Prompt)+j.made-1])
	u := Update{At: e.now, Request: j.ID, Kind: OutputBlock, Tokens: j.made}
	if j.made == len(j.Output) {
		u.Kind, u.Engine = Done, j.took
		j.lease.Release()
		e.totals.Requests++
		e.totals.OutputTokens += j.made
		e.totals.Total = append(e.totals.Total, e.now-j.arrived)
		if j.made > 1 {
			e.totals.TPOT = append(e.totals.TPOT, (e.now-j.first)/time.Duration(j.made-1))
		}
	}
	u.Events = e.cache.TakeEvents()
	return u
}
