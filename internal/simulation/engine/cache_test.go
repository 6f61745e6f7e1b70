package engine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/test/helpers/length"
)

const (
	testBlock    = 4
	testCapacity = 24
)

// modelCache is the dumbest cache that can be right: it knows every cached
// prefix as text and looks at all of them for every decision.
type modelCache struct {
	prefixes map[string]*modelBlock
	room     int // promised and empty
	clock    int
}

type modelBlock struct {
	pins     int
	released int // order of the last release
}

type modelLease struct {
	prompt []uint32
	total  int
	held   int // blocks
}

func key(tokens []uint32) string { return fmt.Sprint(tokens) }

func (m *modelCache) acquire(prompt []uint32, total int) (*modelLease, []string, bool) {
	l := &modelLease{prompt: prompt, total: total}
	for (l.held+1)*testBlock < len(prompt) && m.prefixes[key(prompt[:(l.held+1)*testBlock])] != nil {
		l.held++
	}
	before := m.clone()
	for i := range l.held {
		m.prefixes[key(prompt[:(i+1)*testBlock])].pins++
	}
	m.room += (total+testBlock-1)/testBlock - l.held
	var gone []string
	for len(m.prefixes)+m.room > testCapacity {
		victim := m.victim()
		if victim == "" {
			*m = before
			return nil, nil, false
		}
		delete(m.prefixes, victim)
		gone = append(gone, victim)
	}
	return l, gone, true
}

// victim is the unpinned prefix that was released first.
func (m *modelCache) victim() string {
	best := ""
	for p, b := range m.prefixes {
		if b.pins == 0 && (best == "" || b.released < m.prefixes[best].released) {
			best = p
		}
	}
	return best
}

func (m *modelCache) clone() modelCache {
	c := modelCache{prefixes: map[string]*modelBlock{}, room: m.room, clock: m.clock}
	for p, b := range m.prefixes {
		copied := *b
		c.prefixes[p] = &copied
	}
	return c
}

func (m *modelCache) commit(l *modelLease, tokens []uint32) {
	for ; (l.held+1)*testBlock <= len(tokens); l.held++ {
		p := key(tokens[:(l.held+1)*testBlock])
		if m.prefixes[p] == nil {
			m.prefixes[p] = &modelBlock{}
		}
		m.prefixes[p].pins++
		m.room--
	}
}

func (m *modelCache) release(l *modelLease, tokens []uint32) {
	for i := l.held; i > 0; i-- {
		b := m.prefixes[key(tokens[:i*testBlock])]
		m.clock++
		b.pins, b.released = b.pins-1, m.clock
	}
	m.room -= (l.total+testBlock-1)/testBlock - l.held
}

// mirror is what a consumer knows of the cache: it applies events and nothing
// else, and fails on any that does not fit.
type mirror struct {
	t      *testing.T
	prefix map[uint64][]uint32 // all tokens up to the end of a block
}

func (m *mirror) apply(events []Event) {
	m.t.Helper()
	for _, ev := range events {
		switch ev.Kind {
		case BlockStored:
			m.store(ev)
		case BlockRemoved:
			for _, h := range ev.Hashes {
				if _, ok := m.prefix[h]; !ok {
					m.t.Fatalf("removed block %x is not stored", h)
				}
				for child, p := range m.prefix {
					if len(p) > len(m.prefix[h]) && slices.Equal(p[:len(m.prefix[h])], m.prefix[h]) {
						m.t.Fatalf("block %x is removed before its descendant %x", h, child)
					}
				}
				delete(m.prefix, h)
			}
		case AllBlocksCleared:
			clear(m.prefix)
		}
	}
}

func (m *mirror) store(ev Event) {
	m.t.Helper()
	var text []uint32
	if ev.HasParent {
		parent, ok := m.prefix[ev.Parent]
		if !ok {
			m.t.Fatalf("parent %x of a stored block is unknown", ev.Parent)
		}
		text = parent
	}
	if len(ev.Tokens) != len(ev.Hashes)*testBlock {
		m.t.Fatalf("%d tokens for %d blocks", len(ev.Tokens), len(ev.Hashes))
	}
	for i, h := range ev.Hashes {
		text = append(slices.Clip(text), ev.Tokens[i*testBlock:(i+1)*testBlock]...)
		if _, ok := m.prefix[h]; ok {
			m.t.Fatalf("block %x is stored twice", h)
		}
		m.prefix[h] = text
	}
}

func (m *mirror) keys() []string {
	var all []string
	for _, p := range m.prefix {
		all = append(all, key(p))
	}
	slices.Sort(all)
	return all
}

type open struct {
	lease *Lease
	model *modelLease
	text  []uint32 // prompt and answer
	done  int      // tokens computed
}

// TestCacheAgainstModel runs random histories of requests on the cache and on
// the model. It proves that both hold the same prefixes at every step, that hits
// and refusals agree, that nothing outgrows the capacity, and that the published
// events alone rebuild the contents exactly, without ever orphaning a block.
func TestCacheAgainstModel(t *testing.T) {
	for seed := range uint64(length.Of(30, 30, 6)) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			cache := NewCache(testBlock, testCapacity, seed)
			model := &modelCache{prefixes: map[string]*modelBlock{}}
			seen := &mirror{t: t, prefix: map[uint64][]uint32{}}
			var running []*open
			for range 400 {
				running = randomStep(t, rnd, cache, model, running)
				seen.apply(cache.TakeEvents())
				if diff := cmp.Diff(slices.Sorted(maps.Keys(model.prefixes)), seen.keys()); diff != "" {
					t.Fatalf("events (+) differ from the model (-):\n%s", diff)
				}
				if got, want := cache.Len(), len(model.prefixes); got != want {
					t.Fatalf("cache holds %d blocks, model %d", got, want)
				}
				if used := cache.Len() + cache.reserved; used > testCapacity {
					t.Fatalf("%d blocks used of %d", used, testCapacity)
				}
			}
		})
	}
}

