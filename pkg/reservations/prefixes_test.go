package reservations

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/select-service/select-service/test/helpers/length"
)

// check returns what is wrong with the tree.
func (p *prefixes) check() error {
	placed, ends := 0, make(map[uint32]int)
	mixedSeen := make(map[uint64]bool)
	for id := range p.nodes {
		nd := &p.nodes[id]
		if id == 0 || nd.n == 0 {
			continue
		}
		ends[nd.parent]++
		if nd.n == 0 || nd.first == 0 {
			return fmt.Errorf("node %d has no blocks", id)
		}
		n, mixed, last, before := uint32(0), uint32(0), uint32(0), chunkHashes
		for chunk := nd.first; chunk != 0; chunk = p.next(chunk) {
			if p.nodeOf(chunk) != uint32(id) {
				return fmt.Errorf("chunk %d of node %d says %d", chunk, id, p.nodeOf(chunk))
			}
			for i, hash := range p.hashesOf(chunk) {
				n++
				at := p.positions.find(hash, &p.chunks)
				switch row := p.mixed.find(hash); {
				case nd.none(): // detached
					if at != 0 && p.nodeOf(at>>chunkBits) == uint32(id) {
						return fmt.Errorf("hash %d of node %d, which is detached, has a position", hash, id)
					}
				case row != nil && at != 0:
					return fmt.Errorf("hash %d is mixed and has a position", hash)
				case row != nil:
					mixed++
					mixedSeen[hash] = true
				case at != positionIn(chunk, i):
					return fmt.Errorf("hash %d stands at %d, not %d", hash, positionIn(chunk, i), at)
				default:
					placed++
				}
			}
			if k := len(p.hashesOf(chunk)); k == 0 || k+before <= chunkHashes {
				return fmt.Errorf("node %d wastes a chunk", id)
			}
			before, last = len(p.hashesOf(chunk)), chunk
		}
		if n != nd.n || mixed != nd.mixed || last != nd.last {
			return fmt.Errorf("node %d has %d blocks, %d mixed, last chunk %d: %+v", id, n, mixed, last, nd)
		}
		switch got := p.child(nd.parent, p.hashesOf(nd.first)[0]); {
		case !nd.none() && got != uint32(id):
			return fmt.Errorf("node %d is found as %d", id, got)
		case nd.none() && (got == uint32(id) || nd.ends == 0 && nd.children == 0):
			return fmt.Errorf("node %d without owners is found, or nothing needs it", id)
		}
	}
	for id := range p.nodes {
		if int(p.nodes[id].children) != ends[uint32(id)] {
			return fmt.Errorf("node %d has %d children, not %d", id, ends[uint32(id)], p.nodes[id].children)
		}
	}
	if placed != p.positions.live || len(mixedSeen) != p.mixed.live {
		return fmt.Errorf("%d positions for %d blocks, %d mixed for %d", p.positions.live, placed, p.mixed.live, len(mixedSeen))
	}
	return nil
}

// held is a prompt on a slot, as the naive model of TestPrefixes has it.
type held struct {
	hashes []uint64
	slot   uint32
	tail   uint32
}

// pinned is the beginning of a prompt that is pinned.
type pinned struct {
	hashes, local []uint64
	tail          uint32
}

// prefixesRun plays a random history on a tree and on a list of prompts.
type prefixesRun struct {
	rnd     *rand.Rand
	b       prefixes
	live    []held
	pinned  []pinned
	deficit map[[2]uint64]uint32 // by slot and hash, of those that have one
	blocks  map[uint32]uint64    // what the tree says that each slot holds
	sum     map[uint32]uint64    // of deficits, likewise
}

