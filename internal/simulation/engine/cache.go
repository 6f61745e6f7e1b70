package engine

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// EventKind is the kind of a cache event.
type EventKind uint8

// The cache events of an engine, as vLLM names them.
const (
	BlockStored EventKind = iota
	BlockRemoved
	AllBlocksCleared
)

// Event is one change of the cache contents.
type Event struct {
	Kind      EventKind
	Hashes    []uint64 // the engine's hashes of the blocks, in chain order for stores
	Parent    uint64   // stores only: hash of the block before the first one
	HasParent bool     // false: the first block opens a prompt
	Tokens    []uint32 // stores only: the tokens of all blocks, one after the other
	Keys      Keys     // stores only: adapter and salt of the blocks
}

// Keys separate blocks of equal tokens: requests with different keys share no blocks. The zero
// value is the base model without a salt.
type Keys struct {
	LoRA string // name of the adapter
	Salt string // cache_salt of the request
}

// block is one full block of the cache. While refs is 0 it is a member of the
// free list; its parent is then still in the cache, because a chain is released
// from its end (see Lease.Release).
type block struct {
	hash       uint64
	refs       int
	prev, next *block // neighbours in the free list
}

// Cache holds the full blocks of an engine by content. A block's hash covers all tokens up to
// its end, so equal hashes mean equal prefixes.
type Cache struct {
	blockSize int
	capacity  int
	seed      uint64
	blocks    map[uint64]*block
	reserved  int   // blocks reserved for leases and not filled yet
	free      block // sentinel of the ring of unpinned blocks, next to be evicted first
	freeLen   int
	events    []Event
}

// NewCache returns an empty cache of capacity blocks of blockSize tokens. The seed makes block
// hashes differ between engines; consumers must not depend on them.
func NewCache(blockSize, capacity int, seed uint64) *Cache {
	c := &Cache{blockSize: blockSize, capacity: capacity, seed: seed, blocks: make(map[uint64]*block)}
	c.free.prev, c.free.next = &c.free, &c.free
	return c
}

// Len returns the number of full blocks in the cache.
func (c *Cache) Len() int { return len(c.blocks) }

// Pinned returns the number of blocks that running requests hold, including those reserved
// and not filled yet.
func (c *Cache) Pinned() int { return len(c.blocks) - c.freeLen + c.reserved }

// TakeEvents returns the changes since the last call, oldest first.
func (c *Cache) TakeEvents() []Event {
	ev := c.events
	c.events = nil
	return ev
}

// Lease has the blocks that one request occupies: a chain of full blocks from the start of the
// prompt, and reserved blocks that are still to be filled.
type Lease struct {
	cache *Cache
	keys  Keys
	chain []*block
	room  int
}

// Acquire pins the cached prefix of prompt and reserves blocks so that the request can grow to
// total tokens, evicting others if needed. If running requests leave too little room, it
// changes nothing and returns false. At least the last token of the prompt is left to compute.
func (c *Cache) Acquire(keys Keys, prompt []uint32, total int) (*Lease, bool) {
	need := c.blocksFor(total)
	chain := c.match(keys, prompt[:max(0, len(prompt)-1)])
	idle := 0
	for _, b := range chain {
		if b.refs == 0 {
			idle++
		}
	}
	fresh := need - len(chain)
	evict := fresh - (c.capacity - len(c.blocks) - c.reserved)
	if evict > c.freeLen-idle {
		return nil, false
	}
	for _, b := range chain {
		c.pin(b)
	}
	c.evict(evict)
	c.reserved += fresh
	return &Lease{cache: c, keys: keys, chain: chain, room: fresh}, true
}

// Clear drops all blocks if no request runs, as a reset of the prefix cache does. It
// reports whether it did.
func (c *Cache) Clear() bool {
	if c.Pinned() > 0 {
		return false
	}
	clear(c.blocks)
	c.free.prev, c.free.next = &c.free, &c.free
	c.freeLen = 0
	c.events = append(c.events, Event{Kind: AllBlocksCleared})
	return true
}

