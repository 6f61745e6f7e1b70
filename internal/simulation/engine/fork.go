package engine

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// FirstTokenBy returns how long a request that came at model time now would wait for its first token if no other came after it,
// and false if that is longer than within. The engine goes on as if nobody had asked. The caller must have advanced it to now.
func (e *Engine) FirstTokenBy(now time.Duration, r Request, within time.Duration) (time.Duration, bool, error) {
	fork := e.fork()
	if err := fork.Submit(now, r); err != nil {
		return 0, false, fmt.Errorf("play ahead: %w", err)
	}
	last := len(fork.queue) - 1
	asked := fork.queue[last]
	until := now + min(within, math.MaxInt64-now)
	for due := now; due <= until; {
		fork.Advance(due)
		if asked.made > 0 {
			return asked.first - now, true, nil
		}
		next, some := fork.Next()
		if !some {
			break
		}
		due = next
	}
	return 0, false, nil
}

// fork returns an engine in the same state, which goes its own way.
func (e *Engine) fork() *Engine {
	f := *e
	blocks := e.cache.fork()
	f.cache = blocks.cache
	f.queue, f.transfers, f.received = blocks.jobs(e.queue), blocks.jobs(e.transfers), blocks.jobs(e.received)
	f.totals = Totals{}
	f.sched = e.sched.fork(&f, blocks)
	return &f
}

// forked copies what refers to a cache's blocks.
type forked struct {
	cache *Cache
}

// fork returns a copy of the cache.
func (c *Cache) fork() forked {
	f := *c
	f.events = nil
	f.blocks = make(map[uint64]*block, len(c.blocks))
	all := make([]block, 0, len(c.blocks)) // does not grow
	for hash, b := range c.blocks {
		all = append(all, block{hash: hash, refs: b.refs})
		f.blocks[hash] = &all[len(all)-1]
	}
	f.free.prev, f.free.next, f.freeLen = &f.free, &f.free, 0
	for b := c.free.next; b != &c.free; b = b.next {
		f.pushFree(f.blocks[b.hash])
	}
	return forked{&f}
}

func (f forked) job(j *job) *job {
	copied := *j
	if j.lease != nil {
		l := *j.lease
		l.cache, l.chain = f.cache, slices.Clone(l.chain)
		for i, b := range l.chain {
			l.chain[i] = f.cache.blocks[b.hash]
		}
		copied.lease = &l
	}
	return &copied
}

func (f forked) jobs(of []*job) []*job {
	copied := make([]*job, len(of))
	for i, j := range of {
		copied[i] = f.job(j)
	}
	return copied
}