// prompt draws a list of up to some chunks. Most are chains that share their beginning with
// others; the rest are what no chain can be: parts of chains, joined, turned or with repeats.
func (r *prefixesRun) prompt() []uint64 {
	chain := func() []uint64 {
		out := make([]uint64, r.rnd.IntN(4*chunkHashes))
		fork := r.rnd.IntN(4 * chunkHashes)
		family, branch := r.rnd.Uint64N(2), 1+r.rnd.Uint64N(3)
		for i := range out {
			out[i] = family<<32 | uint64(i)
			if i >= fork {
				out[i] |= branch<<60 | uint64(fork)<<40
			}
		}
		return out
	}
	out := chain()
	switch n := len(out); r.rnd.IntN(12) {
	case 0:
		out = append(out[n/2:], chain()...)
	case 1:
		out = append(out, out[n/3:]...)
	case 2:
		slices.Reverse(out)
	case 3:
		if n > 1 {
			out[n/2] = out[r.rnd.IntN(n)]
		}
	case 4:
		if len(r.live) > 0 {
			out = append(out, r.live[r.rnd.IntN(len(r.live))].hashes...)
		}
	}
	return out
}

// prepare is prefixes.prepare from the root, or from a place on the prompt's way.
func (r *prefixesRun) prepare(hashes []uint64) preparedPrompt {
	m := r.b.walk(match{}, hashes)
	if m.n > 0 {
		from := r.b.at(m, 1+r.rnd.IntN(m.n))
		if again := r.b.walk(from, hashes[from.n:]); again != m {
			panic("a walk from the middle ends elsewhere")
		}
	}
	return r.b.prepare(m, hashes[m.n:])
}

func (r *prefixesRun) hold(t *testing.T) {
	hashes, slot := r.prompt(), []uint32{0, 1, 2, 3, 64, 130}[r.rnd.IntN(6)]
	before := r.b.blocks
	if r.rnd.IntN(4) == 0 {
		r.b.drop(r.prepare(hashes))
		r.compare(t)
	}
	x := r.prepare(hashes)
	hashes = distinct(hashes)
	tail, fresh := r.b.hold(x, slot)
	if x.blocks() != len(hashes) || before+int(x.fresh) != r.b.blocks {
		t.Fatalf("%d blocks, %d of them new, of %d, and the tree has grown by %d", x.blocks(), x.fresh, len(hashes), r.b.blocks-before)
	}
	r.live = append(r.live, held{slices.Clone(hashes), slot, tail})
	r.blocks[slot] += fresh
}

func (r *prefixesRun) release() {
	i := r.rnd.IntN(len(r.live))
	x := r.live[i]
	r.live = slices.Delete(r.live, i, i+1)
	r.b.release(x.tail, x.slot, func(n uint64, deficit uint32) {
		r.blocks[x.slot] -= n
		r.sum[x.slot] -= n * uint64(deficit)
	})
	for _, hash := range x.hashes {
		if r.holders(x.slot, hash) == 0 {
			delete(r.deficit, [2]uint64{uint64(x.slot), hash})
		}
	}
}

func (r *prefixesRun) decay() {
	x := r.live[r.rnd.IntN(len(r.live))]
	deficit := []uint32{0, 3, 5}[r.rnd.IntN(3)]
	r.b.decay(x.tail, x.slot, deficit, func(n uint64, former uint32) {
		r.sum[x.slot] += n*uint64(deficit) - n*uint64(former)
	})
	for _, hash := range x.hashes {
		if r.holders(x.slot, hash) == 1 {
			r.deficit[[2]uint64{uint64(x.slot), hash}] = deficit
		}
	}
}

// pin pins the beginning of a prompt that is active, or a part of it. A hash mostly has the same
// local hash, but callers may say what they like.
func (r *prefixesRun) pin() {
	hashes := r.prompt()
	m := r.b.walk(match{}, hashes)
	if m.n == 0 {
		return
	}
	m = r.b.at(m, 1+r.rnd.IntN(m.n))
	local := make([]uint64, len(hashes))
	for i, hash := range hashes {
		if local[i] = ^hash; r.rnd.IntN(60) == 0 {
			local[i] = r.rnd.Uint64N(2)
		}
	}
	if m = r.b.learn(m, local); m.n > 0 {
		r.pinned = append(r.pinned, pinned{hashes[:m.n], local[:m.n], r.b.pin(m)})
	}
}

func (r *prefixesRun) unpin() {
	i := r.rnd.IntN(len(r.pinned))
	r.b.unpin(r.pinned[i].tail)
	r.pinned = slices.Delete(r.pinned, i, i+1)
}

