package reservations

import (
	"github.com/select-service/select-service/internal/container/keyhash"
	"github.com/select-service/select-service/internal/container/offheap"
)

// positions finds where in the arena of a prefixes a hash stands. It stores no hashes: a cell
// is a tag and a position in one word, so that growing and shifting read nothing else. Like
// flat it is divided into segments that grow one by one. They grow by a third, not to twice
// their size: a full segment takes 11 bytes a block and a new one 15.
type positions struct {
	mem  *offheap.Memory
	key  keyhash.Key
	segs *[segments]cells // nil while nothing was ever stored
	live int
}

// cells is one segment: open addressing with linear probing and without tombstones. An empty
// cell is 0, which is no position.
type cells struct {
	words []uint64 // tag<<32 | position
	live  int
}

const minCells = 8

func (p *positions) init() {
	if p.segs == nil {
		p.segs = new([segments]cells)
	}
}

// tagOf returns the tag of a hash whose sum is known. The top bits of the sum choose the
// segment, so that the tag comes from the others.
func tagOf(sum uint64) uint64 { return sum & 0xffffffff }

func (c *cells) home(tag uint64) int { return int(tag * uint64(len(c.words)) >> 32) }

func (c *cells) next(i int) int {
	if i++; i == len(c.words) {
		return 0
	}
	return i
}

// steps returns the number of steps from one cell to another.
func (c *cells) steps(from, to int) int {
	if to < from {
		to += len(c.words)
	}
	return to - from
}

func (c *cells) put(word uint64) {
	i := c.home(word >> 32)
	for c.words[i] != 0 {
		i = c.next(i)
	}
	c.words[i] = word
}

// ahead is how many hashes are looked up at a time: their cells fit into a processor's
// smallest cache.
const ahead = 32

// lookAhead fills in the sums of at most ahead hashes and reads their home cells, before the
// caller looks them up one by one. Those look-ups wait for memory one after the other, because
// the processor cannot know how far each has to go. Here no read depends on another, so that
// the waits overlap. The result has no meaning; the caller must use it, or the compiler may
// remove the reads.
func (p *positions) lookAhead(hashes []uint64, sums *[ahead]uint64) (any uint64) {
	p.init()
	for i, h := range hashes {
		sum := p.key.Sum(h)
		sums[i%ahead] = sum
		if c := &p.segs[sum>>(64-segmentBits)]; len(c.words) > 0 {
			any += c.words[c.home(tagOf(sum))]
		}
	}
	return any
}

// find returns the position of a hash, or 0.
func (p *positions) find(hash uint64, in *wordArena) uint32 {
	if p.live == 0 {
		return 0
	}
	sum := p.key.Sum(hash)
	c, tag := &p.segs[sum>>(64-segmentBits)], tagOf(sum)
	if c.live == 0 {
		return 0
	}
	for i := c.home(tag); c.words[i] != 0; i = c.next(i) {
		if w := c.words[i]; w>>32 == tag && hashAt(in, uint32(w)) == hash {
			return uint32(w)
		}
	}
	return 0
}

// putNew enters a hash, of which sum is the sum, at a position. It returns false and changes
// nothing if the hash has a position already.
func (p *positions) putNew(hash, sum uint64, at uint32, in *wordArena) bool {
	c, tag := &p.segs[sum>>(64-segmentBits)], tagOf(sum)
	if 4*(c.live+1) > 3*len(c.words) {
		c.resize(p.mem, max(minCells, len(c.words)*4/3))
	}
	i := c.home(tag)
	for ; c.words[i] != 0; i = c.next(i) {
		if w := c.words[i]; w>>32 == tag && hashAt(in, uint32(w)) == hash {
			return false
		}
	}
	c.words[i] = tag<<32 | uint64(at)
	c.live++
	p.live++
	return true
}

// move changes the position of a hash.
func (p *positions) move(hash uint64, from, to uint32) {
	sum := p.key.Sum(hash)
	c, tag := &p.segs[sum>>(64-segmentBits)], tagOf(sum)
	c.words[c.find(tag, from)] = tag<<32 | uint64(to)
}

// find returns the cell of a position, which must be in the segment.
func (c *cells) find(tag uint64, at uint32) int {
	i := c.home(tag)
	for c.words[i] != tag<<32|uint64(at) {
		i = c.next(i)
	}
	return i
}

// remove removes a hash from the position where it is entered.
func (p *positions) remove(sum uint64, at uint32) {
	c := &p.segs[sum>>(64-segmentBits)]
	hole := c.find(tagOf(sum), at)
	c.live--
	p.live--
	for i := c.next(hole); c.words[i] != 0; i = c.next(i) {
		if home := c.home(c.words[i] >> 32); c.steps(home, i) >= c.steps(hole, i) {
			c.words[hole] = c.words[i]
			hole = i
		}
	}
	c.words[hole] = 0
}

func (c *cells) resize(mem *offheap.Memory, n int) {
	old := c.words
	c.words = offheap.Make[uint64](mem, n)
	for _, w := range old {
		if w != 0 {
			c.put(w)
		}
	}
	offheap.Free(mem, old)
}

// trim gives back the spare memory of segment i.
func (p *positions) trim(i int) {
	if p.segs == nil {
		return
	}
	switch c := &p.segs[i]; {
	case c.live == 0:
		offheap.Free(p.mem, c.words)
		c.words = nil
	case 3*c.live < len(c.words) && len(c.words) > minCells:
		c.resize(p.mem, max(minCells, 2*c.live))
	}
}

// reset gives all memory back.
func (p *positions) reset() {
	if p.segs != nil {
		for i := range p.segs {
			offheap.Free(p.mem, p.segs[i].words)
		}
	}
	p.segs, p.live = nil, 0
}