// randomStep starts, continues or ends a request on both sides.
func randomStep(t *testing.T, rnd *rand.Rand, cache *Cache, model *modelCache, running []*open) []*open {
	t.Helper()
	if len(running) == 0 || rnd.IntN(3) == 0 {
		// Few token values, so that prompts share prefixes by chance.
		text := make([]uint32, 2+rnd.IntN(8*testBlock))
		for i := range text {
			text[i] = uint32(rnd.IntN(8) / 7)
		}
		prompt := text[:1+rnd.IntN(len(text)-1)]
		lease, ok := cache.Acquire(Keys{}, prompt, len(text))
		want, _, wantOK := model.acquire(prompt, len(text))
		if ok != wantOK {
			t.Fatalf("acquire: %v, model says %v", ok, wantOK)
		}
		if !ok {
			return running
		}
		if lease.Blocks() != want.held {
			t.Fatalf("%d blocks hit, model says %d", lease.Blocks(), want.held)
		}
		if lease.Blocks()*testBlock >= len(prompt) {
			t.Fatalf("a prompt of %d tokens hits %d blocks: nothing is left to compute", len(prompt), lease.Blocks())
		}
		return append(running, &open{lease: lease, model: want, text: text, done: len(prompt)})
	}
	i := rnd.IntN(len(running))
	o := running[i]
	if rnd.IntN(2) == 0 {
		o.lease.Commit(o.text[:o.done])
		model.commit(o.model, o.text[:o.done])
		o.done = min(len(o.text), o.done+rnd.IntN(2*testBlock))
		return running
	}
	o.lease.Release()
	model.release(o.model, o.text)
	return slices.Delete(running, i, i+1)
}

// TestClear proves that clearing is refused while blocks are in use, and is one
// event that leaves nothing.
func TestClear(t *testing.T) {
	c := NewCache(testBlock, testCapacity, 0)
	lease, _ := c.Acquire(Keys{}, []uint32{1, 2, 3, 4, 5}, 6)
	lease.Commit([]uint32{1, 2, 3, 4, 5})
	if c.Clear() {
		t.Error("cleared under a running request")
	}
	lease.Release()
	c.TakeEvents()
	if !c.Clear() || c.Len() != 0 || c.Pinned() != 0 {
		t.Errorf("after clearing: %d blocks, %d pinned", c.Len(), c.Pinned())
	}
	if ev := c.TakeEvents(); len(ev) != 1 || ev[0].Kind != AllBlocksCleared {
		t.Errorf("events = %v", ev)
	}
	if again, ok := c.Acquire(Keys{}, []uint32{1, 2, 3, 4, 5}, 6); !ok || again.Blocks() != 0 {
		t.Errorf("a cleared cache hits %d blocks", again.Blocks())
	}
}

// TestNamesDiffer proves that engines with different seeds name equal blocks
// differently: a service must go by the tokens.
func TestNamesDiffer(t *testing.T) {
	a, b := NewCache(testBlock, 8, 1), NewCache(testBlock, 8, 2)
	tokens := []uint32{1, 2, 3, 4}
	if a.name(Keys{}, 0, false, tokens) == b.name(Keys{}, 0, false, tokens) {
		t.Error("equal names under different seeds")
	}
	if a.name(Keys{}, 0, false, tokens) == a.name(Keys{}, 0, true, tokens) {
		t.Error("no parent and a parent named 0 give equal names")
	}
}

// TestKeys proves that equal tokens under different keys are different blocks, also
// below an equal parent, and that the events say whose they are.
func TestKeys(t *testing.T) {
	c := NewCache(testBlock, 64, 1)
	prompt := tokens(0, 2*testBlock+1)
	for i, keys := range []Keys{{}, {LoRA: "a"}, {Salt: "a"}, {LoRA: "a", Salt: "a"}} {
		for _, want := range []int{0, 2} {
			lease, _ := c.Acquire(keys, prompt, len(prompt)+1)
			if lease.Blocks() != want {
				t.Errorf("%+v: %d blocks are found, want %d", keys, lease.Blocks(), want)
			}
			lease.Commit(prompt)
			lease.Release()
		}
		if ev := c.TakeEvents(); len(ev) != 1 || ev[0].Keys != keys || c.Len() != 2*(i+1) {
			t.Errorf("%+v: events %+v, %d blocks", keys, ev, c.Len())
		}
	}
}

func BenchmarkAcquireHit(b *testing.B) {
	c := NewCache(16, 4096, 1)
	prompt := make([]uint32, 8193)
	lease, _ := c.Acquire(Keys{}, prompt, len(prompt)+1)
	lease.Commit(prompt)
	lease.Release()
	b.ReportAllocs()
	for b.Loop() {
		l, _ := c.Acquire(Keys{}, prompt, len(prompt)+1)
		l.Release()
	}
}