func (r *prefixesRun) holders(slot uint32, hash uint64) (n int) {
	for _, x := range r.live {
		if x.slot == slot && slices.Contains(x.hashes, hash) {
			n++
		}
	}
	return n
}

func (r *prefixesRun) compare(t *testing.T) {
	t.Helper()
	if err := r.b.check(); err != nil {
		t.Fatal(err)
	}
	blocks := make(map[uint32]map[uint64]bool)
	for _, x := range r.live {
		if got := r.b.list(r.b.end(x.tail, len(x.hashes))); !slices.Equal(got, x.hashes) {
			t.Fatalf("a prompt is %v, not %v", got, x.hashes)
		}
		if blocks[x.slot] == nil {
			blocks[x.slot] = make(map[uint64]bool)
		}
		for _, hash := range x.hashes {
			blocks[x.slot][hash] = true
		}
	}
	for _, x := range r.pinned {
		m := r.b.end(x.tail, len(x.hashes))
		if !slices.Equal(r.b.list(m), x.hashes) || !slices.Equal(r.b.appendLocals(nil, m), x.local) {
			t.Fatalf("pinned %v with %v, not %v with %v", r.b.list(m), r.b.appendLocals(nil, m), x.hashes, x.local)
		}
	}
	sum := make(map[uint32]uint64)
	for at, deficit := range r.deficit {
		sum[uint32(at[0])] += uint64(deficit)
	}
	prompt := r.prompt()
	var l leading
	if m := l.find(&r.b, prompt, 131); m != r.b.walk(match{}, prompt) {
		t.Fatalf("two walks: %v and %v", m, r.b.walk(match{}, prompt))
	}
	for slot := range uint32(131) {
		if r.blocks[slot] != uint64(len(blocks[slot])) || r.sum[slot] != sum[slot] {
			t.Fatalf("slot %d has %d blocks less %d, not %d less %d", slot, r.blocks[slot], r.sum[slot], len(blocks[slot]), sum[slot])
		}
		longest := 0
		for _, x := range r.live {
			n := 0
			for x.slot == slot && n < min(len(prompt), len(x.hashes)) && prompt[n] == x.hashes[n] {
				n++
			}
			longest = max(longest, n)
		}
		if got := l.depths.At(slot); int(got) != longest {
			t.Fatalf("slot %d shares %d, not %d", slot, got, longest)
		}
	}
}

// TestPrefixes proves that a tree of runs says the same as a list of prompts does, for random
// histories in which runs are divided and joined, also inside a chunk, and in which hashes are
// mixed and cease to be; that each prompt can be read back, and what is pinned of it also after
// its end, without any effect on what is held; that it is known before how many blocks are new; and
// that nothing is left at the end.
func TestPrefixes(t *testing.T) {
	seeds := uint64(length.Of(6, 2, 1))
	for seed := range seeds {
		r := &prefixesRun{
			rnd: rand.New(rand.NewPCG(seed, 1)), b: newPrefixes(true),
			deficit: make(map[[2]uint64]uint32), blocks: make(map[uint32]uint64), sum: make(map[uint32]uint64),
		}
		r.b.widen(131)
		for step := range 400 {
			grow := step/50%2 == 0
			if r.rnd.IntN(3) == 0 {
				r.pin()
			}
			if len(r.pinned) > 0 && r.rnd.IntN(4) == 0 {
				r.unpin()
			}
			switch n := r.rnd.IntN(10); {
			case len(r.live) == 0 || n < 3 || grow && n < 6:
				r.hold(t)
			case n < 8:
				r.release()
			default:
				r.decay()
			}
			if step%40 == 7 {
				r.b.trim(r.rnd.IntN(segments))
			}
			r.compare(t)
		}
		for len(r.live) > 0 {
			r.release()
		}
		r.compare(t)
		for len(r.pinned) > 0 {
			r.unpin()
		}
		r.compare(t)
		if len(r.b.nodes) != 1+len(r.b.freeNodes) || r.b.holders.pairs.live != 0 || !r.b.idle() {
			t.Error("something is left")
		}
	}
}
