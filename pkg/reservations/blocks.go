package reservations

import (
	"math/bits"
	"math/rand/v2"
	"sync"

	"github.com/select-service/select-service/internal/hashset"
)

// blocks holds the active prompt blocks of a scope. They are counted by their
// hash, but what a prompt shares with a rank is a leading run: a block matches
// only after the same predecessors. Because a sequence hash stands for its whole
// chain, a hash normally lies on one path only, and its row in byHash has the code
// of that path.
//
// Clients may send sequences that no chain can produce, with one hash on several
// paths. Such a hash is marked as mixed, and its paths are counted in byPath as
// well, until no reservation holds it any more.
type blocks struct {
	byHash holders // extra: code of the only path, or mixed
	byPath holders // by path code; extra unused
	// pathFactor, random and odd, makes path codes, so that clients cannot make paths
	// collide.
	pathFactor uint64
	// sink keeps the compiler from removing the reads of lookAhead.
	sink uint32
}

// mixed is not the code of any path.
const mixed = 0

// rootPath starts every path.
const rootPath = 1

// extend returns the code of a path continued by a block. sum is the block's hash in
// byHash.table, which no client knows. As for sequence hashes, equal 64 bits are taken
// to mean equal paths.
func (b *blocks) extend(path, sum uint64) uint64 {
	hi, lo := bits.Mul64(path^sum, b.pathFactor)
	return hi ^ lo | 1
}

func newBlocks() blocks {
	return blocks{byHash: newHolders(), byPath: newHolders(), pathFactor: rand.Uint64() | 1}
}

// holdChain is hold for the blocks of a prompt up to the first hash that lies on
// another path too, or repeats within the prompt. It returns how many blocks were
// held and how many of them are new on slot.
func (b *blocks) holdChain(hashes []uint64, slot uint32) (held int, fresh uint64) {
	path := uint64(rootPath)
	var sums [ahead]uint64
	for i, hash := range hashes {
		if i%ahead == 0 {
			b.sink += b.byHash.table.lookAhead(hashes[i:min(i+ahead, len(hashes))], &sums)
		}
		sum := sums[i%ahead]
		path = b.extend(path, sum)
		e, found := b.byHash.table.putAt(hash, sum)
		switch {
		case !found:
			e.extra, e.a, e.b = path, slot, 1
			fresh++
		case e.extra != path:
			return i, fresh
		case b.byHash.holdFound(e, slot):
			fresh++
		}
	}
	return len(hashes), fresh
}

// hold adds one holder of the block that follows path on slot. It returns the path that
// ends with the block, and whether the block is new on slot.
func (b *blocks) hold(hash, path uint64, slot uint32) (next uint64, fresh bool) {
	sum := b.byHash.table.key.Sum(hash)
	path = b.extend(path, sum)
	e, found := b.byHash.table.putAt(hash, sum)
	if !found {
		e.extra, e.a, e.b = path, slot, 1
		return path, true
	}
	if e.extra != path {
		if e.extra != mixed {
			b.split(e)
		}
		b.byPath.hold(path, slot)
	}
	return path, b.byHash.holdFound(e, slot)
}

// split marks a block as mixed and counts its holders so far by path too.
func (b *blocks) split(e *blockRow) {
	b.byHash.each(e, func(slot, holders uint32) {
		for range holders {
			b.byPath.hold(e.extra, slot)
		}
	})
	e.extra = mixed
}

// release removes one holder on slot from each of the leading blocks of a prompt, which
// must be held there. last is called for each block that slot no longer holds, with the
// block's deficit.
func (b *blocks) release(hashes []uint64, slot uint32, last func(deficit uint32)) {
	path := uint64(rootPath)
	var sums [ahead]uint64
	for n, hash := range hashes {
		if n%ahead == 0 {
			b.sink += b.byHash.table.lookAhead(hashes[n:min(n+ahead, len(hashes))], &sums)
		}
		sum := sums[n%ahead]
		path = b.extend(path, sum)
		s, i := b.byHash.table.locateAt(hash, sum)
		e := &s.rows[i]
		switch {
		case e.extra == mixed:
			b.byPath.release(b.byPath.table.find(path), slot)
		case e.a == slot && e.b == 1: // the usual block: one holder, full weight
			b.byHash.table.removeAt(s, i)
			last(0)
			continue
		}
		if gone, deficit := b.byHash.release(e, slot); gone {
			last(deficit)
		}
	}
}

// after returns the path that ends with the block after path, and the row with the
// block's owners on that path (nil if there are none) with its table.
func (b *blocks) after(path, hash uint64) (next uint64, h *holders, e *blockRow) {
	sum := b.byHash.table.key.Sum(hash)
	path = b.extend(path, sum)
	e = b.byHash.table.findAt(hash, sum)
	switch {
	case e == nil, e.extra == path:
		return path, &b.byHash, e
	case e.extra == mixed:
		return path, &b.byPath, b.byPath.table.find(path)
	}
	return path, &b.byHash, nil
}

// widen makes room for that many slots.
func (b *blocks) widen(slots int) {
	words := (slots + 63) / 64
	if words <= b.words() {
		return
	}
	words = max(words, 2*b.words())
	b.byHash.sets.widen(words)
	b.byPath.sets.widen(words)
}

// words returns how many 64-bit words a set of slots takes.
func (b *blocks) words() int { return b.byHash.sets.words }

// idle reports whether no block is held.
func (b *blocks) idle() bool { return b.byHash.table.live == 0 }

// reset gives all memory back; only when idle.
func (b *blocks) reset() {
	b.byHash.reset()
	b.byPath.reset()
}

// trim gives back the spare memory of part i, which is below segments.
func (b *blocks) trim(i int) {
	for _, h := range []*holders{&b.byHash, &b.byPath} {
		h.table.trim(i)
		h.pairs.trim(i)
		if i == 0 {
			h.sets.trim()
		}
	}
}

// hashSets are scratch sets of distinct.
var hashSets = sync.Pool{New: func() any { return new(hashset.Set) }}

// distinct returns hashes without repeats: the slice itself if there are none,
// as in every prompt hashed by the rules, else a copy of the first occurrences.
func distinct(hashes []uint64) []uint64 {
	if len(hashes) < 2 {
		return hashes
	}
	seen := hashSets.Get().(*hashset.Set)
	seen.Reset(len(hashes))
	out := hashes
	for i, h := range hashes {
		switch added := seen.Add(h); {
		case added && len(out) != len(hashes):
			out = append(out, h)
		case !added && len(out) == len(hashes):
			out = append(make([]uint64, 0, len(hashes)-1), hashes[:i]...)
		}
	}
	hashSets.Put(seen)
	return out
}
