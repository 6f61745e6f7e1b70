package indexer_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
)

// blockPool is the part of vLLM's cache manager that decides what a prompt hits
// (v1/core/block_pool.py and kv_cache_manager.py, 0.33.0): equal blocks are not
// merged, so that a hash may have several physical blocks; each is announced when it
// is full and again when it is evicted. A freed block keeps its content until it is
// the one that was free for longest. It knows nothing of the index.
type blockPool struct {
	hash   []uint64         // by physical block; 0: not cached
	cached map[uint64][]int // physical blocks by hash, the one that is used first
	refs   []int
	free   []int // physical blocks without a user, the next to be taken first
	// stored and removed take the events.
	stored  func(parent uint64, hashes []uint64)
	removed func(hash uint64)
}

func newBlockPool(size int) *blockPool {
	p := &blockPool{hash: make([]uint64, size), refs: make([]int, size), cached: map[uint64][]int{}}
	for i := range size {
		p.free = append(p.free, i)
	}
	return p
}

// hits returns how many leading blocks of a chain of hashes are cached.
func (p *blockPool) hits(chain []uint64) int {
	for i, h := range chain {
		if len(p.cached[h]) == 0 {
			return i
		}
	}
	return len(chain)
}

// take returns a free block, without its former content.
func (p *blockPool) take() int {
	id := p.free[0]
	p.free = p.free[1:]
	if h := p.hash[id]; h != 0 {
		p.hash[id] = 0
		p.cached[h] = slices.DeleteFunc(p.cached[h], func(b int) bool { return b == id })
		p.removed(h)
	}
	p.refs[id] = 1
	return id
}

// request computes a prompt and returns its blocks, nil if there are too few. At
// least one token has to be computed, so that a prompt of full blocks never hits its
// last one. With readCache false the prompt skips reading the cache.
func (p *blockPool) request(chain []uint64, readCache bool) []int {
	hit := 0
	if readCache {
		hit = min(p.hits(chain), len(chain)-1)
	}
	var used []int
	for _, h := range chain[:hit] {
		id := p.cached[h][0]
		if p.refs[id]++; p.refs[id] == 1 {
			p.free = slices.DeleteFunc(p.free, func(b int) bool { return b == id })
		}
		used = append(used, id)
	}
	if len(p.free) < len(chain)-hit {
		p.release(used)
		return nil
	}
	parent := uint64(0)
	if hit > 0 {
		parent = chain[hit-1]
	}
	for _, h := range chain[hit:] {
		id := p.take()
		p.hash[id] = h
		p.cached[h] = append(p.cached[h], id)
		used = append(used, id)
	}
	p.stored(parent, chain[hit:])
	return used
}

// release ends a request: its blocks become free, the last one first.
func (p *blockPool) release(used []int) {
	for _, id := range slices.Backward(used) {
		if p.refs[id]--; p.refs[id] == 0 {
			p.free = append(p.free, id)
		}
	}
}

// reset drops everything cached.
func (p *blockPool) reset() {
	p.cached = map[uint64][]int{}
	clear(p.hash)
}

// engine drives a blockPool with random requests and an index with its events.
type engine struct {
	rnd     *rand.Rand
	pool    *blockPool
	running [][]int
	space   *indexer.Space
	slot    uint32
	counted bool
	overlap indexer.Overlap
	// over and under count prompts for which the index says more or less than the
	// engine.
	over, under, equal int
}

func newEngine(rnd *rand.Rand, space *indexer.Space, slot uint32, size int, counted bool) *engine {
	e := &engine{rnd: rnd, pool: newBlockPool(size), space: space, slot: slot, counted: counted}
	e.pool.stored = func(parent uint64, hashes []uint64) {
		space.Store(&indexer.Store{
			Slot: slot, Parent: parent, HasParent: parent != 0, EngineHashes: slices.Clone(hashes), Local: slices.Clone(hashes),
			Counted: e.counted,
		})
	}
	e.pool.removed = func(hash uint64) { space.Remove(slot, indexer.Device, []uint64{hash}) }
	return e
}