// Blocks returns the number of full blocks that the lease holds.
func (l *Lease) Blocks() int { return len(l.chain) }

// Commit adds the full blocks of tokens that the lease does not have yet. tokens is everything
// computed so far, from the start of the prompt. Blocks that another request has added
// meanwhile are shared.
func (l *Lease) Commit(tokens []uint32) {
	c, bs := l.cache, l.cache.blockSize
	var run *Event // the store event being extended; nil after a shared block
	for i := len(l.chain); (i+1)*bs <= len(tokens); i++ {
		parent, hasParent := l.last()
		span := tokens[i*bs : (i+1)*bs]
		hash := c.name(l.keys, parent, hasParent, span)
		b, shared := c.blocks[hash]
		if shared {
			c.pin(b)
			run = nil
		} else {
			b = &block{hash: hash, refs: 1}
			c.blocks[hash] = b
			if run == nil {
				c.events = append(c.events, Event{Kind: BlockStored, Parent: parent, HasParent: hasParent, Keys: l.keys})
				run = &c.events[len(c.events)-1]
			}
			run.Hashes = append(run.Hashes, hash)
			run.Tokens = append(run.Tokens, span...)
		}
		l.chain = append(l.chain, b)
		l.room--
		c.reserved--
	}
}

// Release releases all blocks. The chain joins the free list from its end, so that eviction
// always takes leaves first: a parent is released no earlier than its children.
func (l *Lease) Release() {
	c := l.cache
	for i := len(l.chain) - 1; i >= 0; i-- {
		if b := l.chain[i]; b.refs > 1 {
			b.refs--
		} else {
			b.refs = 0
			c.pushFree(b)
		}
	}
	c.reserved -= l.room
	l.chain, l.room = nil, 0
}

func (l *Lease) last() (hash uint64, ok bool) {
	if len(l.chain) == 0 {
		return 0, false
	}
	return l.chain[len(l.chain)-1].hash, true
}

func (c *Cache) blocksFor(tokens int) int { return (tokens + c.blockSize - 1) / c.blockSize }

// match returns the cached blocks that tokens start with.
func (c *Cache) match(keys Keys, tokens []uint32) []*block {
	var chain []*block
	var parent uint64
	for bs := c.blockSize; len(tokens) >= bs; tokens = tokens[bs:] {
		parent = c.name(keys, parent, len(chain) > 0, tokens[:bs])
		b, ok := c.blocks[parent]
		if !ok {
			break
		}
		chain = append(chain, b)
	}
	return chain
}

// name returns the hash of a block with its parent. Real engines use SHA-256 or a hash of their
// runtime; 64 good bits are enough for a simulation.
func (c *Cache) name(keys Keys, parent uint64, hasParent bool, tokens []uint32) uint64 {
	buf := make([]byte, 0, 9+4*64)
	buf = binary.LittleEndian.AppendUint64(buf, parent)
	if hasParent {
		buf = append(buf, 1)
	} else {
		buf = append(buf, 0)
		buf = append(append(append(append(buf, keys.LoRA...), 0), keys.Salt...), 0)
	}
	for _, t := range tokens {
		buf = binary.LittleEndian.AppendUint32(buf, t)
	}
	return xxh3.HashSeed(buf, c.seed)
}

func (c *Cache) evict(n int) {
	if n <= 0 {
		return
	}
	gone := make([]uint64, 0, n)
	for range n {
		b := c.free.next
		c.dropFree(b)
		delete(c.blocks, b.hash)
		gone = append(gone, b.hash)
	}
	c.events = append(c.events, Event{Kind: BlockRemoved, Hashes: gone})
}

func (c *Cache) pin(b *block) {
	if b.refs == 0 {
		c.dropFree(b)
	}
	b.refs++
}

func (c *Cache) pushFree(b *block) {
	last := c.free.prev
	b.prev, b.next = last, &c.free
	last.next, c.free.prev = b, b
	c.freeLen++
}

func (c *Cache) dropFree(b *block) {
	b.prev.next, b.next.prev = b.next, b.prev
	b.prev, b.next = nil, nil
	c.freeLen--
}