// prompt is a chain with few choices, so that prompts share prefixes and repeat.
func (e *engine) prompt() []uint64 {
	h := uint64(1)
	chain := make([]uint64, 1+e.rnd.IntN(8))
	for i := range chain {
		h = h*6364136223846793005 + uint64(e.rnd.IntN(5)/3) + 11
		chain[i] = h
	}
	return chain
}

func (e *engine) step() {
	switch k := e.rnd.IntN(200); {
	case k == 0:
		for _, used := range e.running {
			e.pool.release(used)
		}
		e.running = nil
		e.pool.reset()
		e.space.Clear(e.slot)
	case k < 90 && len(e.running) > 0:
		at := e.rnd.IntN(len(e.running))
		e.pool.release(e.running[at])
		e.running = slices.Delete(e.running, at, at+1)
	default:
		if used := e.pool.request(e.prompt(), e.rnd.IntN(4) > 0); used != nil {
			e.running = append(e.running, used)
		}
	}
	chain := e.prompt()
	e.space.Overlap(chain, &e.overlap)
	predicted, _, _ := e.overlap.At(e.slot)
	switch held := e.pool.hits(chain); {
	case int(predicted) > held:
		e.over++
	case int(predicted) < held:
		e.under++
	default:
		e.equal++
	}
}

// TestAgainstBlockPool proves that with counted copies the index knows what vLLM's
// block pool has after every step, while equal prompts run together, repeat, skip the
// cache and are evicted under pressure; and that without counting it knows less but
// never more.
func TestAgainstBlockPool(t *testing.T) {
	steps := 20_000 // of each of two engines, three sizes
	if testing.Short() {
		steps = 1_000
	}
	for _, counted := range []bool{true, false} {
		for _, size := range []int{12, 40, 200} {
			t.Run(fmt.Sprintf("counted=%v/size=%d", counted, size), func(t *testing.T) {
				t.Parallel()
				rnd := rand.New(rand.NewPCG(uint64(size), 3))
				space := indexer.New()
				engines := []*engine{newEngine(rnd, space, 0, size, counted), newEngine(rnd, space, 1, size, counted)}
				copies := 0
				for range steps {
					for _, e := range engines {
						e.step()
					}
					copies = max(copies, space.Stats().Copies)
				}
				if err := space.Check(); err != nil {
					t.Fatal(err)
				}
				over, under := engines[0].over+engines[1].over, engines[0].under+engines[1].under
				if over > 0 || counted != (under == 0) || counted != (copies > 0) {
					t.Errorf("%d answers too high, %d too low; up to %d further copies", over, under, copies)
				}
			})
		}
	}
}

// TestPlantedFaults proves that the comparison with vLLM's block pool finds what an index
// would do wrong with copies: each fault makes it say more or less than the engine has.
func TestPlantedFaults(t *testing.T) {
	type events struct {
		stored  func(parent uint64, hashes []uint64)
		removed func(hash uint64)
	}
	sometimes := func(e *engine) bool { return e.rnd.IntN(20) == 0 }
	for name, fault := range map[string]struct {
		plant func(e *engine, was events) // changes the events on their way to the index
		over  bool                        // it says more
		under bool
	}{
		"none": {plant: func(*engine, events) {}},
		"copies are a set": {under: true, plant: func(e *engine, _ events) {
			e.counted = false
		}},
		"a removal is lost": {over: true, plant: func(e *engine, was events) {
			e.pool.removed = func(hash uint64) {
				if !sometimes(e) {
					was.removed(hash)
				}
			}
		}},
		"a removal counts twice": {under: true, plant: func(e *engine, was events) {
			e.pool.removed = func(hash uint64) {
				was.removed(hash)
				if sometimes(e) {
					was.removed(hash)
				}
			}
		}},
		"a removal ends all copies": {under: true, plant: func(e *engine, was events) {
			e.pool.removed = func(hash uint64) {
				for range 10 {
					was.removed(hash)
				}
			}
		}},
		"a store counts twice": {over: true, plant: func(e *engine, was events) {
			e.pool.stored = func(parent uint64, hashes []uint64) {
				was.stored(parent, hashes)
				if sometimes(e) {
					was.stored(parent, hashes)
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(rand.New(rand.NewPCG(1, 5)), indexer.New(), 0, 40, true)
			fault.plant(e, events{e.pool.stored, e.pool.removed})
			for range 4_000 {
				e.step()
			}
			if fault.over != (e.over > 0) || fault.under != (e.under > 0) {
				t.Errorf("%d answers too high, %d too low", e.over, e.under)
			}
		})
	}
}

// TestProvisionalNeverOver proves that an index that has missed messages of vLLM's
// block pool, and was told so, never says more of the blocks that came later than the
// engine has: only those that it held at the gap may be ghosts, until they are
// announced or removed again.
func TestProvisionalNeverOver(t *testing.T) {
	rounds := 200
	if testing.Short() {
		rounds = 50
	}
	for round := range rounds {
		rnd := rand.New(rand.NewPCG(uint64(round), 4))
		space := indexer.New()
		e := newEngine(rnd, space, 0, 30, true)
		for range 100 {
			e.step()
		}
		deaf := indexer.New() // takes what is lost
		lost := newEngine(rnd, deaf, 0, 30, true)
		stored, removed := e.pool.stored, e.pool.removed
		e.pool.stored, e.pool.removed = lost.pool.stored, lost.pool.removed
		for range 1 + rnd.IntN(20) {
			e.step()
		}
		e.pool.stored, e.pool.removed = stored, removed
		space.MakeProvisional(0)
		// Everything is evicted: each block that was there at the gap is announced or
		// removed, or is a ghost of the gap that nothing is said of any more.
		ghosts := map[uint64]bool{}
		for _, name := range heldNames(space) {
			if len(e.pool.cached[name]) == 0 {
				ghosts[name] = true
			}
		}
		e.pool.stored = func(parent uint64, hashes []uint64) {
			for _, h := range hashes {
				delete(ghosts, h)
			}
			stored(parent, hashes)
		}
		for range 300 {
			e.step()
			for _, name := range heldNames(space) {
				if len(e.pool.cached[name]) == 0 && !ghosts[name] {
					t.Fatalf("round %d: a block is held that the engine has evicted after the gap", round)
				}
			}
		}
	}
}

// heldNames are the names of the blocks of slot 0 on the device.
func heldNames(s *indexer.Space) (names []uint64) {
	for run := range s.Walk().Runs {
		if len(run.Slots[indexer.Device]) > 0 {
			names = append(names, run.EngineHashes...)
		}
	}
	return names
}

// TestCopies holds the minimal histories in which a set of blocks and counted copies
// differ.
func TestCopies(t *testing.T) {
	const h1, h2, h3 = 11, 12, 13
	type step struct {
		store, remove []uint64
		after         uint64 // parent of store
		tier          indexer.Tier
		provisional   bool // what is held becomes provisional
		dumped        bool // store is of another replica's dump
		clear         bool
		named         bool // store is without tokens
	}
	store := func(after uint64, names ...uint64) step { return step{after: after, store: names} }
	remove := func(names ...uint64) step { return step{remove: names} }
	for _, c := range []struct {
		name          string
		steps         []step
		blocks, asSet uint32 // of the prompt h1, h2, h3 on the device
		host          uint32
	}{
		{"the last block again", []step{store(0, h1, h2), store(h1, h2), remove(h2)}, 2, 1, 0},
		{"decoding twins", []step{store(0, h1), store(h1, h2), store(h1, h2), store(h2, h3), store(h2, h3), remove(h3)}, 3, 2, 0},
		{"twins from the root", []step{store(0, h1), store(0, h1), store(h1, h2), store(h1, h2), remove(h2)}, 2, 1, 0},
		{"all twice, each removed once", []step{store(0, h1, h2), store(0, h1, h2), remove(h2), remove(h1)}, 2, 0, 0},
		{"all twice, removed twice", []step{store(0, h1, h2), store(0, h1, h2), remove(h2, h1), remove(h1), remove(h2)}, 0, 0, 0},
		{"one removal too many", []step{store(0, h1), remove(h1), remove(h1), store(0, h1)}, 1, 1, 0},
		{"a clear ends all copies", []step{store(0, h1), store(0, h1), {clear: true}, store(0, h1), remove(h1)}, 0, 0, 0},
		{"tiers are counted apart", []step{store(0, h1), store(0, h1), {store: []uint64{h1}, tier: indexer.Host}, {remove: []uint64{h1}, tier: indexer.Host}, remove(h1)}, 1, 0, 0},
		{"moved to the host", []step{store(0, h1), store(0, h1), {store: []uint64{h1}, tier: indexer.Host}, remove(h1), remove(h1)}, 0, 0, 1},
		{"provisional: a removal ends it", []step{store(0, h1), store(0, h1), {provisional: true}, remove(h1)}, 0, 0, 0},
		{"provisional: the first store replaces", []step{store(0, h1), {provisional: true}, store(0, h1), remove(h1)}, 0, 0, 0},
		{"provisional: the second store adds", []step{store(0, h1), {provisional: true}, store(0, h1), store(0, h1), remove(h1)}, 1, 0, 0},
		{"provisional: a new block is counted", []step{store(0, h1), {provisional: true}, store(h1, h2), store(h1, h2), remove(h2)}, 2, 1, 0},
		{"named without tokens: one copy", []step{store(0, h1, h2), {store: []uint64{h2}, named: true}, remove(h2)}, 1, 1, 0},
		{"provisional: a block that is named anew is not", []step{
			store(0, h1, h2), {provisional: true}, remove(h2), {store: []uint64{h2}, named: true}, store(h1, h2), remove(h2),
		}, 2, 1, 0},
		{"provisional: an orphan that is announced again is not", []step{
			store(h1, h2), {provisional: true}, store(h1, h2), store(0, h1), store(h1, h2), remove(h2),
		}, 2, 1, 0},
		{"provisional: an orphan is", []step{
			store(h1, h2), {provisional: true}, store(0, h1), store(h1, h2), remove(h2),
		}, 1, 1, 0},
		{"a dump counts nothing", []step{store(0, h1), {store: []uint64{h1}, dumped: true}, remove(h1)}, 0, 0, 0},
		{"after a dump the first store replaces", []step{{store: []uint64{h1, h2}, dumped: true}, store(0, h1), remove(h1)}, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, counted := range []bool{true, false} {
				s := indexer.New()
				for _, st := range c.steps {
					switch {
					case st.clear:
						s.Clear(0)
					case st.provisional:
						s.MakeProvisional(0)
					case st.remove != nil:
						s.Remove(0, st.tier, st.remove)
					case st.named:
						s.StoreByEngineHash(0, st.tier, st.store)
					default:
						s.Store(&indexer.Store{
							Tier: st.tier, Parent: st.after, HasParent: st.after != 0, EngineHashes: st.store, Local: st.store,
							Counted: counted && !st.dumped, Provisional: st.dumped,
						})
					}
					if err := s.Check(); err != nil {
						t.Fatal(err)
					}
				}
				var o indexer.Overlap
				s.Overlap([]uint64{h1, h2, h3}, &o)
				device, host, _ := o.At(0)
				want := c.asSet
				if counted {
					want = c.blocks
				}
				if device != want || host != c.host {
					t.Errorf("counted %v: %d blocks on the device and %d on the host, want %d and %d", counted, device, host, want, c.host)
				}
			}
		})
	}
}
